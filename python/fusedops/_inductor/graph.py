"""A joint graph of AOTAutograd as the pass reads it: products, views, directions, pointwise nodes.

Forward and backward are in one graph, in ATen. A node counts as backward where a tangent reaches
it: nodes from an autograd.Function's backward carry no tag of their own.
"""

from __future__ import annotations

import functools
import heapq
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.fx import Node

if TYPE_CHECKING:
    from collections.abc import Iterable

aten = torch.ops.aten
CONVERT = torch.ops.prims.convert_element_type.default
VIEWS = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)
# Views and copies that keep the order of the elements
SAME_ORDER = {
    *VIEWS,
    aten.alias.default,
    aten.clone.default,
    aten.detach.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.unsqueeze.default,
}
SAME_VALUES = {*SAME_ORDER, CONVERT}
CONSTANTS = {aten.scalar_tensor.default: 0, aten.full.default: 1}
Tag = torch.Tag


def is_call(node: Any, *targets: Any) -> bool:
    return isinstance(node, Node) and node.op == "call_function" and node.target in targets


def value(node: Node) -> Any:
    """The fake tensor that stands for a node's result."""
    return node.meta.get("val")


def is_tensor(node: Node) -> bool:
    return isinstance(value(node), torch.Tensor)


def dtype_of(node: Node) -> torch.dtype:
    dtype: torch.dtype = value(node).dtype
    return dtype


def shape_of(node: Node) -> tuple[Any, ...]:
    return tuple(value(node).shape)


def equal_sizes(a: Any, b: Any) -> bool:
    """Whether two sizes are the same for every input; adds no guard."""
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return bool(statically_known_true(a == b))


def same_shape(a: Node, b: Node) -> bool:
    one, two = shape_of(a), shape_of(b)
    return len(one) == len(two) and all(map(equal_sizes, one, two))


def is_constant(node: Node) -> bool:
    return is_call(node, *CONSTANTS) and isinstance(node.args[CONSTANTS[node.target]], (int, float))


def is_pointwise(node: Node) -> bool:
    """Whether element i of the result depends on element i of each input and on nothing else."""
    if node.op != "call_function" or not is_tensor(node):
        return False
    if node.target in SAME_VALUES:
        return True
    tags = getattr(node.target, "tags", ())
    return Tag.pointwise in tags and Tag.nondeterministic_seeded not in tags


def bare(node: Any) -> Any:
    """The node behind views that keep the order of the elements."""
    while is_call(node, *SAME_ORDER):
        node = node.args[0]
    return node


def same_elements(a: Node, b: Node) -> bool:
    """Whether two nodes hold the same elements in the same order."""
    return origin(a) == origin(b)


def origin(node: Node) -> tuple[Node, tuple[torch.dtype, ...]]:
    """What a node is behind views and casts, and those casts: equal ones hold equal elements."""
    casts = []
    while is_call(node, *SAME_VALUES):
        if node.target is CONVERT:
            casts.append(node.args[1])
        node = node.args[0]
    return node, tuple(casts)


# ---- products ----


class Operand(NamedTuple):
    """A matrix, or the transpose of one; pairs of transposes are looked through."""

    base: Node
    transposed: bool


def transposes(node: Node) -> bool:
    """Whether a node is the transpose of a matrix."""
    if is_call(node, aten.permute.default):
        return list(node.args[1]) == [1, 0]
    if is_call(node, aten.transpose.int):
        return len(shape_of(node)) == 2 and {d % 2 for d in node.args[1:]} == {0, 1}
    return is_call(node, aten.t.default) and len(shape_of(node)) == 2


def operand(node: Node) -> Operand:
    transposed = False
    while transposes(node):
        node, transposed = node.args[0], not transposed
    return Operand(node, transposed)


@dataclass(frozen=True)
class Product:
    """An mm or addmm: a (M, K) times b (K, N), plus bias (N,)."""

    node: Node
    a: Node
    b: Node
    bias: Node | None

    @property
    def sizes(self) -> tuple[Any, Any, Any]:
        """M, N and K."""
        return *shape_of(self.node), shape_of(self.a)[1]

    @property
    def left(self) -> Operand:
        return operand(self.a)

    @property
    def right(self) -> Operand:
        return operand(self.b)


def read_product(node: Node) -> Product | None:
    if is_call(node, aten.mm.default) and not node.kwargs:
        return Product(node, node.args[0], node.args[1], None)
    if is_call(node, aten.addmm.default) and not node.kwargs and len(node.args) == 3:
        bias, a, b = node.args
        if len(shape_of(bias)) == 1:
            return Product(node, a, b, bias)
    return None


def layer_weights_match(forward: Product, backward: Product) -> bool:
    """Whether the backward product multiplies by the transpose of the forward one's weight."""
    one, two = forward.right, backward.right
    return one.transposed != two.transposed and same_elements(one.base, two.base)


# ---- the whole graph ----


class Joint:
    """One graph, read once; read anew after each rewrite."""

    def __init__(self, graph: torch.fx.Graph) -> None:
        self.graph = graph
        self.nodes = list(graph.nodes)
        self.index = {node: i for i, node in enumerate(self.nodes)}
        self.output = self.nodes[-1]
        self.backward = reached_from(tangents(graph))
        products = [p for p in map(read_product, self.nodes) if p is not None]
        self.forward_products = [p for p in products if p.node not in self.backward]
        self.backward_products = [p for p in products if p.node in self.backward]

    def in_order(self, nodes: Iterable[Node]) -> list[Node]:
        return sorted(nodes, key=self.index.__getitem__)

    def closure(self, leaves: Iterable[Node]) -> list[Node]:
        """The pointwise functions of the leaves, which are of one size, in order."""
        leaves = tuple(leaves)
        inside = set(leaves)
        size = value(leaves[0]).numel()
        heap = [self.index[u] for leaf in leaves for u in leaf.users]
        heapq.heapify(heap)
        found: list[Node] = []
        last = -1
        while heap:
            at = heapq.heappop(heap)
            if at == last:
                continue
            last, node = at, self.nodes[at]
            if node in inside or not is_pointwise(node):
                continue
            inputs = [i for i in node.all_input_nodes if is_tensor(i)]
            if not all(i in inside or is_constant(i) for i in inputs):
                continue
            if not equal_sizes(value(node).numel(), size):
                continue
            inside.add(node)
            found.append(node)
            for user in node.users:
                heapq.heappush(heap, self.index[user])
        return found

    def leaves(self, node: Node, limit: int) -> list[Node] | None:
        """What a node is a pointwise function of; None where that is more than `limit` nodes."""
        found: dict[Node, None] = {}
        seen: set[Node] = set()
        stack = [node]
        while stack:
            at = stack.pop()
            if at in seen or is_constant(at):
                continue
            seen.add(at)
            if is_pointwise(at):
                stack += [i for i in at.all_input_nodes if is_tensor(i)]
                continue
            found[at] = None
            if len(found) > limit:
                return None
        return self.in_order(found)

    def is_alive(self, node: Node, replaced: set[Node], needed: set[Node]) -> bool:
        """Whether a node is still computed where others stand for the replaced ones."""
        seen = set(replaced)
        stack = [node]
        while stack:
            at = stack.pop()
            if at in seen:
                continue
            if at is self.output or at in needed or at in self.effects:
                return True
            seen.add(at)
            stack += at.users
        return False

    def depends_on(self, nodes: Iterable[Node], targets: Iterable[Node]) -> bool:
        """Whether any of the nodes is, or is computed from, one of the targets."""
        wanted = set(targets)
        first = min((self.index[n] for n in wanted), default=len(self.nodes))
        seen: set[Node] = set()
        stack = list(nodes)
        while stack:
            node = stack.pop()
            if node in wanted:
                return True
            if node not in seen and self.index[node] > first:
                seen.add(node)
                stack += node.all_input_nodes
        return False

    def sizes_of(self, node: Node) -> list[Any] | None:
        """A node's shape as arguments of a view; None where the graph has no node for a size."""
        known = [s if isinstance(s, int) else self._sizes.get(str(s), -1) for s in shape_of(node)]
        forward = node not in self.backward
        sizes = [-1 if forward and s in self.backward else s for s in known]
        return sizes if sizes.count(-1) < 2 else None

    @functools.cached_property
    def _sizes(self) -> dict[str, Node]:
        """The nodes of symbolic sizes, the first of each."""
        found = (n for n in reversed(self.nodes) if isinstance(value(n), torch.SymInt))
        return {str(value(n)): n for n in found}

    @functools.cached_property
    def picks_elements(self) -> bool:
        """Whether there is a gather, as in every cross entropy."""
        return any(is_call(n, aten.gather.default) for n in self.nodes)

    @functools.cached_property
    def effects(self) -> set[Node]:
        """Nodes that are there for what they do, not for a result."""
        return {n for n in self.nodes if n.op == "call_function" and not n.users and n.is_impure()}


def erase_unread(graph: torch.fx.Graph, nodes: Iterable[Node]) -> None:
    """Erase those of the nodes that nothing reads, and what only they read."""
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if node._erased or node.users or node.op != "call_function" or node.is_impure():
            continue
        stack += node.all_input_nodes
        graph.erase_node(node)


def tangents(graph: torch.fx.Graph) -> list[Node]:
    """The inputs that are gradients: with them backward begins."""
    return [n for n in graph.nodes if n.op == "placeholder" and "tangents" in str(n.target)]


def reached_from(nodes: Iterable[Node]) -> set[Node]:
    seen: set[Node] = set()
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            stack += node.users
    return seen


def item_of(node: Node) -> tuple[Node, int] | None:
    """(tuple, index) of a getitem."""
    return (node.args[0], node.args[1]) if is_call(node, operator.getitem) else None
