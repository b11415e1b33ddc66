"""What groups gather: rows of clouds by one index, less a centre, side by side in channels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from .axes import Layout, arguments, is_move, layout_of, moved, name_of, shape_of
from .values import constant, is_changed, plain_torch, value_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.fx import Graph, Node

_SPREADS = ("expand", "expand_as", "repeat", "broadcast_to")


class Part(NamedTuple):
    """Channels of a group: source[b, idx[b, m, k]], less centers[b, m], over a radius.

    Without an index they are source[b, m], the group's own.
    """

    source: Node  # (B, N, C)
    idx: Node | None  # (B, M, K)
    centers: Node | None = None  # (B, M, C)
    radius: float | None = None


class Gathered(NamedTuple):
    """A tensor of such channels, whose axes are b, m, k and c."""

    layout: Layout
    parts: tuple[Part, ...]
    nodes: tuple[Node, ...]  # that it is made of, from the gathers on

    def behind(self, node: Node, *, part: Part | None = None) -> Gathered:
        """What a node makes of the only part."""
        return Gathered(self.layout, (part,) if part else self.parts, (*self.nodes, node))


def gathered(graph: Graph, node: Any) -> Gathered | None:
    """What a node has gathered; None where it is anything else."""
    if not isinstance(node, torch.fx.Node) or not node.op.startswith("call"):
        return None
    if is_move(node):
        inner = gathered(graph, node.args[0])
        layout = None if inner is None else moved(inner.layout, node)
        return (
            None if inner is None or layout is None else inner._replace(layout=layout).behind(node)
        )
    match name_of(node):
        case "cat" | "concat" | "concatenate":
            return _joined(graph, node)
        case "sub" | "isub" | "sub_":
            return _offsets(graph, node)
        case "truediv" | "itruediv" | "div" | "div_" | "true_divide":
            return _scaled(graph, node, divides=True)
        case "mul" | "imul" | "mul_" | "multiply":
            return _scaled(graph, node, divides=False)
        case "getitem":
            return _indexed(graph, node)
        case "gather":
            return _taken(node)
        case _:
            return _own(node) if _spreads(node) else None


# ---- moves between a tensor of three dimensions and what is made of it ----


def _unmoved(node: Any, *, past: bool = False) -> tuple[Any, tuple[int, ...], list[Node]] | None:
    """The nearest tensor of three dimensions that a node has moved or spread, and how.

    past: Not the node itself.
    """
    moves: list[Node] = []
    while (past and not moves) or len(shape_of(node) or ()) != 3:
        if not is_move(node) and not _spreads(node):
            return None
        moves.append(node)
        node = node.args[0]
    shape = shape_of(node)
    return None if shape is None else (node, shape, moves[::-1])


def _spreads(node: Any) -> bool:
    """Whether a node has its argument's values, along dimensions of one element again and again."""
    if not isinstance(node, torch.fx.Node) or name_of(node) not in _SPREADS:
        return False
    before, now = shape_of(node.args[0]), shape_of(node)
    if before is None or now is None or len(before) != len(now):
        return False
    return all(a in (1, b) for a, b in zip(before, now, strict=True))


def _through(axes: str, shape: Sequence[int], moves: Sequence[Node]) -> Layout | None:
    """Where the axes of a tensor lie behind moves; what is spread counts as one element."""
    layout: Layout | None = layout_of(axes, shape)
    for move in moves:
        if layout is not None and not _spreads(move):
            layout = moved(layout, move)
    return layout


def _with_channels(dims: tuple[tuple[str, ...], ...], layout: Layout, count: int) -> Layout:
    """The layout of rows, channels last, that an index of this layout has gathered."""
    return Layout((*dims, ("c",) if count > 1 else ()), {**layout.sizes, "c": count})


# ---- gathers ----


def _indexed(graph: Graph, node: Node) -> Gathered | None:
    """source[batch, idx], or rows of all clouds by one index."""
    source, index = node.args
    shape = shape_of(source)
    index = index if isinstance(index, tuple) else (index,)
    while len(index) > 1 and (index[-1] is Ellipsis or index[-1] == slice(None)):
        index = index[:-1]
    if shape is not None and (len(shape), len(index)) == (2, 1):
        return _indexed_rows(graph, node, index[0])
    if shape is None or (len(shape), len(index)) != (3, 2):
        return None
    batch, idx = index
    places, found = shape_of(idx), _unmoved(idx)
    if places is None or found is None or not _counts(graph, batch, places):
        return None
    groups, groups_shape, moves = found
    layout = None if any(map(_spreads, moves)) else _through("bmk", groups_shape, moves)
    # The first dimension of an index that is moved is that of clouds still.
    if layout is None or not _is_index(groups) or not layout.is_at("b", 0):
        return None
    return Gathered(_with_channels(layout.dims, layout, shape[2]), (Part(source, groups),), (node,))


def _is_index(node: Any) -> bool:
    value = value_of(node)
    return value is not None and value.dtype is torch.int64


def _counts(graph: Graph, node: Any, places: Sequence[int], step: int = 1) -> bool:
    """Whether a constant numbers the first dimension of these places."""
    value = constant(graph, node) if isinstance(node, torch.fx.Node) else None
    if value is None or value.dtype is torch.bool or value.is_floating_point():
        return False
    with plain_torch():
        numbers = (step * torch.arange(places[0])).view(-1, *(1 for _ in places[1:]))
        try:
            return bool((value.expand(*places) == numbers).all())
        except RuntimeError:
            return False


def _indexed_rows(graph: Graph, node: Node, index: Any) -> Gathered | None:
    """source.view(B N, C)[idx + N b], for an index of the largest or smallest of N."""
    rows = node.args[0]
    found, flat = _unmoved(rows), shape_of(rows)
    numbers: list[Node] = []
    while is_move(index) and name_of(index) != "add":
        numbers.append(index)
        index = index.args[0]
    if found is None:
        return None
    source, shape, moves = found
    as_rows = _through("bnc", shape, moves)
    idx, places = _within_clouds(graph, index, shape), shape_of(index)
    if idx is None or places is None or as_rows is None:
        return None
    if any(map(_spreads, moves)) or as_rows != layout_of("bnc", shape).reshaped(flat or ()):
        return None
    layout = _through("bmk", places, numbers[::-1])
    if layout is None:
        return None
    return Gathered(_with_channels(layout.dims, layout, shape[2]), (Part(source, idx),), (node,))


def _within_clouds(graph: Graph, node: Any, shape: Sequence[int]) -> Node | None:
    """The index (B, M, K) of which a sum has made numbers of rows of all clouds (B, N, C)."""
    places = shape_of(node)
    if places is None or name_of(node) != "add" or len(places) != 3 or len(node.args) != 2:
        return None
    for idx, first in (node.args, node.args[::-1]):
        mine = shape_of(idx) == places and _is_of_top(idx, shape[1])
        same = mine and not is_changed(graph.nodes, [idx])
        if same and places[0] == shape[0] and _counts(graph, first, places, shape[1]):
            found: Node = idx
            return found
    return None


def _is_of_top(node: Any, count: int) -> bool:
    """Whether a node is the places that topk found among so many, none of which is negative."""
    if not isinstance(node, torch.fx.Node) or name_of(node) != "getitem" or node.args[1] != 1:
        return False
    top: Any = node.args[0]
    shape, dim = shape_of(top.args[0]), arguments(top, "input", "k", "dim")[2]
    if name_of(top) != "topk" or shape is None:
        return False
    return shape[-1 if dim is None else dim] == count


def _taken(node: Node) -> Gathered | None:
    """source.gather(1, index), with an index of every channel."""
    source, dim, index = arguments(node, "input", "dim", "index")
    shape = shape_of(source)
    if shape is None or len(shape) != 3 or dim not in (1, -2) or not _spreads(index):
        return None
    narrow, wide = shape_of(index.args[0]), shape_of(index)
    if wide is None or narrow != (*wide[:-1], 1) or (wide[0], wide[2]) != (shape[0], shape[2]):
        return None
    found = _unmoved(index.args[0], past=True)
    if found is None or any(map(_spreads, found[2])):
        return None
    groups, groups_shape, moves = found
    layout = _through("bmk", groups_shape, moves)
    if layout is None or not _is_index(groups) or not layout.is_at("b", 0):
        return None
    layout = _with_channels(layout.dims[:-1], layout, shape[2])
    return Gathered(layout, (Part(source, groups),), (node,))


def _own(node: Node) -> Gathered | None:
    """Rows of the groups themselves, the same for all neighbours."""
    found = _unmoved(node, past=True)
    before, now = shape_of(node.args[0]), shape_of(node)
    if found is None or before is None or now is None:
        return None
    source, shape, moves = found
    layout = _through("bmc", shape, moves)
    grown = [i for i, (a, b) in enumerate(zip(before, now, strict=True)) if a != b]
    if layout is None or len(grown) != 1 or any(map(_spreads, moves[:-1])):
        return None
    layout = Layout(layout.dims, {**layout.sizes, "k": 1}).resized("k", now[grown[0]], grown[0])
    return Gathered(layout, (Part(source, None),), (node,))


# ---- what is made of them ----


def _joined(graph: Graph, node: Node) -> Gathered | None:
    """Channels side by side."""
    tensors, dim = arguments(node, "tensors", "dim")
    dim = node.kwargs.get("axis", 0) if dim is None else dim
    all_found = [gathered(graph, one) for one in tensors]
    found = [one for one in all_found if one is not None]
    if not found or len(found) < len(all_found) or type(dim) is not int:
        return None
    layout = found[0].layout
    dim %= len(layout.dims)

    def others(one: Layout) -> list[Any]:
        """All but the channels."""
        dims = [axes for i, axes in enumerate(one.dims) if i != dim]
        return [*dims, *(one.sizes[axis] for axis in "bmk")]

    for one in found:
        if not one.layout.is_at("c", dim) or others(one.layout) != others(layout):
            return None
    return Gathered(
        layout.resized("c", sum(one.layout.sizes["c"] for one in found), dim),
        tuple(part for one in found for part in one.parts),
        (*(inner for one in found for inner in one.nodes), node),
    )


def _operands(graph: Graph, node: Node) -> tuple[Gathered, Part, Any] | None:
    """What a call with two arguments has gathered, its only part, and the other argument."""
    if len(node.args) != 2 or node.kwargs or not _changes_alone(node):
        return None
    inner = gathered(graph, node.args[0])
    if inner is None or len(inner.parts) != 1 or shape_of(node) != shape_of(node.args[0]):
        return None
    return inner, inner.parts[0], node.args[1]


def _changes_alone(node: Node) -> bool:
    """Whether nothing else reads what a call may change in place."""
    name, given = name_of(node), node.args[0]
    if not name.startswith("i") and not name.endswith("_"):
        return True
    while isinstance(given, torch.fx.Node) and len(given.users) == 1:
        if not is_move(given):
            return True
        given = given.args[0]
    return False


def _offsets(graph: Graph, node: Node) -> Gathered | None:
    """Rows less their centre."""
    found = _operands(graph, node)
    if found is None or found[1].centers is not None or found[1].idx is None:
        return None
    inner, part, less = found
    centers = _centers(less, inner.layout)
    return None if centers is None else inner.behind(node, part=part._replace(centers=centers))


def _centers(node: Any, like: Layout) -> Node | None:
    """The centres (B, M, C) of what is broadcast to a gathered tensor."""
    wanted = tuple(like.sizes[axis] for axis in "bmc")
    moves: list[Node] = []
    while shape_of(node) != wanted:
        if not is_move(node) and not _spreads(node):
            return None
        moves.append(node)
        node = node.args[0]
    layout = _through("bmc", wanted, moves[::-1])
    if layout is None or len(layout.dims) != len(like.dims):
        return None
    pairs = zip(layout.dims, like.dims, strict=True)
    fits = all(mine == theirs or (mine == () and theirs == ("k",)) for mine, theirs in pairs)
    return node if fits else None


def _scaled(graph: Graph, node: Node, *, divides: bool) -> Gathered | None:
    """Offsets over a radius."""
    found = _operands(graph, node)
    if found is None or found[1].centers is None or found[1].radius is not None:
        return None
    inner, part, by = found
    if type(by) not in (int, float) or not 0 < by < float("inf"):
        return None
    return inner.behind(node, part=part._replace(radius=float(by) if divides else 1 / float(by)))
