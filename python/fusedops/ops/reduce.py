"""Reductions over one, several or all dimensions, and the bias gradient.

Common to all of them:

* Arguments and their names are torch's (NumPy's `axis`, `keepdims` too), without `out`. x has any
  shape and strides; strided input is read where it lies, without a copy. `dim` is an int, a
  sequence of ints, or None (also an empty sequence) for all dimensions.
* float16, bfloat16 and float32 are accumulated in float32, float64 in float64, integers and bool in
  int64, in a fixed order: two runs give the same bits. One rounding at the end.
* NaN propagates; `argmax` and `argmin` return the first index of the extremum, and the first NaN
  wins over everything. Over an empty dimension the result is torch's (sum 0, prod 1, mean NaN);
  reductions that choose an element raise.
* Gradients of any order; torch.func transforms and forward-mode AD run by torch's own kernels.
* A tensor is a new, contiguous one. Errors are RuntimeError from the op (naming op, argument, what
  was expected and what came), TypeError for arguments of another type, IndexError for a bad `dim`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from .. import _fakes  # noqa: F401  (registers the fakes)
from .._autograd.reduce import BiasGradFunction, ReduceFunction, SumFunction, VarFunction, dims_of
from .._autograd.shared import needs_grad, sees_torch_functions_only
from .._core.calls import as_dtype, as_int, public, shown
from .._core.checks import raise_not_tensor
from .._core.reduction import CODE, wide_dtype
from ..reference import reduce as reference

__all__ = [
    "all",
    "amax",
    "amin",
    "any",
    "argmax",
    "argmin",
    "bias_grad",
    "count_nonzero",
    "logsumexp",
    "mean",
    "norm",
    "prod",
    "std",
    "sum",
    "var",
]

Dim = int | Sequence[int] | None

_reduce = torch.ops.fusedops.reduce.default
_var_mean = torch.ops.fusedops.var_mean.default
_bias_grad = torch.ops.fusedops.bias_grad.default
_NORMS: dict[float | str | None, str] = {
    1.0: "norm_1",
    **dict.fromkeys((2.0, "fro", None), "norm_2"),
    math.inf: "norm_inf",
    -math.inf: "norm_minus_inf",
}


def _mask(op: str, x: Tensor, dim: Dim, keepdim: bool) -> int:
    """The bit mask that stands for dim at the op boundary, after checks of what comes with it."""
    if not isinstance(x, Tensor):
        raise_not_tensor(op, x=x)
    if type(keepdim) is not bool:
        raise TypeError(f"{op}: keepdim must be a bool; got {shown(keepdim)}")
    ndim: int = x.dim()
    if dim is None:
        return (1 << ndim) - 1
    if type(dim) is int and -ndim <= dim < ndim:
        return 1 << (dim % ndim)
    mask = 0
    given = dim if type(dim) is tuple else _integers(op, dim)
    for d in given:
        if type(d) is not int:
            return _mask(op, x, _integers(op, dim), keepdim)
        if not -max(ndim, 1) <= d < max(ndim, 1):
            raise IndexError(
                f"{op}: dim must be from {-max(ndim, 1)} to {max(ndim, 1) - 1} for x with {ndim} "
                f"dimension(s); got {d}"
            )
        bit = 1 << (d % ndim) if ndim else 0
        if mask & bit:
            raise RuntimeError(f"{op}: dim must not name a dimension twice; got {given}")
        mask |= bit
    return mask if given else (1 << ndim) - 1


def _integers(op: str, dim: Any) -> tuple[int, ...]:
    """The numbers in dim, which may be of other integer types."""
    many = isinstance(dim, Iterable) and not (isinstance(dim, Tensor) and dim.dim() == 0)
    try:
        return tuple([as_int(op, "dim", d) for d in (dim if many else [dim])])
    except TypeError:
        raise TypeError(
            f"{op}: dim must be an int or a sequence of ints; got {shown(dim)}"
        ) from None


def _differentiable(
    name: str,
    x: Tensor,
    dim: Dim,
    keepdim: bool,
    dtype: torch.dtype | None = None,
    op: str | None = None,
) -> Tensor:
    mask = _mask(op or name, x, dim, keepdim)
    if dtype is not None:
        dtype = as_dtype(op or name, dtype)
    if dtype is not None and x.dtype is not dtype:
        # NOTE: a float64 result of narrower elements wants float64 sums, as in torch.
        if x.dtype.is_floating_point:
            first = dtype is torch.float64 or not dtype.is_floating_point
        else:
            first = name != "sum" or not _sums_exactly(x, dtype)
        if first:
            x = x.to(dtype)
    if sees_torch_functions_only(x):
        y = reference.reduce(x, name, dims_of(mask), keepdim)
        return y if dtype is None else y.to(dtype=dtype)
    wide = dtype is not None and dtype is not x.dtype
    if needs_grad(x):
        function = SumFunction if name in ("sum", "mean") else ReduceFunction
        y = function.apply(x, CODE[name], mask, keepdim, wide)
    else:
        y = _reduce(x, CODE[name], mask, keepdim, wide)
    return y if dtype is None else y.to(dtype=dtype)


def _sums_exactly(x: Tensor, dtype: torch.dtype) -> bool:
    """Whether the int64 sum of integers is that of the elements converted to dtype, or exacter."""
    if dtype.is_floating_point or dtype.is_complex:  # int64 may wrap, halves overflow
        return x.dtype is not torch.int64 and dtype not in (torch.float16, torch.bfloat16)
    return dtype is not torch.bool


def _forward_only(name: str, x: Tensor, dim: Dim, keepdim: bool) -> Tensor:
    mask = _mask(name, x, dim, keepdim)
    if sees_torch_functions_only(x):
        return reference.reduce(x, name, dims_of(mask), keepdim)
    return _reduce(x.detach(), CODE[name], mask, keepdim, False)


def _truth(name: str, x: Tensor, dim: Dim, keepdim: bool) -> Tensor:
    y = _forward_only(name, x, dim, keepdim)
    return y.to(dtype=torch.uint8) if x.dtype is torch.uint8 else y


def _autocast_dtype(x: Tensor, dtype: torch.dtype | None) -> torch.dtype | None:
    """torch's autocast rule on CUDA: sums, products and norms of half precision are float32."""
    if dtype is not None or not x.is_cuda or not torch.is_autocast_enabled("cuda"):
        return dtype
    return torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else None


@public
def sum(
    x: Tensor, dim: Dim = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor:
    """Sum of x over dim; integers and bool give int64, or are converted to dtype first."""
    return _differentiable("sum", x, dim, keepdim, _autocast_dtype(x, dtype))


@public
def mean(
    x: Tensor, dim: Dim = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor:
    """Mean of a floating x over dim; of integers converted to a floating dtype, where given."""
    mask = _mask("mean", x, dim, keepdim)
    if dtype is not None:
        dtype = as_dtype("mean", dtype)
    if dtype is not None and dtype.is_floating_point and not x.dtype.is_floating_point:
        if x.dtype is not torch.int64:
            count = math.prod([x.shape[i] for i in dims_of(mask)])
            total = sum(x, dim, keepdim).double()
            return (total / count if count else total * math.nan).to(dtype=dtype)
        x = x.to(dtype=wide_dtype(dtype))  # its sum may wrap
    return _differentiable("mean", x, dim, keepdim, dtype)


@public
def prod(
    x: Tensor, dim: Dim = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor:
    """Product of x over dim; integers and bool give int64, or are converted to dtype first."""
    return _differentiable("prod", x, dim, keepdim, _autocast_dtype(x, dtype))


@public
def amax(x: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """Largest element over dim; ties share the gradient evenly."""
    return _differentiable("amax", x, dim, keepdim)


@public
def amin(x: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """Smallest element over dim; ties share the gradient evenly."""
    return _differentiable("amin", x, dim, keepdim)


@public
def norm(
    x: Tensor,
    p: float | str | None = "fro",
    dim: Dim = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Vector norm of a floating x over dim, for p = 1, 2 ("fro", None), inf or -inf.

    Raises:
        ValueError: p is another one.
    """
    name = _NORMS.get(p)
    if name is None:
        raise ValueError(f"norm: p must be 1, 2, inf or -inf; got {p}")
    return _differentiable(name, x, dim, keepdim, _autocast_dtype(x, dtype), "norm")


@public
def logsumexp(x: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """log(sum(exp(x))) over dim, without overflow; of integers in torch's default dtype."""
    if not (x.dtype.is_floating_point or x.dtype.is_complex):
        x = x.to(dtype=torch.get_default_dtype())
    return _differentiable("logsumexp", x, dim, keepdim)


@public
def var(
    x: Tensor,
    dim: Dim | bool = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> Tensor:
    """Variance over dim by Welford's method: squared deviations over max(0, count - correction).

    unbiased=False is correction=0; without either, correction is 1. As in torch, unbiased may stand
    in dim's place: ``var(x, False)``.
    """
    return _variance("var", x, dim, unbiased, keepdim, correction)


@public
def std(
    x: Tensor,
    dim: Dim | bool = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> Tensor:
    """Standard deviation over dim: the square root of `var`; gradient 0 where it is 0."""
    return _variance("std", x, dim, unbiased, keepdim, correction)


def _correction(op: str, unbiased: bool | None, correction: float | None) -> float:
    if unbiased is None:
        return 1.0 if correction is None else float(correction + 0.0)  # no string
    if type(unbiased) is not bool:
        raise TypeError(f"{op}: unbiased must be a bool; got {shown(unbiased)}")
    if correction is not None:
        raise TypeError(f"{op}: correction must be None where unbiased is given; got {correction}")
    return float(unbiased)


def _variance(
    op: str,
    x: Tensor,
    dim: Dim | bool,
    unbiased: bool | None,
    keepdim: bool,
    given: float | None,
) -> Tensor:
    if isinstance(dim, bool) and unbiased is None and not keepdim:
        dim, unbiased = None, dim
    mask = _mask(op, x, dim, keepdim)
    correction, root = _correction(op, unbiased, given), op == "std"
    if sees_torch_functions_only(x):
        define = reference.std if root else reference.var
        return define(x, dims_of(mask), correction, keepdim)
    if needs_grad(x):
        result: Tensor = VarFunction.apply(x, mask, correction, root, keepdim)
        return result
    return _var_mean(x, mask, correction, root, keepdim, False)[0]


@public
def argmax(x: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """First index of the largest element, int64; of several dims, into them flattened."""
    return _forward_only("argmax", x, dim, keepdim)


@public
def argmin(x: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """First index of the smallest element, int64; of several dims, into them flattened."""
    return _forward_only("argmin", x, dim, keepdim)


@public
def any(x: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """Whether some element is not zero, as NaN is not; bool, and uint8 for uint8, as in torch."""
    return _truth("any", x, dim, keepdim)


@public
def all(x: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """Whether no element is zero; else as `any`."""
    return _truth("all", x, dim, keepdim)


@public
def count_nonzero(x: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """How many elements are not zero, int64; NaN counts as not zero."""
    return _forward_only("count_nonzero", x, dim, keepdim)


@public
def bias_grad(dy: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
    """Sum the rows of dy: the gradient of a bias.

    Args:
        dy: Shape (..., N); float16, bfloat16, float32 or float64.
        dtype: None for dy's dtype, or the compute type (float32, float64 for float64).

    Returns:
        A tensor of shape (N,), accumulated in the compute type and rounded once.

    Raises:
        TypeError: dy is not a tensor.
        ValueError: dtype is another one.
        RuntimeError: dy has no dimension or another dtype.
    """
    if not isinstance(dy, Tensor):
        raise_not_tensor("bias_grad", dy=dy)
    wide = dtype is not None and dtype is not dy.dtype
    if wide and dtype is not wide_dtype(dy.dtype):
        raise ValueError(f"bias_grad: dtype must be None or {wide_dtype(dy.dtype)}; got {dtype}")
    if sees_torch_functions_only(dy):
        return reference.bias_grad(dy if dtype is None else dy.to(dtype=dtype))
    if needs_grad(dy):
        result: Tensor = BiasGradFunction.apply(dy, wide)
        return result
    return _bias_grad(dy, wide)
