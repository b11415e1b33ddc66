"""What a row of statements in a method computes: calls of the module's children, sums, the rest.

A branch on a plain attribute of the module (``if self.downsample is not None``) is taken as it
would be now, and what it depended on is noted.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import nn as torch_nn

from ..activations import DEFAULT_FUNCTIONS, PLAIN_FUNCTIONS
from ..chains import Path, base_of, child
from ..forward_code import module_of
from ..sequential import in_order

if TYPE_CHECKING:
    from types import FunctionType

_FUNCTIONS = {**PLAIN_FUNCTIONS, **DEFAULT_FUNCTIONS}
_REFUSED = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.NamedExpr,
            ast.Await, ast.Yield, ast.YieldFrom)  # fmt: skip
_MISSING = object()


@dataclass(eq=False)
class Node:
    """One value. op: "input" (a variable), "call" (a child), "act", "add" or "other"."""

    op: str
    args: list[Node] = field(default_factory=list)
    path: Path = ()  # of a called child
    name: str = ""  # of a variable, or an activation
    source: ast.expr | None = None  # of "act" and "other"
    names: dict[str, Node] = field(default_factory=dict)  # what its variables are
    in_place: bool = False  # of a sum
    users: int = 0


@dataclass(frozen=True)
class Condition:
    """What a branch depended on: an attribute that is None, or what it is as a truth value."""

    name: str
    asks_none: bool
    value: bool

    def holds(self, module: Any) -> bool:
        """Whether it is still so."""
        now = getattr(module, self.name, _MISSING)
        return (now is None if self.asks_none else bool(now)) is self.value


@dataclass(frozen=True)
class Inlined:
    """An nn.Sequential whose modules are called one by one."""

    path: Path
    kind: type  # before it was fused itself
    keys: tuple[str, ...]


class EndError(Exception):
    """The row ends before this statement."""


class Graph:
    """Statements of a function of a module, one after the other."""

    def __init__(self, module: Any, function: FunctionType, tree: ast.FunctionDef) -> None:
        self.module, self.function = module, function
        self.me = (*tree.args.posonlyargs, *tree.args.args)[0].arg
        code = function.__code__
        self.local = {*code.co_varnames, *code.co_cellvars}
        self.nodes: list[Node] = []
        self.env: dict[str, Node] = {}
        self.result: Node | None = None
        self.conditions: list[Condition] = []
        self.inlined: list[Inlined] = []
        self.outside: list[tuple[Any, str, Any]] = []  # functions: (owner, name, value)

    def add(self, statement: ast.stmt) -> None:
        """Take a statement in.

        Raises:
            EndError: It may do more than to compute, or branches on something else.
        """
        if self.result is not None:
            raise EndError
        if isinstance(statement, ast.If):
            for inner in self._branch(statement):
                self.add(inner)
        elif isinstance(statement, ast.Return) and statement.value is not None:
            self.result = self.value(statement.value)
        elif isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            self.env[self._target(statement.targets[0])] = self.value(statement.value)
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            self.env[self._target(statement.target)] = self.value(statement.value)
        elif isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Add):
            name = self._target(statement.target)
            left = self._name(name)
            self.env[name] = self._node(
                Node("add", [left, self.value(statement.value)], in_place=True)
            )
        else:
            raise EndError

    def _branch(self, statement: ast.If) -> list[ast.stmt]:
        test, turned = statement.test, False
        while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            test, turned = test.operand, not turned
        none = False
        if isinstance(test, ast.Compare) and len(test.ops) == 1:
            against = test.comparators[0]
            if not isinstance(test.ops[0], (ast.Is, ast.IsNot)):
                raise EndError
            if not isinstance(against, ast.Constant) or against.value is not None:
                raise EndError
            none, turned = True, turned is not isinstance(test.ops[0], ast.IsNot)
            test = test.left
        if not isinstance(test, ast.Attribute) or not self._is_me(test.value):
            raise EndError
        now = getattr(self.module, test.attr, _MISSING)
        plain = now is None or isinstance(now, (bool, int, float, str, torch_nn.Module))
        if not plain or test.attr == "training":
            raise EndError
        value = now is None if none else bool(now)
        self.conditions.append(Condition(test.attr, none, value))
        return statement.orelse if value is turned else statement.body

    def _is_me(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and node.id == self.me

    def _target(self, node: ast.expr) -> str:
        if not isinstance(node, ast.Name) or node.id == self.me or node.id not in self.local:
            raise EndError
        return node.id

    def _name(self, name: str) -> Node:
        if name not in self.env:
            self.env[name] = self._node(Node("input", name=name))
        return self.env[name]

    def _node(self, node: Node) -> Node:
        for arg in {id(a): a for a in (*node.args, *node.names.values())}.values():
            arg.users += 1
        self.nodes.append(node)
        return node

    def value(self, node: ast.expr) -> Node:
        """The value of an expression."""
        if isinstance(node, ast.Name) and node.id in self.local and node.id != self.me:
            return self._name(node.id)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return self._node(Node("add", [self.value(node.left), self.value(node.right)]))
        if isinstance(node, ast.Call):
            path = self._path(node.func)
            if path and self._only_argument(node, 0):
                return self._node(Node("call", [self.value(node.args[0])], path))
            name = self._activation(node)
            if name is not None:
                return self._node(Node("act", [self.value(node.args[0])], name=name, source=node))
        return self._other(node)

    @staticmethod
    def _only_argument(node: ast.Call, constants: int) -> bool:
        """Whether a call has one argument, and constants behind it: of `inplace`."""
        if not node.args or isinstance(node.args[0], ast.Starred):
            return False
        rest = [*node.args[1:], *(k.value for k in node.keywords if k.arg == "inplace")]
        if len(node.args) + len(node.keywords) != 1 + len(rest) or len(rest) > constants:
            return False
        return all(isinstance(value, ast.Constant) for value in rest)

    def _path(self, node: ast.expr) -> Path:
        """The path of the child that an expression names; empty where it names none."""
        names: list[str] = []
        while isinstance(node, ast.Attribute):
            names.append(node.attr)
            node = node.value
        if not self._is_me(node) or not names:
            return ()
        path = tuple(names[::-1])
        return path if isinstance(child(self.module, path), torch_nn.Module) else ()

    def _activation(self, node: ast.Call) -> str | None:
        owner, name = self._resolve(node.func)
        value = getattr(owner, name, None) if name else None
        if value is F.gelu and len(node.args) == 1 and not node.keywords:
            found: str | None = "gelu"
        else:
            known = callable(value) and getattr(value, "__hash__", None) is not None
            found = _FUNCTIONS.get(value) if known else None
            if not self._only_argument(node, 1):
                found = None
        if found is not None:
            self.outside.append((owner, name, value))
        return found

    def _resolve(self, node: ast.expr) -> tuple[Any, str]:
        """The owner and the name of a function outside."""
        if isinstance(node, ast.Name) and node.id not in self.local:
            if node.id in self.function.__code__.co_freevars:
                return None, ""
            return module_of(self.function), node.id
        if isinstance(node, ast.Attribute):
            owner, name = self._resolve(node.value)
            inner = getattr(owner, name, None) if name else None
            if inner in (torch, torch.nn, F):
                self.outside.append((owner, name, inner))
                return inner, node.attr
        return None, ""

    def _other(self, node: ast.expr) -> Node:
        names: dict[str, Node] = {}
        for part in ast.walk(node):
            if isinstance(part, _REFUSED):
                raise EndError
            if isinstance(part, ast.Name) and part.id in self.local and part.id != self.me:
                names[part.id] = self._name(part.id)
        return self._node(Node("other", source=node, names=names))

    def inline(self, node: Node) -> None:
        """Call the modules of an nn.Sequential by themselves, those of its last one too."""
        container = child(self.module, node.path)
        keys = tuple(container._modules)
        self.inlined.append(Inlined(node.path, base_of(container), keys))
        at, path, last = self.nodes.index(node), node.path, node.args[0]
        made = []
        for key in keys[:-1]:
            last = Node("call", [last], (*path, key), users=1)
            made.append(last)
        node.args, node.path = [last], (*path, keys[-1])
        self.nodes[at:at] = made
        if is_inlinable(child(self.module, node.path)):
            self.inline(node)


def is_inlinable(module: Any) -> bool:
    """Whether a module is an nn.Sequential that runs its modules in order and does no more."""
    if not isinstance(module, torch_nn.Sequential) or not module._modules:
        return False
    return in_order(base_of(module)) and "forward" not in vars(module)
