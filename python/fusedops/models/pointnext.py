"""PointNeXt: a classifier of residual set abstraction, with inverted residual blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..nn import GlobalSetAbstraction, SetAbstraction, SharedMLP
from ..nn.points.mlp import activated
from ..points.grouping import gather
from .head import Head

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
        radius: Of the neighbourhood.
        k: Neighbours.
        stride: Every how many points there is a centre.
        residual: Whether there is the residual connection; without it the last layer has its
            activation.
        norm, bias, activation, negative_slope, device, dtype: As in `fusedops.nn.SharedMLP`.

    Shape:
        xyz (B, N, 3), features (B, N, F); output (B, N // stride, 3) and (B, N // stride, mlp[-1]).
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

    def forward(self, xyz: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """Apply the layer."""
        count = max(1, xyz.shape[1] // self.stride)
        centers, idx = self.abstraction.sample(xyz, num_points=count)
        _, y = self.abstraction(xyz, features, centers)
        if self.skip is not None:
            y = activated(y + self.skip(gather(features, idx)), *self.activation)
        return centers, y


class InvResMLP(nn.Module):
    """An inverted residual block: one set abstraction layer around every point, two layers by
    point with a wide middle, and the block's input added.

    Args:
        channels: Of input and output.
        radius: Of the neighbourhood.
        k: Neighbours.
        expansion: The middle's width in channels.
        norm, bias, activation, negative_slope, device, dtype: As in `fusedops.nn.SharedMLP`.

    Shape:
        xyz (B, N, 3), features (B, N, channels); output features alike.
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

    def forward(self, xyz: Tensor, features: Tensor) -> Tensor:
        """Apply the block."""
        _, y = self.abstraction(xyz, features, xyz)
        return activated(self.mlp(y) + features, *self.activation)


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
        strides: Of each stage.
        sa_layers: Layers of each set abstraction, the inner ones half as wide as the output.
        residual: Whether set abstractions have residual connections.
        radius: Of the first stage; times radius_scaling for each further one.
        radius_scaling: See above.
        k: Neighbours.
        expansion: As in `InvResMLP`.
        head: The widths of the head's hidden layers.
        dropout: Behind each of them.
        norm, activation, negative_slope, device, dtype: As in `fusedops.nn.SharedMLP`.

    Shape:
        xyz (B, N, 3), features (B, N, F) or None; output (B, num_classes), logits.
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
        if len(blocks) != len(strides):
            raise ValueError(
                f"PointNeXt: strides must have a value for each of blocks ({len(blocks)}); "
                f"got {len(strides)}"
            )
        super().__init__()
        same = {name: options[name] for name in ("device", "dtype") if name in options}
        self.stem = nn.Linear(3 + in_channels, width, **same)
        self.stages = nn.ModuleList()
        for count, stride in zip(blocks, strides, strict=True):
            out = width * 2 if stride > 1 else width
            middle = out // 2 if stride > 1 else out
            widths = [middle] * (sa_layers - 1) + [out]
            first = ResidualAbstraction(
                width, widths, radius, k, stride, residual=residual, **options
            )
            radius = radius * radius_scaling if stride > 1 else radius
            more = (InvResMLP(out, radius, k, expansion, **options) for _ in range(count - 1))
            self.stages.append(nn.ModuleList([first, *more]))
            width = out
        self.all_points = GlobalSetAbstraction(width, [width] * sa_layers, **options)
        self.head = Head([width, *head, num_classes], dropout, **options)

    def forward(self, xyz: Tensor, features: Tensor | None = None) -> Tensor:
        """Logits of clouds."""
        rows = xyz.to(self.stem.weight.dtype)
        f = self.stem(rows if features is None else torch.cat([rows, features], -1))
        for stage in self.stages:
            first, *more = stage
            xyz, f = first(xyz, f)
            for block in more:
                f = block(xyz, f)
        return self.head(self.all_points(xyz, f))
