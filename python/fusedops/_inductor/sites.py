"""A site: nodes of a graph that compute what some of our ops compute, and how those stand for them.

A site is a plan and changes nothing: steps (calls of ops), and which nodes get which results. It
says which products must be gone afterwards; `check` makes sure of that and that no step would need
its own result.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.fx import Node

from ..ops.linear import _tf32_allowed
from .graph import (
    CONVERT,
    SAME_ORDER,
    Joint,
    Product,
    aten,
    dtype_of,
    is_call,
    operand,
    same_elements,
    same_shape,
    shape_of,
    transposes,
    value,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


class Out(NamedTuple):
    """A result of an earlier step of the site."""

    step: int
    item: int


class Derived(NamedTuple):
    """A call of an ATen op on nodes, results and numbers: a view or a copy around our ops."""

    op: Any
    args: tuple[Any, ...]
    kwargs: Any = None


@dataclass(frozen=True)
class Step:
    """A call of one of our ops, in the place of the node `like`."""

    op: Any
    args: tuple[Any, ...]
    like: Node


class Replacement(NamedTuple):
    """The node's readers get the value instead, in the node's shape and dtype."""

    node: Node
    value: Any


class Left(NamedTuple):
    """A reason to leave something alone."""

    reason: str


@dataclass
class Site:
    """What is found, and what stands for it.

    Attributes:
        kind: "mlp", "gated_mlp", "linear_cross_entropy", "linear", "weight_grad", "product",
            "embedding_grad".
        activation: Its name.
        sizes: M, H, K and N of a block; M, N and K of a product.
        products: Products that are gone afterwards.
        facts: What the decision depends on besides: training, bias, residual, packed, ...
    """

    kind: str
    activation: str
    sizes: tuple[Any, ...]
    products: list[Product]
    steps: list[Step] = field(default_factory=list)
    replacements: list[Replacement] = field(default_factory=list)
    facts: dict[str, bool] = field(default_factory=dict)

    @property
    def node(self) -> Node:
        """The first product."""
        return self.products[0].node

    def step(self, op: Any, args: tuple[Any, ...], like: Node) -> int:
        self.steps.append(Step(op, args, like))
        return len(self.steps) - 1

    def replace(self, nodes: list[Node], by: Any) -> None:
        self.replacements += [Replacement(node, by) for node in nodes]

    def check(self, joint: Joint) -> Left | None:
        """Why the site cannot be replaced, None where it can."""
        replaced = {r.node for r in self.replacements}
        needed = [n for step in self.steps for n in nodes_in(step.args)]
        needed += [n for replacement in self.replacements for n in nodes_in(replacement.value)]
        kept = [p.node.name for p in self.products if joint.is_alive(p.node, replaced, set(needed))]
        if kept:
            return Left(f"{', '.join(kept)} would still be needed: something else reads from it")
        for backward in (False, True):
            inputs = [
                n
                for step in self.steps
                if (step.like in joint.backward) is backward
                for n in nodes_in(step.args)
            ]
            results = {n for n in replaced if (n in joint.backward) is backward}
            if joint.depends_on(inputs, results):
                return Left("an input is computed from the result")
        if not all(joint.sizes_of(n) is not None for n in replaced):
            return Left("its shape cannot be written with the sizes that the graph has")
        return None


def nodes_in(args: Any) -> Iterator[Node]:
    """The nodes in nested arguments."""
    if isinstance(args, Node):
        yield args
    elif isinstance(args, (tuple, list)):
        for arg in args:
            yield from nodes_in(arg)


# ---- what the finders share ----


def weight_of(product: Product) -> Any:
    """The weight (N, K) of x @ weight.T."""
    base, transposed = product.right
    return base if transposed else transpose(base)


def transpose(matrix: Any) -> Derived:
    return Derived(aten.permute.default, (matrix, [1, 0]))


def rows(node: Node, columns: Any) -> Any:
    """The node as (M, columns)."""
    if len(shape_of(node)) == 2:
        return node
    return Derived(aten.reshape.default, (node, [-1, columns]))


def select(node: Any, dim: int, index: int) -> Derived:
    return Derived(aten.select.int, (node, dim, index))


def allow_tf32(product: Product) -> bool:
    fake = value(product.node)
    return fake.dtype is torch.float32 and fake.device.type == "cuda" and _tf32_allowed()


def recompute_tag(product: Product) -> str:
    """How activation checkpointing marks a product: "", or the policy's name."""
    policy = product.node.meta.get("recompute")
    return "" if policy is None else getattr(policy, "name", str(policy))


def is_recomputed(product: Product) -> bool:
    return recompute_tag(product).endswith("RECOMPUTE")


def supported(*products: Product) -> Left | None:
    """None where our ops take the products."""
    tensors = [value(n) for p in products for n in (p.node, p.a, p.b) if n is not None]
    kinds = {t.dtype for t in tensors}
    if len(kinds) != 1 or not kinds <= set(DTYPES):
        return Left("mixed or unsupported dtypes")
    if any(p.bias is not None and dtype_of(p.bias) not in kinds for p in products):
        return Left("a bias of another dtype")
    if len({recompute_tag(p) for p in products}) > 1:
        return Left("activation checkpointing treats its products differently")
    return None


def end_of_gradient(node: Node) -> tuple[Node, bool]:
    """(node, whether transposed): where a parameter's gradient ends up, looking through its casts.

    A cast to float32 is part of it: our kernels give the gradient of a master weight without the
    stop in half precision.
    """
    transposed = False
    while len(node.users) == 1:
        (user,) = node.users
        if transposes(user):
            transposed = not transposed
        elif is_call(user, *SAME_ORDER):
            if len(shape_of(user)) != 1 and not same_shape(user, node):
                break
        elif not (is_call(user, CONVERT) and user.args[1] is torch.float32):
            break
        node = user
    return node, transposed


def ends_of(nodes: list[Node], dtype: torch.dtype) -> list[Node]:
    """Those of nodes with one value which something else reads, where they have the dtype."""
    same = set(nodes)
    return [n for n in nodes if dtype_of(n) is dtype and any(u not in same for u in n.users)]


def column_sums(nodes: list[Node]) -> list[Node]:
    """The sums over all but the last dimension of nodes with one value."""
    found: dict[Node, None] = {}
    stack = list(nodes)
    while stack:
        at = stack.pop()
        for user in at.users:
            if is_call(user, *SAME_ORDER):
                stack.append(user)
            elif is_call(user, aten.sum.dim_IntList) and "dtype" not in user.kwargs:
                rank = len(shape_of(at))
                dims = sorted(d % rank for d in user.args[1])
                if dims == list(range(rank - 1)) and same_last(at, nodes[0]):
                    found[user] = None
    return list(found)


def same_last(a: Node, b: Node) -> bool:
    one, two = shape_of(a)[-1], shape_of(b)[-1]
    return isinstance(one, int) and one == two


def give_bias_gradient(site: Site, sums: list[Node], by: Any) -> None:
    for node in sums:
        site.replace([end_of_gradient(node)[0]], by)


def weight_gradient(joint: Joint, dy: Node, is_x: Any) -> tuple[Product, bool] | None:
    """(product, whether transposed) that forms dy.T @ x; transposed: x.T @ dy."""
    for product in joint.backward_products:
        a, b = product.left, operand(product.b)
        if not a.transposed or b.transposed:
            continue
        if same_elements(a.base, dy) and is_x(b.base):
            return product, False
        if same_elements(b.base, dy) and is_x(a.base):
            return product, True
    return None


def give_weight_gradient(site: Site, product: Product, transposed: bool, by: Any) -> None:
    """The product's readers get `by`, which is dy.T @ x."""
    end, turned = end_of_gradient(product.node)
    if transposed != turned:
        dense = {"memory_format": torch.contiguous_format}
        by = Derived(aten.clone.default, (transpose(by),), dense)
    site.replace([end], by)
    site.products.append(product)


def wants_fp32(nodes: list[Node]) -> bool:
    """Whether parameter gradients that end in these nodes are best formed in float32."""
    ends = [end_of_gradient(n)[0] for n in nodes]
    return any(dtype_of(n) is torch.float32 for n in ends)


def residual_of(joint: Joint, product: Product) -> tuple[Node, Node, Node] | None:
    """(add, the product's side of it, residual) where the product is only read to be added."""
    node = product.node
    while len(node.users) == 1:
        (user,) = node.users
        if is_call(user, *SAME_ORDER):
            node = user
            continue
        if not is_call(user, aten.add.Tensor) or user.kwargs or user in joint.backward:
            return None
        one, two = user.args[:2]
        other = two if one is node else one
        if not isinstance(other, Node) or other is node:
            return None
        fits = same_shape(other, node) and dtype_of(other) is dtype_of(node)
        if not fits or joint.depends_on([other], {product.node}):
            return None
        return user, node, other
    return None
