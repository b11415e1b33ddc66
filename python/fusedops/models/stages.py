"""The published hyper-parameters of PointNet++, as data."""

from __future__ import annotations

from typing import NamedTuple


class Stage(NamedTuple):
    """One set abstraction layer: a value for each scale.

    Attributes:
        num_points: M, the centres.
        radii: In units of the coordinates, clouds being in a unit sphere (scenes: in metres).
        ks: Neighbours.
        mlps: The widths of each scale's layers.
    """

    num_points: int
    radii: tuple[float, ...]
    ks: tuple[int, ...]
    mlps: tuple[tuple[int, ...], ...]

    @property
    def channels(self) -> int:
        """The width of its output."""
        return sum(mlp[-1] for mlp in self.mlps)


class Segmentation(NamedTuple):
    """A whole segmenter.

    Attributes:
        stages: The encoder's.
        all_points: The widths of a last layer over all points, or None.
        propagations: The widths of the decoder's layers, the finest first.
        order, power: As in `fusedops.nn.FeaturePropagation`.
        xyz_features: Whether the coordinates are features of the first stage, and part of the last
            skip connection, too.
    """

    stages: tuple[Stage, ...]
    all_points: tuple[int, ...] | None
    propagations: tuple[tuple[int, ...], ...]
    order: str
    power: int
    xyz_features: bool


ALL_POINTS = (256, 512, 1024)
_SECOND = Stage(128, (0.4,), (64,), ((128, 128, 256),))
_WIDTHS = ((32, 32, 64), (64, 64, 128), (64, 96, 128))

# Qi et al. 2017; "ssg64" is Pointnet2_PyTorch's.
CLASSIFIERS = {
    "ssg": (Stage(512, (0.2,), (32,), ((64, 64, 128),)), _SECOND),
    "ssg64": (Stage(512, (0.2,), (64,), ((64, 64, 128),)), _SECOND),
    "msg": (
        Stage(512, (0.1, 0.2, 0.4), (16, 32, 128), _WIDTHS),
        Stage(
            128,
            (0.2, 0.4, 0.8),
            (32, 64, 128),
            ((64, 64, 128), (128, 128, 256), (128, 128, 256)),
        ),
    ),
}

SEGMENTERS = {
    # Parts of shapes, as Pointnet_Pointnet2_pytorch has them.
    "ssg": Segmentation(
        CLASSIFIERS["ssg"],
        ALL_POINTS,
        ((128, 128, 128), (256, 128), (256, 256)),
        "skip_first",
        2,
        True,
    ),
    "msg": Segmentation(
        (
            Stage(512, (0.1, 0.2, 0.4), (32, 64, 128), _WIDTHS),
            Stage(128, (0.4, 0.8), (64, 128), ((128, 128, 256), (128, 196, 256))),
        ),
        ALL_POINTS,
        ((128, 128), (256, 128), (256, 256)),
        "skip_first",
        2,
        True,
    ),
    # Scenes, as Pointnet2_PyTorch has them.
    "scene_ssg": Segmentation(
        (
            Stage(1024, (0.1,), (32,), ((32, 32, 64),)),
            Stage(256, (0.2,), (32,), ((64, 64, 128),)),
            Stage(64, (0.4,), (32,), ((128, 128, 256),)),
            Stage(16, (0.8,), (32,), ((256, 256, 512),)),
        ),
        None,
        ((128, 128, 128), (256, 128), (256, 256), (256, 256)),
        "known_first",
        1,
        False,
    ),
    "scene_msg": Segmentation(
        (
            Stage(1024, (0.05, 0.1), (16, 32), ((16, 16, 32), (32, 32, 64))),
            Stage(256, (0.1, 0.2), (16, 32), ((64, 64, 128), (64, 96, 128))),
            Stage(64, (0.2, 0.4), (16, 32), ((128, 196, 256), (128, 196, 256))),
            Stage(16, (0.4, 0.8), (16, 32), ((256, 256, 512), (256, 384, 512))),
        ),
        None,
        ((128, 128), (256, 256), (512, 512), (512, 512)),
        "known_first",
        1,
        False,
    ),
}
