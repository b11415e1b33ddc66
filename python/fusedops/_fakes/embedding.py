"""The fake of embedding_backward; checks as in csrc/common/checks/embedding_check.h."""

from __future__ import annotations

import torch
from torch import Tensor

from .._core.checks import dtype_name
from .checks import check_floating, check_min_dim, check_same_shape, fake, shape_of

_MAX_ENTRIES = 2**31 - 1
_MAX_ROWS = 2**32 - 2


@fake("embedding_backward")
def _embedding_backward(grad: Tensor, indices: Tensor, num_rows: int, padding_idx: int) -> Tensor:
    op = "embedding_backward"
    check_floating(op, "grad", grad)
    check_min_dim(op, "grad", grad, 1)
    torch._check(
        indices.device == grad.device,
        lambda: f"{op}: indices must be on {grad.device} like grad; got {indices.device}",
    )
    torch._check(
        indices.dtype in (torch.int32, torch.int64),
        lambda: f"{op}: indices must have dtype int32 or int64; got {dtype_name(indices.dtype)}",
    )
    text = f"the shape of grad {shape_of(grad)} without the last dimension"
    check_same_shape(op, "indices", indices, tuple(grad.shape[:-1]), text)
    torch._check(
        indices.numel() <= _MAX_ENTRIES,
        lambda: f"{op}: indices must have at most {_MAX_ENTRIES} entries; got {indices.numel()}",
    )
    for good in (num_rows >= 0, num_rows <= _MAX_ROWS):
        torch._check(good, lambda: f"{op}: num_rows must be from 0 to {_MAX_ROWS}; got {num_rows}")
    for good in (padding_idx >= -1, padding_idx < num_rows):
        torch._check(
            good, lambda: f"{op}: padding_idx must be -1 or a row of {num_rows}; got {padding_idx}"
        )
    return grad.new_empty((num_rows, grad.shape[-1]))
