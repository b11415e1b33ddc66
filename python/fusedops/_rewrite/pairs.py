"""A sum and the norm of it in a method's source: one op gives both.

``self.norm(a + b)``, as in BERT, and ``h = a + b`` with ``self.norm(h)`` the first thing that the
next statements call, as in every layer that normalises first. The sum and the norm are put into one
call, which runs the norm's module on the sum wherever the op does not stand for both.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..nn.linear import untouched
from ..nn.norm import LayerNorm, RMSNorm
from .leaf import FusedLeaf, takes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

_is_dynamo_compiling = torch.compiler.is_dynamo_compiling

_VALUE = "_fused_normed"  # the name that a rewritten method keeps the norm under


def is_fused_norm(module: Any) -> bool:
    """Whether a module is a norm that our op computes."""
    if type(module) in (LayerNorm, RMSNorm):
        return True
    if not isinstance(module, FusedLeaf) or module._fused is None:
        return False
    form = module._fused.form
    return form.kind.endswith("norm") and not form.channels_first


def add_norm(norm: Any, a: Any, b: Any) -> tuple[Any, Any]:
    """(norm(a + b), a + b)."""
    alike = type(a) is Tensor and type(b) is Tensor and a.shape == b.shape and a.dtype is b.dtype
    if not alike or _is_dynamo_compiling() or not isinstance(norm, torch.nn.Module):
        total = a + b
        return norm(total), total
    # NOTE: torch's sum of others has their strides; the op's is contiguous.
    dense = a.is_contiguous() and b.is_contiguous()
    if dense and a.device == b.device and untouched(norm):
        if type(norm) in (LayerNorm, RMSNorm):
            return norm.forward(a, b)  # type: ignore[no-any-return]
        leaf = norm._fused if isinstance(norm, FusedLeaf) and is_fused_norm(norm) else None
        if leaf is not None and takes(leaf, norm, a) and leaf.is_same(norm):
            return leaf.form.of(norm, a, b)  # type: ignore[no-any-return]
    total = a + b
    return norm(total), total


# ---- the source ----


def _norm_call(node: ast.AST, me: str, norms: Collection[str]) -> bool:
    if not isinstance(node, ast.Call) or node.keywords or len(node.args) != 1:
        return False
    function = node.func
    if not isinstance(function, ast.Attribute) or not isinstance(function.value, ast.Name):
        return False
    return function.value.id == me and function.attr in norms


def _in_order(node: ast.AST) -> Iterator[ast.Call | None]:
    """The calls of an expression as they run; None from where some may not run."""
    bent = (ast.IfExp, ast.BoolOp, ast.Lambda, ast.ListComp, ast.GeneratorExp, ast.SetComp,
            ast.DictComp, ast.NamedExpr)  # fmt: skip
    if isinstance(node, bent):
        yield None
        return
    for child in ast.iter_child_nodes(node):
        yield from _in_order(child)
    if isinstance(node, ast.Call):
        yield node


def _sum(statement: ast.stmt) -> ast.BinOp | None:
    """The sum that a statement stores under one name."""
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None
    value = statement.value
    if not isinstance(statement.targets[0], ast.Name) or not isinstance(value, ast.BinOp):
        return None
    return value if isinstance(value.op, ast.Add) else None


def _targets(statement: ast.stmt) -> list[ast.expr]:
    """What a statement stores its value in, with an annotation or without."""
    if isinstance(statement, ast.AnnAssign):
        return [] if statement.value is None else [statement.target]
    return statement.targets if isinstance(statement, ast.Assign) else []


def _normed_next(body: list[ast.stmt], index: int, me: str, norms: Collection[str]) -> Any:
    """The call of a norm on the sum that a statement stores, behind copies of its name."""
    name = body[index].targets[0].id  # type: ignore[attr-defined]
    for statement in body[index + 1 :]:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Name):
            targets = statement.targets
            copied = statement.value.id == name and len(targets) == 1
            if copied and isinstance(targets[0], ast.Name) and targets[0].id != name:
                continue
        kinds = (ast.Assign, ast.AnnAssign, ast.Return)
        if not isinstance(statement, kinds) or statement.value is None:
            return None
        if not all(isinstance(t, (ast.Name, ast.Tuple)) for t in _targets(statement)):
            return None
        first = next(_in_order(statement.value), None)
        if first is None or not _norm_call(first, me, norms):
            return None
        argument = first.args[0]
        return first if isinstance(argument, ast.Name) and argument.id == name else None
    return None


_SHAPES = ("shape", "dtype", "device", "ndim")


def _copied(statement: ast.stmt, names: Collection[str]) -> str | None:
    """The name that a statement stores the value of one of some names under, and no more."""
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None
    target, value = statement.targets[0], statement.value
    if not isinstance(target, ast.Name) or not isinstance(value, ast.Name):
        return None
    return target.id if value.id in names else None


def _is_seen(node: ast.AST, names: Collection[str], normed: ast.AST) -> bool:
    """Whether code does more with the values of names than to add to them, or multiply."""
    if isinstance(node, ast.Name):
        return node.id in names and not isinstance(node.ctx, ast.Store)
    if node is normed:
        return False
    if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
        return node.target.id in names or _is_seen(node.value, names, normed)
    read = isinstance(node, ast.BinOp) or (isinstance(node, ast.Attribute) and node.attr in _SHAPES)
    inner = (n for n in ast.iter_child_nodes(node) if not (read and isinstance(n, ast.Name)))
    return any(_is_seen(part, names, normed) for part in inner)


def _escapes(tree: ast.FunctionDef, body: list[ast.stmt], index: int, normed: ast.AST) -> bool:
    """Whether anything sees the sum of a statement as a tensor: its hooks, grad or version.

    NOTE: the gradient of the op's sum has no part that comes through the norm, and the op's
    backward wants the sum as it was.
    """
    names = {body[index].targets[0].id}  # type: ignore[attr-defined]
    for statement in body[index + 1 :]:
        copied = _copied(statement, names)
        if copied is not None:
            names.add(copied)
            continue
        if _is_seen(statement, names, normed):
            return True
        stored = [n.id for t in _targets(statement) for n in ast.walk(t) if isinstance(n, ast.Name)]
        names.difference_update(stored)
    if body is tree.body or not names:
        return False
    later = [n for n in ast.walk(tree) if isinstance(n, ast.stmt) and n is not tree]
    again = (ast.For, ast.While, ast.FunctionDef, ast.Lambda)
    if not any(isinstance(n, again) and n is not tree for n in ast.walk(tree)):
        end = body[-1].end_lineno or 0
        later = [n for n in later if n.lineno > end]
    return any(_is_seen(n, names, normed) for n in later)


class _Replace(ast.NodeTransformer):
    """Puts a node in the place of another one."""

    def __init__(self, old: ast.AST, new: ast.expr) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> Any:
        return self.new if node is self.old else self.generic_visit(node)


def _call(me: str, norm: str, total: ast.BinOp) -> ast.Call:
    call = ast.parse(f"{me}._fused_add_norm({norm!r}, None, None)", mode="eval").body
    assert isinstance(call, ast.Call)
    call.args[1:] = [total.left, total.right]
    for node in ast.walk(call):
        if "lineno" not in vars(node) and isinstance(node, ast.expr):
            ast.copy_location(node, total)
    return call


def _lists(node: ast.AST) -> Iterator[list[ast.stmt]]:
    for child in ast.walk(node):
        for name in ("body", "orelse", "finalbody"):
            inner = getattr(child, name, None)
            if isinstance(inner, list) and inner and isinstance(inner[0], ast.stmt):
                yield inner


def write_pairs(tree: ast.FunctionDef, norms: Collection[str], taken: set[int]) -> tuple[str, ...]:
    """Write pairs into a function's tree, not into lines that are taken: the norms in them."""
    me = (*tree.args.posonlyargs, *tree.args.args)[0].arg
    if any(isinstance(n, ast.Name) and n.id == _VALUE for n in ast.walk(tree)):
        return ()
    paired: list[str] = []
    for node in [n for n in ast.walk(tree) if _norm_call(n, me, norms)]:
        assert isinstance(node, ast.Call)
        inside = node.args[0]
        if not isinstance(inside, ast.BinOp) or not isinstance(inside.op, ast.Add):
            continue
        if node.lineno in taken:
            continue
        call = _call(me, node.func.attr, inside)  # type: ignore[attr-defined]
        first = ast.copy_location(ast.Subscript(call, ast.Constant(0), ast.Load()), node)
        _Replace(node, first).visit(tree)
        paired.append(node.func.attr)  # type: ignore[attr-defined]
    for body in list(_lists(tree)):
        for index, statement in enumerate(body):
            total = _sum(statement)
            found = None if total is None else _normed_next(body, index, me, norms)
            if total is None or found is None or {statement.lineno, found.lineno} & taken:
                continue
            if _escapes(tree, body, index, found):
                continue
            assert isinstance(statement, ast.Assign)
            both = [ast.Name(_VALUE, ast.Store()), statement.targets[0]]
            statement.targets = [ast.Tuple(both, ast.Store())]
            statement.value = _call(me, found.func.attr, total)
            for later in body[index + 1 :]:
                _Replace(found, ast.Name(_VALUE, ast.Load())).visit(later)
            paired.append(found.func.attr)
    ast.fix_missing_locations(tree)
    return tuple(dict.fromkeys(paired))
