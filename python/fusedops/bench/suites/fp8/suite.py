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

from .peers import E4M3, as_pass, quantize_by_torch, scaled_mm, torchao

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
            return quantize_by_torch if case["kind"] == "quantize" else _call(case, pass_, None)
        if name == "compile":
            return compiled(quantize_by_torch)
        if name.startswith("scaled_mm_"):
            return scaled_mm(name.removeprefix("scaled_mm_"), device)
        if name == "torchao":
            return torchao(case, device)
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
    return as_pass(forwards[kind], pass_)


SUITE = Fp8Suite
