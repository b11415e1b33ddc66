"""A tensor whose rows of a batch are all the same, as one of them.

Models make a bias of attention as large as the batch where they hide positions by a mask that has
copies for all of it. Functions that read one row for all spare the copies, and their gradient.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .axes import CASTS, name_of, shape_of
from .values import constant, is_changed, plain_torch, value_of

if TYPE_CHECKING:
    from torch import Tensor
    from torch.fx import Graph, Node

# Functions of tensors that are broadcast, element by element.
_ELEMENTWISE = {"where", "add", "sub", "mul", "masked_fill"}


def one_of_batch(graph: Graph, node: Node) -> Node | None:
    """A node with the first row of another one; None where rows may differ, or there is one."""
    shape = shape_of(node)
    if shape is None or shape[0] < 2:
        return None
    maker = _Maker(graph, len(shape), shape[0])
    made = maker.row(node)
    if made is None or is_changed(graph.nodes, maker.read):
        for one in reversed(maker.made):
            graph.erase_node(one)
        return None
    return made


class _Maker:
    def __init__(self, graph: Graph, rank: int, batch: int) -> None:
        self.graph, self.rank, self.batch = graph, rank, batch
        self.read: list[Node] = []
        self.made: list[Node] = []

    def row(self, node: Node) -> Node | None:
        """The first row of a node, in the rank of the result."""
        shape = shape_of(node)
        if shape is None:
            return None
        self.read.append(node)
        if len(shape) < self.rank or shape[0] == 1:
            return node
        if len(shape) > self.rank or shape[0] != self.batch:
            return None
        value = constant(self.graph, node)
        if value is not None:
            return self.first(node) if _has_copies(value) else None
        if name_of(node) == "expand":
            given = shape_of(node.args[0])
            spread = given is not None and (len(given) < self.rank or given[0] == 1)
            return self.first(node) if spread else None
        if name_of(node) not in _ELEMENTWISE | CASTS or "out" in node.kwargs:
            return None
        return self.again(node)

    def again(self, node: Node) -> Node | None:
        """The call of a node on first rows."""
        rows = {one: self.row(one) for one in node.all_input_nodes}
        if any(row is None for row in rows.values()):
            return None
        with self.graph.inserting_before(node):
            new = self.graph.node_copy(node, lambda one: rows[one] or one)
        return self.named(new, node)

    def first(self, node: Node) -> Node:
        """The first row, as a view."""
        with self.graph.inserting_after(node):
            new = self.graph.call_method("narrow", (node, 0, 0, 1))
        return self.named(new, node)

    def named(self, new: Node, node: Node) -> Node:
        value: Any = value_of(node)
        new.meta = {**node.meta, "example_value": value.narrow(0, 0, 1)}
        self.made.append(new)
        return new


def _has_copies(value: Tensor) -> bool:
    with plain_torch():
        return bool(torch.equal(value, value[:1].expand_as(value)))
