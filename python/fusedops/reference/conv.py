"""Batch norm with residual and activation, and the convolution in front of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .activation import activate

if TYPE_CHECKING:
    from collections.abc import Sequence

_CONV = {
    3: torch.nn.functional.conv1d,
    4: torch.nn.functional.conv2d,
    5: torch.nn.functional.conv3d,
}


def _mix(running: Tensor | None, value: Tensor, momentum: float) -> None:
    if running is not None:
        mixed = (1 - momentum) * running.to(value.dtype) + momentum * value.detach()
        running.copy_(mixed)


def batch_norm_act(
    x: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    activation: str | None = "identity",
    residual: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """act((x - mean) / sqrt(var + eps) * weight + bias + residual) for x (N, C, ...).

    In training mean and var are those of x over all but the channels, and running_mean and
    running_var are moved towards them, by the unbiased variance.
    """
    columns = (1, -1, *(1,) * (x.dim() - 2))
    mean, var = running_mean, running_var
    if training:
        dims = [d for d in range(x.dim()) if d != 1]
        count = x.numel() // x.shape[1]
        mean = x.mean(dims)
        var = (x - mean.view(columns)).square().mean(dims)
        _mix(running_mean, mean, momentum)
        _mix(running_var, var * count / max(count - 1, 1), momentum)
    z = x
    if mean is not None and var is not None:
        z = (x - mean.view(columns)) / (var + eps).sqrt().view(columns)
    z = z if weight is None else z * weight.view(columns)
    z = z if bias is None else z + bias.view(columns)
    z = z if residual is None else z + residual
    return activate(z, None if activation == "identity" else activation)


def conv_bn_act(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    bn_weight: Tensor | None = None,
    bn_bias: Tensor | None = None,
    *,
    activation: str | None = "identity",
    residual: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | str | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """`batch_norm_act` of the convolution of x (N, C, ...) with weight (O, C / groups, ...)."""
    z = _CONV[weight.dim()](x, weight, bias, stride, padding, dilation, groups)
    return batch_norm_act(
        z, running_mean, running_var, bn_weight, bn_bias, activation=activation,
        residual=residual, training=training, momentum=momentum, eps=eps,
    )  # fmt: skip
