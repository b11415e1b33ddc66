"""PointNeXt, by residual set abstraction and inverted residual blocks: clouds, and points."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from ..nn import FeaturePropagation, GlobalSetAbstraction, SetAbstraction, SharedMLP
from ..nn.points.mlp import activated
from ..nn.points.pooling import in_clouds
from ..points.grouping import gather
from .head import Head, run_head

if TYPE_CHECKING:
    from collections.abc import Sequence


def activation_options(options: dict[str, Any]) -> tuple[str | None, float]:
    """The activation and its slope of a `SharedMLP` with these options."""
    return options.get("activation", "relu"), options.get("negative_slope", 0.01)


class ResidualAbstraction(nn.Module):
    """A set abstraction with a residual connection from the features of the centres.

    Its last layer has a norm and no activation before pooling; the centre's features, through a
    linear layer, are added behind it, then comes the activation. Offsets are in units of the
    radius.

    Args:
        in_channels: F of the features.
        mlp: The widths of the layers.
        radius: Radius of the neighbourhood.
        k: Neighbours.
        stride: Every how many points there is a centre.
        residual: Whether there is the residual connection; without it the last layer has its
            activation.
        norm, bias, activation, negative_slope, device, dtype: As in `fusedops.nn.SharedMLP`.

    Shape:
        xyz (B, N, 3), features (B, N, F); output (B, N // stride, 3), (B, N // stride, mlp[-1]) and
        None; packed (P, 3), (P, F), then (Q, 3), (Q, mlp[-1]) and the centres' offsets (B + 1,).
    """

    __module__ = "fusedops.models"  # what pickles name

    def __init__(
        self,
        in_channels: int,
        mlp: Sequence[int],
        radius: float,
        k: int,
        stride: int,
        *,
        residual: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()
        self.stride = stride
        self.abstraction = SetAbstraction(
            in_channels,
            mlp,
            radius,
            k,
            normalize_offsets=True,
            last_activation=not residual,
            **options,
        )
        self.skip = None
        if residual:
            same = {name: options[name] for name in ("device", "dtype") if name in options}
            self.skip = nn.Linear(in_channels, mlp[-1], **same)
        self.activation = activation_options(options)

    def forward(
        self, xyz: Tensor, features: Tensor, offsets: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Apply the layer: centres, features, and the centres' offsets where there are offsets."""
        count: Any = max(1, xyz.shape[-2] // self.stride)
        if offsets is not None:
            count = (offsets.diff() // self.stride).clamp_min(1)
        centers, idx, *starts = self.abstraction.sample(xyz, num_points=count, offsets=offsets)
        found = starts[0] if starts else None
        y = self.abstraction(xyz, features, centers, offsets=offsets, center_offsets=found)[1]
        if self.skip is not None:
            y = activated(y + self.skip(gather(features, idx)), *self.activation)
        return centers, y, found


class InvResMLP(nn.Module):
    """An inverted residual block: one set abstraction layer around every point, two layers by
    point with a wide middle, and the block's input added.

    Args:
        channels: Channels of input and output.
        radius: Radius of the neighbourhood.
        k: Neighbours.
        expansion: The middle's width in channels.
        norm, bias, activation, negative_slope, device, dtype: As in `fusedops.nn.SharedMLP`.

    Shape:
        xyz (B, N, 3), features (B, N, channels), or packed; output features alike.
    """

    __module__ = "fusedops.models"  # what pickles name

    def __init__(
        self, channels: int, radius: float, k: int, expansion: int = 4, **options: Any
    ) -> None:
        super().__init__()
        self.abstraction = SetAbstraction(
            channels, [channels], radius, k, normalize_offsets=True, **options
        )
        widths = [channels, channels * expansion, channels]
        self.mlp = SharedMLP(widths, last_activation=False, **options)
        self.activation = activation_options(options)

    def forward(self, xyz: Tensor, features: Tensor, offsets: Tensor | None = None) -> Tensor:
        """Apply the block."""
        y = self.abstraction(xyz, features, xyz, offsets=offsets, center_offsets=offsets)[1]
        return activated(self.mlp(y) + features, *self.activation)


class Encoder(NamedTuple):
    """The hyper-parameters of PointNeXt's stages, as `PointNeXt` documents them."""

    width: int
    blocks: Sequence[int]
    strides: Sequence[int]
    sa_layers: int
    residual: bool
    radius: float
    radius_scaling: float
    k: int
    expansion: int

    def stages(self, op: str, options: dict[str, Any]) -> tuple[nn.ModuleList, list[int]]:
        """The stages, and the width of the stem and of each stage's output."""
        if len(self.blocks) != len(self.strides):
            raise ValueError(
                f"{op}: strides must have a value for each of blocks ({len(self.blocks)}); "
                f"got {len(self.strides)}"
            )
        stages, widths, radius = nn.ModuleList(), [self.width], self.radius
        for count, stride in zip(self.blocks, self.strides, strict=True):
            width = widths[-1]
            out = width * 2 if stride > 1 else width
            middle = out // 2 if stride > 1 else out
            mlp = [middle] * (self.sa_layers - 1) + [out]
            first = ResidualAbstraction(
                width, mlp, radius, self.k, stride, residual=self.residual, **options
            )
            radius = radius * self.radius_scaling if stride > 1 else radius
            more = (
                InvResMLP(out, radius, self.k, self.expansion, **options) for _ in range(count - 1)
            )
            stages.append(nn.ModuleList([first, *more]))
            widths.append(out)
        return stages, widths


def run_stage(
    stage: Any, xyz: Tensor, features: Tensor, offsets: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Centres, features and offsets behind the set abstraction and the blocks of a stage."""
    first, *more = stage
    xyz, features, offsets = first(xyz, features, offsets)
    for block in more:
        features = block(xyz, features, offsets)
    return xyz, features, offsets


class PointNeXt(nn.Module):
    """PointNeXt for whole clouds (Qian et al. 2022); the defaults are PointNeXt-S.

    A linear stem, four stages that halve the points and double the channels (radius times 1.5
    each), one layer over all points, a head. Larger variants have sa_layers=1, residual=False and
    `InvResMLP` blocks behind the set abstraction of a stage: blocks (2, 3, 2, 2) for PointNeXt-B,
    (3, 5, 3, 3) for L, and (4, 7, 4, 4) with width 64 for XL.

    Args:
        num_classes: Classes.
        in_channels: F of the features beside the coordinates (1 for a height); the stem takes
            coordinates and features.
        width: The stem's output.
        blocks: Blocks of each stage, the set abstraction among them.
        strides: Stride of each stage.
        sa_layers: Layers of each set abstraction, the inner ones half as wide as the output.
        residual: Whether set abstractions have residual connections.
        radius: Radius of the first stage; times radius_scaling for each further one.
        radius_scaling: See above.
        k: Neighbours.
        expansion: As in `InvResMLP`.
        head: The widths of the head's hidden layers.
        dropout: Behind each of them.
        norm, activation, negative_slope, device, dtype: As in `fusedops.nn.SharedMLP`.

    Shape:
        xyz (B, N, 3), features (B, N, F) or None, or packed (P, 3) and (P, F); output
        (B, num_classes), logits.
    """

    __module__ = "fusedops.models"  # what pickles name

    def __init__(
        self,
        num_classes: int,
        in_channels: int = 0,
        *,
        width: int = 32,
        blocks: Sequence[int] = (1, 1, 1, 1),
        strides: Sequence[int] = (2, 2, 2, 2),
        sa_layers: int = 2,
        residual: bool = True,
        radius: float = 0.15,
        radius_scaling: float = 1.5,
        k: int = 32,
        expansion: int = 4,
        head: Sequence[int] = (512, 256),
        dropout: Sequence[float] = (0.5, 0.5),
        **options: Any,
    ) -> None:
        encoder = Encoder(
            width, blocks, strides, sa_layers, residual, radius, radius_scaling, k, expansion
        )
        super().__init__()
        same = {name: options[name] for name in ("device", "dtype") if name in options}
        self.stem = nn.Linear(3 + in_channels, width, **same)
        self.stages, widths = encoder.stages("PointNeXt", options)
        width = widths[-1]
        self.all_points = GlobalSetAbstraction(width, [width] * sa_layers, **options)
        self.head = Head([width, *head, num_classes], dropout, **options)

    def forward(
        self, xyz: Tensor, features: Tensor | None = None, offsets: Tensor | None = None
    ) -> Tensor:
        """Logits of clouds; offsets (B + 1,) say where packed ones begin."""
        rows = xyz.to(self.stem.weight.dtype)
        f = self.stem(rows if features is None else torch.cat([rows, features], -1))
        for stage in self.stages:
            xyz, f, offsets = run_stage(stage, xyz, f, offsets)
        return self.head(self.all_points(xyz, f, offsets=offsets))


class PointNeXtSegmenter(nn.Module):
    """PointNeXt for the points of scenes (Qian et al. 2022); the defaults are PointNeXt-S of S3DIS.

    A linear stem, four stages that keep every fourth point and double the channels (radius times 2
    each), feature propagation back to all points, a head. Larger variants have sa_layers=1,
    residual=False and blocks (2, 3, 2, 2) for PointNeXt-B, (3, 5, 3, 3) for L, (4, 7, 4, 4) with
    width 64 for XL. Weights of openpoints: `load_openpoints`.

    Args:
        num_classes: Classes.
        in_channels: F of the features.
        xyz_features: Whether the coordinates are inputs of the stem beside the features (there,
            S3DIS has colours and height alone: in_channels=4, xyz_features=False).
        width, blocks, strides, sa_layers, residual, radius, radius_scaling, k, expansion: As in
            `PointNeXt`.
        decoder_layers: Layers of each feature propagation.
        dropout: In the head.
        norm, activation, negative_slope, device, dtype: As in `fusedops.nn.SharedMLP`.

    Shape:
        xyz (B, N, 3), features (B, N, F) or None; output (B, N, num_classes), logits. Packed:
        (P, 3), (P, F) and (P, num_classes).
    """

    __module__ = "fusedops.models"  # what pickles name

    def __init__(
        self,
        num_classes: int,
        in_channels: int = 0,
        *,
        xyz_features: bool = True,
        width: int = 32,
        blocks: Sequence[int] = (1, 1, 1, 1),
        strides: Sequence[int] = (4, 4, 4, 4),
        sa_layers: int = 2,
        residual: bool = True,
        radius: float = 0.1,
        radius_scaling: float = 2.0,
        k: int = 32,
        expansion: int = 4,
        decoder_layers: int = 2,
        dropout: float = 0.5,
        **options: Any,
    ) -> None:
        if not xyz_features and in_channels == 0:
            raise ValueError(
                "PointNeXtSegmenter: in_channels must be positive without xyz_features; got 0"
            )
        encoder = Encoder(
            width, blocks, strides, sa_layers, residual, radius, radius_scaling, k, expansion
        )
        super().__init__()
        same = {name: options[name] for name in ("device", "dtype") if name in options}
        self.xyz_features = xyz_features
        self.stem = nn.Linear(3 * xyz_features + in_channels, width, **same)
        self.stages, widths = encoder.stages("PointNeXtSegmenter", options)
        self.propagations = nn.ModuleList(  # the finest first
            FeaturePropagation(
                skip + known, [skip] * decoder_layers, order="skip_first", power=1, **options
            )
            for skip, known in pairwise(widths)
        )
        self.head = Head([width, width, num_classes], (dropout,), **options)

    def forward(
        self, xyz: Tensor, features: Tensor | None = None, offsets: Tensor | None = None
    ) -> Tensor:
        """Logits of points; offsets (B + 1,) say where packed clouds begin."""
        parts = [xyz.to(self.stem.weight.dtype)] if self.xyz_features else []
        parts += [] if features is None else [features]
        if not parts:
            raise ValueError("PointNeXtSegmenter: features must be a Tensor; got None")
        f = self.stem(torch.cat(parts, -1))
        levels = [(xyz, f, offsets)]
        for stage in self.stages:
            levels.append(run_stage(stage, *levels[-1]))
        known_xyz, known, known_offsets = levels.pop()
        for layer, (xyz, skip, offsets) in zip(
            reversed(self.propagations), reversed(levels), strict=True
        ):
            known = layer(xyz, known_xyz, skip, known, offsets=offsets, known_offsets=known_offsets)
            known_xyz, known_offsets = xyz, offsets
        return run_head(self.head, known, in_clouds(known, None, offsets))
