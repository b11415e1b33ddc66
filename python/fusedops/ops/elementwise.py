"""Elementwise fusions: one pass over memory each, with in-place (`_`) and `out=` forms.

Every function takes any strides, alignment and size. Without `out`, a result lies in memory as
``torch.empty_like`` of the first operand of its shape, so that permuted operands stay permuted; but
that of `bias_dropout_residual`, whose mask counts positions, is contiguous. Forms that write into a
tensor have no backward and refuse tensors that require grad.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import _fakes  # noqa: F401  (registers the fakes)
from .._autograd.compose import activate
from .._autograd.elementwise import (
    AddFunction,
    DropoutFunction,
    FmaFunction,
    ReluFunction,
    ScaleBiasActFunction,
    SquareFunction,
    affine,
)
from .._autograd.shared import distinct, is_subclass, needs_grad, sees_torch_functions_only
from .._core.activation import activation_code
from .._core.calls import public
from .._core.checks import refuse_grad
from .._core.dtensor import is_dtensor
from ..reference import bias_dropout_residual as _torch_dropout

__all__ = [
    "add",
    "add_",
    "bias_act",
    "bias_act_",
    "bias_dropout_residual",
    "bias_dropout_residual_",
    "fma",
    "fma_",
    "relu",
    "relu_",
    "scale_bias_act",
    "scale_bias_act_",
    "square",
    "square_",
]

_ops = torch.ops.fusedops
_is_dynamo_compiling = torch.compiler.is_dynamo_compiling


def _written(op: str, out: Tensor, **inputs: Tensor | None) -> Tensor:
    """Refuse graphs around a write into `out`, and tell autograd that it changes."""
    refuse_grad(op, **{k: v for k, v in inputs.items() if v is not None}, out=out)
    if not _is_dynamo_compiling() and not out.is_inference():
        torch.autograd.graph.increment_version(out)
    return out


@public
def add(x: Tensor, y: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Compute ``x + y``; shapes broadcast.

    Args:
        x, y: Floating (16 to 64 bits) or integer (8 to 64 bits) tensors of one dtype and device,
            any shapes that broadcast. Integers wrap around.
        out: Where to write, of the broadcast shape; it may be x or y, but overlap neither in part.

    Returns:
        `out`, or a new tensor that lies in memory as the first operand of its shape.

    Raises:
        TypeError: An argument is not a tensor.
        RuntimeError: Shapes, dtypes or devices do not fit; `out` overlaps itself or an input in
            part, or something requires grad where `out` is given.
    """
    if out is not None:
        _ops.add_out.default(x, y, _written("add", out, x=x, y=y))
        return out
    if sees_torch_functions_only(x, y):
        return torch.add(x, y)
    if needs_grad(x, y):
        return AddFunction.apply(*distinct(x, y))
    return _ops.add.default(x, y)


@public
def add_(x: Tensor, y: Tensor) -> Tensor:
    """``x += y``: `add` with ``out=x``."""
    return add(x, y, out=x)


@public
def fma(a: Tensor, x: Tensor, b: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Compute ``a * x + b`` with one rounding; shapes broadcast.

    Args:
        a, x, b: As x and y of `add`. fp16 and bf16 compute in fp32, rounded once.
        out: As in `add`.

    Returns:
        `out`, or a new tensor that lies in memory as the first operand of its shape.

    Raises:
        TypeError, RuntimeError: As in `add`.
    """
    if out is not None:
        _ops.fma_out.default(a, x, b, _written("fma", out, a=a, x=x, b=b))
        return out
    if sees_torch_functions_only(a, x, b):
        return a * x + b
    if needs_grad(a, x, b):
        return FmaFunction.apply(*distinct(a, x, b))
    return _ops.fma.default(a, x, b)


@public
def fma_(a: Tensor, x: Tensor, b: Tensor) -> Tensor:
    """``x = a * x + b`` in place: `fma` with ``out=x``."""
    return fma(a, x, b, out=x)


@public
def square(x: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Compute ``x * x``; dtypes, `out` and errors as in `add`."""
    if out is not None:
        _ops.square_out.default(x, _written("square", out, x=x))
        return out
    if sees_torch_functions_only(x):
        return x * x
    if needs_grad(x):
        return SquareFunction.apply(x)
    return _ops.square.default(x)


@public
def square_(x: Tensor) -> Tensor:
    """``x *= x``: `square` with ``out=x``."""
    return square(x, out=x)


@public
def relu(x: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Compute ``max(x, 0)``, NaN for NaN; dtypes, `out` and errors as in `add`."""
    if out is not None:
        _ops.relu_out.default(x, _written("relu", out, x=x))
        return out
    if sees_torch_functions_only(x):
        return torch.relu(x)
    if needs_grad(x):
        return ReluFunction.apply(x)
    return _ops.relu.default(x)


@public
def relu_(x: Tensor) -> Tensor:
    """``x = max(x, 0)`` in place: `relu` with ``out=x``."""
    return relu(x, out=x)


@public
def scale_bias_act(
    x: Tensor,
    scale: Tensor | None = None,
    bias: Tensor | None = None,
    activation: str | None = None,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """Compute ``act(x * scale + bias)`` in one pass, in fp32 (fp64) with one rounding.

    Backward is one pass as well: it recomputes the pre-activation from x and sums the gradients of
    scale and bias, in a fixed order, while it writes dx. Gradients of any order are supported.

    Args:
        x: (..., N); float16, bfloat16, float32 or float64.
        scale, bias: (N,) of x's dtype, or None.
        activation: None or "none", "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh", "relu2",
            "quick_gelu", "leaky_relu", "hardswish", "mish", "softplus", "elu" or "relu6".
        out: (..., N), where to write; it may be x.

    Returns:
        `out`, or a new tensor that lies in memory as x.

    Raises:
        ValueError: The activation is unknown.
        TypeError, RuntimeError: As in `add`.
    """
    return _scale_bias_act("scale_bias_act", x, scale, bias, activation, out)


def _scale_bias_act(
    op: str,
    x: Tensor,
    scale: Tensor | None,
    bias: Tensor | None,
    activation: str | None,
    out: Tensor | None,
) -> Tensor:
    code = activation_code(activation, op)
    if out is not None:
        _written(op, out, x=x, scale=scale, bias=bias)
        _ops.scale_bias_act_out.default(x, scale, bias, code, out)
        return out
    if sees_torch_functions_only(x, scale, bias):
        return activate(affine(x, scale, bias), code)
    if needs_grad(x, scale, bias):
        return ScaleBiasActFunction.apply(*distinct(x, scale, bias), code)
    return _ops.scale_bias_act.default(x, scale, bias, code)


@public
def scale_bias_act_(
    x: Tensor,
    scale: Tensor | None = None,
    bias: Tensor | None = None,
    activation: str | None = None,
) -> Tensor:
    """`scale_bias_act` in place: ``out=x``."""
    return scale_bias_act(x, scale, bias, activation, out=x)


@public
def bias_act(
    x: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """Compute ``act(x + bias)``: `scale_bias_act` without a scale."""
    return _scale_bias_act("bias_act", x, None, bias, activation, out)


@public
def bias_act_(x: Tensor, bias: Tensor | None = None, activation: str | None = None) -> Tensor:
    """`bias_act` in place: ``out=x``."""
    return bias_act(x, bias, activation, out=x)


def _draw_seed(x: Tensor) -> Tensor:
    """A seed from torch's generator of x's device: on the device, so nothing synchronises, and a
    CUDA graph draws a new one at each replay."""
    return torch.randint(-(2**63), 2**63 - 1, (1,), dtype=torch.int64, device=x.device)


@public
def bias_dropout_residual(
    x: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    p: float = 0.5,
    training: bool = True,
    *,
    seed: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Compute ``dropout(x + bias, p) + residual`` in one pass; no mask is stored.

    The mask is a function of the seed and of an element's position (Philox4x32-7, Salmon et al.,
    SC 2011), the same on CPU and GPU; backward computes it again, with the bias gradient in the
    same pass. What is kept is divided by 1 - p.

    Args:
        x: (..., N); float16, bfloat16, float32 or float64.
        bias: (N,) of x's dtype, or None.
        residual: Like x, or None.
        p: Probability of a zero, from 0 to 1.
        training: False: nothing is dropped.
        seed: int64 tensor of shape (1,) on x's device; None draws one from torch's generator.
        out: Like x, where to write; it may be x or residual.

    Returns:
        `out`, or a new contiguous tensor like x.

    Raises:
        TypeError, RuntimeError: As in `add`, and where p or seed is not what it must be.
    """
    op = "bias_dropout_residual"
    p = float(p) if training else 0.0
    if seed is None and p > 0:
        if type(x) is not Tensor and (
            is_dtensor(x) or is_subclass(x)
        ):  # torch draws what fits its shards
            y = F.dropout(x if bias is None else x + bias, p)
            y = y if residual is None else y + residual
            return y if out is None else _written(op, out, x=x, bias=bias).copy_(y)
        seed = _draw_seed(x)
    if out is not None:
        _written(op, out, x=x, bias=bias, residual=residual)
        _ops.bias_dropout_residual_out.default(x, bias, residual, seed, p, out)
        return out
    if sees_torch_functions_only(x, bias, residual):
        return _torch_dropout(x, bias, residual, seed, p)
    if needs_grad(x, bias, residual):
        return DropoutFunction.apply(*distinct(x, bias, residual), seed, p)
    return _ops.bias_dropout_residual.default(x, bias, residual, seed, p)


@public
def bias_dropout_residual_(
    x: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    p: float = 0.5,
    training: bool = True,
    *,
    seed: Tensor | None = None,
) -> Tensor:
    """`bias_dropout_residual` in place: ``out=x``."""
    return bias_dropout_residual(x, bias, residual, p, training, seed=seed, out=x)
