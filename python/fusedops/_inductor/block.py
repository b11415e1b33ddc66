"""What the sites of mlp and gated_mlp share: the last product, its gradients, the residual."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .graph import (
    Joint,
    Product,
    dtype_of,
    equal_sizes,
    layer_weights_match,
    same_elements,
    shape_of,
)
from .sites import (
    Site,
    allow_tf32,
    ends_of,
    residual_of,
    rows,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.fx import Node

    from .probe import Evaluator


class Block:
    """What mlp and gated_mlp have in common."""

    leaves: list[Node]

    def __init__(self, joint: Joint, last: Product) -> None:
        self.joint, self.last = joint, last
        self.tf32 = allow_tf32(last)

    def hidden_is(self, closure: list[Node], want: Callable[[Node], bool]) -> Any:
        """Whether a node is what the last product reads."""
        inside = set(closure)
        hidden = self.last.a
        return lambda node: same_elements(node, hidden) or (node in inside and want(node))

    def gradients(
        self, wanted: Callable[[Node, Product], bool]
    ) -> tuple[Product, list[Node]] | None:
        """(the product that gives dh, pointwise functions of it and the leaves)."""
        for product in self.joint.backward_products:
            if not layer_weights_match(self.last, product):
                continue
            found = self.joint.closure((*self.leaves, product.node))
            if any(wanted(node, product) for node in found):
                return product, found
        return None

    def residual(self, site: Site) -> Any:
        """The residual as an argument; the add is replaced."""
        found = residual_of(self.joint, self.last)
        if found is None:
            return None
        add, product_side, other = found
        if add is not product_side:
            site.replace([add], product_side)
        site.facts["residual"] = True
        return rows(other, shape_of(self.last.node)[1])

    def ends(self, nodes: list[Node], want: Callable[[Node], bool]) -> list[Node]:
        """The nodes with a value, in the products' dtype, that something else reads."""
        return ends_of([n for n in nodes if want(n)], dtype_of(self.last.node))


@dataclass
class Parts:
    """The nodes of a block's backward, as far as they are there."""

    dy: Node | None = None
    dh: Product | None = None  # dy @ w_down
    dz: list[Node] = field(default_factory=list)
    dw: tuple[Product, bool] | None = None
    values: dict[Node, Evaluator] = field(default_factory=dict)  # by the node of dh


def dy_of_weight_gradient(joint: Joint, last: Product, is_hidden: Any) -> Node | None:
    """dy where nothing but the last weight has a gradient."""
    m, n, _ = last.sizes
    for product in joint.backward_products:
        a, b = product.left, product.right
        if not a.transposed or b.transposed:
            continue
        for hidden, dy in ((b.base, a.base), (a.base, b.base)):
            shape = shape_of(dy)
            fits = len(shape) == 2 and equal_sizes(shape[0], m) and equal_sizes(shape[1], n)
            if is_hidden(hidden) and fits:
                return dy
    return None
