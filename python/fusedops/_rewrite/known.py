"""Functions known by their source and by what they compute on probes, for as long as both stay."""

from __future__ import annotations

import weakref
from types import FunctionType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from .._autograd.compose import no_autocast

if TYPE_CHECKING:
    from collections.abc import Callable

    from .forward_code import Outside

Form = TypeVar("Form")


class _Known(NamedTuple):
    """A function's form, and what it was found with."""

    form: Any
    outside: Outside
    made_of: tuple[Any, ...]

    def is_same(self, function: FunctionType) -> bool:
        return _parts(function) == self.made_of and self.outside.is_same()


def _parts(function: FunctionType) -> tuple[Any, ...]:
    return function.__code__, function.__defaults__, function.__kwdefaults__


class KnownFunctions(Generic[Form]):
    """Functions with a form each, which `read` finds, with the names that they read outside.

    `read` runs with gradients, outside of inference mode, and may raise whatever a function raises
    on probes: it has no form then.
    """

    def __init__(self, read: Callable[[FunctionType], tuple[Form, Outside] | None]) -> None:
        self._read = read
        self._known: weakref.WeakKeyDictionary[Any, _Known] = weakref.WeakKeyDictionary()

    def find(self, function: Any) -> Form | None:
        """A function's form, read anew where something has changed; None where it has none."""
        form = self.get(function)
        if form is not None or type(function) is not FunctionType:
            return form
        self._known.pop(function, None)
        try:
            with torch.inference_mode(False), torch.enable_grad():
                read = self._read(function)
        except Exception:  # a RefusedError, or whatever the function raises on probes
            read = None
        if read is None:
            return None
        self._known[function] = _Known(*read, _parts(function))
        return read[0]

    def get(self, function: Any) -> Form | None:
        """The form of a function that was found before and is still the same; else None."""
        if type(function) is not FunctionType:
            return None
        known = self._known.get(function)
        return known.form if known is not None and known.is_same(function) else None


def agrees(function: Any, of: Callable[..., Any], args: list[Tensor], inputs: int) -> bool:
    """Whether a function gives what `of` does, a tensor or a tuple of them, and the gradients.

    The first `inputs` arguments get them.
    """
    leaves = [t.requires_grad_() for t in args[:inputs]]
    with no_autocast(args[0]):
        try:
            theirs = function(*args)
        except Exception:  # shapes or dtypes that it does not take
            return False
        ours = of(*args)
        if isinstance(ours, Tensor):
            theirs, ours = (theirs,), (ours,)
        if type(theirs) is not tuple or len(theirs) != len(ours):
            return False
        if not all(close(a, b) for a, b in zip(theirs, ours, strict=True)):
            return False
        dy = [t.detach().flip(-1) for t in ours]
        grads = [torch.autograd.grad(y, leaves, dy) for y in (theirs, ours)]
        return all(close(a, b) for a, b in zip(*grads, strict=True))


def close(theirs: Any, ours: Tensor, roundings: int = 4) -> bool:
    """Whether a result is ours but for a few roundings."""
    if type(theirs) is not Tensor or theirs.shape != ours.shape or theirs.dtype is not ours.dtype:
        return False
    difference = (theirs.double() - ours.double()).abs().max()
    return bool(difference <= roundings * torch.finfo(ours.dtype).eps * ours.double().abs().max())
