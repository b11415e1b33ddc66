"""What every point op does with its clouds before the op itself."""

from __future__ import annotations

import torch
from torch import Tensor

from .._core.checks import check_tensors


def check_cloud_arguments(
    op: str, points: object, lengths: object, offsets: object, prefix: str = ""
) -> None:
    """Raise the TypeError for an argument that is no tensor (None is fine for the last two)."""
    name = "queries" if prefix else "points"
    optional = (f"{prefix}lengths", f"{prefix}offsets")
    given = dict(zip((name, *optional), (points, lengths, offsets), strict=True))
    check_tensors(op, optional, **given)


def read_sizes(sizes: Tensor) -> list[int]:
    """The values of a tensor (S,): one synchronisation.

    torch.compile breaks the graph here: ops take numbers, which a traced value
    (capture_scalar_outputs) is not.
    """
    if torch.compiler.is_dynamo_compiling():
        torch._dynamo.graph_break()
    values: list[int] = sizes.tolist()
    return values


def num_clouds(points: Tensor, offsets: Tensor | None) -> int:
    """B."""
    return int(points.shape[0] if offsets is None else offsets.shape[0] - 1)


def cloud_lengths(points: Tensor, lengths: Tensor | None, offsets: Tensor | None) -> Tensor:
    """The number of points of each cloud, (B,) int64, clamped to the tensor as the ops do."""
    if offsets is not None:
        edges = offsets.clamp(0, points.shape[0])
        return (edges[1:] - edges[:-1]).clamp_min(0)
    count, capacity = points.shape[:2]
    if lengths is None:
        return torch.full((count,), capacity, dtype=torch.int64, device=points.device)
    return lengths.clamp(0, capacity)
