"""torch_geometric's graph convolutions in plain torch: its attributes, and its classes' places."""

from __future__ import annotations

from types import SimpleNamespace

from torch import nn

from models import twin_geometric
from models.twin_geometric import placed


@placed("conv.message_passing")
class MessagePassing(twin_geometric.MessagePassing):
    special_args = frozenset({"edge_index", "index", "ptr", "dim_size", "size"})

    def __init__(self, aggr="sum"):
        super().__init__(aggr)

    def propagate(self, edge_index, size=None, x=None, **weights):
        rows, results = x if isinstance(x, tuple) else (x, None)
        count = len(rows if results is None else results) if size is None else size[1]
        y = self.message(rows.index_select(self.node_dim, edge_index[0]), **weights)
        for hook in self._message_forward_hooks.values():
            hook(self, rows, y)
        return self.update(self.aggregate(y, edge_index[1], count))

    def aggregate(self, rows, index, dim_size=None):
        return self.aggr_module(rows, index, dim_size)

    def update(self, out):
        return out

    def message(self, x_j):
        return x_j


@placed("conv.gin_conv")
class GINConv(MessagePassing):
    def __init__(self, net):
        super().__init__()
        self.nn = net

    def forward(self, x, edge_index, size=None):
        x = x if isinstance(x, tuple) else (x, x)
        out = self.propagate(edge_index, x=x, size=size)
        return self.nn(out if x[1] is None else out + x[1])


@placed("conv.sage_conv")
class SAGEConv(MessagePassing):
    def __init__(self, a, b, aggr="mean"):
        super().__init__(aggr)
        self.lin_l, self.lin_r = nn.Linear(a, b), nn.Linear(a, b, bias=False)

    def forward(self, x, edge_index, size=None):
        x = x if isinstance(x, tuple) else (x, x)
        return self.lin_l(self.propagate(edge_index, x=x, size=size)) + self.lin_r(x[1])


@placed("conv.graph_conv")
class GraphConv(MessagePassing):
    def __init__(self, a, b, aggr="sum"):
        super().__init__(aggr)
        self.lin_rel, self.lin_root = nn.Linear(a, b), nn.Linear(a, b, bias=False)

    def forward(self, x, edge_index, edge_weight=None, size=None):
        x = x if isinstance(x, tuple) else (x, x)
        out = self.propagate(edge_index, x=x, edge_weight=edge_weight, size=size)
        return self.lin_rel(out) + self.lin_root(x[1])

    def message(self, x_j, edge_weight):
        return x_j if edge_weight is None else edge_weight.view(-1, 1) * x_j


class _Scaled(GINConv):
    """Somebody's own messages."""

    def message(self, x_j):
        return 2 * x_j


class _Updated(GINConv):
    def update(self, out):
        return out.relu()


class _Inherited(GINConv):
    pass


twin_nn = SimpleNamespace(GINConv=GINConv, SAGEConv=SAGEConv, GraphConv=GraphConv)
