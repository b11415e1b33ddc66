"""MLP blocks in existing models: recognised by what their forward does, run as one op.

A module with two or three linear layers, whose code does nothing but compute, is traced by torch.fx
and its graph compared with the two forms that `mlp` and `gated_mlp` compute. Names do not matter:
Hugging Face's gate_proj/up_proj/down_proj and fc1/fc2, Llama's w1/w2/w3 and torchtune's are all the
same.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch import nn as torch_nn

from ..nn.activation import activation_name
from ..nn.linear import Linear, guard_forwards, parameters_of, plain, untouched
from ..ops.mlp import gated_mlp, mlp
from .activations import DEFAULT_FUNCTIONS, PLAIN_FUNCTIONS
from .dropping import dropped, dropping_mlp, drops
from .forward_code import Outside, Read, code_of, same_constant
from .fused_class import Fused, fused_class

if TYPE_CHECKING:
    from ..fp8.recipe import Recipe

_is_dynamo_compiling = torch.compiler.is_dynamo_compiling

_AROUND_FORWARD = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)
_AROUND_STATE = (
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)


def hooked(module: torch_nn.Module) -> bool:
    """Whether a module has hooks; those of torch.distributed on its state are no matter."""
    return any(getattr(module, name, None) for name in _AROUND_FORWARD) or _hooked_by_others(
        module, _AROUND_STATE
    )


def hooked_by_others(module: torch_nn.Module) -> bool:
    """Whether a module has hooks of others than torch.distributed (FSDP, tensor parallelism)."""
    return _hooked_by_others(module, (*_AROUND_FORWARD, *_AROUND_STATE))


def _hooked_by_others(module: torch_nn.Module, names: tuple[str, ...]) -> bool:
    for name in names:
        for hook in (getattr(module, name, None) or {}).values():
            if not (getattr(hook, "__module__", None) or "").startswith("torch.distributed."):
                return True
    return False


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
    up_first: bool = False  # the packed layer's first rows are up's
    between: tuple[str, ...] = ()  # the dropouts that stand before down alone, as they run
    last: tuple[str, ...] = ()  # those behind it

    @property
    def may_drop(self) -> bool:
        """Whether the layers can run with dropouts that drop, activation and product as one."""
        split = not self.gated or len(self.first) == 2
        return split and {*self.between, *self.last} == set(self.dropouts)

    @property
    def kind(self) -> str:
        """For reports."""
        return "gated_mlp" if self.gated else "mlp"


class _Tracer(fx.Tracer):
    def is_leaf_module(self, module: torch_nn.Module, path: str) -> bool:
        return isinstance(module, torch_nn.Linear) or super().is_leaf_module(module, path)


_METHODS = {"relu": "relu", "sigmoid": "sigmoid", "tanh": "tanh"}
_MULTIPLY = {operator.mul, torch.mul}
_POWER = {operator.pow, torch.pow}
_KNOWN = {
    *PLAIN_FUNCTIONS,
    *DEFAULT_FUNCTIONS,
    *_MULTIPLY,
    *_POWER,
    F.gelu,
    torch.square,
    torch.chunk,
    torch.split,
}


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
        behind = self.through(result)
        self.last = tuple(self.dropouts[::-1])
        down = self.layer(behind)
        if down is None:
            return None
        hidden = self.through(down.args[0])
        self.between = tuple(self.dropouts[len(self.last) :][::-1])
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
            for up_first in (False, True):
                packed = self.halves(*((up, gate) if up_first else (gate, up)))
                if packed is not None:
                    return self.block((packed,), down, name, gated=True, up_first=up_first)
        return None

    def block(
        self,
        first: tuple[str, ...],
        down: fx.Node,
        activation: str,
        gated: bool,
        up_first: bool = False,
    ) -> Block | None:
        names = (*first, str(down.target))
        if len(set(names)) != len(names) or not set(names) <= set(self.module._modules):
            return None
        name, dropouts = str(self.x.target), tuple(self.dropouts)
        # NOTE: in the one list is each dropout as often as it runs.
        known = len(dropouts) == len(self.between) + len(self.last)
        known = known and set(dropouts) <= set(self.module._modules)
        places = (self.between, self.last) if known else ((), ())
        return Block(name, first, str(down.target), activation, gated, dropouts, up_first, *places)

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
        layer = self.module.get_submodule(str(node.target))
        return node if plain(layer, recipes=True) else None

    def first_layer(self, node: Any) -> str | None:
        """The name of the linear layer that the node applies to the input."""
        node = self.layer(self.through(node))
        if node is None or self.through(node.args[0]) is not self.x:
            return None
        return str(node.target)

    def halves(self, *both: Any) -> str | None:
        """The name of the linear layer whose output two nodes are the halves of, in order."""
        parts = []
        for index, node in enumerate(both):
            if not self.is_call(node, {operator.getitem}) or node.args[1] != index:
                return None
            parts.append(node.args[0])
        chunk = parts[0]
        if parts[1] is not chunk:
            return None
        chunks = self.is_call(chunk, {torch.chunk}, "chunk")
        if not chunks and not self.is_call(chunk, {torch.split}, "split"):
            return None
        names = ("input", "chunks" if chunks else "split_size", "dim")
        arguments = dict(zip(names, chunk.args, strict=False)) | chunk.kwargs
        arguments.setdefault(names[1], arguments.pop("split_size_or_sections", None))
        name = self.first_layer(arguments.get("input"))
        if name is None or arguments.get("dim") != -1:
            return None
        rows = self.module.get_submodule(name).weight.shape[0]
        wanted = (2,) if chunks else (rows // 2, (rows // 2, rows // 2), [rows // 2, rows // 2])
        return name if rows % 2 == 0 and arguments[names[1]] in wanted else None

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
            name = PLAIN_FUNCTIONS.get(node.target)
            if name is None and len(node.args) == 1 and set(node.kwargs) <= {"inplace"}:
                name = DEFAULT_FUNCTIONS.get(node.target)
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
    try:
        if not _may_be_block(module):
            return None
        (own, *inner), outside = code_of(module, _KNOWN)
        block = _Matcher(module).match()
        if block is None:
            return None
        kind = fused_class(FusedBlock, type(module))
    except Exception:  # the class and its code may raise anything; it is no block of ours
        return None
    vars(module)["_fused"] = _Traced(
        block,
        {k: Linear if type(m) is Linear else m for k, m in module._modules.items()},
        tuple(_Part(r.module, type(r.module), dict(r.module._modules), *_kept(r)) for r in inner),
        *_kept(own),
        outside,
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


Flags = tuple[tuple[str, Any], ...]


class _Part(NamedTuple):
    """A module inside a block that is no linear layer, as it was when the block was traced."""

    module: Any
    kind: type[Any]
    children: dict[str, torch_nn.Module | None]
    flags: Flags  # the plain attributes that the block's code may read
    methods: tuple[str, ...]  # what it may call of the module's class


class _Traced(NamedTuple):
    """A block when it was traced."""

    block: Block
    children: dict[str, Any]  # its _modules; the class Linear for a linear layer
    parts: tuple[_Part, ...]
    flags: Flags
    methods: tuple[str, ...]
    outside: Outside | None  # None: loaded from a pickle, not traced yet


def _kept(read: Read) -> tuple[Flags, tuple[str, ...]]:
    return tuple(read.flags.items()), tuple(read.methods)


def _same_flags(module: Any, flags: Flags, methods: tuple[str, ...]) -> bool:
    """Whether a module still has the attributes, and its methods are those of its class."""
    for name, value in flags:
        now = getattr(module, name, None)
        if now is not value and not same_constant(now, value):
            return False
    for name in methods:  # noqa: SIM110  (written out: each call of a block asks)
        if name in module.__dict__:
            return False
    return True


class FusedBlock(Fused):
    """Mixed into the class of a recognised module: the same object, its forward one op.

    Where a dropout between the layers drops, these are two ops or three. The module's own forward
    runs where the ops cannot stand for it: with dropouts in other places in training, after a
    module, plain attribute, method or global name that was traced became another one, and while a
    module has hooks. Linear layers may be any that are plain, so that a block does not keep those
    alive which it lost.
    """

    _fused: _Traced | None = None  # None: a copy that the class's own code made without it
    _base: Any
    _modules: dict[str, Any]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The original forward's result."""
        traced = self._fused
        if traced is None or len(args) + len(kwargs) != 1:
            return self._base.forward(self, *args, **kwargs)
        block = traced.block
        x = args[0] if args else kwargs.get(block.input)
        if not isinstance(x, Tensor) or not self._is(traced):
            return self._base.forward(self, *args, **kwargs)
        first, down = self._modules[block.first[0]], self._modules[block.down]
        recipe = getattr(down, "recipe", None)
        if any(getattr(self._modules[name], "recipe", None) != recipe for name in block.first):
            return self._base.forward(self, *args, **kwargs)
        if not block.dropouts:
            return self._without_dropouts(x, block, first, down, recipe)
        between, last = ([m for m in map(self._modules.__getitem__, names) if drops(m)]
                         for names in (block.between, block.last))  # fmt: skip
        if between:
            layers = [self._modules[name] for name in (*block.first, block.down)]
            *weights, w_down = map(parameters_of, layers)
            y = dropping_mlp(x, weights, w_down, block.activation, between, recipe)
        else:
            y = self._without_dropouts(x, block, first, down, recipe)
        return dropped(y, last)

    def _without_dropouts(
        self, x: Tensor, block: Block, first: Any, down: Any, recipe: Recipe | None
    ) -> Tensor:
        if block.gated and block.up_first:
            return self._with_halves(x, first, down, block.activation, recipe)
        (w1, b1), (w2, b2) = parameters_of(first), parameters_of(down)
        if not block.gated:
            return mlp(x, w1, b1, w2, b2, block.activation, recipe=recipe)
        up = parameters_of(self._modules[block.first[1]]) if len(block.first) == 2 else (None, None)
        return gated_mlp(x, w1, up[0], w2, b1, up[1], b2, block.activation, recipe=recipe)

    def _with_halves(
        self, x: Tensor, first: Any, down: Any, activation: str, recipe: Recipe | None
    ) -> Tensor:
        """Runs a packed layer whose gate comes second."""
        if hasattr(first.weight, "main_grad"):  # which its halves have not
            return self._base.forward(self, x)
        up, gate = first.weight.chunk(2)
        up_bias, gate_bias = (None, None) if first.bias is None else first.bias.chunk(2)
        biases = (gate_bias, up_bias, down.bias)
        return gated_mlp(x, gate, up, down.weight, *biases, activation, recipe=recipe)

    def _is(self, traced: _Traced) -> bool:
        """Whether the module's own forward would compute what it did when it was traced."""
        if len(self._modules) != len(traced.children) or traced.outside is None:
            return False
        if _is_dynamo_compiling():
            guard_forwards(self._modules.values())
            guard_forwards(part.module for part in traced.parts)
        for name, child in self._modules.items():
            was = traced.children.get(name, self)
            if not (plain(child, recipes=True) if was is Linear else child is was):
                return False
        for part in traced.parts:
            module = part.module
            if type(module) is not part.kind or module._modules != part.children:
                return False
            if not (untouched(module) and _same_flags(module, part.flags, part.methods)):
                return False
            if part.kind is torch_nn.Dropout and drops(module) and not self._may_drop(traced):
                return False
        return traced.outside.is_same() and _same_flags(self, traced.flags, traced.methods)

    def _may_drop(self, traced: _Traced) -> bool:
        return traced.block.may_drop and not _is_dynamo_compiling()

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)  # type: ignore[misc]
        if self._fused is not None and self._fused.outside is None:
            # From a pickle: the code may be another one here
            kind, self.__class__ = type(self), self._base
            del self._fused
            if fuse_block(self) is None:
                self.__class__ = kind
