"""FP8: products of operands that are quantised already, training steps, and the quantiser.

`fwd` and `wgrad` cases time one product with its scales, so peers are torch's scaled products and
our bf16 product of the same values. `step` cases start and end in bf16: quantising is in them, that
of the weight as well, once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fusedops.bench.suites.base import Call, Case, PeerUnavailableError, Selection, Suite, Work
from fusedops.bench.suites.linear import compiled

from .peers import E4M3, as_pass, by_torch, scaled_mm, torchao

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
NORM_BLOCKS = ((8192, 4096, 14336), (16384, 2048, 8192))
NORMS = ((8192, 4096), (16384, 2048), (8192, 5120), (8192, 8192))
QUANTIZE = ((8192, 4096), (16384, 14336), (16384, 2048))
PASSES = ("quantize", "rms_norm", "layer_norm")  # that quantise
SCALED_MM = ("tensor", "row", "block")  # modes of torch's


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
        if selection.pass_ == "step":
            found += [
                Case(f"T{t}_d{d}_h{h}/norm_gated", {"kind": "norm_gated", "shape": (t, h, d)})
                for t, d, h in NORM_BLOCKS
            ]
        if selection.pass_ == "fwd":
            found += [
                Case(f"{kind}/{m}x{k}", {"kind": kind, "shape": (m, 0, k)})
                for kind in ("rms_norm", "layer_norm")
                for m, k in NORMS
            ]
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
        if case["kind"] in ("rms_norm", "layer_norm"):
            return (values(m, k), values(k), values(k))
        if case["kind"] == "linear" and pass_ != "step":
            # wgrad: dy (M, N) and x (M, K), whose transposes are the operands.
            x, w = (
                (values(m, n), values(m, k)) if pass_ == "wgrad" else (values(m, k), values(n, k))
            )
            return (x, w, *_operands(x, w, pass_ == "wgrad"))
        tensors = [values(m, k), values(n, k, scale=k**-0.5)]
        if case["kind"] == "norm_gated":
            tensors[1:1] = [values(m, k), 1 + values(k, scale=0.1)]
        if case["kind"] in ("gated", "norm_gated"):
            tensors.append(values(n, k, scale=k**-0.5))
        if case["kind"] != "linear":
            tensors.append(values(k, n, scale=n**-0.5))
        dy = values(m, n if case["kind"] == "linear" else k)
        return (*(t.requires_grad_(pass_ == "step") for t in tensors), dy)

    def ours(self, case: Case, pass_: str) -> Call:
        from fusedops.fp8 import Recipe

        return _call(case, pass_, Recipe(when="always"))

    def peers(self, case: Case, pass_: str) -> tuple[str, ...]:
        if case["kind"] in PASSES:
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
            return by_torch(case) if case["kind"] in PASSES else _call(case, pass_, None)
        if name == "compile":
            return compiled(by_torch(case))
        if name.startswith("scaled_mm_"):
            return scaled_mm(name.removeprefix("scaled_mm_"), device)
        if name == "torchao":
            return torchao(case, device)
        raise PeerUnavailableError(f"the suite has no peer {name!r}")

    def work(self, case: Case, dtype: torch.dtype, pass_: str) -> Work:
        m, n, k = case["shape"]
        if case["kind"] in PASSES:
            return Work(4 * m * k, 0)
        products = {"linear": 1, "mlp": 2, "gated": 3, "norm_gated": 3}[case["kind"]]
        flops = 2.0 * m * n * k * products
        if case["kind"] == "linear" and pass_ == "fwd":
            return Work(m * k + n * k + 2 * m * n, flops)
        if case["kind"] == "linear" and pass_ == "wgrad":
            return Work(m * n + m * k + 2 * n * k, flops)
        outer = m * (k + n) if case["kind"] == "linear" else 2 * m * k
        size = 2 * (outer + products * n * k)
        return Work(size, flops) if pass_ == "fwd" else Work(2 * size, 3 * flops)

    def tolerance(self, case: Case, dtype: str) -> float:
        """Quantising alone gives 3.7 % in a product, 8 % in the gradient of a gated MLP."""
        if case["kind"] == "quantize":
            return 1e-6
        return 0.02 if case["kind"] in PASSES else 0.12

    def errors(
        self, case: Case, pass_: str, inputs: Sequence[Tensor], results: dict[str, Any]
    ) -> dict[str, float]:
        """A product alone, against the quantised one in float64: at most 1.05 x bf16's rounding
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
    if kind in PASSES:
        norm, rms = torch.ops.fusedops._fp8_norm, kind == "rms_norm"
        return lambda x, w, b: norm(x, None, w, None if rms else b, rms, 1e-5, 0, 3, 4, False)[:4]
    if kind == "norm_gated":
        return as_pass(_norm_gated(recipe), pass_)
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
    return as_pass(forwards[kind], pass_)


def _norm_gated(recipe: Any) -> Call:
    """The half of a block behind attention: norm of x + residual, gated MLP, and their sum."""
    import fusedops
    from fusedops._core.activation import CODES
    from fusedops.fp8.layers import fp8_gated_mlp
    from fusedops.fp8.normed import Norm

    def in_bf16(x: Tensor, residual: Tensor, w: Tensor, *layers: Tensor) -> Tensor:
        y, total = fusedops.rms_norm(x, x.shape[-1], w, 1e-5, residual=residual)
        gate, up, down = layers
        out: Tensor = fusedops.gated_mlp(y, gate, up, down, residual=total)
        return out

    def in_fp8(x: Tensor, residual: Tensor, w: Tensor, *layers: Tensor) -> Tensor:
        gate, up, down = layers
        norm = Norm(True, w, None, 1e-5, residual)
        code = CODES["silu"]
        y, total = fp8_gated_mlp(x, gate, up, None, None, down, None, code, recipe, None, norm)
        out: Tensor = y + total
        return out

    return in_bf16 if recipe is None else in_fp8


SUITE = Fp8Suite
