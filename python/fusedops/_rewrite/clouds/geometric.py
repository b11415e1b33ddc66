"""torch_geometric's PointNetConv, EdgeConv, DynamicEdgeConv and MLP.

Nothing is imported: a module is known by the Python module and name of its class, and by what its
message is made of. Its own forward runs for all else: other aggregations, pairs, hooks on
messages, explanations, sparse adjacency, layers that compute more, and under torch.compile.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..._autograd.compose import activate
from ..._core.activation import CODES
from ...nn.linear import untouched
from ...ops.linear import linear
from ...points.abstraction import edge_conv, set_abstraction
from ...points.neighbours import knn
from ..fused_class import Fused
from .layers import Layers, comes_from, read_layers

if TYPE_CHECKING:
    from collections.abc import Callable

_is_dynamo_compiling = torch.compiler.is_dynamo_compiling
_POOLS = {"MaxAggregation": "max", "MeanAggregation": "mean", "SumAggregation": "sum"}
_STEPS = ("propagate", "message", "aggregate", "message_and_aggregate", "edge_update")
# How much larger than the edges a table of neighbours may be.
_MOST_PADDING = 4
_MOST_NEIGHBOURS = 1024


def pool_of(conv: Any) -> str | None:
    """How a convolution pools; None where it does more than message and pool."""
    if any(getattr(conv, f"_{step}_forward{kind}_hooks", None)
           for step in _STEPS for kind in ("_pre", "")):  # fmt: skip
        return None
    if any(step in vars(conv) for step in (*_STEPS, "update")):
        return None
    if conv.flow != "source_to_target" or conv.node_dim not in (-2, 0):
        return None
    if conv._explain or conv.decomposed_layers > 1:
        return None
    module = conv.aggr_module
    if type(module).__module__ != "torch_geometric.nn.aggr.basic" or not untouched(module):
        return None
    return _POOLS.get(type(module).__name__)


def neighbour_table(edge_index: Any, sources: int, targets: int) -> Tensor | None:
    """Edges (2, E) from source to target as sources by target (targets, K), -1 behind the last.

    Edges keep their order within a target. K is the largest number of them and is read from the
    device. None where the table would be mostly padding, or an index is no point.
    """
    source, target = edge_index[0].detach(), edge_index[1].detach()
    edges = source.numel()
    if edges == 0:
        return source.new_full((targets, 1), -1) if targets else None
    low, high = edge_index.aminmax(dim=1)
    bounds = torch.stack([low.amin(), high[0], high[1]]).tolist()
    if bounds[0] < 0 or bounds[1] >= sources or bounds[2] >= targets:
        return None
    counts = torch.zeros(targets, dtype=torch.int64, device=source.device)
    counts.scatter_add_(0, target, torch.ones_like(target))
    width = int(counts.max())
    if width > _MOST_NEIGHBOURS or targets * width > _MOST_PADDING * edges + targets:
        return None
    order = target.argsort(stable=True)
    target = target[order]
    place = torch.arange(edges, device=source.device) - (counts.cumsum(0) - counts)[target]
    table = source.new_full((targets, width), -1)
    table[target, place] = source[order]
    return table


def is_edges(edge_index: Any) -> bool:
    """Whether edges are a tensor (2, E) and no sparse matrix or subclass."""
    if type(edge_index) is not Tensor or edge_index.dim() != 2:
        return False
    return edge_index.shape[0] == 2 and edge_index.dtype is torch.int64


def _first_last(weights: list[Tensor], first: int) -> list[Tensor]:
    """The first layer's columns [a, b] as [b, a], where a has `first` of them."""
    weight = weights[0]
    return [torch.cat([weight[:, first:], weight[:, :first]], dim=1), *weights[1:]]


def _edges(layers: Layers, x: Tensor, idx: Tensor, pool: str) -> Tensor:
    biases, norms, options = layers.arguments()
    # NOTE: its columns are [f_i, f_j - f_i], ours [f_j - f_i, f_i].
    weights = _first_last(layers.weights(), x.shape[-1])
    return edge_conv(x, idx, weights, biases, norms, pool=pool, **options)


class FusedEdgeConv(Fused):
    """Mixed into torch_geometric's EdgeConv."""

    _base: Any
    nn: Any

    def forward(self, x: Any, edge_index: Any) -> Any:
        """What the convolution gives."""
        y = None if _is_dynamo_compiling() else self._pooled(x, edge_index)
        return self._base.forward(self, x, edge_index) if y is None else y

    def _pooled(self, x: Any, edge_index: Any) -> Tensor | None:
        """The pooled messages; None where they are the class's own affair."""
        layers = read_layers(self.nn)
        pool = None if layers is None else pool_of(self)
        if layers is None or pool is None or type(x) is not Tensor or x.dim() != 2:
            return None
        if not layers.takes(x) or not is_edges(edge_index) or not edge_index.shape[1]:
            return None
        idx = neighbour_table(edge_index, len(x), len(x))
        return None if idx is None else _edges(layers, x, idx, pool)


class FusedDynamicEdgeConv(Fused):
    """Mixed into torch_geometric's DynamicEdgeConv."""

    _base: Any
    nn: Any
    k: int

    def forward(self, x: Any, batch: Any = None) -> Any:
        """What the convolution gives."""
        layers = None if _is_dynamo_compiling() else read_layers(self.nn)
        pool = None if layers is None else pool_of(self)
        fits = type(x) is Tensor and x.dim() == 2 and len(x) > 0
        fits = fits and (batch is None or (type(batch) is Tensor and batch.shape == x.shape[:1]))
        if layers is None or pool is None or not fits or not layers.takes(x):
            return self._base.forward(self, x, batch)
        if batch is None:
            offsets = torch.tensor([0, len(x)], device=x.device)
        else:
            clouds = torch.arange(int(batch[-1]) + 2, device=x.device)
            offsets = torch.searchsorted(batch, clouds)
        idx = knn(x.detach(), None, self.k, offsets=offsets, return_dist=False).idx
        return _edges(layers, x, idx, pool)


class FusedPointNetConv(Fused):
    """Mixed into torch_geometric's PointNetConv."""

    _base: Any
    local_nn: Any
    global_nn: Any
    add_self_loops: bool

    def forward(self, x: Any, pos: Any, edge_index: Any) -> Any:
        """What the convolution gives."""
        y = None if _is_dynamo_compiling() else self._pooled(x, pos, edge_index)
        if y is None:
            return self._base.forward(self, x, pos, edge_index)
        return y if self.global_nn is None else self.global_nn(y)

    def _pooled(self, x: Any, pos: Any, edge_index: Any) -> Tensor | None:
        """The pooled messages; None where they are the class's own affair."""
        layers = None if self.local_nn is None else read_layers(self.local_nn)
        pool = None if layers is None else pool_of(self)
        own = x[0] if isinstance(x, tuple) else x
        points, centers = pos if isinstance(pos, tuple) else (pos, pos)
        if layers is None or pool is None or not is_edges(edge_index):
            return None
        if not layers.takes(points, centers, own) or points.dim() != 2 or centers.dim() != 2:
            return None
        if self.add_self_loops:
            # NOTE: between two sets its loops join point i to centre i, whatever these are.
            count = torch.arange(min(len(points), len(centers)), device=points.device)
            edge_index = edge_index[:, edge_index[0] != edge_index[1]]
            edge_index = torch.cat([edge_index, count.expand(2, -1)], dim=1)
        idx = neighbour_table(edge_index, len(points), len(centers))
        if idx is None or not edge_index.shape[1]:
            return None
        biases, norms, options = layers.arguments()
        weights = layers.weights()
        if own is not None:  # its columns are [features, offset]
            weights = _first_last(weights, own.shape[-1])
        return set_abstraction(
            points, own, centers, idx, weights, biases, norms, pool=pool, **options
        )


class FusedGeometricMLP(Fused):
    """Mixed into torch_geometric's MLP: layers without norms run with their activations."""

    _base: Any

    def forward(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        """What the MLP gives."""
        layers = None if _is_dynamo_compiling() or args or kwargs else read_layers(self)
        if layers is None or not layers.takes(x):
            return self._base.forward(self, x, *args, **kwargs)
        own: Any = self
        last = len(layers.linears) - 1
        for i, layer in enumerate(layers.linears):
            name = layers.activation if i < last or layers.last_activation else "none"
            slope = layers.negative_slope
            if layers.norms[i] is None and (name != "leaky_relu" or slope == 0.01):
                x = linear(x, layer.weight, layer.bias, name)
                continue
            x = layer(x)
            x = x if layers.norms[i] is None else own.norms[i](x)
            x = F.leaky_relu(x, slope) if name == "leaky_relu" else activate(x, CODES[name])
        return x


def _joins(message: Callable[..., Any], nn: str, inputs: list[Any], want: list[Tensor]) -> bool:
    """Whether a message's MLP is given these columns."""
    probe = SimpleNamespace(**{nn: lambda rows: rows})
    return bool(torch.equal(message(probe, *inputs), torch.cat(want, dim=-1)))


def geometric_mixin(module: Any) -> tuple[type, str] | None:
    """What to mix into the class of a module of torch_geometric, and the op that runs then."""
    place = "torch_geometric.nn.conv"
    a, b, p, q = torch.arange(20.0).view(4, 5, 1)
    base: Any = type(module)
    if comes_from(module, "MLP", "torch_geometric.nn.models.mlp"):
        return FusedGeometricMLP, "linear"
    if comes_from(module, "PointNetConv", f"{place}.point_conv"):
        same = _joins(base.message, "local_nn", [a, p, q], [a, q - p])
        return (FusedPointNetConv, "set_abstraction") if same else None
    for name, mixin in (("EdgeConv", FusedEdgeConv), ("DynamicEdgeConv", FusedDynamicEdgeConv)):
        if comes_from(module, name, f"{place}.edge_conv"):
            same = _joins(base.message, "nn", [a, b], [a, b - a])
            return (mixin, "edge_conv") if same else None
    return None
