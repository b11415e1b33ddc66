"""Wide layers over edges: GEMMs over rows in memory, and what is between them in few passes.

Rows are those of all slots (B M K), with a mask of those that count. The first layer's rows are
gathered, summed in float32 and rounded by one kernel; a layer's batch statistics are one read, and
norm and activation one pass, which writes the next product's operand. The last layer has no
normalised rows: its statistics and its groups' extrema, by the sign of the norm's weight, come from
one read. Backward, a layer is two passes, the sums and the gradient (csrc/cuda/points/edge_rows).
Feature propagation is the same with groups of one row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from .._autograd.compose import no_autocast
from .._autograd.shared import distinct, needs_grad, sees_torch_functions_only
from .._core.dtensor import is_dtensor
from ..ops.linear import linear
from . import _edge_composed
from ._edge_composed import Activation
from ._edge_input import EdgeInput, EdgeLayer, PointProduct, edge_layers, folded, padded_call
from .norms import BatchNorm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ._edge_checks import Layers

_ops = torch.ops.fusedops
_linear = _ops.linear.default
_linear_backward = _ops.linear_backward.default
_group_backward = _ops.group_backward.default
_SLOPES = {"relu": 0.0, "none": 1.0}
_SCALE = 2  # kRowScale
_MOST_ROWS = 2**31 - 1


class RowsPlan(NamedTuple):
    """What a call is, but for the tensors that it differentiates."""

    norms: tuple[BatchNorm | None, ...]
    activation: Activation
    last_activation: bool
    identity: bool  # row i is point i, where it counts
    whole: bool  # all rows count

    def slope(self, layer: int) -> float:
        """The slope of the activation behind a layer."""
        if layer == len(self.norms) - 1 and not self.last_activation:
            return 1.0
        return _SLOPES.get(self.activation.name, self.activation.slope)


def supports(
    given: EdgeInput, layers: Sequence[EdgeLayer], activation: str, slope: float, pool: str
) -> bool:
    """Whether `edge_mlp` has kernels for the call."""
    rows = given.rows
    like = rows if rows is not None else given.xyz
    assert like is not None
    products = (rows, given.group_rows, given.offset_weight)
    first = [t.shape[dim] for t, dim in zip(products, (2, 2, 0), strict=True) if t is not None]
    return (
        pool == "max"
        and 0 < given.idx.numel() <= _MOST_ROWS
        and 0 < like.shape[0] * like.shape[1] <= _MOST_ROWS
        and min(first) > 0
        and (given.offset_weight is None or given.offset_weight.shape[1] == 3)
        and _supports_layers(given.idx.device, given.dtype, layers, activation, slope)
        and _sees_values(_tensors_of(given, layers))
    )


def _supports_layers(
    device: torch.device,
    dtype: torch.dtype,
    layers: Sequence[EdgeLayer],
    activation: str,
    slope: float,
) -> bool:
    return (
        _runs_on(device)
        and not torch.compiler.is_dynamo_compiling()
        and dtype in (torch.float16, torch.bfloat16)
        and (activation in _SLOPES or (activation == "leaky_relu" and 0 <= slope <= 1))
        and all(layer.weight is None or layer.weight.numel() > 0 for layer in layers)
        and all(_supports_norm(layer.norm) for layer in layers)
    )


def _sees_values(tensors: Sequence[Tensor | None]) -> bool:
    opaque: bool = sees_torch_functions_only(*tensors) or any(map(is_dtensor, tensors))
    return not opaque


def _runs_on(device: torch.device) -> bool:
    on_gpu: bool = device.type == "cuda"
    return on_gpu


def _supports_norm(norm: object) -> bool:
    if norm is None:
        return True
    if not isinstance(norm, BatchNorm) or norm.group is not None:
        return False
    return (norm.running_mean is None) == (norm.running_var is None)


def _tensors_of(given: EdgeInput, layers: Sequence[EdgeLayer]) -> list[Tensor | None]:
    rows = given.rows if isinstance(given.rows, PointProduct) else (given.rows,)
    norms = [(n.weight, n.bias) for n in (layer.norm for layer in layers) if n is not None]
    own = [t for layer in layers for t in (layer.weight, layer.bias)]
    return [*rows, *given[1:6], *own, *(t for norm in norms for t in norm)]


def _statistics(
    y: Tensor,
    valid: Tensor | None,
    norm: BatchNorm | None,
    vectors: Sequence[Tensor | None],
    k: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """(stats, best, which) of `edge_rows_statistics_`; vectors: gamma, beta and a bias."""
    gamma, beta, bias = (None if t is None else t.detach().float() for t in vectors)
    mean = var = share = None
    momentum, eps, training = 0.0, 0.0, False
    if norm is not None:
        mean, var, eps, training = norm.running_mean, norm.running_var, norm.eps, norm.training
        if isinstance(norm.momentum, Tensor):
            share = norm.momentum.float()
        elif norm.momentum is not None:
            momentum = norm.momentum
    found: tuple[Tensor, Tensor, Tensor] = _ops.edge_rows_statistics_(
        y, valid, gamma, beta, bias, mean, var, share, momentum, eps, training, k
    )
    if training and mean is not None and not mean.is_inference():
        assert var is not None
        torch.autograd.graph.increment_version((mean, var))
    return found


def _is_first(gathered: Sequence[Any], plan: RowsPlan, dtype: torch.dtype) -> bool:
    """Whether the rows that are gathered are y_1."""
    rows, group_rows = gathered[:2]
    same: bool = plan.identity and plan.whole and group_rows is None and rows.dtype == dtype
    return same


def _first_rows(
    gathered: Sequence[Any],
    plan: RowsPlan,
    dtype: torch.dtype,
    stats: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """y_1 (B M K, C1), or with its norm's stats a_1, and which rows count, None: all."""
    rows, group_rows, offset_weight, xyz, centers, idx = gathered
    if stats is None and _is_first(gathered, plan, dtype):
        return rows.flatten(0, 1).contiguous(), None
    weight = None if offset_weight is None else offset_weight.float()
    if weight is None:
        xyz = centers = None
    like = idx.new_empty(0, dtype=dtype)
    rows, group_rows = (None if t is None else t.float() for t in (rows, group_rows))
    y, valid = _ops.edge_rows_first(
        rows, group_rows, weight, xyz, centers, idx, like, stats, plan.slope(0)
    )
    return y, None if plan.whole else valid


class RowsMax(torch.autograd.Function):
    """(what is gathered, plan, dtype, parameters) -> (B, M, C_L).

    parameters: W_2 and on, then gamma, beta and bias of every layer.
    """

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor | None,
        group_rows: Tensor | None,
        offset_weight: Tensor | None,
        xyz: Tensor | None,
        centers: Tensor | None,
        idx: Tensor,
        plan: RowsPlan,
        dtype: torch.dtype,
        *parameters: Tensor | None,
    ) -> Tensor:
        gathered = (rows, group_rows, offset_weight, xyz, centers, idx)
        count = len(plan.norms)
        k = idx.shape[2] if idx.shape[2] > 1 else 0
        y, valid = _first_rows(gathered, plan, dtype)
        kept: list[Tensor] = []
        best = which = None
        for layer, norm in enumerate(plan.norms):
            last = layer == count - 1
            vectors = parameters[count - 1 + layer :: count]
            stats, best, which = _statistics(y, valid, norm, vectors, k if last else 0)
            pooled = last and k > 0
            a = _ops.edge_rows_apply(
                best if pooled else y, stats, which if pooled else None,
                None if pooled else valid, plan.slope(layer),
            )  # fmt: skip
            kept += [y, stats, *([] if last else [a])]
            if not last:
                y = _linear(a, parameters[layer], None, 0, False)
        ctx.save_for_backward(*gathered, *parameters, valid, best, which, *kept)
        ctx.plan, ctx.k, ctx.dtype = plan, k, dtype
        out: Tensor = a.view(*idx.shape[:2], -1)
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> Any:
        with no_autocast(dout):
            saved = ctx.saved_tensors
            size = 6 + 4 * len(ctx.plan.norms) - 1
            gathered, parameters, rest = saved[:6], saved[6:size], saved[size:]
            if torch.is_grad_enabled():
                return _composed_backward(ctx, gathered, parameters, dout)
            return _backward(ctx, gathered, parameters, rest, dout)


def _backward(
    ctx: Any,
    gathered: Sequence[Any],
    parameters: Sequence[Tensor | None],
    rest: Sequence[Any],
    dout: Tensor,
) -> tuple[Any, ...]:
    plan, needs = ctx.plan, ctx.needs_input_grad
    count = len(plan.norms)
    valid, best, which, *kept = rest
    need_parameters = needs[8:]
    grads: list[Tensor | None] = [None] * len(parameters)
    da = dout.to(ctx.dtype).flatten(0, 1)
    zeros: Sequence[Tensor] = ()  # gradients of biases under batch norm
    if any(need_parameters[-count:]):
        widths = [stats.shape[1] for stats in kept[1::3]]
        zeros = kept[1].new_zeros(sum(widths)).split(widths)
    for layer in range(count - 1, -1, -1):
        y, stats = kept[3 * layer : 3 * layer + 2]
        norm, slope = plan.norms[layer], plan.slope(layer)
        pooled = layer == count - 1 and ctx.k > 0
        batch = norm is not None and norm.training
        at = range(count - 1 + layer, len(parameters), count)  # gamma, beta, bias
        sums = None
        if batch or any(need_parameters[i] for i in at):
            sums = _ops.edge_rows_sums(
                da, best if pooled else y, stats, which if pooled else None,
                None if pooled else valid, slope,
            )  # fmt: skip
            for i, grad in zip(at, (sums[1], sums[0]), strict=False):
                grads[i] = grad if need_parameters[i] else None
            if need_parameters[at[-1]]:
                grads[at[-1]] = zeros[layer] if batch else sums[0] * stats[_SCALE]
        if layer == 0 and not any(needs[:5]):
            break
        extremes = (best, which) if pooled else (None, None)
        dy = _ops.edge_rows_backward(da, y, stats, sums if batch else None, *extremes, valid, slope)
        if layer > 0:
            below = any(needs[:5]) or any(need_parameters[: layer - 1])
            below = below or any(need_parameters[count - 1 :])
            da, dw, _ = _linear_backward(
                dy, kept[3 * layer - 1], parameters[layer - 1], None, 0, below,
                need_parameters[layer - 1], False, False, False,
            )  # fmt: skip
            grads[layer - 1] = dw if need_parameters[layer - 1] else None
            if not below:
                break
    first: list[Tensor | None] = [None] * 5
    if any(needs[:5]):
        first = _first_backward(ctx, gathered, dy)
    return (*first, None, None, None, *grads)


def _first_backward(ctx: Any, gathered: Sequence[Any], dy: Tensor) -> list[Tensor | None]:
    """The gradients of what was gathered from those of its rows (B M K, C)."""
    rows, group_rows, offset_weight, xyz, centers, idx = gathered
    need_rows, need_group, need_weight, need_xyz, need_centers = ctx.needs_input_grad[:5]
    dy = dy.view(*idx.shape, dy.shape[-1])
    like = rows if rows is not None else xyz
    weight = None if offset_weight is None else offset_weight.float()
    need_xyz, need_centers = need_xyz and weight is not None, need_centers and weight is not None
    by_point = by_group = of_weight = of_xyz = of_centers = None
    if ctx.plan.identity:
        by_point = by_group = dy.squeeze(2) if like.dtype == dy.dtype else dy.squeeze(2).float()
    else:
        if need_rows or need_xyz:
            by_point = _group_backward(dy, idx, like.shape[1], 0, dy.shape[3], True)
        if need_group or need_centers:
            by_group = dy.sum(2, dtype=torch.float32)
    if need_weight:
        sums = _ops.edge_rows_offsets(dy.flatten(0, 2), idx, xyz, centers)
        of_weight = sums.t().to(offset_weight.dtype)
    if need_xyz and by_point is not None:
        of_xyz = by_point @ weight
    if need_centers and by_group is not None:
        of_centers = -(by_group @ weight)
    return [
        by_point.to(rows.dtype) if need_rows and by_point is not None else None,
        by_group.to(group_rows.dtype) if need_group and by_group is not None else None,
        of_weight,
        of_xyz,
        of_centers,
    ]


def _composed_backward(
    ctx: Any, gathered: Sequence[Any], parameters: Sequence[Any], dout: Tensor
) -> tuple[Any, ...]:
    """A backward that can be differentiated again: that of the composed layers."""
    plan, needs = ctx.plan, ctx.needs_input_grad
    count = len(plan.norms)
    # NOTE: aliases, because inputs may be made of each other: what leads from one to another is for
    # the engine to follow.
    tensors = [
        t.view_as(t) if t is not None and t.is_floating_point() else t
        for t in (*gathered, *parameters)
    ]
    given = EdgeInput._make([*tensors[:6], ctx.dtype])
    layers = []
    for i, norm in enumerate(plan.norms):
        weight = tensors[5 + i] if i > 0 else None
        gamma, beta, bias = tensors[5 + count + i :: count]
        if norm is not None and norm.training:
            norm = norm._replace(running_mean=None, running_var=None)
        norm = None if norm is None else norm._replace(weight=gamma, bias=beta)
        layers.append(EdgeLayer(weight, bias, norm))
    name, slope = plan.activation
    out = _edge_composed.edge_mlp(given, layers, name, slope, plan.last_activation, "max")
    need = [*needs[:6], *needs[8:]]
    wanted = [t for t, wants in zip(tensors, need, strict=True) if wants]
    found = torch.autograd.grad(out, wanted, dout, create_graph=True, allow_unused=True)
    grads = iter(found)
    each = [next(grads) if wants else None for wants in need]
    return (*each[:6], None, None, *each[6:])


def edge_mlp(
    given: EdgeInput,
    layers: Sequence[EdgeLayer],
    activation: str,
    negative_slope: float,
    last_activation: bool,
    *,
    identity: bool = False,
    whole: bool = False,
) -> Tensor:
    """`_edge_mlp.edge_mlp` of a call that `supports` knows.

    identity: idx (B, N, 1) has i or no point in row i. whole: all entries of idx are points.
    """
    width = _last_width(given, layers)
    given, layers, running = padded_call(given, layers)
    norms = tuple(layer.norm if isinstance(layer.norm, BatchNorm) else None for layer in layers)
    plan = RowsPlan(norms, Activation(activation, negative_slope), last_activation, identity, whole)
    gathered = given[:6]
    parameters = [
        *(layer.weight for layer in layers[1:]),
        *(None if norm is None else norm.weight for norm in norms),
        *(None if norm is None else norm.bias for norm in norms),
        *(layer.bias for layer in layers),
    ]
    if needs_grad(*gathered, *parameters):
        out: Tensor = RowsMax.apply(*distinct(*gathered, plan, given.dtype, *parameters))
    else:
        out = _infer(plan, given, layers)
    with torch.no_grad():
        for own, padded in running:
            own.copy_(padded[: own.shape[0]])
    return out if out.shape[2] == width else out[..., :width].contiguous()


def _last_width(given: EdgeInput, layers: Sequence[EdgeLayer]) -> int:
    width: int
    weight = layers[-1].weight
    if weight is not None:
        width = weight.shape[0]
        return width
    rows = given.rows if given.rows is not None else given.group_rows
    if rows is not None:
        width = rows.shape[2]
        return width
    assert given.offset_weight is not None
    width = given.offset_weight.shape[0]
    return width


def rows_mlp(
    x: Tensor, layers: Layers, activation: str, negative_slope: float, last_activation: bool
) -> Tensor | None:
    """Layers on rows x (R, C) in their dtype; None: there are no kernels for the call."""
    zipped = zip(layers.weights, layers.biases, layers.norms, strict=True)
    known = [EdgeLayer(*layer) for layer in zipped]
    norms = [layer.norm for layer in known]
    tensors = [x, *(t for one in known for t in one[:2]), *(t for n in norms if n for t in n[:2])]
    if not (
        x.numel() > 0
        and 1 < x.shape[0] <= _MOST_ROWS
        and _supports_layers(x.device, layers.dtype, known, activation, negative_slope)
        and _sees_values(tensors)
    ):
        return None
    act = Activation(activation, negative_slope)
    with no_autocast(x):
        evaluates = all(isinstance(n, BatchNorm) and not n.training for n in norms)
        if evaluates and act.fuses and not needs_grad(*tensors):
            for i, layer in enumerate(map(folded, known)):
                assert layer.weight is not None
                name = activation if last_activation or i < len(known) - 1 else None
                x = linear(x, layer.weight, layer.bias, name)
            return x
        rows = linear(x, layers.weights[0]).unsqueeze(0)
        at = torch.arange(x.shape[0], device=x.device).view(1, -1, 1)
        given = EdgeInput(rows, None, None, None, None, at, layers.dtype)
        y = edge_mlp(
            given, edge_layers(layers), activation, negative_slope, last_activation,
            identity=True, whole=True,
        )  # fmt: skip
        return y.squeeze(0)


def _known_statistics(plan: RowsPlan, given: EdgeInput, layer: EdgeLayer) -> Tensor | None:
    """The stats of the first layer where no batch makes them and its rows are yet to be written."""
    norm = plan.norms[0]
    if (norm is not None and norm.training) or _is_first(given[:6], plan, given.dtype):
        return None
    products = ((given.rows, 2), (given.group_rows, 2), (given.offset_weight, 0))
    channels = next(t.shape[dim] for t, dim in products if isinstance(t, Tensor))
    like = given.idx.new_empty((1, channels), dtype=given.dtype)
    vectors = [None, None] if norm is None else [norm.weight, norm.bias]
    return _statistics(like, None, norm, [*vectors, layer.bias], 0)[0]


def _infer(plan: RowsPlan, given: EdgeInput, layers: Sequence[EdgeLayer]) -> Tensor:
    """Without gradients: running statistics are in the weights, activations in the products."""
    k = given.idx.shape[2] if given.idx.shape[2] > 1 else 0
    stats = None if k > 0 and len(layers) == 1 else _known_statistics(plan, given, layers[0])
    y, valid = _first_rows(given[:6], plan, given.dtype, stats)
    a = y
    for i, layer in enumerate(layers):
        if i == 0 and stats is not None:
            continue
        last = i == len(layers) - 1
        norm, bias = layer.norm, layer.bias
        vectors = [None, None, bias] if norm is None else [norm.weight, norm.bias, bias]
        if i > 0:
            if isinstance(norm, BatchNorm) and not norm.training:
                layer = folded(layer)
                norm = None
            bias, name = None, None
            if norm is None:
                bias = None if layer.bias is None else layer.bias.to(given.dtype)
                vectors = [None, None, None]
                acts = plan.activation.fuses and (not last or plan.last_activation)
                done = acts and not (last and (k > 0 or valid is not None))
                name = plan.activation.name if done else None
            assert layer.weight is not None
            y = linear(a, layer.weight, bias, name)
            if name is not None:
                a = y
                continue
        stats, best, which = _statistics(y, valid, norm, vectors, k if last else 0)  # type: ignore[arg-type]
        if last and k > 0:
            a = _ops.edge_rows_apply(best, stats, which, None, plan.slope(i))
        else:
            a = _ops.edge_rows_apply(y, stats, None, valid, plan.slope(i))
    return a.view(*given.idx.shape[:2], -1)
