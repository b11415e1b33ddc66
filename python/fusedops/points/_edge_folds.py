"""Batch norms with running statistics in the layers before them, for kernels over rows."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

import torch

from ._edge_input import EdgeLayer
from .norms import BatchNorm

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

_ops = torch.ops.fusedops


class _Ahead(threading.local):
    # By the id of a weight: what stands for its layer, and the layer that is folded.
    folds: dict[int, tuple[tuple[object, ...], EdgeLayer]] | None = None


_ahead = _Ahead()


@contextlib.contextmanager
def folds_ahead(layers: Sequence[EdgeLayer]) -> Iterator[None]:
    """Inside, on this thread, `folded` gives what is folded here, before a model's layers run."""
    made = {id(layer.weight): (_identity(layer), folded(layer)) for layer in layers}
    before, _ahead.folds = _ahead.folds, made
    try:
        yield
    finally:
        _ahead.folds = before


def folded(layer: EdgeLayer) -> EdgeLayer:
    """The layer with its running statistics in its weight and bias."""
    if _ahead.folds is not None:
        kept = _ahead.folds.get(id(layer.weight))
        if kept is not None and all(map(_is_same, kept[0], _identity(layer))):
            return kept[1]
    norm = layer.norm
    assert isinstance(norm, BatchNorm)
    vectors = (
        None if t is None else t.detach().float()
        for t in (norm.weight, norm.bias, layer.bias, norm.running_mean, norm.running_var)
    )
    weight, bias = _ops.edge_rows_fold(layer.weight, *vectors, norm.eps)
    return EdgeLayer(weight, bias, None)


def _identity(layer: EdgeLayer) -> tuple[object, ...]:
    """The layer's tensors, how often they were written, and the norm's epsilon."""
    norm = layer.norm
    assert isinstance(norm, BatchNorm)
    tensors = (layer.weight, layer.bias, *norm[:4])
    return (*tensors, *map(_version, tensors), norm.eps)


def _version(tensor: Tensor | None) -> int:
    return 0 if tensor is None or tensor.is_inference() else tensor._version


def _is_same(a: object, b: object) -> bool:
    return a is b if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor) else a == b
