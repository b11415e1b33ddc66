"""The pass itself: Inductor's joint_custom_pre_pass."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass

from .. import _C
from .._core.precision import fp32_precisions
from .biases import join_biases
from .blocks import find_block
from .convolution import replace_convolutions
from .decide import decide
from .depthwise import Depthwise
from .embedding import find_embedding_gradient, scatters
from .emit import emit, share_sizes
from .graph import Joint
from .layers import find_layer, find_product, find_weight_gradient
from .loss import find_loss
from .patches import Patches
from .report import InductorReport
from .sites import Left, Site

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.fx import Node

    from .decide import Verdict

NO_EPILOGUE = "a product with nothing behind it that an epilogue could take: cuBLAS's"
UNREADABLE = "the pass cannot read what stands around it"
Finder = Callable[[Joint, Any], Site | Left | None]


class PassBehind(CustomGraphPass):
    """A pass behind one that the user had set, or none: `first`, as Inductor takes it."""

    def __init__(self, first: Any = None) -> None:
        self.first = first

    def key(self, *parts: Any) -> str | None:
        """A cache key of these parts and of the first pass; None where that has none."""
        first = None
        if self.first is not None:
            first = self.first.uuid() if isinstance(self.first, CustomGraphPass) else None
            if first is None:
                return None  # as for that pass alone: nothing is cached
        return hashlib.sha256(repr((*parts, first)).encode()).hexdigest()

    def __call__(self, graph: torch.fx.Graph) -> None:
        if self.first is not None:
            self.first(graph)
        self.rewrite(graph)

    def rewrite(self, graph: torch.fx.Graph) -> None:
        raise NotImplementedError


class GraphPass(PassBehind):
    """Finds what our ops compute in a joint graph, and replaces what pays.

    Args:
        force: Replace all that is found, whether it pays or not.
        first: A pass to run before, as Inductor takes it: one that the user had set.
    """

    def __init__(self, force: bool = False, first: Any = None) -> None:
        super().__init__(first)
        self.force = force
        self.report = InductorReport()

    def uuid(self) -> Any:
        """What the result depends on, besides what Inductor's cache keys hold already."""
        return self.key(sources(), _tuned_plans(), self.force, fp32_precisions())

    def rewrite(self, graph: torch.fx.Graph) -> None:
        self.report.graphs += 1
        _Rewriter(graph, self.force, self.report).run()


class _Rewriter:
    def __init__(self, graph: torch.fx.Graph, force: bool, report: InductorReport) -> None:
        self.graph, self.force, self.report = graph, force, report
        replace_convolutions(graph, (Patches, Depthwise), force, report)
        share_sizes(graph)
        join_biases(graph)
        self.joint = Joint(graph)
        self.reasons: dict[Node, str] = {}  # why a product stays

    def run(self) -> None:
        self.each(lambda j: j.forward_products[::-1], find_loss)
        # Blocks before layers: a block is more than its layers. From the end: behind the last of
        # some layers stands no activation, which a block could not take.
        self.each(lambda j: j.forward_products[::-1], find_block)
        self.each(lambda j: j.forward_products, find_layer)
        self.each(lambda j: j.backward_products, find_weight_gradient)
        for product in self.joint.forward_products:
            self.reasons.setdefault(product.node, NO_EPILOGUE)
        self.each(lambda j: j.forward_products, find_product)
        self.each(lambda j: j.backward_products, find_product)
        self.each(scatters, find_embedding_gradient)
        self.graph.eliminate_dead_code()
        for product in self.joint.forward_products:
            self.report.leave(product, self.reasons[product.node])

    def each(
        self,
        products: Callable[[Joint], list[Any]],  # or whatever has a `node`
        find: Finder,
    ) -> None:
        """Try every product once; after a replacement the graph is read anew."""
        tried: set[Node] = set()
        while (product := next(self.untried(products, tried), None)) is not None:
            tried.add(product.node)
            left = self.tried(find, product)
            if left is not None:
                self.reasons.setdefault(product.node, left.reason)

    def tried(self, find: Finder, product: Any) -> Left | None:
        """Replace what is found, or say why not."""
        site, left = self.found(find, product)
        if site is None:
            return left
        try:
            verdict = decide(site, self.force)
        except Exception as error:  # nothing may stop the compilation
            return Left(f"cannot be measured: {type(error).__name__}: {error}")
        if not verdict.take:
            return Left(verdict.reason)
        return self.checked(site) or self.replaced(site, verdict)

    def found(self, find: Finder, product: Any) -> tuple[Site | None, Left | None]:
        """A site, or why there is none; nothing in a user's graph may stop the compilation."""
        try:
            site = find(self.joint, product)
        except Exception as error:
            return None, _unreadable(error)
        return (site, None) if isinstance(site, Site) else (None, site)

    def checked(self, site: Site) -> Left | None:
        try:
            return site.check(self.joint)
        except Exception as error:
            return _unreadable(error)

    def untried(self, products: Callable[[Joint], list[Any]], tried: set[Node]) -> Iterator[Any]:
        return (p for p in products(self.joint) if p.node not in tried)

    def replaced(self, site: Site, verdict: Verdict) -> Left | None:
        from torch._inductor.pattern_matcher import stable_topological_sort

        try:
            emit(self.joint, site)
        except Exception as error:
            return _unreadable(error)
        self.report.add(site, verdict)
        stable_topological_sort(self.graph)
        self.joint = Joint(self.graph)
        return None


def declare_fallbacks(graph: torch.fx.Graph) -> None:
    """Tell Inductor which ops of ours it has no lowering for, before it finds out.

    For its log it would write down what the first call of each reads, and what that was made of, as
    often as it is read: behind the sixteen blocks of a ResNet-50 that takes more than minutes.
    """
    from torch._inductor.lowering import lowerings, make_fallback, tag_to_layout_constraint
    from torch._library.utils import get_layout_constraint_tag

    # NOTE: an op that writes into its arguments is an argument of auto_functionalized.
    for op in (op for node in graph.nodes for op in (node.target, *node.args[:1])):
        is_ours = isinstance(op, torch._ops.OpOverload) and op.namespace == "fusedops"
        if is_ours and op not in lowerings:
            make_fallback(op, tag_to_layout_constraint(get_layout_constraint_tag(op)))


def _unreadable(error: Exception) -> Left:
    return Left(f"{UNREADABLE}: {type(error).__name__}: {error}")


@functools.cache
def sources() -> str:
    """Our code: the Python sources, and the compiled module by its size and date."""
    digest = hashlib.sha256()
    root = Path(__file__).parent.parent
    for path in sorted(root.rglob("*.py")):
        digest.update(path.read_bytes())
    built = Path(_C.__file__).stat()
    digest.update(repr((_C.build_info(), built.st_size, built.st_mtime_ns)).encode())
    return digest.hexdigest()


def _tuned_plans() -> str:
    """The plans that `fusedops.tune` stored for the current GPU: the time model reads them."""
    if not torch.cuda.is_available():
        return ""
    from .._tuning.plan_store import gpu_key

    try:
        return hashlib.sha256(
            gpu_key(torch.device("cuda", torch.cuda.current_device())).path.read_bytes()
        ).hexdigest()
    except OSError:
        return ""
