"""The autograd.Function of a gated MLP in FP8.

Kept are gate, up and the transposed input; the product of act(gate) and up is quantised from them
in forward, and again, transposed, in backward.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from .._autograd.autocast import cast
from .._autograd.main_grad import delivered, main_grad_owner, target
from .._core.activation import ACTIVATIONS
from .._core.fp8 import BLOCK
from .functions import (
    as_dtype,
    dtypes_of,
    input_operands,
    into_main_grad,
    kept,
    numbers,
    operand,
    product,
    refuse_second_derivatives,
    weight_grad,
)
from .hidden import HiddenGrads, hidden_grads, takes_hidden_grads
from .quantizer import as_rows

if TYPE_CHECKING:
    from .functions import Numbers
    from .quantizer import Operand
    from .recipe import Recipe

_scale_bias_act = torch.ops.fusedops.scale_bias_act.default


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
    """(x, w_gate, w_up, b_gate, b_up, w_down, b_down, code, recipe, *given) -> y.

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
        *given: Tensor | None,
    ) -> Tensor:
        needs = ctx.needs_input_grad[:7]
        need_x, first, need_firsts = needs[0], any(needs[:5]), needs[1] or needs[2]
        how, packed = numbers(recipe), w_up is None
        x8, x8_t = input_operands(how, x, need_firsts, given)
        biases = b_gate, b_up
        of_weights, gate, up = _gate_and_up(how, x8, x.dtype, (w_gate, w_up), biases, need_x)
        down, down_t = how.weight(w_down, first)
        h8, _ = how.inputs(gate, False, activation=code, factor=up)
        y = product(h8, down, x.dtype, as_dtype(b_down, x.dtype))
        transposed = ((of_weights[0], need_x), (of_weights[1], need_x), (down_t, first))
        weights = [tensor for pair in transposed for tensor in kept(*pair)]
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
        results: list[Any] = [None] * 5
        h8_t = ddown = None
        if first:
            dh = product(dy8, operand(of_weights[4], of_weights[5], how.weight_scaling), dy.dtype)
            grads = _hidden_grads(ctx, how, dh, gate, up)
            h8_t = grads.hidden_t
            if ctx.needs_input_grad[0]:
                results[0] = _input_grad(grads, of_weights, how, dy.dtype).view(shape)
        if need_down:
            if h8_t is None:
                _, h8_t = how.inputs(gate, True, rows=False, activation=code, factor=up)
            ddown = weight_grad(ctx.owners[2], dy8_t, h8_t, weight_dtypes[1])
        if first:
            of_x = None if x_t is None else operand(x_t, x_scale, how.inputs_transposed)
            results[1:3] = _weight_grads(ctx, grads, of_x)
            results[3:5] = _bias_grads(ctx, grads)
        return (*results, ddown, db_down if need_bd else None, *[None] * 6)


def _gate_and_up(
    how: Numbers,
    x8: Operand,
    dtype: torch.dtype,
    weights: tuple[Tensor, Tensor | None],
    biases: tuple[Tensor | None, Tensor | None],
    need_x: bool,
) -> tuple[tuple[Operand | None, Operand | None], Tensor, Tensor]:
    """(the transposed weights, gate, up): one product where blocks are whole in both weights, and
    then both weights are the first one.
    """
    w_gate, w_up = weights
    packed = w_up is None
    hidden = w_gate.shape[0] // 2 if packed else w_gate.shape[0]
    alike = w_up is None or (w_up is not w_gate and w_up.dtype is w_gate.dtype)
    if takes_hidden_grads(how) and hidden % BLOCK == 0 and alike:
        whole, whole_t = how.weight_pair(w_gate, w_up, need_x)
        bias = biases[0]
        if not packed and any(b is not None for b in biases):
            parts = [w_gate.new_zeros(hidden) if b is None else b for b in biases]
            bias = torch.cat([cast(b, dtype) for b in parts])
        gate, up = product(x8, whole, dtype, as_dtype(bias, dtype)).chunk(2, -1)
        return (whole_t, None), gate, up
    gate_half, up_half = (0, 1) if packed else (None, None)
    of_gate, of_gate_t = how.weight(w_gate, need_x, gate_half)
    of_up, of_up_t = how.weight(w_gate if w_up is None else w_up, need_x, up_half)
    bias, bias_up = (as_dtype(b, dtype) for b in _both(*biases, packed))
    return (
        (of_gate_t, of_up_t),
        product(x8, of_gate, dtype, bias),
        product(x8, of_up, dtype, bias_up),
    )


class _Apart(NamedTuple):
    """Gradients of gate and up that passes of their own have made, in HiddenGrads' words."""

    both: tuple[tuple[Operand, Operand, Tensor], ...]  # rows, columns, sums
    hidden_t: Operand | None = None

    def rows_of(self, part: int) -> Operand:
        return self.both[part][0]

    def columns_of(self, part: int) -> Operand:
        return self.both[part][1]

    def sums_of(self, part: int) -> Tensor:
        return self.both[part][2]


def _hidden_grads(
    ctx: Any, how: Numbers, dh: Tensor, gate: Tensor, up: Tensor
) -> HiddenGrads | _Apart:
    """The gradients of gate, dh * up * act'(gate), and of up, act(gate) * dh, quantised."""
    code, _, packed, _ = ctx.options
    need_x, need_gate, need_up, need_bg, need_bu, need_down = ctx.needs_input_grad[:6]
    fp32, fp32_up, _ = (d is torch.float32 for d in ctx.dtypes[1])
    if packed:
        need_up, need_bu, fp32_up = need_gate, need_bg, fp32
    if takes_hidden_grads(how):
        columns, sums, wide = need_gate or need_up, need_bg or need_bu, fp32 or fp32_up
        return hidden_grads(
            how, dh, gate, up, code, need_x, columns, need_down, need_sums=sums, sums_fp32=wide
        )
    saved = _saved_of(gate, code)
    of_gate = how.gradients(
        dh, need_x, need_gate, saved=saved, factor=up, activation=code, gradient=True,
        need_sums=need_bg, sums_fp32=fp32,
    )  # fmt: skip
    of_up = how.gradients(
        gate, need_x, need_up, factor=dh, activation=code, need_sums=need_bu, sums_fp32=fp32_up
    )
    return _Apart((of_gate, of_up))


def _input_grad(
    grads: HiddenGrads | _Apart, of_weights: list[Tensor], how: Numbers, dtype: torch.dtype
) -> Tensor:
    scaling = how.weight_scaling
    first = operand(of_weights[0], of_weights[1], scaling)
    if isinstance(grads, HiddenGrads) and of_weights[2] is None:  # the first holds both
        return product(grads.rows, first, dtype)
    second = operand(of_weights[2], of_weights[3], scaling)
    return product(grads.rows_of(0), first, dtype) + product(grads.rows_of(1), second, dtype)


def _weight_grads(ctx: Any, grads: HiddenGrads | _Apart, of_x: Operand | None) -> tuple[Any, Any]:
    """dgate and dup; those of weights that have an owner go to its main_grad."""
    need_gate, need_up = ctx.needs_input_grad[1:3]
    packed, dtype = ctx.options[2], ctx.dtypes[0][0]
    owner, owner_up, owner_down = ctx.owners
    if of_x is None:
        return None, None
    down = ctx.needs_input_grad[5] and owner_down is not None
    if packed and isinstance(grads, HiddenGrads):
        return weight_grad(owner, grads.columns, of_x, dtype, down and owner is owner_down), None
    if packed and owner is not None:
        main_grad, add = target(owner)
        for part, half in enumerate(main_grad.chunk(2)):
            into_main_grad(grads.columns_of(part), of_x, half, add)
        return delivered(owner), None
    if packed:
        return torch.cat([product(grads.columns_of(part), of_x, dtype) for part in (0, 1)]), None
    dgate = dup = None
    if need_gate:
        again = down and owner is owner_down
        dgate = weight_grad(owner, grads.columns_of(0), of_x, dtype, again)
    if need_up:
        again = (down and owner_up is owner_down) or (need_gate and owner_up is owner)
        dup = weight_grad(owner_up, grads.columns_of(1), of_x, dtype, again)
    return dgate, dup


def _bias_grads(ctx: Any, grads: HiddenGrads | _Apart) -> tuple[Any, Any]:
    need_gate, need_up = ctx.needs_input_grad[3:5]
    if ctx.options[2]:
        return (torch.cat([grads.sums_of(i) for i in (0, 1)]) if need_gate else None), None
    return (grads.sums_of(0) if need_gate else None), (grads.sums_of(1) if need_up else None)
