"""torch_geometric's graph convolutions whose messages are rows of nodes, times weights or not.

GINConv, GCNConv, SAGEConv, GraphConv, SGConv, TAGConv, APPNP, ChebConv and others differ in what
they do before and behind: `propagate` is the same sum. torch writes a row of every edge and adds
it with atomics, in half precision one value at a time; a sum in the order of edges writes none.
"""

from __future__ import annotations

import inspect
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from ..._autograd.edge_sum import Orders, by_end, ordered_sum, orders_of, pays, sum_of
from ..._autograd.shared import needs_grad, sees_torch_functions_only
from ..fused_class import Fused
from .geometric import is_edges, pool_of

if TYPE_CHECKING:
    from collections.abc import Mapping

_is_dynamo_compiling = torch.compiler.is_dynamo_compiling
_PLACE = "torch_geometric.nn.conv."
_POOLS = ("sum", "mean")


class Message(NamedTuple):
    """A row x_j, or that times a weight of the edge.

    Attributes:
        weights: The name of the argument that the weights are; empty where there are none.
        may_lack: Whether that may be None.
    """

    weights: str
    may_lack: bool

    def takes(self, others: Mapping[str, Any]) -> bool:
        """Whether the arguments of propagate besides x are the weights alone."""
        if not others:
            return self.may_lack
        return set(others) == {self.weights} and (self.may_lack or others[self.weights] is not None)


class _Known:
    """Orders of an edge_index, and what it was then."""

    def __init__(self, state: tuple[Any, ...], orders: Orders) -> None:
        self.state, self.orders = state, orders


# The orders of edges that graphs of autograd hold: layers of a step share them. Nothing else holds
# them, since what writes into edges without torch leaves no trace.
_known: Any = WeakIdKeyDictionary()


def known_orders(edge_index: Tensor, sources: int, targets: int) -> _Known:
    """Both orders of edges (2, E), formed once for a tensor as long as something holds them."""
    stream = torch.cuda.current_stream(edge_index.device) if edge_index.is_cuda else None
    # NOTE: a CUDA graph may be replayed alone and with other edges, so it forms its own.
    is_graph = edge_index.is_cuda and torch.cuda.is_current_stream_capturing()
    version = None if is_graph or edge_index.is_inference() else edge_index._version
    place = edge_index.data_ptr(), edge_index.shape, edge_index.stride()
    state = (version, *place, sources, targets, stream)
    reference = _known.get(edge_index)
    known: _Known | None = None if reference is None else reference()
    if version is None or known is None or known.state != state:
        known = _Known(state, orders_of(edge_index[0], edge_index[1], sources, targets))
        _known[edge_index] = weakref.ref(known)
    return known


class FusedMessages(Fused):
    """Mixed into a graph convolution of torch_geometric."""

    _base: Any
    _fused: Message

    def _set_jittable_templates(self, raise_on_error: bool = False) -> None:
        """Leave the class as it is, where torch_geometric would write its own propagate here."""

    def propagate(self, edge_index: Any, *args: Any, **kwargs: Any) -> Any:
        """The sum, or mean, of all messages to each node."""
        y = None if args or _is_dynamo_compiling() else self._summed(edge_index, **kwargs)
        return self._base.propagate(self, edge_index, *args, **kwargs) if y is None else y

    def _summed(
        self, edge_index: Any, x: Any = None, size: Any = None, **others: Any
    ) -> Tensor | None:
        """The sum; None where it is the class's own affair."""
        pool = pool_of(self)
        if pool not in _POOLS or not is_edges(edge_index) or not self._fused.takes(others):
            return None
        rows, results = x if isinstance(x, tuple) and len(x) == 2 else (x, None)
        weights = others.get(self._fused.weights)
        edges = edge_index.shape[1]
        if type(rows) is not Tensor or rows.dim() != 2 or not pays(rows, edges):
            return None
        count = _count(rows, results, size)
        if count is None or not _fits(weights, rows, edges) or edge_index.device != rows.device:
            return None
        if sees_torch_functions_only(rows, weights):
            return None
        weights = None if weights is None else weights.flatten()
        if needs_grad(rows):
            known = known_orders(edge_index, len(rows), count)
            order = known.orders.targets
            y = ordered_sum(rows, known.orders, weights)
            y.grad_fn.known_orders = known
        else:
            order = by_end(edge_index[1], edge_index[0], count, len(rows))
            y = sum_of(rows, order, weights)
        if pool == "sum":
            return y
        numbers = order.starts.diff().clamp(min=1).view(-1, 1)
        return (y / numbers.float()).to(y.dtype)


def _count(rows: Tensor, results: Any, size: Any) -> int | None:
    """How many nodes have a sum; None where sizes contradict each other."""
    sources, targets = (None, None) if size is None else size
    if isinstance(results, Tensor):
        targets = len(results) if targets is None else targets
        if targets != len(results):
            return None
    if sources not in (None, len(rows)):
        return None
    return len(rows) if targets is None else int(targets)


def _fits(weights: Any, rows: Tensor, edges: int) -> bool:
    """Whether weights are none or constant ones, a number for every edge."""
    if weights is None:
        return True
    if type(weights) is not Tensor or weights.requires_grad or weights.numel() != edges:
        return False
    return weights.dtype is rows.dtype and weights.device == rows.device


def messages_mixin(module: Any) -> tuple[type, str, Message] | None:
    """What to mix into the class of a graph convolution, the op that runs then, and its form."""
    kind: Any = type(module)
    place = f"{_PLACE}message_passing"
    of_base = (c for c in kind.__mro__ if (c.__module__, c.__name__) == (place, "MessagePassing"))
    base: Any = next(of_base, None)
    if base is None or pool_of(module) not in _POOLS or module.node_dim != -2:
        return None
    of_message = next(c for c in kind.__mro__ if "message" in vars(c))
    same = kind.aggregate is base.aggregate and kind.update is base.update
    if not same or not of_message.__module__.startswith(_PLACE):
        return None
    for c in kind.__mro__[: kind.__mro__.index(base)]:
        written = f"{c.__module__}_{c.__name__}_propagate"  # by torch_geometric, for each class
        own = vars(c).get("propagate")
        if own is not None and not own.__module__.startswith(written):
            return None
    message = _message_of(module)
    return None if message is None else (FusedMessages, "edge_sum", message)


def _message_of(module: Any) -> Message | None:
    """The form of a module's messages, by what they are on probes; None for other ones."""
    first, *names = inspect.signature(module.message).parameters
    rows, weights = torch.arange(12.0).view(4, 3).sin(), torch.arange(1.0, 5.0)
    if first != "x_j" or len(names) > 1:
        return None
    if not names:
        return Message("", True) if torch.equal(module.message(rows), rows) else None
    if names[0] in module.special_args or names[0].endswith(("_i", "_j")):
        return None
    if not torch.equal(module.message(rows, weights), weights.view(-1, 1) * rows):
        return None
    try:
        may_lack = torch.equal(module.message(rows, None), rows)
    except (AttributeError, TypeError):
        may_lack = False
    return Message(names[0], may_lack)
