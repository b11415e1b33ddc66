"""A pass before autograd that looks at each call of a graph."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from ..graph_pass import PassBehind, sources
from .axes import name_of

if TYPE_CHECKING:
    from torch.fx import Graph, Node

    from ..report import InductorReport

# Calls that begin a transform of torch.func or forward-mode AD, to which our functions are opaque.
_TRANSFORMS = ("_increment_nesting", "_enter_dual_level")


class NodePass(PassBehind):
    """Offers all calls to `visit`, in order.

    Args:
        report: Where it lists what it replaces.
        force: Replace all that is found, whether it pays or not.
        first: A pass to run before, as Inductor takes it.
    """

    def __init__(self, report: InductorReport, force: bool = False, first: Any = None) -> None:
        super().__init__(first)
        self.report, self.force = report, force

    def uuid(self) -> Any:
        """What the result depends on, besides the graph."""
        return self.key(sources(), self.force)

    def rewrite(self, graph: Graph) -> None:
        nodes = list(graph.nodes)
        if any(name_of(node).endswith(_TRANSFORMS) for node in nodes):
            return
        for node in nodes:
            # NOTE: nothing in a user's graph may stop the compilation.
            with contextlib.suppress(Exception):
                self.visit(graph, node)

    def visit(self, graph: Graph, node: Node) -> None:
        """Replace what ends in a call, if it is what the pass is for."""
        raise NotImplementedError


def as_ours(meta: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The meta of a call of a function of ours, from that of the call in whose place it stands.

    AOTAutograd's cache keeps graphs with such functions by this key.
    """
    return {**meta, "is_wrapped": True, "user_cache_hash": sources(), **more}
