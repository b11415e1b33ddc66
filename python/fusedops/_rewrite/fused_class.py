"""Classes of fused modules: the module's own class with a forward of ours before its own."""

from __future__ import annotations

import copyreg
from typing import Any


class Fused:
    """Mixed into the class of a module that stays the same object, and copies and pickles as it."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Ask nothing of the module's class: no registry of its subclasses gains the fused one."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        reduced = super().__reduce_ex__(max(2, protocol))
        if reduced[0] is not copyreg.__newobj__:  # type: ignore[attr-defined]
            return reduced  # the class's own way
        mixin, base = next(c.__bases__ for c in type(self).__mro__ if "_base" in vars(c))
        return _rebuild, (mixin, base, *reduced[1][1:]), *reduced[2:]


_classes: dict[tuple[type, type], type] = {}


def fused_class(mixin: type, base: type) -> type:
    """The class of fused modules of a class."""
    if (mixin, base) not in _classes:
        _classes[mixin, base] = derived(mixin, base)
    return _classes[mixin, base]


def derived(mixin: type, base: type, **members: Any) -> type:
    """A class with the name of its base: models are wrapped and sharded by names of classes."""
    same = ("__module__", "__qualname__", "__doc__")
    members.update({name: getattr(base, name) for name in same}, _base=base)
    return type(base.__name__, (mixin, base), members)


def _rebuild(mixin: type, base: type, *args: Any) -> Any:
    kind: Any = fused_class(mixin, base)
    return kind.__new__(kind, *args)
