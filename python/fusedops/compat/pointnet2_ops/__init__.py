"""pointnet2_ops (Pointnet2_PyTorch): all of its `pointnet2_utils`."""

from . import pointnet2_utils
from .pointnet2_utils import (
    BallQuery,
    FurthestPointSampling,
    GatherOperation,
    GroupAll,
    GroupingOperation,
    QueryAndGroup,
    ThreeInterpolate,
    ThreeNN,
    ball_query,
    furthest_point_sample,
    gather_operation,
    grouping_operation,
    three_interpolate,
    three_nn,
)

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
    "pointnet2_utils",
    "three_interpolate",
    "three_nn",
]
