"""Flop formulas of our products of matrices and convolutions, for torch.utils.flop_counter.

Counted as torch counts mm: two flops for each product of two elements, nothing for bias, activation
and sums. Imported with torch.utils.flop_counter, which `import torch` leaves alone.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.flop_counter import register_flop_formula

if TYPE_CHECKING:
    from collections.abc import Sequence

    Shape = Sequence[int]

_ops = torch.ops.fusedops


def _product(rows: Shape, *weights: Shape | None) -> int:
    """Flops of rows (..., K or N) times each weight (N, K): forward, dx or dweight alike."""
    return sum(2 * prod(rows[:-1]) * prod(weight) for weight in weights if weight is not None)


@register_flop_formula(
    [_ops.linear, _ops.linear_preact, _ops.linear_moments, _ops.linear_input_backward]
)
def _linear(x: Shape, weight: Shape, *_: Any, **__: Any) -> int:
    return _product(x, weight)


@register_flop_formula([_ops.matmul, _ops.matmul_preact])
def _matmul(a: Shape, b: Shape, *_: Any, **__: Any) -> int:
    return _product(a, b)


@register_flop_formula([_ops._fp8_matmul, _ops._fp8_wgrad_])
def _fp8_product(a: Shape, b: Shape, *_: Any, **__: Any) -> int:
    return _product(a, b)


@register_flop_formula([_ops.linear_backward])
def _linear_backward(
    dy: Shape, x: Shape, weight: Shape, saved: Any, activation: int, need_dx: bool,
    need_dweight: bool, *_: Any, **__: Any,
) -> int:  # fmt: skip
    return (need_dx + need_dweight) * _product(dy, weight)


@register_flop_formula([_ops.linear_wgrad_])
def _linear_wgrad(dz: Shape, x: Shape, main_grad: Shape, *_: Any, **__: Any) -> int:
    return _product(dz, main_grad)


@register_flop_formula([_ops.mlp_forward])
def _mlp_forward(x: Shape, w1: Shape, b1: Any, w2: Shape, *_: Any, **__: Any) -> int:
    return _product(x, w1, w2)


@register_flop_formula([_ops.mlp_backward])
def _mlp_backward(
    dy: Shape, saved: Shape, w2: Shape, activation: int, need_dz: bool, need_db1: bool,
    need_dw2: bool, *_: Any, **__: Any,
) -> int:  # fmt: skip
    return ((need_dz or need_db1) + need_dw2) * _product(dy, w2)


@register_flop_formula([_ops.mlp_backward_])
def _mlp_backward_in_place(
    dy: Shape, saved: Shape, w2: Shape, main_grad: Any, accumulate: bool, activation: int,
    need_dz: bool, need_db1: bool, need_dw2: bool, *_: Any, **__: Any,
) -> int:  # fmt: skip
    return ((need_dz or need_db1) + need_dw2) * _product(dy, w2)


@register_flop_formula([_ops.gated_mlp_forward])
def _gated_mlp_forward(
    x: Shape, w_gate: Shape, w_up: Shape | None, b_gate: Any, b_up: Any, w_down: Shape,
    *_: Any, **__: Any,
) -> int:  # fmt: skip
    return _product(x, w_gate, w_up, w_down)


@register_flop_formula([_ops.gated_linear])
def _gated_linear(x: Shape, w_gate: Shape, w_up: Shape | None, *_: Any, **__: Any) -> int:
    return _product(x, w_gate, w_up)


@register_flop_formula([_ops.gated_mlp_backward])
def _gated_mlp_backward(
    dy: Shape, saved: Shape, w_down: Shape, activation: int, packed: bool, need_dz: bool,
    need_dbias: bool, need_dw_down: bool, *_: Any, **__: Any,
) -> int:  # fmt: skip
    return ((need_dz or need_dbias) + need_dw_down) * _product(dy, w_down)


@register_flop_formula([_ops.gated_mlp_backward_])
def _gated_mlp_backward_in_place(
    dy: Shape, saved: Shape, w_down: Shape, main_grad: Any, accumulate: bool, activation: int,
    packed: bool, need_dbias: bool, need_dw_down: bool, *_: Any, **__: Any,
) -> int:  # fmt: skip
    return (1 + need_dw_down) * _product(dy, w_down)


@register_flop_formula([_ops.gated_input_backward])
def _gated_input_backward(
    dz: Shape, x: Shape, w_gate: Shape, w_up: Shape | None, need_dx: bool, need_dw_gate: bool,
    need_dw_up: bool, *_: Any, **__: Any,
) -> int:  # fmt: skip
    gate, up = _product(x, w_gate), _product(x, w_up)
    return need_dx * (gate + up) + need_dw_gate * gate + need_dw_up * up


# ---- convolutions: the result's elements by the weights of each ----


@register_flop_formula([_ops.first_conv, _ops.image_conv, _ops.depthwise_conv, _ops.pointwise_conv])
def _convolution(x: Shape, weight: Shape, *_: Any, out_shape: Shape, **__: Any) -> int:
    return 2 * prod(out_shape) * prod(weight[1:])


@register_flop_formula([_ops.first_conv_image, _ops.first_conv_weight, _ops.image_conv_backward])
def _one_conv_gradient(dy: Shape, x: Shape, weight: Shape, *_: Any, **__: Any) -> int:
    return 2 * prod(dy) * prod(weight[1:])


@register_flop_formula([_ops.depthwise_conv_backward])
def _depthwise_conv_backward(
    dy: Shape, x: Shape, weight: Shape, stride_h: int, stride_w: int, pad_h: int, pad_w: int,
    need_dx: bool, need_dweight: bool, *_: Any, **__: Any,
) -> int:  # fmt: skip
    return (need_dx + need_dweight) * 2 * prod(dy) * prod(weight[1:])
