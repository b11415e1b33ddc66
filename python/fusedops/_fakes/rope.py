"""The fake of rope; checks as in csrc/common/checks/rope_check.h."""

from __future__ import annotations

import torch
from torch import Tensor

from .checks import check_floating, check_like, check_same_shape, fake, shape_of
from .rows import _check_grad_like


def _check_rows(q: Tensor, k: Tensor | None, heads_dim: int, rotary_dim: int) -> None:
    layout = "(B, H, T, D)" if heads_dim == 1 else "(B, T, H, D)"
    torch._check(
        q.dim() == 4,
        lambda: f"rope: q must be 4-dimensional, {layout}; got shape {shape_of(q)}",
    )
    d = q.shape[3]
    torch._check(
        rotary_dim >= 2 and rotary_dim % 2 == 0 and rotary_dim <= d,
        lambda: f"rope: rotary_dim must be even and from 2 to D = {d}; got {rotary_dim}",
    )
    if k is None:
        return
    check_like("rope", "k", k, "q", q)
    text = f"shape {shape_of(q)} like q, but for the number of heads"
    heads = k.shape[heads_dim] if k.dim() == 4 else 0
    shape = tuple(heads if i == heads_dim else size for i, size in enumerate(q.shape))
    check_same_shape("rope", "k", k, shape, text)


def _check_table(name: str, table: Tensor, q: Tensor, time: int, rotary: int) -> None:
    _check_grad_like("rope", name, table, "q", q)
    fits = table.dim() == 2 or (table.dim() == 3 and table.shape[0] in (1, q.shape[0]))
    fits = fits and table.shape[-2] == time and table.shape[-1] in (rotary, rotary // 2)
    torch._check(
        fits,
        lambda: (
            f"rope: {name} must have shape ({time}, W) or ({q.shape[0]}, {time}, W) with "
            f"W = {rotary} or {rotary // 2}; got {shape_of(table)}"
        ),
    )


def _result(x: Tensor, heads_dim: int) -> Tensor:
    """Dense; where x's heads lie inside of T, so do the result's."""
    time_dim = 3 - heads_dim
    inner = heads_dim if x.stride(heads_dim) < x.stride(time_dim) else time_dim
    strides = [1] * 4
    strides[inner] = max(x.shape[3], 1)
    strides[3 - inner] = strides[inner] * max(x.shape[inner], 1)
    strides[0] = strides[3 - inner] * max(x.shape[3 - inner], 1)
    return x.new_empty_strided(x.shape, strides)


@fake("rope")
def _rope(
    q: Tensor,
    k: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    heads_dim: int,
    rotary_dim: int,
    interleaved: bool,
    inverse: bool,
) -> tuple[Tensor, Tensor]:
    check_floating("rope", "q", q)
    torch._check(heads_dim in (1, 2), lambda: f"rope: heads_dim must be 1 or 2; got {heads_dim}")
    _check_rows(q, k, heads_dim, rotary_dim)
    time = q.shape[3 - heads_dim]
    _check_table("cos", cos, q, time, rotary_dim)
    _check_table("sin", sin, q, time, rotary_dim)
    check_like("rope", "sin", sin, "cos", cos)
    shape = tuple(cos.shape)
    check_same_shape("rope", "sin", sin, shape, f"shape {shape_of(cos)} like cos")
    return _result(q, heads_dim), q.new_empty((0,)) if k is None else _result(k, heads_dim)
