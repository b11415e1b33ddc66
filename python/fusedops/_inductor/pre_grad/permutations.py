"""Rows in the order of a permutation, as mixtures of experts have tokens by expert and back.

torch cannot know that an index names every row once, so that its gradient adds rows with atomics,
or sorts the index first. What `sort` gives is a permutation, and what is written at its places the
inverse of it: the gradient is a gather, too, and that of a token that goes to several experts a sum
of a few rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..report import ReplacedSite, where
from .axes import arguments, name_of, shape_of
from .node_pass import NodePass, as_ours
from .permuted_rows import permuted_rows
from .values import OURS, constant, is_changed, value_of

if TYPE_CHECKING:
    from torch.fx import Graph, Node


_EMPTY = ("empty_like", "zeros_like", "empty", "zeros", "new_empty", "new_zeros")


OURS[permuted_rows] = lambda *_: []


class PermutationPass(NodePass):
    """Replaces gathers by permutations where they have a gradient."""

    def visit(self, graph: Graph, node: Node) -> None:
        if name_of(node) not in ("getitem", "index_select"):
            return
        found = _gather(graph, node)
        if found is None:
            return
        with graph.inserting_before(node):
            new = graph.call_function(permuted_rows, found)
        new.meta = as_ours(node.meta)
        shape = " x ".join(map(str, shape_of(node) or ()))
        why = "the gradient is a gather, without atomics"
        self.report.replaced.append(
            ReplacedSite("permuted_rows", where(node), shape, "none", True, why)
        )
        node.replace_all_uses_with(new)
        graph.erase_node(node)


def _gather(graph: Graph, node: Node) -> tuple[Any, ...] | None:
    """The arguments of `permuted_rows` that is a gather; None where it is anything else."""
    if name_of(node) == "getitem":
        x, index = node.args
    else:
        x, dim, index = arguments(node, "input", "dim", "index")
        if dim != 0:
            return None
    shape, value = shape_of(x), value_of(x)
    if shape is None or value is None or not value.requires_grad:
        return None
    order, copies = _without_copies(index)
    found = None if order is None else _permutation(graph, order, node)
    count = shape_of(order)
    if found is None or count != (shape[0] * copies,):
        return None
    return x, order, found[0], copies


def _without_copies(index: Any) -> tuple[Any, int]:
    """(order, copies) of an index order // copies."""
    if not isinstance(index, torch.fx.Node):
        return None, 1
    if name_of(index) != "floordiv":
        return index, 1
    order, copies = index.args
    return (order, copies) if type(copies) is int and copies > 0 else (None, 1)


def _permutation(graph: Graph, order: Node, reader: Node) -> tuple[Node | None] | None:
    """(the inverse, where it is known,) of a permutation; None for another index."""
    shape = shape_of(order)
    if shape is None or len(shape) != 1:
        return None
    if _is_sorted(order):
        return None if is_changed(graph.nodes, [order]) else (None,)
    if name_of(order) not in _EMPTY:
        return None
    writes = [user for user in order.users if name_of(user) == "setitem" and user.args[0] is order]
    if len(writes) != 1 or not writes[0] < reader:
        return None
    _, at, numbers = writes[0].args
    if not isinstance(at, torch.fx.Node) or not _is_sorted(at) or shape_of(at) != shape:
        return None
    value = constant(graph, numbers) if isinstance(numbers, torch.fx.Node) else None
    if value is None or value.tolist() != list(range(shape[0])):
        return None
    others = [user for user in order.users if user is not writes[0]]
    if any(name_of(user) not in ("getitem", "index_select", "permuted_rows") for user in others):
        return None
    calls = (node for node in graph.nodes if node is not writes[0])
    return None if is_changed(calls, [order, at]) else (at,)


def _is_sorted(order: Node) -> bool:
    """Whether a node is the places of what a sort of one dimension has put in order."""
    if name_of(order) == "argsort":
        return True
    if name_of(order) != "getitem" or order.args[1] != 1:
        return False
    given: Any = order.args[0]
    return isinstance(given, torch.fx.Node) and name_of(given) == "sort"
