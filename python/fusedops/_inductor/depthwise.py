"""Depthwise convolutions of large kernels (ConvNeXt), which torch's backends run far from memory's
speed, as our op: of (N, H, W, C), forward and the gradient of x.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ..ops.conv_problem import is_large_depthwise
from .convolution import BACKWARD, Convolution, Layouts, Pairs, channels_last
from .decide import Verdict, decide_depthwise
from .graph import aten, dtype_of, shape_of, value

if TYPE_CHECKING:
    from torch.fx import Node

    from .emit import Writer

_ops = torch.ops.fusedops


@dataclass(frozen=True)
class Depthwise(Convolution):
    """One in two dimensions whose channels meet their own weights alone."""

    kind, label = "depthwise", "a depthwise convolution"

    def is_one(self) -> bool:
        """Whether it is a depthwise one with a kernel of ours."""
        _, _, dilation, transposed, _, groups = self.numbers
        weight, padding = shape_of(self.weight), tuple(self.numbers[1])
        if transposed or any(d != 1 for d in dilation):
            return False
        if not all(isinstance(n, int) for n in (*weight, *padding, *self.stride)):
            return False
        return is_large_depthwise(weight, self.stride, groups)

    def why_left(self) -> str | None:
        """Why our op does not stand for it, None where it does."""
        dtype = dtype_of(self.x)
        if any(dtype_of(n) is not dtype for n in self.tensors()):
            return "mixed dtypes"
        if value(self.x).device.type == "cuda" and dtype.itemsize != 2:
            return f"{dtype}: the kernels are for half precision"
        return None

    @property
    def geometry(self) -> tuple[Any, ...]:
        """Strides and padding of rows and columns."""
        padding = tuple(self.numbers[1])
        return (*self.stride, *(padding * 2 if len(padding) == 1 else padding))

    def verdict(self, force: bool) -> Verdict:
        """Whether our op pays."""
        return decide_depthwise(value(self.x), force)

    @property
    def sizes(self) -> str:
        """Those of x and of the kernel."""
        return " x ".join(map(str, (*shape_of(self.x), *self.kernel)))

    def written(self, writer: Writer) -> Pairs:
        """Writes our op."""
        written = _Written(writer, self)
        return written.forward() if self.dy is None else written.backward(self.dy)


class _Written(Layouts):
    def __init__(self, writer: Writer, found: Depthwise) -> None:
        super().__init__(writer, 4)
        self.found = found
        self.x = self.behind(found.x)
        self.weight = self.call(aten.squeeze.dim, (found.weight, 1))

    def behind(self, node: Node) -> Node:
        """(N, H, W, C) of (N, C, H, W)."""
        return self.dense(self.permuted(node, channels_last(4)))

    def forward(self) -> Pairs:
        found = self.found
        behind = (found.bias, None, None, None, None, None, *found.geometry, 0.0, 0)
        y = self.call(_ops.depthwise_conv.default, (self.x, self.weight, *behind))
        return [(found.node, self.laid(y, True, found.node))]

    def backward(self, dy: Node) -> Pairs:
        found, wanted = self.found, dict(self.found.gradients())
        rows, pairs = self.behind(dy), []
        if 0 in wanted:
            operands = (rows, self.x, self.weight, *found.geometry, True, False)
            both = self.call(_ops.depthwise_conv_backward.default, operands)
            dx = self.call(operator.getitem, (both, 0))
            pairs.append((wanted[0], self.laid(dx, True, wanted[0])))
        if 1 in wanted:
            # NOTE: torch's is the faster one. Of the graph's own tensors: Inductor lays what its
            # convolutions read anew, also where it is permuted.
            rest = (found.x, found.weight, None, *found.numbers, [False, True, False])
            every = self.call(BACKWARD, (dy, *rest))
            pairs.append((wanted[1], self.call(operator.getitem, (every, 1))))
        if 2 in wanted:
            pairs.append((wanted[2], self.call(aten.sum.dim_IntList, (dy, [0, 2, 3]))))
        return pairs
