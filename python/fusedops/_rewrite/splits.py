"""Query, key and value as parts of one product, whose gradient is put together in its layout.

``qkv = f(x).permute(2, 0, 3, 1, 4)`` and then ``qkv.unbind(0)`` or ``qkv[0], qkv[1], qkv[2]``, or
``qkv = f(x).transpose(1, 2)`` and then ``qkv.chunk(3, -1)``: autograd puts the gradients of the
parts together in the permuted order and copies that back, and for each index it fills a tensor of
all parts and adds them up. Where the parts are taken first and permuted then, which gives the same
views, their gradients come together once, as the product wants them.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterator


class SplitCalls:
    """Mixed into the class of a module whose methods take parts of permuted tensors."""

    @staticmethod
    def _fused_unbound(
        x: Any, order: tuple[int, ...], count: int, indexed: bool = False
    ) -> tuple[Any, ...]:
        """x.permute(order).unbind(0), or so many parts by their indices."""
        if type(x) is Tensor and len(order) == x.dim() and x.shape[order[0]] == count:
            first, *rest = (d % len(order) for d in order)
            inner = [d - (d > first) for d in rest]
            return tuple(part.permute(inner) for part in x.unbind(first))
        whole = x.permute(*order)
        return tuple(whole[i] for i in range(count)) if indexed else tuple(whole.unbind(0))

    @staticmethod
    def _fused_chunked(x: Any, one: int, two: int, count: int, dim: int) -> tuple[Any, ...]:
        """x.transpose(one, two).chunk(count, dim)."""
        if type(x) is Tensor and dim % x.dim() not in (one % x.dim(), two % x.dim()):
            return tuple(part.transpose(one, two) for part in x.chunk(count, dim))
        return tuple(x.transpose(one, two).chunk(count, dim))


def _numbers(call: ast.Call, names: tuple[str, ...] = ()) -> list[int] | None:
    """The arguments of a call, integers all of them."""
    given = [*call.args]
    if len(given) == 1 and isinstance(given[0], (ast.Tuple, ast.List)) and not call.keywords:
        given = given[0].elts
    if call.keywords:
        rest = {k.arg: k.value for k in call.keywords}
        if list(rest) != list(names[len(given) :]):
            return None
        given += rest.values()
    found = []
    for node in given:
        sign = 1
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            sign, node = -1, node.operand
        if not isinstance(node, ast.Constant) or type(node.value) is not int:
            return None
        found.append(sign * node.value)
    return found


def _method(node: ast.AST, name: str) -> ast.expr | None:
    """What a call of a method is of."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.value if node.func.attr == name else None
    return None


def _parts(node: ast.expr, count: int) -> tuple[ast.expr, str, list[int]] | None:
    """(whole, "unbind" or "chunk", arguments) of so many parts; no arguments: by indices."""
    if isinstance(node, ast.Tuple):
        wholes = [n.value for n in node.elts if isinstance(n, ast.Subscript)]
        places = [n.slice for n in node.elts if isinstance(n, ast.Subscript)]
        called = {n.id if isinstance(n, ast.Name) else "" for n in wholes}
        indices = [n.value if isinstance(n, ast.Constant) else None for n in places]
        if len(called) == 1 and "" not in called and indices == [*range(count)]:
            return wholes[0], "unbind", []
        return None
    for name, names in (("unbind", ("dim",)), ("chunk", ("chunks", "dim"))):
        whole = _method(node, name)
        numbers = None if whole is None else _numbers(node, names)  # type: ignore[arg-type]
        if whole is None or numbers is None:
            continue
        if name == "unbind" and numbers in ([], [0]):
            return whole, name, [0]
        if name == "chunk" and len(numbers) == 2 and numbers[0] == count:
            return whole, name, numbers
    return None


def _split(me: str, whole: ast.expr, kind: str, numbers: list[int], count: int) -> str | None:
    """The source of the parts of a permuted tensor, but for that tensor; None where it is none."""
    method = "permute" if kind == "unbind" else "transpose"
    if _method(whole, method) is None:
        return None
    order = _numbers(whole)  # type: ignore[arg-type]
    if order is None or (kind == "unbind" and len(set(order)) != len(order)):
        return None
    if kind == "unbind":
        text = f"{me}._fused_unbound(0, {tuple(order)!r}, {count}, {not numbers})"
        return text if len(order) > 2 else None
    both = ", ".join(map(str, (*order, *numbers)))
    return f"{me}._fused_chunked(0, {both})" if len(order) == 2 else None


def _changed(tree: ast.FunctionDef, names: set[str]) -> bool:
    """Whether values of names may be changed in place, which parts taken at once may not be."""
    for node in ast.walk(tree):
        if isinstance(node, ast.AugAssign):
            inner = {n.id for n in ast.walk(node.target) if isinstance(n, ast.Name)}
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            ends = node.func.attr.endswith("_") and not node.func.attr.startswith("_")
            inner = (
                {n.id for n in ast.walk(node.func) if isinstance(n, ast.Name)} if ends else set()
            )
        elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            inner = {n.id for n in ast.walk(node.value) if isinstance(n, ast.Name)}
        else:
            continue
        if inner & names:
            return True
    return False


def _read_alone(tree: ast.FunctionDef, names: set[str]) -> bool:
    """Whether values of names go into arithmetic, methods and torch's functions alone: code that
    may change them, as it may a part by its index, is handed none of them.
    """
    above = {inner: node for node in ast.walk(tree) for inner in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Name) or node.id not in names:
            continue
        user = above[node]
        user = above[user] if isinstance(user, ast.keyword) else user
        if isinstance(node.ctx, ast.Store) or isinstance(user, (ast.BinOp, ast.Attribute)):
            continue
        function = ast.unparse(user.func) if isinstance(user, ast.Call) else ""
        if not function.startswith(("torch.", "F.", "nn.functional.")) or function.endswith("_"):
            return False
    return True


def _lists(tree: ast.FunctionDef) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            inner = getattr(node, name, None)
            if isinstance(inner, list) and inner and isinstance(inner[0], ast.stmt):
                yield inner


def _whole(
    tree: ast.FunctionDef, body: list[ast.stmt], index: int, name: ast.expr
) -> ast.expr | None:
    """What the statement before stores under a name that nothing reads later."""
    before = body[index - 1] if index else None
    if not isinstance(name, ast.Name) or not isinstance(before, ast.Assign):
        return None
    target = before.targets[0]
    if len(before.targets) != 1 or not isinstance(target, ast.Name) or target.id != name.id:
        return None
    names = [n for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id == name.id]
    end = body[index].end_lineno or 0
    inner = (ast.Lambda, ast.FunctionDef, ast.GeneratorExp)
    for node in ast.walk(tree):
        if isinstance(node, (ast.For, ast.While)):
            return None
        if isinstance(node, inner) and node is not tree and any(n in names for n in ast.walk(node)):
            return None
    return None if any(n.lineno > end for n in names) else before.value


def _rewrite(tree: ast.FunctionDef, me: str, body: list[ast.stmt], index: int) -> str | None:
    """Take parts first in a statement of a list; what is taken apart, for reports."""
    statement = body[index]
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None
    targets = statement.targets[0]
    if not isinstance(targets, ast.Tuple) or not all(isinstance(t, ast.Name) for t in targets.elts):
        return None
    names = [t.id for t in targets.elts if isinstance(t, ast.Name)]
    parts = _parts(statement.value, len(names))
    if parts is None or _changed(tree, set(names)):
        return None
    if not parts[2] and not _read_alone(tree, set(names)):
        return None
    named = isinstance(parts[0], ast.Name)
    whole = _whole(tree, body, index, parts[0]) if named else parts[0]
    text = None if whole is None else _split(me, whole, *parts[1:], len(names))
    if text is None:
        return None
    call: Any = ast.parse(text, mode="eval").body
    call.args[0] = whole.func.value  # type: ignore[union-attr]
    for node in ast.walk(call):
        if isinstance(node, ast.expr) and "lineno" not in vars(node):
            ast.copy_location(node, statement)
    statement.value = call
    if named:
        del body[index - 1]
    return "+".join(names)


def write_splits(tree: ast.FunctionDef) -> tuple[str, ...]:
    """Let a function take parts of a tensor before it permutes: the names of the parts, by "+"."""
    me = (*tree.args.posonlyargs, *tree.args.args)[0].arg
    found: list[str] = []
    for body in _lists(tree):
        for index in reversed(range(len(body))):
            names = _rewrite(tree, me, body, index)
            if names is not None:
                found.insert(0, names)
    ast.fix_missing_locations(tree)
    return tuple(found)
