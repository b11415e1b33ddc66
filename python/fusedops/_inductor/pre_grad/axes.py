"""Where the axes of a tensor lie behind functions that move values and change none.

A dimension holds axes by name, from the outer to the inner one; axes of one element are in none.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from .values import value_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch.fx import Node

_RESHAPES = {
    *("view", "reshape", "flatten", "unflatten", "unsqueeze", "squeeze", "view_as", "reshape_as"),
    "getitem",
}
_PERMUTES = {
    *("permute", "transpose", "movedim", "moveaxis", "swapaxes", "swapdims", "t", "adjoint"),
    "getattr",
}
# Functions that copy a tensor, or not, perhaps in another dtype.
CASTS = {"to", "type", "float", "half", "bfloat16", "double", "contiguous", "clone"}
_TRANSPOSED = ("T", "mT")  # attributes


class Layout(NamedTuple):
    """The axes of every dimension, and the sizes of axes."""

    dims: tuple[tuple[str, ...], ...]
    sizes: Mapping[str, int]

    def reshaped(self, shape: Sequence[int]) -> Layout | None:
        """That of the same values in another shape; None where an axis would be cut."""
        left = [axis for dim in self.dims for axis in dim][::-1]
        dims = []
        for size in shape:
            found: list[str] = []
            while math.prod(self.sizes[axis] for axis in found) < size and left:
                found.append(left.pop())
            if math.prod(self.sizes[axis] for axis in found) != size:
                return None
            dims.append(tuple(found))
        return None if left else Layout(tuple(dims), self.sizes)

    def resized(self, axis: str, size: int, dim: int) -> Layout:
        """That of a tensor whose dimension `dim`, of this axis alone, has another size."""
        dims = list(self.dims)
        dims[dim] = (axis,) if size > 1 else ()
        return Layout(tuple(dims), {**self.sizes, axis: size})

    def is_at(self, axis: str, dim: int) -> bool:
        """Whether a dimension is this axis and no other."""
        return self.dims[dim] == ((axis,) if self.sizes[axis] > 1 else ())


def layout_of(axes: Sequence[str], shape: Sequence[int]) -> Layout:
    """One axis a dimension."""
    sizes = dict(zip(axes, shape, strict=True))
    return Layout(tuple((a,) if sizes[a] > 1 else () for a in axes), sizes)


def name_of(node: Node) -> str:
    """The name of a function or method; "" for what is no call."""
    if node.op == "call_method":
        return str(node.target)
    return getattr(node.target, "__name__", "") if node.op == "call_function" else ""


def arguments(node: Node, *names: str) -> list[Any]:
    """What a call is given by these names, None where it is not."""
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    return [given.get(name) for name in names]


def shape_of(node: Any) -> tuple[int, ...] | None:
    """The shape of a node's value, where it is fixed."""
    value = value_of(node)
    if value is None or not all(type(size) is int for size in value.shape):
        return None
    return tuple(value.shape)


def is_move(node: Any) -> bool:
    """Whether a node has the values of its first argument, in another order, shape or dtype."""
    if not isinstance(node, torch.fx.Node) or not node.args:
        return False
    name, shape, given = name_of(node), shape_of(node), shape_of(node.args[0])
    if shape is None or given is None or math.prod(shape) != math.prod(given):
        return False
    before, now = value_of(node.args[0]), value_of(node)
    assert before is not None
    assert now is not None
    if before.device != now.device:
        return False
    if name in CASTS:
        same_kind = now.is_floating_point() == before.is_floating_point()
        return bool(before.shape == now.shape and same_kind)
    if before.dtype != now.dtype:
        return False
    if name == "getitem":
        return _only_slices(node.args[1])
    if name == "getattr":
        return bool(node.args[1] in _TRANSPOSED)
    return name in _RESHAPES or name in _PERMUTES


def _only_slices(index: Any) -> bool:
    given = index if isinstance(index, tuple) else (index,)
    return all(one is None or one is Ellipsis or one == slice(None) for one in given)


def moved(layout: Layout, node: Node) -> Layout | None:
    """The layout behind a move of something of this layout."""
    name, shape = name_of(node), shape_of(node)
    assert shape is not None
    if name in CASTS:
        return layout
    if name in _PERMUTES:
        order = _order(node, len(layout.dims))
        return Layout(tuple(layout.dims[i] for i in order), layout.sizes)
    return layout.reshaped(shape)


def _order(node: Node, count: int) -> tuple[int, ...]:
    """Which dimension of its argument each dimension of a permutation is."""
    probe = torch.empty(tuple(range(2, 2 + count)), device="meta")
    args = node.args[1:]
    if node.op == "call_method":
        turned = getattr(probe, str(node.target))(*args, **node.kwargs)
    else:
        turned = node.target(probe, *args, **node.kwargs)
    return tuple(size - 2 for size in turned.shape)
