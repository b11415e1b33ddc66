"""FP8: products of operands that are quantised already, training steps, and the quantiser.

`fwd` and `wgrad` cases time one product with its scales, so peers are torch's scaled products and
our bf16 product of the same values. `step` cases start and end in bf16: quantising is in them, that
of the weight as well, once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from fusedops.bench.suites.base import Call, Case, PeerUnavailableError, Selection, Suite, Work
from fusedops.bench.suites.linear import compiled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

SHAPES = (
    (4096, 4096, 7168),
    (8192, 4096, 4096),
    (8192, 14336, 4096),
    (8192, 8192, 8192),
    (16384, 5120, 5120),
    (8192, 4096, 1024),
)
BLOCKS = (("mlp", 8192, 4096, 16384), ("mlp", 16384, 2048, 8192), ("gated", 8192, 4096, 14336),
          ("gated", 16384, 2048, 8192))  # fmt: skip
QUANTIZE = ((8192, 4096), (16384, 14336), (16384, 2048))
SCALED_MM = ("tensor", "row", "block")  # modes of torch's
E4M3 = torch.float8_e4m3fn


class Fp8Suite(Suite):
    name = "fp8"
    shape = "MxNxK"
    passes: tuple[str, ...] = ("fwd", "wgrad", "step")
    dtypes: tuple[str, ...] = ("bf16",)
    reference_peer = "ours_bf16"

    def cases(self, selection: Selection) -> list[Case]:
        shapes = selection.shapes or SHAPES
        found = [
            Case(f"{m}x{n}x{k}/block", {"kind": "linear", "shape": (m, n, k)}) for m, n, k in shapes
        ]
        if selection.shapes or selection.pass_ == "wgrad":
            return found
        found += [
            Case(f"T{t}_d{d}_h{h}/{kind}", {"kind": kind, "shape": (t, h, d)})
            for kind, t, d, h in BLOCKS
        ]
        if selection.pass_ == "fwd":
            found += [
                Case(f"quantize/{m}x{k}", {"kind": "quantize", "shape": (m, 0, k)})
                for m, k in QUANTIZE
            ]
        return found

    def make_inputs(
        self, case: Case, dtype: torch.dtype, pass_: str, device: torch.device
    ) -> tuple[Tensor, ...]:
        m, n, k = case["shape"]

        def values(*shape: int, scale: float = 1.0) -> Tensor:
            return torch.randn(*shape, dtype=dtype, device=device).mul_(scale)

        if case["kind"] == "quantize":
            return (values(m, k),)
        if case["kind"] == "linear" and pass_ != "step":
            # wgrad: dy (M, N) and x (M, K), whose transposes are the operands.
            x, w = (
                (values(m, n), values(m, k)) if pass_ == "wgrad" else (values(m, k), values(n, k))
            )
            return (x, w, *_operands(x, w, pass_ == "wgrad"))
        tensors = [values(m, k), values(n, k, scale=k**-0.5)]
        if case["kind"] == "gated":
            tensors.append(values(n, k, scale=k**-0.5))
        if case["kind"] != "linear":
            tensors.append(values(k, n, scale=n**-0.5))
        dy = values(m, n if case["kind"] == "linear" else k)
        return (*(t.requires_grad_(pass_ == "step") for t in tensors), dy)

    def ours(self, case: Case, pass_: str) -> Call:
        from fusedops.fp8 import Recipe

        return _call(case, pass_, Recipe(when="always"))

    def peers(self, case: Case, pass_: str) -> tuple[str, ...]:
        if case["kind"] == "quantize":
            return ("compile",)
        if case["kind"] == "linear" and pass_ != "step":
            modes = SCALED_MM if pass_ == "fwd" else SCALED_MM[:2]
            return ("ours_bf16", *(f"scaled_mm_{mode}" for mode in modes))
        return ("ours_bf16", "torchao") if pass_ == "step" else ("ours_bf16",)

    def default_peers(self, pass_: str) -> tuple[str, ...]:
        scaled = tuple(f"scaled_mm_{mode}" for mode in SCALED_MM)
        return ("ours_bf16", *scaled, "torchao", "compile")

    def peer(self, name: str, case: Case, pass_: str, device: torch.device) -> Call:
        if name == "ours_bf16":
            return _quantize_by_torch if case["kind"] == "quantize" else _call(case, pass_, None)
        if name == "compile":
            return compiled(_quantize_by_torch)
        if name.startswith("scaled_mm_"):
            return _scaled_mm(name.removeprefix("scaled_mm_"), device)
        if name == "torchao":
            return _torchao(case, device)
        raise PeerUnavailableError(f"the suite has no peer {name!r}")

    def work(self, case: Case, dtype: torch.dtype, pass_: str) -> Work:
        m, n, k = case["shape"]
        if case["kind"] == "quantize":
            return Work(4 * m * k, 0)
        products = {"linear": 1, "mlp": 2, "gated": 3}[case["kind"]]
        flops = 2.0 * m * n * k * products
        if case["kind"] == "linear" and pass_ == "fwd":
            return Work(m * k + n * k + 2 * m * n, flops)
        if case["kind"] == "linear" and pass_ == "wgrad":
            return Work(m * n + m * k + 2 * n * k, flops)
        outer = m * (k + n) if case["kind"] == "linear" else 2 * m * k
        size = 2 * (outer + products * n * k)
        return Work(size, flops) if pass_ == "fwd" else Work(2 * size, 3 * flops)

    def tolerance(self, case: Case, dtype: str) -> float:
        """Of quantising itself: a product has 3.7 %, the gradient of a gated MLP 8 %."""
        return 1e-6 if case["kind"] == "quantize" else 0.12

    def errors(
        self, case: Case, pass_: str, inputs: Sequence[Tensor], results: dict[str, Any]
    ) -> dict[str, float]:
        """Of a product alone, against the quantised one in float64: at most 1.05 x bf16's rounding
        and what sums of 14 bits leave.
        """
        if case["kind"] != "linear" or pass_ == "step":
            return {}
        from fusedops.fp8 import dequantize

        x8, w8, scale_x, scale_w = inputs[2:6]
        wide = (dequantize(q, s, torch.float64) for q, s in ((x8, scale_x), (w8, scale_w)))
        a, b = wide
        exact = a @ b.t()
        error = float((results["ours"].double() - exact).norm() / exact.norm())
        if not error <= 1.05 * 2.3e-3:
            raise ValueError(f"relative error {error:.2e} against the quantised product")
        return {"ours": error}


def _operands(x: Tensor, w: Tensor, transposed: bool) -> tuple[Tensor, ...]:
    """(x8, w8, scale_x, scale_w) by blocks as ours takes them, then by rows, then by tensors."""
    from fusedops.fp8 import quantize

    found: list[Tensor] = []
    for of_x, of_w in (("block", "tile"), ("row", "row"), ("tensor", "tensor")):
        a, b = quantize(x, of_x, E4M3, transposed), quantize(w, of_w, E4M3, transposed)
        found += (a.q_t, b.q_t, a.scale_t, b.scale_t) if transposed else (a.q, b.q, a[1], b[1])
    return tuple(found)


def _call(case: Case, pass_: str, recipe: Any) -> Call:
    """Ours, with the recipe or in bf16."""
    import fusedops
    from fusedops import fp8

    kind = case["kind"]
    if kind == "quantize":
        op = torch.ops.fusedops.fp8_quantize
        return lambda x: op(x, None, None, 0, False, 0, 3, 4, False, False, False)[:4]
    if kind == "linear" and pass_ != "step":
        if recipe is not None:
            return lambda x, w, x8, w8, sx, sw, *_: fp8.linear(x8, w8, sx, sw)
        if pass_ == "wgrad":
            return lambda dy, x, *_: fusedops.matmul(dy.t(), x)
        return lambda x, w, *_: fusedops.linear(x, w)
    forwards: dict[str, Call] = {
        "linear": lambda x, w: fusedops.linear(x, w, recipe=recipe),
        "mlp": lambda x, w1, w2: fusedops.mlp(x, w1, None, w2, None, "gelu_tanh", recipe=recipe),
        "gated": lambda x, gate, up, down: fusedops.gated_mlp(x, gate, up, down, recipe=recipe),
    }
    return _as_pass(forwards[kind], pass_)


def _as_pass(forward: Call, pass_: str) -> Call:
    if pass_ == "fwd":
        return lambda *inputs: forward(*inputs[:-1])

    def step(*inputs: Tensor) -> tuple[Any, ...]:
        *operands, dy = inputs
        y = forward(*operands)
        return (y.detach(), *torch.autograd.grad(y, operands, dy))

    return step


def _scaled_mm(mode: str, device: torch.device) -> Call:
    """torch's product of the operands of a mode; both are K-major, as it wants them."""
    if device.type != "cuda":
        raise PeerUnavailableError("needs a GPU")
    kind = getattr(F, "ScalingType", None)
    if kind is None:
        raise PeerUnavailableError("needs torch.nn.functional.scaled_mm")
    recipes = {
        "tensor": (kind.TensorWise, kind.TensorWise),
        "row": (kind.RowWise, kind.RowWise),
        "block": (kind.BlockWise1x128, kind.BlockWise128x128),
    }[mode]
    first = {"block": 2, "row": 6, "tensor": 10}[mode]

    def call(*inputs: Tensor) -> Tensor:
        x8, w8, scale_x, scale_w = inputs[first : first + 4]
        if mode == "row":
            scale_w = scale_w.t()
        y: Tensor = F.scaled_mm(
            x8, w8.t(), scale_x, recipes[0], scale_w, recipes[1], output_dtype=torch.bfloat16
        )
        return y

    if mode != "block":
        return call

    def by_blocks(*inputs: Tensor) -> Tensor:
        # NOTE: its 128x128 scales lie with the blocks of K side by side, padded to 4.
        x8, w8, scale_x, scale_w = inputs[2:6]
        blocks = scale_w.shape[1]
        padded = F.pad(scale_w, (0, -blocks % 4)).t() if blocks % 4 else scale_w.t()
        y: Tensor = F.scaled_mm(
            x8, w8.t(), scale_x, recipes[0], padded, recipes[1], output_dtype=torch.bfloat16
        )
        return y

    return by_blocks


def _torchao(case: Case, device: torch.device) -> Call:
    """torchao's float8 training, compiled, in its recipe of one scale for each row."""
    try:
        from torchao.float8 import (  # type: ignore[import-not-found]
            Float8LinearConfig,
            convert_to_float8_training,
        )
    except ImportError as error:
        raise PeerUnavailableError(f"torchao is not installed ({error})") from None
    if device.type != "cuda":
        raise PeerUnavailableError("needs a GPU")
    _, n, k = case["shape"]
    shapes = {"linear": ((k, n),), "mlp": ((k, n), (n, k)), "gated": ((k, n), (k, n), (n, k))}
    layers = [
        torch.nn.Linear(*s, bias=False, device=device, dtype=torch.bfloat16)
        for s in shapes[case["kind"]]
    ]
    model = torch.nn.ModuleList(layers)
    convert_to_float8_training(model, config=Float8LinearConfig.from_recipe_name("rowwise"))

    def layer(i: int, x: Tensor, weight: Tensor) -> Tensor:
        y: Tensor = torch.func.functional_call(model[i], {"weight": weight}, (x,))
        return y

    def forward(x: Tensor, *weights: Tensor) -> Tensor:
        if case["kind"] == "linear":
            return layer(0, x, weights[0])
        if case["kind"] == "mlp":
            return layer(1, F.gelu(layer(0, x, weights[0]), approximate="tanh"), weights[1])
        return layer(2, F.silu(layer(0, x, weights[0])) * layer(1, x, weights[1]), weights[2])

    return _as_pass(compiled(forward), "step")


def _quantize_by_torch(x: Tensor) -> tuple[Tensor, ...]:
    """Rows by 1x128 and the transpose by 128x128, of sizes that 128 divides."""
    m, k = x.shape
    rows = x.float().view(m, k // 128, 128)
    maxima = rows.abs().amax(-1).clamp_min(2.0**-100)
    q = (rows * (torch.full_like(maxima, 448) / maxima)[..., None]).clamp(-448, 448).to(E4M3)
    tiles = x.float().view(m // 128, 128, k // 128, 128)
    of_tiles = tiles.abs().amax((1, 3)).clamp_min(2.0**-100)
    inverse = (torch.full_like(of_tiles, 448) / of_tiles)[:, None, :, None]
    q_t = (tiles * inverse).clamp(-448, 448).to(E4M3).view(m, k).t().contiguous()
    scale = (maxima / 448).t().contiguous()
    return q.view(m, k), scale, q_t, (of_tiles / 448).t().contiguous()


SUITE = Fp8Suite
