"""Attention masks that are causal or full: Inductor's pre_grad_custom_pass.

Models of transformers make a mask of positions while they are traced, where they would otherwise
say is_causal. With a mask torch takes slower kernels of attention, and the mask is memory besides.
A mask that depends on no input is evaluated here, and where it is the lower triangle or hides
nothing, attention is told so. This is before autograd, which chooses the kernel.
"""

from __future__ import annotations

import operator
from types import BuiltinFunctionType, FunctionType
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._ops import OpOverload, OpOverloadPacket
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from .graph import reached_from
from .graph_pass import PassBehind, sources

if TYPE_CHECKING:
    from torch.fx import Graph, Node

    from .report import InductorReport

ARGUMENTS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")  # by their places
LARGEST = 1 << 27  # elements of a mask that is evaluated, about 0.1 s

# What may stand between positions and a mask: functions that change nothing and draw nothing.
_COMPARISONS = ("le", "lt", "ge", "gt", "eq", "ne")
_LOGIC = ("and", "or", "xor")
_ELEMENTWISE = {
    *_COMPARISONS,
    *(f"{kind}_{name}" for kind in ("bitwise", "logical") for name in (*_LOGIC, "not")),
    *("add", "sub", "mul", "abs", "remainder", "minimum", "maximum", "where", "masked_fill"),
}
_SHAPES = {
    *("expand", "expand_as", "view", "view_as", "reshape", "unsqueeze", "squeeze", "flatten"),
    *("unflatten", "transpose", "permute", "repeat", "repeat_interleave", "contiguous", "clone"),
    *("broadcast_to", "narrow", "tril", "triu", "diff", "cumsum", "flip", "roll"),
}
_DUNDERS = {f"__{name}__" for name in (*_COMPARISONS, *_LOGIC, "invert", "getitem", "add", "sub")}
FUNCTIONS = {getattr(torch, name) for name in (_ELEMENTWISE | _SHAPES) if hasattr(torch, name)} | {
    *(torch.arange, torch.full, torch.ones, torch.zeros, torch.cat, torch.stack, torch.tensor),
    *(torch.ones_like, torch.zeros_like, torch.full_like),
    *(operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, operator.neg),
    *(getattr(operator, name) for name in (*_COMPARISONS, "and_", "or_", "xor", "invert")),
    operator.getitem,
}
METHODS = {
    *_ELEMENTWISE,
    *_SHAPES,
    *_DUNDERS,
    *("to", "type", "bool", "int", "long", "new_ones", "new_zeros", "new_full"),
}
_IN_PLACE = {
    *("iadd", "isub", "imul", "imatmul", "itruediv", "ifloordiv", "imod", "ipow"),
    *("iand", "ior", "ixor", "ilshift", "irshift", "iconcat", "setitem", "delitem"),
}


class MaskPass(PassBehind):
    """Replaces masks in calls of scaled_dot_product_attention.

    Args:
        report: Where the calls are counted.
        first: A pass to run before, as Inductor takes it: one that the user had set.
    """

    def __init__(self, report: InductorReport, first: Any = None) -> None:
        super().__init__(first)
        self.report = report

    def uuid(self) -> Any:
        """What the result depends on, besides the graph."""
        return self.key(sources())

    def rewrite(self, graph: Graph) -> None:
        known: dict[tuple[Node, tuple[int, int]], str | None] = {}
        changed: list[Node] = []
        for node in graph.find_nodes(
            op="call_function", target=F.scaled_dot_product_attention, sort=False
        ):
            mask, sizes = _mask_of(node), _lengths(node)
            if mask is None or sizes is None:
                continue
            key = (mask, sizes)  # calls may share a mask that is broadcast
            if key not in known:
                known[key] = _meaning(graph, mask, sizes)
            if known[key] is not None:
                _say(node, causal=known[key] == "causal")
                self.report.masks += 1
                changed.append(node)
        _free_views(changed)


def _arguments(node: Node) -> dict[str, Any]:
    """What a call of attention is given, by name."""
    return {**dict(zip(ARGUMENTS, node.args, strict=False)), **node.kwargs}


def _mask_of(node: Node) -> Node | None:
    """The mask of a call that has no other word on it."""
    arguments = _arguments(node)
    mask = arguments.get("attn_mask")
    if not isinstance(mask, torch.fx.Node) or arguments.get("is_causal") not in (None, False):
        return None
    return mask


def _value(node: Any) -> Tensor | None:
    value = node.meta.get("example_value") if isinstance(node, torch.fx.Node) else None
    return value if isinstance(value, Tensor) else None


def _lengths(node: Node) -> tuple[int, int] | None:
    """How many queries and keys there are, where that is fixed."""
    given = _arguments(node)
    query, key = _value(given.get("query")), _value(given.get("key"))
    if query is None or key is None or query.dim() < 2 or key.dim() < 2:
        return None
    rows, columns = query.shape[-2], key.shape[-2]
    return (rows, columns) if type(rows) is int and type(columns) is int else None


def _meaning(graph: Graph, mask: Node, sizes: tuple[int, int]) -> str | None:
    """ "causal" or "full", or None: anything else, or what cannot be known here."""
    made_of = _origins(mask)
    if sizes[0] * sizes[1] > LARGEST or made_of is None:
        return None
    try:
        too_large = any(_in_memory(v) > LARGEST for n in made_of for v in _tensors(n))
        if too_large or _is_changed(graph, made_of):
            return None
    except NotImplementedError:  # tensors of torch.func's transforms do not say where they are
        return None
    with _disable_current_modes(), unset_fake_temporarily(), torch.no_grad():
        try:
            return _meaning_of(_evaluate(mask, made_of), sizes)
        except Exception:  # nothing in a user's graph may stop the compilation
            return None


def _meaning_of(value: Tensor, sizes: tuple[int, int]) -> str | None:
    if value.dtype is not torch.bool or value.dim() < 2:
        return None
    try:
        wide = value.expand(*value.shape[:-2], *sizes)
    except RuntimeError:
        return None
    # Copies of a batch are one in memory.
    for i, stride in enumerate(wide.stride()[:-2]):
        if stride == 0:
            wide = wide.narrow(i, 0, min(1, wide.shape[i]))
    if wide.numel() == 0 or wide.numel() > LARGEST:
        return None
    if bool(wide.all()):
        return "full"
    triangle = torch.ones(sizes, dtype=torch.bool).tril()
    return "causal" if bool((wide == triangle).all()) else None


def _origins(mask: Node) -> list[Node] | None:
    """All that a mask is made of, in order; None where an input is among it."""
    found: dict[Node, None] = {}
    waiting = [mask]
    while waiting:
        node = waiting.pop()
        if node in found:
            continue
        known = (node.op == "call_function" and node.target in FUNCTIONS) or (
            node.op == "call_method" and node.target in METHODS
        )
        if not known or "out" in node.kwargs:
            return None
        found[node] = None
        waiting += node.all_input_nodes
    return sorted(found)


def _is_changed(graph: Graph, made_of: list[Node]) -> bool:
    """Whether an operation of the graph may write into what the mask is made of."""
    memory = {_storage(v) for n in made_of for v in _tensors(n)}
    return any(
        _storage(v) in memory
        for node in graph.nodes
        if node.op.startswith("call") and _may_write(node)
        for argument in node.all_input_nodes
        for v in _tensors(argument)
    )


def _may_write(node: Node) -> bool:
    """Whether a call may write into an argument: unless it is known that it does not."""
    target = node.target
    if "out" in node.kwargs or node.kwargs.get("inplace"):
        return True
    if node.op == "call_method":
        return target.endswith("_") and (not target.endswith("__") or target[2:-2] in _IN_PLACE)
    if target in FUNCTIONS:
        return False
    if isinstance(target, (OpOverload, OpOverloadPacket)):
        overloads = [target] if isinstance(target, OpOverload) else _overloads(target)
        return any(overload._schema.is_mutable for overload in overloads)
    if isinstance(target, FunctionType) and target.__module__.startswith("torch."):
        inplace = "inplace" in target.__code__.co_varnames and any(a is True for a in node.args)
        return inplace or target.__name__.endswith("_")
    if isinstance(target, BuiltinFunctionType):
        return target.__name__ in _IN_PLACE or target.__name__.endswith("_")
    return True  # operators of higher order, wrapped functions of NumPy


def _overloads(packet: Any) -> list[Any]:
    """All but those that are given `out`."""
    return [getattr(packet, name) for name in packet.overloads() if not name.endswith("out")]


def _tensors(node: Node) -> list[Tensor]:
    """The values of a node, which may have many."""
    return [v for v in tree_leaves(node.meta.get("example_value")) if isinstance(v, Tensor)]


def _in_memory(value: Tensor) -> int:
    """Elements that are in memory: of what is expanded, one copy."""
    return int(value.untyped_storage().nbytes() // value.itemsize)


def _storage(value: Tensor) -> int:
    return int(value.untyped_storage()._cdata)


def _evaluate(mask: Node, made_of: list[Node]) -> Tensor:
    """The mask, computed on the CPU."""
    values: dict[Node, Any] = {}

    def on_cpu(argument: Any) -> Any:
        is_device = isinstance(argument, torch.device) or (
            isinstance(argument, str) and argument.split(":")[0] == "cuda"
        )
        return torch.device("cpu") if is_device else argument

    for node in made_of:
        args = torch.fx.node.map_aggregate(
            torch.fx.node.map_arg(node.args, values.__getitem__), on_cpu
        )
        kwargs = torch.fx.node.map_aggregate(
            torch.fx.node.map_arg(dict(node.kwargs), values.__getitem__), on_cpu
        )
        if node.op == "call_method":
            values[node] = getattr(args[0], str(node.target))(*args[1:], **kwargs)
        else:
            values[node] = node.target(*args, **kwargs)
    value = values[mask]
    if not isinstance(value, Tensor):
        raise TypeError("a mask is a tensor")
    return value


def _free_views(changed: list[Node]) -> None:
    """Let views behind attention copy: without a mask its result may lie otherwise in memory.

    On a GPU flash attention lays it out as the query; kernels that take a mask need not.
    """
    for node in reached_from(changed):
        is_view = node.op == "call_method" and node.target == "view" and not node.kwargs
        if is_view and not isinstance(node.args[1], torch.dtype):
            node.target = "reshape"


def _say(node: Node, *, causal: bool) -> None:
    """Say in a call what its mask means."""
    given = _arguments(node) | {"attn_mask": None, "is_causal": causal}
    node.args = node.args[:3]
    by_place = ARGUMENTS[: len(node.args)]
    node.kwargs = {name: value for name, value in given.items() if name not in by_place}
