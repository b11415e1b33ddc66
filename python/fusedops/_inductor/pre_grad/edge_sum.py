"""What stands in a graph for a sum of messages: rows of nodes, summed by the other end of edges."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor


class Lists(NamedTuple):
    """The edges of every result: those of result i are at starts[i] to starts[i + 1]."""

    rows: Tensor  # (E,) int32: what an edge adds
    weights: Tensor | None  # (E,): times that
    starts: Tensor  # (count + 1,) int32


def by_end(end: Tensor, other: Tensor, weights: Tensor | None, count: int) -> Lists:
    """Edges (E,) in the order of one end, of which there are `count`; others belong to none."""
    # NOTE: the first list has to begin with the first edge.
    keys, order = torch.sort(torch.where(end < 0, count, end).int(), stable=True)
    numbers = torch.arange(count + 1, dtype=keys.dtype, device=keys.device)
    starts = torch.searchsorted(keys, numbers, out_int32=True)
    return Lists(other.int()[order], None if weights is None else weights[order], starts)


class EdgeSum(torch.autograd.Function):
    """(x, the lists of results, the lists of rows of x) -> out, with weights that are constant.

    Sums are float32 for halves, in one order: two runs agree bit by bit.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, *lists: Tensor | None) -> Tensor:
        ctx.save_for_backward(*lists)
        rows, weights, starts = lists[:3]
        bags = torch.ops.aten._embedding_bag_forward_only.default
        out: Tensor = bags(x, rows, starts, False, 0, False, weights, True)[0]
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> Any:
        lists = ctx.saved_tensors
        return EdgeSum.apply(dout.contiguous(), *lists[3:], *lists[:3]), *(None for _ in lists)


def edge_sum(
    x: Tensor, source: Tensor, target: Tensor, weights: Tensor | None, count: int, wraps: bool
) -> Tensor:
    """out (count, C) with out[i] = sum of weights[e] x[source[e]] over edges with target[e] = i."""
    nodes = x.shape[0]
    if wraps:
        source = torch.where(source < 0, source + nodes, source)
    weights = None if weights is None else weights.flatten()
    forward = by_end(target, source, weights, count)
    out: Tensor = EdgeSum.apply(x, *forward, *by_end(source, target, weights, nodes))
    return out
