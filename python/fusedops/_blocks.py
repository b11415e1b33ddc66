"""MLP blocks in existing models: recognised by what their forward does, run as one op.

A module with two or three linear layers, whose code does nothing but compute, is traced by torch.fx
and its graph compared with the two forms that `mlp` and `gated_mlp` compute. Names do not matter:
Hugging Face's gate_proj/up_proj/down_proj and fc1/fc2, Llama's w1/w2/w3 and torchtune's are all the
same.
"""

from __future__ import annotations

import copyreg
import operator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch import nn as torch_nn

from ._forward_code import Flags, attributes_read
from ._nn_linear import Linear, plain, untouched
from .mlp import gated_mlp, mlp

_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)


def hooked(module: torch_nn.Module) -> bool:
    return any(getattr(module, name, None) for name in _HOOKS)


def activation_name(module: torch_nn.Module) -> str | None:
    """The activation that a torch module computes, None for any other module."""
    # NOTE: exact types; a subclass may compute anything.
    kind = type(module)
    if "forward" in vars(module):
        return None
    if kind is torch_nn.GELU:
        return {"none": "gelu", "tanh": "gelu_tanh"}.get(str(module.approximate))
    return {
        torch_nn.ReLU: "relu",
        torch_nn.SiLU: "silu",
        torch_nn.Sigmoid: "sigmoid",
        torch_nn.Tanh: "tanh",
    }.get(kind)


# ---- recognition ----


@dataclass(frozen=True)
class Block:
    """What a module computes: down(act(first(x))), or down(act(gate(x)) * up(x)).

    input is the name of x in its forward, first the names of its first layers: one, or gate and up.
    """

    input: str
    first: tuple[str, ...]
    down: str
    activation: str
    gated: bool  # with one first layer: gate and up packed in it
    dropouts: tuple[str, ...]

    @property
    def kind(self) -> str:
        """For reports."""
        return "gated_mlp" if self.gated else "mlp"


class _Tracer(fx.Tracer):
    def is_leaf_module(self, module: torch_nn.Module, path: str) -> bool:
        return isinstance(module, torch_nn.Linear) or super().is_leaf_module(module, path)


_FUNCTIONS = {
    F.relu: "relu",
    torch.relu: "relu",
    F.silu: "silu",
    torch.sigmoid: "sigmoid",
    F.sigmoid: "sigmoid",
    torch.tanh: "tanh",
    F.tanh: "tanh",
}
_METHODS = {"relu": "relu", "sigmoid": "sigmoid", "tanh": "tanh"}
_MULTIPLY = {operator.mul, torch.mul}
_POWER = {operator.pow, torch.pow}
_KNOWN = {*_FUNCTIONS, *_MULTIPLY, *_POWER, F.gelu, torch.square, torch.chunk}


class _Matcher:
    """Reads the graph of one module backwards from its output."""

    def __init__(self, module: torch_nn.Module) -> None:
        self.module = module
        self.graph = _Tracer().trace(module)
        self.dropouts: list[str] = []

    def match(self) -> Block | None:
        inputs = [n for n in self.graph.nodes if n.op == "placeholder"]
        # A node without users is there for what it does: h.mul_(2), y.add_(x)
        unused = [
            n for n in self.graph.nodes if not n.users and n.op not in ("placeholder", "output")
        ]
        if not inputs or any(n.users for n in inputs[1:]) or unused:
            return None
        self.x = inputs[0]
        result = next(n for n in self.graph.nodes if n.op == "output").args[0]
        down = self.layer(self.through(result))
        if down is None:
            return None
        hidden = self.through(down.args[0])
        activated = self.activation(hidden)
        if activated is not None:
            first = self.first_layer(activated[1])
            if first is None:
                return None
            return self.block((first,), down, activated[0], gated=False)
        return self.match_gated(hidden, down)

    def match_gated(self, product: fx.Node, down: fx.Node) -> Block | None:
        if not self.is_call(product, _MULTIPLY, "mul") or len(product.args) != 2:
            return None
        if product.kwargs:
            return None
        for one, two in (product.args, product.args[::-1]):
            activated = self.activation(self.through(one))
            if activated is None:
                continue
            name, gate = activated
            up = self.through(two)
            layers = (self.first_layer(gate), self.first_layer(up))
            if layers[0] is not None and layers[1] is not None and layers[0] != layers[1]:
                return self.block((layers[0], layers[1]), down, name, gated=True)
            packed = self.halves(gate, up)
            if packed is not None:
                return self.block((packed,), down, name, gated=True)
        return None

    def block(
        self, first: tuple[str, ...], down: fx.Node, activation: str, gated: bool
    ) -> Block | None:
        names = (*first, str(down.target))
        if len(set(names)) != len(names) or not set(names) <= set(self.module._modules):
            return None
        name, dropouts = str(self.x.target), tuple(self.dropouts)
        return Block(name, first, str(down.target), activation, gated, dropouts)

    def through(self, node: Any) -> Any:
        """The node behind modules that compute nothing (Dropout: outside training)."""
        while isinstance(node, fx.Node) and node.op == "call_module":
            child = self.module.get_submodule(str(node.target))
            if type(child) not in (torch_nn.Identity, torch_nn.Dropout):
                break
            if type(child) is torch_nn.Dropout:
                self.dropouts.append(str(node.target))
            node = node.args[0]
        return node

    def layer(self, node: Any) -> fx.Node | None:
        """The node, if it calls a linear layer with one argument."""
        if not isinstance(node, fx.Node) or node.op != "call_module" or node.kwargs:
            return None
        return node if plain(self.module.get_submodule(str(node.target))) else None

    def first_layer(self, node: Any) -> str | None:
        """The name of the linear layer that the node applies to the input."""
        node = self.layer(self.through(node))
        if node is None or self.through(node.args[0]) is not self.x:
            return None
        return str(node.target)

    def halves(self, gate: Any, up: Any) -> str | None:
        """The name of the linear layer whose output both are halves of, gate first."""
        parts = []
        for index, node in enumerate((gate, up)):
            if not self.is_call(node, {operator.getitem}) or node.args[1] != index:
                return None
            parts.append(node.args[0])
        chunk = parts[0]
        if parts[1] is not chunk or not self.is_call(chunk, {torch.chunk}, "chunk"):
            return None
        arguments = dict(zip(("input", "chunks", "dim"), chunk.args, strict=False)) | chunk.kwargs
        if arguments.get("chunks") != 2 or arguments.get("dim") != -1:
            return None
        return self.first_layer(arguments["input"])

    def activation(self, node: Any) -> tuple[str, Any] | None:
        """(name, argument) where the node applies an activation."""
        if not isinstance(node, fx.Node) or not node.args:
            return None
        name = None
        if node.op == "call_module":
            name = activation_name(self.module.get_submodule(str(node.target)))
        elif self.is_call(node, {F.gelu}):
            approximate = node.args[1] if len(node.args) > 1 else node.kwargs.get("approximate")
            name = {None: "gelu", "none": "gelu", "tanh": "gelu_tanh"}.get(approximate)
        elif node.op == "call_function":
            name = _FUNCTIONS.get(node.target)
        elif node.op == "call_method":
            name = _METHODS.get(str(node.target))
        if name is not None:
            return name, self.through(node.args[0])
        squared = self.is_call(node, {torch.square}, "square") or (
            self.is_call(node, _POWER, "pow") and node.args[1:] == (2,)
        )
        inner = self.activation(node.args[0]) if squared else None
        return ("relu2", inner[1]) if inner is not None and inner[0] == "relu" else None

    @staticmethod
    def is_call(node: Any, functions: set[Any], method: str = "") -> bool:
        if not isinstance(node, fx.Node):
            return False
        if node.op == "call_method":
            return bool(node.target == method)
        return node.op == "call_function" and node.target in functions


def fuse_block(module: torch_nn.Module) -> Block | None:
    """Make a module that is an MLP of its linear layers and nothing else run as one op, in place.

    Returns:
        What it computes; None for any other module, which stays what it is.
    """
    if not _may_be_block(module):
        return None
    try:
        flags = attributes_read(module, _KNOWN)
        block = _Matcher(module).match()
        if block is None:
            return None
        kind = _fused_class(type(module))
    except Exception:  # the class and its code may raise anything; it is no block of ours
        return None
    vars(module)["_fused"] = _Traced(
        block,
        {k: Linear if type(m) is Linear else m for k, m in module._modules.items()},
        tuple(_Part(m, type(m), dict(m._modules), flags[m]) for m in flags if m is not module),
        flags[module],
    )
    module.__class__ = kind
    return block


def _may_be_block(module: torch_nn.Module) -> bool:
    """Whether a module has the layers of a block and nothing that a block has not."""
    if isinstance(module, (torch_nn.Sequential, FusedBlock)) or "forward" in vars(module):
        return False
    layers = [m for m in module.modules() if isinstance(m, torch_nn.Linear)]
    if len(layers) not in (2, 3) or not set(layers) <= set(module.children()):
        return False
    if any(type(layer) is not Linear for layer in layers) or any(True for _ in module.buffers()):
        return False
    owned = {id(p) for layer in layers for p in layer.parameters()}
    if any(id(p) not in owned for p in module.parameters()):
        return False
    return not any(hooked(m) or "forward" in vars(m) for m in module.modules() if m is not module)


# ---- execution ----


class _Part(NamedTuple):
    """A module inside a block that is no linear layer, as it was when the block was traced."""

    module: Any
    kind: type[Any]
    children: dict[str, torch_nn.Module | None]
    flags: Flags  # the plain attributes that the block's code may read


class _Traced(NamedTuple):
    """A block when it was traced."""

    block: Block
    children: dict[str, Any]  # its _modules; the class Linear for a linear layer
    parts: tuple[_Part, ...]
    flags: Flags


def _same(module: Any, flags: Flags) -> bool:
    for name, value in flags:
        now = getattr(module, name, None)
        if now is not value and (type(now) is not type(value) or now != value):
            return False
    return True


class FusedBlock:
    """Mixed into the class of a recognised module: the same object, its forward one op.

    The module's own forward runs where the op cannot stand for it: with dropout in training, after
    a module or plain attribute that was traced became another one, and while one has hooks. Linear
    layers may be any that are plain, so that a block does not keep those alive which it lost.
    """

    _fused: _Traced | None = None  # None: a copy that the class's own code made without it
    _modules: dict[str, Any]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Ask nothing of the module's class: no registry of its subclasses gains the fused one."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The original forward's result."""
        traced = self._fused
        if traced is None or len(args) + len(kwargs) != 1:
            return super().forward(*args, **kwargs)  # type: ignore[misc]
        block = traced.block
        x = args[0] if args else kwargs.get(block.input)
        if not isinstance(x, Tensor) or not self._is(traced):
            return super().forward(*args, **kwargs)  # type: ignore[misc]
        first, down = self._modules[block.first[0]], self._modules[block.down]
        if not block.gated:
            return mlp(x, first.weight, first.bias, down.weight, down.bias, block.activation)
        up = self._modules[block.first[1]] if len(block.first) == 2 else None
        return gated_mlp(
            x,
            first.weight,
            None if up is None else up.weight,
            down.weight,
            first.bias,
            None if up is None else up.bias,
            down.bias,
            block.activation,
        )

    def _is(self, traced: _Traced) -> bool:
        """Whether the module's own forward would compute what it did when it was traced."""
        if len(self._modules) != len(traced.children):
            return False
        for name, child in self._modules.items():
            was = traced.children.get(name, self)
            if not (plain(child) if was is Linear else child is was):
                return False
        for part in traced.parts:
            module = part.module
            if type(module) is not part.kind or module._modules != part.children:
                return False
            if not (untouched(module) and _same(module, part.flags)):
                return False
            if part.kind is torch_nn.Dropout and module.training and module.p > 0:
                return False
        return _same(self, traced.flags)

    def __reduce_ex__(self, protocol: Any) -> Any:
        reduced = super().__reduce_ex__(max(2, protocol))
        if reduced[0] is not copyreg.__newobj__:  # type: ignore[attr-defined]
            return reduced  # the class's own way
        base = next(c for c in type(self).__mro__[1:] if not issubclass(c, FusedBlock))
        return _rebuild, (base, *reduced[1][1:]), *reduced[2:]


_classes: dict[type, type] = {}


def _fused_class(base: type) -> type:
    if base not in _classes:
        _classes[base] = type(f"Fused{base.__name__}", (FusedBlock, base), {})
    return _classes[base]


def _rebuild(base: type, *args: Any) -> Any:
    kind: Any = _fused_class(base)
    return kind.__new__(kind, *args)


class FusedSequential(torch_nn.Sequential):
    """An nn.Sequential in which Linear + activation and the next Linear run as one op."""

    def forward(self, input: Any) -> Any:
        """Run the layers in order."""
        layers = list(self._modules.values())
        i = 0
        while i < len(layers):
            last = pair_end(layers, i)
            if last is None:
                input = layers[i](input)
                i += 1
            else:
                first, second = layers[i], layers[last]
                input = mlp(
                    input, first.weight, first.bias, second.weight, second.bias, first.activation
                )
                i = last + 1
        return input


def pair_end(layers: list[Any], start: int) -> int | None:
    """The index of the layer that ends an MLP starting here: Linear + activation, Linear."""
    first = layers[start]
    if type(first) is not Linear or first.activation in (None, "none"):
        return None
    if not untouched(first):
        return None
    i = start + 1
    while i < len(layers) and type(layers[i]) is torch_nn.Identity and untouched(layers[i]):
        i += 1
    return i if i < len(layers) and plain(layers[i]) else None
