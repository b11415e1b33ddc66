"""Convolutions in a module's methods, and in an nn.Sequential, run with what stands behind them."""

from __future__ import annotations

import ast
import copy
import operator
from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn as torch_nn

from ...nn.conv import ConvBNAct
from ...nn.conv_call import dims_of
from ...nn.linear import untouched
from ..blocks import hooked_by_others
from ..chains import base_of, child
from ..forward_code import Outside
from ..fused_class import Fused, derived, fused_class
from ..fused_methods import _own_methods, rewritten_methods
from ..recompile import asks_class, is_plain, unwrapped
from ..sequential import FusedSteps, in_order
from ..source import is_ordinary, tree_of
from .match import Unit
from .norms import know_norm
from .unit import conv_step, run_unit
from .write import Row, put, rows_of

if TYPE_CHECKING:
    from ..chains import Path

_NORMS = torch_nn.modules.batchnorm._BatchNorm
_is_dynamo_compiling = torch.compiler.is_dynamo_compiling


@dataclass(frozen=True)
class FusedConv:
    """One convolution that runs with what stands behind it now."""

    name: str  # its path in the model
    norm: str  # the norm's, empty for none
    activation: str  # a module's path or a function's name
    residual: bool
    method: str  # where: a method, or "forward" of an nn.Sequential

    @property
    def row(self) -> tuple[str, ...]:
        """For reports."""
        summed = "with residual" if self.residual else ""
        return self.name, self.norm or "none", self.activation or "none", summed, self.method


class Kept(NamedTuple):
    """What a module's methods were written anew with."""

    rows: tuple[Row, ...]
    outside: Outside

    def __reduce__(self) -> Any:
        return _unread, ()  # where it is loaded, the code may be another one

    def __deepcopy__(self, memo: Any) -> Kept:
        return self


def _unread() -> Kept:
    return Kept((), Outside())


class FusedConvs(Fused):
    """Mixed into the class of a module in whose methods convolutions run as units."""

    _fused_rows: Kept | None = None
    _base: Any
    _fused_sum = staticmethod(operator.iadd)

    def _fused_conv_ready(self, index: int) -> bool:
        """Whether the statements of a row would do what was written for them."""
        kept = self._fused_rows
        if kept is None or _is_dynamo_compiling():
            return False
        row = kept.rows[index]
        for condition in row.conditions:
            if not condition.holds(self):
                return False
        for inlined in row.inlined:
            module: Any = child(self, inlined.path)
            if base_of(module) is not inlined.kind or not untouched(module):
                return False
            if tuple(module._modules) != inlined.keys:
                return False
        return kept.outside.is_same()

    def _fused_conv(self, index: int, place: int, x: Any, residual: Any = None) -> Any:
        """One unit of a row; with its input for what reads that behind, where the unit says so."""
        unit: Unit = self._fused_rows.rows[index].units[place]  # type: ignore[union-attr]
        norm = None if unit.norm is None else child(self, unit.norm)
        act = child(self, unit.act) if isinstance(unit.act, tuple) else unit.act
        between = [child(self, path) for path in unit.between]
        conv = child(self, unit.conv)
        both = run_unit(x, residual, conv, norm, between, act, unit.in_place, unit.hands_on)
        return both if unit.hands_on else both[0]

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)  # type: ignore[misc]
        self.__class__ = self._base
        vars(self).pop("_fused_rows", None)
        fuse_convs(self)


_classes: dict[Any, type | None] = {}


def _class_of(base: Any, rows: tuple[Row, ...], trees: dict[str, ast.FunctionDef]) -> type | None:
    key = (base, rows)
    if key not in _classes:
        made = rewritten_methods(base, trees)
        _classes[key] = None if made is None else derived(FusedConvs, base, **made)
    return _classes[key]


def fuse_convs(module: torch_nn.Module) -> list[tuple[str, Unit]]:
    """Make convolutions in a module's methods run with what stands behind them, in place.

    Returns:
        The methods, with the units in them.
    """
    kind: Any = type(module)
    special = (torch_nn.Sequential, torch_nn.ModuleList, Fused, ConvBNAct)
    if isinstance(module, special) or kind.__module__.startswith("torch.nn."):
        return []
    if not is_ordinary(module, call=False) or not _has_convs(module):
        return []
    rows: list[Row] = []
    trees: dict[str, ast.FunctionDef] = {}
    outside = Outside()
    for name, value in _own_methods(kind):
        function = unwrapped(value)[-1]
        if type(function) is not FunctionType or name in vars(module):
            continue
        tree = tree_of(function)
        if tree is not None and asks_class(tree):
            return []
        if tree is None or not is_plain(tree) or _has_inner(tree):
            continue
        tree = copy.deepcopy(tree)
        found = rows_of(module, name, function, tree, len(rows))
        if found:
            put(found, (*tree.args.posonlyargs, *tree.args.args)[0].arg)
            trees[name] = ast.fix_missing_locations(tree)
            rows += [one.row for one in found]
            for owner, key, now in (entry for one in found for entry in one.outside):
                outside.add(owner, key, now)
    if not rows:
        return []
    new = _class_of(kind, tuple(rows), trees)
    if new is None:
        return []
    vars(module)["_fused_rows"] = Kept(tuple(rows), outside)
    module.__class__ = new
    return [(row.method, unit) for row in rows for unit in row.units]


def _has_inner(tree: ast.FunctionDef) -> bool:
    inner = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return any(isinstance(node, inner) and node is not tree for node in ast.walk(tree))


def _has_convs(module: Any, depth: int = 0) -> bool:
    """Whether a module, or an nn.Sequential in it, has a convolution of its own."""
    for inner in module._modules.values():
        if inner is None:
            continue
        if dims_of(inner) is not None:
            return True
        if isinstance(inner, torch_nn.Sequential) and depth < 3 and _has_convs(inner, depth + 1):
            return True
    return False


def as_fused(name: str, method: str, unit: Unit) -> FusedConv:
    """A unit of a module, as the report has it."""

    def full(path: Path) -> str:
        return ".".join((name, *path) if name else path)

    norm = "" if unit.norm is None else full(unit.norm)
    act = full(unit.act) if isinstance(unit.act, tuple) else unit.act or ""
    return FusedConv(full(unit.conv), norm, act, unit.has_residual, method)


class Left(NamedTuple):
    """A batch norm of a model with fused convolutions that runs by itself."""

    name: str
    kind: str
    reason: str


def fuse_model(model: torch_nn.Module) -> tuple[list[FusedConv], list[Left]]:
    """Fuse the convolutions of a model in place: what runs fused now, what was left and why."""
    for module in model.modules():
        know_norm(module)
    found: list[FusedConv] = []
    for name, module in list(model.named_modules()):
        try:
            sequential = isinstance(module, torch_nn.Sequential)
            units = _fuse_sequential(module) if sequential else fuse_convs(module)
        except Exception:  # the module's class may raise anything
            continue
        found += [as_fused(name, *one) for one in units]
    # NOTE: what a module calls one by one does not run in the nn.Sequential that holds it.
    called: dict[str, FusedConv] = {}
    for unit in found:
        if unit.name not in called or unit.residual:
            called[unit.name] = unit
    found = list(called.values())
    done = {unit.norm for unit in found}
    done |= {f"{n}.bn" if n else "bn" for n, m in model.named_modules() if type(m) is ConvBNAct}
    left = [
        Left(name, type(module).__name__, _why_left(module))
        for name, module in model.named_modules()
        if found and name not in done and isinstance(module, _NORMS)
    ]
    return found, left


def _fuse_sequential(module: Any) -> list[tuple[str, Unit]]:
    """Let an nn.Sequential run its convolutions with what stands behind them."""
    base = base_of(module)
    if not in_order(base) or "forward" in vars(module):
        return []
    keys, layers = list(module._modules), list(module._modules.values())
    units, i = [], 0
    while i < len(layers):
        step = conv_step(layers, i)
        if step is None:
            i += 1
            continue
        norm = None if step.norm is None else (keys[i + 1],)
        act = None if step.act is None else (keys[step.end - 1],)
        units.append(("forward", Unit((keys[i],), norm, act=act)))
        i = step.end
    if units and not isinstance(module, Fused):
        module.__class__ = fused_class(FusedSteps, type(module))
    return units


def _why_left(module: torch_nn.Module) -> str:
    if hooked_by_others(module):
        return "has hooks"
    if not know_norm(module):
        return f"a subclass of nn.{type(module).__mro__[1].__name__} may compute something else"
    return "no convolution of torch.nn runs right before it and nowhere else"
