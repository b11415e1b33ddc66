"""What torch.distributed makes of tensors and classes, without its import, which takes a second."""

from __future__ import annotations

import sys
from typing import Any


def is_dtensor(value: object) -> bool:
    """Whether a value is a torch.distributed.tensor.DTensor."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def _is_sharded(kind: type) -> bool:
    """Whether fully_shard made a class of a module's: it does nothing else in forward."""
    module = sys.modules.get("torch.distributed.fsdp")
    base = getattr(module, "FSDPModule", None)
    return base is not None and len(kind.__bases__) == 2 and kind.__bases__[0] is base


def own_class(module: object) -> type[Any]:
    """A module's class, behind the one that fully_shard made of it."""
    kind = type(module)
    return kind.__bases__[1] if _is_sharded(kind) else kind


def set_own_class(module: Any, kind: type[Any]) -> None:
    """Make a module one of another class, sharded if it was."""
    now = type(module)
    if _is_sharded(now):
        members = {k: v for k, v in vars(now).items() if k not in ("__dict__", "__weakref__")}
        kind = type(f"FSDP{kind.__name__}", (now.__bases__[0], kind), members)
    module.__class__ = kind
