"""Convolutions of a joint graph: their calls, how tensors lie in memory, and what is written."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from .emit import Writer
from .graph import Joint, aten, equal_sizes, erase_unread, is_call, item_of, shape_of, value
from .report import LeftProduct, ReplacedSite, where
from .sites import Left

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.fx import Node
    from typing_extensions import Self

    from .decide import Verdict
    from .report import InductorReport

Pairs = list[tuple["Node", "Node"]]  # (old, new)

FORWARD, BACKWARD = aten.convolution.default, aten.convolution_backward.default
DENSE = {"memory_format": torch.contiguous_format}


@dataclass(frozen=True)
class Convolution:
    """A call of aten.convolution, or of its backward; a subclass is a kind that a rule is for."""

    kind: ClassVar[str]  # for reports
    label: ClassVar[str]  # the same in words

    node: Node
    dy: Node | None  # of a backward
    x: Node
    weight: Node
    bias: Node | None
    numbers: tuple[Any, ...]  # stride, padding, dilation, transposed, output padding, groups

    @classmethod
    def of(cls, node: Node) -> Self:
        """The call, as its arguments stand in ATen's signatures."""
        if node.target is FORWARD:
            x, weight, bias = node.args[:3]
            return cls(node, None, x, weight, bias, tuple(node.args[3:9]))
        dy, x, weight = node.args[:3]
        return cls(node, dy, x, weight, None, tuple(node.args[4:10]))

    @property
    def kernel(self) -> tuple[Any, ...]:
        return shape_of(self.weight)[2:]

    @property
    def stride(self) -> tuple[Any, ...]:
        stride = tuple(self.numbers[0])
        return stride * len(self.kernel) if len(stride) == 1 else stride

    def tensors(self) -> list[Node]:
        return [n for n in (self.x, self.weight, self.bias, self.dy) if n is not None]

    def gradients(self) -> list[tuple[int, Node]]:
        """(index, node) of each gradient that is read: of x, weight and bias."""
        found = ((item_of(user), user) for user in list(self.node.users))
        pairs = [(item[1], user) for item, user in found if item is not None]
        return [(i, user) for i, user in pairs if value(user) is not None]

    # What a kind says

    def is_one(self) -> bool:
        """Whether it is one of this kind."""
        raise NotImplementedError

    def why_left(self) -> str | None:
        """Why it cannot be written anew, None where it can."""
        raise NotImplementedError

    def verdict(self, force: bool) -> Verdict:
        """Whether that pays."""
        raise NotImplementedError

    @property
    def sizes(self) -> str:
        """For reports."""
        raise NotImplementedError

    def written(self, writer: Writer) -> Pairs:
        """Writes it anew."""
        raise NotImplementedError


def replace_convolutions(
    graph: torch.fx.Graph,
    kinds: Sequence[type[Convolution]],
    force: bool,
    report: InductorReport,
) -> None:
    """Write convolutions of some kinds anew where that pays, in a graph in order."""
    for kind in kinds:
        groups: dict[tuple[Node, Node], list[Convolution]] = {}
        for node in graph.nodes:
            if is_call(node, FORWARD, BACKWARD) and (found := kind.of(node)).is_one():
                groups.setdefault((found.x, found.weight), []).append(found)
        joint = Joint(graph) if groups else None
        for group in groups.values():
            _replace(joint, group, force, report)


def _replace(joint: Any, group: list[Convolution], force: bool, report: InductorReport) -> None:
    """Convolutions of one x and one weight: a forward and its backwards."""
    first, reason = group[0], ""
    at, sizes = where(first.node), first.sizes
    why = next((why for one in group if (why := one.why_left()) is not None), None)
    if why is None:
        verdict = first.verdict(force)
        reason, why = verdict.reason, None if verdict.take else verdict.reason
    if why is None:
        left = next((left for one in group if (left := _emit(joint, one)) is not None), None)
        why = None if left is None else left.reason
    if why is not None:
        report.left.append(LeftProduct(at, sizes, f"{first.label}: {why}"))
        return
    training = any(one.dy is not None for one in group)
    report.replaced.append(ReplacedSite(first.kind, at, sizes, "none", training, reason))


def _emit(joint: Joint, found: Convolution) -> Left | None:
    """Write one call anew; the graph is as it was where that fails."""
    writer = Writer(joint)
    writer.at(found.node)
    env = value(found.x).fake_mode.shape_env
    try:
        # NOTE: what is written holds for all sizes, so that the fakes need no guards.
        with nullcontext() if env is None else env.suppress_guards():
            pairs = found.written(writer)
    except Exception as error:  # nothing in a user's graph may stop the compilation
        for node in reversed(writer.made):
            joint.graph.erase_node(node)
        return Left(f"cannot be written: {type(error).__name__}: {error}")
    for old, new in pairs:
        old.replace_all_uses_with(new)
    erase_unread(joint.graph, [old for old, _ in pairs])
    return None


# ---- how tensors lie in memory ----


def channels_last(rank: int) -> list[int]:
    """The permutation from (N, C, ...) to (N, ..., C)."""
    return [0, *range(2, rank), 1]


def channels_first(rank: int) -> list[int]:
    """The permutation from (N, ..., C) to (N, C, ...)."""
    return [0, rank - 1, *range(1, rank - 1)]


def is_dense(fake: torch.Tensor, order: list[int] | None = None) -> bool:
    """Whether a tensor is contiguous with its dims in an order, for every input; adds no guard."""
    stride: Any = 1
    for dim in reversed(range(fake.dim()) if order is None else order):
        size = fake.shape[dim]
        if not equal_sizes(size, 1) and not equal_sizes(fake.stride(dim), stride):
            return False
        stride = stride * (size if isinstance(size, int) else torch.sym_max(size, 1))
    return True


def lies_last(fake: torch.Tensor) -> bool:
    """Whether the channels of x (N, C, ...) are its innermost dim."""
    return not is_dense(fake) and equal_sizes(fake.stride(1), 1)


class Layouts:
    """Writes tensors anew in other layouts."""

    def __init__(self, writer: Writer, dims: int) -> None:
        self.call, self.dims = writer.call, dims

    def laid(self, node: Node, last: bool, old: Node) -> Node:
        """(N, C, ...), given as that or as (N, ..., C), in memory like another node."""
        fake, dims = value(old), self.dims
        wants_last = not is_dense(fake)
        if wants_last and not is_dense(fake, channels_last(dims)):
            raise ValueError(f"strides {fake.stride()} of {old.name}")
        if last is not wants_last:
            order = channels_first(dims) if last else channels_last(dims)
            node = self.dense(self.permuted(node, order))
        return self.permuted(node, channels_first(dims)) if wants_last else node

    def dense(self, node: Node) -> Node:
        if is_dense(value(node)):
            return node
        return self.call(aten.clone.default, (node,), DENSE)

    def view(self, node: Node, shape: list[Any]) -> Node:
        return self.call(aten.view.default, (node, shape))

    def permuted(self, node: Node, order: list[int]) -> Node:
        return self.call(aten.permute.default, (node, order))
