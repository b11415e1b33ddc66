"""Where `fusedops.linear`, `mlp` and `gated_mlp` go with a recipe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .._autograd.autocast import cast
from .._autograd.shared import distinct, is_subclass, sees_torch_functions_only
from .._core.dtensor import is_dtensor
from .._core.traced import alike, is_exporting, projects
from . import recipe as region
from .decide import pays
from .functions import Fp8LinearFunction, Fp8MLPFunction, apply
from .gated import Fp8GatedMLPFunction
from .normed import Norm, operands_of, takes_norm

if TYPE_CHECKING:
    from .recipe import Recipe

_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def _recipe(op: str, own: Recipe | None) -> Recipe | None:
    """The recipe of a call: its own, else the region's."""
    region.check_recipe(op, own)
    return region.current if own is None else own


def _takes(x: Tensor, tensors: tuple[Tensor | None, ...], dtype: torch.dtype) -> bool:
    """Whether FP8 is for these tensors: other calls go on as without a recipe."""
    if dtype not in _DTYPES or x.dim() == 0 or x.device.type not in ("cpu", "cuda"):
        return False
    if sees_torch_functions_only(x, *tensors) or is_subclass(x, *tensors):
        return False
    return alike(x, *tensors) and not any(is_dtensor(t) for t in (x, *tensors))


def _grads(*tensors: Tensor | None) -> bool:
    trains = torch.is_grad_enabled() and not is_exporting()
    return trains and any(t is not None and t.requires_grad for t in tensors)


def _is_worth(
    recipe: Recipe, x: Tensor, weights: tuple[Tensor, ...], shapes: tuple[tuple[Any, Any], ...]
) -> bool:
    """Whether the call is one for FP8, and not for less than nothing."""
    rows = x.numel() // x.shape[-1] if x.shape[-1] else 0
    if rows == 0 or any(0 in shape for shape in shapes):
        return False
    if recipe.when == "always":
        return True
    return pays(shapes, rows, _grads(x), _grads(*weights), x.device)


def _apply(
    function: Any,
    x: Tensor,
    dtype: torch.dtype,
    tensors: tuple[Tensor | None, ...],
    code: int,
    recipe: Recipe,
    norm: Norm | None,
    firsts: tuple[Tensor | None, ...],
) -> Any:
    """The layer's result; behind a norm (y, what was normalised), None where that is apart.

    firsts: the weights whose gradients read the transposed input.
    """
    if norm is None:
        arguments = (cast(x, dtype), *tensors)
        if torch.compiler.is_dynamo_compiling():
            arguments = distinct(*arguments)
        return apply(function, *arguments, code, recipe, *[None] * 4)
    if not takes_norm(norm, x, dtype, recipe):
        return None
    x, given, total = operands_of(norm, x, recipe, _grads(*firsts))
    if torch.compiler.is_dynamo_compiling():
        tensors = distinct(*tensors)
    return apply(function, x, *tensors, code, recipe, *given), total


def fp8_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    code: int,
    own: Recipe | None,
    compute: torch.dtype | None,
    norm: Norm | None = None,
) -> Any:
    """The result of a linear layer in FP8; None where it runs as without a recipe.

    norm: of x first, and the result is (y, what was normalised).
    """
    recipe = _recipe("linear", own)
    dtype = x.dtype if compute is None else compute
    if recipe is None or not _takes(x, (weight, bias), dtype):
        return None
    if not projects(x.shape[-1], weight, bias):
        return None  # the op says what is wrong
    if not _is_worth(recipe, x, (weight,), (tuple(weight.shape),)):
        return None
    return _apply(Fp8LinearFunction, x, dtype, (weight, bias), code, recipe, norm, (weight,))


def fp8_mlp(
    x: Tensor,
    w1: Tensor,
    b1: Tensor | None,
    w2: Tensor,
    b2: Tensor | None,
    code: int,
    own: Recipe | None,
    compute: torch.dtype | None,
    norm: Norm | None = None,
) -> Any:
    """act(x w1.T + b1) w2.T + b2 in FP8; None where it runs as without a recipe."""
    recipe = _recipe("mlp", own)
    dtype = x.dtype if compute is None else compute
    if recipe is None or not _takes(x, (w1, b1, w2, b2), dtype):
        return None
    if not (projects(x.shape[-1], w1, b1) and projects(w1.shape[0], w2, b2)):
        return None
    if not _is_worth(recipe, x, (w1, w2), (tuple(w1.shape), tuple(w2.shape))):
        return None
    return _apply(Fp8MLPFunction, x, dtype, (w1, b1, w2, b2), code, recipe, norm, (w1,))


def fp8_gated_mlp(
    x: Tensor,
    w_gate: Tensor,
    w_up: Tensor | None,
    b_gate: Tensor | None,
    b_up: Tensor | None,
    w_down: Tensor,
    b_down: Tensor | None,
    code: int,
    own: Recipe | None,
    compute: torch.dtype | None,
    norm: Norm | None = None,
) -> Any:
    """(act(gate) * up) w_down.T + b_down in FP8; None where it runs as without a recipe."""
    recipe = _recipe("gated_mlp", own)
    dtype = x.dtype if compute is None else compute
    tensors = (w_gate, w_up, b_gate, b_up, w_down, b_down)
    if recipe is None or not _takes(x, tensors, dtype):
        return None
    firsts = [(w_gate, b_gate)] if w_up is None else [(w_gate, b_gate), (w_up, b_up)]
    if w_down.dim() != 2 or not all(projects(x.shape[-1], *layer) for layer in firsts):
        return None
    hidden = w_down.shape[1]
    wanted = 2 * hidden if w_up is None else hidden
    if any(w.shape[0] != wanted for w, _ in firsts) or (w_up is None and b_up is not None):
        return None
    if not projects(hidden, w_down, b_down):
        return None
    shapes = ((2 * hidden, x.shape[-1]), tuple(w_down.shape))
    weights = (w_gate, w_down) if w_up is None else (w_gate, w_up, w_down)
    if not _is_worth(recipe, x, weights, shapes):
        return None
    return _apply(Fp8GatedMLPFunction, x, dtype, tensors, code, recipe, norm, (w_gate, w_up))
