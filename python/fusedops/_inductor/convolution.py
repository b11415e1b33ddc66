"""Convolutions of a joint graph: their calls, how tensors lie in memory, and what is written."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from .emit import Writer
from .graph import Joint, aten, equal_sizes, erase_unread, is_call, item_of, shape_of, value
from .report import LeftProduct, ReplacedSite, where
from .sites import Left

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch.fx import Node
    from typing_extensions import Self

    from .report import InductorReport

Pairs = list[tuple["Node", "Node"]]  # (old, new)
LABELS = {"patches": "a convolution of patches", "depthwise": "a depthwise convolution"}

FORWARD, BACKWARD = aten.convolution.default, aten.convolution_backward.default
DENSE = {"memory_format": torch.contiguous_format}


@dataclass(frozen=True)
class Convolution:
    """A call of aten.convolution, or of its backward."""

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

    def is_one(self) -> bool:
        """Whether it is one of this kind."""
        raise NotImplementedError

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


Kind = TypeVar("Kind", bound=Convolution)


def groups_of(graph: torch.fx.Graph, kind: type[Kind]) -> list[list[Kind]]:
    """Convolutions of a kind with one x and one weight each, a forward and its backwards."""
    groups: dict[tuple[Node, Node], list[Kind]] = {}
    for node in graph.nodes:
        if is_call(node, FORWARD, BACKWARD):
            found = kind.of(node)
            if found.is_one():
                groups.setdefault((found.x, found.weight), []).append(found)
    return list(groups.values())


def settle(
    joint: Joint,
    group: Sequence[Convolution],
    kind: str,
    sizes: str,
    why_left: str | None,
    reason: str,
    write: Callable[[Writer, Convolution], Pairs],
    report: InductorReport,
) -> None:
    """Write a group anew unless there is a reason against it, and report either."""
    first = group[0]
    at = where(first.node)
    if why_left is None:
        left = next((left for one in group if (left := emit(joint, one, write))), None)
        why_left = None if left is None else left.reason
    if why_left is not None:
        report.left.append(LeftProduct(at, sizes, f"{LABELS[kind]}: {why_left}"))
        return
    training = any(one.dy is not None for one in group)
    report.replaced.append(ReplacedSite(kind, at, sizes, "none", training, reason))


def emit(
    joint: Joint, found: Convolution, write: Callable[[Writer, Convolution], Pairs]
) -> Left | None:
    """Write one call anew; the graph is as it was where that fails."""
    writer = Writer(joint)
    writer.at(found.node)
    env = value(found.x).fake_mode.shape_env
    try:
        # NOTE: what is written holds for all sizes, so that the fakes need no guards.
        with nullcontext() if env is None else env.suppress_guards():
            pairs = write(writer, found)
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
