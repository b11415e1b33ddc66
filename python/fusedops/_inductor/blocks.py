"""Sites of two and three products, found from the last one.

What stands before it is a pointwise function of one other product (`mlp`), or of two, or of the
halves of one (`gated_mlp`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .gated import GateAndUp, GatedSite
from .mlp import MlpSite

if TYPE_CHECKING:
    from .graph import Joint, Product
    from .sites import Left, Site


def find_block(joint: Joint, last: Product) -> Site | Left | None:
    """The block that ends in a product; None where it is the end of none."""
    leaves = joint.leaves(last.a, 2)
    if not leaves:
        return None
    by_node = {p.node: p for p in joint.forward_products}
    if len(leaves) == 1:
        first = by_node.get(leaves[0])
        return None if first is None else MlpSite(joint, first, last).find()
    gate = GateAndUp.of(leaves, by_node)
    return None if gate is None else GatedSite(joint, gate, last).find()
