"""What a loss of rows computes, found by evaluating it on a few rows of a few classes.

As in `probe`, but the nodes are no pointwise functions: they reduce rows, pick the target's class
and put gradients back in its place. Whatever the sizes in the graph, its rows are `ROWS` here and
its classes `CLASSES`, which no broadcast can confuse. Roundings between nodes are left out. The
targets are compared with the one that is ignored and with nothing else, or classes that no probe
has might be treated in another way.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Node
from torch.fx.node import map_arg

from .graph import (
    CONSTANTS,
    CONVERT,
    SAME_ORDER,
    SAME_VALUES,
    aten,
    bare,
    dtype_of,
    equal_sizes,
    is_call,
    is_constant,
    is_pointwise,
    same_shape,
    shape_of,
    value,
)
from .probe import DROPPED, NodeValues, is_probed, keeps, numbers_of, real

if TYPE_CHECKING:
    from collections.abc import Sequence

ROWS, CLASSES = 12, 7
# Sets of rows: how many of them are ignored, and how large their logits are. The options are fitted
# to the first and hold for all; the last has no mean.
SETS = (
    (1, 3.0),
    (2, 3.0),
    (3, 1.0),
    (4, 3.0),
    (0, 2.0),
    (6, 3.0),
    (5, 400.0),
    (11, 0.01),
    (12, 3.0),
)
FITTED = 6
SUMS = (aten.sum.dim_IntList, aten.amax.default)
COMPARES = (aten.eq.Scalar, aten.ne.Scalar)
RTOL = 1e-10


@dataclass(frozen=True)
class Rows:
    """The sizes of a loss in its graph.

    Attributes:
        logits: Rows of the product.
        counted: Rows of the loss, fewer where the logits are sliced ("shift").
        classes: Columns of the product.
        target: The classes of the rows that count.
        product: Whose dtype the logits have.
        cut: The slice of rows, if there is one.
    """

    counted: Any
    classes: int
    cut: Node | None
    target: Node
    product: Node


class LossOptions(NamedTuple):
    """What `linear_cross_entropy` takes."""

    ignore_index: int
    label_smoothing: float
    softcap: float
    z_loss: float
    mean: bool


class Probe(NamedTuple):
    """Logits and targets of a few rows."""

    z: Tensor
    target: Tensor
    counts: Tensor


@functools.cache
def loss_probes(ignore_index: int) -> tuple[Probe, ...]:
    """Sets of rows that count in different numbers."""
    with real():
        generator = torch.Generator().manual_seed(0)
        made = []
        for ignored, size in SETS:
            z = size * torch.randn(ROWS, CLASSES, generator=generator, dtype=torch.float64)
            target = torch.randint(CLASSES, (ROWS,), generator=generator)
            if 0 <= ignore_index < CLASSES:  # no row that counts has it
                target[target == ignore_index] = (ignore_index + 1) % CLASSES
            target[:ignored] = ignore_index
            made.append(Probe(z, target, target != ignore_index))
        return tuple(made)


class RowEvaluator(NodeValues):
    """Values of the nodes of a loss, whose rows have other sizes here than in the graph."""

    def __init__(self, rows: Rows, ignore_index: int, leaves: dict[Node, Tensor]) -> None:
        super().__init__(leaves)
        self.rows, self.ignore_index = rows, ignore_index

    def inputs(self, node: Node) -> list[Node]:
        """All that is read; nothing of what is no call."""
        if node.op != "call_function" or is_constant(node):
            return []
        if is_call(node, *SAME_VALUES, aten.expand.default, aten.slice.Tensor):
            return [node.args[0]]
        if node.target is aten.slice_scatter.default:
            return [i for i in node.args[:2] if isinstance(i, Node)]
        return node.all_input_nodes  # type: ignore[no-any-return]

    def run(self, node: Node) -> Tensor | None:
        """None for what has no meaning in rows."""
        if is_constant(node):
            number = node.args[CONSTANTS[node.target]]
            dtype = torch.float64 if value(node).dtype.is_floating_point else torch.int64
            return torch.tensor(number, dtype=dtype)
        inputs = [self.known[i] for i in self.inputs(node)]
        if not inputs or any(i is None for i in inputs):
            return None
        try:
            return self._call(node, inputs[0])
        except (RuntimeError, TypeError, IndexError):  # no input of the node
            return None

    def _call(self, node: Node, first: Any) -> Tensor | None:
        target, args = node.target, node.args
        if target in SAME_ORDER:
            return self._shaped(node, first)
        if target is CONVERT:
            if not args[1].is_floating_point:
                return first.to(args[1])
            return first.double() if keeps(args[1], dtype_of(self.rows.product)) else None
        if target is aten.expand.default:
            return first.expand(self._shape(node))
        if target is aten.sum.default:
            return self._total(args[0], first)
        if target in SUMS:
            return self._reduced(node, first)
        if target in (aten.gather.default, aten.scatter.value):
            if args[1] not in (-1, len(shape_of(node)) - 1):
                return None
            if target is aten.gather.default:
                return first.gather(1, self.known[args[2]])
            whole = first.expand(ROWS, CLASSES)
            return whole.scatter(1, self.known[args[2]], float(args[3]))
        if target is aten.slice.Tensor:
            return first if self._is_cut(args[1:]) and same_shape(node, self.rows.cut) else None
        if target is aten.slice_scatter.default:
            nothing = is_constant(args[0]) and first.item() == 0
            return self.known[args[1]] if nothing and self._is_cut(args[2:]) else None
        if not is_pointwise(node) or not self._is_probed(node):
            return None
        kwargs = {k: v for k, v in node.kwargs.items() if k not in DROPPED}
        taken = map_arg((args, kwargs), self.known.__getitem__)
        result = target(*taken[0], **taken[1])
        return result if isinstance(result, Tensor) else None

    def _is_probed(self, node: Node) -> bool:
        one = node.args[0]
        if isinstance(one, Node) and value(one).dtype is torch.int64 and node.target in COMPARES:
            return bare(one) is self.rows.target and numbers_of(node) == [self.ignore_index]
        endless = node.target is aten.eq.Scalar and numbers_of(node) == [math.inf]  # logsumexp's
        return endless or is_probed(node)

    def _shaped(self, node: Node, found: Tensor) -> Tensor | None:
        if found.dim() == 0 or found.numel() == ROWS * CLASSES:
            same = found.dim() == 0 or equal_sizes(shape_of(node)[-1], self.rows.classes)
            return found if same else None
        return found.reshape(self._shape(node)) if found.numel() == ROWS else None

    def _shape(self, node: Node) -> tuple[int, ...]:
        """The shape of a node's value here."""
        shape = shape_of(node)
        if not shape:
            return ()
        if len(shape) > 1 and equal_sizes(shape[-1], 1):
            return (ROWS, 1)
        counted = self.rows.counted
        numel = value(node).numel()
        if equal_sizes(shape[-1], self.rows.classes) and equal_sizes(numel, counted * shape[-1]):
            return (ROWS, CLASSES)
        if equal_sizes(numel, counted):
            return (ROWS,)
        raise RuntimeError("neither rows nor classes")

    def _total(self, node: Node, found: Tensor) -> Tensor | None:
        """A sum over all rows that count."""
        per_row = equal_sizes(value(node).numel(), self.rows.counted)
        return found.sum() if per_row and found.numel() == ROWS else None

    def _reduced(self, node: Node, found: Tensor) -> Tensor | None:
        rank = len(shape_of(node.args[0]))
        dims = sorted(d % rank for d in node.args[1])
        keep = len(node.args) > 2 and bool(node.args[2])
        if dims == list(range(rank)) and node.target is not aten.amax.default and not keep:
            return self._total(node.args[0], found)
        if dims != [rank - 1] or found.shape != (ROWS, CLASSES) or "dtype" in node.kwargs:
            return None
        return found.amax(-1, keep) if node.target is aten.amax.default else found.sum(-1, keep)

    def _is_cut(self, args: Any) -> bool:
        return self.rows.cut is not None and tuple(args) == tuple(self.rows.cut.args[1:])


def capped(z: Tensor, softcap: float) -> Tensor:
    return softcap * torch.tanh(z / softcap) if softcap else z


def _terms(z: Tensor, target: Tensor, counts: Tensor) -> list[Tensor]:
    """What a loss is a combination of, each summed over the rows that count."""
    lse = z.logsumexp(1)
    picked = z.gather(1, torch.where(counts, target, 0)[:, None])[:, 0]
    rows = (lse - picked, CLASSES * lse - z.sum(1), lse.square())
    return [torch.where(counts, row, 0.0).sum() for row in rows]


def fit(
    values: Sequence[Tensor | None], ignore_index: int, softcap: float, classes: int
) -> LossOptions | None:
    """The options with which the op gives these values for the sets of probes."""
    if any(v is None or v.numel() != 1 or not v.is_floating_point() for v in values):
        return None
    with real():
        got = torch.stack([v.reshape(()) for v in values if v is not None])
        probes = loss_probes(ignore_index)
        terms = torch.stack(
            [torch.stack(_terms(capped(p.z, softcap), p.target, p.counts)) for p in probes]
        )
        counts = torch.stack([p.counts.sum() for p in probes])
        for mean in (True, False):
            columns = terms / counts[:, None] if mean else terms
            first = columns[:FITTED]
            found = torch.linalg.lstsq(first, got[:FITTED, None]).solution[:, 0]
            if not torch.allclose(columns @ found, got, rtol=RTOL, atol=RTOL, equal_nan=mean):
                continue
            nll, smooth, square = found.tolist()
            smoothing, z_loss = round(smooth * classes, 12) + 0.0, round(square, 14) + 0.0
            if abs(nll + smoothing - 1) < RTOL and 0 <= smoothing <= 1 and z_loss >= 0:
                return LossOptions(ignore_index, smoothing, softcap, z_loss, mean)
        return None


def loss_gradient(probe: Probe, options: LossOptions, classes: int) -> Tensor:
    """The gradient of the loss in the logits, before the softcap."""
    with real(), torch.enable_grad():
        z = probe.z.clone().requires_grad_()
        nll, smooth, square = _terms(capped(z, options.softcap), probe.target, probe.counts)
        smoothing = options.label_smoothing
        loss = (1 - smoothing) * nll + smoothing / classes * smooth + options.z_loss * square
        if options.mean:
            loss = loss / probe.counts.sum()
        return torch.autograd.grad(loss, z)[0]


def close(got: Tensor | None, want: Tensor) -> bool:
    if got is None or not got.is_floating_point() or got.shape != want.shape:
        return False
    with real():
        return bool(torch.allclose(got, want, rtol=RTOL, atol=1e-12))
