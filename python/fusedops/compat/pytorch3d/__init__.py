"""PyTorch3D's point cloud functions: its `ops` and `loss`, or all of them from here.

Differences: equally far neighbours come lowest index first; K is at most 1024 (or the size of p2);
gradients are deterministic and keep float64; furthest point sampling never repeats an index;
indices of -1 may be gathered.
"""

from .loss import chamfer_distance
from .ops import ball_query, knn_gather, knn_points, sample_farthest_points

__all__ = ["ball_query", "chamfer_distance", "knn_gather", "knn_points", "sample_farthest_points"]
