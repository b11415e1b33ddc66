"""DGCNN's segmenter of the points of shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..nn import EdgeConv, FeaturePropagation, SharedMLP
from ..nn.points.pooling import in_clouds
from .dgcnn import pool_points
from .head import Head, of_points, run_head

if TYPE_CHECKING:
    from collections.abc import Sequence


class PointTransform(nn.Module):
    """A matrix for each cloud that turns its points, at first the identity (spatial transform).

    Args:
        dimensions: D of the points.
        mlp: The widths of an edge convolution's layers.
        k: Its neighbours.
        embedding: The width of the layer over its outputs, which is pooled.
        head: The widths of the hidden layers behind it.
        activation, negative_slope, norm, device, dtype: As in `fusedops.nn.EdgeConv`.

    Shape:
        points (B, N, D), or (P, D) packed; output alike.
    """

    __module__ = "fusedops.models"  # what pickles name

    def __init__(
        self,
        dimensions: int = 3,
        mlp: Sequence[int] = (64, 128),
        k: int = 40,
        embedding: int = 1024,
        head: Sequence[int] = (512, 256),
        **options: Any,
    ) -> None:
        super().__init__()
        self.edge = EdgeConv(dimensions, mlp, k, **options)
        self.embedding = SharedMLP([mlp[-1], embedding], **options)
        widths = [embedding, *head, dimensions**2]
        self.head = Head(widths, [0.0] * len(head), **options)
        nn.init.zeros_(self.head.last.weight)
        with torch.no_grad():
            self.head.last.bias.copy_(torch.eye(dimensions).flatten())

    def forward(
        self, points: Tensor, lengths: Tensor | None = None, offsets: Tensor | None = None
    ) -> Tensor:
        """Turn the points."""
        x = self.edge(points, lengths=lengths, offsets=offsets)
        (x,) = pool_points(self.embedding, x, ("max",), lengths, offsets)
        size = points.shape[-1]
        matrices = self.head(x).unflatten(-1, (size, size)).to(points.dtype)
        if offsets is None:
            return points @ matrices
        return (points.unsqueeze(1) @ of_points(matrices, points, offsets)).squeeze(1)


class DGCNNSegmenter(nn.Module):
    """DGCNN for the parts of shapes (Wang et al. 2019), as antao97/dgcnn.pytorch has it.

    The points are turned by a matrix of their cloud, edge convolutions follow, and a layer over all
    their outputs is pooled; every point gets that, the category and its own outputs. Weights from
    there: `load_dgcnn`.

    Args:
        num_parts: Classes of points.
        in_channels: Channels of the points, 3 for coordinates.
        num_categories: Number of categories of the shapes, which are given; 0 for none.
        mlps: The widths of each edge convolution's layers.
        k: Neighbours.
        embedding: The width of the layer over all outputs.
        category: The width of the category's layer.
        head: The widths of the layers by point.
        dropout: Behind each of them.
        transform: Whether points are turned; else they stay.
        activation, negative_slope, norm, device, dtype: As in `fusedops.nn.EdgeConv`.

    Shape:
        points (B, N, in_channels), or (P, in_channels) packed; output (B, N, num_parts) or
        (P, num_parts), logits.
    """

    __module__ = "fusedops.models"  # what pickles name

    def __init__(
        self,
        num_parts: int,
        in_channels: int = 3,
        *,
        num_categories: int = 16,
        mlps: Sequence[Sequence[int]] = ((64, 64), (64, 64), (64,)),
        k: int = 40,
        embedding: int = 1024,
        category: int = 64,
        head: Sequence[int] = (256, 256, 128),
        dropout: Sequence[float] = (0.5, 0.5, 0.0),
        transform: bool = True,
        activation: str = "leaky_relu",
        negative_slope: float = 0.2,
        **options: Any,
    ) -> None:
        if len(dropout) != len(head):
            raise ValueError(
                f"DGCNNSegmenter: dropout must have {len(head)} value(s); got {len(dropout)}"
            )
        super().__init__()
        options |= {"activation": activation, "negative_slope": negative_slope}
        self.transform = PointTransform(in_channels, k=k, **options) if transform else None
        self.edges = nn.ModuleList()
        widths = [in_channels, *(mlp[-1] for mlp in mlps)]
        for width, mlp in zip(widths, mlps, strict=False):
            self.edges.append(EdgeConv(width, mlp, k, **options))
        own = sum(widths[1:])
        self.embedding = SharedMLP([own, embedding], **options)
        self.num_categories, known, self.category = num_categories, embedding, None
        if num_categories:
            self.category = SharedMLP([num_categories, category], **options)
            known += category
        # Its product with what all points of a cloud share has one row a cloud.
        self.mixed = FeaturePropagation(known + own, [head[0]], **options)
        self.dropout = nn.Dropout(dropout[0])
        self.head = Head([*head, num_parts], dropout[1:], last_bias=False, **options)

    def forward(
        self,
        points: Tensor,
        category: Tensor | None = None,
        lengths: Tensor | None = None,
        offsets: Tensor | None = None,
    ) -> Tensor:
        """Logits of points.

        Args:
            points: (B, N, in_channels), or (P, in_channels) packed.
            category: (B,) int64, where the model has categories.
            lengths: (B,) int64, the points of each cloud; rows beyond count nowhere and are zeros.
            offsets: (B + 1,) int64, where packed clouds begin.
        """
        x = points
        if self.transform is not None:
            x = self.transform(points, lengths, offsets)
        outputs = []
        for edge in self.edges:
            x = edge(x, lengths=lengths, offsets=offsets)
            outputs.append(x)
        own = torch.cat(outputs, dim=-1)
        shared = pool_points(self.embedding, own, ("max",), lengths, offsets)
        if self.category is not None:
            if category is None:
                raise ValueError("DGCNNSegmenter: category must be a Tensor; got None")
            shared.append(self.category(F.one_hot(category, self.num_categories).to(own.dtype)))
        y = self.mixed(
            points.detach(), None, own, torch.cat(shared, dim=-1), lengths=lengths, offsets=offsets
        )
        return run_head(self.head, self.dropout(y), in_clouds(y, lengths, offsets))
