"""Sites of a product and a cross entropy behind it: linear_cross_entropy, forward with backward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

from ..ops.cross_entropy import REDUCTIONS
from .graph import (
    CONSTANTS,
    CONVERT,
    SAME_ORDER,
    Joint,
    Product,
    aten,
    bare,
    dtype_of,
    equal_sizes,
    is_call,
    is_constant,
    is_pointwise,
    layer_weights_match,
    same_elements,
    shape_of,
    value,
)
from .loss_probe import (
    COMPARES,
    LossOptions,
    RowEvaluator,
    Rows,
    capped,
    close,
    fit,
    loss_gradient,
    loss_probes,
)
from .probe import real
from .sites import (
    Derived,
    Left,
    Out,
    Site,
    allow_tf32,
    column_sums,
    give_bias_gradient,
    give_weight_gradient,
    recompute_tag,
    supported,
    wants_fp32,
    weight_gradient,
    weight_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

F = torch.ops.fusedops
ARRIVING = (1.25, -0.5, 1.0, 6e4, -1.0, 1e-3, 2.0)  # at the losses of the sets of probes
MOST_NODES = 400  # behind the logits of a loss; what has more is no loss


def find_loss(joint: Joint, product: Product) -> Site | Left | None:
    """A loss of which the product is the logits; None where nothing looks like one."""
    read = _read(joint, product)
    if read is None:
        return None
    unsupported = supported(product)
    if unsupported is not None:
        return unsupported
    if recompute_tag(product):
        return Left("activation checkpointing forms its logits again")
    return _LossSite(joint, product, read).find()


@dataclass(frozen=True)
class _Read:
    """What looks like a loss: its logits, its targets, and the nodes behind the product."""

    logits: Node  # as softmax reads them
    target: Node
    rows: Rows
    region: list[Node]


def _read(joint: Joint, product: Product) -> _Read | None:
    classes = product.sizes[1]
    if not joint.picks_elements:
        return None
    logits, cuts = _logits(joint, product.node)
    if logits is None or not isinstance(classes, int) or classes < 2 or len(cuts) > 1:
        return None
    region = _region(joint, product.node)
    gathers = [n for n in region if is_call(n, aten.gather.default)]
    if len(gathers) != 1:
        return None
    target = _target(gathers[0].args[2])
    counted = value(logits).numel() // classes
    if dtype_of(target) is not torch.int64 or not equal_sizes(value(target).numel(), counted):
        return None
    cut = cuts[0] if cuts else None
    return _Read(logits, target, Rows(counted, classes, cut, target, product.node), region)


def _logits(joint: Joint, z: Node) -> tuple[Node | None, list[Node]]:
    """The input of a maximum over rows of pointwise functions and slices of z, and the slices."""
    cuts: list[Node] = []
    inside = {z}
    for node in _region(joint, z):
        (*inputs,) = (i for i in node.all_input_nodes if isinstance(value(i), torch.Tensor))
        if not all(i in inside or is_constant(i) for i in inputs):
            continue
        if is_call(node, aten.amax.default) and inputs:
            rank = len(shape_of(inputs[0]))
            last = [d % rank for d in node.args[1]] == [rank - 1]
            return (inputs[0] if last else None), cuts
        if is_call(node, aten.slice.Tensor):
            cuts.append(node)
        elif not is_pointwise(node):
            continue
        inside.add(node)
    return None, []


def _region(joint: Joint, z: Node) -> list[Node]:
    """The nodes of forward behind z; none where these are too many for a loss."""
    seen: set[Node] = set()
    stack = [z]
    while stack:
        for user in stack.pop().users:
            if user not in seen and user not in joint.backward and user.op == "call_function":
                seen.add(user)
                stack.append(user)
        if len(seen) > MOST_NODES:
            return []
    return joint.in_order(seen)


def _target(node: Node) -> Node:
    """The class indices behind views, and behind a choice for the rows that do not count."""
    while True:
        if is_call(node, *SAME_ORDER):
            node = node.args[0]
        elif is_call(node, aten.where.self):
            one, two = node.args[1:]
            if is_constant(one) == is_constant(two):
                return node
            node = two if is_constant(one) else one
        else:
            return node


def _numbers(nodes: list[Node], *targets: Any) -> Iterator[Any]:
    """The numbers among the arguments of calls."""
    for node in nodes:
        if is_call(node, *targets):
            for arg in node.args[:2]:
                if isinstance(arg, Node) and is_constant(arg):
                    arg = arg.args[CONSTANTS[arg.target]]
                if isinstance(arg, (int, float)):
                    yield arg


class _LossSite:
    """A scalar that is the mean or sum of losses of rows, and the gradients of the product."""

    def __init__(self, joint: Joint, product: Product, read: _Read) -> None:
        self.joint, self.product, self.read = joint, product, read
        self.z = product.node

    def find(self) -> Site | Left:
        for ignore_index in self.indices():
            found = self.end(ignore_index)
            if found is not None:
                return self.site(*found)
        return Left("its loss is none that linear_cross_entropy forms")

    def indices(self) -> list[int]:
        """Targets that may be ignored."""
        compared = [n for n in self.joint.nodes if is_call(n, *COMPARES)]
        users = [n for n in compared if bare(n.args[0]) is self.read.target]
        return list(dict.fromkeys(int(n) for n in _numbers(users, *COMPARES)))

    def evaluators(self, ignore_index: int) -> list[RowEvaluator]:
        return [
            RowEvaluator(self.read.rows, ignore_index, {self.z: p.z, self.read.target: p.target})
            for p in loss_probes(ignore_index)
        ]

    def end(self, ignore_index: int) -> tuple[Node, LossOptions] | None:
        """The last number that is a loss."""
        evaluators = self.evaluators(ignore_index)
        softcap = self.softcap(evaluators[0], ignore_index)
        if softcap is None:
            return None
        for node in reversed(self.read.region):
            fake = value(node)
            if not isinstance(fake, torch.Tensor) or fake.dim() or not fake.is_floating_point():
                continue
            values = [evaluator(node) for evaluator in evaluators]
            options = fit(values, ignore_index, softcap, self.read.rows.classes)
            if options is not None:
                return node, options
        return None

    def softcap(self, evaluator: RowEvaluator, ignore_index: int) -> float | None:
        """0 where the logits are the product's, None where they are no cap of it."""
        got = evaluator(self.read.logits)
        z = loss_probes(ignore_index)[0].z
        scales = (aten.mul.Tensor, aten.mul.Scalar, aten.div.Tensor, aten.div.Scalar)
        numbers = [n for n in _numbers(self.read.region, *scales) if n > 0]
        for cap in dict.fromkeys([0.0, *numbers, *(1 / n for n in numbers)]):
            with real():
                want = capped(z, cap)
            if close(got, want):
                return float(cap)
        return None

    def site(self, end: Node, options: LossOptions) -> Site | Left:
        loss = self.product.node
        half = dtype_of(loss) in (torch.bfloat16, torch.float16)
        fp32_out = half and dtype_of(end) is torch.float32
        if dtype_of(end) is not dtype_of(loss) and not fp32_out:
            return Left("its loss has another dtype than linear_cross_entropy's")
        site = Site("linear_cross_entropy", "none", self.product.sizes, [self.product])
        parts = self.backward(options)
        if isinstance(parts, Left):
            return parts
        target = self.targets(options.ignore_index)
        if target is None:
            return Left("its rows are sliced by unknown sizes")
        gradients = [parts.wgrad[0].node] if parts.wgrad is not None else []
        needs = (parts.dgrad is not None, parts.wgrad is not None, bool(parts.sums))
        numbers = (options.ignore_index, options.label_smoothing, options.softcap, options.z_loss)
        site.step(
            F.linear_cross_entropy.default,
            (self.product.a, weight_of(self.product), self.product.bias, target, None, *numbers,
             REDUCTIONS["mean" if options.mean else "sum"], fp32_out, 0, *needs,
             wants_fp32([*gradients, *parts.sums]), allow_tf32(self.product)),
            end,
        )  # fmt: skip
        site.replace([end], Out(0, 0))
        site.facts |= {"training": any(needs), "bias": needs[2], "dx": needs[0], "dw": needs[1]}
        self.give(site, parts)
        return site

    def targets(self, ignore_index: int) -> Any:
        """The targets of all rows of the product; those that the slice leaves out are ignored."""
        target: Any = self.read.target
        cut = self.read.rows.cut
        if cut is None:
            return Derived(aten.reshape.default, (target, [-1]))
        sizes = self.joint.sizes_of(cut)
        source, dim, start, end = (*cut.args, 0, None, None)[:4]
        size = shape_of(source)[dim]
        if sizes is None or not isinstance(start, int) or start < 0 or not isinstance(end, int):
            return None
        if len(cut.args) > 4 and cut.args[4] != 1:
            return None
        if end >= 0 and not isinstance(size, int):
            return None
        behind = -end if end < 0 else max(size - end, 0)
        pads = [0, 0] * (len(sizes) - 2 - dim % len(sizes)) + [start, behind]
        lead = shape_of(cut)[:-1]
        if len(lead) != len(shape_of(target)) or not all(map(equal_sizes, lead, shape_of(target))):
            target = Derived(aten.reshape.default, (target, sizes[:-1]))
        whole = (target, pads, float(ignore_index))
        return Derived(aten.reshape.default, (Derived(aten.constant_pad_nd.default, whole), [-1]))

    def backward(self, options: LossOptions) -> _Parts | Left:
        parts = _Parts()
        evaluators = self.evaluators(options.ignore_index)
        for dz in self.dz_candidates():
            parts.dloss = self.dloss(dz, options, evaluators)
            if parts.dloss is None:
                return Left("its gradient is not that of the loss alone")
            parts.dgrad = next((p for p in self.dgrads() if same_elements(p.a, dz)), None)
            parts.wgrad = weight_gradient(self.joint, dz, self.is_x)
            parts.sums = column_sums([dz])
            break
        return parts

    def dgrads(self) -> list[Product]:
        return [p for p in self.joint.backward_products if layer_weights_match(self.product, p)]

    def is_x(self, node: Node) -> bool:
        return same_elements(node, self.product.a)

    def dz_candidates(self) -> Iterator[Node]:
        """What the products of the gradients read."""
        seen = {self.z, *self.read.region}
        for product in self.joint.backward_products:
            for one, other in ((product.left, product.right), (product.right, product.left)):
                fits = [equal_sizes(a, b) for a, b in zip(
                    shape_of(one.base), shape_of(self.z), strict=False)]  # fmt: skip
                reads = layer_weights_match(self.product, product) or self.is_x(other.base)
                if fits == [True, True] and reads and one.base not in seen:
                    yield one.base

    def dloss(self, dz: Node, options: LossOptions, evaluators: list[RowEvaluator]) -> Node | None:
        """The number that arrives at the loss."""
        classes, index = self.read.rows.classes, options.ignore_index
        probes = loss_probes(index)
        with real():
            arrives = [torch.tensor(v, dtype=torch.float64) for v in ARRIVING]
            wanted = [
                loss_gradient(probes[i], options, classes) * dloss
                for i, dloss in enumerate(arrives)
            ]
        for node in self.numbers_behind(dz):
            leaves = [
                {**self.leaves(e), node: dloss}
                for e, dloss in zip(evaluators, arrives, strict=False)
            ]
            values = (RowEvaluator(self.read.rows, index, known)(dz) for known in leaves)
            if all(map(close, values, wanted)):
                return node
        return None

    def leaves(self, evaluator: RowEvaluator) -> dict[Node, torch.Tensor]:
        found = {n: evaluator.known[n] for n in (self.z, self.read.target)}
        return {n: v for n, v in found.items() if v is not None}

    def numbers_behind(self, dz: Node) -> list[Node]:
        """The numbers of backward from which dz is computed, in order."""
        seen: set[Node] = set()
        stack = [bare(dz)]
        while stack:
            at = stack.pop()
            if at in seen or at not in self.joint.backward or len(seen) > MOST_NODES:
                continue
            seen.add(at)
            stack += at.all_input_nodes
        fakes = {n: value(n) for n in seen if isinstance(value(n), torch.Tensor)}
        numbers = [n for n, f in fakes.items() if f.dim() == 0 and f.is_floating_point()]
        return self.joint.in_order(numbers)

    def give(self, site: Site, parts: _Parts) -> None:
        """Gradients in the place of those of the product, times what arrives at the loss."""
        if parts.dloss is None:
            return
        half = dtype_of(self.z) in (torch.bfloat16, torch.float16)
        compute = torch.float32 if half else dtype_of(self.z)
        scale = Derived(aten.mul.Tensor, (Derived(CONVERT, (parts.dloss, compute)), Out(0, 1)))

        def scaled(item: int) -> Derived:
            return Derived(aten.mul.Tensor, (Out(0, item), scale))

        if parts.dgrad is not None:
            site.products.append(parts.dgrad)
            site.replace([parts.dgrad.node], scaled(2))
        if parts.wgrad is not None:
            give_weight_gradient(site, *parts.wgrad, scaled(3))
        give_bias_gradient(site, parts.sums, scaled(4))


class _Parts:
    """The nodes of a loss's backward, as far as they are there."""

    def __init__(self) -> None:
        self.dloss: Node | None = None
        self.dgrad: Product | None = None
        self.wgrad: tuple[Product, bool] | None = None
        self.sums: list[Node] = []
