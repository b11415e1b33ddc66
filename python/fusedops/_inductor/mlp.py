"""Sites of two products with an activation between them: mlp, forward with backward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .._core.activation import ACTIVATIONS, SAVES_PREACT
from .block import Block, Parts, dy_of_weight_gradient
from .probe import Evaluator, activation_of, equals, probes
from .sites import (
    Left,
    Out,
    Site,
    column_sums,
    give_bias_gradient,
    give_weight_gradient,
    is_recomputed,
    supported,
    wants_fp32,
    weight_gradient,
    weight_of,
)

if TYPE_CHECKING:
    from torch.fx import Node

    from .graph import Joint, Product

F = torch.ops.fusedops


class MlpSite(Block):
    """act(x @ w1.T + b1) @ w2.T + b2, and its gradients."""

    def __init__(self, joint: Joint, first: Product, last: Product) -> None:
        super().__init__(joint, last)
        self.first, self.leaves = first, [first.node]

    def find(self) -> Site | Left | None:
        closure = self.joint.closure(self.leaves)
        if self.last.a not in closure:
            return None
        value = Evaluator({self.first.node: probes().z})
        code = activation_of(value(self.last.a))
        if code is None:
            return Left("what stands between its products is none of our activations")
        unsupported = supported(self.first, self.last)
        if unsupported is not None:
            return unsupported
        m, hidden, k = self.first.sizes
        sizes = (m, hidden, k, self.last.sizes[1])
        site = Site("mlp", ACTIVATIONS[code], sizes, [self.first, self.last])
        self.plan(site, code, closure, value)
        return site

    def plan(self, site: Site, code: int, closure: list[Node], value: Evaluator) -> None:
        first, last = self.first, self.last
        parts = self.backward_parts(code, closure, value)
        training = parts.dh is not None or parts.dw is not None
        recomputed = is_recomputed(last)
        site.facts |= {"training": training, "bias": first.bias is not None}
        w1, w2 = weight_of(first), weight_of(last)
        save = training and not recomputed
        forward = site.step(
            F.mlp_forward.default,
            (first.a, w1, first.bias, w2, last.bias, self.residual(site), code, save, self.tf32),
            last.node,
        )
        site.replace([last.node], Out(forward, 0))
        if not training:
            return
        saved: Any = Out(forward, 1)
        if recomputed:  # by one product alone
            act = 0 if SAVES_PREACT[code] else code
            args = (first.a, w1, first.bias, act, self.tf32)
            saved = Out(site.step(F.linear.default, args, first.node), 0)
        self.plan_backward(site, parts, saved, code)

    def backward_parts(self, code: int, closure: list[Node], value: Evaluator) -> Parts:
        slope = probes().acts[code][1]
        is_hidden = self.hidden_is(closure, lambda n: equals(value(n), probes().acts[code][0]))
        parts = Parts()
        known = {self.first.node: probes().z}

        def is_dz(node: Node, dh: Product) -> bool:
            evaluated = parts.values.setdefault(dh.node, Evaluator({**known, dh.node: probes().dh}))
            return equals(evaluated(node), probes().dh, slope)

        found = self.gradients(is_dz)
        if found is not None:
            dh, nodes = found
            parts.dz = self.ends(nodes, lambda n: is_dz(n, dh))
            parts.dh, parts.dy = dh, dh.a
        if parts.dy is None:
            parts.dy = dy_of_weight_gradient(self.joint, self.last, is_hidden)
        if parts.dy is not None:
            parts.dw = weight_gradient(self.joint, parts.dy, is_hidden)
        return parts

    def plan_backward(self, site: Site, parts: Parts, saved: Any, code: int) -> None:
        sums = column_sums(parts.dz)
        weight_nodes = [] if parts.dw is None else [parts.dw[0].node]
        flags = (parts.dh is not None, bool(sums), parts.dw is not None, False)
        like = (parts.dz or weight_nodes)[0]
        fp32 = wants_fp32([*sums, *weight_nodes])
        args = (parts.dy, saved, weight_of(self.last), code, *flags, fp32, self.tf32)
        backward = site.step(F.mlp_backward.default, args, like)
        if parts.dh is not None:
            site.products.append(parts.dh)
            site.replace(parts.dz, Out(backward, 0))
            give_bias_gradient(site, sums, Out(backward, 1))
        if parts.dw is not None:
            give_weight_gradient(site, *parts.dw, Out(backward, 2))
