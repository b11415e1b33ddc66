"""A call of the kernels of layers over edges: its plan, and its tensors as they read them."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .._fakes.edges import INFER_SHAPES, TAPER
from ._edge_input import product_by_point

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ._edge_input import PointProduct

_ops = torch.ops.fusedops
MAX_LAYERS = 4
MOST_FEATURES = 10  # kEdgeMostFeatures
SLICE = 128  # kEdgeSlice: columns of the last layer that a block takes
_PAD = 8  # kEdgePad
_SECTOR = 32  # kEdgeSector
_ROWS = 8 * 16  # of a block: kEdgeWarps * kEdgeRows
_STAGES = 8 * (8 * 72 * 6 + 128 * 4)  # (sizeof(EdgeStage) + pivots) * kEdgeWarps


def padded_widths(channels: Sequence[int]) -> tuple[int, ...]:
    """Widths as the kernels have them: equal ones of 32, 64 or 128, then 64 or multiples of 128."""
    *hidden, last = channels
    widest = max([0, *hidden])
    width = next((w for w in (32, 64) if widest <= w), 128)
    return (*[width] * len(hidden), 64 if last <= 64 else -(-last // 128) * 128)


def infer_shape(channels: Sequence[int]) -> tuple[int, ...] | None:
    """The least of INFER_SHAPES that holds the layers; None where padded widths are less work."""

    def work(widths: Sequence[int]) -> int:
        return sum(a * b for a, b in pairwise(widths))

    def holds(widths: Sequence[int]) -> bool:
        return all(c <= width for c, width in zip(channels, widths, strict=True))

    if len(channels) != 3:
        return None
    found = next((shape for shape in INFER_SHAPES if holds(shape)), None)
    padded = padded_widths(channels)
    return None if found is None or (holds(padded) and work(padded) < work(found)) else found


def train_shape(channels: Sequence[int]) -> tuple[int, ...] | None:
    """TAPER where it holds the layers and is less work than padded widths are; else None."""
    if len(channels) != 3 or padded_widths(channels) != (128, 128, 128):
        return None
    return TAPER if all(c <= width for c, width in zip(channels, TAPER, strict=True)) else None


def infer_memory(shape: Sequence[int], has_rows: bool) -> int:
    """Bytes that its kernel needs of a block's shared memory (edge_infer_bytes)."""
    first, middle, last = shape
    warps = 12 if first <= 64 < middle and last <= 128 else 8
    rows = warps * 16 * first * 4 + _SECTOR if has_rows else 0
    return 4 * warps + 32 * first + (first + last) * middle * 2 + (first + middle) * 8 + rows


def _shared_bytes(widths: Sequence[int], columns: int, gathers: int, has_rows: bool) -> int:
    """What layers take of a block's shared memory, `columns` of the last (edge_layer_bytes)."""
    below = widths[:-1]
    weights = sum(b * (a + _PAD) * 2 for a, b in pairwise((*below, columns)))
    affine = (sum(below) if below else columns) * 8
    rows = _ROWS * gathers * 4 + _SECTOR if has_rows else 0
    first = widths[0] * 32  # of two planes
    return first + weights + affine + rows + 4 * 16


def forward_memory(widths: Sequence[int], has_rows: bool) -> int:
    """Bytes that a forward pass over layers of these widths needs of a block's shared memory."""
    part = min(widths[-1], SLICE)
    gathers = widths[0] if len(widths) > 1 else part
    return _STAGES + _shared_bytes(widths, part, gathers, has_rows)


def backward_memory(widths: Sequence[int], has_rows: bool) -> dict[str, int]:
    """Those of the passes back through the last of several: "both", or "data" and "weights"."""
    width, last = widths[0], widths[-1]
    part = min(last, SLICE)
    tile = _ROWS * (widths[-2] + _PAD) * 2
    both = tile + _ROWS * (part + _PAD) * 2 + _shared_bytes(widths, part, width, has_rows)
    if last <= SLICE:
        return {"both": both}
    return {"data": tile + _shared_bytes(widths, last, width, has_rows), "weights": both}


def shared_memory(widths: Sequence[int], has_rows: bool, backward: bool) -> int:
    """Bytes that the largest pass needs of a block's shared memory, rounded up."""
    needs = [forward_memory(widths, has_rows)]
    if backward and len(widths) > 1:
        needs += backward_memory(widths, has_rows).values()
    return max(needs)


class Plan(NamedTuple):
    """What a call is, but for its tensors."""

    channels: tuple[int, ...]
    training: tuple[bool, ...]
    eps: tuple[float, ...]
    has_norm: tuple[bool, ...]
    slope: float
    last_slope: float
    last_activation: bool
    ordered: bool  # rows are padded, and in fragment order
    clouds: int
    raw: bool = False  # features are a part of the operands; beside them is their weight
    shape: tuple[int, ...] | None = None  # of INFER_SHAPES, or TAPER

    @property
    def widths(self) -> tuple[int, ...]:
        return self.shape or padded_widths(self.channels)

    def rows(self, layer: int) -> slice:
        """The layer's channels among those of all."""
        start = sum(self.widths[:layer])
        return slice(start, start + self.widths[layer])


def in_fragment_order(x: Tensor, dim: int) -> Tensor:
    """x with its channels along dim, a multiple of 32, as the kernels have them; and back again.

    Channel 32 c + 8 b + 2 q + h is at 32 c + 8 q + 2 b + h.
    """
    dim %= x.dim()
    parts = x.unflatten(dim, (-1, 4, 4, 2)).transpose(dim + 1, dim + 2)
    return parts.flatten(dim, dim + 3)


def padded_to(x: Tensor, width: int) -> Tensor:
    """x with zeros behind its last dimension."""
    return x if x.shape[-1] == width else F.pad(x, (0, width - x.shape[-1]))


class Norms(NamedTuple):
    """Every layer's parameters, bias before the norm and running statistics; None for none."""

    gamma: tuple[Tensor | None, ...]
    beta: tuple[Tensor | None, ...]
    bias: tuple[Tensor | None, ...]
    mean: tuple[Tensor | None, ...]
    var: tuple[Tensor | None, ...]


def parameters_of(
    plan: Plan,
    weights: Sequence[Tensor],
    norms: Norms,
    offset_weight: Tensor | None,
    feature_weight: Tensor | None,
    like: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """(weights of the operands, W_2 and on, (scale, shift) of every channel).

    In place of the latter (gamma, beta) of a layer with batch statistics.
    """
    count = len(plan.channels)
    rest = [None] * (MAX_LAYERS - count)
    vectors: list[Tensor | None] = []
    for kind, tensors in enumerate(norms):
        for tensor, batch in zip(tensors, plan.training, strict=True):
            known = tensor is None or (batch and kind > 1)
            vectors.append(None if known else tensor.detach().float().contiguous())  # type: ignore[union-attr]
        vectors += rest
    matrices = [
        t if t is None or t.stride(1) == 1 else t.contiguous()
        for t in (offset_weight, feature_weight, *weights)
    ]
    matrices += [None] * (MAX_LAYERS + 1 - len(matrices))
    eps = [
        0.0 if batch or var is None else eps
        for eps, batch, var in zip(plan.eps, plan.training, norms.var, strict=True)
    ]
    zeros = [0] * len(rest)
    found: tuple[Tensor, Tensor, Tensor] = _ops.edge_parameters(
        *matrices, *vectors, *plan.widths, *zeros, *eps, *map(float, zeros), like
    )
    return found


class Problem(NamedTuple):
    """The arguments that all passes share."""

    rows: Tensor | None
    group_rows: Tensor | None
    first_weight: Tensor | None
    operands: Tensor | None  # of the edges, for the first weight
    list: Tensor  # of the edges that count
    ends: Tensor  # where those of a group end
    weights: Tensor
    affine: Tensor

    def arguments(self, plan: Plan, layers: int) -> tuple[Any, ...]:
        """Those of the first `layers` layers; scales and shifts are those of all."""
        widths = plan.widths[:layers]
        used = sum(a * b for a, b in pairwise(widths))
        c1, c2, c3, c4 = (*widths, *[0] * (MAX_LAYERS - layers))
        return (
            *self[:6], self.weights[:used], self.affine, plan.clouds, c1, c2, c3, c4, plan.slope,
        )  # fmt: skip


def build_problem(
    plan: Plan,
    gathered: tuple[Any, ...],
    dtype: torch.dtype,
    parameters: Sequence[Tensor | None],
    infer: bool = False,
) -> tuple[Problem, Tensor]:
    """Everything as the kernels read it. parameters: weights, then `Norms` layer by layer.

    And idx without what does not count, for sums by point; for the pass that infers there is none,
    and the groups' rows are spaced.
    """
    rows, group_rows, offset_weight, xyz, centers, idx = gathered
    features = feature_weight = None
    if plan.raw:
        features, feature_weight, rows, group_rows = rows, group_rows, None, None
    count, width = len(plan.channels), plan.widths[0]
    weights = [w for w in parameters[: count - 1] if w is not None]
    norms = Norms(*(tuple(parameters[count - 1 + i * count :][:count]) for i in range(5)))
    rows, group_rows = (None if t is None else t.float() for t in (rows, group_rows))
    if rows is not None and not plan.ordered:
        rows = in_fragment_order(padded_to(rows, width), -1)
    if group_rows is not None:
        group_rows = in_fragment_order(padded_to(group_rows, width), -1)
    points = next(t.shape[1] for t in (rows, features, xyz) if t is not None)
    like = idx.new_empty(0, dtype=dtype)
    ends = None if infer else _ops.edge_counts(idx, points).cumsum(0, dtype=torch.int32)
    edges, merged, own_ends, operands = _ops.edge_list(
        idx, ends, points, xyz if offset_weight is not None else None, centers, features, like
    )
    first_weight, flat, affine = parameters_of(
        plan, weights, norms, offset_weight, feature_weight, like
    )
    has_operands = offset_weight is not None or feature_weight is not None
    problem = Problem(
        rows, group_rows, first_weight if has_operands else None,
        operands if has_operands else None, edges, own_ends if ends is None else ends, flat, affine,
    )  # fmt: skip
    return problem, merged


def ordered_product(product: PointProduct, width: int) -> Tensor:
    """A product of all points (B, N, width) in fragment order."""
    features, weight = product
    weight = F.pad(weight, (0, 0, 0, width - weight.shape[0]))
    return product_by_point(features, in_fragment_order(weight, 0))
