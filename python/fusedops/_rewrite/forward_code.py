"""What the code of a module's forward refers to, read from its bytecode without running it.

torch.fx runs a forward to trace it, and sees nothing but tensors. So a forward is traced only where
all its code does is call submodules and known functions on local variables: running it leaves no
trace behind, and whatever else its result depends on is found here: plain attributes, and names
outside of the modules (globals, functions, the classes' own methods), which may change later.
"""

from __future__ import annotations

import builtins
import dis
import functools
import sys
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn as torch_nn

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

_is_dynamo_compiling = torch.compiler.is_dynamo_compiling

CONSTANTS = (bool, int, float, str, type(None))
_ATTRIBUTES = {"LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "LOAD_SUPER_METHOD"}
_OUTER = {"LOAD_GLOBAL", "LOAD_DEREF"}
# try and with (in Python 3.10, and later), import, yield, functions inside functions
_REFUSED = {"SETUP_FINALLY", "SETUP_WITH", "PUSH_EXC_INFO", "IMPORT_NAME", "YIELD_VALUE",
            "MAKE_FUNCTION"}  # fmt: skip
_ENTRIES = ("forward", "__call__", "__getattr__", "__getattribute__")
_NOTHING = object()


class RefusedError(Exception):
    """The code may do something else than to compute a result from tensors."""


def same_constant(now: Any, value: Any) -> bool:
    """Whether a name that another object has by now still stands for an equal constant."""
    return type(now) is type(value) and type(value) in CONSTANTS and bool(now == value)


class Outside:
    """Names outside of a module that its forward's code refers to, and what they were."""

    def __init__(self) -> None:
        self.entries: tuple[tuple[Any, str, Any], ...] = ()  # (owner, name, value)
        # NOTE: Dynamo must not see a cell before it sees the code that reads it.
        self.has_cells = False
        self.cells: tuple[tuple[Any, Any], ...] = ()  # variables of outer functions: (cell, value)

    def add(self, owner: Any, name: str, value: Any) -> None:
        """Note a name, once."""
        if not any(owner is o and name == n for o, n, _ in self.entries):
            self.entries += ((owner, name, value),)

    def add_method(self, kind: type, name: str) -> None:
        """Note what a class has under a name."""
        self.add(kind, name, getattr(kind, name))

    def is_same(self) -> bool:
        """Whether all names still have their values."""
        for owner, name, value in self.entries:
            now = getattr(owner, name, None)
            if now is not value and not same_constant(now, value):
                return False
        if not self.has_cells:
            return True
        if _is_dynamo_compiling():  # which does not guard on cells
            return False
        found = ((cell.cell_contents, value) for cell, value in self.cells)
        return all(now is value or same_constant(now, value) for now, value in found)

    def __deepcopy__(self, memo: Any) -> Outside:
        return self

    def __reduce__(self) -> Any:
        return _unread, ()  # where it is loaded, names may have other values


def _unread() -> None:
    return None


class Read(NamedTuple):
    """What the code reads of one module."""

    module: Any
    flags: dict[str, Any]  # plain attributes
    methods: set[str]  # of its class, which an attribute of the module would shadow


def code_of(
    module: torch_nn.Module, known: Collection[Callable[..., Any]]
) -> tuple[list[Read], Outside]:
    """What a forward's code may read of each module in a module, itself first, and outside of them.

    Linear layers are left out; known are the functions that it may call besides its own.

    Raises:
        RefusedError: The forward stores anything but local variables, or refers to more than
            modules, constants, known functions and functions for which the same is true.
    """
    found = [Read(m, {}, set()) for m in module.modules() if not isinstance(m, torch_nn.Linear)]
    outside = Outside()
    for read in found:
        outside.add_method(type(read.module), "forward")
    allowed = {super, *known, *(kind for read in found for kind in type(read.module).__mro__)}
    # Names of attributes, and functions. NOTE: approximate is what nn.GELU's forward reads.
    todo: list[Any] = [*_ENTRIES, "approximate"]
    done = set()
    while todo:
        item = todo.pop()
        if item in done:
            continue
        done.add(item)
        if isinstance(item, str):
            values = _lookup(item, found, outside)
        else:
            values, names = _code(item, outside)
            todo += names
        for value in values:
            if type(value) is functools.partial:
                values += [value.func, *value.args, *value.keywords.values()]
            elif type(value) is FunctionType and value not in known:
                todo.append(value)
            elif type(value) not in CONSTANTS and not any(value is one for one in allowed):
                raise RefusedError(repr(value))
    return found, outside


def _lookup(name: str, found: list[Read], outside: Outside) -> list[Any]:
    """What an attribute is in each of the modules, noted as its flag or method.

    NOTE: whose attribute the code reads is not known, so that every module's is taken.
    """
    if name not in _ENTRIES and hasattr(torch_nn.Module, name):
        raise RefusedError(f"nn.Module.{name}")
    everything = []
    for module, flags, methods in found:
        kinds = type(module).__mro__[:-1]  # without object
        own = [kind for kind in kinds if not kind.__module__.startswith("torch.")]
        values = [vars(scope)[name] for scope in (module, *own) if name in vars(scope)]
        if values and (name in vars(module) or type(values[0]) is not FunctionType):
            flags[name] = values[0]
        elif values:
            for kind in (type(module), *own):  # NOTE: each class's, for super()
                if kind is type(module) or name in vars(kind):
                    outside.add_method(kind, name)
            if name not in _ENTRIES:
                methods.add(name)
        everything += values
    return everything


class _Names:
    """Globals that are no module's (of code that exec ran), as attributes."""

    def __init__(self, names: dict[str, Any]) -> None:
        self._names = names

    def __getattr__(self, name: str) -> Any:
        return self._names.get(name, _NOTHING)


def module_of(function: FunctionType) -> Any:
    """What has a function's globals as attributes."""
    names = function.__globals__
    module = sys.modules.get(names.get("__name__", ""))
    return module if module is not None and vars(module) is names else _Names(names)


def _code(function: FunctionType, outside: Outside) -> tuple[list[Any], list[str]]:
    """The values from outside that a function loads, and the attributes of anything else."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    closure = {name: cell.cell_contents for name, cell in cells.items()}
    outer = {**vars(builtins), **function.__globals__, **closure}
    module = module_of(function)
    values, names = [], []
    last: Any = _NOTHING  # the value from outside that the last instruction loaded
    for step in dis.get_instructions(function):
        local = "_FAST" in step.opname
        if step.opname in _REFUSED or (step.opname.startswith(("STORE", "DELETE")) and not local):
            raise RefusedError(step.opname)
        if step.opname in _ATTRIBUTES and isinstance(last, ModuleType):
            owner, last = last, getattr(last, step.argval)
            if not isinstance(last, ModuleType):
                outside.add(owner, step.argval, last)
            continue
        if last is not _NOTHING:
            values.append(last)
            last = _NOTHING
        if step.opname in _ATTRIBUTES:
            names.append(step.argval)
        elif step.opname in _OUTER:
            name = step.argval
            last = outer[name]
            if name in cells and name != "__class__":
                outside.has_cells = True
                outside.cells += ((cells[name], last),)
            elif name not in cells and name in function.__globals__:
                outside.add(module, name, last)
    return values, names
