"""Expressions over an accumulator and operands: nodes that are shared, folded and evaluated."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

MOST_NODES = 256
LONGEST_TEXT = 2000
ACCUMULATOR = "acc"
BEHIND = "dy"  # the gradient that comes in

UNARY: dict[str, Callable[..., Any]] = {
    "neg": torch.neg,
    "exp": torch.exp,
    "log": torch.log,
    "sqrt": torch.sqrt,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "erf": torch.erf,
    "normal_cdf": torch.special.ndtr,
    "sin": torch.sin,
    "cos": torch.cos,
}
BINARY: dict[str, Callable[..., Any]] = {
    "add": torch.add,
    "mul": torch.mul,
    "div": torch.div,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "pow": torch.pow,
    "lt": torch.lt,
    "le": torch.le,
    "eq": torch.eq,
}
COMPARISONS = ("lt", "le", "eq")


@dataclass(frozen=True, eq=False)
class Node:
    """A leaf (`input` of a name, `const` of a value) or an operation; made by a Builder only."""

    op: str
    args: tuple[Node, ...] = ()
    value: float | str = ""

    def text(self) -> str:
        """The expression, for people; "..." stands for arguments that are long."""
        words: dict[int, str] = {}
        for node in order([self]):
            args = ", ".join(words[id(arg)] for arg in node.args)
            if node.op in ("input", "const"):
                words[id(node)] = f"{node.value:g}" if isinstance(node.value, float) else node.value
            else:
                words[id(node)] = f"{node.op}({args if len(args) <= LONGEST_TEXT else '...'})"
        return words[id(self)]


class Builder:
    """Makes nodes: equal ones once, of constants a constant, without what does nothing."""

    def __init__(self) -> None:
        self._nodes: dict[Any, Node] = {}

    def input(self, name: str) -> Node:
        return self._make("input", (), name)

    def const(self, value: float) -> Node:
        return self._make("const", (), float(value))

    def unary(self, op: str, x: Node) -> Node:
        if op == "neg" and x.op == "neg":
            return x.args[0]
        if x.op == "const":
            return self.const(_fold(UNARY[op], x))
        return self._make(op, (x,))

    def binary(self, op: str, a: Node, b: Node) -> Node:
        if a.op == b.op == "const" and op not in COMPARISONS:
            return self.const(_fold(BINARY[op], a, b))
        if op in ("add", "mul") and a.op == "const":
            a, b = b, a  # a constant stands behind
        if b.op == "const":
            if (op == "add" and b.value == 0) or (op in ("mul", "div", "pow") and b.value == 1):
                return a
            if op == "pow" and b.value == 0:
                return self.const(1)
            if op == "pow" and b.value == 2:
                return self.binary("mul", a, a)
            if op == "mul" and b.value == -1:
                return self.unary("neg", a)
        return self._make(op, (a, b))

    def where(self, condition: Node, a: Node, b: Node) -> Node:
        return a if a is b else self._make("where", (condition, a, b))

    def node(self, op: str, args: tuple[Node, ...], value: float | str) -> Node:
        """A node as it was made elsewhere."""
        return self._make(op, args, value)

    def zero(self, x: Node) -> bool:
        return x.op == "const" and x.value == 0

    def _make(self, op: str, args: tuple[Node, ...], value: float | str = "") -> Node:
        # NOTE: repr tells 0.0 from -0.0, and NaN equals itself.
        key = (op, tuple(map(id, args)), repr(value))
        if key not in self._nodes:
            if len(self._nodes) >= 8 * MOST_NODES:
                raise ValueError("epilogue: the derived backward is too large")
            self._nodes[key] = Node(op, args, value)
        return self._nodes[key]


def _fold(function: Callable[..., Any], *args: Node) -> float:
    return float(function(*(torch.tensor(arg.value, dtype=torch.float64) for arg in args)))


def order(outputs: list[Node]) -> list[Node]:
    """All nodes below the outputs, arguments first."""
    found: dict[int, Node] = {}
    ahead = list(reversed(outputs))
    while ahead:
        missing = [arg for arg in ahead[-1].args if id(arg) not in found]
        if missing:
            ahead.extend(reversed(missing))
        else:
            node = ahead.pop()
            found[id(node)] = node
    return list(found.values())


def inputs_of(node: Node) -> set[str]:
    """The names of the inputs that a node depends on."""
    return {str(n.value) for n in order([node]) if n.op == "input"}


def evaluate(outputs: list[Node], values: dict[str, Tensor]) -> list[Tensor]:
    """By torch's ops, each node once."""
    like = next(iter(values.values()))
    done: dict[int, Tensor] = {}
    for node in order(outputs):
        args = [done[id(arg)] for arg in node.args]
        if node.op == "input":
            done[id(node)] = values[str(node.value)]
        elif node.op == "const":
            done[id(node)] = like.new_full((), float(node.value))
        elif node.op == "where":
            done[id(node)] = torch.where(*args)
        else:
            done[id(node)] = (UNARY.get(node.op) or BINARY[node.op])(*args)
    return [done[id(output)] for output in outputs]


TWO_OVER_SQRT_PI, ONE_OVER_SQRT_2PI = 2 / math.sqrt(math.pi), 1 / math.sqrt(2 * math.pi)
