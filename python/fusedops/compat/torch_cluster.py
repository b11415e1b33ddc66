"""torch_cluster: k-NN, radius search and furthest point sampling of packed clouds.

Batch vectors (N,) int64 name each point's cloud and are sorted. Edges are (2, E) int64; those of
one query are together, queries in order. Differences: k is at most 1024 (or N), not 100, and
1023 for `knn_graph` without loops; neighbours further than 1e5 are found; cosine works on the CPU;
equally far neighbours come lowest index first; `knn_graph` and `radius_graph` without loops never
give a node more than k (max_num_neighbors) edges, also among duplicates. num_workers
and use_triton are accepted and ignored. torch.jit.script does not take these functions, which are
Python around ops (torch.compile does).
"""

from __future__ import annotations

import torch
from torch import Tensor

from .. import points
from .._core.calls import public_with
from .._fakes.cloud import check_dim
from ..points._cloud import read_sizes

__all__ = ["fps", "knn", "knn_graph", "radius", "radius_graph"]

_MOST = 1024  # columns of fusedops.points.knn and ball_query


@public_with(points="x", queries="y")
def knn(
    x: Tensor,
    y: Tensor,
    k: int,
    batch_x: Tensor | None = None,
    batch_y: Tensor | None = None,
    cosine: bool = False,
    num_workers: int = 1,
    batch_size: int | None = None,
    use_triton: bool = False,
) -> Tensor:
    """Find the k points of x nearest to each point of y.

    Args:
        x: (N, F) or (N,), the points.
        y: (M, F) or (M,), the queries.
        k: At least 1; at most 1024 unless N is smaller.
        batch_x: (N,), default: one cloud.
        batch_y: (M,), default: one cloud.
        cosine: Rank by 1 - cosine instead of the Euclidean distance. A zero vector has no
            neighbours and is none.
        batch_size: Clouds; read from the batch vectors where None.

    Returns:
        (2, E), indices of y, and of x, nearest first. Clouds with fewer than k points give fewer.

    Raises:
        ValueError: Batch vectors do not fit.
        RuntimeError: As `fusedops.points.knn`.
    """
    x, y = _matrix("knn", "x", x), _matrix("knn", "y", y)
    if x.numel() == 0 or y.numel() == 0:
        return torch.empty(2, 0, dtype=torch.int64, device=x.device)
    starts_x, starts_y = _both_offsets("knn", x, y, batch_x, batch_y, batch_size)
    if cosine:
        x, y = _directions(x), _directions(y)
    idx = points.knn(
        x.detach(),
        y.detach(),
        min(k, x.shape[0]),
        offsets=starts_x,
        query_offsets=starts_y,
        return_dist=False,
    ).idx
    return _edges(idx)


@public_with(batch_x="batch")
def knn_graph(
    x: Tensor,
    k: int,
    batch: Tensor | None = None,
    loop: bool = False,
    flow: str = "source_to_target",
    cosine: bool = False,
    num_workers: int = 1,
    batch_size: int | None = None,
    use_triton: bool = False,
) -> Tensor:
    """Edges from every point's k nearest points to it.

    Args:
        x: (N, F) or (N,).
        k: At most 1024, and 1023 without loops, unless N is smaller.
        batch, cosine, batch_size: As for `knn`.
        loop: A point may be its own neighbour, and counts.
        flow: "source_to_target": (neighbour, point) pairs; "target_to_source": (point, neighbour).

    Returns:
        (2, E).

    Raises:
        ValueError: Unknown flow, k too large, or as `knn`.
    """
    _check_flow("knn_graph", flow)
    most = _MOST if loop else _MOST - 1
    if k > most and x.shape[0] > _MOST:
        raise ValueError(f"knn_graph: k must be at most {most} with loop={loop}; got {k}")
    edges = knn(x, x, k if loop else k + 1, batch, batch, cosine, batch_size=batch_size)
    return _directed(edges if loop else _without_loops(edges, k), flow)


@public_with(points="x", queries="y", k="max_num_neighbors", radius="r")
def radius(
    x: Tensor,
    y: Tensor,
    r: float,
    batch_x: Tensor | None = None,
    batch_y: Tensor | None = None,
    max_num_neighbors: int = 32,
    num_workers: int = 1,
    batch_size: int | None = None,
    ignore_same_index: bool = False,
    use_triton: bool = False,
) -> Tensor:
    """Find the points of x closer than r to each point of y.

    Args:
        x, y, batch_x, batch_y, batch_size: As for `knn`.
        r: A point at exactly this distance is outside.
        max_num_neighbors: The first so many by index are kept.
        ignore_same_index: Leave out x[i] for y[i].

    Returns:
        (2, E), indices of y, and of x, ascending.

    Raises:
        ValueError: Batch vectors do not fit.
        RuntimeError: As `fusedops.points.radius_search`.
    """
    x, y = _matrix("radius", "x", x), _matrix("radius", "y", y)
    if x.numel() == 0 or y.numel() == 0 or max_num_neighbors == 0:
        return torch.empty(2, 0, dtype=torch.int64, device=x.device)
    starts_x, starts_y = _both_offsets("radius", x, y, batch_x, batch_y, batch_size)
    most = max_num_neighbors + 1 if ignore_same_index else max_num_neighbors
    columns = min(most, x.shape[0])
    clouds = {"offsets": starts_x, "query_offsets": starts_y}
    if columns <= _MOST:
        edges = _edges(points.ball_query(x.detach(), y.detach(), float(r), columns, **clouds).idx)
    else:
        starts, idx, _ = points.radius_search(x.detach(), y.detach(), float(r), **clouds)
        queries = torch.arange(y.shape[0], device=x.device)
        edges = torch.stack([queries.repeat_interleave(starts.diff(), output_size=len(idx)), idx])
        edges = _first_of_each(edges, columns)
    return _without_loops(edges, max_num_neighbors) if ignore_same_index else edges


@public_with(batch_x="batch")
def radius_graph(
    x: Tensor,
    r: float,
    batch: Tensor | None = None,
    loop: bool = False,
    max_num_neighbors: int = 32,
    flow: str = "source_to_target",
    num_workers: int = 1,
    batch_size: int | None = None,
    use_triton: bool = False,
) -> Tensor:
    """Edges between points closer than r.

    Args:
        x: (N, F) or (N,).
        r, batch, max_num_neighbors, batch_size: As for `radius`.
        loop, flow: As for `knn_graph`.

    Returns:
        (2, E).

    Raises:
        ValueError: Unknown flow, or as `radius`.
    """
    _check_flow("radius_graph", flow)
    edges = radius(
        x, x, r, batch, batch, max_num_neighbors, batch_size=batch_size, ignore_same_index=not loop
    )
    return _directed(edges, flow)


@public_with(points="src", offsets="ptr", n="ratio")
def fps(
    src: Tensor,
    batch: Tensor | None = None,
    ratio: float | Tensor | None = None,
    random_start: bool = True,
    batch_size: int | None = None,
    ptr: Tensor | list[int] | None = None,
) -> Tensor:
    """Furthest point sampling of a fraction of every cloud.

    Args:
        src: (N, F) or (N,).
        batch: (N,), default: one cloud.
        ratio: ceil(ratio n) of a cloud's n points are taken; a number, a tensor () or (B,).
            Default: 0.5.
        random_start: Begin anywhere instead of at each cloud's first point.
        batch_size: Clouds; read from batch where None.
        ptr: (B + 1,) offsets, a tensor or list, in place of batch.

    Returns:
        (S,) int64 indices of src, cloud by cloud, in the order of sampling.

    Raises:
        ValueError: batch does not fit.
    """
    src = _matrix("fps", "src", src)
    if ptr is not None:
        starts = torch.as_tensor(ptr, dtype=torch.int64, device=src.device)
        check_dim("fps", "ptr", starts, 1, "(B + 1,)")
    else:
        _check_batch("fps", src, batch, "batch")
        starts = _offsets("fps", src, batch, _count(batch, batch_size), "batch")
    # NOTE: 0.2 of 40 is 8 in the precision that 0.2 was rounded to, and more in a higher one.
    given = ratio.dtype if isinstance(ratio, Tensor) else src.dtype
    dtype = torch.float64 if given is torch.float64 else torch.float32
    share = torch.as_tensor(0.5 if ratio is None else ratio, dtype=dtype, device=src.device)
    wanted = (starts.diff() * share).ceil().long()
    start = "random" if random_start else 0
    picked = points.farthest_point_sample(src, wanted, start=start, offsets=starts)
    return picked[0]


def _matrix(op: str, name: str, x: Tensor) -> Tensor:
    """(N,) -> (N, 1)."""
    x = x[:, None] if x.dim() == 1 else x
    check_dim(op, name, x, 2, "(N, F), or (N,)")
    return x


def _check_batch(op: str, x: Tensor, batch: Tensor | None, name: str) -> None:
    if batch is None:
        return
    if batch.shape != x.shape[:1]:
        raise ValueError(f"{op}: {name} must be ({x.shape[0]},); got {tuple(batch.shape)}")
    if batch.dtype.is_floating_point or batch.dtype.is_complex:
        raise ValueError(f"{op}: {name} must hold integers; got {batch.dtype}")


def _count(batch: Tensor | None, batch_size: int | None) -> int:
    if batch_size is not None:
        return batch_size
    return read_sizes(batch[-1:])[0] + 1 if batch is not None and batch.numel() else 1


def _offsets(op: str, x: Tensor, batch: Tensor | None, count: int, name: str) -> Tensor:
    """(B + 1,) from a sorted batch vector."""
    if batch is None:
        if count > 1:
            raise ValueError(f"{op}: {name} must be given for {count} clouds; got None")
        return torch.tensor([0, x.shape[0]], device=x.device)
    if count == 1:
        return torch.tensor([0, x.shape[0]], device=x.device)
    return torch.searchsorted(batch.contiguous(), torch.arange(count + 1, device=x.device))


def _both_offsets(
    op: str,
    x: Tensor,
    y: Tensor,
    batch_x: Tensor | None,
    batch_y: Tensor | None,
    batch_size: int | None,
) -> tuple[Tensor, Tensor]:
    _check_batch(op, x, batch_x, "batch_x")
    _check_batch(op, y, batch_y, "batch_y")
    count = max(_count(batch_x, batch_size), _count(batch_y, batch_size))
    return _offsets(op, x, batch_x, count, "batch_x"), _offsets(op, y, batch_y, count, "batch_y")


def _directions(x: Tensor) -> Tensor:
    """Unit vectors: half their squared distance is 1 - cosine. Zero vectors become NaN."""
    x = x if x.dtype is torch.float64 else x.float()
    x = x / x.abs().amax(1, keepdim=True)  # the squares of the norm stay in range
    return x / x.norm(dim=1, keepdim=True)


def _edges(idx: Tensor) -> Tensor:
    """(Q, K) indices, -1 where none -> (2, E)."""
    rows, columns = (idx >= 0).nonzero(as_tuple=True)
    return torch.stack([rows, idx[rows, columns]])


def _first_of_each(edges: Tensor, k: int) -> Tensor:
    """The first k edges of each run of equal edges[0] (ascending)."""
    rows = edges[0].contiguous()
    rank = torch.arange(rows.shape[0], device=rows.device) - torch.searchsorted(rows, rows)
    return edges[:, rank < k]


def _without_loops(edges: Tensor, k: int) -> Tensor:
    return _first_of_each(edges[:, edges[0] != edges[1]], k)


def _check_flow(op: str, flow: str) -> None:
    if flow not in ("source_to_target", "target_to_source"):
        raise ValueError(
            f"{op}: flow must be 'source_to_target' or 'target_to_source'; got {flow!r}"
        )


def _directed(edges: Tensor, flow: str) -> Tensor:
    return edges.flip(0) if flow == "source_to_target" else edges
