"""What modules of torch.nn hold, as the arguments of `fusedops.points`' layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from ...points.norms import BatchNorm, LayerNorm, Norm
from ..linear import plain, untouched
from ..norm import LayerNorm as OurLayerNorm

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.SyncBatchNorm)
_LAYER_NORMS = (nn.LayerNorm, OurLayerNorm)


class LayerArguments(NamedTuple):
    """The layers of an MLP as `fusedops.points.set_abstraction` takes them."""

    weights: list[Tensor]
    biases: list[Tensor | None]
    norms: list[Norm | None]


def readable(linears: Iterable[Any], norms: Iterable[Any]) -> bool:
    """Whether modules compute what their parameters say and nothing else: a function may run."""
    return all(plain(layer) for layer in linears) and all(
        type(norm) in (*_BATCH_NORMS, *_LAYER_NORMS) and untouched(norm) for norm in norms
    )


def norm_arguments(norm: Any) -> Norm:
    """A norm of torch.nn as an argument, whose count of batches goes up at a call in training.

    As torch's do: without running statistics those of the batch are used in evaluation too, and
    a momentum of None makes the running ones a plain mean of all batches.
    """
    if type(norm) in _LAYER_NORMS:
        return LayerNorm(norm.weight, norm.bias, norm.eps)
    mean, var = norm.running_mean, norm.running_var
    training = bool(norm.training or (mean is None and var is None))
    momentum = 0.0 if norm.momentum is None else norm.momentum
    count = None
    if norm.training and norm.track_running_stats and norm.num_batches_tracked is not None:
        momentum, count = norm.momentum, norm.num_batches_tracked
    if norm.training and not norm.track_running_stats:
        mean = var = None
    group = _process_group(norm) if norm.training else None
    return BatchNorm(norm.weight, norm.bias, mean, var, training, momentum, norm.eps, group, count)


def _process_group(norm: Any) -> Any:
    """The ranks that share the statistics of a SyncBatchNorm; None where there is one."""
    distributed = torch.distributed
    if type(norm) is not nn.SyncBatchNorm:
        return None
    if not (distributed.is_available() and distributed.is_initialized()):
        return None
    group = norm.process_group or distributed.group.WORLD
    return group if distributed.get_world_size(group) > 1 else None


def layer_arguments(linears: Iterable[Any], norms: Iterable[Any]) -> LayerArguments:
    """The arguments for layers whose last ones may lack a norm."""
    linears = list(linears)
    found: list[Norm | None] = [norm_arguments(norm) for norm in norms]
    found += [None] * (len(linears) - len(found))
    return LayerArguments([one.weight for one in linears], [one.bias for one in linears], found)
