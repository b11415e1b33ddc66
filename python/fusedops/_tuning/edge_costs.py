"""What a layer over edges costs: its passes, their arithmetic and memory, and what is kept.

The fused passes are those that _edge_fused.py, _edge_backward.py and _edge_conv.py of points launch
(a test compares them with a traced call). Every edge slot counts: what is none or a repeat costs
less.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from ..points._edge_problem import (
    MOST_FEATURES,
    SLICE,
    backward_memory,
    forward_memory,
    infer_memory,
    padded_widths,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

TFLOPS = 325.0  # of 16-bit products on the 132 SMs of an H200 (reference/set_abstraction.md)
L2_TBYTES = 5.5  # likewise
H200_TBYTES = 4.2
H200_SMS = 132
_OPERAND_COLUMNS = 16  # of one product with what an edge has itself: offsets and few features
_PLANE = 8  # kEdgePlane
_RECORD = 16  # bytes of an edge in the list
_FLOAT, _INDEX, _HALF = 4, 8, 2
_TF32_SPEED = 0.5


class Gpu(NamedTuple):
    """What a floor depends on."""

    name: str
    sm_count: int
    shared_memory: int  # bytes that a block may have
    memory_tbytes: float  # TB/s

    @property
    def tflops(self) -> float:
        """The rate of 16-bit products."""
        return TFLOPS * self.sm_count / H200_SMS

    @property
    def l2_tbytes(self) -> float:
        return L2_TBYTES * self.sm_count / H200_SMS


class EdgeCall(NamedTuple):
    """A layer over edges by its sizes."""

    clouds: int
    points: int
    groups: int
    neighbours: int
    features: int
    channels: tuple[int, ...]
    dims: int  # of the offsets: 3, or 0 where there are none
    products: int  # of the features by point: 1, EdgeConv's 2
    itemsize: int
    batch: bool  # statistics of the batch
    backward: bool
    infer: bool  # the last pass writes activations
    shape: tuple[int, ...] | None = None  # the widths of kernels whose hidden layers differ

    @property
    def edges(self) -> int:
        return self.clouds * self.groups * self.neighbours

    @property
    def widths(self) -> tuple[int, ...]:
        return self.shape or padded_widths(self.channels)

    @property
    def raw(self) -> bool:
        """Whether features are a part of the edges' operands."""
        return self.products == 1 and self.features <= MOST_FEATURES and self.itemsize == _HALF

    @property
    def planes(self) -> int:
        return 2 if self.raw else int(self.dims > 0)

    @property
    def has_rows(self) -> bool:
        return self.features > 0 and not self.raw

    @property
    def is_conv(self) -> bool:
        """Whether it is one layer over the edges of points among themselves."""
        return self.products > 1 and len(self.channels) == 1 and self.channels[0] % 8 == 0

    @property
    def product_flops(self) -> int:
        """The work of the features' products, by point."""
        rows = self.clouds * self.points
        return 2 * self.products * rows * self.features * self.channels[0]

    @property
    def mlp_flops(self) -> int:
        """The work of the MLP once, with the features' part of its first layer by point."""
        macs = self.dims * self.channels[0] + sum(a * b for a, b in pairwise(self.channels))
        return self.product_flops + 2 * self.edges * macs


@dataclass(frozen=True)
class ExplainedPass:
    """One pass of a layer.

    Attributes:
        op: The op that runs it.
        backward: Whether it belongs to backward.
        what: What it does.
        layers: The layers that it runs, from the first one on; 0 where it runs none.
        flops: Its arithmetic on Tensor Cores, with padding and recomputation.
        moved: Bytes to and from global memory.
        gathered: Bytes of rows that edges gather, mostly from L2.
        shared_memory: Bytes of a block, 0 where it is small.
        speed: Speed of its products beside 16-bit ones.
        floor_us: The largest of its three times at the assumed rates; it is not measured.
    """

    op: str
    backward: bool
    what: str
    layers: int = 0
    flops: int = 0
    moved: int = 0
    gathered: int = 0
    shared_memory: int = 0
    speed: float = 1.0
    floor_us: float = math.nan

    def on(self, gpu: Gpu) -> ExplainedPass:
        """With its floor."""
        times = (
            self.flops / (gpu.tflops * self.speed),
            self.moved / gpu.memory_tbytes,
            self.gathered / gpu.l2_tbytes,
        )
        return replace(self, floor_us=max(times) / 1e6)


def _names(first: int, last: int) -> str:
    return f"layer {last}" if first == last else f"layers {first} to {last}"


def passes_of(call: EdgeCall, *, fused: bool) -> list[ExplainedPass]:
    """All of them in the order of their launches, without floors."""
    passes = list(fused_passes(call) if fused else composed_passes(call))
    if not call.features or (fused and call.raw):
        return passes
    rows = call.clouds * call.points
    moved = rows * (call.features * call.itemsize + call.products * call.channels[0] * _FLOAT)
    what = f"features times W_1, by point, TF32 or wider, {call.products} x"
    forward = ExplainedPass("linear", False, what, 0, call.product_flops, moved, speed=_TF32_SPEED)
    what = "gradients of features and of their columns of W_1, in the layer's dtype"
    speed = 1.0 if call.itemsize == _HALF else _TF32_SPEED
    last = replace(
        forward,
        op="linear_backward",
        backward=True,
        what=what,
        flops=2 * forward.flops,
        speed=speed,
    )
    return [forward, *passes, *([last] if call.backward else [])]


# ---- the fused path ----


def fused_passes(call: EdgeCall) -> Iterator[ExplainedPass]:
    """Every pass over edges, in the order of their launches."""
    if call.is_conv:
        yield from _conv_passes(call)
        return
    edges = call.edges
    if not call.infer:
        yield ExplainedPass(
            "edge_counts", False, "the edges that count, by group", moved=_INDEX * edges
        )
    moved = ((1 if call.infer else 2) * _INDEX + _RECORD + call.planes * _PLANE * _HALF) * edges
    what = "their list, repeats merged" + (", and operands" if call.planes else "")
    yield ExplainedPass("edge_list", False, what, moved=moved)
    values = sum(a * b for a, b in pairwise(call.widths)) * _HALF
    what = "weights and norms as the passes read them"
    yield ExplainedPass("edge_parameters", False, what, moved=2 * values)
    last = len(call.channels)
    for layer in range(1, last + 1):
        if layer == last or call.batch:
            yield _forward_pass(call, layer)
    pooled = call.clouds * call.groups * call.channels[-1]
    if not call.infer:
        what = "norm and activation of the maxima"
        moved = pooled * (_FLOAT + 2 * _HALF)
        yield ExplainedPass("edge_pool_forward", False, what, moved=moved)
    if call.backward:
        moved = pooled * (_FLOAT + 2 * _HALF) + call.clouds * call.groups * call.widths[-1] * _FLOAT
        what = "gradients of the maxima, sums of the last norm"
        yield ExplainedPass("edge_pool_backward", True, what, moved=moved)
        for layer in range(last, 1, -1):
            yield from _backward_passes(call, layer)
        yield from _first_layer_passes(call)


def _conv_passes(call: EdgeCall) -> Iterator[ExplainedPass]:
    """The passes of one layer of EdgeConv."""
    rows, channels = call.clouds * call.points, call.channels[0]
    index, pooled = _INDEX * call.edges, rows * channels
    yield ExplainedPass("edge_parameters", False, "weights and norms as the passes read them")
    found = ["statistics"] if call.batch else []
    found = ["the pooled activations"] if call.infer else ["maxima", *found]
    written = pooled * (_HALF if call.infer else _FLOAT + _HALF + 2 * _FLOAT * call.batch)
    yield ExplainedPass(
        "edge_conv_forward_", False, f"layer 1: {' and '.join(found)}",
        moved=index + 2 * pooled * _FLOAT + written, gathered=call.edges * channels * _FLOAT,
    )  # fmt: skip
    if not call.infer:
        what = "norm and activation of the maxima"
        moved = pooled * (_FLOAT + 2 * _HALF)
        yield ExplainedPass("edge_pool_forward", False, what, moved=moved)
    if not call.backward:
        return
    winners = rows * call.widths[0] * _FLOAT
    what = "gradients of the maxima, sums of the last norm"
    moved = pooled * (_FLOAT + 2 * _HALF) + winners
    yield ExplainedPass("edge_pool_backward", True, what, moved=moved)
    lists = index // 2 + 2 * _FLOAT * rows
    yield ExplainedPass("edge_lists", True, "the edges to every point", moved=index + lists)
    what = "sums by point and by group: gradients of the products"
    read = pooled * 3 * _FLOAT if call.batch else 0
    gathered = call.edges * channels * _FLOAT * (2 if call.batch else 1)
    moved = lists + index + winners + read + 2 * pooled * _HALF
    yield ExplainedPass("edge_conv_backward", True, what, moved=moved, gathered=gathered)


def _first_macs(call: EdgeCall) -> int:
    return _OPERAND_COLUMNS * call.widths[0] if call.planes else 0


def _inputs(call: EdgeCall) -> int:
    """Bytes of what a pass gathers from, once, and of the list."""
    by_point = call.widths[0] * _FLOAT * call.has_rows
    by_group = call.widths[0] * _FLOAT * (call.products > 1)
    points, groups = call.clouds * call.points, call.clouds * call.groups
    by_edge = _RECORD + call.planes * _PLANE * _HALF
    return by_edge * call.edges + points * by_point + groups * by_group


def _row_bytes(call: EdgeCall) -> int:
    """That an edge gathers."""
    return call.widths[0] * _FLOAT * call.has_rows


def _forward_pass(call: EdgeCall, layer: int) -> ExplainedPass:
    widths = call.widths[:layer]
    infers = call.infer and call.shape
    slices = 1 if infers else max(widths[-1] // SLICE, 1)
    below = _first_macs(call) + sum(a * b for a, b in pairwise(widths[:-1]))
    macs = slices * below + widths[-1] * widths[-2] if layer > 1 else below
    pools = layer == len(call.channels)
    found = ["statistics"] if call.batch else []
    written = 0
    if pools:
        found = ["the pooled activations"] if call.infer else ["maxima", *found]
        pooled = call.clouds * call.groups * call.channels[-1]
        written = pooled * (_HALF if call.infer else _FLOAT + _HALF)
    repeats = slices if layer > 1 else 1  # a slice of a lone layer gathers its own columns
    return ExplainedPass(
        "edge_mlp_forward",
        False,
        f"{_names(1, layer)}: {' and '.join(found)}",
        layer,
        2 * call.edges * macs,
        _inputs(call) + written,
        repeats * call.edges * _row_bytes(call),
        (infer_memory if infers else forward_memory)(widths, call.has_rows),
    )


def _backward_passes(call: EdgeCall, layer: int) -> Iterator[ExplainedPass]:
    widths = call.widths[:layer]
    width, below = widths[-1], widths[-2]
    edges, groups = call.edges, call.clouds * call.groups
    hidden = _first_macs(call) + sum(a * b for a, b in pairwise(widths[:-1]))
    product = width * below
    again = product if call.batch else 0  # y_l itself, where statistics depend on it
    is_last = layer == len(call.channels)
    above = groups * width * _FLOAT if is_last else edges * width * _HALF
    stored = edges * below * _HALF
    for kind, memory in backward_memory(widths, call.has_rows).items():
        repeats = width // SLICE if kind == "weights" else 1
        products = 2 * product if kind == "both" else product
        what = {"both": "dW and the rows below", "data": "the rows below", "weights": "dW"}[kind]
        yield ExplainedPass(
            "edge_mlp_backward_",
            True,
            f"{kind}: {_names(1, layer - 1)} again, {what} of layer {layer}",
            layer,
            2 * edges * (repeats * hidden + again + products),
            _inputs(call) + above + (0 if kind == "weights" else stored),
            repeats * edges * _row_bytes(call),
            memory,
        )


def _first_layer_passes(call: EdgeCall) -> Iterator[ExplainedPass]:
    edges, width = call.edges, call.widths[0]
    rows, records = edges * width * _HALF, edges * _RECORD
    points, groups = (call.clouds * n * width * _FLOAT for n in (call.points, call.groups))
    if len(call.channels) == 1:
        what = "the maxima's gradients as rows of edges"
        yield ExplainedPass("edge_winners", True, what, moved=records + groups + rows)
    index = _INDEX * edges // 2  # of the lists
    lists = ExplainedPass("edge_lists", True, "the edges to every point", moved=3 * index)
    by_point = ExplainedPass("edge_point_sums", True, "rows by point", moved=rows + points + index)
    moments = [
        ExplainedPass("edge_moments", True, "weights and offsets of the edges", moved=2 * records),
        ExplainedPass("edge_point_sums", True, "those by point", moved=records + index),
    ]
    if not call.has_rows:
        operands = edges * call.planes * _PLANE * _HALF
        what = "rows times operands, second moments: dW_1"
        flops = 2 * edges * _OPERAND_COLUMNS * (width + 3 * _OPERAND_COLUMNS)
        yield ExplainedPass("edge_products", True, what, 0, flops, moved=records + rows + operands)
        yield ExplainedPass("edge_first_grads", True, "dW_1 from them", moved=0)
        if call.features:
            yield from (lists, by_point)
            if call.batch:
                what = "weights and offsets of the edges by point"
                yield ExplainedPass("edge_point_moments", True, what, moved=records + index)
            what = "closed form of layer 1: features"
            yield ExplainedPass("edge_feature_grads", True, what, moved=points)
        return
    yield from (lists, by_point)
    yield ExplainedPass("edge_group_sums", True, "rows by group", moved=rows + groups)
    if call.batch:
        yield from moments
        yield ExplainedPass("edge_group_sums", True, "those by group", moved=records)
        gathered = edges * width * _FLOAT
        what = "the first product by group"
        yield ExplainedPass("edge_group_sums", True, what, moved=groups, gathered=gathered)
        if call.products > 1:
            what = "the centres' product by point"
            moved = points + index
            yield ExplainedPass("edge_point_sums", True, what, moved=moved, gathered=gathered)
    for what, size in (("points", points), ("groups", groups)):
        yield ExplainedPass("edge_close", True, f"closed form of layer 1: {what}", moved=2 * size)


def fused_kept(call: EdgeCall) -> int:
    """Bytes that forward allocates and backward reads, but for parameters and statistics."""
    points, groups = call.clouds * call.points, call.clouds * call.groups
    if call.is_conv:  # maxima and their places, both products, sums by group
        values = 3 * _FLOAT + _HALF + (_FLOAT if call.batch else 0)
        return points * call.channels[0] * values
    kept = (_RECORD + call.planes * _PLANE * _HALF + _INDEX) * call.edges + _FLOAT * groups
    kept += groups * call.channels[-1] * (_FLOAT + _HALF)
    if call.products == 1 and call.has_rows:
        kept += points * call.widths[0] * _FLOAT
    elif call.products > 1:  # as they were formed, and in the kernels' order
        kept += (points + groups) * (call.channels[0] + call.widths[0]) * _FLOAT
    return kept  # features are the caller's


# ---- the composed path ----


def composed_passes(call: EdgeCall) -> Iterator[ExplainedPass]:
    """A layer at a time; every (edges, C) tensor is written once and read once at least."""
    widths, speed = (call.dims, *call.channels), 1.0 if call.itemsize == _HALF else _TF32_SPEED
    layers = []
    for layer, (below, width) in enumerate(pairwise(widths), 1):
        what, moved = f"layer {layer} over all edges", 2 * call.edges * width * call.itemsize
        flops = 2 * call.edges * below * width
        layers.append(ExplainedPass("composed", False, what, 0, flops, moved, speed=speed))
    yield from layers
    for one in reversed(layers if call.backward else []):
        what = f"both gradients of {one.what}"
        yield replace(one, backward=True, what=what, flops=2 * one.flops)


def composed_kept(call: EdgeCall) -> int:
    """Bytes that are kept at least: what the layers gave, the last one for statistics only."""
    channels = call.channels if call.batch else call.channels[:-1]
    return call.edges * sum(channels) * call.itemsize
