"""Layers over edges in a few kernels: 16-bit types on CUDA, batch norm or none, a maximum.

Activations of an edge never leave the chip. Forward, every layer with batch statistics is one pass
over the edges that recomputes the layers before it, and the last pass takes the maxima as well;
backward, every layer but the first is one pass, which stores the rows of the gradient below in the
16-bit type. What is left of the first layer is linear in what was gathered, so its gradient is a
sum by point of those rows and closed forms (csrc/cuda/points/edges).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .._autograd.compose import no_autocast
from .._autograd.shared import distinct, needs_grad, sees_torch_functions_only
from .._core.dtensor import is_dtensor
from .._core.info import built_archs
from . import _edge_composed
from ._edge_backward import Backward
from ._edge_input import EdgeInput, EdgeLayer, PointProduct, product_by_point
from ._edge_problem import (
    MAX_LAYERS,
    MOST_FEATURES,
    Norms,
    Plan,
    Problem,
    build_problem,
    in_fragment_order,
    infer_memory,
    infer_shape,
    ordered_product,
    padded_widths,
    shared_memory,
    train_shape,
)
from .norms import BatchNorm

if TYPE_CHECKING:
    from collections.abc import Sequence


_ops = torch.ops.fusedops
_MAX_HIDDEN = 128  # kEdgeMaxHidden
_MAX_LAST = 256  # beyond, GEMMs over gathered rows are faster
_MAX_NEIGHBOURS = 2000  # kEdgeMaxNeighbours
_SLOPES = {"relu": 0.0, "none": 1.0}
_MEAN, _RSTD, _VARIANCE, _COUNT = range(4)  # rows of the statistics


def supports(
    given: EdgeInput,
    layers: Sequence[EdgeLayer],
    activation: str,
    negative_slope: float,
    pool: str,
    last_activation: bool = True,
) -> bool:
    """Whether `edge_mlp` has kernels for the call."""
    limit, backward = _shared_limit(given.idx.device), torch.is_grad_enabled()
    shape = shape_of(given, layers, activation, last_activation)
    return refusal(given, layers, activation, negative_slope, pool, limit, backward, shape) is None


def shape_of(
    given: EdgeInput, layers: Sequence[EdgeLayer], activation: str, last_activation: bool
) -> tuple[int, ...] | None:
    """The widths of sm_90a's kernels whose hidden layers differ, None where there are none."""
    if not _has_infer_kernels(given.idx.device):
        return None
    channels, has_rows = channels_of(given, layers), _has_rows(given)
    batch = any(isinstance(layer.norm, BatchNorm) and layer.norm.training for layer in layers)
    if batch or needs_grad(*_tensors_of(given, layers)):
        shape = train_shape(channels)
        needed = shared_memory(shape, has_rows, True) if shape else 0
    elif activation == "relu" and last_activation:
        shape = infer_shape(channels)
        needed = infer_memory(shape, has_rows) if shape else 0
    else:
        return None
    return shape if needed <= _shared_limit(given.idx.device) else None


def refusal(
    given: EdgeInput,
    layers: Sequence[EdgeLayer],
    activation: str,
    negative_slope: float,
    pool: str,
    shared_limit: int,
    backward: bool,
    shape: tuple[int, ...] | None = None,
) -> str | None:
    """The first reason why `edge_mlp` has no kernels for the call, None where it has.

    shared_limit: bytes of a block, 0 where there are no kernels. backward: whether it may follow.
    shape: `shape_of` the call.
    """
    like = given.rows if given.rows is not None else given.xyz
    assert like is not None
    widths = channels_of(given, layers)
    has_slope = activation in _SLOPES or (activation == "leaky_relu" and 0 <= negative_slope <= 1)
    if not shared_limit:
        return "the kernels are CUDA's"
    if given.dtype not in (torch.float16, torch.bfloat16):
        return "the kernels are for float16 and bfloat16"
    if pool != "max":
        return "the kernels pool by max"
    if not has_slope:
        return "the kernels have relu, leaky_relu with a slope from 0 to 1, and none"
    if not 1 <= len(layers) <= MAX_LAYERS:
        return f"the kernels chain at most {MAX_LAYERS} layers"
    if shape is None and any(width > _MAX_HIDDEN for width in widths[:-1]):
        return f"a layer before the last has more than {_MAX_HIDDEN} channels"
    if widths[-1] > _MAX_LAST:
        return f"the last layer has more than {_MAX_LAST} channels: GEMMs over rows are faster"
    if given.idx.numel() == 0 or like.shape[1] == 0:
        return "there are no edges"
    if given.idx.shape[2] > _MAX_NEIGHBOURS:
        return f"a group has more than {_MAX_NEIGHBOURS} neighbours"
    if given.xyz is not None and given.xyz.shape[2] != 3:
        return "the kernels take coordinates of 3 dimensions"
    if not all(_supports_norm(layer.norm) for layer in layers):
        return "the kernels have batch norm of one process, or no norm"
    needed = 0 if shape else shared_memory(padded_widths(widths), _has_rows(given), backward)
    if needed > shared_limit:
        return "the layers do not fit into the shared memory of a block"
    tensors = _tensors_of(given, layers)
    if sees_torch_functions_only(*tensors):
        return "torch.func, forward-mode AD and tensor subclasses see torch's functions only"
    if any(map(is_dtensor, tensors)):
        return "the kernels have no sharding strategy"
    return None


def _has_rows(given: EdgeInput) -> bool:
    """Whether edges gather a product of features."""
    return given.rows is not None and not takes_features(given)


def takes_features(given: EdgeInput) -> bool:
    """Whether edges gather features themselves instead of their product.

    Not where coordinates have gradients: those are sums by group as well.
    """
    rows = given.rows
    return (
        isinstance(rows, PointProduct)
        and 0 < rows.features.shape[2] <= MOST_FEATURES
        and rows.features.dtype == rows.weight.dtype == given.dtype
        and not needs_grad(given.xyz, given.centers)
    )


def _tensors_of(given: EdgeInput, layers: Sequence[EdgeLayer]) -> list[Tensor | None]:
    rows = given.rows if isinstance(given.rows, PointProduct) else (given.rows,)
    norms = [(n.weight, n.bias) for n in (layer.norm for layer in layers) if n is not None]
    own = [t for layer in layers for t in (layer.weight, layer.bias)]
    return [*rows, *given[1:6], *own, *(t for norm in norms for t in norm)]


def _shared_limit(device: torch.device) -> int:
    """Bytes of shared memory that a block may have; 0 where there are no kernels."""
    if device.type != "cuda":
        return 0
    limit: int = torch.cuda.get_device_properties(device).shared_memory_per_block_optin
    return limit


# NOTE: torch.compiler.assume_constant_result without its import of torch._dynamo, which guards on
# the device of a tensor anyway.
_shared_limit._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _has_infer_kernels(device: torch.device) -> bool:
    """Whether kernels of INFER_SHAPES and TAPER are there, and the device runs them."""
    if device.type != "cuda" or "90a" not in built_archs():
        return False
    return bool(torch.cuda.get_device_capability(device) == (9, 0))


_has_infer_kernels._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _supports_norm(norm: object) -> bool:
    return norm is None or (isinstance(norm, BatchNorm) and norm.group is None)


def slope_of(activation: str, negative_slope: float) -> float:
    """The slope of an activation that `refusal` lets pass."""
    return _SLOPES.get(activation, negative_slope)


def channels_of(given: EdgeInput, layers: Sequence[EdgeLayer]) -> tuple[int, ...]:
    first = next(
        t.shape[dim]
        for t, dim in ((given.rows, 2), (given.group_rows, 2), (given.offset_weight, 0))
        if t is not None
    )
    return (first, *(layer.weight.shape[0] for layer in layers[1:] if layer.weight is not None))


def _forward(plan: Plan, problem: Problem, infer: bool) -> tuple[Problem, list[Tensor | None], Any]:
    """The problem with its statistics in it, those of every layer, and the last pass's results."""
    stats: list[Tensor | None] = []
    last = len(plan.channels) - 1
    results: Any = None
    for layer, (channels, batch) in enumerate(zip(plan.channels, plan.training, strict=True)):
        if layer < last and not batch:
            stats.append(None)
            continue
        pool = layer == last and not infer
        results = _ops.edge_mlp_forward(
            *problem.arguments(plan, layer + 1), channels, infer and layer == last, pool, batch,
            plan.eps[layer],
        )  # fmt: skip
        stats.append(results[4] if batch else None)
        if batch:
            problem = problem._replace(affine=results[3])
    return problem, stats, results


def _pooled(
    plan: Plan, problem: Problem, infer: bool
) -> tuple[Problem, list[Tensor | None], Tensor, Tensor | None, Tensor | None]:
    """(problem, statistics, activations, maxima, winners); the last two are for backward."""
    problem, stats, (out, best, which, _, _) = _forward(plan, problem, infer)
    if infer:
        return problem, stats, out, None, None
    affine = problem.affine[plan.rows(len(plan.channels) - 1)]
    out = _ops.edge_pool_forward(best, which, affine, problem.weights, plan.last_slope)
    return problem, stats, out, best, which


class EdgeMax(torch.autograd.Function):
    """(what is gathered, plan, parameters) -> the pooled activations and the statistics."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor | None,
        group_rows: Tensor | None,
        offset_weight: Tensor | None,
        xyz: Tensor | None,
        centers: Tensor | None,
        idx: Tensor,
        plan: Plan,
        dtype: torch.dtype,
        *parameters: Tensor | None,
    ) -> tuple[Tensor, ...]:
        gathered = (rows, group_rows, offset_weight, xyz, centers, idx)
        problem, merged = build_problem(plan, gathered, dtype, parameters)
        problem, stats, out, best, which = _pooled(plan, problem, False)
        ctx.save_for_backward(*problem, merged, best, which, *stats, *gathered, *parameters)
        ctx.plan = plan
        found = [s for s in stats if s is not None]
        ctx.mark_non_differentiable(*found)
        ctx.set_materialize_grads(False)
        return (out, *found)

    @staticmethod
    def backward(ctx: Any, dout: Tensor, *_: Any) -> Any:
        with no_autocast(dout):
            call = Backward(ctx)
            return _composed_backward(call, dout) if torch.is_grad_enabled() else call.run(dout)


def alias(t: Tensor | None) -> Tensor | None:
    return t.view_as(t) if t is not None and t.is_floating_point() else t


def _composed_backward(call: Backward, dout: Tensor) -> tuple[Any, ...]:
    """A backward that can be differentiated again: that of the composed layers."""
    plan, count = call.plan, call.count
    # NOTE: aliases, because inputs may be made of each other: what leads from one to another is for
    # the engine to follow.
    inputs = [alias(t) for t in (*call.gathered, None, None, *call.weights, *call.parameters)]
    rows, group_rows, offset_weight, xyz, centers, idx = inputs[:6]
    assert idx is not None
    weights, parameters = inputs[8 : 7 + count], inputs[7 + count :]
    if plan.raw:
        assert rows is not None
        assert group_rows is not None
        rows, group_rows = product_by_point(rows, group_rows), None
    if plan.ordered and rows is not None:
        rows = in_fragment_order(rows, -1)[..., : plan.channels[0]]
    norms = Norms(*(tuple(parameters[i * count :][:count]) for i in range(5)))
    layers = []
    for i, weight in enumerate((None, *weights)):
        norm = None
        if plan.has_norm[i]:
            statistics = (norms.mean[i], norms.var[i])
            norm = BatchNorm(
                norms.gamma[i], norms.beta[i], *statistics, plan.training[i], eps=plan.eps[i]
            )
        layers.append(EdgeLayer(weight, norms.bias[i], norm))
    given = EdgeInput(rows, group_rows, offset_weight, xyz, centers, idx, dout.dtype)
    name = {0.0: "relu", 1.0: "none"}.get(plan.slope, "leaky_relu")
    out = _edge_composed.edge_mlp(given, layers, name, plan.slope, plan.last_activation, "max")
    wanted = [t for t, need in zip(inputs, call.needs, strict=True) if need]
    grads = iter(torch.autograd.grad(out, wanted, dout, create_graph=True, allow_unused=True))
    return tuple(next(grads) if need else None for need in call.needs)


def edge_mlp(
    given: EdgeInput,
    layers: Sequence[EdgeLayer],
    activation: str,
    negative_slope: float,
    last_activation: bool,
) -> Tensor:
    """`_edge_mlp.edge_mlp` of a call that `supports` knows."""
    slope = slope_of(activation, negative_slope)
    last_slope = slope if last_activation else 1.0
    batch = [layer.norm if isinstance(layer.norm, BatchNorm) else None for layer in layers]
    raw = takes_features(given)
    ordered = isinstance(given.rows, PointProduct) and not raw
    plan = Plan(
        channels_of(given, layers),
        tuple(norm is not None and norm.training for norm in batch),
        tuple(0.0 if norm is None else norm.eps for norm in batch),
        tuple(norm is not None for norm in batch),
        slope if len(layers) > 1 else last_slope,
        last_slope,
        last_activation,
        ordered,
        given.idx.shape[0],
        raw,
        shape_of(given, layers, activation, last_activation),
    )
    rows, group_rows = given.rows, given.group_rows
    if isinstance(rows, PointProduct):
        if raw:
            rows, group_rows = rows
        else:
            rows = ordered_product(rows, plan.widths[0])
    norms = Norms(
        tuple(None if norm is None else norm.weight for norm in batch),
        tuple(None if norm is None else norm.bias for norm in batch),
        tuple(layer.bias for layer in layers),
        tuple(None if n is None or n.training else n.running_mean for n in batch),
        tuple(None if n is None or n.training else n.running_var for n in batch),
    )
    gathered = (rows, group_rows, *given[2:5], given.idx)
    parameters = [*(layer.weight for layer in layers[1:]), *(t for kind in norms for t in kind)]
    if needs_grad(*gathered, *parameters):
        arguments = distinct(*gathered, plan, given.dtype, *parameters)
        out, *stats = EdgeMax.apply(*arguments)
    else:
        infer = not any(plan.training) and plan.slope == plan.last_slope
        problem, _ = build_problem(plan, gathered, given.dtype, parameters, infer)
        _, found, out, _, _ = _pooled(plan, problem, infer)
        stats = [s for s in found if s is not None]
    trained = [
        layer for layer in layers if isinstance(layer.norm, BatchNorm) and layer.norm.training
    ]
    update_running(trained, stats)
    result: Tensor = out
    return result


def _share(counts: Tensor, momentum: Any) -> Tensor:
    """momentum where edges count, else 0."""
    if isinstance(momentum, float) and 0 <= momentum <= 1:
        return counts.clamp_max(momentum)  # counts are 0, or 1 and more
    return (counts > 0) * momentum


@torch.no_grad()
def update_running(layers: Sequence[EdgeLayer], stats: Sequence[Tensor]) -> None:
    """Mix the batch into the running statistics; not where no edge counts."""
    running: list[Tensor] = []
    values: list[Tensor] = []
    shares: list[Tensor] = []
    known: dict[tuple[float], Tensor] = {}  # all channels of all layers count the same edges
    widest = 0
    for found in stats:
        if found.shape[1] > widest:
            widest, counts = found.shape[1], found[_COUNT]
    for layer, found in zip(layers, stats, strict=True):
        norm = layer.norm
        assert isinstance(norm, BatchNorm)
        if norm.running_mean is None or norm.running_var is None:
            continue
        assert norm.momentum is not None
        found = found[:, : norm.running_mean.shape[0]]
        mean = found[_MEAN] if layer.bias is None else found[_MEAN] + layer.bias
        share = known.get((norm.momentum,))
        if share is None:
            share = known[norm.momentum,] = _share(counts, norm.momentum)
        for old, new in ((norm.running_mean, mean), (norm.running_var, found[_VARIANCE])):
            running.append(old)
            values.append(new)
            shares.append(share[: found.shape[1]])
    wide = [t.float() for t in running]
    if running:
        torch._foreach_lerp_(wide, values, shares)
    for old, mixed in zip(running, wide, strict=True):
        if old is not mixed:  # half precision: rounded once
            old.copy_(mixed)
