"""Gathers of features by neighbour indices."""

from __future__ import annotations

from torch import Tensor

from .._core.calls import public
from .._core.checks import raise_not_tensor
from . import _autograd

__all__ = ["gather", "group"]


@public
def group(
    features: Tensor | None,
    idx: Tensor,
    *,
    points: Tensor | None = None,
    centers: Tensor | None = None,
) -> Tensor:
    """Collect the features (and coordinates) of every point's neighbours.

    ``out[b, m, k] = [points[b, idx[b, m, k]] - centers[b, m], features[b, idx[b, m, k]]]``, the
    first part where points are given, in one kernel. An index outside the cloud, -1 above all,
    gives zeros. Deterministic forward and backward: gradients are summed by destination in the
    order of the entries, in float32 (float64), without atomics. Derivatives of any order.

    Args:
        features: (B, N, C), or (P, C) with packed indices; float16, bfloat16, float32 or float64;
            None for coordinates alone.
        idx: (B, M, K) int64, or (Q, K).
        points: (B, N, D) or (P, D), coordinates to put before the features: of the dtype of
            features, or float32 beside half features.
        centers: (B, M, D) or (Q, D), subtracted from the coordinates; of the dtype of points.

    Returns:
        (B, M, K, D + C) or (Q, K, D + C), contiguous, of the dtype of features (of points where
        features is None). Differences are formed before they are rounded to it.

    Raises:
        TypeError: an argument is no tensor.
        RuntimeError: shapes, dtypes or devices do not fit, or backward with 2^31 indices and more.
    """
    optional = {"features": features, "points": points, "centers": centers}
    given = {name: value for name, value in optional.items() if value is not None}
    for name, value in (("idx", idx), *given.items()):
        if not isinstance(value, Tensor):
            raise_not_tensor("group", **{name: value})
    packed = idx.dim() == 2
    if packed:
        idx = idx.unsqueeze(0)
        given = {name: value.unsqueeze(0) for name, value in given.items()}
    features, points, centers = (given.get(name) for name in ("features", "points", "centers"))
    out = _autograd.group(features, idx, points, centers)
    return out.squeeze(0) if packed else out


@public
def gather(features: Tensor, idx: Tensor) -> Tensor:
    """Rows of features by index: ``out[b, m] = features[b, idx[b, m]]``, zeros where idx is no row.

    Args:
        features: (B, N, C), or (P, C) with packed indices; float16, bfloat16, float32 or float64.
        idx: (B, M) int64, or (Q,).

    Returns:
        (B, M, C) or (Q, C), contiguous; differentiable in features like `group`.

    Raises:
        TypeError: an argument is no tensor.
        RuntimeError: shapes, dtypes or devices do not fit.
    """
    if not (isinstance(features, Tensor) and isinstance(idx, Tensor)):
        raise_not_tensor("gather", features=features, idx=idx)
    return group(features, idx.unsqueeze(-1)).squeeze(-2)
