"""Models of point clouds, and the state dicts of the same models elsewhere."""

from __future__ import annotations

from .checkpoints import (
    load_dgcnn,
    load_erikwijmans,
    load_openpoints,
    load_pyg,
    load_yanx27,
    to_dgcnn,
    to_erikwijmans,
    to_openpoints,
    to_pyg,
    to_yanx27,
)
from .dgcnn import DGCNN
from .dgcnn_parts import DGCNNSegmenter, PointTransform
from .pointnet2 import PointNet2Classifier, PointNet2Segmenter
from .pointnext import InvResMLP, PointNeXt, PointNeXtSegmenter, ResidualAbstraction
from .stages import Segmentation, Stage

__all__ = [
    "DGCNN",
    "DGCNNSegmenter",
    "InvResMLP",
    "PointNeXt",
    "PointNeXtSegmenter",
    "PointNet2Classifier",
    "PointNet2Segmenter",
    "PointTransform",
    "ResidualAbstraction",
    "Segmentation",
    "Stage",
    "load_dgcnn",
    "load_erikwijmans",
    "load_openpoints",
    "load_pyg",
    "load_yanx27",
    "to_dgcnn",
    "to_erikwijmans",
    "to_openpoints",
    "to_pyg",
    "to_yanx27",
]
