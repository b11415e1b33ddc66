"""Layers over edges: set abstraction and EdgeConv by every kernel, forward and backward."""

from __future__ import annotations

import itertools
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import torch

import fusedops

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable

    from options import Options

BatchNorm = fusedops.points.BatchNorm


def run(o: Options, count: Counter[str]) -> None:
    """Depths, widths, paddings and norms; small, as every layer is several kernels."""
    widths = ((20,), (64,), (256,), (32, 32, 64), (64, 64, 128), (48, 10), (128, 128, 256))
    wide = ((20, 264), (136, 40), (264, 264, 272))
    alone = ((64,), (64, 128), (24,), (136,), (256,))
    cases: list[tuple[str, Callable[..., None]]] = []
    for channels, few in (*((w, False) for w in widths), *((w, True) for w in wide)):
        for k, training in ((1 if few else 5, True), (17, False), (40 if few else 33, True)):
            call = partial(_set_abstraction, o, channels, k, training)
            cases.append(("wide set abstraction" if few else "set abstraction", call))
    for channels, training in itertools.product(alone, (True, False)):
        cases.append(("edge conv", partial(_edge_conv, o, channels, training=training)))
    for dtype in o.some((torch.bfloat16, torch.float16), 1):
        for name, call in o.mine(cases):
            call(dtype=dtype)
            count[name] += 1


def _norms(o: Options, channels: tuple[int, ...], training: bool) -> list[BatchNorm]:
    return [
        BatchNorm(o.randn(c, grad=True), o.randn(c, grad=True), o.rand(c), 1 + o.rand(c), training)
        for c in channels
    ]


def _idx(o: Options, groups: int, n: int, k: int) -> torch.Tensor:
    """Repeats, none, a group without neighbours and one that is full."""
    idx = torch.randint(-1, n + 1, (2, groups, k), device=o.device)
    idx[:, ::3, k // 2 :] = idx[:, ::3, :1]
    idx[0, 1] = -1
    idx[1, 2] = torch.arange(k, device=o.device) % n
    return idx


def _check(*results: torch.Tensor | None) -> None:
    for t in results:
        assert t is not None
        assert not t.isnan().any()


def _set_abstraction(
    o: Options, channels: tuple[int, ...], k: int, training: bool, dtype: torch.dtype
) -> None:
    n, groups, features = 50, 37 if o.clusters else 13 if k < 40 else 3, 6
    sizes = (3 + features, *channels)
    weights = [o.randn(b, a, dtype=dtype, grad=True) for a, b in pairwise(sizes)]
    norms = _norms(o, channels, training)
    for moves in (True, False):  # without gradients of coordinates, features are gathered
        out = fusedops.points.set_abstraction(
            o.rand(2, n, 3, grad=moves), o.randn(2, n, features, dtype=dtype, grad=True),
            o.rand(2, groups, 3, grad=moves), _idx(o, groups, n, k), weights, norms=norms,
        )  # fmt: skip
        out.sum().backward()
        _check(out, *(weight.grad for weight in weights))
    with torch.no_grad():
        fusedops.points.set_abstraction(
            o.rand(2, n, 3), None, o.rand(2, groups, 3), _idx(o, groups, n, k),
            [weights[0][:, :3], *weights[1:]], norms=_norms(o, channels, False),
        )  # fmt: skip


def _edge_conv(o: Options, channels: tuple[int, ...], dtype: torch.dtype, training: bool) -> None:
    n, k, features = 300, 9, 16
    sizes = (2 * features, *channels)
    weights = [o.randn(b, a, dtype=dtype, grad=True) for a, b in pairwise(sizes)]
    x = o.randn(2, n, features, dtype=dtype, grad=True)
    idx = _idx(o, n, n, k)
    idx[:, 2:, 1] = 7  # a point with more edges than a group of lanes takes alone
    norms = _norms(o, channels, training)
    out = fusedops.points.edge_conv(x, idx, weights, norms=norms)
    out.sum().backward()
    _check(out, x.grad, *(weight.grad for weight in weights))
    with torch.no_grad():
        fusedops.points.edge_conv(x, idx, weights, norms=norms)
