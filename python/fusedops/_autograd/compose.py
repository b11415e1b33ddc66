"""The fused ops composed of torch functions: for derivatives of higher order, and for torch.func
transforms and forward-mode AD, to which our ops are opaque.
"""

from __future__ import annotations

import contextlib
import functools
import math
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .._core.activation import (
    ACTIVATIONS,
    LEAKY_RELU_SLOPE,
    QUICK_GELU_SCALE,
    SAVES_OUTPUT,
    SAVES_PREACT,
    SOFTPLUS_THRESHOLD,
)

if TYPE_CHECKING:
    from collections.abc import Callable


def activate(z: Tensor, code: int) -> Tensor:
    """act(z) by torch."""
    match ACTIVATIONS[code]:
        case "none":
            return z
        case "relu":
            return torch.relu(z)
        case "gelu":
            return F.gelu(z)
        case "gelu_tanh":
            return F.gelu(z, approximate="tanh")
        case "silu":
            return F.silu(z)
        case "sigmoid":
            return torch.sigmoid(z)
        case "tanh":
            return torch.tanh(z)
        case "relu2":  # square() is fp32 under autocast
            y = torch.relu(z)
            return y * y
        case "quick_gelu":
            return z * torch.sigmoid(QUICK_GELU_SCALE * z)
        case "leaky_relu":
            return F.leaky_relu(z)
        case "hardswish":
            return F.hardswish(z)
        case "mish":
            return F.mish(z)
        case "softplus":
            return F.softplus(z)
        case "elu":
            return F.elu(z)
        case "relu6":
            return F.relu6(z)
        case _:
            raise AssertionError(code)


def value_and_slope(function: Callable[[Tensor], Tensor], z: Tensor) -> tuple[Tensor, Tensor]:
    """f(z) and f'(z) of a pointwise function."""
    with torch.enable_grad():
        leaf = z.clone().requires_grad_()
        y = function(leaf)
        (slope,) = torch.autograd.grad(y.sum(), leaf)
    return y.detach(), slope


def activation_table(z: Tensor) -> tuple[tuple[Tensor, Tensor], ...]:
    """act(z) and act'(z) of every activation, by code.

    NOTE: at NaN torch's vectorised CPU kernels differ from its others (elu, relu6): the derivative
    there is that of act_grad, which is as torch's decompositions have it.
    """
    return tuple(_table_entry(z, code) for code in range(len(ACTIVATIONS)))


def _table_entry(z: Tensor, code: int) -> tuple[Tensor, Tensor]:
    y, slope = value_and_slope(functools.partial(activate, code=code), z)
    saved = y if SAVES_OUTPUT[code] else z if SAVES_PREACT[code] else None
    return y, torch.where(z.isnan(), act_grad(torch.ones_like(z), saved, code), slope)


def no_autocast(tensor: Tensor) -> Any:
    """Autocast off on the tensor's device."""
    device_type = tensor.device.type
    if device_type == "meta":  # has no autocast
        return contextlib.nullcontext()
    return torch.autocast(device_type, enabled=False)


def act_grad(dy: Tensor, saved: Tensor | None, code: int) -> Tensor:
    """dy * act'(.) in torch functions that are differentiable in dy and in saved."""
    if saved is None:
        return dy
    match ACTIVATIONS[code]:
        case "relu":
            return torch.ops.aten.threshold_backward(dy, saved, 0)
        case "sigmoid":
            return torch.ops.aten.sigmoid_backward(dy, saved)
        case "tanh":
            return torch.ops.aten.tanh_backward(dy, saved)
        case "gelu":
            return torch.ops.aten.gelu_backward(dy, saved)
        case "gelu_tanh":
            return torch.ops.aten.gelu_backward(dy, saved, approximate="tanh")
        case "silu":
            s = torch.sigmoid(saved)
            return dy * s * (1 + saved * (1 - s))
        case "relu2":
            return 2 * dy * torch.relu(saved)
        case _:
            return _act_grad_rare(dy, saved, code)


def _act_grad_rare(dy: Tensor, saved: Tensor, code: int) -> Tensor:
    match ACTIVATIONS[code]:
        case "quick_gelu":
            s = torch.sigmoid(QUICK_GELU_SCALE * saved)
            return dy * s * (1 + QUICK_GELU_SCALE * saved * (1 - s))
        case "leaky_relu":
            return torch.where(saved > 0, dy, LEAKY_RELU_SLOPE * dy)
        case "hardswish":
            inside = torch.where(saved < 3, dy * (saved / 3 + 0.5), dy)
            return torch.where(saved <= -3, 0, inside)
        case "mish":
            t = torch.tanh(F.softplus(saved))
            return dy * (t + saved * torch.sigmoid(saved) * (1 - t * t))
        case "softplus":
            return torch.where(saved > SOFTPLUS_THRESHOLD, dy, dy * torch.sigmoid(saved))
        case "elu":
            return torch.where(saved <= 0, dy * torch.exp(saved.clamp(max=0)), dy)
        case "relu6":
            return torch.where((saved <= 0) | (saved >= 6), 0, dy)
        case _:
            raise AssertionError(code)


def compose_dz(dy: Tensor | None, dz: Tensor | None, saved: Tensor | None, code: int) -> Tensor:
    """The whole gradient of z: through y, and what arrives at z itself in a second backward."""
    if dy is None:
        assert dz is not None
        return dz
    through_y = act_grad(dy, saved, code)
    return through_y if dz is None else through_y + dz


def compose_linear_backward(
    dz: Tensor, x: Tensor | None, weight: Tensor | None, need_x: bool, need_w: bool, need_b: bool
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """(dx, dweight, dbias) from dz (..., N) in differentiable torch functions."""
    dx = dw = db = None
    if need_x:
        assert weight is not None
        dx = dz @ weight.to(dz.dtype)
    if need_w:
        assert x is not None
        rows = math.prod(x.shape[:-1])
        dw = dz.reshape(rows, dz.shape[-1]).t() @ x.reshape(rows, x.shape[-1])
    if need_b:
        db = dz.sum(tuple(range(dz.ndim - 1))) if dz.ndim > 1 else dz
    return dx, dw, db
