"""Wide layers over edges by the emulated kernels, against the composed layers in float64.

    python scripts/emulate/try_rows.py build/emulated.so

No activation, so that no rounding changes its derivative: only another winner of a maximum does.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fusedops.points import BatchNorm, _edge_rows, edge_conv, feature_propagation, set_abstraction


class Case(NamedTuple):
    """A layer to try."""

    layer: str
    channels: tuple[int, ...]
    features: int
    k: int
    training: bool


CASES = (
    Case("abstraction", (64,), 5, 7, True),
    Case("abstraction", (32, 40), 5, 20, True),
    Case("abstraction", (296, 24, 264), 6, 17, False),
    Case("abstraction", (64, 8), 0, 40, True),
    Case("abstraction", (20, 36, 12), 6, 17, True),
    Case("conv", (24, 64), 8, 9, True),
    Case("propagation", (24, 40), 6, 3, True),
    Case("propagation", (264,), 0, 3, False),
    Case("propagation", (24, 40), 6, 3, False),
    Case("conv", (24, 64), 8, 9, False),
    Case("abstraction", (32, 20), 0, 9, False),
)
POINTS, GROUPS = 30, 9
OUTPUT_ERROR, GRADIENT_ERROR = 0.01, 0.25  # relative; bf16, few groups


def draw(case: Case) -> tuple[list[Tensor], Tensor]:
    """(xyz, features, weights, norms); indices with repeats, none, a group without any."""
    groups = POINTS if case.layer == "conv" else GROUPS
    idx = torch.randint(POINTS, (2, groups, case.k))
    idx[:, ::2, case.k // 2 :] = idx[:, ::2, :1]
    idx[0, 1], idx[1, 2, 3:] = -1, -1
    first = {"conv": 2 * case.features, "abstraction": 3 + case.features}.get(case.layer, 16)
    sizes = (first, *case.channels)
    count = max(sizes[0] - 10 if case.layer == "propagation" else case.features, 1)
    weights = [torch.randn(b, a) / a**0.5 for a, b in pairwise(sizes)]
    norms = [torch.stack([torch.randn(c), torch.randn(c)]) for c in case.channels]
    return [torch.rand(2, POINTS, 3), torch.randn(2, POINTS, count), *weights, *norms], idx


def run(
    case: Case,
    parts: list[Tensor],
    idx: Tensor,
    dtype: torch.dtype,
    activation: str | None = None,
) -> list[Tensor]:
    """The output, the last running statistics, and all gradients; or the output alone."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    count = len(case.channels)
    xyz = parts[0].to(wide).requires_grad_()
    x, *weights = (t.bfloat16().to(dtype).requires_grad_() for t in parts[1 : 2 + count])
    norms = [t.to(wide).requires_grad_() for t in parts[2 + count :]]
    running = [(torch.zeros(c, dtype=wide), torch.ones(c, dtype=wide)) for c in case.channels]
    given = [BatchNorm(n[0], n[1], *s, case.training) for n, s in zip(norms, running, strict=True)]
    options: dict[str, Any] = {"norms": given, "activation": activation, "negative_slope": 0.2}
    used = [x] if case.features else []
    if case.layer == "conv":
        out = edge_conv(x, idx, weights, **options)
    elif case.layer == "abstraction":
        features = x if case.features else None
        out = set_abstraction(xyz, features, xyz[:, :GROUPS] + 0.1, idx, weights, **options)
        used.append(xyz)
    else:
        points, known = xyz.detach(), xyz.detach()[:, 5:16]
        deep = torch.linspace(-2, 2, 2 * 11 * 16, dtype=wide).sin().view(2, 11, 16).to(dtype)
        lengths = torch.tensor([POINTS, POINTS - 7])
        deep = deep if not case.features else deep[..., :10]
        features = x if case.features else None
        out = feature_propagation(
            points, known, features, deep, weights, lengths=lengths, **options
        )
    if not torch.is_grad_enabled():
        return [out]
    inputs = [*used, *weights, *norms]
    dout = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).view_as(out).to(out.dtype)
    return [out.detach(), *running[-1], *torch.autograd.grad(out, inputs, dout)]


def check(case: Case) -> None:
    parts, idx = draw(case)
    calls, kernels = [], _edge_rows.edge_mlp
    _edge_rows.edge_mlp = lambda *a, **options: calls.append(1) or kernels(*a, **options)
    ours, exact = (run(case, parts, idx, dtype) for dtype in (torch.bfloat16, torch.float64))
    compare(case, ours, exact)
    count = 1
    if not case.training:
        for activation in (None, "relu", "leaky_relu"):
            with torch.no_grad():
                ours, exact = (
                    run(case, parts, idx, dtype, activation)
                    for dtype in (torch.bfloat16, torch.float64)
                )
            compare(case, ours, exact)
            count += 1
    _edge_rows.edge_mlp = kernels
    if len(calls) != count:
        raise SystemExit(f"{case}: the layers were composed")
    print(f"{case}: right")


def compare(case: Case, ours: list[Tensor], exact: list[Tensor]) -> None:
    for number, (a, b) in enumerate(zip(ours, exact, strict=True)):
        error = float((a.double() - b).norm() / b.norm().clamp_min(1e-9))
        allowed = OUTPUT_ERROR if number < 3 else GRADIENT_ERROR
        if not error < allowed:
            raise SystemExit(f"{case}: tensor {number}: relative error {error:.2e} > {allowed}")


if __name__ == "__main__":
    torch.ops.load_library(sys.argv[1])
    _edge_rows._runs_on = lambda device: True
    torch.manual_seed(0)
    for each in CASES:
        check(each)
