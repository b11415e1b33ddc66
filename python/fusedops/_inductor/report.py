"""What the pass did: which sites were replaced, which were left and why."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .._core.text import table

if TYPE_CHECKING:
    from torch.fx import Node

    from .decide import Verdict
    from .graph import Product
    from .sites import Site


@dataclass(frozen=True)
class ReplacedSite:
    """One place of a graph where our ops stand now, or products in a convolution's place."""

    kind: str  # of Site: "mlp", "gated_mlp", "linear_cross_entropy", ...; "patches", "depthwise"
    where: str  # the module that it belongs to, as far as the graph says
    shape: str
    activation: str
    training: bool
    reason: str


@dataclass(frozen=True)
class LeftProduct:
    """One product, or convolution that a rule is for, of a graph that stayed what it is."""

    where: str
    shape: str
    reason: str


@dataclass
class InductorReport:
    """What the graph pass did so far: print it for a table.

    Graphs that come out of Inductor's caches are not in it: the pass does not run for them.

    Attributes:
        replaced: The sites where our ops stand, and convolutions of patches that are products now.
        left: The forward products and convolutions that stayed, with the reason.
        graphs: How many graphs the pass has seen.
        masks: How many calls of attention have become causal or free of a mask.
        shared_masks: How many read one mask for all of a batch, which had a copy for each of it.
    """

    replaced: list[ReplacedSite] = field(default_factory=list)
    left: list[LeftProduct] = field(default_factory=list)
    graphs: int = 0
    masks: int = 0
    shared_masks: int = 0

    def kinds(self) -> list[str]:
        """The kinds of the replaced sites."""
        return [site.kind for site in self.replaced]

    def clear(self) -> None:
        """Forget what was seen."""
        self.replaced.clear()
        self.left.clear()
        self.graphs = self.masks = self.shared_masks = 0

    def add(self, site: Site, verdict: Verdict) -> None:
        self.replaced.append(
            ReplacedSite(
                site.kind,
                where(site.node),
                " x ".join(map(str, site.sizes)),
                site.activation,
                site.facts.get("training", False),
                verdict.reason,
            )
        )

    def leave(self, product: Product, reason: str) -> None:
        shape = " x ".join(map(str, product.sizes))
        self.left.append(LeftProduct(where(product.node), shape, reason))

    def __str__(self) -> str:
        lines = [
            f"{self.graphs} graph(s) compiled, {len(self.replaced)} site(s) replaced, "
            f"{len(self.left)} product(s) left"
        ]
        if self.masks:
            lines.append(f"{self.masks} call(s) of attention are causal or full instead of masked")
        if self.shared_masks:
            lines.append(f"{self.shared_masks} call(s) of attention read one mask for a batch")
        rows = [
            (s.where, s.kind, s.shape, s.activation, "step" if s.training else "forward", s.reason)
            for s in self.replaced
        ]
        if rows:
            header = ("replaced at", "op", "sizes", "activation", "pass", "why")
            lines += ["", *table(header, rows)]
        if self.left:
            left = [(p.where, p.shape, p.reason) for p in self.left]
            lines += ["", *table(("left at", "M x N x K", "why"), left)]
        if not self.graphs:
            lines.append("(a graph that Inductor's cache holds is not read again)")
        return "\n".join(lines)

    __repr__ = __str__


def where(node: Node) -> str:
    """The innermost module that a node comes from, or the node's name."""
    stack = node.meta.get("nn_module_stack") or {}
    paths = [entry[0] if isinstance(entry, tuple) else str(entry) for entry in stack.values()]
    path = paths[-1] if paths else ""
    for prefix in ("L['self'].", "L['self']"):
        path = path.removeprefix(prefix)
    return path or node.name
