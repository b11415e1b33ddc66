"""Layers over edges by the emulated kernels, against the composed layers in float64.

    python scripts/emulate/try_edges.py build/emulated.so

No activation, so that no rounding changes its derivative: only another winner of a maximum does.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from fusedops.points import BatchNorm, _edge_conv, _edge_fused, edge_conv, set_abstraction


class Case(NamedTuple):
    """A layer to try."""

    channels: tuple[int, ...]
    features: int
    k: int
    conv: bool
    training: bool
    moves: bool  # coordinates have gradients; else few features are a part of edges' operands


CASES = (
    Case((64,), 5, 7, False, True, True),
    Case((32, 40), 5, 20, False, True, False),
    Case((32, 32, 64), 6, 17, False, False, True),
    Case((64, 128), 10, 33, False, True, False),
    Case((64, 128), 14, 33, False, True, True),
    Case((48, 20, 256), 6, 20, False, True, False),
    Case((32, 64), 0, 20, False, True, False),
    Case((50, 60, 33), 6, 19, False, True, False),
    Case((128, 128), 6, 20, False, True, True),
    Case((128, 64, 100), 30, 9, False, True, True),
    Case((64, 64, 128), 14, 33, False, False, True),
    Case((64, 96, 128), 0, 40, False, True, False),
    Case((50, 90, 100), 14, 17, False, True, True),
    Case((64, 96, 128), 6, 20, False, False, False),
    Case((20, 64), 8, 9, True, True, False),
    Case((64,), 8, 9, True, True, False),
    Case((200,), 12, 40, True, True, False),
    Case((24,), 8, 17, True, False, False),
)
# Widths of three layers, features and neighbours: inference has kernels of their own.
INFERRED = (
    ((32, 32, 64), 0, 33, False),
    ((64, 64, 64), 6, 17, False),
    ((64, 50, 101), 14, 20, False),
    ((64, 64, 128), 0, 32, False),
    ((64, 96, 128), 0, 70, False),
    ((50, 90, 128), 14, 33, False),
    ((128, 100, 128), 8, 20, True),
    ((100, 128, 256), 14, 9, False),
    ((128, 196, 256), 14, 40, False),
    ((128, 208, 250), 2, 20, False),
)
POINTS, GROUPS = 30, 9
OUTPUT_ERROR, GRADIENT_ERROR = 0.01, 0.25  # relative; bf16, few groups


def edge_lists(idx: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """The lists of csrc/cuda/points/grouping, which is not emulated."""
    clouds = idx.shape[0]
    to = torch.where((idx >= 0) & (idx < n), idx, n) + torch.arange(clouds).view(-1, 1, 1) * (n + 1)
    order = to.flatten().sort(stable=True)
    counts = to.flatten().bincount(minlength=clouds * (n + 1))
    ends = counts.cumsum(0)
    ranges = torch.stack([ends - counts, ends], 1).view(clouds, n + 1, 2)[:, :n].flatten(0, 1)
    return order.indices.int(), ranges.int().contiguous()


def edge_point_sums(
    rows: Tensor, entries: Tensor, ranges: Tensor, weights: Tensor | None, per_row: int
) -> Tensor:
    """Likewise."""
    out = torch.zeros(ranges.shape[0], rows.shape[1])
    for point, (begin, end) in enumerate(ranges.tolist()):
        taken = entries[begin:end].long()
        found = rows[taken // per_row].float()
        out[point] = (found if weights is None else found * weights[taken, None]).sum(0)
    return out


def draw(case: Case) -> tuple[list[Tensor], Tensor]:
    """(xyz, features, weights, norms); indices with repeats, none, a group without any."""
    groups = POINTS if case.conv else GROUPS
    idx = torch.randint(POINTS, (2, groups, case.k))
    idx[:, ::2, case.k // 2 :] = idx[:, ::2, :1]
    idx[0, 1], idx[1, 2, 3:] = -1, -1
    count = max(case.features, 1)
    sizes = (2 * case.features if case.conv else 3 + case.features, *case.channels)
    weights = [torch.randn(b, a) / a**0.5 for a, b in pairwise(sizes)]
    norms = [torch.stack([1 + 0.3 * torch.randn(c), torch.randn(c)]) for c in case.channels]
    return [torch.rand(2, POINTS, 3), torch.randn(2, POINTS, count), *weights, *norms], idx


def run(case: Case, parts: list[Tensor], idx: Tensor, dtype: torch.dtype) -> list[Tensor]:
    """The output, the last running statistics, and all gradients."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    count = len(case.channels)
    xyz = parts[0].to(wide).requires_grad_(case.moves)
    x, *weights = (t.bfloat16().to(dtype).requires_grad_() for t in parts[1 : 2 + count])
    norms = [t.to(wide).requires_grad_() for t in parts[2 + count :]]
    running = [(torch.zeros(c, dtype=wide), torch.ones(c, dtype=wide)) for c in case.channels]
    given = [BatchNorm(n[0], n[1], *s, case.training) for n, s in zip(norms, running, strict=True)]
    if case.conv:
        out = edge_conv(x, idx, weights, norms=given, activation=None)
    else:
        centers = xyz[:, :GROUPS] + 0.1
        features = x if case.features else None
        out = set_abstraction(xyz, features, centers, idx, weights, norms=given, activation=None)
    inputs = [*([x] if case.features else []), *weights, *norms, *([xyz] if case.moves else [])]
    dout = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).view_as(out).to(out.dtype)
    return [out.detach(), *running[-1], *torch.autograd.grad(out, inputs, dout)]


def check(case: Case) -> None:
    parts, idx = draw(case)
    calls, fused, conv = [], _edge_fused.edge_mlp, _edge_conv.edge_conv
    _edge_fused.edge_mlp = lambda *arguments: calls.append(1) or fused(*arguments)
    _edge_conv.edge_conv = lambda *arguments: calls.append(1) or conv(*arguments)
    ours = run(case, parts, idx, torch.bfloat16)
    _edge_fused.edge_mlp, _edge_conv.edge_conv = fused, conv
    if not calls:
        raise SystemExit(f"{case}: the layers were composed")
    for number, (a, b) in enumerate(zip(ours, run(case, parts, idx, torch.float64), strict=True)):
        error = float((a.double() - b).norm() / b.norm().clamp_min(1e-9))
        allowed = OUTPUT_ERROR if number < 3 else GRADIENT_ERROR
        if not error < allowed:
            raise SystemExit(f"{case}: tensor {number}: relative error {error:.2e} > {allowed}")
    print(f"{case}: right")


def check_inference(channels: tuple[int, ...], features: int, k: int, conv: bool) -> None:
    """ReLU; and the bits of the kernels that training has, where those are."""
    case = Case(channels, features, k, conv, False, False)
    parts, idx = draw(case)

    def call(dtype: torch.dtype, grads: bool) -> Tensor:
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        xyz = parts[0].to(wide)
        x, *weights = (t.bfloat16().to(dtype).requires_grad_(grads) for t in parts[1:5])
        norms = [
            BatchNorm(
                n[0], n[1], torch.zeros(n.shape[1], dtype=wide), torch.ones(n.shape[1]).to(wide)
            )
            for n in (t.to(wide) for t in parts[5:])
        ]
        if conv:
            return edge_conv(x, idx, weights, norms=norms, activation="relu").detach()
        features = x if case.features else None
        centers = xyz[:, :GROUPS] + 0.1
        return set_abstraction(xyz, features, centers, idx, weights, norms=norms).detach()

    widths, problem = [], _edge_fused.build_problem
    _edge_fused.build_problem = lambda *a, **k: widths.append(a[0].shape) or problem(*a, **k)
    ours = call(torch.bfloat16, False)
    _edge_fused.build_problem = problem
    if not widths or widths[0] is None:
        raise SystemExit(f"{case}: there was no kernel for inference")
    exact = call(torch.float64, False)
    error = float((ours.double() - exact).norm() / exact.norm())
    if not error < OUTPUT_ERROR:
        raise SystemExit(f"{case}: relative error {error:.2e} > {OUTPUT_ERROR}")
    if max(channels[:2]) <= 128 and not torch.equal(ours, call(torch.bfloat16, True)):
        raise SystemExit(f"{case}: other bits than training's")
    print(f"{channels} inferred by {widths[0]}: right")


if __name__ == "__main__":
    torch.ops.load_library(sys.argv[1])
    library = torch.library.Library("fusedops", "IMPL")
    library.impl("edge_lists", edge_lists, "CPU")
    library.impl("edge_point_sums", edge_point_sums, "CPU")
    _edge_fused._shared_limit = lambda device: 232448
    _edge_fused._has_infer_kernels = lambda device: True
    torch.manual_seed(0)
    for each in CASES:
        check(each)
    for channels, features, k, conv in INFERRED:
        check_inference(channels, features, k, conv)
