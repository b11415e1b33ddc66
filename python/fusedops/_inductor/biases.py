"""Products whose bias is added behind them, as the one addmm that they are.

``F.linear`` of an x that lies otherwise in memory (behind a permutation, as in ResMLP) is an mm, a
view and the add of the bias; of a contiguous x it is one addmm, which is what the pass reads. Where
nothing of ours takes it, Inductor has it: it writes addmm for the two as well, or the add into the
pointwise code behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .graph import VIEWS, aten, dtype_of, equal_sizes, erase_unread, is_call, is_tensor, shape_of

if TYPE_CHECKING:
    from torch.fx import Graph, Node


def join_biases(graph: Graph) -> None:
    """Write an addmm for every mm whose result is read to add a bias and for nothing else."""
    from torch._inductor.pattern_matcher import stable_topological_sort

    joined = False
    for node in graph.find_nodes(op="call_function", target=aten.add.Tensor):
        found = _sum(node)
        if found is not None:
            _join(graph, node, *found)
            joined = True
    if joined:
        stable_topological_sort(graph)


def _sum(add: Node) -> tuple[Node, Any, Any] | None:
    """(mm, it or its view that is added, bias) of an add."""
    if add.kwargs or len(add.args) != 2:
        return None
    for one, two in (add.args, add.args[::-1]):
        product = _product(one)
        if product is not None and _is_bias(two, product, one):
            return product, one, two
    return None


def _product(node: Any) -> Node | None:
    """The mm that a node is or is the view of, where nothing else reads them."""
    while is_call(node, *VIEWS) and len(node.users) == 1:
        node = node.args[0]
    bare = is_call(node, aten.mm.default) and not node.kwargs and len(node.users) == 1
    return node if bare else None


def _is_bias(node: Any, product: Node, added: Any) -> bool:
    """Whether a node is one number for each column of the product."""
    if not hasattr(node, "meta") or not is_tensor(node):
        return False
    columns = shape_of(product)[1]
    return (
        len(shape_of(node)) == 1
        and dtype_of(node) is dtype_of(product)
        and equal_sizes(shape_of(node)[0], columns)
        and equal_sizes(shape_of(added)[-1], columns)
    )


def _join(graph: Graph, add: Node, product: Node, added: Node, bias: Node) -> None:
    """The graph is left to be sorted."""
    with graph.inserting_before(add):
        joined = graph.call_function(aten.addmm.default, (bias, *product.args))
    joined.meta = dict(product.meta)
    product.replace_all_uses_with(joined)
    add.replace_all_uses_with(joined if added is product else added)
    erase_unread(graph, [add, product])
