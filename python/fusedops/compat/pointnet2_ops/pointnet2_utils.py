"""`pointnet2_ops.pointnet2_utils`: features are (B, C, N), indices int32, ball queries padded with
their first hit.

Of the autograd Functions under their names (`BallQuery` and so on) there is `apply` alone.

Differences: furthest point sampling takes points within 0.03 of the origin like any others (there
they are skipped) and never repeats an index; `three_interpolate` has a gradient for the weights;
everything runs on the CPU too, and in every floating dtype. Indices of any integer dtype are
accepted.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ... import points
from ..._core.calls import public, public_with
from ..._fakes.cloud import check_dim

__all__ = [
    "BallQuery",
    "FurthestPointSampling",
    "GatherOperation",
    "GroupAll",
    "GroupingOperation",
    "QueryAndGroup",
    "ThreeInterpolate",
    "ThreeNN",
    "ball_query",
    "furthest_point_sample",
    "gather_operation",
    "grouping_operation",
    "three_interpolate",
    "three_nn",
]


@public_with(points="xyz", n="npoint")
def furthest_point_sample(xyz: Tensor, npoint: int) -> Tensor:
    """Indices (B, npoint) int32 of furthest points of xyz (B, N, 3), from point 0 on.

    Raises:
        ValueError: npoint exceeds N.
    """
    check_dim("furthest_point_sample", "xyz", xyz, 3, "(B, N, 3)")
    if npoint > xyz.shape[1]:
        raise ValueError(
            f"furthest_point_sample: npoint must be at most N = {xyz.shape[1]}; got {npoint}"
        )
    idx = points.farthest_point_sample(xyz, npoint)
    assert isinstance(idx, Tensor)
    return idx.int()


@public
def gather_operation(features: Tensor, idx: Tensor) -> Tensor:
    """(B, C, npoint): columns idx (B, npoint) of features (B, C, N). Differentiable."""
    rows = _rows("gather_operation", features)
    return points.gather(rows, idx.long()).transpose(1, 2).contiguous()


@public_with(points="known", queries="unknown")
def three_nn(unknown: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
    """The three points of known nearest to each of unknown.

    Args:
        unknown: (B, n, 3).
        known: (B, m, 3).

    Returns:
        dist (B, n, 3), Euclidean (not squared), and idx (B, n, 3) int32, nearest first; infinity
        and 0 where m < 3. No gradient.
    """
    idx, dist2 = points.three_nn(known.detach(), unknown.detach())
    assert dist2 is not None
    return dist2.sqrt(), idx.clamp_min(0).int()


@public_with(weights="weight")
def three_interpolate(features: Tensor, idx: Tensor, weight: Tensor) -> Tensor:
    """Weighted sums of three features.

    Args:
        features: (B, c, m).
        idx: (B, n, 3), as of `three_nn`.
        weight: (B, n, 3).

    Returns:
        (B, c, n), differentiable in features and weight.
    """
    rows = _rows("three_interpolate", features)
    out = points.interpolate(rows, idx.long(), weight)
    return out.transpose(1, 2).contiguous()


@public
def grouping_operation(features: Tensor, idx: Tensor) -> Tensor:
    """(B, C, npoint, nsample): columns idx (B, npoint, nsample) of features (B, C, N).
    Differentiable."""
    rows = _rows("grouping_operation", features)
    return _channels_first(points.group(rows, idx.long()))


@public_with(points="xyz", queries="new_xyz", k="nsample")
def ball_query(radius: float, nsample: int, xyz: Tensor, new_xyz: Tensor) -> Tensor:
    """The first nsample points, by index, closer than radius to every centre.

    Args:
        radius: A point at exactly this distance is outside.
        nsample: 1 to 1024.
        xyz: (B, N, 3), the points.
        new_xyz: (B, npoint, 3), the centres.

    Returns:
        (B, npoint, nsample) int32. Unused places repeat the row's first index; an empty ball is 0.
    """
    idx = points.ball_query(xyz.detach(), new_xyz.detach(), radius, nsample, pad="first").idx
    return idx.clamp_min(0).int()


class FurthestPointSampling:
    """`furthest_point_sample`."""

    apply = staticmethod(furthest_point_sample)


class GatherOperation:
    """`gather_operation`."""

    apply = staticmethod(gather_operation)


class ThreeNN:
    """`three_nn`."""

    apply = staticmethod(three_nn)


class ThreeInterpolate:
    """`three_interpolate`."""

    apply = staticmethod(three_interpolate)


class GroupingOperation:
    """`grouping_operation`."""

    apply = staticmethod(grouping_operation)


class BallQuery:
    """`ball_query`."""

    apply = staticmethod(ball_query)


class QueryAndGroup(nn.Module):
    """`ball_query`, then the coordinates relative to the centre before the features.

    Args:
        radius: Radius of the balls.
        nsample: Points of each group, 1 to 1024.
        use_xyz: False leaves the coordinates out.
    """

    @public
    def __init__(self, radius: float, nsample: int, use_xyz: bool = True) -> None:
        super().__init__()
        self.radius, self.nsample, self.use_xyz = radius, nsample, use_xyz

    @public_with(points="xyz", queries="new_xyz", centers="new_xyz", k="nsample")
    def forward(self, xyz: Tensor, new_xyz: Tensor, features: Tensor | None = None) -> Tensor:
        """xyz (B, N, 3), new_xyz (B, npoint, 3), features (B, C, N) or None
        -> (B, 3 + C, npoint, nsample); differentiable in all three."""
        if features is None and not self.use_xyz:
            raise AssertionError("Cannot have not features and not use xyz as a feature!")
        idx = ball_query(self.radius, self.nsample, xyz, new_xyz)
        if features is not None and not self.use_xyz:
            return grouping_operation(features, idx)
        rows = None if features is None else _rows("QueryAndGroup", features)
        return _channels_first(points.group(rows, idx.long(), points=xyz, centers=new_xyz))


class GroupAll(nn.Module):
    """All points as one group.

    Args:
        use_xyz: False leaves the coordinates out where there are features.
    """

    def __init__(self, use_xyz: bool = True) -> None:
        super().__init__()
        self.use_xyz = use_xyz

    @public
    def forward(
        self, xyz: Tensor, new_xyz: Tensor | None, features: Tensor | None = None
    ) -> Tensor:
        """xyz (B, N, 3), new_xyz ignored, features (B, C, N) or None -> (B, 3 + C, 1, N)."""
        check_dim("GroupAll", "xyz", xyz, 3, "(B, N, 3)")
        coordinates = xyz.transpose(1, 2).unsqueeze(2)
        if features is None:
            return coordinates
        check_dim("GroupAll", "features", features, 3, "(B, C, N)")
        features = features.unsqueeze(2)
        return torch.cat([coordinates, features], 1) if self.use_xyz else features


def _rows(op: str, features: Tensor) -> Tensor:
    """(B, C, N) -> (B, N, C)."""
    check_dim(op, "features", features, 3, "(B, C, N)")
    return features.transpose(1, 2).contiguous()


def _channels_first(grouped: Tensor) -> Tensor:
    """(B, M, K, C) -> (B, C, M, K)."""
    return grouped.permute(0, 3, 1, 2).contiguous()
