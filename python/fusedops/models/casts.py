"""What weights become in inference, made before the layers ask for it.

A PointNet++ waits for its first centres before its first layer: the casts of all weights under
autocast, most of them in one launch, and batch norms folded into the layers behind the encoder take
that time instead of the layers'.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from .._autograd.autocast import casts_ahead
from .._autograd.shared import sees_torch_functions_only
from ..nn import FeaturePropagation, GlobalSetAbstraction, SharedMLP
from ..points._edge_checks import cast_weights
from ..points._edge_input import EdgeLayer, folds_ahead
from ..points.norms import BatchNorm
from .head import Head

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager


def weights_cast_ahead(model: nn.Module, xyz: Tensor) -> AbstractContextManager[None]:
    """A context in which the model's linear layers have their weights in autocast's dtype.

    NOTE: in training a cast has a gradient, which should leave its layer as soon as it is there.
    """
    device = xyz.device.type
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or device == "meta":
        return contextlib.nullcontext()
    if not torch.is_autocast_enabled(device) or sees_torch_functions_only(xyz):
        return contextlib.nullcontext()
    weights = [
        tensor
        for module in model.modules()
        if type(module) is nn.Linear
        for tensor in module._parameters.values()
        if type(tensor) is nn.Parameter and tensor.dtype is torch.float32
        if tensor.device == xyz.device and not tensor.is_inference()  # those have no version
    ]
    return _ahead(model, weights, torch.get_autocast_dtype(device))


@contextlib.contextmanager
def _ahead(model: nn.Module, weights: list[Tensor], dtype: torch.dtype) -> Iterator[None]:
    made = cast_weights(weights, dtype) if weights else []
    on_gpu = bool(weights) and weights[0].is_cuda
    layers = foldable(model, dict(zip(map(id, weights), made, strict=True))) if on_gpu else []
    with casts_ahead(weights, made), folds_ahead(layers):
        yield


def foldable(model: nn.Module, casts: dict[int, Tensor]) -> list[EdgeLayer]:
    """The layers whose norms kernels over rows fold, of weights that have casts, by their id."""
    found: list[EdgeLayer] = []
    for module in model.modules():
        mlps: list[tuple[nn.Module, int]] = []  # and the first of its layers that is folded
        if type(module) is Head:
            mlps = [(layer, 0) for layer in module.layers]
        elif type(module) in (GlobalSetAbstraction, FeaturePropagation):
            mlps = [(module.mlp, 1)]
        for mlp, first in mlps:
            if type(mlp) is not SharedMLP or not mlp.readable:
                continue
            for weight, bias, norm in [*zip(*mlp.arguments(), strict=True)][first:]:
                if isinstance(norm, BatchNorm) and not norm.training and id(weight) in casts:
                    found.append(EdgeLayer(casts[id(weight)], bias, norm))
    return found
