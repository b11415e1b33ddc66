"""Fakes of the FP8 ops; checks as in csrc/common/checks/fp8_check.h."""

from __future__ import annotations

import torch
from torch import Tensor

from .._core.checks import dtype_name
from .._core.fp8 import (
    BLOCK,
    BLOCKS,
    FORMATS,
    NONE,
    OUT_DTYPES,
    PADDING,
    SCALINGS,
    TILES,
    ceil_div,
    scale_shape,
)
from .checks import (
    check_activation,
    check_floating,
    check_like,
    check_matrix,
    check_same_shape,
    fake,
    shape_of,
)
from .gemm import _check_bias, _check_saved, check_main_grad
from .rows import _norm


def _check_scalings(op: str, rows: int, columns: int) -> None:
    for name, code in (("rows", rows), ("columns", columns)):
        torch._check(
            0 <= code < len(SCALINGS),
            lambda name=name, code=code: (
                f"{op}: {name} must be a code from 0 to {len(SCALINGS) - 1}; got {code}"
            ),
        )
    blocks = (BLOCKS, TILES)
    torch._check(
        NONE in (rows, columns) or rows == columns or (rows in blocks and columns in blocks),
        lambda: (
            f"{op}: rows and columns must be scaled alike, or both by blocks; got codes {rows} "
            f"and {columns}"
        ),
    )


def _side(
    x: Tensor, scaling: int, dtype: torch.dtype, rows: int, columns: int
) -> tuple[Tensor, Tensor]:
    shape = (0, 0)
    if scaling != NONE:
        shape = (rows, ceil_div(columns, PADDING) * PADDING)
    scale = x.new_empty(scale_shape(scaling, rows, columns), dtype=torch.float32)
    return x.new_empty(shape, dtype=dtype), scale


@fake("fp8_quantize")
def _fp8_quantize(
    x: Tensor,
    saved: Tensor | None,
    factor: Tensor | None,
    activation: int,
    gradient: bool,
    format: int,
    rows: int,
    columns: int,
    power_of_two: bool,
    need_sums: bool,
    sums_fp32: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    op = "fp8_quantize"
    check_activation(op, activation)
    torch._check(format in (0, 1), lambda: f"{op}: format must be a code from 0 to 1; got {format}")
    _check_scalings(op, rows, columns)
    check_floating(op, "x", x)
    check_matrix(op, "x", x, "(M, K)")
    if gradient:
        _check_saved(op, x, saved, activation)
    if factor is not None:
        check_like(op, "factor", factor, "x", x)
        check_same_shape(op, "factor", factor, tuple(x.shape), f"shape {shape_of(x)} like x")
    m, k = x.shape
    dtype = FORMATS[format]
    q, scale = _side(x, rows, dtype, m, k)
    q_t, scale_t = _side(x, columns, dtype, k, m)
    sums = x.new_empty((k if need_sums else 0,), dtype=torch.float32 if sums_fp32 else x.dtype)
    return q, scale, q_t, scale_t, sums


@fake("_fp8_norm")
def _fp8_norm(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    rms: bool,
    eps: float,
    format: int,
    rows: int,
    columns: int,
    power_of_two: bool,
) -> tuple[Tensor, ...]:
    op = "_fp8_norm"
    torch._check(format in (0, 1), lambda: f"{op}: format must be a code from 0 to 1; got {format}")
    _check_scalings(op, rows, columns)
    check_floating(op, "x", x)
    check_matrix(op, "x", x, "(M, K)")
    _, total, rstd = _norm(op, x, residual, weight, bias, 1, False, True)
    torch._check(
        not rms or bias is None,
        lambda: f"{op}: bias must be None for an RMS norm; got a tensor",
    )
    m, k = x.shape
    q, scale = _side(x, rows, FORMATS[format], m, k)
    q_t, scale_t = _side(x, columns, FORMATS[format], k, m)
    mean = rstd.new_empty((0,)) if rms else torch.empty_like(rstd)
    return q, scale, q_t, scale_t, total, mean, rstd


@fake("_fp8_quantize_pair")
def _fp8_quantize_pair(
    a: Tensor, b: Tensor, format: int, columns: bool, power_of_two: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    op = "_fp8_quantize_pair"
    torch._check(format in (0, 1), lambda: f"{op}: format must be a code from 0 to 1; got {format}")
    check_floating(op, "a", a)
    check_matrix(op, "a", a, "(N, K)")
    torch._check(
        a.shape[0] % BLOCK == 0,
        lambda: f"{op}: a must have a multiple of {BLOCK} rows; got shape {shape_of(a)}",
    )
    check_like(op, "b", b, "a", a)
    check_same_shape(op, "b", b, tuple(a.shape), f"shape {shape_of(a)} like a")
    n, k = 2 * a.shape[0], a.shape[1]
    rows = _side(a, TILES, FORMATS[format], n, k)
    return *rows, *_side(a, TILES if columns else NONE, FORMATS[format], k, n)


@fake("_fp8_hidden_grads")
def _fp8_hidden_grads(
    dh: Tensor,
    saved: Tensor,
    factor: Tensor | None,
    activation: int,
    format: int,
    rows: bool,
    columns: bool,
    hidden: int,
    power_of_two: bool,
    need_sums: bool,
    sums_fp32: bool,
) -> tuple[Tensor, ...]:
    op = "_fp8_hidden_grads"
    check_activation(op, activation)
    torch._check(format in (0, 1), lambda: f"{op}: format must be a code from 0 to 1; got {format}")
    torch._check(
        hidden in (NONE, BLOCKS, TILES), lambda: f"{op}: hidden must be 0, 3 or 4; got {hidden}"
    )
    check_floating(op, "dh", dh)
    check_matrix(op, "dh", dh, "(M, K)")
    for name, tensor in (("saved", saved), ("factor", factor)):
        if tensor is not None:
            check_like(op, name, tensor, "dh", dh)
            check_same_shape(op, name, tensor, tuple(dh.shape), f"shape {shape_of(dh)} like dh")
    m, k = dh.shape
    parts = 1 if factor is None else 2
    dtype = FORMATS[format]
    q, scale = _side(dh, BLOCKS if rows else NONE, dtype, m, k)
    q_t, scale_t = _side(dh, BLOCKS if columns else NONE, dtype, parts * k, m)
    h_t, h_scale = _side(dh, hidden, FORMATS[0], k, m)
    sums = dh.new_empty(
        (parts * k if need_sums else 0,), dtype=torch.float32 if sums_fp32 else dh.dtype
    )
    q = q.new_empty((q.shape[0], parts * q.shape[1]))
    scale = scale.new_empty((parts * scale.shape[0], scale.shape[1]))
    return q, scale, q_t, scale_t, h_t, h_scale, sums


def _check_fp8(op: str, name: str, tensor: Tensor) -> None:
    torch._check(
        tensor.dtype in FORMATS,
        lambda: (
            f"{op}: {name} must be float8_e4m3fn or float8_e5m2; got {dtype_name(tensor.dtype)}"
        ),
    )


def _check_device(op: str, name: str, tensor: Tensor, like_name: str, like: Tensor) -> None:
    torch._check(
        tensor.device == like.device,
        lambda: f"{op}: {name} must be on {like.device} like {like_name}; got {tensor.device}",
    )


def _check_scale(op: str, name: str, scale: Tensor, of_name: str, of: Tensor) -> None:
    _check_device(op, name, scale, of_name, of)
    torch._check(
        scale.dtype is torch.float32,
        lambda: f"{op}: {name} must be float32; got {dtype_name(scale.dtype)}",
    )
    rows, blocks = of.shape[0], ceil_div(of.shape[1], BLOCK)
    tiles = ceil_div(rows, BLOCK)

    def text() -> str:
        return (
            f"{op}: {name} must have shape (1, 1), ({rows}, 1), ({rows}, {blocks}) or ({tiles}, "
            f"{blocks}) to match {of_name} {shape_of(of)}; got {shape_of(scale)}"
        )

    torch._check(scale.dim() == 2, text)
    shape = tuple(scale.shape)
    fits = any(
        shape[0] == first and shape[1] == second
        for first, second in ((1, 1), (rows, 1), (rows, blocks), (tiles, blocks))
    )
    torch._check(fits, text)


def _check_operands(op: str, a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor) -> None:
    _check_fp8(op, "a", a)
    _check_fp8(op, "b", b)
    _check_device(op, "b", b, "a", a)
    check_matrix(op, "a", a, "(M, K)")
    check_matrix(op, "b", b, "(N, K)")
    torch._check(
        b.shape[1] == a.shape[1],
        lambda: (
            f"{op}: b must have shape (N, {a.shape[1]}) to match a {shape_of(a)}; got {shape_of(b)}"
        ),
    )
    _check_scale(op, "scale_a", scale_a, "a", a)
    _check_scale(op, "scale_b", scale_b, "b", b)


@fake("_fp8_matmul")
def _fp8_matmul(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Tensor | None,
    activation: int,
    out_dtype: int,
) -> Tensor:
    op = "_fp8_matmul"
    check_activation(op, activation)
    torch._check(
        0 <= out_dtype < len(OUT_DTYPES),
        lambda: f"{op}: out_dtype must be a code from 0 to 2; got {out_dtype}",
    )
    dtype = OUT_DTYPES[out_dtype]
    _check_operands(op, a, b, scale_a, scale_b)
    if bias is not None:
        _check_device(op, "bias", bias, "a", a)
        torch._check(
            bias.dtype is dtype,
            lambda: (
                f"{op}: bias must have dtype {dtype_name(dtype)} like the output; got "
                f"{dtype_name(bias.dtype)}"
            ),
        )
        _check_bias(op, bias, b.shape[0], "b", b)
    return a.new_empty((a.shape[0], b.shape[0]), dtype=dtype)


@fake("_fp8_wgrad_")
def _fp8_wgrad(
    a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, main_grad: Tensor, accumulate: bool
) -> None:
    op = "_fp8_wgrad_"
    _check_operands(op, a, b, scale_a, scale_b)
    check_main_grad(op, main_grad, a.shape[0], b.shape[0], a)
