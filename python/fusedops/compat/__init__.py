"""The point functions of other packages, with their signatures, layouts and padding.

``from fusedops.compat.pytorch3d.ops import knn_points`` in place of ``from pytorch3d.ops import
knn_points``, and so on for `pointnet2_ops` and `torch_cluster`. Each module's docstring says where
it differs from its model.
"""

from . import pointnet2_ops, pytorch3d, torch_cluster

__all__ = ["pointnet2_ops", "pytorch3d", "torch_cluster"]
