"""Convolutions of (N, H, W, C) on kernels of our own, with their gradients."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import _C  # noqa: F401  (registers torch.ops.fusedops)
from .compose import no_autocast

_ops = torch.ops.fusedops
Geometry = tuple[int, int, int, int]  # strides, then padding, of rows and columns


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
        dbias = dy.flatten(0, -2).sum(0) if need_bias else None
        if torch.is_grad_enabled():
            with no_autocast(dy):
                return (*_compose_backward(dy, x, weight, ctx.geometry, needs), dbias, None)
        if not any(needs):
            return None, None, dbias, None
        dx, dweight = _ops.depthwise_conv_backward.default(dy, x, weight, *ctx.geometry, *needs)
        return dx if needs[0] else None, dweight if needs[1] else None, dbias, None


def _forward(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
    # NOTE: with stride 1 and nothing behind it torch's kernel is faster (H100: 33 us, ours 42 for
    # 480 channels on 14x14); with stride 2, and backward, ours.
    if x.is_cuda and geometry[:2] == (1, 1):
        image, filters = x.movedim(-1, 1), weight.unsqueeze(1)
        z = F.conv2d(image, filters, bias, (1, 1), geometry[2:], 1, weight.shape[0])
        return z.movedim(1, -1)
    behind = (bias, None, None, None, None, None)
    y: Tensor = _ops.depthwise_conv.default(x, weight, *behind, *geometry, 0.0, 0)
    return y


def _compose_backward(
    dy: Tensor, x: Tensor, weight: Tensor, geometry: Geometry, needs: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    """The gradients in torch functions that are differentiable to any order."""
    stride, padding = geometry[:2], geometry[2:]
    image, filters = x.movedim(-1, 1), weight.unsqueeze(1)
    z = F.conv2d(image, filters, None, stride, padding, 1, weight.shape[0]).movedim(1, -1)
    inputs = [t for t, need in zip((x, weight), needs, strict=True) if need]
    found = iter(torch.autograd.grad(z, inputs, dy, create_graph=True) if inputs else ())
    return tuple(next(found) if need else None for need in needs)


def depthwise(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
    """conv(x, weight) + bias (N, H', W', C) of x (N, H, W, C) and weight (C, kh, kw), with a
    gradient where something wants one.
    """
    if torch.is_grad_enabled() and any(
        t is not None and t.requires_grad for t in (x, weight, bias)
    ):
        z: Tensor = DepthwiseFunction.apply(x, weight, bias, geometry)
        return z
    return _forward(x, weight, bias, geometry)


class FirstFunction(torch.autograd.Function):
    """conv(x, weight) + bias of images of few channels; the gradient of x is torch's."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.geometry = geometry
        return _first_forward(x, weight, bias, geometry)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        need_x, need_weight, need_bias = ctx.needs_input_grad[:3]
        dbias = dy.flatten(0, -2).sum(0) if need_bias else None
        dweight = None
        if need_weight and not torch.is_grad_enabled():
            dweight = _ops.first_conv_weight.default(dy, x, weight, *ctx.geometry)
            need_weight = False
        with no_autocast(dy):
            dx, rest = _torch_backward(dy, x, weight, ctx.geometry, (need_x, need_weight))
        return dx, dweight if rest is None else rest, dbias, None


def _torch_backward(
    dy: Tensor, x: Tensor, weight: Tensor, geometry: Geometry, needs: tuple[bool, bool]
) -> tuple[Tensor | None, Tensor | None]:
    """torch's gradients of x and weight, differentiable to any order."""
    if not any(needs):
        return None, None
    stride, padding = geometry[:2], geometry[2:]
    images = [t.movedim(-1, 1) for t in (dy, x, weight)]
    dx, dweight, _ = torch.ops.aten.convolution_backward(
        *images, None, stride, padding, (1, 1), False, (0, 0), 1, (*needs, False)
    )
    found = [None if t is None else t.movedim(1, -1) for t in (dx, dweight)]
    return found[0], found[1]


def _first_forward(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
    behind = (bias, None, None, None, None)
    y: Tensor = _ops.first_conv.default(x, weight, *behind, *geometry, 0.0, 0)
    return y


def first(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
    """As `depthwise`, for weight (O, kh, kw, C)."""
    if torch.is_grad_enabled() and any(
        t is not None and t.requires_grad for t in (x, weight, bias)
    ):
        z: Tensor = FirstFunction.apply(x, weight, bias, geometry)
        return z
    return _first_forward(x, weight, bias, geometry)
