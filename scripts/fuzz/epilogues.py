"""Calls with an epilogue of one's own, whose backward is derived."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from draw import Case, Draw
from torch import Tensor

import fusedops

if TYPE_CHECKING:
    from collections.abc import Callable

# Expressions, few enough to compile, and where their operands go: c(olumn), r(ow), f(ull).
# NOTE: no kinks, as a rounding of the product moves it across one.
EXPRESSIONS: dict[str, tuple[Callable[..., Any], str]] = {
    "softcap": (lambda acc: 5.0 * torch.tanh(acc / 5.0), ""),
    "gelu": (lambda acc, bias: F.gelu(acc + bias), "c"),
    "gate": (lambda acc, bias, gate: F.silu(acc + bias) * torch.sigmoid(gate), "cf"),
    "rows": (lambda acc, row, res: torch.tanh(acc * row) + res, "rf"),
    "two": (lambda acc, a, b: a / (1 + b * b) + torch.sin(acc), "ff"),
    "vectors": (lambda acc, row, column: torch.exp(-((acc + row) ** 2)) * column, "rc"),
    "root": (lambda acc, res: torch.sqrt(acc * acc + res * res + 1), "f"),
    "four": (lambda acc, a, b, c, d: F.silu(acc + a) * b + c * torch.cos(d), "ffff"),
}
FUSED = (torch.float16, torch.bfloat16)


def epilogue(draw: Draw) -> Case:
    name, op = draw.pick(sorted(EXPRESSIONS)), draw.pick(("linear", "linear", "matmul"))
    function, kinds = EXPRESSIONS[name]
    dtype, (m, n, k) = draw.dtype(), (draw.size(), draw.size(), draw.size())
    if draw.chance(0.6):
        n, k = max(n // 8 * 8, 8), max(k // 8 * 8, 8)
    fused = draw.device == "cpu" or (dtype in FUSED and n % 8 == 0 and k % 8 == 0)
    made = fusedops.epilogue(function, unfused=not fused)
    shapes = {"c": (n,), "r": (m, 1), "f": (m, n)}
    weight = draw.floats((n, k), torch.float64, "normal") * max(k, 1) ** -0.5
    weight = draw.laid_out(weight.to(dtype), draw.pick(("dense", "stepped", "shifted")))
    tensors = [draw.floats((m, k), dtype, "normal"), weight]
    tensors += [draw.floats(shapes[kind], dtype, "normal") for kind in kinds]

    def ours(x: Any, weight: Any, *values: Any) -> Tensor:
        bound = made(**dict(zip(made.operands, values, strict=True)))
        if op == "linear":
            return fusedops.linear(x, weight, epilogue=bound)
        b = weight.t() if isinstance(weight, Tensor) else weight
        return fusedops.matmul(x, b, epilogue=bound)

    def scale(x: Tensor, weight: Tensor, *values: Tensor) -> Tensor:
        top = x.new_tensor([1.0, *(v.abs().max() for v in values if v.numel())]).max()
        return (x.abs() @ weight.abs().t() + 1) * (1 + top) ** 2

    return Case(
        f"epilogue/{op} {name}",
        ours,
        lambda x, weight, *values: function(x @ weight.t(), *values).expand(m, n),
        tensors,
        differentiable=True,
        scale=scale,
    )


FAMILIES = {"epilogue": (epilogue,)}
