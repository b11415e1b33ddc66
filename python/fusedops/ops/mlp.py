"""mlp and gated_mlp: two and three products with everything between them fused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from .. import _fakes  # noqa: F401  (registers the fakes)
from .._autograd.autocast import cast, cast_weight
from .._autograd.compose import activate
from .._autograd.main_grad import main_grad_owner
from .._autograd.mlp import (
    GatedMLPFunction,
    MLPFunction,
    compose_gated,
    compose_mlp,
    gated_hidden,
    gated_mlp_eager,
    mlp_eager,
)
from .._autograd.shared import distinct, needs_grad, sees_torch_functions_only
from .._core.activation import CODES, raise_unknown
from .._core.calls import public
from .._core.checks import are_tensors, check_tensors
from .._core.traced import alike, is_traced, projects
from .._epilogue.epilogue import BoundEpilogue, Epilogue  # noqa: TC001  (for get_type_hints)
from ..fp8 import recipe as _region
from ..fp8.layers import fp8_gated_mlp, fp8_mlp
from ..fp8.recipe import Recipe  # noqa: TC001  (for get_type_hints)
from .linear import (
    _any_autocast,
    _autocast_dtype,
    _float32,
    _tf32_allowed,
    linear,
    with_epilogue,
)

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["gated_mlp", "mlp"]

_mlp_forward = torch.ops.fusedops.mlp_forward.default
_gated_mlp_forward = torch.ops.fusedops.gated_mlp_forward.default
_is_grad_enabled = torch.is_grad_enabled
_is_dynamo_compiling = torch.compiler.is_dynamo_compiling


def _code_of(op: str, activation: str | None) -> int:
    try:
        return CODES[activation]
    except (KeyError, TypeError):
        raise_unknown(op, activation)


def _adds_by_torch(x: Tensor, w: Tensor, residual: Tensor) -> bool:
    """Whether torch promotes the sum; what has another shape is left to the op's checks."""
    return (
        residual.dtype is not x.dtype
        and residual.shape[:-1] == x.shape[:-1]
        and residual.shape[-1:] == w.shape[:1]
    )


def _is_torchs(
    op: str,
    x: Tensor,
    weights: tuple[Tensor, ...],
    biases: tuple[Tensor | None, ...],
    residual: Tensor | None,
) -> bool:
    """Whether a call that torch.compile traces is one of F.linear: first, last(, up)."""
    if not is_traced() or x.dim() == 0 or not alike(x, *weights, *biases):
        return False
    if _is_grad_enabled():
        for weight in weights:
            main_grad_owner(op, weight)  # raises: not under torch.compile
    first, last, *more = zip(weights, biases, strict=True)
    hidden = last[0].shape[1] if last[0].dim() == 2 else 0
    packed = op == "gated_mlp" and len(more) == 0
    if not all(projects(x.shape[-1], *layer) for layer in (first, *more)):
        return False
    rows = [weight.shape[0] for weight, _ in (first, *more)]
    if any(r != (2 * hidden if packed else hidden) for r in rows):
        return False
    if residual is not None and residual.shape != (*x.shape[:-1], last[0].shape[0]):
        return False
    return projects(hidden, *last) and (residual is None or residual.device == x.device)


def _compose_mlp(
    x: Tensor, w1: Tensor, b1: Tensor | None, w2: Tensor, b2: Tensor | None, code: int
) -> Tensor:
    return F.linear(activate(F.linear(x, w1, b1), code), w2, b2)


def _compose_gated(
    x: Tensor,
    w_gate: Tensor,
    w_up: Tensor | None,
    b_gate: Tensor | None,
    b_up: Tensor | None,
    w_down: Tensor,
    b_down: Tensor | None,
    code: int,
) -> Tensor:
    return F.linear(gated_hidden(x, w_gate, w_up, b_gate, b_up, code), w_down, b_down)


def _kept_or_not(recompute: bool, compose: Callable[..., Tensor], *args: Any) -> Tensor:
    """compose(*args), with nothing inside it kept for backward where it is to be recomputed."""
    if not (recompute and _is_grad_enabled()):
        return compose(*args)
    y: Tensor = checkpoint(compose, *args, use_reentrant=False, preserve_rng_state=False)
    return y


def _in_fp8(
    recompute: bool, function: Callable[..., Tensor | None], x: Tensor, *args: Any
) -> Tensor | None:
    """function(x, *args), whose last one is the call's own recipe, as `_kept_or_not` has it."""
    dtype = _autocast_dtype(x) if _any_autocast() else None
    if not (recompute and _is_grad_enabled()):
        return function(x, *args, dtype)
    own = _region.current if args[-1] is None else args[-1]  # the region has ended in backward
    again = (x, *args[:-1], own, dtype)
    y: Tensor | None = checkpoint(function, *again, use_reentrant=False, preserve_rng_state=False)
    return y


def _plus(y: Tensor, *terms: Tensor | None) -> Tensor:
    for term in terms:
        if term is not None:
            y = y + term
    return y


@public
def mlp(
    x: Tensor,
    w1: Tensor,
    b1: Tensor | None,
    w2: Tensor,
    b2: Tensor | None,
    activation: str | None,
    residual: Tensor | None = None,
    recompute: bool = False,
    recipe: Recipe | None = None,
    *,
    epilogue: BoundEpilogue | Epilogue | None = None,
) -> Tensor:
    """Compute ``act(x @ w1.T + b1) @ w2.T + b2 (+ residual)``.

    One op forward and two backward. Of the hidden size only one tensor is kept for backward (the
    pre-activation; for relu, sigmoid and tanh the activation's output), none with `recompute`.

    Args:
        x: Input of shape (..., K), any number of leading dimensions (none too), any strides.
        w1: Weight of shape (H, K), as in ``torch.nn.Linear``.
        b1: Bias of shape (H,), or None.
        w2: Weight of shape (N, H).
        b2: Bias of shape (N,), or None.
        activation: None or "none", "relu", "gelu" (erf form), "gelu_tanh", "silu", "sigmoid",
            "tanh", "relu2" (squared relu), or with torch's default parameters "quick_gelu",
            "leaky_relu", "hardswish", "mish", "softplus", "elu", "relu6".
        residual: Added to the result, shape (..., N), or None.
        recompute: Keep nothing of the hidden size; backward forms x @ w1.T + b1 again.
        recipe: As in `fusedops.linear`.
        epilogue: An epilogue of one's own (`fusedops.epilogue`) of the first product, instead of b1
            and activation, which are None; the layers are then two ops.

    Returns:
        A new contiguous tensor of shape (..., N) in the inputs' dtype.

    Raises:
        ValueError: The activation is unknown, or an epilogue comes with b1, activation, recompute
            or recipe.
        TypeError: An argument is not a tensor.
        RuntimeError: Shapes, dtypes or devices do not fit; the message names op, argument, what was
            expected and what came.

    Dtypes, precision, autocast and ``main_grad`` are as in `fusedops.linear`; a residual of another
    dtype than the product is added by torch, with its type promotion. Gradients of any order are
    supported (those of second order from the inputs, by torch's kernels), torch.func transforms,
    forward-mode AD, and an empty M, K, H or N.

    Example:
        >>> y = fusedops.mlp(x, w1, b1, w2, b2, activation="gelu", residual=x)
    """
    code = _code_of("mlp", activation)
    if not are_tensors((x, w1, w2), (b1, b2, residual)):
        optional = ("b1", "b2", "residual")
        check_tensors("mlp", optional, x=x, w1=w1, w2=w2, b1=b1, b2=b2, residual=residual)
    if epilogue is not None:
        hidden = with_epilogue("mlp", x, w1, epilogue, (b1, activation, recompute or None, recipe))
        return _plus(linear(hidden, w2, b2), residual)
    if recipe is not None or _region.current is not None:
        y = _in_fp8(recompute, fp8_mlp, x, w1, b1, w2, b2, code, recipe)
        if y is not None:
            return _plus(y, residual)
    traced = _is_dynamo_compiling()
    if traced and _is_torchs("mlp", x, (w1, w2), (b1, b2), residual):
        y = _kept_or_not(recompute, _compose_mlp, x, w1, b1, w2, b2, code)
        return _plus(y, residual)
    if sees_torch_functions_only(x, w1, b1, w2, b2, residual):
        return _plus(compose_mlp(x, w1, b1, w2, code), b2, residual)
    compute = _autocast_dtype(x) if _any_autocast() else None
    late = None  # a residual that torch adds
    if compute is not None:
        x = cast(x, compute)
    if residual is not None and _adds_by_torch(x, w2, residual):
        residual, late = None, residual
    allow_tf32 = x.dtype is _float32 and x.is_cuda and _tf32_allowed()
    tensors = (x, w1, b1, w2, b2, residual)
    if needs_grad(*tensors):
        apply = MLPFunction.apply if traced else mlp_eager
        y = apply(
            *(distinct(*tensors) if traced else tensors), code, recompute, allow_tf32, compute
        )
    else:
        if compute is not None:
            w1, b1, w2, b2 = (None if t is None else cast_weight(t, compute) for t in tensors[1:5])
        y = _mlp_forward(x, w1, b1, w2, b2, residual, code, False, allow_tf32)[0]
    return y if late is None else y + late


@public
def gated_mlp(
    x: Tensor,
    w_gate: Tensor,
    w_up: Tensor | None,
    w_down: Tensor,
    b_gate: Tensor | None = None,
    b_up: Tensor | None = None,
    b_down: Tensor | None = None,
    activation: str | None = "silu",
    residual: Tensor | None = None,
    recompute: bool = False,
    recipe: Recipe | None = None,
) -> Tensor:
    """Compute ``(act(x @ w_gate.T + b_gate) * (x @ w_up.T + b_up)) @ w_down.T + b_down``.

    SwiGLU with "silu", GeGLU with "gelu" or "gelu_tanh", ReGLU with "relu", GLU with "sigmoid". One
    op forward and two backward; gate and up are kept for backward and nothing else of that size, or
    neither of them with `recompute`.

    Args:
        x: Input of shape (..., K), any number of leading dimensions (none too), any strides.
        w_gate: Weight of shape (H, K); of shape (2H, K), gate rows first, where w_up is None.
        w_up: Weight of shape (H, K), or None.
        w_down: Weight of shape (N, H).
        b_gate: Bias of shape (H,), or (2H,) where w_up is None, or None.
        b_up: Bias of shape (H,), or None.
        b_down: Bias of shape (N,), or None.
        activation: Activation of the gate, as in `mlp`.
        residual: Added to the result, shape (..., N), or None.
        recompute: Keep neither gate nor up; backward forms them again.
        recipe: As in `fusedops.linear`.

    Returns:
        A new contiguous tensor of shape (..., N) in the inputs' dtype.

    Raises:
        ValueError: The activation is unknown.
        TypeError: An argument is not a tensor.
        RuntimeError: Shapes, dtypes or devices do not fit; the message names op, argument, what was
            expected and what came.

    Everything else is as in `mlp`.

    Example:
        >>> y = fusedops.gated_mlp(x, w_gate, w_up, w_down, activation="silu")
    """
    code = _code_of("gated_mlp", activation)
    if not are_tensors((x, w_gate, w_down), (w_up, b_gate, b_up, b_down, residual)):
        optional = ("w_up", "b_gate", "b_up", "b_down", "residual")
        check_tensors(
            "gated_mlp", optional, x=x, w_gate=w_gate, w_down=w_down, w_up=w_up, b_gate=b_gate,
            b_up=b_up, b_down=b_down, residual=residual,
        )  # fmt: skip
    if recipe is not None or _region.current is not None:
        layers = (x, w_gate, w_up, b_gate, b_up, w_down, b_down)
        y = _in_fp8(recompute, fp8_gated_mlp, *layers, code, recipe)
        if y is not None:
            return _plus(y, residual)
    traced = _is_dynamo_compiling()
    if traced:
        given = (w_gate, w_down) if w_up is None else (w_gate, w_down, w_up)
        biases = (b_gate, b_down) if w_up is None else (b_gate, b_down, b_up)
        fits = w_up is not None or b_up is None
        if fits and _is_torchs("gated_mlp", x, given, biases, residual):
            args = (x, w_gate, w_up, b_gate, b_up, w_down, b_down, code)
            return _plus(_kept_or_not(recompute, _compose_gated, *args), residual)
    if sees_torch_functions_only(x, w_gate, w_up, w_down, b_gate, b_up, b_down, residual):
        y = compose_gated(x, w_gate, w_up, b_gate, b_up, w_down, code)
        return _plus(y, b_down, residual)
    compute = _autocast_dtype(x) if _any_autocast() else None
    late = None  # a residual that torch adds
    if compute is not None:
        x = cast(x, compute)
    if residual is not None and _adds_by_torch(x, w_down, residual):
        residual, late = None, residual
    allow_tf32 = x.dtype is _float32 and x.is_cuda and _tf32_allowed()
    tensors = (x, w_gate, w_up, b_gate, b_up, w_down, b_down, residual)
    if needs_grad(*tensors):
        apply = GatedMLPFunction.apply if traced else gated_mlp_eager
        y = apply(
            *(distinct(*tensors) if traced else tensors), code, recompute, allow_tf32, compute
        )
    else:
        if compute is not None:
            tensors = (
                x,
                *(None if t is None else cast_weight(t, compute) for t in tensors[1:7]),
                residual,
            )
        y = _gated_mlp_forward(*tensors, code, False, allow_tf32)[0]
    return y if late is None else y + late
