"""Linear layers that a method calls on one input, such as query, key and value, as one step.

The products stay three, and so do parameters and results. What is gained is in backward, where the
gradients of the input are summed as they are formed (`_autograd/projections.py`), and under
autocast, where the input is cast once.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import Parameter

from .._autograd.autocast import cast
from .._autograd.projections import projections_eager
from .._autograd.shared import sees_torch_functions_only
from ..fp8 import recipe as _region
from ..nn.linear import Linear, plain
from ..ops.linear import _any_autocast, _autocast_dtype, _float32, _tf32_allowed

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

_is_dynamo_compiling = torch.compiler.is_dynamo_compiling

_VALUE = "_fused_projected"  # the names that a rewritten method keeps the results under
_BENT = (ast.IfExp, ast.BoolOp, ast.Lambda, ast.ListComp, ast.GeneratorExp, ast.SetComp,
         ast.DictComp, ast.NamedExpr, ast.Compare)  # fmt: skip


class ProjectionCalls:
    """Mixed into the class of a module in whose methods layers of one input run together."""

    _modules: dict[str, Any]

    def _fused_project(self, names: tuple[str, ...], x: Any) -> tuple[Tensor, ...] | None:
        """The layers of x; None where each is to be called by itself."""
        layers = [self._modules.get(name) for name in names]
        return project(layers, x)


def project(layers: list[Any], x: Any) -> tuple[Tensor, ...] | None:
    """The linear layers of x in one autograd node; None where that gains nothing, or may differ."""
    if _is_dynamo_compiling() or type(x) is not Tensor or not x.requires_grad:
        return None
    if not torch.is_grad_enabled() or _region.current is not None or x.dim() < 2:
        return None
    compute = _autocast_dtype(x) if _any_autocast() else None
    dtype, device, width = x.dtype, x.device, x.shape[-1]
    tensors: list[Any] = []
    for layer in layers:
        if type(layer) is not Linear or not plain(layer):
            return None
        weight, bias = layer._parameters["weight"], layer._parameters["bias"]
        for parameter in (weight,) if bias is None else (weight, bias):
            if type(parameter) is not Parameter or parameter.device != device:
                return None
            if compute is None and parameter.dtype is not dtype:
                return None
        if weight.dim() != 2 or weight.shape[1] != width:
            return None
        if getattr(weight, "main_grad", None) is not None:
            return None
        tensors += (weight, bias)
    if sees_torch_functions_only(x, *tensors):
        return None
    if compute is not None:
        x = cast(x, compute)
        if x.dtype is not compute:  # float64, which autocast leaves
            return None
    allow_tf32 = x.dtype is _float32 and x.is_cuda and _tf32_allowed()
    results: tuple[Tensor, ...] = projections_eager(x, allow_tf32, compute, *tensors)
    return results


# ---- the source ----


def _calls(node: ast.AST, me: str, layers: Collection[str]) -> Iterator[tuple[ast.Call, str, str]]:
    """(call, layer, input) of the calls of layers on a name that surely run."""
    if isinstance(node, _BENT):
        return
    for child in ast.iter_child_nodes(node):
        yield from _calls(child, me, layers)
    if not isinstance(node, ast.Call) or node.keywords or len(node.args) != 1:
        return
    function, argument = node.func, node.args[0]
    if not isinstance(function, ast.Attribute) or not isinstance(argument, ast.Name):
        return
    owner = function.value
    if isinstance(owner, ast.Name) and owner.id == me and function.attr in layers:
        yield node, function.attr, argument.id


def _changes(
    statement: ast.stmt, name: str, layers: Collection[str], known: Collection[ast.AST]
) -> bool:
    """Whether a statement may change the tensor of a name, or a layer, besides by calls that are
    known.
    """
    for node in ast.walk(statement):
        if isinstance(node, ast.NamedExpr):
            return True
        if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            return True
        if (
            isinstance(node, ast.Attribute)
            and not isinstance(node.ctx, ast.Load)
            and node.attr in ("data", *layers)
        ):
            return True
        if not isinstance(node, ast.Call) or node in known:
            continue
        function = node.func
        if isinstance(function, ast.Attribute) and function.attr.endswith("_"):
            return True
        given = [*node.args, *(k.value for k in node.keywords)]
        if any(_reads(argument, name, known) for argument in given):
            return True
    return False


def _reads(node: ast.AST, name: str, known: Collection[ast.AST]) -> bool:
    """Whether an expression has a name, besides in calls that are known."""
    if isinstance(node, ast.Name):
        return node.id == name
    return node not in known and any(
        _reads(inner, name, known) for inner in ast.iter_child_nodes(node)
    )


def _stores(statement: ast.stmt, name: str) -> bool:
    return any(
        isinstance(n, ast.Name) and n.id == name and not isinstance(n.ctx, ast.Load)
        for n in ast.walk(statement)
    )


class _Group:
    """Calls of layers on one name, in statements of one list."""

    def __init__(self, name: str, start: int) -> None:
        self.name, self.start, self.open = name, start, True
        self.calls: list[ast.Call] = []
        self.layers: list[str] = []


def _groups(body: list[ast.stmt], me: str, layers: Collection[str]) -> list[_Group]:
    found: list[_Group] = []
    for index, statement in enumerate(body):
        simple = isinstance(statement, (ast.Assign, ast.Return, ast.AnnAssign))
        calls = list(_calls(statement, me, layers)) if simple else []
        known = [call for call, _, _ in calls]
        for group in found:
            group.open &= simple and not _changes(statement, group.name, layers, known)
        for call, layer, name in calls:
            if _changes(statement, name, layers, known):
                continue
            if not any(g.open and g.name == name for g in found):
                found.append(_Group(name, index))
            group = next(g for g in found if g.open and g.name == name)
            if layer not in group.layers:
                group.calls.append(call)
                group.layers.append(layer)
        for group in found:
            group.open &= not _stores(statement, group.name)
    return [group for group in found if len(group.layers) > 1]


class _Replace(ast.NodeTransformer):
    """Puts the results of a group in the place of its calls, where there are results."""

    def __init__(self, group: _Group, value: str) -> None:
        self.places = {id(call): i for i, call in enumerate(group.calls)}
        self.value = value

    def visit_Call(self, node: ast.Call) -> Any:
        self.generic_visit(node)
        place = self.places.get(id(node))
        if place is None:
            return node
        text = f"0 if {self.value} is None else {self.value}[{place}]"
        choice: Any = _located(ast.parse(text, mode="eval").body, node)
        choice.body = node
        return choice


def _located(made: Any, node: Any) -> Any:
    for inner in ast.walk(made):
        ast.copy_location(inner, node)
    return made


def _lists(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """The lists of statements of a function, not those of functions in it."""
    for name in ("body", "orelse", "finalbody"):
        inner = getattr(node, name, None)
        if not isinstance(inner, list) or not inner or not isinstance(inner[0], ast.stmt):
            continue
        yield inner
        for statement in inner:
            if not isinstance(statement, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)):
                yield from _lists(statement)


def write_projections(tree: ast.FunctionDef, layers: Collection[str]) -> tuple[str, ...]:
    """Write groups of layers of one input into a function's tree: the names of each, by "+"."""
    me = (*tree.args.posonlyargs, *tree.args.args)[0].arg
    if any(isinstance(n, ast.Name) and n.id.startswith(_VALUE) for n in ast.walk(tree)):
        return ()
    written: list[str] = []
    for body in list(_lists(tree)):
        for group in reversed(_groups(body, me, layers)):
            value = f"{_VALUE}{len(written)}"
            text = f"{value} = {me}._fused_project({tuple(group.layers)!r}, {group.name})"
            first = body[group.start]
            for statement in body[group.start :]:
                _Replace(group, value).visit(statement)
            body.insert(group.start, _located(ast.parse(text).body[0], first))
            written.append("+".join(group.layers))
    ast.fix_missing_locations(tree)
    return tuple(written)
