"""Convolutions of (N, H, W, C) on kernels of our own, with their gradients."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import _C  # noqa: F401  (registers torch.ops.fusedops)
from .._core.reduction import CODE
from .compose import compose_linear_backward, no_autocast
from .gemm import placeholder

_ops = torch.ops.fusedops
_SUM = CODE["sum"]
Geometry = tuple[int, int, int, int]  # strides, then padding, of rows and columns
LARGE_DEPTHWISE = 7  # a depthwise kernel for which torch's gradient of the weight is the faster one
MOST_FIRST_OUTPUTS = 64  # for which the gradient of an image has a kernel of its own
IMAGE_CHANNELS = (64, 128)  # that image_conv is for: of x, and of dy where dx is wanted


class DepthwiseFunction(torch.autograd.Function):
    """conv(x, weight) + bias, without what is behind it."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.geometry = geometry
        return _forward(x, weight, bias, geometry)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        needs, need_bias = ctx.needs_input_grad[:2], ctx.needs_input_grad[2]
        differentiable = torch.is_grad_enabled()
        dbias = None
        if need_bias:
            rows = dy.flatten(0, -2)
            dbias = (
                rows.sum(0) if differentiable else _ops.reduce.default(rows, _SUM, 1, False, False)
            )
        large = dy.is_cuda and weight.shape[1] == LARGE_DEPTHWISE
        own = (needs[0] and not differentiable, needs[1] and not (differentiable or large))
        theirs = (needs[0] and not own[0], needs[1] and not own[1])
        filters = weight.unsqueeze(1)
        dx, dfilters = _torch_backward(dy, x, filters, ctx.geometry, len(weight), theirs)
        dweight = None if dfilters is None else dfilters.squeeze(1)
        if any(own):
            found = _ops.depthwise_conv_backward.default(dy, x, weight, *ctx.geometry, *own)
            dx, dweight = found[0] if own[0] else dx, found[1] if own[1] else dweight
        return dx, dweight, dbias, None


def _forward(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
    # NOTE: without eights of channels our kernels read memory where tiles lie in shared memory
    # otherwise; with nothing behind them torch's is faster (H100: 33 us, ours 42 for 480 channels).
    if x.is_cuda and geometry[:2] == (1, 1) and weight.shape[0] % 8:
        image, filters = x.movedim(-1, 1), weight.unsqueeze(1)
        z = F.conv2d(image, filters, bias, (1, 1), geometry[2:], 1, weight.shape[0])
        return z.movedim(1, -1)
    behind = (bias, None, None, None, None, None)
    y: Tensor = _ops.depthwise_conv.default(x, weight, *behind, *geometry, 0.0, 0)
    return y


class FirstFunction(torch.autograd.Function):
    """conv(x, weight) + bias of images of few channels."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.geometry = geometry
        behind = (bias, None, None, None, None)
        y: Tensor = _ops.first_conv.default(x, weight, *behind, *geometry, 0.0, 0)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        need_x, need_weight, need_bias = ctx.needs_input_grad[:3]
        dbias = dy.flatten(0, -2).sum(0) if need_bias else None
        own_dx = dweight = None
        if not torch.is_grad_enabled():
            if need_x and weight.shape[0] <= MOST_FIRST_OUTPUTS:
                own_dx = _ops.first_conv_image.default(dy, x, weight, *ctx.geometry)
                need_x = False
            if need_weight:
                dweight = _ops.first_conv_weight.default(dy, x, weight, *ctx.geometry)
                need_weight = False
        filters, needs = weight.movedim(-1, 1), (need_x, need_weight)
        dx, dfilters = _torch_backward(dy, x, filters, ctx.geometry, 1, needs)
        dx = own_dx if dx is None else dx
        return dx, dweight if dfilters is None else dfilters.movedim(1, -1), dbias, None


class ImageFunction(torch.autograd.Function):
    """conv(x, weight) + bias of 3x3 windows with stride 1 and a border of 1."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        y: Tensor = _ops.image_conv.default(x, weight, bias, None, None, None, None, 0.0, 0)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        need_x, need_weight, need_bias = ctx.needs_input_grad
        dbias = dy.flatten(0, -2).sum(0) if need_bias else None
        own_dx = None
        if need_x and not torch.is_grad_enabled() and weight.shape[0] in IMAGE_CHANNELS:
            own_dx, need_x = _ops.image_conv_backward.default(dy, x, weight), False
        filters, needs = weight.movedim(-1, 1), (need_x, need_weight)
        dx, dfilters = _torch_backward(dy, x, filters, (1, 1, 1, 1), 1, needs)
        dx = own_dx if dx is None else dx
        return dx, None if dfilters is None else dfilters.movedim(1, -1), dbias


def product(
    x: Tensor, weight: Tensor, bias: Tensor | None, moments: bool
) -> tuple[Tensor, Tensor | None]:
    """x @ weight.T + bias, and the moments of the result where they are asked for."""
    if moments:
        found: tuple[Tensor, Tensor] = _ops.linear_moments.default(x, weight)
        return found
    return _ops.linear.default(x, weight, bias, 0, False), None


class ProductFunction(torch.autograd.Function):
    """(x, weight, bias, hands_on, moments) -> (z, x, the moments of z) of pixels x (..., C), with
    z = x @ weight.T + bias; None in place of what is not asked for.

    What else reads pixels reads those that are handed on. Its gradient then arrives here, and the
    product that gives x's own adds it before it rounds: no pass sums the two. With moments there is
    no bias.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, hands_on: bool, moments: bool
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        ctx.set_materialize_grads(False)  # either output may go without a gradient
        need_x, need_weight = ctx.needs_input_grad[:2]
        ctx.save_for_backward(x if need_weight else None, weight if need_x else None)
        ctx.shapes = x.shape, weight.shape
        z, found = product(x, weight, bias, moments)
        if found is not None:
            ctx.mark_non_differentiable(found)
        return z, x if hands_on else None, found

    @staticmethod
    def backward(ctx: Any, dz: Tensor | None, added: Tensor | None, _: None) -> Any:
        if dz is None:
            return added, None, None, None, None
        x, weight = ctx.saved_tensors
        need_x, need_weight, need_bias = ctx.needs_input_grad[:3]
        if torch.is_grad_enabled():
            with no_autocast(dz):
                dx, *rest = compose_linear_backward(dz, x, weight, need_x, need_weight, need_bias)
            return dx if dx is None or added is None else dx + added, *rest, None, None
        x, weight = (
            placeholder(dz, shape) if t is None else t
            for t, shape in zip((x, weight), ctx.shapes, strict=True)
        )
        own_dx = need_x and added is None
        dx, dweight, dbias = _ops.linear_backward.default(
            dz, x, weight, None, 0, own_dx, need_weight, need_bias, False, False
        )
        if need_x and added is not None:
            dx = _ops.linear_input_backward.default(dz, weight, added, False)
        return (
            dx if need_x else None,
            dweight if need_weight else None,
            dbias if need_bias else None,
            None,
            None,
        )


def _torch_backward(
    dy: Tensor,
    x: Tensor,
    filters: Tensor,
    geometry: Geometry,
    groups: int,
    needs: tuple[bool, bool],
) -> tuple[Tensor | None, Tensor | None]:
    """torch's gradients of x (N, H, W, C) and of filters (O, C / groups, kh, kw), differentiable to
    any order.
    """
    if not any(needs):
        return None, None
    images = dy.movedim(-1, 1), x.movedim(-1, 1), filters
    with no_autocast(dy):
        dx, dfilters, _ = torch.ops.aten.convolution_backward(
            *images, None, geometry[:2], geometry[2:], (1, 1), False, (0, 0), groups,
            (*needs, False),
        )  # fmt: skip
    return None if dx is None else dx.movedim(1, -1), dfilters


# conv(x, weight) + bias (N, H', W', O) of x (N, H, W, C), weight and bias, with a gradient where
# one of them wants one; weight is (C, kh, kw) of a depthwise layer, (O, kh, kw, C) of others.
depthwise, first, image = DepthwiseFunction.apply, FirstFunction.apply, ImageFunction.apply
product_with_grad = ProductFunction.apply  # with weight (O, C); x is handed on if it wants one
