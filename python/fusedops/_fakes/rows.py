"""Fakes of softmax, cross entropy and norms; checks as in csrc/common/checks/row_check.h."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .._core.checks import dtype_name
from .checks import (
    check_floating,
    check_like,
    check_matrix,
    check_min_dim,
    check_same_shape,
    fake,
    shape_of,
)
from .gemm import check_linear

_HALVES = (torch.float16, torch.bfloat16)
_LONG_ROW, _CHUNK = 2048, 8  # of logits in halves: elements


def _compute_dtype(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype is torch.float64 else torch.float32


def _check_fp32_out(op: str, name: str, x: Tensor, fp32_out: bool) -> None:
    torch._check(
        not fp32_out or x.dtype in _HALVES,
        lambda: (
            f"{op}: fp32_out must be False for {name} other than float16 and bfloat16; got {name} "
            f"of {dtype_name(x.dtype)}"
        ),
    )


def _check_grad_like(op: str, name: str, grad: Tensor, like_name: str, like: Tensor) -> None:
    half = like.dtype in _HALVES
    torch._check(
        grad.device == like.device,
        lambda: f"{op}: {name} must be on {like.device} like {like_name}; got {grad.device}",
    )
    torch._check(
        grad.dtype == like.dtype or (half and grad.dtype is torch.float32),
        lambda: (
            f"{op}: {name} must have dtype {dtype_name(like.dtype)} like {like_name}"
            f"{' or float32' if half else ''}; got {dtype_name(grad.dtype)}"
        ),
    )


def _check_statistic(op: str, name: str, tensor: Tensor, dtype: torch.dtype, count: int) -> None:
    torch._check(
        tensor.dtype == dtype,
        lambda: f"{op}: {name} must have dtype {dtype_name(dtype)}; got {dtype_name(tensor.dtype)}",
    )
    check_same_shape(op, name, tensor, (count,), f"shape ({count},)")


def _check_softmax_dim(op: str, x: Tensor, dim: int) -> None:
    dims = max(x.dim(), 1)
    torch._check(
        -dims <= dim < dims,
        lambda: f"{op}: dim must be from {-dims} to {dims - 1} for shape {shape_of(x)}; got {dim}",
    )


@fake("softmax")
def _softmax(x: Tensor, dim: int, log: bool, fp32_out: bool) -> Tensor:
    check_floating("softmax", "x", x)
    _check_fp32_out("softmax", "x", x, fp32_out)
    _check_softmax_dim("softmax", x, dim)
    return x.new_empty(x.shape, dtype=torch.float32 if fp32_out else x.dtype)


@fake("softmax_backward")
def _softmax_backward(dy: Tensor, y: Tensor, dim: int, log: bool, dx_dtype: int) -> Tensor:
    op = "softmax_backward"
    check_floating(op, "dy", dy)
    check_like(op, "y", y, "dy", dy)
    check_same_shape(op, "y", y, tuple(dy.shape), f"shape {shape_of(dy)} like dy")
    _check_softmax_dim(op, y, dim)
    torch._check(
        0 <= dx_dtype < 3, lambda: f"{op}: dx_dtype must be a code from 0 to 2; got {dx_dtype}"
    )
    torch._check(
        dx_dtype == 0 or y.dtype is torch.float32,
        lambda: f"{op}: dx_dtype must be 0 for y other than float32; got {dx_dtype}",
    )
    return y.new_empty(y.shape, dtype=(y.dtype, *_HALVES)[dx_dtype])


def _check_target(op: str, target: Tensor, name: str, matrix: Tensor) -> None:
    torch._check(
        target.device == matrix.device,
        lambda: f"{op}: target must be on {matrix.device} like {name}; got {target.device}",
    )
    torch._check(
        target.dtype is torch.int64,
        lambda: f"{op}: target must have dtype int64; got {dtype_name(target.dtype)}",
    )
    rows = matrix.shape[0]
    expected = f"shape ({rows},) to match {name} {shape_of(matrix)}"
    check_same_shape(op, "target", target, (rows,), expected)


def _check_logits(
    op: str, logits: Tensor, target: Tensor, label_smoothing: float, reduction: int
) -> None:
    check_matrix(op, "logits", logits, "(M, V)")
    torch._check(
        logits.shape[1] > 0,
        lambda: f"{op}: logits must have at least one class; got shape {shape_of(logits)}",
    )
    _check_target(op, target, "logits", logits)
    torch._check(
        0 <= label_smoothing <= 1,
        lambda: f"{op}: label_smoothing must be from 0 to 1; got {label_smoothing:g}",
    )
    torch._check(
        0 <= reduction <= 2, lambda: f"{op}: reduction must be a code from 0 to 2; got {reduction}"
    )


@fake("cross_entropy")
def _cross_entropy(
    logits: Tensor,
    target: Tensor,
    ignore_index: int,
    label_smoothing: float,
    reduction: int,
    fp32_out: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    op = "cross_entropy"
    check_floating(op, "logits", logits)
    _check_fp32_out(op, "logits", logits, fp32_out)
    _check_logits(op, logits, target, label_smoothing, reduction)
    rows, compute = logits.shape[0], _compute_dtype(logits)
    return (
        logits.new_empty(
            (rows,) if reduction == 0 else (), dtype=torch.float32 if fp32_out else logits.dtype
        ),
        logits.new_empty((rows,), dtype=compute),
        logits.new_empty((1 if reduction == 1 else 0,), dtype=compute),
    )


@fake("cross_entropy_backward")
def _cross_entropy_backward(
    dloss: Tensor,
    logits: Tensor,
    target: Tensor,
    lse: Tensor,
    scale: Tensor,
    ignore_index: int,
    label_smoothing: float,
    reduction: int,
) -> Tensor:
    op = "cross_entropy_backward"
    check_floating(op, "dloss", dloss)
    check_floating(op, "logits", logits)
    _check_grad_like(op, "dloss", dloss, "logits", logits)
    _check_logits(op, logits, target, label_smoothing, reduction)
    rows, compute = logits.shape[0], _compute_dtype(logits)
    check_same_shape(op, "dloss", dloss, (rows,) if reduction == 0 else (), "the shape of the loss")
    _check_statistic(op, "lse", lse, compute, rows)
    _check_statistic(op, "scale", scale, compute, 1 if reduction == 1 else 0)
    return _logit_gradient(logits)


def _logit_gradient(logits: Tensor) -> Tensor:
    """Dense, but for long odd rows of halves on a GPU (csrc/cuda/rows/softmax/cross_entropy.cu)."""
    rows, classes = logits.shape
    if logits.device.type != "cuda" or logits.dtype not in _HALVES or classes < _LONG_ROW:
        return logits.new_empty(logits.shape)
    return logits.new_empty((rows, -(-classes // _CHUNK) * _CHUNK))[:, :classes]


def _check_loss_options(op: str, label_smoothing: float, softcap: float, z_loss: float) -> None:
    torch._check(
        0 <= label_smoothing <= 1,
        lambda: f"{op}: label_smoothing must be from 0 to 1; got {label_smoothing:g}",
    )
    torch._check(softcap >= 0, lambda: f"{op}: softcap must be at least 0; got {softcap:g}")
    torch._check(z_loss >= 0, lambda: f"{op}: z_loss must be at least 0; got {z_loss:g}")


@fake("linear_cross_entropy")
def _linear_cross_entropy(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    dloss: Tensor | None,
    ignore_index: int,
    label_smoothing: float,
    softcap: float,
    z_loss: float,
    reduction: int,
    fp32_out: bool,
    chunk_size: int,
    need_dx: bool,
    need_dweight: bool,
    need_dbias: bool,
    dweight_fp32: bool,
    allow_tf32: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    op = "linear_cross_entropy"
    check_linear(op, x, weight, bias, 0)
    check_matrix(op, "x", x, "(M, K)")
    torch._check(
        weight.shape[0] > 0,
        lambda: f"{op}: weight must have at least one class; got shape {shape_of(weight)}",
    )
    torch._check(
        weight.shape[0] < 2**30,
        lambda: f"{op}: weight must have less than 2^30 classes; got {weight.shape[0]}",
    )
    _check_target(op, target, "x", x)
    rows = x.shape[0]
    _check_loss_options(op, label_smoothing, softcap, z_loss)
    torch._check(
        0 <= reduction <= 2, lambda: f"{op}: reduction must be a code from 0 to 2; got {reduction}"
    )
    _check_fp32_out(op, "x", x, fp32_out)
    torch._check(chunk_size >= 0, lambda: f"{op}: chunk_size must be at least 0; got {chunk_size}")
    loss_shape = (rows,) if reduction == 0 else ()
    if dloss is not None:
        check_floating(op, "dloss", dloss)
        _check_grad_like(op, "dloss", dloss, "x", x)
        check_same_shape(op, "dloss", dloss, loss_shape, "the shape of the loss")
    parameter = torch.float32 if dweight_fp32 else x.dtype
    return (
        x.new_empty(loss_shape, dtype=torch.float32 if fp32_out else x.dtype),
        x.new_empty((1,), dtype=_compute_dtype(x)),
        x.new_empty(x.shape if need_dx else (0,)),
        x.new_empty(weight.shape if need_dweight else (0,), dtype=parameter),
        x.new_empty((weight.shape[0] if need_dbias else 0,), dtype=parameter),
    )


def _check_loss_shard(
    op: str,
    logits: Tensor,
    target: Tensor,
    first: int,
    width: int,
    classes: int,
    options: tuple[float, float, float],
) -> None:
    check_floating(op, "logits", logits)
    check_matrix(op, "logits", logits, "(M, pitch)")
    pitch = logits.shape[1]
    torch._check(
        pitch * logits.element_size() % 16 == 0,
        lambda: f"{op}: logits must have rows of whole 16 bytes; got shape {shape_of(logits)}",
    )
    torch._check(
        0 <= width <= pitch,
        lambda: f"{op}: width must be from 0 to {pitch} for logits {shape_of(logits)}; got {width}",
    )
    torch._check(
        0 < classes < 2**30, lambda: f"{op}: classes must be from 1 to 2^30 - 1; got {classes}"
    )
    torch._check(
        0 <= first <= classes - width,
        lambda: (
            f"{op}: first must be from 0 to {classes - width} for {width} of {classes} classes; "
            f"got {first}"
        ),
    )
    _check_target(op, target, "logits", logits)
    _check_loss_options(op, *options)


@fake("loss_shard_parts")
def _loss_shard_parts(
    logits: Tensor,
    target: Tensor,
    first: int,
    width: int,
    classes: int,
    ignore_index: int,
    softcap: float,
    smooth: bool,
) -> Tensor:
    options = (0.0, softcap, 0.0)
    _check_loss_shard("loss_shard_parts", logits, target, first, width, classes, options)
    return logits.new_empty((logits.shape[0], 4), dtype=_compute_dtype(logits))


@fake("loss_shard_gradient_")
def _loss_shard_gradient(
    logits: Tensor,
    target: Tensor,
    lse: Tensor,
    factor: Tensor,
    first: int,
    width: int,
    classes: int,
    ignore_index: int,
    label_smoothing: float,
    softcap: float,
    z_loss: float,
) -> None:
    op, rows = "loss_shard_gradient_", logits.shape[0]
    options = (label_smoothing, softcap, z_loss)
    _check_loss_shard(op, logits, target, first, width, classes, options)
    torch._check(
        logits.is_contiguous(),
        lambda: f"{op}: logits must be contiguous; got strides {tuple(logits.stride())}",
    )
    compute = _compute_dtype(logits)
    _check_statistic(op, "lse", lse, compute, rows)
    count = 1 if tuple(factor.shape) == (1,) else rows
    _check_statistic(op, "factor", factor, compute, count)
    for name, tensor in (("lse", lse), ("factor", factor)):
        torch._check(
            tensor.device == logits.device,
            lambda name=name, tensor=tensor: (
                f"{op}: {name} must be on {logits.device} like logits; got {tensor.device}"
            ),
        )


@fake("scale_gradient_")
def _scale_gradient(gradient: Tensor, dloss: Tensor, scale: Tensor) -> None:
    op = "scale_gradient_"
    check_floating(op, "gradient", gradient)
    for name, number, shape in (("dloss", dloss, ()), ("scale", scale, (1,))):
        check_floating(op, name, number)
        torch._check(
            number.device == gradient.device,
            lambda name=name, number=number: (
                f"{op}: {name} must be on {gradient.device} like gradient; got {number.device}"
            ),
        )
        check_same_shape(op, name, number, shape, f"shape {shape}")


def _check_norm_dims(op: str, x: Tensor, norm_dims: int) -> int:
    """The number of rows."""
    check_min_dim(op, "x", x, 1)
    torch._check(
        1 <= norm_dims <= x.dim(),
        lambda: f"{op}: norm_dims must be from 1 to {x.dim()} for x {shape_of(x)}; got {norm_dims}",
    )
    return math.prod(x.shape[: x.dim() - norm_dims])


def _check_parameter(op: str, name: str, parameter: Tensor, x: Tensor, norm_dims: int) -> None:
    _check_grad_like(op, name, parameter, "x", x)
    check_same_shape(
        op,
        name,
        parameter,
        tuple(x.shape[x.dim() - norm_dims :]),
        f"the shape of the last {norm_dims} dimension(s) of x {shape_of(x)}",
    )


def _norm(
    op: str,
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    norm_dims: int,
    fp32_out: bool,
    need_statistics: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """(y, sum, a statistic)."""
    check_floating(op, "x", x)
    rows = _check_norm_dims(op, x, norm_dims)
    if residual is not None:
        check_like(op, "residual", residual, "x", x)
        check_same_shape(op, "residual", residual, tuple(x.shape), f"shape {shape_of(x)} like x")
    if weight is not None:
        _check_parameter(op, "weight", weight, x, norm_dims)
    if bias is not None:
        _check_parameter(op, "bias", bias, x, norm_dims)
    if weight is not None and bias is not None:
        check_like(op, "bias", bias, "weight", weight)
    _check_fp32_out(op, "x", x, fp32_out)
    return (
        x.new_empty(x.shape, dtype=torch.float32 if fp32_out else x.dtype),
        x.new_empty((0,) if residual is None else x.shape),
        x.new_empty((rows if need_statistics else 0,), dtype=_compute_dtype(x)),
    )


@fake("layer_norm")
def _layer_norm(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    norm_dims: int,
    eps: float,
    fp32_out: bool,
    need_statistics: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    op = "layer_norm"
    y, total, rstd = _norm(op, x, residual, weight, bias, norm_dims, fp32_out, need_statistics)
    return y, total, torch.empty_like(rstd), rstd


@fake("rms_norm")
def _rms_norm(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    norm_dims: int,
    eps: float,
    fp32_out: bool,
    need_statistics: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    return _norm("rms_norm", x, residual, weight, None, norm_dims, fp32_out, need_statistics)


def _norm_backward(
    op: str,
    dy: Tensor,
    dresidual: Tensor | None,
    x: Tensor,
    weight: Tensor | None,
    statistics: dict[str, Tensor],
    norm_dims: int,
    needs: tuple[bool, bool, bool],
) -> tuple[Tensor, Tensor, Tensor]:
    check_floating(op, "dy", dy)
    check_floating(op, "x", x)
    _check_grad_like(op, "dy", dy, "x", x)
    check_same_shape(op, "dy", dy, tuple(x.shape), f"shape {shape_of(x)} like x")
    rows = _check_norm_dims(op, x, norm_dims)
    if dresidual is not None:
        check_like(op, "dresidual", dresidual, "x", x)
        check_same_shape(op, "dresidual", dresidual, tuple(x.shape), f"shape {shape_of(x)} like x")
    if weight is not None:
        _check_parameter(op, "weight", weight, x, norm_dims)
    for name, statistic in statistics.items():
        _check_statistic(op, name, statistic, _compute_dtype(x), rows)
    normalised = x.shape[x.dim() - norm_dims :]
    dtype = x.dtype if weight is None else weight.dtype
    return (
        x.new_empty(x.shape if needs[0] else (0,)),
        x.new_empty(normalised if needs[1] else (0,), dtype=dtype),
        x.new_empty(normalised if needs[2] else (0,), dtype=dtype),
    )


@fake("layer_norm_backward")
def _layer_norm_backward(
    dy: Tensor,
    dresidual: Tensor | None,
    x: Tensor,
    weight: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    norm_dims: int,
    need_dx: bool,
    need_dweight: bool,
    need_dbias: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    statistics = {"mean": mean, "rstd": rstd}
    needs = (need_dx, need_dweight, need_dbias)
    op = "layer_norm_backward"
    return _norm_backward(op, dy, dresidual, x, weight, statistics, norm_dims, needs)


@fake("rms_norm_backward")
def _rms_norm_backward(
    dy: Tensor,
    dresidual: Tensor | None,
    x: Tensor,
    weight: Tensor | None,
    rstd: Tensor,
    norm_dims: int,
    need_dx: bool,
    need_dweight: bool,
) -> tuple[Tensor, Tensor]:
    needs = (need_dx, need_dweight, False)
    op = "rms_norm_backward"
    grads = _norm_backward(op, dy, dresidual, x, weight, {"rstd": rstd}, norm_dims, needs)
    return grads[:2]
