"""conv_bn_act: convolution, batch norm, residual and activation."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import _fakes  # noqa: F401  (registers the fakes)
from .._autograd.autocast import cast, cast_weight
from .._autograd.batch_norm import BatchNormOptions, batch_norm
from .._autograd.conv import Geometry, depthwise, first, image, product, product_with_grad
from .._core.calls import public
from . import conv_graph
from .batch_norm import (
    channels_behind,
    channels_second,
    options_of,
    sees_torch,
    torch_batch_norm_act,
)
from .conv_problem import (
    CHANNELS_LAST,
    CUDNN,
    DEPTHWISE,
    FIRST,
    GEMM,
    GRAPH,
    HALVES,
    IMAGE,
    LONG_FOLD,
    PASS,
    POINTWISE,
    ConvProblem,
    check_alike,
    check_residual,
    check_statistics,
    check_values,
    check_vectors,
    conv_problem,
    forms_moments,
    has_few_outputs,
    inference_path,
    is_pointwise,
    pays_inside,
    uses_depthwise,
    uses_first,
    uses_image,
    uses_product,
    without_graph,
)
from .linear import _autocast_dtype

__all__ = ["conv_bn_act"]

_any_autocast = torch._C._is_any_autocast_enabled
_CONV: dict[int, Any] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_ops = torch.ops.fusedops


# Stride, padding, dilation and groups, as torch takes them.
Window = tuple[int | Sequence[int], int | str | Sequence[int], int | Sequence[int], int]


class Norm(NamedTuple):
    """The tensors of a batch norm, (O,) each."""

    mean: Tensor | None
    var: Tensor | None
    weight: Tensor | None
    bias: Tensor | None

    @property
    def is_none(self) -> bool:
        """Whether there is no norm, unless statistics of the batch are asked for."""
        return all(t is None for t in self)


class Fused(NamedTuple):
    """A convolution with a norm of constant statistics, for one kernel where there is one."""

    x: Tensor
    weight: Tensor
    bias: Tensor | None
    norm: Norm
    residual: Tensor | None
    problem: ConvProblem
    code: int  # of the activation
    eps: float

    @property
    def is_product(self) -> bool:
        """Whether our product has all of it."""
        return self.residual is None and is_pointwise(self.weight.shape, self.problem)

    def graph(self, weight: Tensor, behind: conv_graph.Behind) -> Tensor | None:
        """y (N, O, ...) by one of cuDNN's graphs, None where there is none."""
        return conv_graph.convolve_by_graph(
            self.x, weight, behind, self.residual, self.problem, self.code
        )

    def folded(self) -> tuple[Tensor, Tensor]:
        """(weight, bias) of the convolution that includes the norm, in `channels_last` memory.

        NOTE: one small kernel in each call. Fused optimisers, torch's own batch norm and replays of
        CUDA graphs change tensors without a trace, so that a copy which is kept would get old.
        """
        last = CHANNELS_LAST[self.x.dim()]
        rows = self.weight.contiguous(memory_format=last).movedim(1, -1)
        matrix, shift = _ops.batch_norm_fold.default(
            rows.reshape(rows.shape[0], -1), self.bias, *self.norm, self.eps
        )
        return matrix.view(rows.shape).movedim(-1, 1), shift


def _convolve(x: Tensor, weight: Tensor, bias: Tensor | None, problem: ConvProblem) -> Tensor:
    """The convolution, by torch."""
    if problem.is_uneven:
        x = F.pad(x, [side for extra in reversed(problem.extra) for side in (0, extra)])
    y: Tensor = _CONV[problem.spatial](
        x, weight, bias, problem.stride, problem.padding, problem.dilation, problem.groups
    )
    return y


def _geometry(problem: ConvProblem) -> Geometry:
    """Strides and padding as the depthwise ops take them."""
    (stride_h, stride_w), (pad_h, pad_w) = problem.stride, problem.padding
    return stride_h, stride_w, pad_h, pad_w


# NOTE: for half precision, to which no setting of torch's matters.
_known_path = functools.lru_cache(maxsize=4096)(inference_path)


def _by_own_kernel(call: Fused, path: str) -> Tensor:
    """y (N, ..., O) from a kernel that has the norm behind its sums."""
    x, behind = channels_behind(call.x), (call.bias, *call.norm)
    added = None if call.residual is None else channels_behind(call.residual)
    y: Tensor
    if path == POINTWISE:
        weight = call.weight.flatten(1)
        y = _ops.pointwise_conv.default(x, weight, *behind, added, call.eps, call.code)
        return y
    if path == IMAGE:
        weight = channels_behind(call.weight)
        y = _ops.image_conv.default(x, weight, *behind, call.eps, call.code)
        return y
    last = (*_geometry(call.problem), call.eps, call.code)
    if path == FIRST:
        y = _ops.first_conv.default(x, channels_behind(call.weight), *behind, *last)
    else:
        y = _ops.depthwise_conv.default(x, call.weight.squeeze(1), *behind, added, *last)
    return y


def _infer(call: Fused) -> Tensor | None:
    """y (N, ..., O) from one kernel, None where no kernel has all of it."""
    x, weight, problem, with_residual = call.x, call.weight, call.problem, call.residual is not None
    find = _known_path if x.dtype in HALVES else inference_path
    path, _ = find(x.device.type, x.dtype, x.shape, weight.shape, problem, call.code, with_residual)
    if path == POINTWISE and call.norm.is_none and call.is_product:
        path = GEMM
    if path == GRAPH:
        y = _by_graph(call)
        if y is not None:
            return channels_behind(y)
        without = without_graph(x.shape[1], problem, call.code, with_residual)[0]
        path = GEMM if call.is_product else without
    if path == PASS or (path == CUDNN and not torch.backends.cudnn.enabled):
        return None
    if path in (POINTWISE, DEPTHWISE, FIRST, IMAGE):
        return _by_own_kernel(call, path)
    if path == GEMM:
        matrix, shift = weight.flatten(1), call.bias
        if not call.norm.is_none:
            matrix, shift = _ops.batch_norm_fold.default(matrix, shift, *call.norm, call.eps)
        allow_tf32 = x.dtype is torch.float32
        rows: Tensor = _ops.linear.default(channels_behind(x), matrix, shift, call.code, allow_tf32)
        return rows
    folded, shift = call.folded()
    geometry = (problem.stride, problem.padding, problem.dilation, problem.groups)
    y = torch.cudnn_convolution_add_relu(x, folded, call.residual, 1.0, shift, *geometry)
    return channels_behind(y)


def _by_graph(call: Fused) -> Tensor | None:
    """y (N, O, ...) from a graph of cuDNN: of those that it has, the one with the least before it.

    NOTE: all of the norm inside where that pays, else, for large weights too, with the scale formed
    by one kernel over O channels, where float32 keeps its digits, else folded into the weight.
    None: cuDNN has neither, or what is left is a product, which has our epilogue.
    """
    weight, norm, gamma, var = call.weight, call.norm, call.norm.weight, call.norm.var
    inside = norm.is_none or pays_inside(weight.shape, call.problem, call.residual is not None)
    if inside or weight.numel() >= LONG_FOLD:
        matrix = weight.movedim(1, -1).reshape(weight.shape[0], -1)
        filters = matrix.view(weight.shape[0], *weight.shape[2:], -1).movedim(-1, 1)
        behind = conv_graph.Behind(call.bias, norm.mean, var, norm.weight, norm.bias, call.eps)
        y = call.graph(filters, behind) if inside else None
        if (
            y is None and gamma is not None and var is not None
            and gamma.dtype is var.dtype is torch.float32
        ):  # fmt: skip
            scale, _ = _ops.batch_norm_fold.default(
                gamma[:, None], None, None, var, None, None, call.eps
            )
            y = call.graph(filters, behind._replace(var=None, scale=scale.flatten(), eps=0.0))
        if y is not None:
            return y
    if call.is_product and not has_few_outputs(weight.shape):
        return None
    folded, shift = call.folded()
    return call.graph(folded, conv_graph.Behind(shift))


def _without_bias(norm: Norm, bias: Tensor) -> Norm:
    """The norm of a convolution that is left without its bias."""
    assert norm.mean is not None
    wide = torch.promote_types(torch.float32, bias.dtype)
    return norm._replace(mean=norm.mean.to(wide) - bias.to(wide))


def _run(
    given: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    norm: Norm,
    residual: Tensor | None,
    problem: ConvProblem,
    options: BatchNormOptions,
    hands_on: bool = False,
) -> tuple[Tensor, Tensor]:
    """(y (N, O, ...), x) in two or three spatial dimensions, y in `channels_last` memory."""
    x, last = given, CHANNELS_LAST[given.dim()]
    if x.is_cuda:
        x, weight = x.contiguous(memory_format=last), weight.contiguous(memory_format=last)
    wants = torch.is_grad_enabled() and any(
        t is not None and t.requires_grad for t in (x, weight, bias, *norm[2:], residual)
    )
    if not wants and not options.training and 0 not in problem.out_shape:
        y = _infer(Fused(x, weight, bias, norm, residual, problem, options.code, options.eps))
        if y is not None:
            return channels_second(y), given
    shift = moments = None
    own_depthwise = uses_depthwise(x.device.type, x.dtype, weight.shape, problem)
    if options.training:
        bias, shift = None, bias
    elif norm.is_none and own_depthwise and residual is None and options.code == 0:
        z = depthwise(channels_behind(x), weight.squeeze(1), bias, _geometry(problem))
        return channels_second(z), given
    elif norm.is_none:
        if x.is_cuda:  # torch adds a bias in a pass of its own there
            bias, norm = None, norm._replace(bias=bias)
    elif bias is not None and not wants:
        norm, bias = _without_bias(norm, bias), None
    if uses_product(x.device.type, x.dtype, weight.shape, problem):
        rows, matrix = channels_behind(x), weight.flatten(1)
        forms = options.training and forms_moments(problem.out_shape, matrix.shape)
        if wants:
            hands_on = hands_on and x is given and x.requires_grad
            z, same, moments = product_with_grad(rows, matrix, bias, hands_on, forms)
            given = given if same is None else channels_second(same)
        else:
            z, moments = product(rows, matrix, bias, forms)
    elif own_depthwise:
        z = depthwise(channels_behind(x), weight.squeeze(1), bias, _geometry(problem))
    elif uses_first(x.device.type, x.dtype, weight.shape, problem):
        z = first(channels_behind(x), channels_behind(weight), bias, _geometry(problem))
    elif uses_image(x.device.type, x.dtype, weight.shape, problem):
        z = image(channels_behind(x), channels_behind(weight), bias)
    else:
        z = channels_behind(_convolve(x, weight, bias, problem))
    added = None if residual is None else channels_behind(residual)
    y = batch_norm(z, added, norm.weight, norm.bias, norm.mean, norm.var, shift, options, moments)
    return channels_second(y), given


def _in_two_dimensions(problem: ConvProblem) -> ConvProblem:
    return problem._replace(
        stride=(1, *problem.stride),
        padding=(0, *problem.padding),
        dilation=(1, *problem.dilation),
        extra=(0, *problem.extra),
        out_shape=(*problem.out_shape[:2], 1, problem.out_shape[2]),
    )


def _keeps_last(*tensors: Tensor) -> bool:
    """Whether torch's convolution of them gives `channels_last` memory."""
    return any(
        t.dim() in CHANNELS_LAST
        and t.is_contiguous(memory_format=CHANNELS_LAST[t.dim()])
        and not t.is_contiguous()
        for t in tensors
    )


@public
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
    group: Any = None,
) -> Tensor:
    """Compute ``act(batch_norm(conv(x, weight, bias)) + residual)``.

    The convolution is ``torch.nn.functional.conv1d``, ``conv2d`` or ``conv3d`` by the dimensions of
    the weight, the norm ``batch_norm``; where no tensor of a norm is given and training is False,
    there is none. Without a gradient and in evaluation a GPU runs one kernel for all of it where
    there is one (`fusedops.explain_conv_bn_act` says which), with the norm folded into weight and
    bias: weight times scale, formed in float32 and rounded once. Otherwise the norm, the residual
    and the activation are `batch_norm_act`: one pass behind the statistics, two in backward.

    Args:
        x: (N, C, ...) with one to three spatial dimensions; float16, bfloat16, float32 or float64.
        weight: (O, C / groups, ...) of x's dtype.
        bias: (O,) of x's dtype, or None. In training it moves the running mean alone, and its
            gradient is exactly 0.
        running_mean, running_var: (O,) of x's dtype or float32, both or neither. In training they
            are moved in place towards the batch's mean and unbiased variance.
        bn_weight, bn_bias: (O,) of x's dtype or float32, or None.
        activation: "identity", or as in `linear`.
        residual: Like the result, or None.
        stride, padding, dilation, groups: As in torch; padding also "valid" and "same".
        training: Whether the statistics are those of this batch.
        momentum: What part of the running statistics a batch replaces.
        eps: Added to the variance.
        group: A process group whose ranks share the statistics (as torch.nn.SyncBatchNorm does), in
            training; None: this rank's alone.

    Returns:
        A new tensor, in ``channels_last`` memory where x or the weight is, else contiguous. On a
        GPU the kernels run in ``channels_last``: x in another format costs a copy, and one of the
        result back.

    Raises:
        ValueError: The activation is unknown, eps is not positive, or training has one value per
            channel.
        TypeError: An argument has another type.
        RuntimeError: Shapes, dtypes or devices do not fit; the message names op, argument, what was
            expected and what came.

    float32 on a GPU follows torch's precision setting for convolutions. Under autocast x, weight,
    bias and residual are cast as in `linear`. Gradients of any order are supported, and by torch's
    own functions transforms, forward-mode AD and torch.compile. Two runs agree bit by bit where
    torch's convolution does (``torch.backends.cudnn.deterministic``).

    Example:
        >>> y = fusedops.conv_bn_act(x, weight, None, mean, var, gamma, beta, activation="relu")
    """
    options = options_of("conv_bn_act", activation, training, momentum, eps, group)
    norm = Norm(running_mean, running_var, bn_weight, bn_bias)
    window = (stride, padding, dilation, groups)
    return conv_bn_act_and_input(x, weight, bias, norm, residual, window, options)[0]


def conv_bn_act_and_input(
    given: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    norm: Norm,
    residual: Tensor | None,
    window: Window,
    options: BatchNormOptions,
    hands_on: bool = False,
) -> tuple[Tensor, Tensor]:
    """The result of `conv_bn_act`, and x for what else reads it.

    With `hands_on` that x may be another tensor with the same memory, whose gradient the backward
    of the convolution adds to its own.
    """
    op, x = "conv_bn_act", given
    if _any_autocast() and (compute := _autocast_dtype(x)) is not None:
        x, weight = cast(x, compute), cast_weight(weight, compute)
        bias = None if bias is None else cast_weight(bias, compute)
        residual = None if residual is None else cast(residual, compute)
    problem = conv_problem(op, x, weight, *window)
    _check(op, x, weight, bias, norm, residual, problem, options)
    if sees_torch(x, weight, bias, *norm, residual) and options.group is None:
        z = _convolve(x, weight, bias, problem)
        return torch_batch_norm_act(z, *norm, residual, options), given
    keeps_last = _keeps_last(x, weight)
    if problem.spatial == 1:
        x, weight = x.unsqueeze(2), weight.unsqueeze(2)
        residual = None if residual is None else residual.unsqueeze(2)
        flat = _in_two_dimensions(problem)
        y, _ = _run(x, weight, bias, norm, residual, flat, options)
        return y.squeeze(2).contiguous(), given
    y, other = _run(x, weight, bias, norm, residual, problem, options, hands_on)
    return y if keeps_last else y.contiguous(), other if x is given else given


def _check(
    op: str,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    norm: Norm,
    residual: Tensor | None,
    problem: ConvProblem,
    options: BatchNormOptions,
) -> None:
    """Raise what is wrong with the tensors."""
    check_alike(op, x, weight=weight, bias=bias, residual=residual)
    check_residual(op, residual, problem.out_shape)
    check_vectors(
        op, x, weight.shape[0], bias=bias, running_mean=norm.mean, running_var=norm.var,
        bn_weight=norm.weight, bn_bias=norm.bias,
    )  # fmt: skip
    if options.training or not norm.is_none:
        check_statistics(op, norm.mean, norm.var, options.training)
    if options.training and options.group is None:
        check_values(op, problem.out_shape)
