"""DGCNN: a classifier of clouds, and a segmenter of their points, by edge convolutions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..nn import EdgeConv, SharedMLP
from ..nn.points.pooling import in_clouds, run_on_points
from ..ops.segment import segment_reduce
from .head import Head

if TYPE_CHECKING:
    from collections.abc import Sequence

_POOLS = ("max", "mean")


class DGCNN(nn.Module):
    """DGCNN for whole clouds (Wang et al. 2019): edge convolutions in the space of the features
    of each layer, all their outputs side by side through one more layer, pooled, a head.

    The defaults are the paper's. torch_geometric's example is ``DGCNN(40, mlps=[[64, 64, 64],
    [128]], activation="relu", plain_last=True, pools=("max",), bias=True)``. Weights of others:
    `load_dgcnn`, `load_pyg`.

    Args:
        num_classes: Classes.
        in_channels: Channels of the points, 3 for coordinates.
        mlps: The widths of each edge convolution's layers.
        k: Neighbours.
        embedding: The width of the layer over all outputs.
        pools: How points are pooled: "max", "mean" or both.
        head: The widths of the head's hidden layers.
        dropout: Behind each of them.
        plain_last: Whether the last layer of each edge convolution, and the layer over all outputs,
            have neither norm nor activation.
        bias: Whether layers with a norm have a bias too. None: the head's second one has one.
        activation, negative_slope, norm, device, dtype: As in `fusedops.nn.EdgeConv`.

    Raises:
        ValueError: A word is unknown.

    Shape:
        points (B, N, in_channels), or (P, in_channels) packed; output (B, num_classes), logits.
    """

    __module__ = "fusedops.models"  # what pickles name

    def __init__(
        self,
        num_classes: int,
        in_channels: int = 3,
        *,
        mlps: Sequence[Sequence[int]] = ((64,), (64,), (128,), (256,)),
        k: int = 20,
        embedding: int = 1024,
        pools: Sequence[str] = ("max", "mean"),
        head: Sequence[int] = (512, 256),
        dropout: Sequence[float] = (0.5, 0.5),
        plain_last: bool = False,
        bias: bool | None = None,
        activation: str = "leaky_relu",
        negative_slope: float = 0.2,
        **options: Any,
    ) -> None:
        if not pools or any(pool not in _POOLS for pool in pools):
            raise ValueError(f"DGCNN: pools must be of 'max' and 'mean'; got {tuple(pools)}")
        super().__init__()
        options |= {"activation": activation, "negative_slope": negative_slope}
        last: dict[str, Any] = dict.fromkeys(("last_norm", "last_activation"), not plain_last)
        last["bias"] = bias
        self.edges = nn.ModuleList()
        widths = [in_channels, *(mlp[-1] for mlp in mlps)]
        for width, mlp in zip(widths, mlps, strict=False):
            self.edges.append(EdgeConv(width, mlp, k, **last, **options))
        self.embedding = SharedMLP([sum(widths[1:]), embedding], **last, **options)
        self.pools = tuple(pools)
        biases = [bias if bias is not None else i > 0 or None for i in range(len(head))]
        self.head = Head(
            [embedding * len(pools), *head, num_classes], dropout, bias=biases, **options
        )

    def forward(
        self, points: Tensor, lengths: Tensor | None = None, offsets: Tensor | None = None
    ) -> Tensor:
        """Logits of clouds.

        Args:
            points: (B, N, in_channels), or (P, in_channels) packed.
            lengths: (B,) int64, the points of each cloud; more than N are N.
            offsets: (B + 1,) int64, where packed clouds begin.
        """
        outputs, x = [], points
        for edge in self.edges:
            x = edge(x, lengths=lengths, offsets=offsets)
            outputs.append(x)
        wide = torch.cat(outputs, dim=-1)
        pooled = pool_points(self.embedding, wide, self.pools, lengths, offsets)
        return self.head(torch.cat(pooled, dim=-1))


def pool_points(
    mlp: nn.Module,
    x: Tensor,
    pools: Sequence[str],
    lengths: Tensor | None,
    offsets: Tensor | None,
) -> list[Tensor]:
    """The MLP of every point, pooled over the points that count; an empty cloud gives zeros."""
    inside = in_clouds(x, lengths, offsets)
    y = run_on_points(mlp, x, inside)
    if offsets is not None:
        return [segment_reduce(y, offsets, pool) for pool in pools]
    if inside is None:
        return [y.max(1)[0] if pool == "max" else y.mean(1) for pool in pools]
    count = inside.sum(1, keepdim=True)
    largest = y.masked_fill(~inside.unsqueeze(-1), -torch.inf).max(1)[0]
    found = {
        "max": torch.where(count > 0, largest, 0),
        "mean": y.sum(1) / count.clamp_min(1),
    }
    return [found[pool] for pool in pools]
