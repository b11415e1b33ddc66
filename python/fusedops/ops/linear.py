"""linear and matmul: a GEMM with bias and activation in its epilogue."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import _fakes  # noqa: F401  (registers the fakes)
from .._autograd.autocast import cast, cast_weight
from .._autograd.compose import activate
from .._autograd.gemm import LinearFunction, MatmulFunction, linear_eager, matmul_eager
from .._autograd.main_grad import main_grad_owner
from .._autograd.shared import distinct, sees_torch_functions_only
from .._core.activation import CODES, raise_unknown
from .._core.checks import raise_not_tensor
from .._core.traced import alike, is_traced, projects
from .._epilogue.epilogue import BoundEpilogue, Epilogue
from ..fp8 import recipe as _region
from ..fp8.layers import fp8_linear
from ..fp8.recipe import Recipe  # noqa: TC001  (for get_type_hints)

__all__ = ["linear", "matmul"]

_linear = torch.ops.fusedops.linear.default
_matmul = torch.ops.fusedops.matmul.default
_is_grad_enabled = torch.is_grad_enabled
_any_autocast = torch._C._is_any_autocast_enabled
_is_dynamo_compiling = torch.compiler.is_dynamo_compiling
_float32 = torch.float32


def _tf32_allowed() -> bool:
    """torch's fp32 precision setting for CUDA matmuls, whichever of its APIs was used to set it."""
    # NOTE: reading allow_tf32 or float32_matmul_precision raises once the newer API was used.
    return bool(torch.backends.cuda.matmul.fp32_precision == "tf32")


# NOTE: torch.compiler.assume_constant_result without its import of torch._dynamo. Dynamo guards on
# the precision setting itself, so a change of the setting compiles anew.
_tf32_allowed._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _autocast_dtype(tensor: Tensor) -> torch.dtype | None:
    """The dtype autocast asks for on the tensor's device, None where it is off."""
    device_type = tensor.device.type
    if device_type == "meta" or not torch.is_autocast_enabled(device_type):  # meta has no autocast
        return None
    return torch.get_autocast_dtype(device_type)


def _linear_is_torchs(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether a call that torch.compile traces is one of F.linear."""
    if not is_traced() or x.dim() == 0 or not alike(x, weight, bias):
        return False
    if _is_grad_enabled():
        main_grad_owner("linear", weight)  # raises: not under torch.compile
    return projects(x.shape[-1], weight, bias)


def _matmul_is_torchs(a: Tensor, b: Tensor, bias: Tensor | None) -> bool:
    if not is_traced() or a.dim() != 2 or b.dim() != 2 or not alike(a, b, bias):
        return False
    return projects(a.shape[1], b.t(), bias)


def with_epilogue(
    op: str, x: Tensor, weight: Tensor, epilogue: BoundEpilogue | Epilogue, others: tuple[Any, ...]
) -> Tensor:
    """The epilogue of x @ weight.T, under autocast as other products are."""
    bound = epilogue() if isinstance(epilogue, Epilogue) else epilogue
    if not isinstance(bound, BoundEpilogue):
        raise TypeError(
            f"{op}: epilogue must come from fusedops.epilogue, with its operands; got "
            f"{type(epilogue).__name__}"
        )
    if any(other is not None for other in others):
        raise ValueError(
            f"{op}: an epilogue stands instead of bias, activation and recipe; write them into its "
            "function"
        )
    compute = _autocast_dtype(x) if _any_autocast() else None
    if compute is not None:
        x, weight = cast(x, compute), cast_weight(weight, compute)
    return bound.of_product(op, x, weight, cast=compute is not None)


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    recipe: Recipe | None = None,
    *,
    epilogue: BoundEpilogue | Epilogue | None = None,
) -> Tensor:
    """Compute ``act(x @ weight.T + bias)`` in one kernel.

    Bias and activation are applied to the accumulator in the GEMM's epilogue, in fp32 for half
    precision inputs (fp64 for fp64), with one rounding at the end. Backward is one op as well; it
    skips the gradients of tensors that do not require one.

    Args:
        x: Input of shape (..., K), any number of leading dimensions (none too), any strides.
        weight: Weight of shape (N, K), as in ``torch.nn.Linear``.
        bias: Bias of shape (N,), or None.
        activation: None or "none", "relu", "gelu" (erf form), "gelu_tanh", "silu", "sigmoid",
            "tanh", "relu2" (squared relu), or with torch's default parameters "quick_gelu",
            "leaky_relu", "hardswish", "mish", "softplus", "elu", "relu6".
        recipe: How to run in FP8, or None: as `fusedops.fp8.autocast` says. Calls that FP8 is not
            for (float64, nothing to compute, tensor subclasses, transforms, or slower under "auto")
            run without it.
        epilogue: An epilogue of one's own (`fusedops.epilogue`), with its operands, instead of
            bias, activation and recipe.

    Returns:
        A new contiguous tensor of shape (..., N) in the inputs' dtype.

    Raises:
        ValueError: The activation is unknown, or an epilogue comes with bias, activation or recipe.
        TypeError: An argument is not a tensor, recipe no Recipe, or epilogue no epilogue.
        RuntimeError: Shapes, dtypes or devices do not fit; the message names op, argument, what was
            expected and what came.

    Dtypes are float16, bfloat16, float32 and float64, the same for all tensors. float32 on a GPU
    follows torch's precision setting: TF32 where ``torch.backends.cuda.matmul.fp32_precision`` (or
    the older ``allow_tf32`` and ``set_float32_matmul_precision``) allows it, fp32 accuracy
    otherwise. Under autocast the floating tensors except float64 are cast to the autocast dtype,
    as ``F.linear`` does, weights once in a region (``cache_enabled``; what a CUDA graph captures,
    at each use); the gradient of a float32 weight is then accumulated and returned in float32. The
    gradient of a weight with an fp32 ``main_grad`` is added there instead (``overwrite_main_grad``,
    ``grad_added_to_main_grad``: Transformer Engine's contract), by an ``autograd.grad`` with
    respect to x alone, too; not under torch.compile or create_graph. Gradients of any order are
    supported; so are torch.func transforms and forward-mode AD (by torch's own kernels) and an
    empty M, N or K.

    Example:
        >>> y = fusedops.linear(x, weight, bias, activation="gelu")
    """
    try:
        code = CODES[activation]
    except (KeyError, TypeError):
        raise_unknown("linear", activation)
    if not (
        isinstance(x, Tensor)
        and isinstance(weight, Tensor)
        and (bias is None or isinstance(bias, Tensor))
    ):
        raise_not_tensor("linear", x=x, weight=weight, bias=bias)
    if epilogue is not None:
        return with_epilogue("linear", x, weight, epilogue, (bias, activation, recipe))
    if recipe is not None or _region.current is not None:
        compute = _autocast_dtype(x) if _any_autocast() else None
        in_fp8 = fp8_linear(x, weight, bias, code, recipe, compute)
        if in_fp8 is not None:
            return in_fp8
    traced = _is_dynamo_compiling()
    if sees_torch_functions_only(x, weight, bias) or (
        traced and _linear_is_torchs(x, weight, bias)
    ):
        return activate(F.linear(x, weight, bias), code)
    compute = None
    if _any_autocast():
        compute = _autocast_dtype(x)
        if compute is not None:
            x = cast(x, compute)
    allow_tf32 = x.dtype is _float32 and x.is_cuda and _tf32_allowed()
    if _is_grad_enabled() and (
        x.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)
    ):
        if traced:
            x, weight, bias = distinct(x, weight, bias)
        apply = LinearFunction.apply if traced else linear_eager
        y = apply(x, weight, bias, code, allow_tf32, compute)
        return y[0] if type(y) is tuple else y
    if compute is not None:
        weight = cast_weight(weight, compute)
        bias = None if bias is None else cast_weight(bias, compute)
    return _linear(x, weight, bias, code, allow_tf32)


def matmul(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    *,
    epilogue: BoundEpilogue | Epilogue | None = None,
) -> Tensor:
    """Compute ``act(a @ b + bias)`` in one kernel.

    The general form of `linear`: both operands may be row- or column-major (pass ``w.t()`` for a
    weight stored as (N, K)); what has other strides is packed first.

    Args:
        a: Left operand of shape (M, K), any strides.
        b: Right operand of shape (K, N), any strides.
        bias: Bias of shape (N,), or None.
        activation: As in `linear`.
        epilogue: As in `linear`; b is then copied where it is row-major.

    Returns:
        A new contiguous tensor of shape (M, N) in the inputs' dtype.

    Raises:
        ValueError: The activation is unknown, or an epilogue comes with bias or activation.
        TypeError: An argument is not a tensor, or epilogue no epilogue.
        RuntimeError: Shapes, dtypes or devices do not fit; the message names op, argument, what was
            expected and what came.

    Dtypes, precision and autocast are as in `linear`, except that the gradients of operands which
    autocast had cast are formed in the autocast dtype and cast back. Backward computes
    ``dz = dy * act'`` with the bias gradient in one pass, then ``da = dz @ b.T`` and
    ``db = a.T @ dz``.
    """
    try:
        code = CODES[activation]
    except (KeyError, TypeError):
        raise_unknown("matmul", activation)
    if not (
        isinstance(a, Tensor)
        and isinstance(b, Tensor)
        and (bias is None or isinstance(bias, Tensor))
    ):
        raise_not_tensor("matmul", a=a, b=b, bias=bias)
    if epilogue is not None:
        return with_epilogue("matmul", a, b.t(), epilogue, (bias, activation))
    traced = _is_dynamo_compiling()
    if sees_torch_functions_only(a, b, bias) or (traced and _matmul_is_torchs(a, b, bias)):
        return activate(a @ b if bias is None else torch.addmm(bias, a, b), code)
    if _any_autocast():
        compute = _autocast_dtype(a)
        if compute is not None:
            a = cast_weight(a, compute)
            b = cast_weight(b, compute)
            bias = None if bias is None else cast_weight(bias, compute)
    allow_tf32 = a.dtype is _float32 and a.is_cuda and _tf32_allowed()
    if _is_grad_enabled() and (
        a.requires_grad or b.requires_grad or (bias is not None and bias.requires_grad)
    ):
        if traced:
            a, b, bias = distinct(a, b, bias)
        apply = MatmulFunction.apply if traced else matmul_eager
        y = apply(a, b, bias, code, allow_tf32)
        return y[0] if type(y) is tuple else y
    return _matmul(a, b, bias, code, allow_tf32)
