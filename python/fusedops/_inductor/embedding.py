"""Gradients of embeddings: a scatter into zeros that Inductor writes three times, as one op.

Inductor takes embedding_dense_backward apart: zeros in float32, an index_put that accumulates (by
atomics, so not deterministic; in newer torch one with a mask), and a cast. Found by what it
computes: rows added to zeros at the indices of an embedding that is in the graph. That embedding
has refused indices which are no rows, where an index_put alone would count negative ones from the
end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from .graph import (
    CONVERT,
    aten,
    bare,
    dtype_of,
    equal_sizes,
    is_call,
    same_elements,
    same_shape,
    shape_of,
    value,
)
from .sites import DTYPES, Left, Out, Site

if TYPE_CHECKING:
    from torch.fx import Node

    from .graph import Joint

SCATTERS = (aten.index_put.default, aten._unsafe_index_put.default)
MASKED = aten._unsafe_masked_index_put_accumulate.default
DEFAULTS = (-1, False, False)  # of aten.embedding: padding_idx, scale_grad_by_freq, sparse
KIND = "embedding_grad"


class Scatter(NamedTuple):
    """An index_put that adds rows to zeros (V, D) at one index tensor along the first dimension."""

    node: Node
    index: Node
    rows: Node
    mask: Node | None  # of the rows that are added


class EmbeddingSite(Site):
    """A site without products: sizes are M, V and D."""

    @property
    def node(self) -> Node:
        return self.replacements[0].node


def scatters(joint: Joint) -> list[Scatter]:
    """The candidates in backward."""
    nodes = (n for n in joint.nodes if is_call(n, *SCATTERS, MASKED) and n in joint.backward)
    found = [read_scatter(n) for n in nodes]
    return [s for s in found if s is not None]


def read_scatter(node: Node) -> Scatter | None:
    arguments = [*node.args, *node.kwargs.values()]
    if len(arguments) != 4 or len(shape_of(node)) != 2:
        return None
    if is_call(node, MASKED):
        zeros, mask, indices, rows = arguments
    else:
        zeros, indices, rows, accumulates = arguments
        mask = None
        if accumulates is not True:
            return None
    if len(indices) != 1 or indices[0] is None or not _is_zeros(zeros):
        return None
    index = indices[0]
    if dtype_of(index) not in (torch.int64, torch.int32):
        return None
    wanted = (*shape_of(index), shape_of(node)[1])
    fits = len(shape_of(rows)) == len(wanted) and all(map(equal_sizes, shape_of(rows), wanted))
    return Scatter(node, index, rows, mask) if fits else None


def find_embedding_gradient(joint: Joint, scatter: Scatter) -> Site | Left | None:
    """The gradient of an embedding of the graph, with the casts around it."""
    padding, rows = _without_padding(scatter)
    if padding is None:
        return Left("cannot read which rows are added")
    lookup = next((e for e in _lookups(joint, scatter) if padding in (-1, e.padding)), None)
    if lookup is None:
        return Left("no embedding has these indices")
    rows, ends = _without_casts(scatter, rows)
    if dtype_of(rows) not in DTYPES:
        return Left("unsupported dtype")
    num_rows, d = shape_of(scatter.node)
    if not isinstance(num_rows, int):
        return Left("the number of rows is no constant, which our op takes")
    m = value(scatter.index).numel()
    site = EmbeddingSite(KIND, "none", (m, num_rows, d), [], facts={"training": True})
    op = torch.ops.fusedops.embedding_backward.default
    site.step(op, (rows, lookup.index, num_rows, padding), scatter.node)
    site.replace(ends, Out(0, 0))
    return site


class _Lookup(NamedTuple):
    """What an embedding of the graph reads."""

    index: Node  # int32 or int64
    padding: int


def _lookups(joint: Joint, scatter: Scatter) -> list[_Lookup]:
    """Embeddings that look up the scatter's indices in as many rows, with the plain gradient."""
    found = []
    for node in joint.nodes:
        if not is_call(node, aten.embedding.default) or node.kwargs:
            continue
        given = [*node.args, *DEFAULTS[len(node.args) - 2 :]]
        weight, index, padding, by_frequency, sparse = given
        same_rows = equal_sizes(shape_of(weight)[0], shape_of(scatter.node)[0])
        plain = not by_frequency and not sparse
        if same_rows and plain and _same_indices(index, scatter.index):
            found.append(_Lookup(index, padding))
    return found


def _same_indices(one: Node, other: Node) -> bool:
    """Whether two nodes are the same indices, or the second the first one's as int64."""
    if one is other:
        return True
    widened = is_call(other, CONVERT) and dtype_of(other) is torch.int64
    return widened and same_shape(one, other) and same_elements(other.args[0], one)


def _is_zeros(node: Any) -> bool:
    return is_call(node, aten.full.default) and node.args[1] == 0


def _without_padding(scatter: Scatter) -> tuple[int | None, Node]:
    """(padding index or -1, rows): looks through the mask that clears the rows of one index.

    None in place of the index where a mask cannot be read.
    """
    rows = scatter.rows
    if scatter.mask is not None:
        return _left_out(scatter, scatter.mask), rows
    if not is_call(rows, aten.where.self):
        return -1, rows
    mask, zero, given = rows.args
    compare = bare(mask)
    is_mask = (
        is_call(compare, aten.eq.Scalar)
        and compare.args[0] is scatter.index
        and isinstance(compare.args[1], int)
        and _is_one_a_row(mask, rows)
    )
    is_zero = (is_call(zero, aten.scalar_tensor.default) and zero.args[0] == 0) or _is_zeros(zero)
    same = same_shape(given, rows) and dtype_of(given) is dtype_of(rows)
    if not (is_mask and is_zero and same):
        return -1, rows
    return max(compare.args[1], -1), given


def _left_out(scatter: Scatter, mask: Node) -> int | None:
    """The index (or -1) that a mask leaves out beside those that are no rows, which no lookup has.

    None where it says something else.
    """
    if not _is_one_a_row(mask, scatter.rows):
        return None
    rows = shape_of(scatter.node)[0]
    padding = None
    conditions = [bare(mask)]
    while conditions:
        condition = conditions.pop()
        if is_call(condition, aten.bitwise_and.Tensor):
            conditions += condition.args
            continue
        if not is_call(condition, aten.ge.Scalar, aten.lt.Scalar, aten.ne.Scalar):
            return None
        index, bound = condition.args
        if index is not scatter.index or not isinstance(bound, int):
            return None
        if is_call(condition, aten.ne.Scalar):
            if padding is not None:
                return None
            padding = max(bound, -1)
        elif not equal_sizes(bound, 0 if is_call(condition, aten.ge.Scalar) else rows):
            return None
    return -1 if padding is None else padding


def _is_one_a_row(mask: Node, rows: Node) -> bool:
    return len(shape_of(mask)) == len(shape_of(rows)) and equal_sizes(shape_of(mask)[-1], 1)


def _without_casts(scatter: Scatter, rows: Node) -> tuple[Node, list[Node]]:
    """(rows, nodes that their sum stands for), in half precision where all of it may be.

    The op sums in float32 whatever it reads: where rows were widened for the sum alone, and every
    reader narrows it again, both casts go.
    """
    readers = list(scatter.node.users)
    if is_call(rows, CONVERT) and dtype_of(rows) is torch.float32:
        dtype = dtype_of(rows.args[0])
        narrow = all(is_call(u, CONVERT) and u.args[1] is dtype for u in readers)
        if dtype in (torch.float16, torch.bfloat16) and narrow and readers:
            return rows.args[0], readers
    return rows, [scatter.node]
