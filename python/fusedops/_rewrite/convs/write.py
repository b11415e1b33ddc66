"""Methods written anew with their convolutions as units.

A row of statements becomes ``if self._fused_conv_ready(i): the units; else: the same statements``.
"""

from __future__ import annotations

import ast
import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .graph import Condition, EndError, Graph, Inlined, Node
from .match import Match, Matcher, Unit

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FunctionType

_VALUE = "_fused_value_"  # what a rewritten method keeps a value under


@dataclass(frozen=True)
class Row:
    """Statements of a method with units, and what they depend on."""

    method: str
    units: tuple[Unit, ...]
    conditions: tuple[Condition, ...]
    inlined: tuple[Inlined, ...]


@dataclass
class Found:
    """A row, the statements that it stands for, and what is written for it."""

    row: Row
    index: int
    body: list[ast.stmt]
    start: int
    end: int
    written: list[ast.stmt]
    outside: list[tuple[Any, str, Any]]


def _lists(tree: ast.FunctionDef) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            inner = getattr(node, name, None)
            if isinstance(inner, list) and inner and isinstance(inner[0], ast.stmt):
                yield inner


def rows_of(
    module: Any, method: str, function: FunctionType, tree: ast.FunctionDef, first: int
) -> list[Found]:
    """The rows of a method's tree, numbered from `first` on."""
    found: list[Found] = []
    taken: set[int] = set()
    for body in _lists(tree):
        start = 0
        while start < len(body):
            if id(body[start]) in taken:
                start += 1
                continue
            one = _row(module, method, function, tree, body, start, first + len(found))
            if one is None:
                start += 1
                continue
            found.append(one)
            for statement in body[one.start : one.end]:
                taken.update(id(n) for n in ast.walk(statement))
            start = one.end
    return found


def _row(
    module: Any, method: str, function: FunctionType, tree: ast.FunctionDef,
    body: list[ast.stmt], start: int, index: int,
) -> Found | None:  # fmt: skip
    """The row that starts at a statement; None where no unit starts there."""
    graph, simple = Graph(module, function, tree), 0
    for statement in body[start:]:
        try:
            graph.add(statement)
        except EndError:
            break
        simple += 1
    matches = _matches(module, function, tree, body, start, start + simple)
    if matches is None:
        return None
    count = max(matches[2]) + 1
    again = _matches(module, function, tree, body, start, start + count)
    # NOTE: one that has no unit is part of the row where it names a value of it; without others a
    # later start finds the units.
    if again is None or not all(map(_is_name, body[start : start + min(again[2])])):
        return None
    graph, found, _ = again
    units = tuple(match.unit for match in found)
    row = Row(method, units, tuple(dict.fromkeys(graph.conditions)), tuple(graph.inlined))
    names = _read_outside(tree, body[start : start + count])
    written = _Writer(graph, found, index, names, body[start]).statements()
    return Found(row, index, body, start, start + count, written, graph.outside)


def _is_name(statement: ast.stmt) -> bool:
    """Whether a statement is another name for a variable."""
    return isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Name)


def _matches(
    module: Any, function: FunctionType, tree: ast.FunctionDef,
    body: list[ast.stmt], start: int, end: int,
) -> tuple[Graph, list[Match], set[int]] | None:  # fmt: skip
    """The graph of statements, its units, and the statements (from 0) that these are of."""
    graph = Graph(module, function, tree)
    where: dict[Node, int] = {}
    for i, statement in enumerate(body[start:end]):
        try:
            graph.add(statement)
        except EndError:
            return None
        for node in graph.nodes:
            where.setdefault(node, i)
    names = _read_outside(tree, body[start:end])
    kept = {node for name, node in graph.env.items() if name in names}
    kept |= {graph.result} if graph.result is not None else set()
    found = Matcher(graph, kept).find()
    if not found:
        return None
    inside = [node for match in found for node in match.nodes]
    return graph, found, {where[node] for node in inside if node in where}


def _read_outside(tree: ast.FunctionDef, statements: list[ast.stmt]) -> set[str]:
    """The names that a function reads in other statements than these."""
    inside = {id(n) for s in statements for n in ast.walk(s)}
    return {
        n.id for n in ast.walk(tree)
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load) and id(n) not in inside
    }  # fmt: skip


class _Writer:
    """Writes a graph as statements, each value freed behind its last reader."""

    def __init__(
        self, graph: Graph, matches: list[Match], index: int, names: set[str], at: ast.stmt
    ) -> None:
        self.graph, self.index, self.at = graph, index, at
        self.of = {match.nodes[-1]: (i, match) for i, match in enumerate(matches)}
        self.gone = {node for match in matches for node in match.nodes[:-1]}
        self.order = [n for n in graph.nodes if n.op != "input" and n not in self.gone]
        self.number = {node: i for i, node in enumerate(self.order)}
        self.bound = {
            name: node for name, node in graph.env.items()
            if name in names and not (node.op == "input" and node.name == name)
        }  # fmt: skip
        self.names = names

    def reads(self, node: Node) -> list[Node]:
        """The values that a written one is made of."""
        if node in self.of:
            match = self.of[node][1]
            return [match.input] + ([match.residual] if match.residual is not None else [])
        return [*node.args, *node.names.values()]

    def text(self, node: Node) -> str:
        """The name that a value has."""
        return node.name if node.op == "input" else f"{_VALUE}{self.number[node]}"

    def expression(self, node: Node) -> ast.expr:
        me = self.graph.me
        if node in self.of:
            i = self.of[node][0]
            parts = [self.text(part) for part in self.reads(node)]
            return _parsed(f"{me}._fused_conv({self.index}, {i}, {', '.join(parts)})")
        if node.op == "call":
            path = "".join(
                f".{name}" if name.isidentifier() else f"._modules[{name!r}]" for name in node.path
            )
            return _parsed(f"{me}{path}({self.text(node.args[0])})")
        if node.op == "act":
            call = copy.deepcopy(node.source)
            assert isinstance(call, ast.Call)
            call.args[0] = ast.Name(self.text(node.args[0]), ast.Load())
            return call
        if node.op == "add" and node.in_place:
            one, two = (self.text(arg) for arg in node.args)
            return _parsed(f"{me}._fused_sum({one}, {two})")
        if node.op == "add":
            return _parsed(" + ".join(self.text(arg) for arg in node.args))
        expression = copy.deepcopy(node.source)
        assert expression is not None
        renamed = {name: self.text(value) for name, value in node.names.items()}
        for part in ast.walk(expression):
            if isinstance(part, ast.Name) and part.id in renamed:
                part.id = renamed[part.id]
        return expression

    def statements(self) -> list[ast.stmt]:
        """The statements, those that bind the names behind them last."""
        last: dict[Node, int] = {}
        for i, node in enumerate(self.order):
            for read in self.reads(node):
                last[read] = i
        kept = {*self.bound.values(), self.graph.result}
        made: list[ast.stmt] = []
        for i, node in enumerate(self.order):
            target: ast.expr = ast.Name(self.text(node), ast.Store())
            match = self.of[node][1] if node in self.of else None
            if match is not None and match.unit.hands_on:
                handed = ast.Name(self.text(match.input), ast.Store())
                target = ast.Tuple([target, handed], ast.Store())
            made.append(ast.Assign([target], self.expression(node)))
            done = [n for n, at in last.items() if at == i and n not in kept and self._may_go(n)]
            if done:
                targets: list[ast.expr] = [ast.Name(self.text(n), ast.Store()) for n in done]
                made.append(ast.Assign(targets, ast.Constant(None)))
        if self.graph.result is not None:
            made.append(ast.Return(ast.Name(self.text(self.graph.result), ast.Load())))
        elif self.bound:
            one = ast.Tuple([ast.Name(name, ast.Store()) for name in self.bound], ast.Store())
            values = [ast.Name(self.text(node), ast.Load()) for node in self.bound.values()]
            made.append(ast.Assign([one], ast.Tuple([*values], ast.Load())))
            temporary = {self.text(n) for n in self.bound.values() if n.op != "input"}
            if temporary:
                names: list[ast.expr] = [ast.Name(t, ast.Store()) for t in sorted(temporary)]
                made.append(ast.Assign(names, ast.Constant(None)))
        for statement in made:
            for part in ast.walk(statement):
                ast.copy_location(part, self.at)
        return made

    def _may_go(self, node: Node) -> bool:
        """Whether nothing behind reads a variable as it was before."""
        return node.op != "input" or node.name not in self.names or node.name in self.bound


def _parsed(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def put(found: list[Found], me: str) -> None:
    """Write rows into the tree that they were found in."""
    for one in sorted(found, key=lambda f: f.start, reverse=True):
        index = one.written[0]
        test = _parsed(f"{me}._fused_conv_ready({one.index})")
        choice = ast.If(test, one.written, one.body[one.start : one.end])
        for part in (choice, *ast.walk(test)):
            ast.copy_location(part, index)
        one.body[one.start : one.end] = [choice]
