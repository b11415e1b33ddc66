"""Layers in a row with a maximum over neighbours behind them, as a graph of torch's functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F

from .axes import arguments, is_move, moved, name_of, shape_of
from .values import dtype_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch.fx import Node

    from .axes import Layout

_LINEAR = ("linear", "conv1d", "conv2d")
_SLOPES = {"relu": 0.0, "relu_": 0.0, "leaky_relu": 0.01, "leaky_relu_": 0.01}
_NORM = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
_CONV = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_WINDOW = (
    *("input", "kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices"),
)
NO_ACTIVATION = "none"


class Pool(NamedTuple):
    """A maximum over one dimension."""

    node: Node  # the call
    result: Node  # its values
    dim: int

    @property
    def given(self) -> Any:
        """What it is of."""
        return self.node.args[0]


class Layer(NamedTuple):
    """``act(norm(linear(x)))``."""

    weight: Node
    bias: Node | None
    norm: tuple[Any, ...] | None = None  # the fields of points.BatchNorm as far as eps
    activation: tuple[str, float] | None = None  # and its slope


def pool_of(node: Node) -> Pool | None:
    """The maximum that a call is; None for another call."""
    if node.op == "call_function" and node.target in (F.max_pool2d, torch.max_pool2d):
        return _pool_of_window(node)
    name = name_of(node)
    if name not in ("amax", "max"):
        return None
    given, dim = arguments(node, "input", "dim")
    if isinstance(dim, (tuple, list)) and len(dim) == 1:
        (dim,) = dim
    shape = shape_of(given)
    if shape is None or type(dim) is not int:
        return None
    result = node if name == "amax" else _values(node)
    return None if result is None else Pool(node, result, dim % len(shape))


def _pool_of_window(node: Node) -> Pool | None:
    """The maximum over the last dimension, or the one before, that a window spans."""
    given, window, stride, padding, dilation, ceils, places = arguments(node, *_WINDOW)
    shape = shape_of(given)
    if shape is None or not isinstance(window, (tuple, list)) or ceils or places:
        return None
    whole = stride is None or tuple(stride) == tuple(window)
    if not whole or padding not in (None, 0) or dilation not in (None, 1):
        return None
    for dim, spans in ((-1, (1, shape[-1])), (-2, (shape[-2], 1))):
        if tuple(window) == spans:
            return Pool(node, node, dim % len(shape))
    return None


def _values(node: Node) -> Node | None:
    """The values of a maximum whose places nothing reads."""
    readers = [user for user in node.users if user.users]
    if len(readers) != 1 or name_of(readers[0]) != "getitem" or readers[0].args[1] != 0:
        return None
    return readers[0]


def layers_before(pool: Pool) -> list[Node] | None:
    """The nodes from the first layer to a pool; None where something else reads between them."""
    found: list[Node] = []
    node = pool.given
    while isinstance(node, torch.fx.Node) and (is_move(node) or _is_layer(node)):
        found.append(node)
        node = node.args[0]
    while found and name_of(found[-1]) not in _LINEAR:
        found.pop()
    return found[::-1] if found and all(len(one.users) == 1 for one in found) else None


def _is_layer(node: Node) -> bool:
    name = name_of(node)
    known = name in _LINEAR or name in _SLOPES or name == "batch_norm"
    return known and bool(node.args) and isinstance(node.args[0], torch.fx.Node)


def read_layers(nodes: Sequence[Node], layout: Layout) -> tuple[list[Layer], Layout] | None:
    """The layers of nodes on something of this layout, and where the axes lie behind them."""
    layers: list[Layer] = []
    now: Layout | None = layout
    for node in nodes:
        if now is None:
            return None
        name = name_of(node)
        if is_move(node):
            # What is rounded between layers is not ours.
            same = dtype_of(node) is dtype_of(node.args[0])
            now = moved(now, node) if same else None
        elif name in _LINEAR:
            now = _append_linear(layers, node, now)
        elif name == "batch_norm":
            now = now if _add_norm(layers, node, now) else None
        else:
            now = now if _add_activation(layers, node) else None
    return None if now is None else (layers, now)


def _append_linear(layers: list[Layer], node: Node, layout: Layout) -> Layout | None:
    """Append a layer over channels."""
    weight, bias = arguments(node, *_CONV)[1:3]
    shape = shape_of(weight)
    channels = 1 if name_of(node) != "linear" else len(layout.dims) - 1
    if shape is None or len(shape) < 2 or not layout.is_at("c", channels):
        return None
    if name_of(node) != "linear" and not _is_pointwise(node, shape):
        return None
    if shape[1] != layout.sizes["c"]:
        return None
    layers.append(Layer(weight, bias))
    return layout.resized("c", shape[0], channels)


def _is_pointwise(node: Node, shape: tuple[int, ...]) -> bool:
    """Whether a convolution is a linear layer at each place."""
    _, _, _, stride, padding, _, groups = arguments(node, *_CONV)

    def each(given: Any, default: int) -> set[Any]:
        given = default if given is None else given
        return set(given) if isinstance(given, (tuple, list)) else {given}

    one = set(shape[2:]) == {1} and each(stride, 1) == {1} and groups in (None, 1)
    return one and (padding == "valid" or each(padding, 0) == {0})


def _add_norm(layers: list[Layer], node: Node, layout: Layout) -> bool:
    """Add a batch norm over channels to the last layer."""
    _, mean, var, weight, bias, training, momentum, eps = arguments(node, *_NORM)
    momentum, eps = 0.1 if momentum is None else momentum, 1e-5 if eps is None else eps
    if layers[-1].norm is not None or layers[-1].activation is not None:
        return False
    if type(momentum) is not float or type(eps) is not float or len(layout.dims) < 2:
        return False
    if not layout.is_at("c", 1) or (mean is None) != (var is None):
        return False
    norm = (weight, bias, mean, var, bool(training), momentum, eps)
    layers[-1] = layers[-1]._replace(norm=norm)
    return True


def _add_activation(layers: list[Layer], node: Node) -> bool:
    """Add an activation to the last layer."""
    name = name_of(node)
    slope = _SLOPES[name]
    if name.startswith("leaky_relu"):
        given = arguments(node, "input", "negative_slope")[1]
        slope = slope if given is None else given
    if layers[-1].activation is not None or type(slope) not in (int, float):
        return False
    layers[-1] = layers[-1]._replace(activation=(name.removesuffix("_"), float(slope)))
    return True


def common_activation(layers: list[Layer]) -> tuple[str, float, bool] | None:
    """The activation of all layers but perhaps the last, its slope, and whether the last has it."""
    *inner, last = (layer.activation for layer in layers)
    kinds = {*inner, last} if last is not None or not inner else set(inner)
    if len(kinds) != 1:
        return None
    (kind,) = kinds
    name, slope = kind or (NO_ACTIVATION, 0.0)
    return name, slope, last is not None or not inner


def tensors_of(layers: list[Layer]) -> Iterator[Node]:
    """The parameters and statistics of layers."""
    for layer in layers:
        given = (layer.weight, layer.bias, *(layer.norm or ())[:4])
        yield from (one for one in given if isinstance(one, torch.fx.Node))
