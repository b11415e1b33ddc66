"""What stands in a graph for rows in the order of a permutation: a gather, backward as well."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class PermutedRows(torch.autograd.Function):
    """x[order // copies] for a permutation of as many rows as x has, times `copies`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor, inverse: Tensor | None, copies: int) -> Tensor:
        ctx.save_for_backward(order, inverse)
        ctx.copies = copies
        return x[order // copies if copies > 1 else order]

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor, None, None, None]:
        order, inverse = ctx.saved_tensors
        if inverse is None:
            numbers = torch.arange(len(order), dtype=order.dtype, device=order.device)
            inverse = torch.zeros_like(order).scatter(0, order, numbers)
        dx = dout[inverse]
        if ctx.copies > 1:
            dx = dx.unflatten(0, (-1, ctx.copies)).sum(1)
        return dx, None, None, None


def permuted_rows(x: Tensor, order: Tensor, inverse: Tensor | None, copies: int) -> Tensor:
    """x[order // copies]; inverse: that of the permutation `order`, where it is known."""
    out: Tensor = PermutedRows.apply(x, order, inverse, copies)
    return out
