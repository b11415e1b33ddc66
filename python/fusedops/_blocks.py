"""MLP blocks in existing models: recognised by what their forward does, run as one op.

A module with two or three linear layers is traced by torch.fx, without running anything, and its
graph compared with the two forms that `mlp` and `gated_mlp` compute. Names do not matter: Hugging
Face's gate_proj/up_proj/down_proj and fc1/fc2, Llama's w1/w2/w3 and torchtune's are all the same.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch import nn as torch_nn

from .mlp import gated_mlp, mlp
from .nn import Linear

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

    first is the names of its first layers: one, or gate and up.
    """

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


class _Matcher:
    """Reads the graph of one module backwards from its output."""

    def __init__(self, module: torch_nn.Module) -> None:
        self.module = module
        self.graph = _Tracer().trace(module)
        self.dropouts: list[str] = []

    def match(self) -> Block | None:
        inputs = [n for n in self.graph.nodes if n.op == "placeholder"]
        if not inputs or any(n.users for n in inputs[1:]):
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
        if not self.is_call(product, {operator.mul, torch.mul}, "mul") or len(product.args) != 2:
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
        if len(set(names)) != len(names):
            return None
        return Block(first, str(down.target), activation, gated, tuple(self.dropouts))

    def through(self, node: Any) -> Any:
        """The node behind modules that compute nothing (Dropout: outside training)."""
        while isinstance(node, fx.Node) and node.op == "call_module":
            child = self.module.get_submodule(str(node.target))
            if type(child) not in (torch_nn.Identity, torch_nn.Dropout) or hooked(child):
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
            child = self.module.get_submodule(str(node.target))
            name = None if hooked(child) else activation_name(child)
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
            self.is_call(node, {operator.pow, torch.pow}, "pow") and node.args[1:] == (2,)
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


def plain(layer: torch_nn.Module) -> bool:
    """Whether a layer computes x @ weight.T + bias and nothing else."""
    kind = type(layer)
    bare = kind is torch_nn.Linear or (kind is Linear and layer.activation in (None, "none"))
    return bare and "forward" not in vars(layer) and not hooked(layer)


def find_block(module: torch_nn.Module) -> Block | None:
    """What the module computes, where that is an MLP of its linear layers and nothing else."""
    if isinstance(module, (torch_nn.Sequential, FusedBlock)) or "forward" in vars(module):
        return None
    layers = [m for m in module.children() if isinstance(m, torch_nn.Linear)]
    if len(layers) not in (2, 3):
        return None
    owned = {id(p) for layer in layers for p in layer.parameters()}
    if any(id(p) not in owned for p in module.parameters()) or any(module.buffers()):
        return None
    try:
        return _Matcher(module).match()
    except Exception:  # a forward that fx cannot trace may raise anything; it is no block of ours
        return None


# ---- execution ----


class FusedBlock:
    """Mixed into the class of a recognised module: the same object, its forward one op.

    The module's own forward runs where the op cannot stand for it: with dropout in training, or
    after a layer got hooks or was replaced by something else (an adapter).
    """

    _fused_block: Block
    _modules: dict[str, torch_nn.Module]

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        """The original forward's result."""
        block = self._fused_block
        layers = [self._child(name) for name in (*block.first, block.down)]
        if args or kwargs or not all(plain(layer) for layer in layers) or self._drops():
            return super().forward(x, *args, **kwargs)  # type: ignore[misc]
        first, down = layers[0], layers[-1]
        if not block.gated:
            return mlp(x, first.weight, first.bias, down.weight, down.bias, block.activation)
        up = layers[1] if len(layers) == 3 else None
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

    def _child(self, name: str) -> Any:
        return self._modules[name] if "." not in name else self.get_submodule(name)  # type: ignore[attr-defined]

    def _drops(self) -> bool:
        dropouts = [self._child(name) for name in self._fused_block.dropouts]
        return any(d.training and d.p > 0 for d in dropouts)

    def __reduce__(self) -> Any:
        base = next(c for c in type(self).__mro__[1:] if not issubclass(c, FusedBlock))
        return _rebuild, (base,), self.__dict__


_classes: dict[type, type] = {}


def _fused_class(base: type) -> type:
    if base not in _classes:
        _classes[base] = type(f"Fused{base.__name__}", (FusedBlock, base), {})
    return _classes[base]


def _rebuild(base: type) -> Any:
    kind: Any = _fused_class(base)
    return kind.__new__(kind)


def fuse_block(module: torch_nn.Module, block: Block) -> None:
    """Make the module run as one op, in place."""
    module.__class__ = _fused_class(type(module))
    module._fused_block = block


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
    if hooked(first) or "forward" in vars(first):
        return None
    i = start + 1
    while i < len(layers) and type(layers[i]) is torch_nn.Identity and not hooked(layers[i]):
        i += 1
    return i if i < len(layers) and plain(layers[i]) else None
