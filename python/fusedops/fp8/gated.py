"""The autograd.Function of a gated MLP in FP8.

Kept are gate, up and the transposed input; the product of act(gate) and up is quantised from them
in forward, and again, transposed, in backward.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .._autograd.main_grad import delivered, main_grad_owner, target
from .._core.activation import ACTIVATIONS
from .functions import (
    as_dtype,
    as_rows,
    dtypes_of,
    into_main_grad,
    kept,
    numbers,
    operand,
    product,
    refuse_second_derivatives,
    weight_grad,
)

if TYPE_CHECKING:
    from .functions import Numbers
    from .quantizer import Operand
    from .recipe import Recipe

_scale_bias_act = torch.ops.fusedops.scale_bias_act.default
_Grads = list[tuple["Operand", "Operand", Tensor]]  # of gate and up: rows, columns, sums


def _saved_of(gate: Tensor, code: int) -> Tensor:
    """What act' reads, from the pre-activation: its sign does for all but two of the outputs."""
    if ACTIVATIONS[code] in ("sigmoid", "tanh"):
        return _scale_bias_act(gate, None, None, code)
    return gate


def _both(a: Tensor | None, b: Tensor | None, packed: bool) -> tuple[Tensor | None, Tensor | None]:
    """What gate and up have of a parameter: two halves of the first where it is packed."""
    if not packed:
        return a, b
    return (None, None) if a is None else (a.chunk(2)[0], a.chunk(2)[1])


class Fp8GatedMLPFunction(torch.autograd.Function):
    """(x, w_gate, w_up, b_gate, b_up, w_down, b_down, code, recipe) -> y.

    w_up None: the rows of w_gate are those of the gate, then those of up.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        w_gate: Tensor,
        w_up: Tensor | None,
        b_gate: Tensor | None,
        b_up: Tensor | None,
        w_down: Tensor,
        b_down: Tensor | None,
        code: int,
        recipe: Recipe,
    ) -> Tensor:
        needs = ctx.needs_input_grad[:7]
        need_x, first, need_firsts = needs[0], any(needs[:5]), needs[1] or needs[2]
        how, packed = numbers(recipe), w_up is None
        gate_half, up_half = (0, 1) if packed else (None, None)
        of_gate, of_gate_t = how.weight(w_gate, need_x, gate_half)
        of_up, of_up_t = how.weight(w_gate if w_up is None else w_up, need_x, up_half)
        down, down_t = how.weight(w_down, first)
        x8, x8_t = how.inputs(as_rows(x), need_firsts)
        bias, bias_up = (as_dtype(b, x.dtype) for b in _both(b_gate, b_up, packed))
        gate = product(x8, of_gate, x.dtype, bias)
        up = product(x8, of_up, x.dtype, bias_up)
        h8, _ = how.inputs(gate, False, activation=code, factor=up)
        y = product(h8, down, x.dtype, as_dtype(b_down, x.dtype))
        weights = (*kept(of_gate_t, need_x), *kept(of_up_t, need_x), *kept(down_t, first))
        hidden = (gate, up) if first or needs[5] else (None, None)
        ctx.save_for_backward(*kept(x8_t, need_firsts), *weights, *hidden)
        ctx.options = code, how, packed, x.shape
        ctx.dtypes = (w_gate.dtype, w_down.dtype), dtypes_of(b_gate, b_up, b_down)
        ctx.owners = [
            None if w is None else main_grad_owner("gated_mlp", w) for w in (w_gate, w_up, w_down)
        ]
        return y.view(*x.shape[:-1], w_down.shape[0])

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        refuse_second_derivatives("gated_mlp")
        x_t, x_scale, *of_weights, gate, up = ctx.saved_tensors
        code, how, _, shape = ctx.options
        need_down, need_bd = ctx.needs_input_grad[5:7]
        weight_dtypes, bias_dtypes = ctx.dtypes
        first = any(ctx.needs_input_grad[:5])
        dy8, dy8_t, db_down = how.gradients(
            as_rows(dy), first, need_down, need_sums=need_bd,
            sums_fp32=bias_dtypes[2] is torch.float32,
        )  # fmt: skip
        ddown = None
        if need_down:
            _, h8_t = how.inputs(gate, True, rows=False, activation=code, factor=up)
            ddown = weight_grad(ctx.owners[2], dy8_t, h8_t, weight_dtypes[1])
        results: list[Any] = [None] * 5
        if first:
            dh = product(dy8, operand(of_weights[4], of_weights[5], how.weight_scaling), dy.dtype)
            grads = _hidden_grads(ctx, how, dh, gate, up)
            if ctx.needs_input_grad[0]:
                results[0] = _input_grad(grads, of_weights, how, dy.dtype).view(shape)
            of_x = None if x_t is None else operand(x_t, x_scale, how.inputs_transposed)
            results[1:3] = _weight_grads(ctx, grads, of_x)
            results[3:5] = _bias_grads(ctx, grads)
        return (*results, ddown, db_down if need_bd else None, None, None)


def _hidden_grads(ctx: Any, how: Numbers, dh: Tensor, gate: Tensor, up: Tensor) -> _Grads:
    """The gradients of gate, dh * up * act'(gate), and of up, act(gate) * dh, quantised."""
    code, _, packed, _ = ctx.options
    need_x, need_gate, need_up, need_bg, need_bu = ctx.needs_input_grad[:5]
    if packed:
        need_up, need_bu = need_gate, need_bg
    fp32, fp32_up, _ = (d is torch.float32 for d in ctx.dtypes[1])
    saved = _saved_of(gate, code)
    return [
        how.gradients(
            dh, need_x, need_gate, saved=saved, factor=up, activation=code, gradient=True,
            need_sums=need_bg, sums_fp32=fp32,
        ),
        how.gradients(
            gate, need_x, need_up, factor=dh, activation=code,
            need_sums=need_bu, sums_fp32=fp32 if packed else fp32_up,
        ),
    ]  # fmt: skip


def _input_grad(
    grads: _Grads, of_weights: list[Tensor], how: Numbers, dtype: torch.dtype
) -> Tensor:
    scaling = how.weight_scaling
    dx = product(grads[0][0], operand(of_weights[0], of_weights[1], scaling), dtype)
    return dx + product(grads[1][0], operand(of_weights[2], of_weights[3], scaling), dtype)


def _weight_grads(ctx: Any, grads: _Grads, of_x: Operand | None) -> tuple[Any, Any]:
    """dgate and dup; those of weights that have an owner go to its main_grad."""
    need_gate, need_up = ctx.needs_input_grad[1:3]
    packed, dtype = ctx.options[2], ctx.dtypes[0][0]
    owner, owner_up, owner_down = ctx.owners
    if of_x is None:
        return None, None
    (_, dgate_t, _), (_, dup_t, _) = grads
    down = ctx.needs_input_grad[5] and owner_down is not None
    if packed and owner is not None:
        main_grad, add = target(owner)
        for half, dz_t in zip(main_grad.chunk(2), (dgate_t, dup_t), strict=True):
            into_main_grad(dz_t, of_x, half, add)
        return delivered(owner), None
    if packed:
        return torch.cat([product(dz_t, of_x, dtype) for dz_t in (dgate_t, dup_t)]), None
    dgate = dup = None
    if need_gate:
        dgate = weight_grad(owner, dgate_t, of_x, dtype, down and owner is owner_down)
    if need_up:
        again = (down and owner_up is owner_down) or (need_gate and owner_up is owner)
        dup = weight_grad(owner_up, dup_t, of_x, dtype, again)
    return dgate, dup


def _bias_grads(ctx: Any, grads: _Grads) -> tuple[Any, Any]:
    need_gate, need_up = ctx.needs_input_grad[3:5]
    if ctx.options[2]:
        return (torch.cat([g[2] for g in grads]) if need_gate else None), None
    return grads[0][2] if need_gate else None, grads[1][2] if need_up else None
