"""batch_norm_act: batch norm, residual and activation in one pass behind the statistics."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import _fakes  # noqa: F401  (registers the fakes)
from .._autograd.autocast import cast
from .._autograd.batch_norm import BatchNormOptions, batch_norm
from .._autograd.compose import activate
from .._autograd.shared import sees_torch_functions_only
from .._core.calls import public, shown
from .._core.dtensor import is_dtensor
from .conv_problem import (
    check_alike,
    check_floating,
    check_residual,
    check_statistics,
    check_values,
    check_vectors,
    code_of,
    shape_text,
)
from .linear import _autocast_dtype

__all__ = ["batch_norm_act"]

_any_autocast = torch._C._is_any_autocast_enabled
_is_dynamo_compiling = torch.compiler.is_dynamo_compiling
_PLAIN = (Tensor, torch.nn.Parameter, type(None))


def options_of(
    op: str, activation: str | None, training: bool, momentum: float, eps: float, group: Any
) -> BatchNormOptions:
    """The options of a call; raises, as torch does, for what is no bool and an eps of 0."""
    if training is not True and training is not False:
        raise TypeError(f"{op}: training must be a bool; got {shown(training)}")
    if eps <= 0:
        raise ValueError(f"{op}: eps must be positive; got {eps}")
    return BatchNormOptions(
        code_of(op, activation), training, momentum, eps, group if training else None
    )


def torch_batch_norm_act(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    residual: Tensor | None,
    options: BatchNormOptions,
) -> Tensor:
    """The norm (none without its tensors), the residual and the activation by torch's functions."""
    z = x
    if options.training or running_mean is not None:
        if weight is None and bias is not None:  # torch's CUDA kernel has no bias gradient then
            weight = torch.ones_like(bias)
        z = F.batch_norm(
            x,
            running_mean,
            running_var,
            weight,
            bias,
            options.training,
            options.momentum,
            options.eps,
        )
    return activate(z if residual is None else z + residual, options.code)


def channels_behind(x: Tensor) -> Tensor:
    """A view of x (N, C, ...) as (N, ..., C)."""
    return x.movedim(1, -1) if x.dim() > 2 else x


def channels_second(x: Tensor) -> Tensor:
    """A view of x (N, ..., C) as (N, C, ...)."""
    return x.movedim(-1, 1) if x.dim() > 2 else x


def sees_torch(*tensors: Tensor | None) -> bool:
    """Whether a call is for torch's functions: one that is traced, too, where Inductor fuses, and
    one of DTensors, which have no rules for our norm.
    """
    if _is_dynamo_compiling() or sees_torch_functions_only(*tensors):
        return True
    for t in tensors:  # noqa: SIM110  (written out: each call asks)
        if type(t) not in _PLAIN and is_dtensor(t):
            return True
    return False


@public
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
    group: Any = None,
) -> Tensor:
    """Compute ``act(batch_norm(x) + residual)``, in one pass behind the statistics.

    The norm is ``torch.nn.functional.batch_norm``: in training by the statistics of the batch,
    found in one read by Chan's pairwise formula, else by the running ones. Backward is two passes:
    the sums, and dx with the residual's gradient; the activation is computed again. Sums have a
    fixed order: two runs agree bit by bit. Memory in ``channels_last`` is what the kernels read;
    x in another layout costs a copy, and one of y back into that layout. Gradients of any order are
    supported.

    Args:
        x: (N, C, ...), two to five dimensions; float16, bfloat16, float32 or float64.
        running_mean, running_var: (C,) of x's dtype or float32, both or neither. In training they
            are moved in place towards the batch's mean and unbiased variance.
        weight, bias: (C,) of x's dtype or float32, or None.
        activation: "identity", or as in `linear`.
        residual: Like x, or None.
        training: Whether the statistics are those of this batch.
        momentum: What part of the running statistics a batch replaces.
        eps: Added to the variance.
        group: A process group whose ranks share the statistics (as torch.nn.SyncBatchNorm does), in
            training; None: this rank's alone.

    Returns:
        A new tensor like x, in its memory format.

    Raises:
        ValueError: The activation is unknown, eps is not positive, or training has one value per
            channel.
        TypeError: An argument has another type.
        RuntimeError: Shapes, dtypes or devices do not fit; the message names op, argument, what was
            expected and what came.

    Under autocast x keeps its dtype, and the residual takes it. Source of the method: Ioffe
    and Szegedy, Batch normalization, 2015; of the statistics: Chan, Golub and LeVeque, 1979.
    """
    op = "batch_norm_act"
    options = options_of(op, activation, training, momentum, eps, group)
    check_floating(op, x)
    if x.dim() not in (2, 3, 4, 5):
        raise RuntimeError(
            f"{op}: x must be (N, C, ...) with two to five dimensions; got shape {shape_text(x)}"
        )
    if residual is not None and _any_autocast() and _autocast_dtype(x) is not None:
        residual = cast(residual, x.dtype)
    check_alike(op, x, residual=residual)
    check_residual(op, residual, tuple(x.shape))
    check_vectors(
        op, x, x.shape[1], running_mean=running_mean, running_var=running_var, weight=weight,
        bias=bias,
    )  # fmt: skip
    check_statistics(op, running_mean, running_var, training)
    if training and group is None:
        check_values(op, tuple(x.shape))
    if sees_torch(x, running_mean, running_var, weight, bias, residual) and options.group is None:
        return torch_batch_norm_act(x, running_mean, running_var, weight, bias, residual, options)
    behind = channels_behind(x)
    added = None if residual is None else channels_behind(residual)
    y = channels_second(
        batch_norm(behind, added, weight, bias, running_mean, running_var, None, options)
    )
    return y if behind.is_contiguous() and not x.is_contiguous() else y.contiguous()
