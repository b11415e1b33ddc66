"""Fakes of mlp and gated_mlp; checks as in csrc/common/checks/mlp_check.h."""

from __future__ import annotations

import torch
from torch import Tensor

from .checks import (
    check_activation,
    check_floating,
    check_like,
    check_min_dim,
    check_same_shape,
    fake,
    shape_of,
)
from .gemm import check_main_grad, check_rows_like


def _check_projection(
    op: str,
    weight_name: str,
    weight: Tensor,
    columns: int,
    bias_name: str,
    bias: Tensor | None,
    x: Tensor,
) -> None:
    check_like(op, weight_name, weight, "x", x)

    def weight_text() -> str:
        return f"{op}: {weight_name} must have shape (*, {columns}); got {shape_of(weight)}"

    torch._check(weight.dim() == 2, weight_text)
    torch._check(weight.shape[1] == columns, weight_text)
    if bias is not None:
        check_like(op, bias_name, bias, "x", x)
        rows = weight.shape[0]
        expected = f"shape ({rows},) to match {weight_name} {shape_of(weight)}"
        check_same_shape(op, bias_name, bias, (rows,), expected)


def _check_rows(op: str, name: str, weight: Tensor, dy: Tensor) -> None:
    check_like(op, name, weight, "dy", dy)
    n = dy.shape[-1]

    def text() -> str:
        return f"{op}: {name} must have shape ({n}, *); got {shape_of(weight)}"

    torch._check(weight.dim() == 2, text)
    torch._check(weight.shape[0] == n, text)


def _parameter(like: Tensor, needed: bool, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return like.new_empty(shape if needed else (0,), dtype=dtype)


@fake("mlp_forward")
def _mlp_forward(
    x: Tensor,
    w1: Tensor,
    b1: Tensor | None,
    w2: Tensor,
    b2: Tensor | None,
    residual: Tensor | None,
    activation: int,
    save: bool,
    allow_tf32: bool,
) -> tuple[Tensor, Tensor]:
    op = "mlp"
    check_activation(op, activation)
    check_floating(op, "x", x)
    check_min_dim(op, "x", x, 1)
    _check_projection(op, "w1", w1, x.shape[-1], "b1", b1, x)
    _check_projection(op, "w2", w2, w1.shape[0], "b2", b2, x)
    if residual is not None:
        check_rows_like(op, "residual", residual, "x", x, w2.shape[0])
    lead = x.shape[:-1]
    return (
        x.new_empty((*lead, w2.shape[0])),
        x.new_empty((*lead, w1.shape[0]) if save else (0,)),
    )


def _check_mlp_backward(
    op: str,
    dy: Tensor,
    saved: Tensor,
    w2: Tensor,
    activation: int,
    need_dz: bool,
    need_db1: bool,
    need_dw2: bool,
    need_db2: bool,
    parameters_fp32: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    check_activation(op, activation)
    check_floating(op, "dy", dy)
    check_min_dim(op, "dy", dy, 1)
    _check_rows(op, "w2", w2, dy)
    n, hidden = w2.shape
    check_rows_like(op, "saved", saved, "dy", dy, hidden)
    dtype = torch.float32 if parameters_fp32 else dy.dtype
    return (
        dy.new_empty(saved.shape if need_dz else (0,)),
        _parameter(dy, need_db1, (hidden,), dtype),
        _parameter(dy, need_dw2, (n, hidden), dtype),
        _parameter(dy, need_db2, (n,), dtype),
    )


@fake("mlp_backward")
def _mlp_backward(
    dy: Tensor, saved: Tensor, w2: Tensor, activation: int, *flags: bool
) -> tuple[Tensor, ...]:
    return _check_mlp_backward("mlp_backward", dy, saved, w2, activation, *flags[:-1])


@fake("mlp_backward_")
def _mlp_backward_in_place(
    dy: Tensor,
    saved: Tensor,
    w2: Tensor,
    main_grad: Tensor | None,
    accumulate: bool,
    activation: int,
    *flags: bool,
) -> tuple[Tensor, ...]:
    op = "mlp_backward_"
    dz, db1, dw2, db2 = _check_mlp_backward(op, dy, saved, w2, activation, *flags[:-1])
    if main_grad is not None:
        check_main_grad(op, main_grad, w2.shape[0], w2.shape[1], dy)
        dw2 = dw2.new_empty((0,))
    return dz, db1, dw2, db2


# ---- gated ----


def _check_gated_linear(
    op: str,
    x: Tensor,
    w_gate: Tensor,
    w_up: Tensor | None,
    b_gate: Tensor | None,
    b_up: Tensor | None,
) -> int:
    """The hidden size."""
    check_floating(op, "x", x)
    check_min_dim(op, "x", x, 1)
    k = x.shape[-1]
    _check_projection(op, "w_gate", w_gate, k, "b_gate", b_gate, x)
    if w_up is not None:
        _check_projection(op, "w_up", w_up, k, "b_up", b_up, x)
        expected = f"shape {shape_of(w_gate)} like w_gate"
        check_same_shape(op, "w_up", w_up, tuple(w_gate.shape), expected)
        return int(w_gate.shape[0])
    torch._check(
        w_gate.shape[0] % 2 == 0,
        lambda: (
            f"{op}: w_gate must have an even number of rows when w_up is None; got "
            f"{shape_of(w_gate)}"
        ),
    )
    torch._check(
        b_up is None,
        lambda: f"{op}: b_up must be None when w_up is None; got {shape_of(b_up)}",
    )
    return int(w_gate.shape[0] // 2)


def _stacked(like: Tensor, hidden: int, packed: bool) -> tuple[int, ...]:
    lead = like.shape[:-1]
    return (*lead, 2, hidden) if packed else (2, *lead, hidden)


def _check_stacked(
    op: str, name: str, stacked: Tensor, packed: bool, like_name: str, like: Tensor, hidden: int
) -> None:
    check_like(op, name, stacked, like_name, like)
    start = "(..., 2, " if packed else "(2, ..., "
    expected = f"shape {start}{hidden}) with the leading dimensions of {like_name} {shape_of(like)}"
    check_same_shape(op, name, stacked, _stacked(like, hidden, packed), expected)


@fake("gated_linear")
def _gated_linear(
    x: Tensor,
    w_gate: Tensor,
    w_up: Tensor | None,
    b_gate: Tensor | None,
    b_up: Tensor | None,
    allow_tf32: bool,
) -> Tensor:
    hidden = _check_gated_linear("gated_linear", x, w_gate, w_up, b_gate, b_up)
    return x.new_empty(_stacked(x, hidden, w_up is None))


@fake("gated_mlp_forward")
def _gated_mlp_forward(
    x: Tensor,
    w_gate: Tensor,
    w_up: Tensor | None,
    b_gate: Tensor | None,
    b_up: Tensor | None,
    w_down: Tensor,
    b_down: Tensor | None,
    residual: Tensor | None,
    activation: int,
    save: bool,
    allow_tf32: bool,
) -> tuple[Tensor, Tensor]:
    op = "gated_mlp"
    check_activation(op, activation)
    hidden = _check_gated_linear(op, x, w_gate, w_up, b_gate, b_up)
    _check_projection(op, "w_down", w_down, hidden, "b_down", b_down, x)
    if residual is not None:
        check_rows_like(op, "residual", residual, "x", x, w_down.shape[0])
    return (
        x.new_empty((*x.shape[:-1], w_down.shape[0])),
        x.new_empty(_stacked(x, hidden, w_up is None) if save else (0,)),
    )


def _check_gated_backward(
    op: str,
    dy: Tensor,
    saved: Tensor,
    w_down: Tensor,
    activation: int,
    packed: bool,
    need_dbias: bool,
    need_dw_down: bool,
    need_db_down: bool,
    parameters_fp32: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of the parameters."""
    check_activation(op, activation)
    check_floating(op, "dy", dy)
    check_min_dim(op, "dy", dy, 1)
    _check_rows(op, "w_down", w_down, dy)
    n, hidden = w_down.shape
    _check_stacked(op, "saved", saved, packed, "dy", dy, hidden)
    dtype = torch.float32 if parameters_fp32 else dy.dtype
    return (
        _parameter(dy, need_dbias, (2, hidden), dtype),
        _parameter(dy, need_dw_down, (n, hidden), dtype),
        _parameter(dy, need_db_down, (n,), dtype),
    )


@fake("gated_mlp_backward")
def _gated_mlp_backward(
    dy: Tensor,
    saved: Tensor,
    w_down: Tensor,
    activation: int,
    packed: bool,
    need_dz: bool,
    need_dbias: bool,
    need_dw_down: bool,
    need_db_down: bool,
    parameters_fp32: bool,
    allow_tf32: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    parameters = _check_gated_backward(
        "gated_mlp_backward", dy, saved, w_down, activation, packed,
        need_dbias, need_dw_down, need_db_down, parameters_fp32,
    )  # fmt: skip
    hidden = w_down.shape[1]
    return dy.new_empty(_stacked(dy, hidden, packed) if need_dz else (0,)), *parameters


@fake("gated_mlp_backward_")
def _gated_mlp_backward_in_place(
    dy: Tensor,
    saved: Tensor,
    w_down: Tensor,
    main_grad: Tensor | None,
    accumulate: bool,
    activation: int,
    packed: bool,
    need_dbias: bool,
    need_dw_down: bool,
    need_db_down: bool,
    parameters_fp32: bool,
    allow_tf32: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    op = "gated_mlp_backward_"
    if main_grad is not None:
        check_main_grad(op, main_grad, w_down.shape[0], w_down.shape[1], dy)
        need_dw_down = False
    return _check_gated_backward(
        op, dy, saved, w_down, activation, packed,
        need_dbias, need_dw_down, need_db_down, parameters_fp32,
    )  # fmt: skip


@fake("gated_input_backward")
def _gated_input_backward(
    dz: Tensor,
    x: Tensor,
    w_gate: Tensor,
    w_up: Tensor | None,
    need_dx: bool,
    need_dw_gate: bool,
    need_dw_up: bool,
    dweight_fp32: bool,
    allow_tf32: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    op = "gated_input_backward"
    check_floating(op, "dz", dz)
    check_like(op, "x", x, "dz", dz)
    hidden = _check_gated_linear(op, x, w_gate, w_up, None, None)
    _check_stacked(op, "dz", dz, w_up is None, "x", x, hidden)
    dtype = torch.float32 if dweight_fp32 else x.dtype
    return (
        x.new_empty(x.shape if need_dx else (0,)),
        _parameter(x, need_dw_gate, tuple(w_gate.shape), dtype),
        _parameter(x, need_dw_up and w_up is not None, (hidden, x.shape[-1]), dtype),
    )
