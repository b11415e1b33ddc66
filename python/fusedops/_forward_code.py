"""What the code of a module's forward refers to, read from its bytecode without running it.

torch.fx runs a forward to trace it, and sees nothing but tensors. So a forward is traced only where
all its code does is call submodules and known functions on local variables: running it leaves no
trace behind, and whatever else its result depends on are the plain attributes found here.
"""

from __future__ import annotations

import builtins
import dis
import functools
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from torch import nn as torch_nn

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

Flags = tuple[tuple[str, Any], ...]

_CONSTANTS = (bool, int, float, str, type(None))
_ATTRIBUTES = {"LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "LOAD_SUPER_METHOD"}
_OUTER = {"LOAD_GLOBAL", "LOAD_DEREF"}
# try and with (in Python 3.10, and later), import, yield, functions inside functions
_REFUSED = {"SETUP_FINALLY", "SETUP_WITH", "PUSH_EXC_INFO", "IMPORT_NAME", "YIELD_VALUE",
            "MAKE_FUNCTION"}  # fmt: skip
_ENTRIES = ("forward", "__call__", "__getattr__", "__getattribute__")
_NOTHING = object()


class RefusedError(Exception):
    """The code may do something else than to compute a result from tensors."""


def attributes_read(
    module: torch_nn.Module, known: Collection[Callable[..., Any]]
) -> dict[torch_nn.Module, Flags]:
    """The plain attributes, of each module in a module, that its forward may read: (name, value).

    Linear layers are left out; known are the functions that it may call besides its own.

    Raises:
        RefusedError: The forward stores anything but local variables, or refers to more than
            modules, constants, known functions and functions for which the same is true.
    """
    modules = [m for m in module.modules() if not isinstance(m, torch_nn.Linear)]
    found: dict[torch_nn.Module, dict[str, Any]] = {m: {} for m in modules}
    allowed = {super, *known, *(kind for m in modules for kind in type(m).__mro__)}
    # Names of attributes, and functions. NOTE: approximate is what nn.GELU's forward reads.
    todo: list[Any] = [*_ENTRIES, "approximate"]
    done = set()
    while todo:
        item = todo.pop()
        if item in done:
            continue
        done.add(item)
        if isinstance(item, str):
            values = list(_lookup(item, modules, found))
        else:
            values, names = _code(item)
            todo += names
        for value in values:
            if type(value) is functools.partial:
                values += [value.func, *value.args, *value.keywords.values()]
            elif type(value) is FunctionType and value not in known:
                todo.append(value)
            elif type(value) not in _CONSTANTS and not any(value is one for one in allowed):
                raise RefusedError(repr(value))
    return {m: tuple(flags.items()) for m, flags in found.items()}


def _lookup(
    name: str, modules: Iterable[torch_nn.Module], found: dict[torch_nn.Module, dict[str, Any]]
) -> Iterable[Any]:
    """What an attribute is in each of the modules; all but methods are noted in found.

    NOTE: whose attribute the code reads is not known, so that every module's is taken.
    """
    if name not in _ENTRIES and hasattr(torch_nn.Module, name):
        raise RefusedError(f"nn.Module.{name}")
    for module in modules:
        kinds = type(module).__mro__[:-1]  # without object
        own = [kind for kind in kinds if not kind.__module__.startswith("torch.")]
        values = [vars(scope)[name] for scope in (module, *own) if name in vars(scope)]
        is_method = name not in vars(module) and values and type(values[0]) is FunctionType
        if values and not is_method:
            found[module][name] = values[0]
        yield from values  # NOTE: each class's, for super()


def _code(function: FunctionType) -> tuple[list[Any], list[str]]:
    """The values from outside that a function loads, and the attributes of anything else."""
    cells = (cell.cell_contents for cell in function.__closure__ or ())
    closure = dict(zip(function.__code__.co_freevars, cells, strict=True))
    outer = {**vars(builtins), **function.__globals__, **closure}
    values, names = [], []
    last: Any = _NOTHING  # the value from outside that the last instruction loaded
    for step in dis.get_instructions(function):
        local = "_FAST" in step.opname
        if step.opname in _REFUSED or (step.opname.startswith(("STORE", "DELETE")) and not local):
            raise RefusedError(step.opname)
        if step.opname in _ATTRIBUTES and isinstance(last, ModuleType):
            last = getattr(last, step.argval)
            continue
        if last is not _NOTHING:
            values.append(last)
            last = _NOTHING
        if step.opname in _ATTRIBUTES:
            names.append(step.argval)
        elif step.opname in _OUTER:
            last = outer[step.argval]
    return values, names
