"""nn.Embedding whose gradient is one pass of ours."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch import nn as torch_nn
from torch.nn import Parameter

from .._autograd.embedding import embedding_eager
from .._autograd.shared import sees_torch_functions_only
from .._core.dtensor import own_class, set_own_class
from .fused_class import Fused, fused_class

_is_dynamo_compiling = torch.compiler.is_dynamo_compiling

_forward = torch_nn.Embedding.forward
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_INDICES = (torch.int64, torch.int32)


class FusedEmbedding(Fused):
    """Mixed into the class of an nn.Embedding."""

    _base: Any

    def forward(self, input: Any) -> Any:
        """The rows at the indices."""
        if _is_dynamo_compiling() or self._base.forward is not _forward or not _takes(self, input):
            return self._base.forward(self, input)
        layer: Any = self
        padding = layer.padding_idx
        return embedding_eager(layer.weight, input, -1 if padding is None else padding)


def _takes(layer: Any, indices: Any) -> bool:
    """Whether our op gives the gradient."""
    weight = layer._parameters.get("weight")
    if type(weight) is not Parameter or type(indices) is not Tensor:
        return False
    if not (torch.is_grad_enabled() and weight.requires_grad) or weight.dtype not in _DTYPES:
        return False
    if layer.sparse or layer.scale_grad_by_freq or layer.max_norm is not None:
        return False
    if weight.dim() != 2 or indices.dtype not in _INDICES or indices.device != weight.device:
        return False
    return not sees_torch_functions_only(weight, indices)


def fuse_embeddings(model: torch_nn.Module) -> list[str]:
    """Let the embeddings of a model form their gradients by our op; their paths."""
    found = []
    for name, module in model.named_modules():
        kind = own_class(module)
        if not isinstance(module, torch_nn.Embedding) or isinstance(module, Fused):
            continue
        # NOTE: a subclass that replaces forward may compute anything.
        ordinary = kind.forward is _forward and "forward" not in vars(module)
        if ordinary and not hasattr(module, "parametrizations"):
            set_own_class(module, fused_class(FusedEmbedding, kind))
            found.append(name)
    return found
