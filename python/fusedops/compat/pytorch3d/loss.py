"""`pytorch3d.loss`: the Chamfer distance."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..._core.calls import public_with
from .ops import knn_gather, knn_points

__all__ = ["chamfer_distance"]

Cloud = tuple[Tensor, Tensor, "Tensor | None"]  # points, lengths, normals
Result = tuple[Any, Any]  # loss and loss of the normals: tensors, pairs of them, None


@public_with(p1="x", p2="y")
def chamfer_distance(
    x: Any,
    y: Any,
    x_lengths: Tensor | None = None,
    y_lengths: Tensor | None = None,
    x_normals: Tensor | None = None,
    y_normals: Tensor | None = None,
    weights: Tensor | None = None,
    batch_reduction: str | None = "mean",
    point_reduction: str | None = "mean",
    norm: int = 2,
    single_directional: bool = False,
    abs_cosine: bool = True,
) -> Result:
    """Chamfer distance: every point's (squared) distance to the nearest point of the other cloud.

    Args:
        x: (N, P1, D), or an object with the methods of `pytorch3d.structures.Pointclouds`.
        y: (N, P2, D), or such an object.
        x_lengths, y_lengths: (N,) int64, points of each cloud.
        x_normals, y_normals: (N, P1, D) and (N, P2, D); with both, the normals are compared too.
        weights: (N,), of each pair of clouds; not negative.
        batch_reduction: "mean" (over the weights), "sum" or None.
        point_reduction: "mean", "sum", "max" (the Hausdorff distance; no normals) or None.
        norm: 1 or 2; distances of norm 2 are squared.
        single_directional: From x to y only.
        abs_cosine: Normals have no sign.

    Returns:
        The loss and that of the normals (1 - cosine; None without normals), scalars, (N,) with
        batch_reduction None; with point_reduction None pairs (N, P1), (N, P2), or the first of
        them with single_directional. Differentiable in x, y and the normals.

    Raises:
        ValueError: An unknown reduction or norm, shapes that do not fit, a length beyond P,
            negative weights.
    """
    _check_options(batch_reduction, point_reduction, norm)
    a, b = _cloud(x, x_lengths, x_normals), _cloud(y, y_lengths, y_normals)
    if b[0].shape[0] != a[0].shape[0] or b[0].shape[2] != a[0].shape[2]:
        raise ValueError("y does not have the correct shape.")
    if weights is not None:
        if weights.shape != a[0].shape[:1]:
            raise ValueError("weights must be of shape (N,).")
        if (weights < 0).any():
            raise ValueError("weights cannot be negative.")
        if not weights.any():
            return _no_loss(a[0], weights, batch_reduction)
    loss, normals = _one_way(a, b, weights, point_reduction, norm, abs_cosine)
    if not single_directional:
        back, back_normals = _one_way(b, a, weights, point_reduction, norm, abs_cosine)
        if point_reduction is None:
            pair = None if normals is None else (normals, back_normals)
            return (loss, back), pair
        loss = torch.maximum(loss, back) if point_reduction == "max" else loss + back
        normals = None if normals is None else normals + back_normals
    return _over_batch(loss, weights, batch_reduction), _over_batch(
        normals, weights, batch_reduction
    )


def _check_options(batch_reduction: str | None, point_reduction: str | None, norm: int) -> None:
    if batch_reduction not in (None, "mean", "sum"):
        raise ValueError('batch_reduction must be one of ["mean", "sum"] or None')
    if point_reduction not in (None, "mean", "sum", "max"):
        raise ValueError('point_reduction must be one of ["mean", "sum", "max"] or None')
    if point_reduction is None and batch_reduction is not None:
        raise ValueError("Batch reduction must be None if point_reduction is None")
    if norm not in (1, 2):
        raise ValueError("Support for 1 or 2 norm.")


def _cloud(points: Any, lengths: Tensor | None, normals: Tensor | None) -> Cloud:
    if hasattr(points, "points_padded"):
        return points.points_padded(), points.num_points_per_cloud(), points.normals_padded()
    if not isinstance(points, Tensor):
        raise ValueError(
            "The input pointclouds should be either Pointclouds objects or torch.Tensor of shape "
            "(minibatch, num_points, 3)."
        )
    if points.ndim != 3:
        raise ValueError("Expected points to be of shape (N, P, D)")
    if lengths is None:
        lengths = torch.full((points.shape[0],), points.shape[1], device=points.device)
    elif lengths.shape != (points.shape[0],):
        raise ValueError("Expected lengths to be of shape (N,)")
    elif (lengths > points.shape[1]).any():
        raise ValueError("A length value was too long")
    if normals is not None and normals.ndim != 3:
        raise ValueError("Expected normals to be of shape (N, P, 3")
    return points, lengths, normals


def _no_loss(x: Tensor, weights: Tensor, batch_reduction: str | None) -> Result:
    """All weights 0: zeros that still have a gradient, in PyTorch3D's shapes."""
    zero = x.sum((1, 2)) * weights[:, None] * 0.0  # (N, N), as there
    if batch_reduction is not None:
        zero = zero.sum()
    return zero, zero.clone()


def _one_way(
    x: Cloud,
    y: Cloud,
    weights: Tensor | None,
    point_reduction: str | None,
    norm: int,
    abs_cosine: bool,
) -> tuple[Tensor, Tensor | None]:
    """Loss of x's points and normals against y's: (N, P1), or (N,) after the reduction."""
    points, lengths, normals = x
    other, other_lengths, other_normals = y
    outside = torch.arange(points.shape[1], device=points.device) >= lengths[:, None]
    dists, idx, _ = knn_points(points, other, lengths, other_lengths, norm=norm)

    def finish(loss: Tensor) -> Tensor:
        loss = loss.masked_fill(outside, 0)
        if weights is not None:
            loss = loss * weights[:, None]
        if point_reduction == "max":
            return loss.amax(1)
        if point_reduction is None:
            return loss
        loss = loss.sum(1)
        return loss / lengths.clamp_min(1) if point_reduction == "mean" else loss

    loss = finish(dists[..., 0])
    if normals is None or other_normals is None:
        return loss, None
    if point_reduction == "max":
        raise ValueError('point_reduction "max" takes no normals')
    near = knn_gather(other_normals, idx, other_lengths)[..., 0, :]
    cosine = F.cosine_similarity(normals, near, dim=2, eps=1e-6)
    return loss, finish(1 - (cosine.abs() if abs_cosine else cosine))


def _over_batch(
    loss: Tensor | None, weights: Tensor | None, batch_reduction: str | None
) -> Tensor | None:
    if loss is None or batch_reduction is None:
        return loss
    total = loss.sum()
    if batch_reduction == "sum":
        return total
    return total / (max(loss.shape[0], 1) if weights is None else weights.sum())
