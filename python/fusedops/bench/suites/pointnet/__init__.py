"""The suite `pointnet`: layers and whole models of PointNet++ and DGCNN."""

from .suite import SUITE, PointNetSuite

__all__ = ["SUITE", "PointNetSuite"]
