"""Attention masks that are causal or full: Inductor's pre_grad_custom_pass.

Models of transformers make a mask of positions while they are traced, where they would otherwise
say is_causal. With a mask torch takes slower kernels of attention, and the mask is memory besides.
A mask that depends on no input is evaluated here, and where it is the lower triangle or hides
nothing, attention is told so. Another one, a bias with a gradient for example, loses the copies
that it has for a batch. This is before autograd, which chooses the kernel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..graph import reached_from
from ..graph_pass import PassBehind, sources
from . import values
from .axes import shape_of
from .one_of_batch import one_of_batch
from .values import constant, plain_torch, value_of

if TYPE_CHECKING:
    from torch.fx import Graph, Node

    from ..report import InductorReport

ARGUMENTS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")  # by their places
RANK = 4  # of a mask with a dimension of the batch and one of heads


class MaskPass(PassBehind):
    """Replaces masks in calls of scaled_dot_product_attention.

    Args:
        report: Where the calls are counted.
        first: A pass to run before, as Inductor takes it: one that the user had set.
    """

    def __init__(self, report: InductorReport, first: Any = None) -> None:
        super().__init__(first)
        self.report = report

    def uuid(self) -> Any:
        """What the result depends on, besides the graph."""
        return self.key(sources())

    def rewrite(self, graph: Graph) -> None:
        known: dict[tuple[Node, tuple[int, int]], str | None] = {}
        changed: list[Node] = []
        rows: dict[Node, Node | None] = {}
        for node in graph.find_nodes(
            op="call_function", target=F.scaled_dot_product_attention, sort=False
        ):
            mask, sizes = _mask_of(node), _lengths(node)
            if mask is None or sizes is None:
                continue
            key = (mask, sizes)  # calls may share a mask that is broadcast
            if key not in known:
                known[key] = _meaning(graph, mask, sizes)
            if known[key] is not None:
                _say(node, causal=known[key] == "causal")
                self.report.masks += 1
                changed.append(node)
                continue
            if mask not in rows:
                rows[mask] = (
                    one_of_batch(graph, mask) if len(shape_of(mask) or ()) == RANK else None
                )
            row = rows[mask]
            if row is not None:
                node.replace_input_with(mask, row)
                self.report.shared_masks += 1
        _free_views(changed)


def _arguments(node: Node) -> dict[str, Any]:
    """What a call of attention is given, by name."""
    return {**dict(zip(ARGUMENTS, node.args, strict=False)), **node.kwargs}


def _mask_of(node: Node) -> Node | None:
    """The mask of a call that has no other word on it."""
    arguments = _arguments(node)
    mask = arguments.get("attn_mask")
    if not isinstance(mask, torch.fx.Node) or arguments.get("is_causal") not in (None, False):
        return None
    return mask


def _lengths(node: Node) -> tuple[int, int] | None:
    """How many queries and keys there are, where that is fixed."""
    given = _arguments(node)
    query, key = value_of(given.get("query")), value_of(given.get("key"))
    if query is None or key is None or query.dim() < 2 or key.dim() < 2:
        return None
    rows, columns = query.shape[-2], key.shape[-2]
    return (rows, columns) if type(rows) is int and type(columns) is int else None


def _meaning(graph: Graph, mask: Node, sizes: tuple[int, int]) -> str | None:
    """ "causal" or "full", or None: anything else, or what cannot be known here."""
    if sizes[0] * sizes[1] > values.LARGEST:
        return None
    value = constant(graph, mask)
    if value is None:
        return None
    with plain_torch():
        return _meaning_of(value, sizes)


def _meaning_of(value: Tensor, sizes: tuple[int, int]) -> str | None:
    if value.dim() < 2 or not (value.dtype is torch.bool or value.is_floating_point()):
        return None
    try:
        wide = value.expand(*value.shape[:-2], *sizes)
    except RuntimeError:
        return None
    # Copies of a batch are one in memory.
    for i, stride in enumerate(wide.stride()[:-2]):
        if stride == 0:
            wide = wide.narrow(i, 0, min(1, wide.shape[i]))
    if wide.numel() == 0 or wide.numel() > values.LARGEST:
        return None
    seen = wide if wide.dtype is torch.bool else wide == 0
    if bool(seen.all()):
        return "full"
    # NOTE: what is added hides nothing unless it is the least number; a causal row sees something.
    if seen is not wide and not bool((seen | (wide <= torch.finfo(wide.dtype).min)).all()):
        return None
    triangle = torch.ones(sizes, dtype=torch.bool).tril()
    return "causal" if bool((seen == triangle).all()) else None


def _free_views(changed: list[Node]) -> None:
    """Let views behind attention copy: without a mask its result may lie otherwise in memory.

    On a GPU flash attention lays it out as the query; kernels that take a mask need not.
    """
    for node in reached_from(changed):
        is_view = node.op == "call_method" and node.target == "view" and not node.kwargs
        if is_view and not isinstance(node.args[1], torch.dtype):
            node.target = "reshape"


def _say(node: Node, *, causal: bool) -> None:
    """Say in a call what its mask means."""
    given = _arguments(node) | {"attn_mask": None, "is_causal": causal}
    node.args = node.args[:3]
    by_place = ARGUMENTS[: len(node.args)]
    node.kwargs = {name: value for name, value in given.items() if name not in by_place}
