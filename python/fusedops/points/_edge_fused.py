"""Layers over edges in a few kernels: 16-bit types on CUDA, batch norm or none, a maximum.

Activations of an edge never leave the chip. Forward, every layer with batch statistics is one pass
over the edges that recomputes the layers before it, and the last pass takes the maxima as well;
backward, every layer but the first is one pass, which stores the rows of the gradient below in the
16-bit type. What is left of the first layer is linear in what was gathered, so its gradient is a
sum by point of those rows and closed forms (csrc/cuda/points/edges).
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .._autograd.shared import distinct, sees_torch_functions_only
from ..ops.linear import linear
from ._autograd import needs_grad
from .norms import BatchNorm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ._edge_mlp import EdgeInput, EdgeLayer, PointProduct

_ops = torch.ops.fusedops
_STEP = 32  # kEdgeWidthStep
_MAX_LAYERS = 4
_MAX_HIDDEN = 128  # kEdgeMaxHidden
_MAX_LAST = 256  # beyond, GEMMs over gathered rows are faster
_MAX_NEIGHBOURS = 2000  # kEdgeMaxNeighbours
_SLOPES = {"relu": 0.0, "none": 1.0}
_MEAN, _RSTD, _VARIANCE, _COUNT = range(4)  # rows of the statistics


def _padded(width: int) -> int:
    return -(-width // _STEP) * _STEP


class _Plan(NamedTuple):
    """What a call is, but for its tensors."""

    channels: tuple[int, ...]
    training: tuple[bool, ...]
    eps: tuple[float, ...]
    slope: float
    last_slope: float
    ordered: bool  # rows are padded, and in fragment order

    @property
    def widths(self) -> tuple[int, ...]:
        return tuple(map(_padded, self.channels))

    def rows(self, layer: int) -> slice:
        """The layer's channels among those of all."""
        start = sum(self.widths[:layer])
        return slice(start, start + self.widths[layer])


def supports(
    given: EdgeInput,
    layers: Sequence[EdgeLayer],
    activation: str,
    negative_slope: float,
    pool: str,
) -> bool:
    """Whether `edge_mlp` has kernels for the call."""
    like = given.rows if given.rows is not None else given.xyz
    assert like is not None
    widths = _channels(given, layers)
    return (
        given.idx.is_cuda
        and given.dtype in (torch.float16, torch.bfloat16)
        and pool == "max"
        and (activation in _SLOPES or (activation == "leaky_relu" and 0 <= negative_slope <= 1))
        and 1 <= len(layers) <= _MAX_LAYERS
        and all(width <= _MAX_HIDDEN for width in widths[:-1])
        and widths[-1] <= _MAX_LAST
        and given.idx.numel() > 0
        and given.idx.shape[2] <= _MAX_NEIGHBOURS
        and like.shape[1] > 0
        and (given.xyz is None or given.xyz.shape[2] == 3)
        and all(_supports_norm(layer.norm) for layer in layers)
        and not torch.compiler.is_dynamo_compiling()
        and not sees_torch_functions_only(given.idx, given.xyz, given.group_rows)
    )


def _supports_norm(norm: object) -> bool:
    return norm is None or (isinstance(norm, BatchNorm) and norm.group is None)


def _channels(given: EdgeInput, layers: Sequence[EdgeLayer]) -> tuple[int, ...]:
    first = next(
        t.shape[dim]
        for t, dim in ((given.rows, 2), (given.group_rows, 2), (given.offset_weight, 0))
        if t is not None
    )
    return (first, *(layer.weight.shape[0] for layer in layers[1:] if layer.weight is not None))


@lru_cache(maxsize=64)
def _fragment_order(width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """(the channel at every place of a row in fragment order, the place of every channel)."""
    places = torch.arange(width, device=device).view(-1, 4, 4, 2)  # [c][b][q][h] by channel
    order = places.transpose(1, 2).reshape(-1)  # [c][q][b][h]
    return order, order.argsort()


def _in_fragment_order(rows: Tensor | None, width: int, ordered: bool) -> Tensor | None:
    if rows is None or ordered:
        return rows
    if rows.shape[2] != width:
        rows = F.pad(rows, (0, width - rows.shape[2]))
    return rows[..., _fragment_order(width, rows.device)[0]]


def _flat_weights(plan: _Plan, weights: Sequence[Tensor], like: Tensor, dtype: Any) -> Tensor:
    """W_2, W_3, ... with their padding, one after the other."""
    flat = []
    for i, weight in enumerate(weights):
        rows = plan.widths[i + 1] - weight.shape[0]
        columns = plan.widths[i] - weight.shape[1]
        padded = F.pad(weight, (0, columns, 0, rows)) if rows or columns else weight
        flat.append(padded.reshape(-1))
    if not flat:
        return like.new_empty(0, dtype=dtype)
    return flat[0].contiguous() if len(flat) == 1 else torch.cat(flat)


def _offset_columns(weight: Tensor | None, width: int) -> Tensor | None:
    """(width, 8): the columns x y z twice, for the offsets and for what their rounding left."""
    if weight is None:
        return None
    return F.pad(torch.cat([weight, weight], 1), (0, 2, 0, width - weight.shape[0]))


class _Norms(NamedTuple):
    """Of every layer: parameters, the bias before the norm, running statistics; None for none."""

    gamma: tuple[Tensor | None, ...]
    beta: tuple[Tensor | None, ...]
    bias: tuple[Tensor | None, ...]
    mean: tuple[Tensor | None, ...]
    var: tuple[Tensor | None, ...]


def _affine(plan: _Plan, norms: _Norms, device: torch.device) -> Tensor:
    """(scale, shift) of every channel; (gamma, beta) of a layer with batch statistics."""
    defaults = (1.0, 0.0, 0.0, 0.0, 1.0)
    pieces: list[Tensor] = []
    for name, tensors, default in zip(norms._fields, norms, defaults, strict=True):
        for layer, given in enumerate(tensors):
            batch = plan.training[layer] and name in ("bias", "mean", "var")
            width, value = plan.widths[layer], None if batch else given
            if value is not None:
                pieces.append(value.detach().float())
                width -= value.shape[0]
            if width:
                pieces.append(_constant(width, default, device))
    has_eps = [
        var is not None and not batch for var, batch in zip(norms.var, plan.training, strict=True)
    ]
    for layer, width in enumerate(plan.widths):
        pieces.append(_constant(width, plan.eps[layer] if has_eps[layer] else 0.0, device))
    affine: Tensor = _ops.edge_affine(torch.cat(pieces).view(6, -1))
    return affine


@lru_cache(maxsize=256)
def _constant(width: int, value: float, device: torch.device) -> Tensor:
    return torch.full((width,), value, device=device)


class _Problem(NamedTuple):
    """The arguments that all passes share."""

    rows: Tensor | None
    group_rows: Tensor | None
    offset_weight: Tensor | None
    points: Tensor | None
    centers: Tensor | None
    list: Tensor  # of the edges that count
    ends: Tensor  # where those of a group end
    weights: Tensor
    affine: Tensor

    def arguments(self, plan: _Plan, layers: int) -> tuple[Any, ...]:
        """Those of the first `layers` layers."""
        widths = plan.widths[:layers]
        used = sum(a * b for a, b in pairwise(widths))
        c1, c2, c3, c4 = (*widths, *[0] * (_MAX_LAYERS - layers))
        weights, affine = self.weights[:used], self.affine[: sum(widths)]
        return (*self[:7], weights, affine, c1, c2, c3, c4, plan.slope)


def _forward(
    plan: _Plan, problem: _Problem, infer: bool
) -> tuple[_Problem, list[Tensor | None], Any]:
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
            part = plan.rows(layer)
            affine = torch.cat(
                [problem.affine[: part.start], results[3], problem.affine[part.stop :]]
            )
            problem = problem._replace(affine=affine)
    return problem, stats, results


def _problem(
    plan: _Plan,
    gathered: tuple[Any, ...],
    dtype: torch.dtype,
    parameters: Sequence[Tensor | None],
) -> tuple[_Problem, Tensor]:
    """Everything as the kernels read it. parameters: weights, then `_Norms` layer by layer.

    And the edges' points, for sums by point.
    """
    rows, group_rows, offset_weight, xyz, centers, idx = gathered
    count, width = len(plan.channels), plan.widths[0]
    weights = [w for w in parameters[: count - 1] if w is not None]
    norms = _Norms(*(tuple(parameters[count - 1 + i * count :][:count]) for i in range(5)))
    wide_group = None if group_rows is None else group_rows.float()
    like = rows if rows is not None else xyz
    assert like is not None
    ends = _ops.edge_counts(idx, like.shape[1]).cumsum(0, dtype=torch.int32)
    edges, points = _ops.edge_list(idx, ends, like.shape[1])
    problem = _Problem(
        _in_fragment_order(rows, width, plan.ordered), _in_fragment_order(wide_group, width, False),
        _offset_columns(offset_weight, width), xyz, centers, edges, ends,
        _flat_weights(plan, weights, idx, dtype), _affine(plan, norms, idx.device),
    )  # fmt: skip
    return problem, points


def _pooled(
    plan: _Plan, problem: _Problem, infer: bool
) -> tuple[_Problem, list[Tensor | None], Tensor, Tensor | None, Tensor | None]:
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
        plan: _Plan,
        dtype: torch.dtype,
        *parameters: Tensor | None,
    ) -> tuple[Tensor, ...]:
        gathered = (rows, group_rows, offset_weight, xyz, centers, idx)
        problem, points = _problem(plan, gathered, dtype, parameters)
        problem, stats, out, best, which = _pooled(plan, problem, False)
        ctx.save_for_backward(
            *problem, points, idx, best, which, *stats, offset_weight, *parameters
        )
        ctx.plan, ctx.rows_dtype = plan, None if rows is None else rows.dtype
        ctx.group_dtype = None if group_rows is None else group_rows.dtype
        found = [s for s in stats if s is not None]
        ctx.mark_non_differentiable(*found)
        return (out, *found)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dout: Tensor, *_: Any) -> Any:
        return _Backward(ctx).run(dout)


class _Sums(NamedTuple):
    """Something summed over the edges of every point and of every group; None for 0."""

    by_point: Tensor | None
    by_group: Tensor | None


class _Backward:
    """The backward of one call."""

    def __init__(self, ctx: Any) -> None:
        saved = ctx.saved_tensors
        self.ctx, self.plan = ctx, ctx.plan
        self.count = len(self.plan.channels)
        size = len(_Problem._fields)
        self.problem = _Problem(*saved[:size])
        self.points, self.idx, self.best, self.which = saved[size : size + 4]
        self.stats = saved[size + 4 :][: self.count]
        self.offset_weight, *parameters = saved[size + 4 + self.count :]
        self.weights = parameters[: self.count - 1]
        self.parameters = parameters[self.count - 1 :]
        self.needs = ctx.needs_input_grad

    def run(self, dout: Tensor) -> tuple[Any, ...]:
        last = self.count - 1
        affine = self.problem.affine[self.plan.rows(last)]
        winners, grads, dense = _ops.edge_pool_backward(
            dout, self.best, self.which, affine, self.stats[last], self.plan.last_slope
        )
        affine_grads, weight_grads = {last: grads}, {}
        above: Tensor | None = None
        for layer in range(last, 0, -1):
            above, affine_grads[layer - 1], below_dense, weight_grads[layer] = (
                _ops.edge_mlp_backward(
                    *self.problem.arguments(self.plan, layer + 1),
                    winners if layer == last else None, above,
                    dense if self.stats[layer] is not None else None, self.stats[layer - 1],
                )
            )  # fmt: skip
            dense = below_dense
        first = self._first_layer(winners, above, dense)
        weights = [self._weight_grad(layer, weight_grads) for layer in range(1, self.count)]
        return (*first, None, None, None, *weights, *self._norm_grads(affine_grads))

    def _weight_grad(self, layer: int, grads: dict[int, Tensor]) -> Tensor:
        weight = self.weights[layer - 1]
        rows, columns = weight.shape
        return grads[layer][:rows, :columns].to(weight.dtype)

    def _norm_grads(self, grads: dict[int, Tensor]) -> list[Tensor | None]:
        """Of gamma, beta, bias, mean and variance of every layer."""
        found: list[list[Tensor | None]] = [[], [], []]
        by_kind = [self.parameters[i * self.count :][: self.count] for i in range(5)]
        for layer, channels in enumerate(self.plan.channels):
            gamma, beta, bias, mean, var = (kind[layer] for kind in by_kind)
            dscale, dshift = grads[layer][:channels].unbind(1)
            dgamma, dbias = dscale, torch.zeros_like(dshift)
            if not self.plan.training[layer]:
                rstd = 1.0 if var is None else (var.float() + self.plan.eps[layer]).rsqrt()
                below = 0.0 if bias is None else bias.float()
                below = below if mean is None else below - mean.float()
                dgamma = (dscale + dshift * below) * rstd
                dbias = dshift * rstd if gamma is None else dshift * rstd * gamma.float()
            for kind, (tensor, grad) in enumerate(((gamma, dgamma), (beta, dshift), (bias, dbias))):
                found[kind].append(None if tensor is None else grad.to(tensor.dtype))
        return [*found[0], *found[1], *found[2], *[None] * (2 * self.count)]

    def _first_layer(
        self, winners: Tensor, dz: Tensor | None, dense: Tensor
    ) -> tuple[Tensor | None, ...]:
        """Gradients of rows, group_rows, offset_weight, xyz and centers."""
        if not any(self.needs[:5]):
            return (None,) * 5
        problem, width = self.problem, self.plan.widths[0]
        edges, ends, like = problem.list, problem.ends, problem.weights
        scale: Tensor | None = problem.affine[:width]
        if dz is None:  # one layer: the maxima's gradients, scaled already
            dz, scale = _ops.edge_winners(winners, edges, ends, like), None
        sums = _Sums(self._by_point(dz), _ops.edge_group_sums(dz, edges, ends, False))
        own = moments = others = _Sums(None, None)
        batch = dense if self.stats[0] is not None else None
        if batch is not None:
            values = _ops.edge_moments(edges, ends, problem.points, problem.centers)
            moments = _Sums(self._by_point(values), self._small_group_sums(values))
            own = _Sums(problem.rows, problem.group_rows)
            others = self._others()
        du, products = self._close(0, sums, scale, batch, moments, own, others, problem.points)
        dv, group_products = self._close(
            1, sums, scale, batch, moments, own, others, problem.centers
        )
        return self._inputs(du, dv, products, group_products)

    def _by_point(self, rows: Tensor) -> Tensor:
        """(B * N, C) float32: the sums of rows (E, C) over the edges to each point."""
        count, width = self._num_points(), rows.shape[1]
        sums: Tensor = _ops.group_backward(
            rows.view(1, -1, 1, width), self.points.view(1, -1, 1), count, 0, width, True
        )
        return sums.squeeze(0)

    def _num_points(self) -> int:
        like = self.problem.rows if self.problem.rows is not None else self.problem.points
        assert like is not None
        return like.shape[0] * like.shape[1]

    def _small_group_sums(self, rows: Tensor) -> Tensor:
        padded = F.pad(rows, (0, _STEP - rows.shape[1]))
        sums: Tensor = _ops.edge_group_sums(padded, self.problem.list, self.problem.ends, False)
        return sums[:, : rows.shape[1]]

    def _others(self) -> _Sums:
        """Sums over edges of group_rows by point and of rows by group."""
        problem = self.problem
        by_point = by_group = None
        if problem.rows is not None:
            by_group = _ops.edge_group_sums(problem.rows, problem.list, problem.ends, True)
        if problem.group_rows is not None:
            one = torch.ones(self.idx.shape, dtype=torch.float32, device=self.idx.device)
            width, clouds = self.plan.widths[0], self.idx.shape[0]
            like = one.new_empty(()).expand(clouds, self._num_points() // clouds, width)
            by_point = _ops.interpolate_backward(
                problem.group_rows, like.contiguous(), self.idx, one, True, False
            )[0].flatten(0, 1)
        return _Sums(by_point, by_group)

    def _close(
        self, side: int, sums: _Sums, scale: Any, dense: Any, moments: _Sums, own: _Sums,
        others: _Sums, coordinates: Tensor | None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        problem = self.problem
        mine = None if own[side] is None else own[side].flatten(0, 1)
        where = None if coordinates is None else coordinates.flatten(0, 1)
        out, products = _ops.edge_close(
            sums[side], scale, dense, moments[side], mine, others[side], problem.offset_weight,
            where, problem.weights,
        )  # fmt: skip
        return out, products

    def _inputs(
        self, du: Tensor, dv: Tensor, products: Tensor, group_products: Tensor
    ) -> tuple[Tensor | None, ...]:
        """From the gradients of y_1 summed by point and by group, in float32."""
        ctx, channels = self.ctx, self.plan.channels[0]
        clouds = self.idx.shape[0]
        du = du.view(clouds, -1, du.shape[1])[..., :channels]
        dv = dv.view(clouds, -1, dv.shape[1])[..., :channels]
        drows = None
        if self.needs[0]:
            drows = du.to(ctx.rows_dtype)
            if self.plan.ordered:
                drows = _in_fragment_order(drows, self.plan.widths[0], False)
        dgroup = dv.to(ctx.group_dtype) if self.needs[1] else None
        dweight = dxyz = dcenters = None
        if self.offset_weight is not None:
            if self.needs[2]:
                centred = self.problem.centers is not None
                dweight = products - group_products if centred else products
                dweight = dweight[:channels].to(self.offset_weight.dtype)
            weight = self.offset_weight.float()
            dxyz = du @ weight if self.needs[3] else None
            dcenters = -(dv @ weight) if self.needs[4] else None
        return drows, dgroup, dweight, dxyz, dcenters


def edge_mlp(
    given: EdgeInput,
    layers: Sequence[EdgeLayer],
    activation: str,
    negative_slope: float,
    last_activation: bool,
) -> Tensor:
    """`_edge_mlp.edge_mlp` of a call that `supports` knows."""
    slope = _SLOPES.get(activation, negative_slope)
    batch = [layer.norm if isinstance(layer.norm, BatchNorm) else None for layer in layers]
    ordered = isinstance(given.rows, tuple)
    rows = _ordered_product(given.rows) if isinstance(given.rows, tuple) else given.rows
    plan = _Plan(
        _channels(given, layers),
        tuple(norm is not None and norm.training for norm in batch),
        tuple(0.0 if norm is None else norm.eps for norm in batch),
        slope,
        slope if last_activation else 1.0,
        ordered,
    )
    norms = _Norms(
        tuple(None if norm is None else norm.weight for norm in batch),
        tuple(None if norm is None else norm.bias for norm in batch),
        tuple(layer.bias for layer in layers),
        tuple(None if n is None or n.training else n.running_mean for n in batch),
        tuple(None if n is None or n.training else n.running_var for n in batch),
    )
    gathered = (rows, *given[1:5], given.idx)
    parameters = [*(layer.weight for layer in layers[1:]), *(t for kind in norms for t in kind)]
    if needs_grad(*gathered, *parameters):
        arguments = distinct(*gathered, plan, given.dtype, *parameters)
        out, *stats = EdgeMax.apply(*arguments)
    else:
        infer = not plan.training[-1] and (plan.slope == plan.last_slope or len(layers) == 1)
        if len(layers) == 1:
            plan = plan._replace(slope=plan.last_slope)
        problem, _ = _problem(plan, gathered, given.dtype, parameters)
        _, found, out, _, _ = _pooled(plan, problem, infer)
        stats = [s for s in found if s is not None]
    trained = [
        layer for layer in layers if isinstance(layer.norm, BatchNorm) and layer.norm.training
    ]
    for layer, values in zip(trained, stats, strict=True):
        _update_running(layer, values)
    result: Tensor = out
    return result


def _ordered_product(product: PointProduct) -> Tensor:
    """A product of all points (B, N, padded C1) in fragment order."""
    features, weight = product
    width = _padded(weight.shape[0])
    weight = F.pad(weight, (0, 0, 0, width - weight.shape[0]))
    return linear(features, weight[_fragment_order(width, weight.device)[0]])


@torch.no_grad()
def _update_running(layer: EdgeLayer, stats: Tensor) -> None:
    """Mix the batch into the running statistics; not where no edge counts."""
    norm = layer.norm
    assert isinstance(norm, BatchNorm)
    if norm.running_mean is None or norm.running_var is None:
        return
    size = norm.running_mean.shape[0]
    mean = stats[_MEAN, :size]
    if layer.bias is not None:
        mean = mean + layer.bias
    share = (stats[_COUNT, :size] > 0) * norm.momentum
    for running, value in ((norm.running_mean, mean), (norm.running_var, stats[_VARIANCE, :size])):
        running.copy_(torch.lerp(running.float(), value.float(), share))
