"""The backward of layers over edges in a few kernels: last layer first, then closed forms.

Under batch statistics every edge of weight w gets w (A + B y) on top of what comes from above.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ._edge_problem import Problem, in_fragment_order, padded_to

_ops = torch.ops.fusedops


class Sums(NamedTuple):
    """Something summed over the edges of every point and of every group; None for 0."""

    by_point: Tensor | None
    by_group: Tensor | None


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
        self.offset_weight, self.idx = self.gathered[2], self.gathered[5]
        parameters = saved[size + 9 + self.count :]
        self.weights = parameters[: self.count - 1]
        self.parameters = parameters[self.count - 1 :]
        self.needs = ctx.needs_input_grad

    def run(self, dout: Tensor) -> tuple[Any, ...]:
        last = self.count - 1
        affine = self.problem.affine[self.plan.rows(last)]
        winners: Tensor | None
        winners, grads, dense = _ops.edge_pool_backward(
            dout, self.best, self.which, affine, self.stats[last], self.plan.last_slope
        )
        affine_grads, weight_grads = {last: grads}, {}
        above: Tensor | None = None
        for layer in range(last, 0, -1):
            above, affine_grads[layer - 1], below_dense, weight_grads[layer] = (
                _ops.edge_mlp_backward(
                    *self.problem.arguments(self.plan, layer + 1),
                    winners, above,
                    dense if self.stats[layer] is not None else None, self.stats[layer - 1],
                )
            )  # fmt: skip
            winners, dense = None, below_dense
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
        self, winners: Tensor | None, dz: Tensor | None, dense: Tensor
    ) -> tuple[Tensor | None, ...]:
        """Gradients of rows, group_rows, offset_weight, xyz and centers."""
        if not any(self.needs[:5]):
            return (None,) * 5
        problem, width = self.problem, self.plan.widths[0]
        edges, ends, like = problem.list, problem.ends, problem.weights
        scale: Tensor | None = problem.affine[:width]
        if dz is None:  # one layer: the maxima's gradients, scaled already
            dz, scale = _ops.edge_winners(winners, edges, ends, like), None
        batch = dense if self.stats[0] is not None else None
        if problem.rows is None and problem.group_rows is None and not any(self.needs[3:5]):
            return (None, None, self._offset_weight_grad(dz, scale, batch), None, None)
        sums = Sums(self._by_point(dz), _ops.edge_group_sums(dz, edges, ends, False))
        own = moments = others = Sums(None, None)
        if batch is not None:
            values = _ops.edge_moments(edges, ends, problem.points, problem.centers)
            moments = Sums(self._by_point(values), _ops.edge_group_sums(values, edges, ends, False))
            own = Sums(problem.rows, problem.group_rows)
            others = self._others()
        points, centers = self._coordinates()
        du, products = self._close(0, sums, scale, batch, moments, own, others, points)
        dv, group_products = self._close(1, sums, scale, batch, moments, own, others, centers)
        return self._inputs(du, dv, products, group_products)

    def _coordinates(self) -> tuple[Tensor | None, Tensor | None]:
        """points and centers for the gradient of W_x, sum du x - sum dv c.

        In every cloud du and dv have the same sum, so any origin serves; a near one, because far
        from it the difference cancels.
        """
        points, centers = self.problem.points, self.problem.centers
        if points is None or centers is None:
            return points, centers
        origin = centers[:, :1].nan_to_num(0.0, 0.0, 0.0)
        return points - origin, centers - origin

    def _offset_weight_grad(
        self, dz: Tensor, scale: Tensor | None, dense: Tensor | None
    ) -> Tensor | None:
        """Where y_1 is W_x (x_j - c_i) alone: sums over the edges, with their second moments."""
        if self.offset_weight is None:
            return None
        problem, channels = self.problem, self.plan.channels[0]
        products = _ops.edge_offset_products(
            dz, problem.list, problem.ends, problem.points, problem.centers
        )
        moments = products[dz.shape[1] :]
        found = products[:channels]
        if scale is not None:
            found = found * scale[:channels, :1]
        if dense is not None:
            a, b = dense[:channels].split(1, 1)
            found = found + a * moments[3] + b * (self.offset_weight.float() @ moments[:3])
        return found.to(self.offset_weight.dtype)

    def _by_point(self, rows: Tensor) -> Tensor:
        """(B * N, C) float32: the sums of rows by edge (E, C) over the edges to each point."""
        clouds, width = self.idx.shape[0], rows.shape[1]
        count = self._num_points() // clouds
        sums: Tensor = _ops.group_backward(
            rows.view(*self.idx.shape, width), self.merged, count, 0, width, True
        )
        return sums.flatten(0, 1)

    def _num_points(self) -> int:
        like = self.problem.rows if self.problem.rows is not None else self.problem.points
        assert like is not None
        clouds, points = like.shape[:2]
        return int(clouds * points)

    def _others(self) -> Sums:
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
            sums[side], scale, dense, moments[side], mine, others[side], problem.offset_weight,
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
                centred = self.problem.centers is not None
                dweight = products - group_products if centred else products
                dweight = dweight[:channels].to(self.offset_weight.dtype)
            weight = self.offset_weight.float()
            dxyz = du @ weight if self.needs[3] else None
            dcenters = -(dv @ weight) if self.needs[4] else None
        return drows, dgroup, dweight, dxyz, dcenters
