"""The gradient of an embedding as one op that gives the same bits in each run."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import _C  # noqa: F401  (registers torch.ops.fusedops)
from .shared import _eager_apply, is_batched

_embedding = torch.ops.aten.embedding.default
_embedding_backward = torch.ops.fusedops.embedding_backward.default
_torchs_backward = torch.ops.aten.embedding_dense_backward.default


class EmbeddingFunction(torch.autograd.Function):
    """(weight, indices, padding_idx) -> the rows of weight (V, D) at the indices, of any shape."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, indices: Tensor, padding_idx: int) -> Tensor:
        ctx.save_for_backward(indices)
        ctx.options = weight.shape[0], padding_idx
        rows: Tensor = _embedding(weight, indices, padding_idx)
        return rows

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        (indices,) = ctx.saved_tensors
        rows, padding_idx = ctx.options
        # NOTE: torch's can be differentiated, and knows batches of gradients.
        if torch.is_grad_enabled() or type(dy) is not Tensor or is_batched(dy):
            return _torchs_backward(dy, indices, rows, padding_idx, False), None, None
        return _embedding_backward(dy, indices, rows, padding_idx), None, None


embedding_eager = _eager_apply(EmbeddingFunction)
