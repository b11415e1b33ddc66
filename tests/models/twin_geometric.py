"""torch_geometric's point convolutions in plain torch: its attributes, and its classes' places."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn


def placed(path):
    """A class that says it comes from a module of torch_geometric."""

    def place(kind):
        kind.__module__ = f"torch_geometric.nn.{path}"
        return kind

    return place


@placed("dense.linear")
class Linear(nn.Module):
    def __init__(self, a, b, bias=True):
        super().__init__()
        made = nn.Linear(a, b, bias=bias)
        self.weight, self.bias = made.weight, made.bias

    def forward(self, x):
        return F.linear(x, self.weight, self.bias)


@placed("norm.batch_norm")
class BatchNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.module, self.allow_single_element = nn.BatchNorm1d(width), False

    def forward(self, x):
        return self.module(x)


@placed("models.mlp")
class MLP(nn.Module):
    def __init__(
        self, widths, norm="batch_norm", plain_last=True, act="relu", bias=True, dropout=0.0
    ):
        super().__init__()
        self.act = nn.ReLU() if act == "relu" else act
        self.act_first, self.plain_last = False, plain_last
        self.lins = nn.ModuleList(Linear(a, b, bias) for a, b in pairwise(widths))
        normed = widths[1:-1] if plain_last else widths[1:]
        self.norms = nn.ModuleList(BatchNorm(b) if norm else nn.Identity() for b in normed)
        self.dropout = [dropout] * (len(widths) - 1)
        if plain_last:
            self.dropout[-1] = 0.0

    def forward(self, x):
        for linear, norm, p in zip(self.lins, self.norms, self.dropout, strict=False):
            x = F.dropout(self.act(norm(linear(x))), p, self.training)
        return self.lins[-1](x) if self.plain_last else x


class Aggregation(nn.Module):
    def forward(self, rows, target, count):
        index = target.unsqueeze(1).expand_as(rows)
        zeros = rows.new_zeros(count, rows.shape[1])
        return zeros.scatter_reduce(0, index, rows, self.reduce, include_self=False)


AGGREGATIONS = {}
for word, reduce in (("max", "amax"), ("mean", "mean"), ("sum", "sum")):
    name = f"{word.title()}Aggregation"
    members = {"reduce": reduce, "__module__": "torch_geometric.nn.aggr.basic"}
    AGGREGATIONS[word] = type(name, (Aggregation,), members)


class MessagePassing(nn.Module):
    def __init__(self, aggr):
        super().__init__()
        self.aggr_module = AGGREGATIONS[aggr]()
        self.flow, self.node_dim = "source_to_target", -2
        self._explain, self.decomposed_layers = None, 1
        self._message_forward_hooks = {}

    def register_message_forward_hook(self, hook):
        self._message_forward_hooks[len(self._message_forward_hooks)] = hook

    def pool(self, rows, target, count):
        for hook in self._message_forward_hooks.values():
            hook(self, rows, target)
        return self.aggr_module(rows, target, count)


@placed("conv.edge_conv")
class EdgeConv(MessagePassing):
    def __init__(self, net, aggr="max"):
        super().__init__(aggr)
        self.nn = net

    def forward(self, x, edge_index):
        x = x if isinstance(x, tuple) else (x, x)
        source, target = edge_index
        rows = self.message(x[1].index_select(0, target), x[0].index_select(0, source))
        return self.pool(rows, target, len(x[1]))

    def message(self, x_i, x_j):
        return self.nn(torch.cat([x_i, x_j - x_i], dim=-1))


@placed("conv.edge_conv")
class DynamicEdgeConv(MessagePassing):
    def __init__(self, net, k, aggr="max"):
        super().__init__(aggr)
        self.nn, self.k = net, k

    def forward(self, x, batch=None):
        batch = x.new_zeros(len(x)) if batch is None else batch
        apart = torch.cdist(x, x).masked_fill(batch.unsqueeze(1) != batch, torch.inf)
        near = apart.sort(stable=True)
        target, place = (near[0][:, : self.k] < torch.inf).nonzero(as_tuple=True)
        source = near[1][target, place]
        rows = self.message(x.index_select(0, target), x.index_select(0, source))
        return self.pool(rows, target, len(x))

    def message(self, x_i, x_j):
        return self.nn(torch.cat([x_i, x_j - x_i], dim=-1))


@placed("conv.point_conv")
class PointNetConv(MessagePassing):
    def __init__(self, local_nn=None, global_nn=None, add_self_loops=True, aggr="max"):
        super().__init__(aggr)
        self.local_nn, self.global_nn, self.add_self_loops = local_nn, global_nn, add_self_loops

    def forward(self, x, pos, edge_index):
        x = x[0] if isinstance(x, tuple) else x
        points, centers = pos if isinstance(pos, tuple) else (pos, pos)
        if self.add_self_loops:
            loops = torch.arange(min(len(points), len(centers)), device=points.device)
            edge_index = edge_index[:, edge_index[0] != edge_index[1]]
            edge_index = torch.cat([edge_index, loops.expand(2, -1)], dim=1)
        source, target = edge_index
        own = None if x is None else x.index_select(0, source)
        rows = self.message(own, centers.index_select(0, target), points.index_select(0, source))
        y = self.pool(rows, target, len(centers))
        return y if self.global_nn is None else self.global_nn(y)

    def message(self, x_j, pos_i, pos_j):
        offset = pos_j - pos_i
        return self.local_nn(offset if x_j is None else torch.cat([x_j, offset], dim=1))


nn_of_twins = SimpleNamespace(
    MLP=MLP, EdgeConv=EdgeConv, DynamicEdgeConv=DynamicEdgeConv, PointNetConv=PointNetConv
)
