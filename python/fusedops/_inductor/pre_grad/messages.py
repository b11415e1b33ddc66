"""Messages of a graph network: rows of nodes gathered by edges and summed by their other ends.

torch writes a row of every edge and adds it with atomics, in half precision one value at a time. A
sum by sorted edges reads rows of nodes where they lie: half of the bytes, no atomics, float32 sums.
Edges are the same in all layers, and so is their order: it is formed once a step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ..._autograd.edge_sum import edge_sum, pays
from ..report import ReplacedSite, where
from .axes import arguments, is_move, name_of, shape_of
from .node_pass import NodePass, as_ours
from .values import OURS, dtype_of, is_undisturbed, value_of

if TYPE_CHECKING:
    from torch.fx import Graph, Node

_SPREADS = ("expand", "expand_as", "broadcast_to")

OURS[edge_sum] = lambda *_: []


class Messages(NamedTuple):
    """The arguments of `edge_sum`, and the nodes that it stands for."""

    x: Node  # (N, C)
    source: Node  # (E,)
    target: Node  # (E,)
    weights: Any  # (E, 1), constant, or None
    results: int
    wraps: bool  # whether a negative source counts from the end
    nodes: tuple[Node, ...]


class MessagePass(NodePass):
    """Replaces sums of messages."""

    def visit(self, graph: Graph, node: Node) -> None:
        found = messages(node)
        if found is not None and (self.force or _pays(found)):
            self._replace(graph, node, found)

    def _replace(self, graph: Graph, node: Node, found: Messages) -> None:
        read = [n for n in found[:4] if n is not None]
        if not is_undisturbed(graph, found.nodes, read, ()):
            return
        with graph.inserting_before(node):
            new = graph.call_function(edge_sum, found[:6])
        new.meta = as_ours(node.meta)
        shape = " x ".join(map(str, (*_shape(found.source), *_shape(found.x))))
        why = "rows of nodes in the order of edges, without atomics"
        training = bool(getattr(value_of(node), "requires_grad", False))
        self.report.replaced.append(
            ReplacedSite("edge_sum", where(node), shape, "none", training, why)
        )
        node.replace_all_uses_with(new)
        for one in found.nodes:
            if not one.users:
                graph.erase_node(one)


def _shape(node: Any) -> tuple[int, ...]:
    return shape_of(node) or ()


def _pays(found: Messages) -> bool:
    x = value_of(found.x)
    return x is not None and pays(x, _shape(found.source)[0])


def messages(node: Node) -> Messages | None:
    """The messages that a call sums; None for another call."""
    name = name_of(node)
    if name in ("scatter_add", "scatter_add_"):
        zeros, dim, index, rows = arguments(node, "input", "dim", "index", "src")
        target = _spread_end(index)
    elif name in ("index_add", "index_add_") and "alpha" not in node.kwargs:
        zeros, dim, target, rows = arguments(node, "input", "dim", "index", "source")
        index = target
    else:
        return None
    weighted, weights = _weighted(rows)
    gathered = _gathered(weighted)
    if gathered is None or target is None or dim not in (0, -2) or not _is_zero(zeros, node):
        return None
    x, source, wraps = gathered
    given, out, edges = shape_of(x), shape_of(node), _shape(rows)
    if given is None or out is None or (len(given), len(edges)) != (2, 2):
        return None
    if not given[1] == edges[1] == out[1] or not _shape(source) == _shape(target) == edges[:1]:
        return None
    if shape_of(index) not in (edges[:1], edges) or dtype_of(x) is not dtype_of(node):
        return None
    mine = (node, zeros, *(() if index is target else (index,)), *dict.fromkeys((rows, weighted)))
    for one in (rows, weighted):
        if any(user not in mine and not _asks_for_shape(user) for user in one.users):
            return None
    return Messages(x, source, target, weights, out[0], wraps, mine)


def _asks_for_shape(node: Node) -> bool:
    """Whether a call takes nothing but a shape and a dtype from its first argument."""
    return name_of(node) in ("new_zeros", "new_ones", "new_full", "new_empty", "size")


def _weighted(rows: Any) -> tuple[Any, Any]:
    """(rows, weights) of rows times constant weights (E, 1), or of rows alone."""
    if not isinstance(rows, torch.fx.Node) or name_of(rows) != "mul" or len(rows.args) != 2:
        return rows, None
    for weights, weighted in (rows.args, rows.args[::-1]):
        value, shape = value_of(weights), shape_of(weighted)
        if value is None or shape is None or tuple(value.shape) != (shape[0], 1):
            continue
        other = value_of(weighted)
        if other is not None and value.dtype is other.dtype and not value.requires_grad:
            return weighted, weights
    return rows, None


def _is_zero(zeros: Any, reader: Node) -> bool:
    """Whether a node is zeros that one call alone reads."""
    known = isinstance(zeros, torch.fx.Node) and name_of(zeros) in ("zeros", "new_zeros")
    return known and set(zeros.users) == {reader}


def _spread_end(index: Any) -> Node | None:
    """The end (E,) of edges that an index (E, C) repeats for every channel."""
    if not isinstance(index, torch.fx.Node) or name_of(index) not in _SPREADS:
        return None
    end, shape = index.args[0], shape_of(index)
    if shape is None or len(shape) != 2 or shape_of(end) != (shape[0], 1):
        return None
    while is_move(end) and len(_shape(end)) != 1:
        end = end.args[0]
    return end if isinstance(end, torch.fx.Node) else None


def _gathered(rows: Any) -> tuple[Node, Node, bool] | None:
    """(x, index, whether it counts from the end where it is negative) of rows x[index]."""
    if not isinstance(rows, torch.fx.Node):
        return None
    if name_of(rows) == "index_select":
        x, dim, index = arguments(rows, "input", "dim", "index")
        return (x, index, False) if dim in (0, -2) else None
    if name_of(rows) != "getitem":
        return None
    x, index = rows.args
    if not isinstance(index, torch.fx.Node) or dtype_of(index) is not torch.int64:
        return None
    return (x, index, True) if isinstance(x, torch.fx.Node) else None
