"""Sums of messages in a graph: rows of nodes, by an edge's one end, added up by its other end.

Edges are brought into the order of an end, once for all layers over them; a sum reads the rows of
nodes where they lie, in float32 for halves and in one order: two runs agree bit by bit. On a GPU
that is a kernel of ours; with weights, and on a CPU, torch's embedding bags.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .shared import is_batched

LEAST_BYTES = 1 << 26  # of messages; the order of edges takes as long as fewer
LONGEST = 256  # edges that are summed one behind the other
_HALVES = (torch.float16, torch.bfloat16)
_bags = torch.ops.aten._embedding_bag_forward_only.default


def pays(x: Tensor, edges: int) -> bool:
    """Whether messages of rows of x are many, and in half precision on a GPU.

    torch adds those with atomics, one value at a time.
    """
    if x.device.type != "cuda" or x.dtype not in _HALVES:
        return False
    return bool(edges * x.shape[1] * x.dtype.itemsize >= LEAST_BYTES)


class Order(NamedTuple):
    """The edges of every node: those of node i are at starts[i] to starts[i + 1].

    Behind the last node stand the edges that end or begin at no node.
    """

    rows: Tensor  # (E,) int32: the other ends
    edges: Tensor  # (E,): which edges they are
    starts: Tensor  # (count + 1,) int32

    def given(self, weights: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor]:
        """What a sum over it takes, with the weights of edges (E,)."""
        return self.rows, None if weights is None else weights[self.edges], self.starts


def by_end(end: Tensor, other: Tensor, count: int, others: int) -> Order:
    """Edges (E,) in the order of one end, of which there are `count`, and `others` of the other."""
    outside = (end < 0) | (end >= count) | (other < 0) | (other >= others)
    keys, edges = torch.sort(torch.where(outside, count, end).int(), stable=True)
    numbers = torch.arange(count + 1, dtype=keys.dtype, device=keys.device)
    starts = torch.searchsorted(keys, numbers, out_int32=True)
    return Order(torch.where(outside, 0, other).int()[edges], edges, starts)


class Orders(NamedTuple):
    """Edges by their targets and by their sources."""

    targets: Order
    sources: Order


def orders_of(source: Tensor, target: Tensor, sources: int, targets: int) -> Orders:
    """Both orders of edges (E,) from one set of nodes to another or the same one."""
    return Orders(
        by_end(target, source, targets, sources), by_end(source, target, sources, targets)
    )


def sum_of(x: Tensor, order: Order, weights: Tensor | None) -> Tensor:
    """What each node's edges sum to, of x by their other ends; no gradient."""
    return _sum(x, *order.given(weights))


def _sum(x: Tensor, rows: Tensor, weights: Tensor | None, starts: Tensor) -> Tensor:
    if x.is_cuda and weights is None:
        ranges = torch.stack([starts[:-1], starts[1:]], 1)
        sums: Tensor = torch.ops.fusedops.edge_message_sums(x, rows, ranges)
        return sums
    parts, lists = _parts(rows, starts)
    sums = _bags(x, rows, parts, False, 0, False, weights)[0]
    every = torch.arange(len(parts), dtype=rows.dtype, device=rows.device)
    out: Tensor = _bags(sums, every, lists)[0]
    return out[:-1].data  # NOTE: no view to autograd, which lets nobody write into one


def _parts(rows: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
    """Where each part of a list begins, and the part that each list begins with.

    A node may have most edges of a graph: a part begins with a list or after LONGEST edges.
    """
    every = torch.arange(0, len(rows), LONGEST, dtype=starts.dtype, device=starts.device)
    parts = torch.sort(torch.cat([starts, every])).values
    return parts, torch.searchsorted(parts, starts, out_int32=True)


def _sum_of_batch(x: Tensor, rows: Tensor, weights: Tensor | None, starts: Tensor) -> Tensor:
    """`_sum` for a batch of gradients at once, for which embedding bags crash."""
    node = torch.bucketize(torch.arange(len(rows), device=rows.device), starts, right=True) - 1
    terms = x.index_select(0, rows)
    terms = terms if weights is None else terms * weights.unsqueeze(1)
    return terms.new_zeros(len(starts), x.shape[1]).index_add(0, node, terms)[:-1]


class _EdgeSum(torch.autograd.Function):
    """(x, what a sum by targets takes, what one by sources takes) -> out; constant weights."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *given: Tensor | None) -> Tensor:
        ctx.save_for_backward(*given)
        return _sum(x, *given[:3])

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> Any:
        given = ctx.saved_tensors
        if is_batched(dout):
            return _sum_of_batch(dout, *given[3:]), *(None for _ in given)
        return _EdgeSum.apply(dout.contiguous(), *given[3:], *given[:3]), *(None for _ in given)


def ordered_sum(x: Tensor, orders: Orders, weights: Tensor | None) -> Tensor:
    """out (targets, C): the sum of x (sources, C) over the edges of each, times weights (E,)."""
    given = (*orders.targets.given(weights), *orders.sources.given(weights))
    out: Tensor = _EdgeSum.apply(x, *given)
    return out


def edge_sum(
    x: Tensor, source: Tensor, target: Tensor, weights: Tensor | None, count: int, wraps: bool
) -> Tensor:
    """out (count, C) with out[i] = sum of weights[e] x[source[e]] over edges with target[e] = i."""
    nodes = x.shape[0]
    if wraps:
        source = torch.where(source < 0, source + nodes, source)
    weights = None if weights is None else weights.flatten()
    return ordered_sum(x, orders_of(source, target, nodes, count), weights)
