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

from .._core.fp8 import NONE, ROW, TENSOR, TILES
from .quantizer import Operand, quantize_rows

if TYPE_CHECKING:
    from .recipe import Recipe

Both = tuple[Operand, Operand | None]

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
    part = weight.detach()
    if half is not None:
        part = part.chunk(2)[half]
    if torch.compiler.is_compiling() or type(weight) not in (Tensor, torch.nn.Parameter):
        return _quantized(part, recipe, dtype, both)
    if not _may_keep(weight):
        return _quantized(part, recipe, dtype, both)
    _watch_optimizers()
    kept = _cache.setdefault(weight, {})
    what = half, recipe.scaling, recipe.power_of_two_scales, dtype
    memory = StorageWeakRef(weight.untyped_storage()), weight.data_ptr()
    key = memory, weight._version, _steps, weight.dtype, tuple(weight.shape)
    found = kept.get(what)
    if found is not None and found[0] == key and (not both or found[1][1] is not None):
        whole: Both = found[1]
        return whole
    made = _quantized(part, recipe, dtype, both)
    kept[what] = key, made
    return made
