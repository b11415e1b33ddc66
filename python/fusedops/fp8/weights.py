"""Quantised weights, made once for all calls between two changes of a weight.

A weight's version alone does not tell a change: torch's fused optimisers leave it, and so do writes
to ``weight.data`` and replays of CUDA graphs. The key holds its memory, its version and how many
steps any optimizer has taken; `invalidate` is for the rest. FSDP gathers weights into memory that
it uses again, which none of these shows: where it is loaded and ranks are there, nothing is kept.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.weak import WeakTensorKeyDictionary

from .._core.calls import public
from .._core.fp8 import FORMATS, NONE, ROW, TENSOR, TILES
from .quantizer import Operand, quantize_rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from .recipe import Recipe

Both = tuple[Operand, Operand | None]

_quantize_pair = torch.ops.fusedops._fp8_quantize_pair.default

_is_capturing = getattr(torch._C, "_cuda_isCurrentStreamCapturing", lambda: False)
_cache: Any = WeakTensorKeyDictionary()  # weight -> {what of it: (key, its operands)}
_steps = 0


def _count_step(*_: object) -> None:
    global _steps
    _steps += 1


@functools.cache
def _watch_optimizers() -> None:
    """Count steps from the first weight on that is kept."""
    register_optimizer_step_post_hook(_count_step)


@public
def invalidate(model: torch.nn.Module | Tensor | None = None) -> None:
    """Forget the quantised weights of a model, of one weight, or of everything.

    Call it after weights changed in a way that torch does not count: through ``weight.data``, or
    by a CUDA graph that was captured with other code than the layers'.

    Args:
        model: A module, a weight, or None for all.
    """
    if model is None:
        _cache.clear()
        return
    for weight in (model,) if isinstance(model, Tensor) else model.parameters():
        _cache.pop(weight, None)


def weight_scaling(recipe: Recipe) -> int:
    """The code of a weight's scaling: the same in both orientations."""
    return {"tensor": TENSOR, "row": ROW}.get(recipe.scaling, TILES)


def _quantized(weight: Tensor, recipe: Recipe, dtype: torch.dtype, both: bool) -> Both:
    scaling = weight_scaling(recipe)
    columns = scaling if both else NONE
    by_rows, by_columns, _ = quantize_rows(
        weight, dtype, scaling, columns, recipe.power_of_two_scales
    )
    return by_rows, by_columns if both else None


def _may_keep(weight: Tensor) -> bool:
    # NOTE: what a CUDA graph captures is computed by its replays only; an inference tensor has no
    # version, and a weight that is computed anew for every call has no second use.
    if weight.is_inference() or not weight.is_leaf or (weight.is_cuda and _is_capturing()):
        return False
    sharded = "torch.distributed.fsdp" in sys.modules and torch.distributed.is_available()
    return not (sharded and torch.distributed.is_initialized())


def quantized_weight(
    weight: Tensor, recipe: Recipe, dtype: torch.dtype, both: bool, half: int | None = None
) -> Both:
    """(rows, columns) of a weight (N, K), columns only where `both`; from the cache if it may be.

    half: 0 or 1 for the upper or lower half of its rows.
    """

    def make() -> Both:
        part = weight.detach()
        if half is not None:
            part = part.chunk(2)[half]
        return _quantized(part, recipe, dtype, both)

    what = half, recipe.scaling, recipe.power_of_two_scales, dtype
    return _kept(what, (weight,), both, make)


def quantized_pair(
    first: Tensor, second: Tensor, recipe: Recipe, dtype: torch.dtype, both: bool
) -> Both:
    """(rows, columns) of two weights above each other, scaled by blocks; from the cache if it may
    be.
    """

    def make() -> Both:
        q, scale, q_t, scale_t = _quantize_pair(
            first.detach(), second.detach(), FORMATS.index(dtype), both, recipe.power_of_two_scales
        )
        return Operand(q, scale, False), Operand(q_t, scale_t, False) if both else None

    return _kept(("pair", recipe.power_of_two_scales, dtype), (first, second), both, make)


def _kept(
    what: tuple[object, ...], weights: tuple[Tensor, ...], both: bool, make: Callable[[], Both]
) -> Both:
    """What the first of the weights keeps, or made anew where any has changed."""
    plain = all(type(w) in (Tensor, torch.nn.Parameter) for w in weights)
    if torch.compiler.is_compiling() or not plain or not all(map(_may_keep, weights)):
        return make()
    _watch_optimizers()
    first, *others = (_cache.setdefault(weight, {}) for weight in weights)
    key = _steps, *map(_key, weights)
    found = first.get(what)
    same = found is not None and found[0] == key and all(o.get(what) == key for o in others)
    if same and (not both or found[1][1] is not None):
        whole: Both = found[1]
        return whole
    made = make()
    first[what] = key, made
    for other in others:  # so that forgetting any of them forgets the pair
        other[what] = key
    return made


def _key(weight: Tensor) -> tuple[object, ...]:
    memory = StorageWeakRef(weight.untyped_storage()), weight.data_ptr()
    return memory, weight._version, weight.dtype, tuple(weight.shape)
