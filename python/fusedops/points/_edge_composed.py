"""Layers over edges by torch's functions and our ops: any device, dtype, width and derivative.

A slot of a group without a neighbour repeats the group's first one, whose copy changes no maximum
and takes no gradient from another; only sums and statistics must leave it out. The last layer's
norm and activation come after the maximum where they keep the order of values, so that its widest
tensor is written once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .._autograd.compose import activate
from .._autograd.shared import needs_grad, sees_torch_functions_only
from .._core.activation import CODES, LEAKY_RELU_SLOPE
from ..ops.linear import linear
from ..ops.norm import layer_norm
from ..ops.reduce import amax
from ._autograd import group
from ._edge_batch_norm import Slots, batch_norm, chosen, running_affine, running_norm, wide_dtype
from .norms import BatchNorm, LayerNorm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ._edge_input import EdgeInput, EdgeLayer

_MONOTONE = frozenset(
    ("none", "relu", "relu2", "leaky_relu", "sigmoid", "tanh", "softplus", "elu", "relu6")
)


class Edges(NamedTuple):
    """Who is whose neighbour, with every slot filled that can be."""

    idx: Tensor  # (B, M, K)
    slots: Slots  # as they were given
    count: Tensor  # (B, M, 1) int64


class Activation(NamedTuple):
    """An activation with its parameter."""

    name: str
    slope: float

    def __call__(self, z: Tensor) -> Tensor:
        if self.name == "leaky_relu":
            return F.leaky_relu(z, self.slope)
        return activate(z, CODES[self.name])

    @property
    def fuses(self) -> bool:
        """Whether `linear` has it in its epilogue."""
        return self.name != "leaky_relu" or self.slope == LEAKY_RELU_SLOPE

    @property
    def is_monotone(self) -> bool:
        return self.name in _MONOTONE and (self.name != "leaky_relu" or self.slope >= 0)


def find_edges(idx: Tensor, num_points: int) -> Edges:
    """The edges of idx (B, M, K)."""
    if idx.shape[2] == 0:
        idx = F.pad(idx, (0, 1), value=-1)
    valid = (idx >= 0) & (idx < num_points)
    first = idx.gather(2, valid.int().argmax(2, keepdim=True))
    count = valid.sum(2, keepdim=True)
    slots = Slots(valid.unsqueeze(3), idx.shape[2] - count)
    return Edges(torch.where(valid, idx, first), slots, count)


def _first_product(given: EdgeInput, edges: Edges, bias: Tensor | None) -> Tensor:
    """y_1 (B, M, K, C1) with the bias: summed in float32 (float64), rounded once."""
    wide = wide_dtype(given.dtype)
    bias = None if bias is None else bias.to(wide)
    y = None
    if given.rows is not None:
        assert isinstance(given.rows, Tensor)
        rows = given.rows.to(wide)
        y = group(rows if bias is None else rows + bias, edges.idx)
    if given.group_rows is not None:
        # NOTE: a NaN of a group without neighbours must not reach the sums over all slots.
        per_group = torch.where(edges.count > 0, given.group_rows.to(wide), 0).unsqueeze(2)
        y = per_group if y is None else y + per_group
    if given.offset_weight is not None:
        assert given.xyz is not None
        offsets = group(None, edges.idx, given.xyz, given.centers)
        weight = given.offset_weight.to(wide)
        if y is None:
            y = linear(offsets, weight, bias)
        else:
            flat = torch.addmm(y.flatten(0, 2), offsets.flatten(0, 2), weight.t())
            y = flat.reshape(y.shape)
    assert y is not None
    return y.to(given.dtype)


def _folds(layer: EdgeLayer, y: Tensor, dtype: torch.dtype, pool: str) -> bool:
    """Whether running statistics go into the weight, which is then rounded again.

    NOTE: that error is the same in every edge. In halves it stays within that of a rounded y under
    a maximum; it does not in a mean, nor in gradients.
    """
    if not isinstance(layer.norm, BatchNorm) or layer.norm.training:
        return False
    parameters = (layer.weight, layer.bias, layer.norm.weight, layer.norm.bias)
    return dtype.itemsize > 2 or (pool == "max" and not needs_grad(y, *parameters))


def folded(layer: EdgeLayer) -> EdgeLayer:
    """The layer without its norm."""
    assert layer.weight is not None
    assert isinstance(layer.norm, BatchNorm)
    dtype = layer.weight.dtype
    scale, shift = running_affine(layer.norm, layer.bias, wide_dtype(dtype))
    weight = layer.weight.to(scale.dtype) * scale.unsqueeze(1)
    return layer._replace(weight=weight.to(dtype), bias=shift.to(dtype), norm=None)


def _layer_norm(y: Tensor, norm: LayerNorm) -> Tensor:
    wide = wide_dtype(y.dtype)
    weight, bias = (None if t is None else t.to(wide) for t in (norm.weight, norm.bias))
    return layer_norm(y, y.shape[-1], weight, bias, norm.eps)


def _is_training(norm: object) -> bool:
    return isinstance(norm, BatchNorm) and norm.training


def _product(x: Tensor, layer: EdgeLayer, act: Activation | None) -> Tensor:
    """x W^T + b, activated where act is given; without the bias for batch norm in training."""
    assert layer.weight is not None
    bias = None if layer.bias is None or _is_training(layer.norm) else layer.bias.to(x.dtype)
    return linear(x, layer.weight, bias, None if act is None else act.name)


def _normalised(y: Tensor, edges: Edges, layer: EdgeLayer, dtype: torch.dtype) -> Tensor:
    norm = layer.norm
    if isinstance(norm, LayerNorm):
        return _layer_norm(y, norm).to(dtype)
    if isinstance(norm, BatchNorm) and norm.training:
        return batch_norm(y, edges.slots, norm, layer.bias, dtype)
    if isinstance(norm, BatchNorm):
        return running_norm(y, norm).to(dtype)
    return y.to(dtype)


def _maximum(z: Tensor) -> Tensor:
    """z (B, M, K, C) over k; the gradient goes to the lowest k of equal ones."""
    if needs_grad(z) or sees_torch_functions_only(z):
        return z.max(2).values
    return amax(z, 2)


def _signed(layer: EdgeLayer) -> tuple[EdgeLayer, Tensor | None]:
    """The layer with y times the sign of its norm's weight, and that sign (C,); None: it is y.

    NOTE: the minimum that negative weights ask for would be another pass over the widest tensor.
    """
    norm = layer.norm
    if layer.weight is None or not isinstance(norm, BatchNorm) or norm.weight is None:
        return layer, None
    sign = torch.where(norm.weight.detach() < 0, -1, 1).to(layer.weight.dtype)
    bias = None if layer.bias is None else layer.bias * sign
    return layer._replace(weight=layer.weight * sign.unsqueeze(1), bias=bias), sign


def _winners(y: Tensor, weight: Tensor | None, sign: Tensor | None) -> Tensor:
    """(B, M, 1, C): where y is largest over k; without a sign, y times that of the weight."""
    highest = y.max(2, keepdim=True).indices
    if weight is None:
        return highest
    if sign is not None:
        return torch.where(weight.abs() > 0, highest, 0)
    lowest = y.min(2, keepdim=True).indices
    return torch.where(weight > 0, highest, torch.where(weight < 0, lowest, 0))


def _pooled_first(
    y: Tensor, edges: Edges, layer: EdgeLayer, act: Activation, sign: Tensor | None
) -> Tensor:
    """The maximum over k of act(norm(y)), by the extremum of y itself: (B, M, C) float32 (float64).

    The lowest k wins of equal ones, and a NaN of all. Weights of 0 make all equal. With a sign, y
    has it already.
    """
    wide = wide_dtype(y.dtype)
    norm = layer.norm
    if not isinstance(norm, BatchNorm):
        z = _layer_norm(y, norm) if isinstance(norm, LayerNorm) else y
        return act(_maximum(z).to(wide))
    winners = _winners(y.detach(), norm.weight, sign)
    if norm.training:
        return act(batch_norm(y, edges.slots, norm, layer.bias, wide, winners, sign))
    best = chosen(y, winners).to(wide)
    return act(running_norm(best if sign is None else best * sign, norm))


def _pool(a: Tensor, edges: Edges, pool: str) -> Tensor:
    """a (B, M, K, C) over k; sums in float32 (float64)."""
    if pool == "max":
        return _maximum(a)
    total = torch.where(edges.slots.valid, a, 0).sum(2, dtype=wide_dtype(a.dtype))
    return total if pool == "sum" else total / edges.count.clamp_min(1)


def layers_from(
    y: Tensor,
    edges: Edges,
    layers: Sequence[EdgeLayer],
    act: Activation,
    last_activation: bool,
    pool: str,
    dtype: torch.dtype,
) -> Tensor:
    """From y_1 (B, M, K, C1) to (B, M, C_L), in dtype."""
    first, *others = layers
    layers = [first, *(folded(x) if _folds(x, y, dtype, pool) else x for x in others)]
    last_act = act if last_activation else Activation("none", 0.0)
    pools_first = pool == "max" and last_act.is_monotone and edges.idx.shape[2] > 1
    acts = [act] * (len(layers) - 1) + [last_act]
    is_activated = False  # whether y went through its activation in the product's epilogue
    sign = None
    for i, following in enumerate(layers[1:], 1):
        a = _normalised(y, edges, layers[i - 1], dtype)
        a = a if is_activated else acts[i - 1](a)
        late = pools_first and following is layers[-1]
        if late:
            following, sign = _signed(following)
        is_activated = following.norm is None and acts[i].fuses and not late
        y = _product(a, following, acts[i] if is_activated else None)
    if pools_first:
        pooled = _pooled_first(y, edges, layers[-1], last_act, sign)
    else:
        a = _normalised(y, edges, layers[-1], dtype)
        pooled = _pool(a if is_activated else last_act(a), edges, pool)
    return torch.where(edges.count > 0, pooled, 0).to(dtype)


def edge_mlp(
    given: EdgeInput,
    layers: Sequence[EdgeLayer],
    activation: str,
    negative_slope: float,
    last_activation: bool,
    pool: str,
) -> Tensor:
    """`_edge_mlp.edge_mlp`."""
    assert given.rows is None or isinstance(given.rows, Tensor)
    like = given.rows if given.rows is not None else given.xyz
    assert like is not None
    edges = find_edges(given.idx, like.shape[1])
    bias = None if _is_training(layers[0].norm) else layers[0].bias
    y = _first_product(given, edges, bias)
    act = Activation(activation, negative_slope)
    return layers_from(y, edges, layers, act, last_activation, pool, given.dtype)


def point_mlp(
    y: Tensor,
    valid: Tensor | None,
    layers: Sequence[EdgeLayer],
    activation: str,
    negative_slope: float,
    last_activation: bool,
    dtype: torch.dtype,
) -> Tensor:
    """`_edge_mlp.point_mlp`: groups of one edge."""
    bias = layers[0].bias
    if bias is not None and not _is_training(layers[0].norm):
        y = y + bias.to(y.dtype)
    if valid is None:
        count = torch.ones_like(y[..., :1], dtype=torch.int64)
        slots = Slots(count.unsqueeze(3) > 0, None)
    else:
        y = torch.where(valid.unsqueeze(2), y, 0)  # whatever is there reaches the sums
        count = valid.unsqueeze(2).long()
        slots = Slots(valid.reshape(*valid.shape, 1, 1), 1 - count)
    edges = Edges(torch.zeros_like(count), slots, count)
    act = Activation(activation, negative_slope)
    y = y.to(dtype).unsqueeze(2)
    return layers_from(y, edges, layers, act, last_activation, "max", dtype)
