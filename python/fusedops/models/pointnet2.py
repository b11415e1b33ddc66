"""PointNet++: a classifier of clouds, and a segmenter of points."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..nn import FeaturePropagation, GlobalSetAbstraction, SetAbstraction
from ..nn.points.pooling import in_clouds
from .casts import weights_cast_ahead
from .head import Head, of_points, run_head
from .searches import Level, Searches, searches
from .stages import ALL_POINTS, CLASSIFIERS, SEGMENTERS, Segmentation, Stage

if TYPE_CHECKING:
    from collections.abc import Sequence


def _stages(
    stages: Sequence[Stage], in_channels: int, use_xyz: bool, options: dict[str, Any]
) -> nn.ModuleList:
    """The set abstraction layers of an encoder."""
    layers = nn.ModuleList()
    for stage in stages:
        layers.append(
            SetAbstraction(
                in_channels,
                stage.mlps,
                stage.radii,
                stage.ks,
                stage.num_points,
                use_xyz=use_xyz,
                **options,
            )
        )
        in_channels = stage.channels
    return layers


def coarser(
    stage: Any,
    xyz: Tensor,
    features: Tensor | None,
    lengths: Tensor | None,
    offsets: Tensor | None,
    level: Level | None = None,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """What a set abstraction layer gives of clouds: centres, features, lengths and offsets.

    level: what was found ahead; None: the layer searches.
    """
    if level is not None:
        centers, counts, neighbours = level
        found: Tensor
        centers, found = stage(
            xyz, features, centers, lengths=lengths, center_lengths=counts, neighbours=neighbours
        )
        return centers, found, counts, None
    xyz, features, *more = stage(xyz, features, lengths=lengths, offsets=offsets)
    if lengths is not None:
        lengths = lengths.clamp(max=stage.num_points)
    return xyz, features, lengths, more[0] if more else None


def _split(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options of set abstraction alone, and those of every layer."""
    own = ("closed", "random_start", "pad", "normalize_offsets")
    return (
        {name: value for name, value in options.items() if name in own},
        {name: value for name, value in options.items() if name not in own},
    )


class PointNet2Classifier(nn.Module):
    """PointNet++ for whole clouds (Qi et al. 2017): set abstraction, one layer over all points, a
    head.

    Variants: "ssg" (512 centres, radius 0.2, 32 neighbours; 128, 0.4, 64), "ssg64" (64 neighbours
    in the first stage, Pointnet2_PyTorch's) and "msg" (three scales each). Weights of other
    libraries: `load_erikwijmans`, `load_yanx27`, `load_pyg`.

    Args:
        num_classes: Classes.
        in_channels: F of the features beside the coordinates (3 for normals).
        variant: "ssg", "ssg64" or "msg".
        stages: Other stages than the variant's.
        all_points: The widths of the layer over all points.
        head: The widths of the head's hidden layers.
        dropout: Behind each of them.
        use_xyz: Whether offsets and coordinates are inputs.
        bias: Whether layers with a norm have a bias too (Pointnet_Pointnet2_pytorch's do).
        head_norm: The norm of the head; "same" for `norm`.
        norm, activation, last_norm, last_activation, closed, random_start, pad, device, dtype: As
            in `fusedops.nn.SetAbstraction`.

    Raises:
        ValueError: The variant or another word is unknown.

    Shape:
        xyz (B, N, 3), features (B, N, F); output (B, num_classes), logits.

    Example:
        >>> model = fusedops.models.PointNet2Classifier(40, variant="msg")
        >>> logits = model(xyz)
    """

    __module__ = "fusedops.models"  # what pickles name

    def __init__(
        self,
        num_classes: int,
        in_channels: int = 0,
        variant: str = "ssg",
        *,
        stages: Sequence[Stage] | None = None,
        all_points: Sequence[int] = ALL_POINTS,
        head: Sequence[int] = (512, 256),
        dropout: Sequence[float] = (0.5, 0.5),
        use_xyz: bool = True,
        bias: bool | None = None,
        head_norm: str | None = "same",
        norm: str | None = "batch",
        **options: Any,
    ) -> None:
        if stages is None:
            stages = _of_table("PointNet2Classifier", CLASSIFIERS, variant)
        super().__init__()
        own, shared = _split({"norm": norm, "bias": bias, **options})
        self.in_channels = in_channels
        self.stages = _stages(stages, in_channels, use_xyz, {**own, **shared})
        self.all_points = GlobalSetAbstraction(
            stages[-1].channels, all_points, use_xyz=use_xyz, **shared
        )
        widths = [all_points[-1], *head, num_classes]
        kept = {name: value for name, value in shared.items() if not name.startswith("last_")}
        kept["norm"] = norm if head_norm == "same" else head_norm
        self.head = Head(widths, dropout, **{**kept, "bias": [bias] * len(head)})

    def forward(
        self,
        xyz: Tensor,
        features: Tensor | None = None,
        lengths: Tensor | None = None,
        offsets: Tensor | None = None,
    ) -> Tensor:
        """Logits of clouds.

        Args:
            xyz: (B, N, 3), or (P, 3) packed.
            features: (B, N, F) or (P, F), or None where F is 0.
            lengths: (B,) int64, the points of each cloud.
            offsets: (B + 1,) int64, where packed clouds begin.
        """
        ahead = searches(self.stages, (), xyz, lengths, offsets)
        with weights_cast_ahead(self, xyz):
            for i, stage in enumerate(self.stages):
                level = None if ahead is None else ahead.level(i)
                xyz, features, lengths, offsets = coarser(
                    stage, xyz, features, lengths, offsets, level
                )
            return self.head(self.all_points(xyz, features, lengths=lengths, offsets=offsets))


class PointNet2Segmenter(nn.Module):
    """PointNet++ for the points of clouds: an encoder, and a decoder of feature propagation.

    Variants: "ssg" and "msg" segment parts of shapes (with the shape's category as an input, and
    the coordinates as features, as Pointnet_Pointnet2_pytorch has them), "scene_ssg" and
    "scene_msg" scenes (Pointnet2_PyTorch's).

    Args:
        num_classes: Parts or classes.
        in_channels: F of the features beside the coordinates (3 for normals).
        variant: "ssg", "msg", "scene_ssg" or "scene_msg".
        config: Another model than the variant's, as `Segmentation`.
        num_categories: How many categories a shape may have; 0 for none. ShapeNet's parts: 16.
        head: The widths of the head's hidden layers.
        dropout: Behind each of them.
        use_xyz, bias, norm, activation, closed, random_start, pad, device, dtype: As in
            `PointNet2Classifier`.

    Raises:
        ValueError: The variant or another word is unknown, or the category is missing.

    Shape:
        xyz (B, N, 3), features (B, N, F), category (B,); output (B, N, num_classes), logits.
    """

    __module__ = "fusedops.models"  # what pickles name

    def __init__(
        self,
        num_classes: int,
        in_channels: int = 0,
        variant: str = "ssg",
        *,
        config: Segmentation | None = None,
        num_categories: int = 0,
        head: Sequence[int] = (128,),
        dropout: Sequence[float] = (0.5,),
        use_xyz: bool = True,
        bias: bool | None = None,
        norm: str | None = "batch",
        **options: Any,
    ) -> None:
        if config is None:
            config = _of_table("PointNet2Segmenter", SEGMENTERS, variant)
        super().__init__()
        own, shared = _split({"norm": norm, "bias": bias, **options})
        self.in_channels, self.num_categories = in_channels, num_categories
        self.xyz_features = config.xyz_features
        first = in_channels + (3 if config.xyz_features else 0)
        self.stages = _stages(config.stages, first, use_xyz, {**own, **shared})
        skips = [first + num_categories + (3 if config.xyz_features else 0)]
        skips += [stage.channels for stage in config.stages]
        self.all_points = None
        if config.all_points is not None:
            self.all_points = GlobalSetAbstraction(
                skips[-1], config.all_points, use_xyz=use_xyz, **shared
            )
            skips.append(config.all_points[-1])
        self.propagations = nn.ModuleList()
        for i, mlp in enumerate(config.propagations):
            deeper = config.propagations[i + 1 : i + 2]
            known = deeper[0][-1] if deeper else skips[i + 1]
            self.propagations.append(
                FeaturePropagation(
                    known + skips[i], mlp, order=config.order, power=config.power, **shared
                )
            )
        widths = [config.propagations[0][-1], *head, num_classes]
        self.head = Head(widths, dropout, **{**shared, "bias": [bias] * len(head)})

    def forward(
        self,
        xyz: Tensor,
        features: Tensor | None = None,
        category: Tensor | None = None,
        lengths: Tensor | None = None,
        offsets: Tensor | None = None,
    ) -> Tensor:
        """Logits of points.

        Args:
            xyz: (B, N, 3), or (P, 3) packed.
            features: (B, N, F) or (P, F), or None where F is 0.
            category: (B,) int64, where the model has categories.
            lengths: (B,) int64, the points of each cloud; rows beyond count nowhere and are zeros.
            offsets: (B + 1,) int64, where packed clouds begin.
        """
        between = self.propagations[: len(self.stages)]
        ahead = searches(self.stages, between, xyz, lengths, offsets)
        with weights_cast_ahead(self, xyz):
            return self._logits(xyz, features, category, lengths, offsets, ahead)

    def _logits(
        self,
        xyz: Tensor,
        features: Tensor | None,
        category: Tensor | None,
        lengths: Tensor | None,
        offsets: Tensor | None,
        ahead: Searches | None,
    ) -> Tensor:
        if self.xyz_features:
            wide = xyz.to(self.head.last.weight.dtype)
            features = wide if features is None else torch.cat([wide, features], -1)
        levels = [(xyz, self._skip(xyz, features, category, offsets), lengths, offsets)]
        for i, stage in enumerate(self.stages):
            level = None if ahead is None else ahead.level(i)
            xyz, features, lengths, offsets = coarser(stage, xyz, features, lengths, offsets, level)
            levels.append((xyz, features, lengths, offsets))
        assert features is not None
        if self.all_points is None:
            levels.pop()
            known_xyz, known, known_lengths, known_offsets = xyz, features, lengths, offsets
        else:
            known_xyz = known_lengths = known_offsets = None
            known = self.all_points(xyz, features, lengths=lengths, offsets=offsets)
        for i in range(len(levels) - 1, -1, -1):
            xyz, skip, lengths, offsets = levels[i]
            blend = None if ahead is None else ahead.blend(i)
            given = {} if blend is None else {"neighbours": blend}
            known = self.propagations[i](
                xyz, known_xyz, skip, known, lengths=lengths, known_lengths=known_lengths,
                offsets=offsets, known_offsets=known_offsets, **given,
            )  # fmt: skip
            known_xyz, known_lengths, known_offsets = xyz, lengths, offsets
        return run_head(self.head, known, in_clouds(known, lengths, offsets))

    def _skip(
        self,
        xyz: Tensor,
        features: Tensor | None,
        category: Tensor | None,
        offsets: Tensor | None,
    ) -> Tensor | None:
        """What the finest points have already: [category, coordinates, features]."""
        parts = []
        if self.num_categories:
            if category is None:
                raise ValueError("PointNet2Segmenter: category must be a Tensor; got None")
            one_hot = F.one_hot(category, self.num_categories).to(self.head.last.weight.dtype)
            parts.append(of_points(one_hot, xyz, offsets))
        if self.xyz_features:
            parts.append(xyz.to(self.head.last.weight.dtype))
        if features is not None:
            parts.append(features)
        if not parts:
            return None
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


def _of_table(op: str, table: dict[str, Any], variant: str) -> Any:
    if variant not in table:
        known = ", ".join(map(repr, table))
        raise ValueError(f"{op}: variant must be one of {known}; got {variant!r}")
    return table[variant]
