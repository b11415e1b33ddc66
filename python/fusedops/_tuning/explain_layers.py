"""explain of the layers of point clouds: which path a layer takes, and why."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from .._core.checks import dtype_name
from ..points._edge_checks import check_words
from ..points._edge_fused import refusal
from ..points._edge_input import EdgeInput, EdgeLayer, PointProduct
from ..points._edge_problem import SLICE, infer_memory, infer_shape, shared_memory, train_shape
from ..points.norms import BatchNorm, LayerNorm
from .edge_costs import (
    H200_SMS,
    H200_TBYTES,
    EdgeCall,
    ExplainedPass,
    Gpu,
    composed_kept,
    fused_kept,
    passes_of,
)
from .names import us_text

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["LayerExplanation", "explain_edge_conv", "explain_set_abstraction"]

_HOPPER_BYTES, _AMPERE_BYTES = 232448, 166912  # of shared memory that a block may have
GPUS = {  # memory: that of the H200 page by their nominal rates, 4.8, 3.35 and 2.04 TB/s
    "H200": Gpu("NVIDIA H200", H200_SMS, _HOPPER_BYTES, H200_TBYTES),
    "H100": Gpu("NVIDIA H100", 132, _HOPPER_BYTES, H200_TBYTES * 3.35 / 4.8),
    "A100": Gpu("NVIDIA A100", 108, _AMPERE_BYTES, H200_TBYTES * 2.04 / 4.8),
}
_NORMS: dict[str | None, Any] = {
    "batch": BatchNorm(),
    "sync_batch": BatchNorm(group="all ranks"),
    "layer": LayerNorm(),
    None: None,
}


class Setting(NamedTuple):
    """What a layer computes, beside its sizes."""

    dtype: torch.dtype
    norm: str | None
    activation: str
    negative_slope: float
    last_activation: bool
    pool: str
    training: bool


@dataclass(frozen=True)
class LayerExplanation:
    """What a layer of a point cloud runs: print it for a report.

    Attributes:
        call: The layer and its sizes.
        gpu: The GPU that is meant.
        path: "fused" or "composed".
        why: The first reason why it is composed, None where it is fused.
        passes: In the order of their launches; floors of each are in it.
        mlp_flops: Work of the MLP once, with the features' part of its first layer by point.
        kept_bytes: Kept from forward for backward, beside inputs and parameters; 0 without one.
        notes: What chains on chip, what is stored between passes, and what was assumed.
    """

    call: str
    gpu: str
    path: str
    why: str | None
    passes: list[ExplainedPass]
    mlp_flops: int
    kept_bytes: int
    notes: list[str] = field(default_factory=list)

    @property
    def flops(self) -> int:
        """The work of all passes."""
        return sum(one.flops for one in self.passes)

    @property
    def forward_us(self) -> float:
        """The floor of forward."""
        return sum(one.floor_us for one in self.passes if not one.backward)

    @property
    def backward_us(self) -> float:
        """The floor of backward, 0 without one."""
        return sum(one.floor_us for one in self.passes if one.backward)

    def __str__(self) -> str:
        time = f"{us_text(self.forward_us)} forward"
        if self.backward_us:
            time += f", {us_text(self.backward_us)} backward"
        more = "" if self.path == "fused" else "at least "
        lines = [
            f"{self.call} on {self.gpu}",
            f"  path      {self.path}" + (f": {self.why}" if self.why else ""),
            f"  work      {self.mlp_flops / 1e9:.3g} GFLOP for the MLP once, "
            f"{more}{self.flops / 1e9:.3g} in all passes",
            *([f"  kept      {more}{self.kept_bytes / 2**20:.3g} MiB"] if self.kept_bytes else []),
            f"  time      {time}: a floor where no neighbour repeats, unmeasured",
            *(f"  note      {note}" for note in self.notes),
        ]
        for name, backward in (("forward", False), ("backward", True)):
            found = [_pass_text(one) for one in self.passes if one.backward is backward]
            lines += ["", name, *found] if found else []
        return "\n".join(lines)

    __repr__ = __str__


def _pass_text(one: ExplainedPass) -> str:
    columns = [
        f"{one.op:20} {one.what:59}",
        f"{us_text(one.floor_us):>8}",
        f"{one.flops / 1e9:5.3g} GFLOP" if one.flops else " " * 11,
        f"{one.moved / 2**20:5.3g} MiB",
    ]
    if one.shared_memory:
        columns.append(f"{one.shared_memory / 1024:.0f} KiB shared")
    return "  " + "  ".join(columns)


def explain_set_abstraction(
    clouds: int,
    points: int,
    groups: int,
    neighbours: int,
    features: int,
    channels: Sequence[int],
    *,
    xyz: bool = True,
    dtype: torch.dtype = torch.bfloat16,
    norm: str | None = "batch",
    activation: str | None = "relu",
    pool: str = "max",
    negative_slope: float = 0.01,
    last_activation: bool = True,
    training: bool = True,
    backward: bool | None = None,
    gpu: str | None = None,
    sm_count: int | None = None,
    shared_memory: int | None = None,
) -> LayerExplanation:
    """Say what `fusedops.points.set_abstraction` runs at these sizes, and a floor of its time.

    Nothing is computed. The report names the path, by the function that the call itself asks, and
    the reason where it is not the fused one; the passes forward and backward, what chains in
    registers and what is stored between them, shared memory, arithmetic and memory, and a floor of
    the time. The floor of a pass is the longest of its arithmetic, its traffic with global memory
    and its gathers from L2, at assumed rates: 325 TFLOP/s of 16-bit products, 4.2 TB/s and
    5.5 TB/s on an H200; arithmetic and L2 of other GPUs by their number of SMs, memory by its
    nominal rate. Nothing in it is measured, and neighbours that repeat, which the kernels merge,
    are counted. Backward has gradients of features and parameters, and none of coordinates.

    Args:
        clouds: B, clouds of equal size.
        points: N, of a cloud.
        groups: M, of a cloud.
        neighbours: K, of a group; all of them count.
        features: F, of a point; 0 for none.
        channels: (C_1, ..., C_L).
        xyz: Whether offsets of three coordinates are part of the first layer.
        dtype: Dtype of the weights.
        norm: "batch", "sync_batch" (over a process group), "layer" or None, of every layer.
        activation: As in the call.
        pool: Likewise.
        negative_slope: Likewise.
        last_activation: Likewise.
        training: Whether batch norm takes the statistics of the batch.
        backward: Whether to include backward; None: as `training`.
        gpu: "H200", "H100" or "A100"; None: the current one, else an H200 is assumed.
        sm_count: In place of that GPU's.
        shared_memory: Bytes that a block may have, likewise.

    Returns:
        The report; ``print`` it. Its fields hold the same facts.

    Raises:
        TypeError: A size is no integer, or `dtype` is no floating torch.dtype.
        ValueError: A size is out of range, a word is unknown, or there is nothing to compute from.

    Example:
        >>> print(fusedops.explain_set_abstraction(32, 1024, 512, 32, 0, (64, 64, 128)))
    """
    op = "explain_set_abstraction"
    sizes = _sizes(
        op, clouds=clouds, points=points, groups=groups, neighbours=neighbours, features=features
    )
    if not xyz and not sizes[-1]:
        raise ValueError(f"{op}: xyz must be True where features is 0; got {xyz}")
    activation = check_words(op, activation, pool)
    setting = Setting(dtype, norm, activation, negative_slope, last_activation, pool, training)
    return _explain(
        op, sizes, channels, setting, backward, _gpu(op, gpu, sm_count, shared_memory),
        dims=3 if xyz else 0, products=1 if sizes[-1] else 0,
    )  # fmt: skip


def explain_edge_conv(
    clouds: int,
    points: int,
    neighbours: int,
    features: int,
    channels: Sequence[int],
    *,
    dtype: torch.dtype = torch.bfloat16,
    norm: str | None = "batch",
    activation: str | None = "leaky_relu",
    pool: str = "max",
    negative_slope: float = 0.2,
    last_activation: bool = True,
    training: bool = True,
    backward: bool | None = None,
    gpu: str | None = None,
    sm_count: int | None = None,
    shared_memory: int | None = None,
) -> LayerExplanation:
    """Say what `fusedops.points.edge_conv` runs at these sizes, without the neighbour search.

    As `explain_set_abstraction`, with a group at every point.

    Args:
        clouds: B, clouds of equal size.
        points: N, of a cloud.
        neighbours: K, of a point.
        features: F, of a point.
        channels: (C_1, ..., C_L).
        dtype: Dtype of the weights.
        norm: "batch", "sync_batch", "layer" or None.
        activation: As in the call.
        pool: Likewise.
        negative_slope: Likewise.
        last_activation: Likewise.
        training: Whether batch norm takes the statistics of the batch.
        backward: Whether to include backward; None: as `training`.
        gpu: "H200", "H100" or "A100"; None: the current one, else an H200 is assumed.
        sm_count: In place of that GPU's.
        shared_memory: Bytes that a block may have, likewise.

    Returns:
        The report; ``print`` it.

    Raises:
        TypeError: A size is no integer, or `dtype` is no floating torch.dtype.
        ValueError: A size is out of range, or a word is unknown.

    Example:
        >>> print(fusedops.explain_edge_conv(32, 1024, 20, 64, (64, 64)))
    """
    op = "explain_edge_conv"
    sizes = _sizes(
        op, clouds=clouds, points=points, groups=points, neighbours=neighbours, features=features
    )
    if not sizes[-1]:
        raise ValueError(f"{op}: features must be at least 1; got 0")
    activation = check_words(op, activation, pool)
    setting = Setting(dtype, norm, activation, negative_slope, last_activation, pool, training)
    return _explain(
        op, sizes, channels, setting, backward, _gpu(op, gpu, sm_count, shared_memory),
        dims=0, products=2,
    )  # fmt: skip


# ---- the arguments ----


def _size(op: str, name: str, value: object, least: int) -> int:
    try:
        size = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        message = f"{op}: {name} must be an integer; got {type(value).__name__}"
        raise TypeError(message) from None
    if size < least:
        raise ValueError(f"{op}: {name} must be at least {least}; got {size}")
    return size


def _sizes(op: str, **sizes: object) -> tuple[int, ...]:
    return tuple(_size(op, name, value, 0) for name, value in sizes.items())


def _gpu(op: str, name: str | None, sm_count: int | None, shared_memory: int | None) -> Gpu:
    if name is not None and name not in GPUS:
        known = ", ".join(repr(one) for one in GPUS)
        raise ValueError(f"{op}: gpu must be one of {known} or None; got {name!r}")
    found = _visible_gpu() if name is None else GPUS[name]
    if sm_count is not None:
        found = found._replace(sm_count=_size(op, "sm_count", sm_count, 1))
    if shared_memory is not None:
        found = found._replace(shared_memory=_size(op, "shared_memory", shared_memory, 0))
    return found


def _visible_gpu() -> Gpu:
    if not torch.cuda.is_available():
        return GPUS["H200"]._replace(name="NVIDIA H200 (assumed: no GPU is visible)")
    facts = torch.cuda.get_device_properties(torch.cuda.current_device())
    count, shared = facts.multi_processor_count, facts.shared_memory_per_block_optin
    known = next((gpu for name, gpu in GPUS.items() if name in facts.name), None)
    memory = known.memory_tbytes if known else H200_TBYTES * count / H200_SMS
    return Gpu(facts.name, count, shared, memory)


# ---- the report ----


def _explain(
    op: str,
    sizes: tuple[int, ...],
    channels: Sequence[int],
    setting: Setting,
    backward: bool | None,
    gpu: Gpu,
    *,
    dims: int,
    products: int,
) -> LayerExplanation:
    if not isinstance(setting.dtype, torch.dtype) or not setting.dtype.is_floating_point:
        raise TypeError(f"{op}: dtype must be a floating torch.dtype; got {setting.dtype!r}")
    if setting.norm not in _NORMS:
        known = ", ".join(repr(one) for one in _NORMS)
        raise ValueError(f"{op}: norm must be one of {known}; got {setting.norm!r}")
    widths = tuple(_size(op, "channels", width, 1) for width in channels)
    if not widths:
        raise ValueError(f"{op}: channels must have at least one entry; got none")
    backward = setting.training if backward is None else backward
    batch = setting.training and setting.norm in ("batch", "sync_batch")
    infer = not backward and not batch and _has_one_slope(setting, len(widths))
    call = EdgeCall(*sizes, widths, dims, products, setting.dtype.itemsize, batch, backward, infer)  # type: ignore[call-arg, arg-type]
    if gpu.shared_memory == _HOPPER_BYTES:
        call = call._replace(shape=_shape_of(call, setting.activation))
    why = _refusal(call, setting, gpu)
    fused = why is None
    passes = [one.on(gpu) for one in passes_of(call, fused=fused)]
    kept = (fused_kept(call) if fused else composed_kept(call)) if backward else 0
    notes = [*(_fused_notes(call) if fused else _COMPOSED_NOTES), _rates_note(gpu)]
    text = _call_text(op.removeprefix("explain_"), call, setting)
    path = "fused" if fused else "composed"
    return LayerExplanation(text, gpu.name, path, why, passes, call.mlp_flops, kept, notes)


def _shape_of(call: EdgeCall, activation: str) -> tuple[int, ...] | None:
    """The widths of Hopper's kernels whose hidden layers differ; None where it has none."""
    if call.backward or call.batch:
        shape = train_shape(call.channels)
        needed = shared_memory(shape, call.has_rows, True) if shape else 0
    else:
        shape = infer_shape(call.channels) if call.infer and activation == "relu" else None
        needed = infer_memory(shape, call.has_rows) if shape else 0
    return shape if needed <= _HOPPER_BYTES else None


def _has_one_slope(setting: Setting, layers: int) -> bool:
    """Whether the kernel that infers has the activations: one slope for all layers."""
    is_linear = setting.activation == "none" or (
        setting.activation == "leaky_relu" and setting.negative_slope == 1
    )
    return setting.last_activation or is_linear or layers == 1


def _refusal(call: EdgeCall, setting: Setting, gpu: Gpu) -> str | None:
    """What the call itself asks, of tensors without storage."""

    def paper(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=setting.dtype, device="meta")

    first, *others = call.channels
    points, groups = (call.clouds, call.points), (call.clouds, call.groups)
    rows: torch.Tensor | PointProduct | None = paper(*points, first) if call.products else None
    if call.products == 1:
        rows = PointProduct(paper(*points, call.features), paper(first, call.features))
    given = EdgeInput(
        rows,
        paper(*groups, first) if call.products > 1 else None,
        paper(first, call.dims) if call.dims else None,
        paper(*points, call.dims) if call.dims else None,
        paper(*groups, call.dims) if call.dims else None,
        paper(*groups, call.neighbours),
        setting.dtype,
    )
    norm = _NORMS[setting.norm]
    weights = [None, *(paper(b, a) for a, b in zip(call.channels, others, strict=False))]
    layers = [EdgeLayer(weight, None, norm) for weight in weights]
    activation, slope, pool = setting.activation, setting.negative_slope, setting.pool
    return refusal(
        given, layers, activation, slope, pool, gpu.shared_memory, call.backward, call.shape
    )


def _call_text(name: str, call: EdgeCall, setting: Setting) -> str:
    norm = setting.norm or "no"
    if setting.norm in ("batch", "sync_batch"):
        norm += " norm of the batch" if setting.training else " norm of running statistics"
    else:
        norm += " norm"
    return (
        f"{name} of {call.clouds} x {call.points} points, {call.groups} groups of "
        f"{call.neighbours}, {call.features} features, {'-'.join(map(str, call.channels))}, "
        f"{dtype_name(setting.dtype)}, {norm}, {setting.activation}, {setting.pool}"
    )


_COMPOSED_NOTES = [
    "torch's functions and our ops, a layer at a time; only what every implementation of that kind "
    "must do is counted"
]


def _rates_note(gpu: Gpu) -> str:
    return (
        f"assumed rates: {gpu.tflops:.0f} TFLOP/s of 16-bit products, memory "
        f"{gpu.memory_tbytes:.2f} TB/s, L2 {gpu.l2_tbytes:.1f} TB/s; {gpu.sm_count} SMs"
    )


def _fused_notes(call: EdgeCall) -> list[str]:
    count, widths = len(call.channels), call.widths
    notes = []
    if count > 1:
        sizes = "-".join(map(str, widths))
        notes.append(
            f"layers 1 to {count} chain in registers, as {sizes}; weights are in shared memory"
        )
    if widths[-1] > SLICE:
        slices = f"{widths[-1] // SLICE} slices of {SLICE} columns"
        notes.append(f"the last layer is cut into {slices}, each after its own layers before")
    if count > 1 and call.batch:
        notes.append("between passes forward: scale and shift of a norm, nothing by edge")
    if count > 1 and call.backward:
        stored = call.edges * widths[0] * call.itemsize / 2**20
        notes.append(
            f"between passes back: rows of the gradient below, {stored:.3g} MiB in 16 bits"
        )
    return notes
