"""What k-NN, ball query and radius search share in Python: argument forms, autograd."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import _fakes  # noqa: F401  (registers the fakes)
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
    if algorithm not in ALGORITHMS:
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
        return Search(points, points, lengths, lengths, offsets, offsets, grid)
    check_cloud_arguments(op, queries, query_lengths, query_offsets, "query_")
    return Search(points, queries, lengths, query_lengths, offsets, query_offsets, grid)


def detached(search: Search) -> Search:
    """For answers without a gradient."""
    return search._replace(points=search.points.detach(), queries=search.queries.detach())


def gather_rows(points: Tensor, idx: Tensor) -> Tensor:
    """points[b, idx[b, m, k]] (padded) or points[idx] (packed); -1 reads row 0."""
    safe = idx.clamp_min(0)
    if points.dim() == 2:
        return points[safe]
    return points[torch.arange(points.shape[0], device=points.device)[:, None, None], safe]


def pair_distances(points: Tensor, queries: Tensor, idx: Tensor, norm: int) -> Tensor:
    """Distances of known pairs by differentiable torch functions; infinite where idx is -1."""
    math = torch.float64 if points.dtype is torch.float64 else torch.float32
    delta = queries.to(math).unsqueeze(-2) - gather_rows(points, idx).to(math)
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
            delta = queries.unsqueeze(-2) - gather_rows(points, idx)
            slope = torch.sign(delta) if ctx.norm == 1 else 2 * delta
            edge = (grad.unsqueeze(-1) * slope).masked_fill((idx < 0).unsqueeze(-1), 0)
            edge = edge.to(points.dtype)
            target = idx.clamp_min(0)
            if points.dim() == 3:
                first = torch.arange(points.shape[0], device=points.device) * points.shape[1]
                target = target + first[:, None, None]
            dpoints = torch.zeros_like(points).reshape(-1, points.shape[-1])
            dpoints = dpoints.index_add(0, target.reshape(-1), -edge.flatten(0, -2))
            return dpoints.reshape(points.shape), edge.sum(-2), None, None, None
        dpoints, dqueries = _ops.knn_backward.default(grad, points, queries, idx, ctx.norm)
        return dpoints, dqueries, None, None, None


def with_gradient(search: Search, idx: Tensor, dist: Tensor, norm: int) -> Tensor:
    """dist connected to points and queries where one of them needs a gradient."""
    needs = search.points.requires_grad or search.queries.requires_grad
    if not (needs and torch.is_grad_enabled()):
        return dist
    out: Tensor = DistanceFunction.apply(search.points, search.queries, idx, dist, norm)
    return out
