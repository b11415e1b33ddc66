"""Norms that write FP8: layer_norm and rms_norm for an inference, and in front of an FP8 layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from .. import _fakes  # noqa: F401  (registers the fakes)
from .._autograd.shared import distinct, is_subclass, sees_torch_functions_only
from .._core.calls import public
from .._core.checks import check_tensors
from .._core.dtensor import is_dtensor
from .._core.fp8 import BLOCKS, FORMATS, NONE
from .._core.traced import alike
from .functions import apply, numbers, refuse_second_derivatives
from .quantizer import Operand, Quantized, as_format, as_rows

if TYPE_CHECKING:
    from .recipe import Recipe

_fp8_norm = torch.ops.fusedops._fp8_norm.default
_layer_norm_backward = torch.ops.fusedops.layer_norm_backward.default
_rms_norm_backward = torch.ops.fusedops.rms_norm_backward.default
_HALVES = (torch.float16, torch.bfloat16)


class Norm(NamedTuple):
    """A norm over the last dimension, in front of a layer."""

    rms: bool
    weight: Tensor | None
    bias: Tensor | None
    eps: float
    residual: Tensor | None = None


class Fp8NormFunction(torch.autograd.Function):
    """(x, residual, weight, bias, rms, eps, recipe, transposed) -> (y, operands..., sum).

    y stands for the norm's result in autograd: it has its shape and dtype, and no values. Only an
    FP8 layer that is given what follows it may take it.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        residual: Tensor | None,
        weight: Tensor | None,
        bias: Tensor | None,
        rms: bool,
        eps: float,
        recipe: Recipe,
        transposed: bool,
    ) -> Any:
        how = numbers(recipe)
        other = None if residual is None else as_rows(residual)
        q, scale, q_t, scale_t, total, mean, rstd = _fp8_norm(
            as_rows(x), other, weight, bias, rms, eps, FORMATS.index(how.forward), how.rows,
            how.inputs_transposed if transposed else NONE, how.power_of_two,
        )  # fmt: skip
        total = total.view(x.shape) if residual is not None else total
        ctx.save_for_backward(x if residual is None else total, weight, mean, rstd)
        ctx.rms, ctx.added = rms, residual is not None
        ctx.set_materialize_grads(False)
        y = x.new_empty(1).expand(x.shape)
        unused = (
            (q, scale, q_t, scale_t) if residual is not None else (q, scale, q_t, scale_t, total)
        )
        ctx.mark_non_differentiable(*unused)
        return y, q, scale, q_t, scale_t, total

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None, *others: Tensor | None) -> Any:
        refuse_second_derivatives("norm")
        x, weight, mean, rstd = ctx.saved_tensors
        need_x, need_residual, need_w, need_b = ctx.needs_input_grad[:4]
        need_dx = need_x or need_residual
        # NOTE: torch.compile gives a gradient of the sum, empty as it, where there is none.
        dtotal = others[-1] if ctx.added else None
        dx, dw, db = dtotal, None, None
        if dy is not None and ctx.rms:
            dx, dw = _rms_norm_backward(dy, dtotal, x, weight, rstd, 1, need_dx, need_w)
        elif dy is not None:
            dx, dw, db = _layer_norm_backward(
                dy, dtotal, x, weight, mean, rstd, 1, need_dx, need_w, need_b
            )
        return (
            dx if need_x else None,
            dx if need_residual else None,
            dw if need_w else None,
            db if need_b else None,
            *[None] * 4,
        )


def takes_norm(norm: Norm, x: Tensor, dtype: torch.dtype, recipe: Recipe) -> bool:
    """Whether a norm quantises: by blocks, of halves, and what the op takes as it is."""
    if recipe.scaling != "block" or x.dtype is not dtype or dtype not in _HALVES:
        return False
    tensors = (norm.weight, norm.bias, norm.residual)
    if sees_torch_functions_only(x, *tensors) or is_subclass(x, *tensors):
        return False
    if not alike(x, *tensors) or any(is_dtensor(t) for t in (x, *tensors)):
        return False
    residual = norm.residual
    if residual is not None and (residual.shape != x.shape or residual.dtype is not dtype):
        return False
    parameters = [t for t in (norm.weight, norm.bias) if t is not None]
    return len(parameters) == len({id(t) for t in parameters}) and all(
        t.dtype is parameters[0].dtype and t.dtype in (dtype, torch.float32)
        and tuple(t.shape) == (x.shape[-1],)
        for t in parameters
    )  # fmt: skip


def operands_of(
    norm: Norm, x: Tensor, recipe: Recipe, transposed: bool
) -> tuple[Tensor, tuple[Tensor, ...], Tensor]:
    """(y without values, the operands of the layer behind the norm, what was normalised)."""
    tensors = x, norm.residual, norm.weight, norm.bias
    if torch.compiler.is_dynamo_compiling():
        tensors = distinct(*tensors)
    y, *given, total = apply(Fp8NormFunction, *tensors, norm.rms, norm.eps, recipe, transposed)
    return y, tuple(given), x if norm.residual is None else total


def _quantized(
    op: str,
    x: Tensor,
    norm: Norm,
    dtype: torch.dtype | str,
    transposed: bool,
    power_of_two_scales: bool,
) -> Any:
    optional = ("weight", "bias", "residual")
    check_tensors(op, optional, x=x, weight=norm.weight, bias=norm.bias, residual=norm.residual)
    code = FORMATS.index(as_format(op, dtype))
    if x.dim() == 0:
        raise RuntimeError(f"{op}: x must have at least 1 dimension(s); got shape ()")
    rows = [None if t is None else as_rows(t.detach()) for t in (x, norm.residual)]
    columns = BLOCKS if transposed else NONE
    q, scale, q_t, scale_t, total, _, _ = _fp8_norm(
        rows[0], rows[1], norm.weight, norm.bias, norm.rms, norm.eps, code, BLOCKS, columns,
        power_of_two_scales,
    )  # fmt: skip
    m, k = q.shape[0], x.shape[-1]
    found = Quantized(q[:, :k], Operand(q, scale, True).scale_of_rows())
    if transposed:
        scale_of_t = Operand(q_t, scale_t, True).scale_of_rows()
        found = Quantized(*found[:2], q_t[:, :m], scale_of_t)
    return found if norm.residual is None else (found, total.view(x.shape))


@public
def layer_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    residual: Tensor | None = None,
    dtype: torch.dtype | str = torch.float8_e4m3fn,
    transposed: bool = False,
    power_of_two_scales: bool = False,
) -> Quantized | tuple[Quantized, Tensor]:
    """Normalise over the last dimension and quantise: scales for 1x128 elements.

    What comes out is `quantize` of what `fusedops.layer_norm` gives in x's dtype. No gradient flows
    through it: for training see `fusedops.nn.PreNorm`. On Hopper a thread block cluster holds 128
    rows of a 16-bit x in its shared memory and reads x once where that is faster: RMS norms of 1024
    to 8192 features and 2^24 elements and more; with a residual, and layer norms without one, of up
    to 4096 features and 2^25 elements and more. With `transposed` there are two passes.

    Args:
        x: (..., K); float16, bfloat16, float32 or float64.
        weight: (K,), or None for 1; x's dtype, or float32 beside a half x.
        bias: Like weight, or None for 0.
        eps: Added to the variance.
        residual: Like x: ``x + residual`` is normalised instead, in the same pass.
        dtype: As in `quantize`.
        transposed: Whether to write the transpose as well.
        power_of_two_scales: Round scales up to powers of two.

    Returns:
        `Quantized` of the (M, K) matrix of rows, or ``(quantized, x + residual)`` where a residual
        is given.

    Raises:
        ValueError: The dtype is unknown.
        TypeError: An argument is not a tensor.
        RuntimeError: Shapes, dtypes or devices do not fit.

    Example:
        >>> q, scale, *_ = fusedops.fp8.layer_norm(x, weight, bias)
    """
    norm = Norm(False, weight, bias, eps, residual)
    found: Any = _quantized("layer_norm", x, norm, dtype, transposed, power_of_two_scales)
    return found  # type: ignore[no-any-return]


@public
def rms_norm(
    x: Tensor,
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    residual: Tensor | None = None,
    dtype: torch.dtype | str = torch.float8_e4m3fn,
    transposed: bool = False,
    power_of_two_scales: bool = False,
) -> Quantized | tuple[Quantized, Tensor]:
    """Divide by the root mean square over the last dimension and quantise.

    Args, returns, errors and passes are those of `layer_norm`, without a bias; eps None is
    float32's machine epsilon.

    Example:
        >>> (q, scale, *_), total = fusedops.fp8.rms_norm(x, weight, residual=residual)
    """
    if eps is None:
        eps = torch.finfo(torch.float32).eps
    norm = Norm(True, weight, None, eps, residual)
    found: Any = _quantized("rms_norm", x, norm, dtype, transposed, power_of_two_scales)
    return found  # type: ignore[no-any-return]
