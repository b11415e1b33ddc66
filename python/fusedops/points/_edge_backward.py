"""The backward of layers over edges in a few kernels: last layer first, then closed forms.

Under batch statistics every edge of weight w gets w (A + B y) on top of what comes from above.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ._edge_problem import Problem, in_fragment_order, padded_to

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ._edge_problem import Plan

_ops = torch.ops.fusedops


class Sums(NamedTuple):
    """Something summed over the edges of every point and of every group; None for 0."""

    by_point: Tensor | None
    by_group: Tensor | None


def norm_grads(
    plan: Plan, parameters: Sequence[Tensor | None], grads: dict[int, Tensor]
) -> list[Tensor | None]:
    """Gradients of every layer's gamma, beta, bias, mean, variance, from scales' and shifts'."""
    count = len(plan.channels)
    found: list[list[Tensor | None]] = [[], [], []]
    by_kind = [parameters[i * count :][:count] for i in range(5)]
    for layer, channels in enumerate(plan.channels):
        gamma, beta, bias, mean, var = (kind[layer] for kind in by_kind)
        dscale, dshift = grads[layer][:channels].unbind(1)
        dgamma, dbias = dscale, None
        if plan.training[layer]:
            dbias = None if bias is None else torch.zeros_like(dshift)
        else:
            rstd = 1.0 if var is None else (var.float() + plan.eps[layer]).rsqrt()
            below = 0.0 if bias is None else bias.float()
            below = below if mean is None else below - mean.float()
            dgamma = (dscale + dshift * below) * rstd
            dbias = dshift * rstd if gamma is None else dshift * rstd * gamma.float()
        for kind, (tensor, grad) in enumerate(((gamma, dgamma), (beta, dshift), (bias, dbias))):
            found[kind].append(None if tensor is None or grad is None else grad.to(tensor.dtype))
    return [*found[0], *found[1], *found[2], *[None] * (2 * count)]


class Backward:
    """The backward of one call."""

    def __init__(self, ctx: Any) -> None:
        saved = ctx.saved_tensors
        self.plan = ctx.plan
        self.count = len(self.plan.channels)
        size = len(Problem._fields)
        self.problem = Problem(*saved[:size])
        self.merged, self.best, self.which = saved[size : size + 3]
        self.stats = saved[size + 3 :][: self.count]
        self.gathered = saved[size + 3 + self.count :][:6]
        self.offset_weight, self.xyz, self.centers, self.idx = self.gathered[2:]
        parameters = saved[size + 9 + self.count :]
        self.weights = parameters[: self.count - 1]
        self.parameters = parameters[self.count - 1 :]
        self.needs = ctx.needs_input_grad
        self.lists: tuple[Tensor, Tensor] | None = None  # of the edges to every point
        self.dz: Tensor | None = None  # by edge, of the layer below the last pass: the largest here

    def run(self, dout: Tensor) -> tuple[Any, ...]:
        last = self.count - 1
        affine = self.problem.affine[self.plan.rows(last)]
        winners, grads, dense = _ops.edge_pool_backward(
            dout, self.best, self.which, affine, self.stats[last], self.plan.last_slope
        )
        affine_grads, weight_grads = {last: grads}, {}
        for layer in range(last, 0, -1):
            below, affine_grads[layer - 1], below_dense, weight_grads[layer] = (
                _ops.edge_mlp_backward_(
                    *self.problem.arguments(self.plan, layer + 1),
                    winners if self.dz is None else None, self.dz,
                    dense if self.stats[layer] is not None else None, self.stats[layer - 1],
                )
            )  # fmt: skip
            if self.dz is None or below.shape[0] > 0:  # else it is where that of the layer was
                self.dz = below
            del below
            winners, dense = None, below_dense
        first = self._first_layer(winners, dense)
        weights = [self._weight_grad(layer, weight_grads) for layer in range(1, self.count)]
        return (
            *first,
            None,
            None,
            None,
            *weights,
            *norm_grads(self.plan, self.parameters, affine_grads),
        )

    def _weight_grad(self, layer: int, grads: dict[int, Tensor]) -> Tensor:
        weight = self.weights[layer - 1]
        rows, columns = weight.shape
        return grads[layer][:rows, :columns].to(weight.dtype)

    def _first_layer(self, winners: Tensor | None, dense: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of rows, group_rows, offset_weight, xyz and centers."""
        if not any(self.needs[:5]):
            return (None,) * 5
        problem, width = self.problem, self.plan.widths[0]
        edges, ends, like = problem.list, problem.ends, problem.weights
        scale: Tensor | None = problem.affine[:width]
        dz, self.dz = self.dz, None
        if dz is None:  # one layer: the maxima's gradients, scaled already
            dz, scale = _ops.edge_winners(winners, edges, ends, like), None
        batch = dense if self.stats[0] is not None else None
        if problem.rows is None and problem.group_rows is None and not any(self.needs[3:5]):
            dweight, dfeature_weight = self._first_weight_grads(dz, scale, batch)
            drows = None
            if self.needs[0]:
                by_point = self._by_point(dz)
                del dz
                drows = self._features_grad(by_point, scale, batch)
            return (drows, dfeature_weight, dweight, None, None)
        sums = Sums(self._by_point(dz), _ops.edge_group_sums(dz, edges, ends, False))
        own = moments = others = Sums(None, None)
        if batch is not None:
            values = _ops.edge_moments(edges, ends, *self._offsets())
            moments = Sums(self._by_point(values), _ops.edge_group_sums(values, edges, ends, False))
            own = Sums(problem.rows, problem.group_rows)
            others = self._others(values)
        points, centers = self._coordinates()
        du, products = self._close(0, sums, scale, batch, moments, own, others, points)
        dv, group_products = self._close(1, sums, scale, batch, moments, own, others, centers)
        return self._inputs(du, dv, products, group_products)

    def _coordinates(self) -> tuple[Tensor | None, Tensor | None]:
        """points and centers for the gradient of W_x, sum du x - sum dv c.

        In every cloud du and dv have the same sum, so any origin serves; a near one, because far
        from it the difference cancels.
        """
        points, centers = self._offsets()
        if points is None or centers is None:
            return points, centers
        origin = centers[:, :1].nan_to_num(0.0, 0.0, 0.0)
        return points - origin, centers - origin

    def _offsets(self) -> tuple[Tensor | None, Tensor | None]:
        """xyz and centers, where there are offsets."""
        return (None, None) if self.offset_weight is None else (self.xyz, self.centers)

    def _first_weight_grads(
        self, dz: Tensor, scale: Tensor | None, dense: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        """The gradients of W_x and W_f, where y_1 is their products with edges' operands alone.

        Sums over the edges, with the operands' second moments.
        """
        problem, channels = self.problem, self.plan.channels[0]
        operands, weight = problem.operands, problem.first_weight
        if not (self.needs[1] or self.needs[2]) or operands is None or weight is None:
            return None, None
        products = _ops.edge_products(dz, problem.list, problem.ends, operands)
        found = _ops.edge_first_grads(products, scale, dense, weight)[:channels]
        dweight = dfeature_weight = None
        if self.offset_weight is not None:
            dweight = found[:, :3].to(self.offset_weight.dtype)
        if self.plan.raw:
            count = self.gathered[1].shape[1]
            dfeature_weight = found[:, 3 : 3 + count].to(self.gathered[1].dtype)
        return dweight, dfeature_weight

    def _features_grad(
        self, by_point: Tensor, scale: Tensor | None, dense: Tensor | None
    ) -> Tensor:
        """The gradient of gathered features from the sums of dz_1 by point."""
        features, moments = self.gathered[0], None
        if dense is not None:
            problem = self.problem
            points, centers = (t if t is None else t.flatten(0, 1) for t in self._offsets())
            moments = _ops.edge_point_moments(
                *self._lists(), problem.list, problem.ends, points, centers
            )
        found: Tensor = _ops.edge_feature_grads(
            by_point, scale, dense, moments, self.problem.first_weight, features.flatten(0, 1)
        )
        return found.view(features.shape)

    def _by_point(self, rows: Tensor, weights: Tensor | None = None) -> Tensor:
        """(B * N, C) float32: the sums of rows by edge (E, C) over the edges to each point.

        Or of rows by group, times weights of the edges.
        """
        per_row = 1 if weights is None else self.idx.shape[2]
        sums: Tensor = _ops.edge_point_sums(rows, *self._lists(), weights, per_row)
        return sums

    def _lists(self) -> tuple[Tensor, Tensor]:
        """The edges to every point: all sums share them."""
        if self.lists is None:
            self.lists = _ops.edge_lists(self.merged, self._num_points())
        return self.lists

    def _num_points(self) -> int:
        """The number of points of a cloud."""
        rows = self.gathered[0] if self.gathered[0] is not None else self.xyz
        return int(rows.shape[1])

    def _others(self, moments: Tensor) -> Sums:
        """Sums over edges of group_rows by point and of rows by group."""
        problem = self.problem
        by_point = by_group = None
        if problem.rows is not None:
            by_group = _ops.edge_group_sums(problem.rows, problem.list, problem.ends, True)
        if problem.group_rows is not None:
            weights = moments[:, 0].contiguous()
            by_point = self._by_point(problem.group_rows.flatten(0, 1), weights)
        return Sums(by_point, by_group)

    def _close(
        self, side: int, sums: Sums, scale: Any, dense: Any, moments: Sums, own: Sums,
        others: Sums, coordinates: Tensor | None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        problem = self.problem
        rows = own[side]
        mine = None if rows is None else rows.flatten(0, 1)
        where = None if coordinates is None else coordinates.flatten(0, 1)
        out, products = _ops.edge_close(
            sums[side], scale, dense, moments[side], mine, others[side], problem.first_weight,
            where, problem.weights,
        )  # fmt: skip
        return out, products

    def _inputs(
        self, du: Tensor, dv: Tensor, products: Tensor, group_products: Tensor
    ) -> tuple[Tensor | None, ...]:
        """From the gradients of y_1 summed by point and by group, in float32."""
        rows, group_rows, *_ = self.gathered
        channels = self.plan.channels[0]
        clouds = self.idx.shape[0]
        du = du.view(clouds, -1, du.shape[1])[..., :channels]
        dv = dv.view(clouds, -1, dv.shape[1])[..., :channels]
        drows = None
        if self.needs[0]:
            drows = du.to(rows.dtype)
            if self.plan.ordered:
                drows = in_fragment_order(padded_to(drows, self.plan.widths[0]), -1)
        dgroup = dv.to(group_rows.dtype) if self.needs[1] else None
        dweight = dxyz = dcenters = None
        if self.offset_weight is not None:
            if self.needs[2]:
                centred = self.centers is not None
                dweight = products - group_products if centred else products
                dweight = dweight[:channels].to(self.offset_weight.dtype)
            weight = self.offset_weight.float()
            dxyz = du @ weight if self.needs[3] else None
            dcenters = -(dv @ weight) if self.needs[4] else None
        return drows, dgroup, dweight, dxyz, dcenters
