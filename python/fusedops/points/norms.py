"""The norms of point cloud layers, as what a function takes: parameters, statistics, settings."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor  # noqa: TC002 (`public` reads annotations)

__all__ = ["BatchNorm", "LayerNorm", "Norm"]


class BatchNorm(NamedTuple):
    """``(y - mean) / sqrt(var + eps) * weight + bias`` with one mean and variance a channel.

    In training they are those of the batch over the edges that count: a neighbour that is repeated
    counts as often as it stands there, one outside the cloud (-1 above all) not at all; without
    such ones they are torch's over the grouped tensor. Otherwise they are the running ones.

    Attributes:
        weight: (C,), any floating dtype, or None for 1.
        bias: (C,), or None for 0.
        running_mean: (C,), updated in place in training; or None.
        running_var: (C,), likewise, with the unbiased variance (n - 1).
        training: Whether the statistics are those of the batch.
        momentum: The share of the batch in the running statistics, a number or a tensor () of one.
            None: they become the plain mean over all batches, as in torch; that takes
            num_batches_tracked.
        eps: Added to the variance; positive.
        group: A process group of torch.distributed: statistics are those of all its ranks, as those
            of torch.nn.SyncBatchNorm; every rank has to call, forward and backward. None: this
            process alone.
        num_batches_tracked: () int64, counted up by one at a call in training; None: not counted.
    """

    weight: Tensor | None = None
    bias: Tensor | None = None
    running_mean: Tensor | None = None
    running_var: Tensor | None = None
    training: bool = False
    momentum: float | Tensor | None = 0.1
    eps: float = 1e-5
    group: Any = None
    num_batches_tracked: Tensor | None = None


class LayerNorm(NamedTuple):
    """Norm over the channels of every edge, as torch.nn.LayerNorm(C).

    Attributes:
        weight: (C,), any floating dtype, or None for 1.
        bias: (C,), or None for 0.
        eps: Added to the variance.
    """

    weight: Tensor | None = None
    bias: Tensor | None = None
    eps: float = 1e-5


Norm = BatchNorm | LayerNorm
