"""Functions compiled anew from a tree of their source: which may be, and how."""

from __future__ import annotations
import __future__

import ast
from types import CellType, CodeType, FunctionType
from typing import Any


def is_plain(tree: ast.FunctionDef) -> bool:
    """Whether a function's local variables are its own affair."""
    refused = (ast.Yield, ast.YieldFrom, ast.Await, ast.Global, ast.Nonlocal, ast.Delete)
    nodes = list(ast.walk(tree))
    me = (*tree.args.posonlyargs, *tree.args.args)[:1]
    for node in nodes:
        if isinstance(node, refused) or _is_mangled(node):
            return False
        if isinstance(node, ast.Name):
            if node.id in ("locals", "eval", "exec", "vars"):
                return False
            if me and node.id == me[0].arg and isinstance(node.ctx, ast.Store):
                return False
    return bool(me)


def asks_class(tree: ast.FunctionDef) -> bool:
    """Whether a method compares the module's class, which becomes another one."""
    asked = ("type(self)", "self.__class__")
    parts = (part for n in ast.walk(tree) if isinstance(n, ast.Compare)
             for part in (n.left, *n.comparators))  # fmt: skip
    return any(ast.unparse(part) in asked for part in parts)


def _is_mangled(node: ast.AST) -> bool:
    """Whether a node has a name that means another one outside of its class: __name."""
    names = (getattr(node, kind, None) for kind in ("id", "attr", "arg", "name"))
    return any(isinstance(n, str) and n[:2] == "__" and n[-2:] != "__" for n in names)


def unwrapped(function: Any) -> list[Any]:
    """A function and what its decorators wrap, the innermost last."""
    layers = [function]
    while hasattr(layers[-1], "__wrapped__"):
        layers.append(layers[-1].__wrapped__)
    return layers


def rewrapped(layers: list[Any], new: FunctionType) -> Any:
    """The decorators around a new innermost function; None where they are of another kind."""
    for outer, inner in zip(layers[-2::-1], layers[:0:-1], strict=True):
        if type(outer) is not FunctionType or not outer.__closure__:
            return None
        cells = tuple(CellType(new) if _holds(cell, inner) else cell for cell in outer.__closure__)
        if sum(_holds(cell, inner) for cell in outer.__closure__) != 1:
            return None
        made = FunctionType(
            outer.__code__, outer.__globals__, outer.__name__, outer.__defaults__, cells
        )
        made.__kwdefaults__ = outer.__kwdefaults__
        made.__dict__.update(outer.__dict__, __wrapped__=new)
        made.__qualname__, made.__doc__ = outer.__qualname__, outer.__doc__
        new = made
    return new


def _holds(cell: Any, value: Any) -> bool:
    return cell != CellType() and cell.cell_contents is value


def _named(code: CodeType, name: str) -> CodeType:
    for value in code.co_consts:
        if isinstance(value, CodeType):
            return value if value.co_name == name else _named(value, name)
    raise ValueError(name)


def compiled(function: FunctionType, tree: ast.FunctionDef) -> FunctionType | None:
    """A function of a tree with the names, defaults and cells of another one."""
    tree.decorator_list = []
    tree.returns = None
    tree.args.defaults = []
    tree.args.kw_defaults = [None] * len(tree.args.kwonlyargs)
    for arg in ast.walk(tree.args):
        if isinstance(arg, ast.arg):
            arg.annotation = None
    free = function.__code__.co_freevars
    outer = ast.parse("def _outer():\n    pass").body[0]
    assert isinstance(outer, ast.FunctionDef)
    outer.body = [*(ast.parse(f"{name} = None").body[0] for name in free), tree]
    module = ast.fix_missing_locations(ast.Module([outer], []))
    file = function.__code__.co_filename
    future = function.__code__.co_flags & __future__.annotations.compiler_flag
    code = _named(compile(module, file, "exec", future, dont_inherit=True), tree.name)
    cells = dict(zip(free, function.__closure__ or (), strict=True))
    if not set(code.co_freevars) <= set(cells):
        return None
    made = FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__,
        tuple(cells[name] for name in code.co_freevars),
    )  # fmt: skip
    made.__kwdefaults__ = function.__kwdefaults__
    made.__dict__.update(function.__dict__)
    made.__qualname__, made.__doc__ = function.__qualname__, function.__doc__
    return made
