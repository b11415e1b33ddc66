"""Methods written anew with some of their calls through the module, in a class of its own.

Which calls is found by the values that their names have when a model is fused. The module's method
is handed the function or class that the name stands for when the code runs, before the arguments,
and calls it as it is where it is another one by then.
"""

from __future__ import annotations

import ast
import copy
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn as torch_nn

from ..nn.linear import Linear
from .fused_class import Fused, derived
from .fused_methods import _has_layers, _own_methods, rewritten_methods
from .losses.functions import LOSS_FUNCTIONS, TORCHS, LossCalls, LossFunction, loss_method
from .projections import ProjectionCalls, write_projections
from .recompile import asks_class, is_plain, unwrapped
from .rotary.pairs import RotaryCalls, rotary_method
from .source import is_ordinary, tree_of
from .splits import SplitCalls, write_splits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_is_dynamo_compiling = torch.compiler.is_dynamo_compiling

# (what it is: the field of a FuseReport, method, what it calls)
Found = tuple[tuple[str, str, tuple[str, ...]], ...]

_KINDS: dict[str, Callable[[Any, ast.Call], str | None]] = {
    "rotations": rotary_method,
    "losses": loss_method,
}
_MISSING = object()
_SPLITS = {"permute", "transpose"}
_LOSS_NAMES = {"loss_function", "cross_entropy", "CrossEntropyLoss"}


class FusedCalls(RotaryCalls, LossCalls, ProjectionCalls, SplitCalls, Fused):
    """Mixed into the class of a module in whose methods some calls go through the module."""

    _base: Any
    _modules: dict[str, Any]

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)  # type: ignore[misc]
        self.__class__ = self._base
        fuse_calls(self)


class FusedLossFunction(FusedCalls):
    """Such a module whose class has a property `loss_function`, as in Hugging Face's models."""

    @property
    def loss_function(self) -> Any:
        """What the class gives now, by our op where it is known."""
        now = getattr(self._base, "loss_function", None)
        if _is_dynamo_compiling() and isinstance(now, property):  # super() finds it none
            return now.fget(self)  # type: ignore[misc]
        if "loss_function" in vars(self) and not hasattr(now, "__set__"):  # no property any more
            return vars(self)["loss_function"]
        theirs = super().loss_function  # type: ignore[misc]
        return theirs if LOSS_FUNCTIONS.get(theirs) is None else LossFunction(theirs)

    @loss_function.setter
    def loss_function(self, value: Any) -> None:
        now = getattr(self._base, "loss_function", None)
        if hasattr(now, "__set__"):
            now.__set__(self, value)  # type: ignore[union-attr]
        else:  # the class has no property any more
            vars(self)["loss_function"] = value

    @loss_function.deleter
    def loss_function(self) -> None:
        now = getattr(self._base, "loss_function", None)
        if hasattr(now, "__delete__"):
            now.__delete__(self)  # type: ignore[union-attr]
        elif vars(self).pop("loss_function", _MISSING) is _MISSING:
            raise AttributeError("loss_function")


class _Calls(ast.NodeTransformer):
    """Finds the calls in a function that a module of ours stands for, and may write them anew."""

    def __init__(self, function: FunctionType, tree: ast.FunctionDef, write: bool) -> None:
        code = function.__code__
        self.write = write
        self.names = function.__globals__
        self.local = {*code.co_varnames, *code.co_freevars, *code.co_cellvars}
        self.me = (*tree.args.posonlyargs, *tree.args.args)[0].arg
        self.found: dict[str, set[str]] = {}
        for statement in tree.body:
            self.visit(statement)

    def visit(self, node: ast.AST) -> Any:
        inner = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef, ast.ListComp,
                 ast.SetComp, ast.DictComp, ast.GeneratorExp)  # fmt: skip
        return node if isinstance(node, inner) else super().visit(node)

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        value = self.value(node.func)
        for kind, method_of in _KINDS.items():
            name = None if value is None else method_of(value, node)
            if name is not None:
                self.found.setdefault(kind, set()).add(ast.unparse(node.func))
                if self.write:
                    method = ast.Attribute(ast.Name(self.me, ast.Load()), name, ast.Load())
                    node.args.insert(0, node.func)
                    node.func = ast.copy_location(method, node.args[0])
                break
        return node

    def value(self, node: ast.expr) -> Any:
        """What a global name, or a name in a module, stands for now; None where it is unknown."""
        if isinstance(node, ast.Name):
            return None if node.id in self.local else self.names.get(node.id)
        if isinstance(node, ast.Attribute):
            owner = self.value(node.value)
            return getattr(owner, node.attr, None) if isinstance(owner, ModuleType) else None
        return None


_classes: dict[Any, type | None] = {}


def _methods_of(kind: type, own: Any) -> Iterator[tuple[str, FunctionType]]:
    """The methods of a class, without their decorators, that no attribute of the module hides."""
    for name, value in _own_methods(kind):
        function = unwrapped(value)[-1]
        if type(function) is FunctionType and name not in own:
            yield name, function


def _globals_of(function: FunctionType) -> list[Any]:
    return [function.__globals__.get(name) for name in function.__code__.co_names]


def _may_form_loss(function: FunctionType) -> bool:
    """Whether a method has a name that its loss may come from."""
    if not _LOSS_NAMES.isdisjoint(function.__code__.co_names):
        return True
    return any(value is one for value in _globals_of(function) for one in TORCHS)


def _may_call(function: FunctionType) -> bool:
    """Whether a method has a name of a function or of a loss."""
    functions = any(type(value) is FunctionType for value in _globals_of(function))
    return functions or _may_form_loss(function)


def _ask_class(methods: Iterable[tuple[str, FunctionType]]) -> bool:
    trees = (tree_of(function) for _, function in methods)
    return any(tree is not None and asks_class(tree) for tree in trees)


def _written(
    methods: list[tuple[str, FunctionType]], layers: set[str]
) -> tuple[Found, dict[str, ast.FunctionDef]]:
    """The calls in methods that go through the module, and the methods with them.

    layers: the names of the module's linear layers.
    """
    found: list[tuple[str, str, tuple[str, ...]]] = []
    trees: dict[str, ast.FunctionDef] = {}
    for name, function in methods:
        projects = len(layers.intersection(function.__code__.co_names)) > 1
        splits = not _SPLITS.isdisjoint(function.__code__.co_names)
        tree = tree_of(function) if projects or splits or _may_call(function) else None
        if tree is None or not is_plain(tree):
            continue
        calls = _Calls(function, tree, write=False).found
        found += [(what, name, tuple(sorted(texts))) for what, texts in calls.items()]
        new = copy.deepcopy(tree)
        groups = write_projections(new, layers) if projects else ()
        parts = write_splits(new) if splits else ()
        if groups:
            found.append(("projections", name, groups))
        if parts:
            found.append(("splits", name, parts))
        if calls or groups or parts:
            trees[name] = new
            _Calls(function, new, write=True)
            ast.fix_missing_locations(new)
    return tuple(found), trees


def _loss_function(module: torch_nn.Module, methods: list[tuple[str, FunctionType]]) -> Found:
    """The methods that use the property `loss_function`, where what it gives is known."""
    kinds = type(module).__mro__
    owner = next((kind for kind in kinds if "loss_function" in vars(kind)), None)
    if owner is None or type(vars(owner)["loss_function"]) is not property:
        return ()
    using = [name for name, f in methods if "loss_function" in f.__code__.co_names]
    if not using or LOSS_FUNCTIONS.find(module.loss_function) is None:
        return ()
    return tuple(("losses", name, ("loss_function",)) for name in using)


def _class_of(
    mixin: type, base: type, found: Found, trees: dict[str, ast.FunctionDef]
) -> type | None:
    """The class of modules of a class with such calls; None where it cannot be written."""
    key = (mixin, base, found)
    if key not in _classes:
        made = rewritten_methods(base, trees)
        _classes[key] = None if made is None else derived(mixin, base, **made)
    return _classes[key]


def fuse_calls(module: torch_nn.Module) -> Found:
    """Make rotary embeddings, losses and layers of one input in methods run as our ops, in place.

    Returns:
        The methods, with what they call.
    """
    kind = type(module)
    special = (torch_nn.Sequential, torch_nn.ModuleList, Fused)
    if isinstance(module, special) or kind.__module__.startswith("torch.nn."):
        return ()
    if not is_ordinary(module, call=False):
        return ()
    methods = list(_methods_of(kind, vars(module)))
    if not _has_layers(module) and not any(_may_form_loss(function) for _, function in methods):
        return ()
    layers = {name for name, layer in module._modules.items() if type(layer) is Linear}
    found, trees = _written(methods, layers)
    loss_function = _loss_function(module, methods)
    if not (found or loss_function) or _ask_class(methods):
        return ()
    mixin = FusedLossFunction if loss_function else FusedCalls
    new = _class_of(mixin, kind, found, trees)
    if new is None and loss_function:  # the methods stay, and use the property
        found, new = (), _class_of(mixin, kind, (), {})
    if new is None:
        return ()
    module.__class__ = new
    return (*found, *loss_function)
