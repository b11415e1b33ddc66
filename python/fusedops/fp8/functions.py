"""autograd.Functions of FP8 layers.

What forward keeps for backward is the transposed input in FP8, one byte an element, and of an MLP
the pre-activation (or the activation's output) of the hidden size. Every matrix is quantised once
from the values at hand, for both products that read it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from .._autograd.autocast import cast
from .._autograd.main_grad import delivered, main_grad_owner, target
from .._core.activation import SAVES_OUTPUT, SAVES_PREACT
from .._core.fp8 import BLOCKS, FORMAT_NAMES, NONE, SCALING_CODES, TILES
from .._core.traced import is_exporting
from .hidden import hidden_grads, takes_hidden_grads
from .inference import fp8_product, warn_of_emulation
from .quantizer import Operand, as_rows, quantize_rows
from .weights import quantized_pair, quantized_weight, weight_scaling

if TYPE_CHECKING:
    from .recipe import Recipe

_scale_bias_act = torch.ops.fusedops.scale_bias_act.default
_wgrad = torch.ops.fusedops._fp8_wgrad_.default


class Numbers(NamedTuple):
    """A recipe in the codes and dtypes of the ops."""

    recipe: Recipe
    forward: torch.dtype
    backward: torch.dtype
    rows: int  # of inputs and gradients
    inputs_transposed: int
    weight_scaling: int
    power_of_two: bool

    def inputs(
        self, x: Tensor, transposed: bool, rows: bool = True, **how: Any
    ) -> tuple[Operand, Operand]:
        """Quantise an input (M, K), and its transpose for the weight's gradient."""
        by_rows = self.rows if rows else NONE
        by_columns = self.inputs_transposed if transposed else NONE
        found = quantize_rows(x, self.forward, by_rows, by_columns, self.power_of_two, **how)
        return found[0], found[1]

    def gradients(
        self, dy: Tensor, rows: bool, columns: bool, **how: Any
    ) -> tuple[Operand, Operand, Tensor]:
        """Quantise a gradient (M, N): rows for dx, columns for dweight; and its sums."""
        by_rows, by_columns = (self.rows if wanted else NONE for wanted in (rows, columns))
        return quantize_rows(dy, self.backward, by_rows, by_columns, self.power_of_two, **how)

    def weight(
        self, weight: Tensor, both: bool, half: int | None = None
    ) -> tuple[Operand, Operand | None]:
        """The quantised weight (N, K), transposed as well where dx is wanted."""
        return quantized_weight(weight, self.recipe, self.forward, both, half)

    def weight_pair(
        self, gate: Tensor, up: Tensor | None, both: bool
    ) -> tuple[Operand, Operand | None]:
        """Two quantised weights above each other, or one that holds both (up None)."""
        if up is None:
            return self.weight(gate, both)
        return quantized_pair(gate, up, self.recipe, self.forward, both)


def numbers(recipe: Recipe) -> Numbers:
    """What a recipe says, for the ops."""
    rows = SCALING_CODES[recipe.scaling]
    tile = recipe.scaling == "block" and recipe.weight_gradient == "tile"
    return Numbers(
        recipe,
        FORMAT_NAMES[recipe.forward],
        FORMAT_NAMES[recipe.backward],
        rows,
        TILES if tile else rows,
        weight_scaling(recipe),
        recipe.power_of_two_scales,
    )


def product(
    a: Operand, b: Operand, dtype: torch.dtype, bias: Tensor | None = None, code: int = 0
) -> Tensor:
    """act(a @ b.T + bias) of two operands."""
    return fp8_product(a.q, b.q, a.scale_of_rows(), b.scale_of_rows(), bias, code, dtype)


def kept(operand: Operand | None, wanted: bool) -> tuple[Tensor | None, Tensor | None]:
    """The two tensors of an operand, for save_for_backward."""
    return (operand.q, operand.scale) if wanted and operand is not None else (None, None)


def operand(q: Tensor, scale: Tensor, scaling: int) -> Operand:
    """An operand that was kept."""
    return Operand(q, scale, scaling == BLOCKS)


def weight_grad(
    owner: Tensor | None, dz_t: Operand, x_t: Operand, dtype: torch.dtype, again: bool = False
) -> Tensor | None:
    """dz.T @ x for autograd in the weight's dtype, or in its owner's main_grad.

    again: a weight used twice already has the other use's gradient there.
    """
    if owner is None:
        return product(dz_t, x_t, dtype)
    main_grad, add = target(owner)
    into_main_grad(dz_t, x_t, main_grad, add or again)
    return delivered(owner)


def into_main_grad(dz_t: Operand, x_t: Operand, main_grad: Tensor, add: bool) -> None:
    """Form dz.T @ x there, or add it."""
    warn_of_emulation(main_grad.device)
    _wgrad(dz_t.q, x_t.q, dz_t.scale_of_rows(), x_t.scale_of_rows(), main_grad, add)


def refuse_second_derivatives(op: str) -> None:
    """Backward is not differentiable: what it would need was kept in FP8 only."""
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        raise RuntimeError(
            f"{op}: an FP8 layer has no second derivatives (create_graph=True); run it inside "
            "fusedops.fp8.autocast(None) or without a recipe"
        )


def input_operands(
    how: Numbers, x: Tensor, transposed: bool, given: tuple[Tensor | None, ...]
) -> tuple[Operand, Operand]:
    """The input of a layer and its transpose: quantised here, or what a norm has written."""
    q, scale, q_t, scale_t = given
    if q is None or scale is None or q_t is None or scale_t is None:
        return how.inputs(as_rows(x), transposed)
    return operand(q, scale, how.rows), operand(q_t, scale_t, how.inputs_transposed)


def as_dtype(tensor: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if tensor is None else cast(tensor, dtype)


class _Forward:
    """The context of a forward pass that has no backward."""

    def __init__(self, count: int) -> None:
        self.needs_input_grad = (False,) * count

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        pass

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        pass

    def set_materialize_grads(self, value: bool) -> None:
        pass


def apply(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    """function.apply, or its forward alone where no backward will be: without gradients, and in an
    exported program.
    """
    # NOTE: under no_grad, ctx.needs_input_grad still says what of the inputs requires gradients.
    if torch.is_grad_enabled():
        if not is_exporting():
            return function.apply(*arguments)
        arguments = tuple(a.detach() if isinstance(a, Tensor) else a for a in arguments)
    return function.forward(_Forward(len(arguments)), *arguments)


class Fp8LinearFunction(torch.autograd.Function):
    """(x (..., K), weight, bias, code, recipe, *given) -> y (..., N); x has the dtype of y.

    given: of a norm that has quantised x (q, scale, q_t, scale_t), and x is a tensor without values
    then; else four times None.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        code: int,
        recipe: Recipe,
        *given: Tensor | None,
    ) -> Tensor:
        need_x, need_w = ctx.needs_input_grad[:2]
        how = numbers(recipe)
        w8, w8_t = how.weight(weight, need_x)
        x8, x8_t = input_operands(how, x, need_w, given)
        added = as_dtype(bias, x.dtype)
        saved = None
        if SAVES_PREACT[code] and any(ctx.needs_input_grad):
            saved = product(x8, w8, x.dtype, added)
            y = _scale_bias_act(saved, None, None, code)
        else:
            y = product(x8, w8, x.dtype, added, code)
            saved = y if SAVES_OUTPUT[code] else None
        y = y.view(*x.shape[:-1], weight.shape[0])
        ctx.save_for_backward(*kept(x8_t, need_w), *kept(w8_t, need_x), saved)
        ctx.options = code, how, x.shape, weight.dtype, None if bias is None else bias.dtype
        ctx.owner = main_grad_owner("linear", weight) if need_w else None
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        refuse_second_derivatives("linear")
        x_t, x_scale, w_t, w_scale, saved = ctx.saved_tensors
        code, how, shape, weight_dtype, bias_dtype = ctx.options
        need_x, need_w, need_b = ctx.needs_input_grad[:3]
        dz, dz_t, sums = how.gradients(
            as_rows(dy), need_x, need_w, saved=None if saved is None else as_rows(saved),
            activation=code, gradient=True, need_sums=need_b,
            sums_fp32=bias_dtype is torch.float32,
        )  # fmt: skip
        dx = dw = None
        if need_x:
            dx = product(dz, operand(w_t, w_scale, how.weight_scaling), dy.dtype).view(shape)
        if need_w:
            of_x = operand(x_t, x_scale, how.inputs_transposed)
            dw = weight_grad(ctx.owner, dz_t, of_x, weight_dtype)
        return dx, dw, sums if need_b else None, *[None] * 6


class Fp8MLPFunction(torch.autograd.Function):
    """(x, w1, b1, w2, b2, code, recipe, *given) -> y = act(x w1.T + b1) w2.T + b2."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        w1: Tensor,
        b1: Tensor | None,
        w2: Tensor,
        b2: Tensor | None,
        code: int,
        recipe: Recipe,
        *given: Tensor | None,
    ) -> Tensor:
        need_x, need_w1, need_b1, need_w2, _ = ctx.needs_input_grad[:5]
        first = need_x or need_w1 or need_b1
        how = numbers(recipe)
        one, one_t = how.weight(w1, need_x)
        two, two_t = how.weight(w2, first)
        x8, x8_t = input_operands(how, x, need_w1, given)
        late = 0 if SAVES_OUTPUT[code] else code  # the activation that the quantiser applies
        hidden = product(x8, one, x.dtype, as_dtype(b1, x.dtype), code if late == 0 else 0)
        h8, _ = how.inputs(hidden, False, activation=late)
        y = product(h8, two, x.dtype, as_dtype(b2, x.dtype))
        keep_hidden = hidden if first or need_w2 else None
        ctx.save_for_backward(
            *kept(x8_t, need_w1), *kept(one_t, need_x), *kept(two_t, first), keep_hidden
        )
        ctx.options = code, late, how, x.shape, (w1.dtype, w2.dtype), dtypes_of(b1, b2)
        ctx.owners = main_grad_owner("mlp", w1), main_grad_owner("mlp", w2)
        return y.view(*x.shape[:-1], w2.shape[0])

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        refuse_second_derivatives("mlp")
        x_t, x_scale, one_t, one_scale, two_t, two_scale, hidden = ctx.saved_tensors
        _, late, how, shape, weight_dtypes, bias_dtypes = ctx.options
        need_x, need_w1, need_b1, need_w2, need_b2 = ctx.needs_input_grad[:5]
        owner1, owner2 = ctx.owners
        first = need_x or need_w1 or need_b1
        dx = dw1 = db1 = dw2 = None
        dy8, dy8_t, db2 = how.gradients(
            as_rows(dy), first, need_w2, need_sums=need_b2,
            sums_fp32=bias_dtypes[1] is torch.float32,
        )  # fmt: skip
        h8_t = None
        if first:
            dh = product(dy8, operand(two_t, two_scale, how.weight_scaling), dy.dtype)
            dz, dz_t, h8_t, db1 = _before_activation(ctx, how, dh, hidden)
            del dh
            if need_x:
                dx = product(dz, operand(one_t, one_scale, how.weight_scaling), dy.dtype)
                dx = dx.view(shape)
        if need_w2:
            if h8_t is None:
                _, h8_t = how.inputs(hidden, True, rows=False, activation=late)
            dw2 = weight_grad(owner2, dy8_t, h8_t, weight_dtypes[1])
        if need_w1:
            of_x = operand(x_t, x_scale, how.inputs_transposed)
            again = need_w2 and owner1 is owner2
            dw1 = weight_grad(owner1, dz_t, of_x, weight_dtypes[0], again)
        return dx, dw1, db1 if need_b1 else None, dw2, db2 if need_b2 else None, *[None] * 6


def _before_activation(
    ctx: Any, how: Numbers, dh: Tensor, hidden: Tensor
) -> tuple[Operand, Operand, Operand | None, Tensor]:
    """An MLP's gradient by rows and columns, the hidden values where that has them, sums."""
    code, _, _, _, _, bias_dtypes = ctx.options
    need_x, need_w1, need_b1, need_w2, _ = ctx.needs_input_grad[:5]
    fp32 = bias_dtypes[0] is torch.float32
    if takes_hidden_grads(how):
        grads = hidden_grads(
            how, dh, hidden, None, code, need_x, need_w1, need_w2,
            need_sums=need_b1, sums_fp32=fp32,
        )  # fmt: skip
        return grads.rows, grads.columns, grads.hidden_t, grads.sums
    rows, columns, sums = how.gradients(
        dh, need_x, need_w1, saved=hidden, activation=code, gradient=True,
        need_sums=need_b1, sums_fp32=fp32,
    )  # fmt: skip
    return rows, columns, None, sums


def dtypes_of(*tensors: Tensor | None) -> tuple[torch.dtype | None, ...]:
    """The dtypes of parameters, None for those that are not there."""
    return tuple(None if t is None else t.dtype for t in tensors)
