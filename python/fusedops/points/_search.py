"""What k-NN, ball query and radius search share in Python: argument forms, autograd."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import _fakes  # noqa: F401  (registers the fakes)
from .._autograd.shared import distinct, needs_grad, sees_torch_functions_only
from ..reference.points import rows
from ._autograd import scatter
from ._cloud import check_cloud_arguments

_ops = torch.ops.fusedops

# NOTE: the codes of csrc/common/neighbours.h.
ALGORITHMS = {"auto": 0, "brute": 1, "grid": 2, "tensor": 3}


class Search(NamedTuple):
    """The arguments that every search begins with, in the order of the ops' schemas."""

    points: Tensor
    queries: Tensor
    lengths: Tensor | None
    query_lengths: Tensor | None
    offsets: Tensor | None
    query_offsets: Tensor | None
    grid: Tensor | None


def algorithm_code(op: str, algorithm: str) -> int:
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        names = ", ".join(repr(name) for name in ALGORITHMS)
        raise ValueError(f"{op}: algorithm must be one of {names}; got {algorithm!r}")
    return ALGORITHMS[algorithm]


def make_search(
    op: str,
    points: Tensor,
    queries: Tensor | None,
    lengths: Tensor | None,
    query_lengths: Tensor | None,
    offsets: Tensor | None,
    query_offsets: Tensor | None,
    grid: Tensor | None = None,
) -> Search:
    """Queries of None are the points themselves."""
    check_cloud_arguments(op, points, lengths, offsets)
    if queries is None:
        for name, value in (("query_lengths", query_lengths), ("query_offsets", query_offsets)):
            if value is not None:
                raise ValueError(
                    f"{op}: {name} must be None where queries is None, which means the points "
                    f"themselves; got {type(value).__name__}"
                )
        return Search(points, points, lengths, lengths, offsets, offsets, grid)
    check_cloud_arguments(op, queries, query_lengths, query_offsets, "query_")
    return Search(points, queries, lengths, query_lengths, offsets, query_offsets, grid)


def detached(search: Search) -> Search:
    """For answers without a gradient."""
    return search._replace(points=search.points.detach(), queries=search.queries.detach())


def _clouds(points: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    """Packed points, and what belongs to them, as one padded cloud: its indices are the same."""
    tensors = (points, *others)
    return tensors if points.dim() == 3 else tuple(t.unsqueeze(0) for t in tensors)


def _deltas(points: Tensor, queries: Tensor, idx: Tensor) -> Tensor:
    """queries - points[idx]; 0 where idx is -1."""
    near = rows(*_clouds(points, idx)).reshape(*idx.shape, points.shape[-1])
    return (queries.unsqueeze(-2) - near).masked_fill((idx < 0).unsqueeze(-1), 0)


def pair_distances(points: Tensor, queries: Tensor, idx: Tensor, norm: int) -> Tensor:
    """Distances of known pairs by differentiable torch functions; infinite where idx is -1."""
    math = torch.float64 if points.dtype is torch.float64 else torch.float32
    delta = _deltas(points.to(math), queries.to(math), idx)
    dist = delta.abs().sum(-1) if norm == 1 else delta.square().sum(-1)
    return dist.masked_fill(idx < 0, float("inf"))


class DistanceFunction(torch.autograd.Function):
    """(points, queries, idx, dist, norm) -> dist with a gradient for points and queries."""

    @staticmethod
    def forward(
        ctx: Any, points: Tensor, queries: Tensor, idx: Tensor, dist: Tensor, norm: int
    ) -> Tensor:
        ctx.save_for_backward(points, queries, idx)
        ctx.norm = norm
        return dist.view_as(dist)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        points, queries, idx = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph: compose what can be differentiated again
            delta = _deltas(points, queries, idx)
            slope = torch.sign(delta) if ctx.norm == 1 else 2 * delta
            edge = (grad.masked_fill(idx < 0, 0).unsqueeze(-1) * slope).to(points.dtype)
            cloud, at, entries = _clouds(points, idx, edge)
            dpoints = -scatter(entries, at, cloud.shape[1], 0, cloud.shape[2], points.dtype)
            return dpoints.reshape(points.shape), edge.sum(-2), None, None, None
        dpoints, dqueries = _ops.knn_backward.default(grad, points, queries, idx, ctx.norm)
        return dpoints, dqueries, None, None, None


def with_gradient(search: Search, idx: Tensor, dist: Tensor, norm: int) -> Tensor:
    """dist connected to points and queries where one of them needs a gradient."""
    points, queries = search.points, search.queries
    if sees_torch_functions_only(points, queries):
        return pair_distances(points, queries, idx, norm)
    if not needs_grad(points, queries):
        return dist
    out: Tensor = DistanceFunction.apply(*distinct(points, queries), idx, dist, norm)
    return out
