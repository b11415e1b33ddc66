"""The models that can be trained, in the widths of a preset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import fusedops
from fusedops.models.stages import Stage

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Preset:
    points: int  # of a cloud
    pool: int  # of an item, that clouds are drawn from
    each: int  # items a class
    test_each: int
    batch: int
    epochs: int
    lr: float


PRESETS = {
    "tiny": Preset(64, 128, 8, 2, 16, 3, 5e-3),  # seconds on a CPU
    "small": Preset(256, 1024, 40, 30, 32, 10, 2e-3),  # minutes on a CPU
    "full": Preset(1024, 4096, 128, 32, 32, 60, 1e-3),
}
NAMES = ("ssg", "msg", "dgcnn")
SMALL_PRESETS = ("tiny", "small")


def build(name: str, preset: str, classes: int) -> nn.Module:
    """The published widths for the preset full, else narrow ones for fewer points."""
    if preset not in SMALL_PRESETS:
        if name == "dgcnn":
            return fusedops.models.DGCNN(classes)
        return fusedops.models.PointNet2Classifier(classes, variant=name)
    tiny = preset == "tiny"
    head: dict[str, Any] = {"head": (16, 16) if tiny else (128, 64), "dropout": (0.3, 0.3)}
    if name == "dgcnn":
        widths = ((8,), (16,)) if tiny else ((32,), (32,), (64,))
        wide = 16 if tiny else 128
        return fusedops.models.DGCNN(classes, mlps=widths, k=4 if tiny else 12, embedding=wide,
                                     **head)  # fmt: skip
    first, second = ((8, 16), (16, 32)) if tiny else ((32, 32, 64), (64, 64, 128))
    centers, k = ((16, 8), 8) if tiny else ((64, 16), 16)
    radii = ((0.3, 0.6), (0.5, 0.9)) if name == "msg" else ((0.35,), (0.7,))
    stages = tuple(
        Stage(m, radius, (k,) * len(radius), (mlp,) * len(radius))
        for m, radius, mlp in zip(centers, radii, (first, second), strict=True)
    )
    last = (32, 32) if tiny else (128, 256)
    return fusedops.models.PointNet2Classifier(classes, stages=stages, all_points=last, **head)


def plain(model: nn.Module) -> nn.Module:
    """The same model, its weights and searches, with layers in plain torch."""
    from fusedops.bench.suites.pointnet.plain import as_plain
    from fusedops.bench.suites.pointnet.search import OURS

    return as_plain(model, OURS)
