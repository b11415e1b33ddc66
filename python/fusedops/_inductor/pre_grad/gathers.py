"""What groups gather: rows of clouds by one index, less a centre, side by side in channels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from .axes import Layout, arguments, is_move, layout_of, moved, name_of, shape_of
from .values import constant, value_of

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
    """A tensor of such channels."""

    layout: Layout
    parts: tuple[Part, ...]
    nodes: tuple[Node, ...]  # that it is made of, from the gathers on

    def behind(self, node: Node, layout: Layout | None, *parts: Part) -> Gathered | None:
        """What a node makes of it."""
        if layout is None:
            return None
        return Gathered(layout, parts or self.parts, (*self.nodes, node))


def gathered(graph: Graph, node: Any) -> Gathered | None:
    """What a node has gathered; None where it is anything else."""
    if not isinstance(node, torch.fx.Node) or not node.op.startswith("call"):
        return None
    if is_move(node):
        inner = gathered(graph, node.args[0])
        return None if inner is None else inner.behind(node, moved(inner.layout, node))
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
        case name if name in _SPREADS:
            return _own(node)
        case _:
            return None


def _indexed(graph: Graph, node: Node) -> Gathered | None:
    """source[batch, idx]."""
    source, index = node.args
    shape = shape_of(source)
    if shape is not None and len(shape) == 2:
        return _indexed_rows(graph, node)
    if shape is None or len(shape) != 3 or not isinstance(index, tuple) or len(index) < 2:
        return None
    batch, idx, *more = index
    if any(one is not Ellipsis and one != slice(None) for one in more):
        return None
    places = shape_of(idx)
    if places is None or places[0] != shape[0] or not _counts(graph, batch, places):
        return None
    return _rows(node, source, idx, shape)


def _indexed_rows(graph: Graph, node: Node) -> Gathered | None:
    """source.view(B N, C)[idx + N b], for an index of the largest or smallest of N."""
    rows, index = node.args
    index, *more = index if isinstance(index, tuple) else (index,)
    moves: list[Node] = []
    while is_move(index) and name_of(index) not in ("add", "iadd"):
        moves.append(index)
        index = index.args[0]
    source = rows
    while is_move(source) and len(shape_of(source) or ()) != 3:
        source = source.args[0]
    shape, flat = shape_of(source), shape_of(node.args[0])
    if shape is None or len(shape) != 3 or flat != (shape[0] * shape[1], shape[2]):
        return None
    if any(one is not Ellipsis and one != slice(None) for one in more):
        return None
    idx = _within_clouds(graph, index, shape)
    if idx is None or layout_of("bnc", shape).reshaped(flat) is None:
        return None
    layout: Layout | None = layout_of("bmk", shape_of(idx) or ())
    for move in reversed(moves):
        layout = None if layout is None else moved(layout, move)
    if layout is None:
        return None
    channels = ("c",) if shape[2] > 1 else ()
    layout = Layout((*layout.dims, channels), {**layout.sizes, "c": shape[2]})
    return Gathered(layout, (Part(source, idx),), (node,))


def _within_clouds(graph: Graph, node: Any, shape: Sequence[int]) -> Node | None:
    """The index (B, M, K) of which a sum has made numbers of rows of all clouds."""
    if not isinstance(node, torch.fx.Node) or name_of(node) not in ("add", "iadd"):
        return None
    places = shape_of(node)
    if places is None or len(places) != 3 or places[0] != shape[0] or len(node.args) != 2:
        return None
    for idx, first in (node.args, node.args[::-1]):
        if _counts(graph, first, places, shape[1]) and _is_of_top(idx, shape[1]):
            return idx if shape_of(idx) == places else None  # type: ignore[return-value]
    return None


def _is_of_top(node: Any, count: int) -> bool:
    """Whether a node is the places that topk found among so many, none of which is negative."""
    if not isinstance(node, torch.fx.Node) or name_of(node) != "getitem" or node.args[1] != 1:
        return False
    top: Any = node.args[0]
    dim = arguments(top, "input", "k", "dim")[2]
    shape = shape_of(top.args[0])
    return (
        name_of(top) == "topk" and shape is not None and shape[-1 if dim is None else dim] == count
    )


def _counts(graph: Graph, node: Any, places: Sequence[int], step: int = 1) -> bool:
    """Whether a constant numbers the first dimension of these places."""
    value = constant(graph, node) if isinstance(node, torch.fx.Node) else None
    if value is None or value.dtype is torch.bool or value.is_floating_point():
        return False
    with torch.utils._python_dispatch._disable_current_modes():
        numbers = (step * torch.arange(places[0])).view(-1, *(1 for _ in places[1:]))
        try:
            return bool((value.expand(places) == numbers).all())
        except RuntimeError:
            return False


def _taken(node: Node) -> Gathered | None:
    """source.gather(1, idx of every channel)."""
    source, dim, index = arguments(node, "input", "dim", "index")
    shape = shape_of(source)
    if shape is None or len(shape) != 3 or dim not in (1, -2):
        return None
    if not _spreads(index):
        return None
    narrow, wide = shape_of(index.args[0]), shape_of(index)
    assert narrow is not None
    assert wide is not None
    if narrow != (*wide[:-1], 1) or len(wide) != 3 or (wide[0], wide[2]) != (shape[0], shape[2]):
        return None
    return _rows(node, source, index.args[0], shape, spreads=True)


def _rows(
    node: Node, source: Any, idx: Any, shape: Sequence[int], *, spreads: bool = False
) -> Gathered | None:
    """Rows of a source by an index, whose last dimension stands for the channels if it spreads."""
    found = _groups(idx, behind=spreads)
    if found is None:
        return None
    groups, layout = found
    dims = layout.dims[:-1] if spreads else layout.dims
    if layout.dims[0] != (("b",) if shape[0] > 1 else ()):
        return None
    channels = ("c",) if shape[2] > 1 else ()
    layout = Layout((*dims, channels), {**layout.sizes, "c": shape[2]})
    return Gathered(layout, (Part(source, groups),), (node,))


def _spreads(node: Any) -> bool:
    """Whether a node has its argument's values, along dimensions of one element again and again."""
    if not isinstance(node, torch.fx.Node) or name_of(node) not in _SPREADS:
        return False
    before, now = shape_of(node.args[0]), shape_of(node)
    if before is None or now is None or len(before) != len(now):
        return False
    return all(a in (1, b) for a, b in zip(before, now, strict=True))


def _groups(idx: Any, *, behind: bool) -> tuple[Node, Layout] | None:
    """The index (B, M, K) that is moved to another one, which is not it if it is behind."""
    moves: list[Node] = []
    while is_move(idx) and ((behind and not moves) or len(shape_of(idx) or ()) != 3):
        moves.append(idx)
        idx = idx.args[0]
    shape, value = shape_of(idx), value_of(idx)
    if shape is None or value is None or len(shape) != 3 or value.dtype is not torch.int64:
        return None
    layout: Layout | None = layout_of("bmk", shape)
    for node in reversed(moves):
        layout = None if layout is None else moved(layout, node)
    return None if layout is None else (idx, layout)


def _own(node: Node) -> Gathered | None:
    """Rows of the groups themselves, the same for all neighbours."""
    moves: list[Node] = []
    source: Any = node
    while (is_move(source) or _spreads(source)) and (not moves or len(shape_of(source) or ()) != 3):
        moves.append(source)
        source = source.args[0]
    shape = shape_of(source)
    if shape is None or len(shape) != 3 or not _spreads(node):
        return None
    layout: Layout | None = layout_of("bmc", shape)
    for move in reversed(moves[1:]):
        if _spreads(move):
            return None
        layout = None if layout is None else moved(layout, move)
    before, now = shape_of(node.args[0]), shape_of(node)
    assert before is not None
    assert now is not None
    grown = [i for i, (a, b) in enumerate(zip(before, now, strict=True)) if a != b]
    if layout is None or len(grown) != 1:
        return None
    layout = Layout(layout.dims, {**layout.sizes, "k": 1}).resized("k", now[grown[0]], grown[0])
    return Gathered(layout, (Part(source, None),), (node,))


def _joined(graph: Graph, node: Node) -> Gathered | None:
    """Channels side by side."""
    tensors, dim = arguments(node, "tensors", "dim")
    dim = node.kwargs.get("axis", 0) if dim is None else dim
    found = [gathered(graph, one) for one in tensors]
    known = [one for one in found if one is not None]
    if not known or len(known) < len(found) or type(dim) is not int:
        return None
    layout = known[0].layout
    count = len(layout.dims)
    dim %= count
    for one in known:
        rest = [d for i, d in enumerate(one.layout.dims) if i != dim]
        same = all(one.layout.sizes[axis] == layout.sizes[axis] for axis in "bmk")
        if not same or not one.layout.is_at("c", dim):
            return None
        if rest != [d for i, d in enumerate(layout.dims) if i != dim]:
            return None
    parts = tuple(part for one in known for part in one.parts)
    nodes = tuple(inner for one in known for inner in one.nodes)
    width = sum(one.layout.sizes["c"] for one in known)
    return Gathered(layout.resized("c", width, dim), parts, (*nodes, node))


def _changes_alone(node: Node) -> bool:
    """Whether what a call may change in place has no other reader."""
    first = node.args[0]
    in_place = name_of(node).startswith("i") or name_of(node).endswith("_")
    return not in_place or (isinstance(first, torch.fx.Node) and len(first.users) == 1)


def _offsets(graph: Graph, node: Node) -> Gathered | None:
    """Rows less their centre."""
    if len(node.args) != 2 or node.kwargs or not _changes_alone(node):
        return None
    inner = gathered(graph, node.args[0])
    if inner is None or len(inner.parts) != 1:
        return None
    if inner.parts[0].centers is not None or inner.parts[0].idx is None:
        return None
    centers = _centers(node.args[1], inner.layout)
    if centers is None or shape_of(node) != shape_of(node.args[0]):
        return None
    return inner.behind(node, inner.layout, inner.parts[0]._replace(centers=centers))


def _centers(node: Any, like: Layout) -> Node | None:
    """The centres (B, M, C) of what is broadcast to a gathered tensor."""
    wanted = tuple(like.sizes[axis] for axis in "bmc")
    moves: list[Node] = []
    while shape_of(node) != wanted:
        if not is_move(node) and not _spreads(node):
            return None
        moves.append(node)
        node = node.args[0]
    layout: Layout | None = layout_of("bmc", wanted)
    for move in reversed(moves):
        if layout is not None and not _spreads(move):
            layout = moved(layout, move)
    if layout is None or len(layout.dims) != len(like.dims):
        return None
    pairs = zip(layout.dims, like.dims, strict=True)
    fits = all(mine == theirs or (mine == () and theirs == ("k",)) for mine, theirs in pairs)
    return node if fits else None


def _scaled(graph: Graph, node: Node, *, divides: bool) -> Gathered | None:
    """Offsets over a radius."""
    if len(node.args) != 2 or node.kwargs or not _changes_alone(node):
        return None
    by = node.args[1]
    inner = gathered(graph, node.args[0])
    if inner is None or type(by) not in (int, float) or not by > 0:
        return None
    if len(inner.parts) != 1 or inner.parts[0].centers is None or inner.parts[0].radius is not None:
        return None
    radius = float(by) if divides else 1 / float(by)
    return inner.behind(node, inner.layout, inner.parts[0]._replace(radius=radius))
