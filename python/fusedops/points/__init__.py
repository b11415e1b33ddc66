"""Point clouds.

A batch of clouds is *padded*, points (B, N, D) with optional int64 lengths (B,), or *packed*,
points (P, D) with int64 offsets (B + 1,): rows offsets[b] to offsets[b + 1] are cloud b. Padded
indices count from the start of their cloud, packed ones from the start of the tensor; -1 is "none".
lengths and offsets stay on the device and are never read by the host: values outside the tensor are
clamped to it, and to a search an offset that falls counts as the largest before it. Rows of no
cloud find nothing. torch.func transforms and forward-mode AD run by torch's own kernels.
"""

from .abstraction import edge_conv, set_abstraction
from .grid import GridIndex
from .grouping import gather, group
from .interpolation import (
    interpolate,
    interpolation_weights,
    knn_interpolate,
    three_interpolate,
    three_nn,
)
from .io import read_points
from .neighbours import (
    BallQuery,
    Neighbours,
    RadiusSearch,
    ball_query,
    ball_query_scales,
    knn,
    radius_search,
)
from .norms import BatchNorm, LayerNorm
from .propagation import feature_propagation
from .sampling import farthest_point_sample

__all__ = [
    "BallQuery",
    "BatchNorm",
    "GridIndex",
    "LayerNorm",
    "Neighbours",
    "RadiusSearch",
    "ball_query",
    "ball_query_scales",
    "edge_conv",
    "farthest_point_sample",
    "feature_propagation",
    "gather",
    "group",
    "interpolate",
    "interpolation_weights",
    "knn",
    "knn_interpolate",
    "radius_search",
    "read_points",
    "set_abstraction",
    "three_interpolate",
    "three_nn",
]
