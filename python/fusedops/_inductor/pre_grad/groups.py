"""The layers of PointNet++ in a graph: what groups gather, an MLP over it, a maximum.

A tensor of groups (B, M, K, C) is written several times where the MLP runs on it; our kernels of
set abstraction keep it on the chip. Where rows of clouds are gathered by one index, less their
centres, and layers of them end in a maximum over the neighbours, `points.set_abstraction` takes
their place: here, before autograd, whose backward is then that op's.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from ..report import ReplacedSite, where
from .gathers import gathered
from .group_layer import GroupLayer, group_layer
from .node_pass import NodePass, as_ours
from .pooled import common_activation, layers_before, pool_of, read_layers, tensors_of
from .values import OURS, copied, is_undisturbed, value_of

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from torch.fx import Graph, Node

    from .gathers import Gathered, Part
    from .pooled import Layer, Pool

LEAST_EDGES = 1 << 14  # fewer take as long as launches


def _statistics(*arguments: Any) -> list[Node]:
    return [n for norm in GroupLayer(*arguments).norms if norm for n in norm[2:4] if n is not None]


OURS[group_layer] = _statistics


class GroupPass(NodePass):
    """Replaces layers of groups by `set_abstraction` and `edge_conv`."""

    def visit(self, graph: Graph, node: Node) -> None:
        if (pool := pool_of(node)) is not None:
            self._replace(graph, pool)

    def _replace(self, graph: Graph, pool: Pool) -> None:
        """Replace the layers before a pool, where they are of groups and where it pays."""
        nodes = layers_before(pool)
        found = None if nodes is None else gathered(graph, nodes[0].args[0])
        if nodes is None or found is None:
            return
        read = read_layers(nodes, found.layout)
        if read is None:
            return
        layer = _layer(pool, found, *read)
        if layer is None:
            return
        mine = {*found.nodes, *nodes, pool.node, pool.result}
        given = [*_read_by(found.parts), *tensors_of(read[0])]
        if not is_undisturbed(graph, mine, given, _statistics(*layer)):
            return
        value = _value(layer, pool, self.force)
        if value is not None:
            self._emit(graph, pool, layer, value, (*found.nodes, *nodes))

    def _emit(
        self, graph: Graph, pool: Pool, layer: GroupLayer, value: Tensor, old: Sequence[Node]
    ) -> None:
        with graph.inserting_before(pool.result):
            new = graph.call_function(group_layer, tuple(layer))
        new.meta = as_ours(pool.result.meta, example_value=value)
        training = any(norm is not None and norm[4] for norm in layer.norms)
        widths = [value_of(weight).shape[0] for weight in layer.weights]  # type: ignore[union-attr]
        sizes = " x ".join(map(str, value_of(layer.idx).shape))  # type: ignore[union-attr]
        self.report.replaced.append(
            ReplacedSite(
                layer.kind, where(pool.result), f"{sizes}: {'-'.join(map(str, widths))}",
                layer.activation, training, "one kernel a layer each way, groups on the chip",
            )
        )  # fmt: skip
        pool.result.replace_all_uses_with(new)
        for node in dict.fromkeys((pool.result, pool.node, *reversed(old))):
            if not node.users:
                graph.erase_node(node)


def _read_by(parts: Collection[Part]) -> list[Node]:
    given = [one for part in parts for one in (part.source, part.idx, part.centers)]
    return [one for one in given if one is not None]


def _layer(pool: Pool, found: Gathered, layers: list[Layer], layout: Any) -> GroupLayer | None:
    """The arguments of the function that takes the place of a chain."""
    activation = common_activation(layers)
    gives = _gives(found.parts)
    shape = value_of(pool.result)
    if activation is None or gives is None or shape is None:
        return None
    if layout.sizes["k"] < 2 or not layout.is_at("k", pool.dim):
        return None
    at = [axis for i, dim in enumerate(layout.dims) if i != pool.dim for axis in dim]
    if "k" in at:
        return None
    order = [*at, *(axis for axis in "bmc" if axis not in at)]  # those of one element anywhere
    kind, xyz, features, centers, idx, first, radius = gives
    return GroupLayer(
        kind,
        xyz,
        features,
        centers,
        idx,
        [layer.weight for layer in layers],
        [layer.bias for layer in layers],
        [layer.norm for layer in layers],
        first,
        *activation,
        radius,
        tuple("bmc".index(axis) for axis in order),
        tuple(shape.shape),
    )


def _gives(parts: Sequence[Part]) -> tuple[Any, ...] | None:
    """The kind of a layer, what it is given, the column where offsets begin, and the radius."""
    own = [part for part in parts if part.idx is None]
    offsets = [part for part in parts if part.centers is not None]
    if len({part.idx for part in parts} - {None}) != 1 or len(offsets) > 1 or len(own) > 1:
        return None
    before = parts[: parts.index(offsets[0])] if offsets else ()
    first = sum(value_of(part.source).shape[2] for part in before)  # type: ignore[union-attr]
    if own:
        if len(parts) != 2 or not offsets or offsets[0].radius is not None:
            return None
        idx, source = offsets[0].idx, own[0].source
        if not source is offsets[0].source is offsets[0].centers:
            return None
        return "edge_conv", None, [source], None, idx, first, None
    features = [part.source for part in parts if part.centers is None]
    if not offsets:
        return "set_abstraction", None, features, None, parts[0].idx, 0, None
    source, idx, centers, radius = offsets[0]
    return "set_abstraction", source, features, centers, idx, first, radius


def _value(layer: GroupLayer, pool: Pool, force: bool) -> Tensor | None:
    """The result's fake value; None where it is another one, or where torch is as fast."""
    expected = value_of(pool.result)
    assert expected is not None

    with expected.fake_mode:
        values = GroupLayer(*torch.fx.node.map_aggregate(tuple(layer), copied))
        pays = math.prod(values.idx.shape) >= LEAST_EDGES and values.call().has_kernels()
        if not pays and not force:
            return None
        value = group_layer(*values)
        if value.requires_grad:  # what cannot be differentiated raises here, not while it compiles
            leaves = [t for t in tree_leaves(values) if isinstance(t, Tensor) and t.requires_grad]
            torch.autograd.grad(value, leaves, torch.ones_like(value), allow_unused=True)
    if (value.shape, value.dtype, value.device) != (
        expected.shape,
        expected.dtype,
        expected.device,
    ):
        return None
    return value.detach().requires_grad_(expected.requires_grad)
