"""What passes before autograd ask of a graph: values, constants, and what writes into memory."""

from __future__ import annotations

import contextlib
import operator
from types import BuiltinFunctionType, FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._ops import OpOverload, OpOverloadPacket
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from torch.fx import Graph, Node

LARGEST = 1 << 27  # elements of a constant that is evaluated, about 0.1 s

# What may make constants: functions that change nothing and draw nothing.
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


# The functions that our passes put into a graph, and what of their arguments they write into.
OURS: dict[Any, Callable[..., list[Node]]] = {}


def value_of(node: Any) -> Tensor | None:
    value = node.meta.get("example_value") if isinstance(node, torch.fx.Node) else None
    return value if isinstance(value, Tensor) else None


def dtype_of(node: Any) -> torch.dtype | None:
    value = value_of(node)
    return None if value is None else value.dtype


@contextlib.contextmanager
def plain_torch() -> Iterator[None]:
    """Torch as it is outside of a compilation: values are values."""
    with _disable_current_modes(), unset_fake_temporarily(), torch.no_grad():
        yield


def constant(graph: Graph, node: Node) -> Tensor | None:
    """The value of a node on the CPU; None where it depends on an input or may change."""
    made_of = _origins(node)
    if made_of is None:
        return None
    if is_changed(graph.nodes, made_of):
        return None
    if any(_in_memory(v) > LARGEST for n in made_of for v in _tensors(n)):
        return None
    with plain_torch():
        try:
            return _evaluate(node, made_of)
        except Exception:  # nothing in a user's graph may stop the compilation
            return None


def _origins(constant: Node) -> list[Node] | None:
    """All that a constant is made of, in order; None where an input is among it."""
    found: dict[Node, None] = {}
    waiting = [constant]
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


def is_changed(calls: Iterable[Node], made_of: Iterable[Node]) -> bool:
    """Whether one of these calls may write into what these nodes are, or cannot be asked."""
    try:
        memory = {_storage(v) for n in made_of for v in _tensors(n)}
        return any(
            _storage(v) in memory
            for node in calls
            if node.op.startswith("call") and _may_write(node)
            for argument in _written_by(node)
            for v in _tensors(argument)
        )
    except NotImplementedError:  # tensors of torch.func's transforms do not say where they are
        return True


# Calls that change how what follows is computed.
_MODES = ("_enter_", "_exit_", "_set_", "set_grad_enabled", "_push_", "_pop_", "inference_mode")


def is_undisturbed(
    graph: Graph, mine: Collection[Node], read: Iterable[Node], statistics: Sequence[Node]
) -> bool:
    """Whether nothing between the first and the last of some nodes makes a difference to them.

    Args:
        graph: Where they are.
        mine: The nodes, which one call at the place of the last one is to replace.
        read: What that call reads.
        statistics: What it writes besides its result.
    """
    nodes = list(graph.nodes)
    at = [i for i, node in enumerate(nodes) if node in mine]
    between = [node for node in nodes[at[0] : at[-1]] if node not in mine]
    if any(str(getattr(node.target, "__name__", "")).startswith(_MODES) for node in between):
        return False
    if len(set(statistics)) < len(statistics):
        return False
    if any(not set(statistics).isdisjoint(node.all_input_nodes) for node in between):
        return False
    return not is_changed(between, [*read, *mine])


def copied(argument: Any) -> Any:
    """A copy of a node's value, for a call that may write into it; what is no node as it is."""
    if not isinstance(argument, torch.fx.Node):
        return argument
    value = value_of(argument)
    if value is None:
        raise TypeError("an argument has no value")
    made = value.detach().clone()
    return made.requires_grad_(value.requires_grad) if made.is_floating_point() else made


def _written_by(node: Node) -> list[Node]:
    """What a call that writes may write into: its own tensor where it is a method or operator."""
    if node.target in OURS:
        return OURS[node.target](*node.args)
    is_operator = getattr(node.target, "__name__", "") in _IN_PLACE
    own = node.args[0] if node.op == "call_method" or is_operator else None
    alone = isinstance(own, torch.fx.Node) and "out" not in node.kwargs
    return [own] if alone else node.all_input_nodes


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


def _evaluate(constant: Node, made_of: list[Node]) -> Tensor:
    """A constant, computed on the CPU."""
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
    value = values[constant]
    if not isinstance(value, Tensor):
        raise TypeError("a constant is a tensor")
    return value
