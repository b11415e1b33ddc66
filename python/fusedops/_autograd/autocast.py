"""Casts under autocast; those of weights are made once in a region, as torch makes them.

torch keeps the cast of a float32 leaf that requires a gradient until the outermost region ends or
``clear_autocast_cache`` is called. That cache is closed to anything but its own ops, and what was
cast under no_grad stays without a gradient there. So we keep our casts, in the metadata of an
autograd node: that of one cast, of an empty tensor, which torch holds in its cache. Whenever torch
drops its casts, it drops ours.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_float32 = torch.float32
_is_cache_enabled = torch.is_autocast_cache_enabled
_is_inference_mode_enabled = torch.is_inference_mode_enabled
_is_dynamo_compiling = torch.compiler.is_dynamo_compiling
_is_capturing = getattr(torch._C, "_cuda_isCurrentStreamCapturing", lambda: False)


def cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """torch's autocast rule for F.linear: floating tensors except float64 take the dtype."""
    if tensor.dtype is dtype or tensor.dtype is torch.float64 or not tensor.is_floating_point():
        return tensor
    return tensor.to(dtype)


def keeps_casts(weight: Tensor) -> bool:
    """Whether `cast_weight` may give a cast again that it made before.

    NOTE: a cast that a CUDA graph captures is computed by its replays only, and one from outside
    is older than those.
    """
    return _is_cache_enabled() and not (weight.is_cuda and _is_capturing())


class _Casts(dict[Any, Any]):
    """(id of a weight, dtype) -> (weight, its version, the cast); a dict has no weak references."""

    def find(self, weight: Tensor, dtype: torch.dtype) -> Tensor | None:
        """The cast of a weight that nobody has written since."""
        kept = self.get((id(weight), dtype))
        if kept is None or kept[0] is not weight or kept[1] != weight._version:
            return None
        found: Tensor = kept[2]
        return found

    def keep(self, weight: Tensor, made: Tensor) -> None:
        self[id(weight), made.dtype] = (weight, weight._version, made)


class _Ahead(threading.local):
    casts: _Casts | None = None


_ahead = _Ahead()


@contextlib.contextmanager
def casts_ahead(weights: Sequence[Tensor], made: Sequence[Tensor]) -> Iterator[None]:
    """Inside, on this thread, `cast_weight` gives casts that a model made before its layers run."""
    casts = _Casts()
    for weight, cast_of in zip(weights, made, strict=True):
        casts.keep(weight, cast_of)
    before, _ahead.casts = _ahead.casts, casts
    try:
        yield
    finally:
        _ahead.casts = before


def is_cast_ahead(weight: Tensor, dtype: torch.dtype) -> bool:
    """Whether a model has made this cast."""
    return _ahead.casts is not None and _ahead.casts.find(weight, dtype) is not None


def _no_casts() -> _Casts | None:
    return None


_casts: Any = _no_casts  # a weak reference to those of this region


def cast_weight(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """cast(weight, dtype), from this region's casts where torch would keep it.

    The cast has the weight's history in no_grad, inference_mode and a Function's forward, too.
    """
    if _ahead.casts is not None:
        found = _ahead.casts.find(weight, dtype)
        if found is not None:
            return found
    if weight.dtype is not _float32 or not weight.requires_grad or _is_dynamo_compiling():
        return cast(weight, dtype)
    if not keeps_casts(weight):
        return cast(weight, dtype)
    casts = _casts()
    if casts is not None:
        found = casts.find(weight, dtype)
        if found is not None:
            return found
    if dtype is _float32 or not weight.is_leaf or weight._is_view() or weight.is_inference():
        return cast(weight, dtype)
    made = _with_history(lambda: weight.to(dtype))
    if type(made) is Tensor:
        if casts is None:
            casts = _new_casts()
        casts.keep(weight, made)
    return made


def _with_history(make: Callable[[], Tensor]) -> Tensor:
    """make(), recorded by autograd whatever the modes around.

    NOTE: contexts of torch cost as much as a cast of a small weight.
    """
    if _is_inference_mode_enabled():
        with torch.inference_mode(False):
            return _with_history(make)
    before = torch.is_grad_enabled()
    torch._C._set_grad_enabled(True)
    try:
        return make()
    finally:
        torch._C._set_grad_enabled(before)


@functools.cache
def _empty() -> tuple[Tensor, Tensor]:
    """(0, 0) matrices, the second one a leaf; torch casts it once in a region."""
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        options: dict[str, Any] = {"size": (0, 0), "device": "cpu", "dtype": _float32}
        empty = _with_history(lambda: torch.zeros(**options))
        return empty, _with_history(lambda: torch.zeros(**options, requires_grad=True))


def _new_casts() -> _Casts:
    """Room for casts that torch frees with its own."""
    global _casts
    casts = _Casts()
    empty, leaf = _empty()
    enabled = torch.is_autocast_enabled("cpu")
    torch.set_autocast_enabled("cpu", True)
    try:
        # NOTE: out of sight of modes, and addmm saves nothing for the gradient of its first operand
        # that saved_tensors_hooks would see.
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
            node = _with_history(lambda: torch.addmm(leaf, empty, empty)).grad_fn
    finally:
        torch.set_autocast_enabled("cpu", enabled)
    assert node is not None
    of_cast = node.next_functions[0][0]
    assert of_cast is not None
    of_cast.metadata["fusedops"] = casts
    _casts = weakref.ref(casts)
    return casts
