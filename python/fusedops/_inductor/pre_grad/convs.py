"""Convolutions with batch norm, sum and activation behind them: `conv_bn_act`.

Inductor reads and writes what a convolution gives for the norm's statistics and again for the norm,
the sum and the activation. Our products form statistics beside their results, layers that fit on
the chip have a norm of one kernel each way, and a product that gives one gradient of a block's
input adds the other. Where channels lie last, in half precision on a GPU, the op takes the place of
the four: here, before autograd, whose backward is then that op's. In inference it does where one
kernel of ours is all of it; where that is a graph of cuDNN's, Inductor cannot trace it.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from ..report import ReplacedSite, where
from .axes import arguments, name_of, shape_of
from .conv_layer import ConvLayer, conv_layer
from .node_pass import NodePass, as_ours
from .pooled import CONV, NORM
from .values import OURS, copied, is_undisturbed, value_of

if TYPE_CHECKING:
    from torch.fx import Graph, Node

_CONVS = ("conv1d", "conv2d", "conv3d")
_SUMS = ("add", "iadd", "add_")
_ACTIVATIONS = ("relu", "silu", "hardswish", "relu6")
_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
_HALVES = (torch.float16, torch.bfloat16)


def _statistics(*arguments: Any) -> list[Node]:
    return [n for n in ConvLayer(*arguments).norm[:2] if n is not None]


OURS[conv_layer] = _statistics


class Unit(NamedTuple):
    """A convolution and its norm, a sum and an activation behind them or not."""

    nodes: tuple[Node, ...]
    residual: Any
    activation: str


class ConvPass(NodePass):
    """Replaces convolutions with a norm behind them by `conv_bn_act`."""

    def visit(self, graph: Graph, node: Node) -> None:
        unit = unit_of(node) if name_of(node) in _CONVS else None
        if unit is not None:
            self._replace(graph, unit)

    def _replace(self, graph: Graph, unit: Unit) -> None:
        layer = layer_of(unit)
        if layer is None or not (self.force or _pays(layer)):
            return
        read = [n for n in tree_leaves(tuple(layer)) if isinstance(n, torch.fx.Node)]
        if not is_undisturbed(graph, unit.nodes, read, _statistics(*layer)):
            return
        other = _other_reader(unit)
        layer = layer._replace(hands_on=other is not None)
        value = _value(layer, unit, self.force)
        if value is None:
            return
        last, x = unit.nodes[-1], layer.x
        with graph.inserting_before(last):
            both = graph.call_function(conv_layer, tuple(layer))
            results = [graph.call_function(operator.getitem, (both, i)) for i in range(2)]
        both.meta = as_ours(last.meta, example_value=(value, value_of(x)))
        results[0].meta = {**last.meta, "example_value": value}
        results[1].meta = {"example_value": value_of(x)}
        if other is not None:
            other.replace_input_with(x, results[1])
        self.report.replaced.append(_site(unit, layer))
        last.replace_all_uses_with(results[0])
        for node in reversed(unit.nodes):
            graph.erase_node(node)


def unit_of(conv: Node) -> Unit | None:
    """What one op takes from a convolution on; None where no norm is behind it alone."""
    norm = _only_reader(conv)
    if norm is None or name_of(norm) != "batch_norm" or norm.args[0] is not conv:
        return None
    nodes, residual = [conv, norm], None
    behind = _only_reader(norm)
    if behind is not None and name_of(behind) in _SUMS and len(behind.args) == 2:
        a, b = behind.args
        if not behind.kwargs and a is not b and shape_of(a) == shape_of(b) == shape_of(behind):
            residual = b if a is norm else a
            nodes.append(behind)
            behind = _only_reader(behind)
    activation = "none" if behind is None else _activation_of(behind)
    if behind is not None and activation != "none":
        nodes.append(behind)
    return Unit(tuple(nodes), residual, activation)


def _only_reader(node: Node) -> Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _activation_of(node: Node) -> str:
    """The activation that a call is, "none" where it is another call."""
    name = name_of(node)
    if name == "hardtanh":
        bounds = arguments(node, "input", "min_val", "max_val")[1:]
        return "relu6" if bounds == [0, 6] else "none"
    name = name.removesuffix("_")
    return name if name in _ACTIVATIONS else "none"


def layer_of(unit: Unit) -> ConvLayer | None:
    """The arguments of the op; None where it does not stand for a unit."""
    conv, norm, *_ = unit.nodes
    x, weight, bias, *window = arguments(conv, *CONV)
    _, mean, var, gamma, beta, training, momentum, eps = arguments(norm, *NORM)
    momentum, eps = 0.1 if momentum is None else momentum, 1e-5 if eps is None else eps
    if type(momentum) is not float or type(eps) is not float or (mean is None) != (var is None):
        return None
    result = value_of(unit.nodes[-1])
    if result is None or (not training and (result.requires_grad or mean is None)):
        return None
    known = zip(window, (1, 0, 1, 1), strict=True)
    return ConvLayer(
        x,
        weight,
        bias,
        (mean, var, gamma, beta),
        unit.residual,
        tuple(default if given is None else given for given, default in known),
        unit.activation,
        bool(training),
        momentum,
        eps,
        hands_on=False,
    )


def _pays(layer: ConvLayer) -> bool:
    """Whether kernels of ours read x as it lies."""
    x, form = value_of(layer.x), None
    if x is not None:
        form = _LAST.get(x.dim())
    if x is None or form is None or x.device.type != "cuda" or x.shape[1] == 1:
        return False
    return bool(x.is_contiguous(memory_format=form))


def _other_reader(unit: Unit) -> Node | None:
    """What else reads the input of a product, once and behind the unit, and does not change it."""
    conv, last = unit.nodes[0], unit.nodes[-1]
    x, weight = arguments(conv, *CONV)[:2]
    others = [user for user in x.users if user is not conv]
    value = value_of(x)
    if len(others) != 1 or value is None or not value.requires_grad or others[0] < last:
        return None
    changes = others[0].args and others[0].args[0] is x and name_of(others[0]) not in _CONVS
    is_product = set((shape_of(weight) or (0, 0, 0))[2:]) == {1}
    return others[0] if is_product and not changes and others[0].op != "output" else None


def _value(layer: ConvLayer, unit: Unit, force: bool) -> Tensor | None:
    """The result's fake value; None where it is another one than torch's."""
    expected = value_of(unit.nodes[-1])
    assert expected is not None
    if not force and expected.dtype not in _HALVES:
        return None
    with expected.fake_mode:
        values = ConvLayer(*torch.fx.node.map_aggregate(tuple(layer), copied))
        if not (force or layer.training or values.is_one_kernel()):
            return None
        value, _ = values.run()
        if value.requires_grad:  # what cannot be differentiated raises here, not while it compiles
            leaves = [t for t in tree_leaves(values) if isinstance(t, Tensor) and t.requires_grad]
            torch.autograd.grad(value, leaves, torch.ones_like(value), allow_unused=True)
    if (value.shape, value.dtype, value.device) != (
        expected.shape,
        expected.dtype,
        expected.device,
    ):
        return None
    same_place = value.stride() == expected.stride()
    return value.detach().requires_grad_(expected.requires_grad) if same_place else None


def _site(unit: Unit, layer: ConvLayer) -> ReplacedSite:
    sizes = [value_of(n) for n in (layer.x, layer.weight)]
    shape = ", ".join(" x ".join(map(str, v.shape)) for v in sizes if v is not None)
    why = "norm, sum and activation in fewest passes"
    place, training = where(unit.nodes[0]), layer.training
    return ReplacedSite("conv_bn_act", place, shape, unit.activation, training, why)
