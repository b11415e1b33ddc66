"""Sites of a gate, an up and a down projection: gated_mlp, forward with backward."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node

from .._core.activation import ACTIVATIONS
from .block import Block, Parts, dy_of_weight_gradient
from .graph import (
    CONVERT,
    SAME_ORDER,
    Joint,
    Product,
    aten,
    bare,
    dtype_of,
    is_call,
    item_of,
    layer_weights_match,
    same_elements,
    same_shape,
    shape_of,
)
from .probe import Evaluator, activation_of, equals, probes
from .sites import (
    Derived,
    Left,
    Out,
    Site,
    column_sums,
    give_bias_gradient,
    give_weight_gradient,
    is_recomputed,
    select,
    supported,
    wants_fp32,
    weight_gradient,
    weight_of,
)

F = torch.ops.fusedops


@dataclass(frozen=True)
class GateAndUp:
    """Two leaves: two products of one x, or the halves of one product."""

    leaves: tuple[Node, Node]
    products: tuple[Product, ...]

    @property
    def packed(self) -> bool:
        return len(self.products) == 1

    @staticmethod
    def of(leaves: list[Node], by_node: dict[Node, Product]) -> GateAndUp | None:
        one, two = leaves
        if one in by_node and two in by_node:
            pair = by_node[one], by_node[two]
            if same_elements(pair[0].a, pair[1].a) and same_shape(one, two):
                return GateAndUp((one, two), pair)
            return None
        halves = [_half(leaf) for leaf in leaves]
        if any(h is None for h in halves):
            return None
        ordered = sorted(zip(halves, leaves, strict=True), key=lambda pair: pair[0][1])
        (base, first), (other, second) = (half for half, _ in ordered)
        if base is not other or (first, second) != (0, 1) or base not in by_node:
            return None
        return GateAndUp((ordered[0][1], ordered[1][1]), (by_node[base],))

    def swapped(self) -> GateAndUp:
        return GateAndUp(self.leaves[::-1], self.products[::-1])


def _half(node: Node) -> Any:
    """(what the node is one half of by its last dimension, which half)."""
    item = item_of(node)
    if item is not None:
        whole, index = item
        if not is_call(whole, aten.split.Tensor, aten.split_with_sizes.default):
            return None
        source, size = whole.args[:2]
        dim = whole.args[2] if len(whole.args) > 2 else 0
        columns = shape_of(source)[-1]
        sizes = [size] * 2 if isinstance(size, int) else list(size)
        is_half = isinstance(columns, int) and sizes == [columns // 2] * 2 and columns % 2 == 0
        return (bare(source), index) if is_half and dim in (-1, len(shape_of(source)) - 1) else None
    if is_call(node, aten.slice.Tensor) and len(node.args) == 4:
        source, dim, start, end = node.args
        columns = shape_of(source)[-1]
        if dim not in (-1, len(shape_of(source)) - 1) or not isinstance(columns, int):
            return None
        if columns % 2 == 0 and start == 0 and end == columns // 2:
            return bare(source), 0
        if columns % 2 == 0 and start == columns // 2 and isinstance(end, int) and end >= columns:
            return bare(source), 1
    return None


class GatedSite(Block):
    """(act(gate) * up) @ w_down.T + b_down, and its gradients."""

    def __init__(self, joint: Joint, pair: GateAndUp, last: Product) -> None:
        super().__init__(joint, last)
        self.pair, self.leaves = pair, list(pair.leaves)

    def find(self) -> Site | Left | None:
        closure = self.joint.closure(self.leaves)
        if self.last.a not in closure:
            return None
        known = probes()
        for swapped in (False, True):
            pair = self.pair.swapped() if swapped else self.pair
            gate, up = pair.leaves
            value = Evaluator({gate: known.z, up: known.up})
            code = activation_of(value(self.last.a), known.up)
            if code is not None:
                self.pair, self.swapped = pair, swapped
                return self.found(code, closure, value)
        return Left("what stands between its products is no activation times the other half")

    def found(self, code: int, closure: list[Node], value: Evaluator) -> Site | Left:
        products = self.pair.products
        unsupported = supported(*products, self.last)
        if unsupported is not None:
            return unsupported
        m, hidden, k = products[0].sizes
        sizes = (m, hidden // 2 if self.pair.packed else hidden, k, self.last.sizes[1])
        site = Site("gated_mlp", ACTIVATIONS[code], sizes, [*products, self.last])
        site.facts["packed"] = self.pair.packed
        self.plan(site, code, closure, value)
        return site

    def inputs(self) -> tuple[Any, ...]:
        """x, w_gate, w_up, b_gate, b_up."""
        one = self.pair.products[0]
        if not self.pair.packed:
            two = self.pair.products[1]
            return one.a, weight_of(one), weight_of(two), one.bias, two.bias
        weight, bias = weight_of(one), one.bias
        if not self.swapped:
            return one.a, weight, None, bias, None
        size = one.sizes[1]  # up's rows come first: two views of the weight

        def half(tensor: Any, start: int) -> Any:
            args = (tensor, 0, start, start + size // 2)
            return None if tensor is None else Derived(aten.slice.Tensor, args)

        return (
            one.a, half(weight, size // 2), half(weight, 0), half(bias, size // 2), half(bias, 0),
        )  # fmt: skip

    def plan(self, site: Site, code: int, closure: list[Node], value: Evaluator) -> None:
        last = self.last
        x, w_gate, w_up, b_gate, b_up = self.inputs()
        parts = self.backward_parts(code, closure, value)
        training = parts.dh is not None or parts.dw is not None
        recomputed = is_recomputed(last)
        site.facts |= {"training": training, "bias": b_gate is not None}
        forward = site.step(
            F.gated_mlp_forward.default,
            (x, w_gate, w_up, b_gate, b_up, weight_of(last), last.bias, self.residual(site), code,
             training and not recomputed, self.tf32),
            last.node,
        )  # fmt: skip
        site.replace([last.node], Out(forward, 0))
        if not training:
            return
        saved: Any = Out(forward, 1)
        if recomputed:
            args = (x, w_gate, w_up, b_gate, b_up, self.tf32)
            like = self.pair.products[-1].node
            saved = Out(site.step(F.gated_linear.default, args, like), 0)
        self.plan_backward(site, parts, saved, code, w_up is None)

    def backward_parts(self, code: int, closure: list[Node], value: Evaluator) -> _GatedParts:
        y, slope = probes().acts[code]
        known = probes()
        gate, up = self.pair.leaves
        is_hidden = self.hidden_is(closure, lambda n: equals(value(n), y, known.up))
        parts = _GatedParts()

        def at(dh: Product) -> Evaluator:
            leaves = {gate: known.z, up: known.up, dh.node: known.dh}
            return parts.values.setdefault(dh.node, Evaluator(leaves))

        found = self.gradients(lambda n, dh: equals(at(dh)(n), known.dh, known.up, slope))
        if found is not None:
            dh, nodes = found
            dgate = self.ends(nodes, lambda n: equals(at(dh)(n), known.dh, known.up, slope))
            dup = self.ends(nodes, lambda n: equals(at(dh)(n), known.dh, y))
            if dgate and dup:
                parts.dh, parts.dy, parts.halves = dh, dh.a, [dgate, dup]
        if parts.dy is None:
            parts.dy = dy_of_weight_gradient(self.joint, self.last, is_hidden)
        if parts.dy is not None:
            parts.dw = weight_gradient(self.joint, parts.dy, is_hidden)
        return parts

    def plan_backward(
        self, site: Site, parts: _GatedParts, saved: Any, code: int, packed: bool
    ) -> None:
        grads = parts.halves
        whole = _joined(*grads) if packed and grads else None
        sums = [column_sums(g) for g in ([[whole]] if whole is not None else grads)]
        flat = [n for group in sums for n in group]
        weight_nodes = [] if parts.dw is None else [parts.dw[0].node]
        flags = (bool(grads), bool(flat), parts.dw is not None, False)
        like = grads[0][0] if grads else weight_nodes[0]
        fp32 = wants_fp32([*flat, *weight_nodes])
        args = (parts.dy, saved, weight_of(self.last), code, packed, *flags, fp32, self.tf32)
        backward = site.step(F.gated_mlp_backward.default, args, like)
        dz, dbias = Out(backward, 0), Out(backward, 1)
        if parts.dw is not None:
            give_weight_gradient(site, *parts.dw, Out(backward, 2))
        if not grads:
            return
        assert parts.dh is not None
        site.products.append(parts.dh)
        if whole is not None:
            site.replace([whole], dz)
            give_bias_gradient(site, sums[0], dbias)
            return
        for i, grad in enumerate(grads):
            site.replace(grad, select(dz, 1 if packed else 0, i))
            give_bias_gradient(site, sums[i], select(dbias, 0, i))
        if not self.pair.packed:
            self.plan_dx(site, grads, dz)

    def plan_dx(self, site: Site, grads: list[list[Node]], dz: Out) -> None:
        """The sum of the two products that give dx, as one."""
        products = [
            next(
                (
                    p
                    for p in self.joint.backward_products
                    if layer_weights_match(forward, p) and any(same_elements(p.a, g) for g in grad)
                ),
                None,
            )
            for forward, grad in zip(self.pair.products, grads, strict=True)
        ]
        if products[0] is None or products[1] is None:
            return
        adds = [_added(p.node) for p in products if p is not None]
        if adds[0] is None or adds[1] is None:
            return
        x, w_gate, w_up, _, _ = self.inputs()
        args = (dz, x, w_gate, w_up, True, False, False, False, self.tf32)
        (first, _, other), (second, later_side, _) = sorted(
            (a for a in adds if a is not None), key=lambda a: self.joint.index[a[0]]
        )
        dx = Out(site.step(F.gated_input_backward.default, args, second), 0)
        if first is second:
            site.replace([first], dx)
        elif (
            isinstance(other, Node)
            and same_shape(other, first)
            and dtype_of(other) is dtype_of(first)
        ):
            site.replace([first], other)  # the other summand alone; dx comes with the later one
            site.replace([later_side], dx)
        else:
            site.steps.pop()
            return
        site.products += [p for p in products if p is not None]


@dataclass
class _GatedParts(Parts):
    halves: list[list[Node]] = field(default_factory=list)  # gradients of gate and of up


def _joined(gate: list[Node], up: list[Node]) -> Node | None:
    """The node that puts the gradients of both halves together."""
    for user in (user for node in gate for user in node.users):
        if not is_call(user, aten.cat.default) or len(user.args) < 2:
            continue
        parts, dim = user.args
        if len(parts) == 2 and parts[0] in gate and parts[1] in up:
            return user if dim in (-1, len(shape_of(parts[0])) - 1) else None
    return None


def _added(node: Node) -> tuple[Node, Node, Any] | None:
    """(add, its argument that is this node's value, the other one)."""
    while len(node.users) == 1:
        (user,) = node.users
        if is_call(user, aten.add.Tensor) and not user.kwargs:
            one, two = user.args
            return (user, node, two) if one is node else (user, node, one)
        if not is_call(user, *SAME_ORDER, CONVERT):
            return None
        node = user
    return None
