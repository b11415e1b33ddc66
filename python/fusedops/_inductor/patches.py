"""Convolutions whose patches do not overlap, as products.

Where the kernel is as large as the stride and nothing is padded (the embeddings of ViT, CLIP and
Swin, ConvNeXt between its stages), a convolution is ``patches @ weight.T + bias`` of matrices, with
each element of x in one patch: its gradients are products too, and the one of x is put back by a
permutation. These are written into the joint graph before the pass looks for products, and Inductor
makes one kernel of each permutation with what stands around it.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from .._core.precision import why_another_precision
from .convolution import Convolution, Layouts, Pairs, channels_last, lies_last
from .decide import Verdict, decide_patches
from .graph import CONVERT, aten, dtype_of, equal_sizes, is_call, shape_of, value
from .sites import DTYPES

if TYPE_CHECKING:
    from torch.fx import Node

    from .emit import Writer

ALIGNED_BYTES = 16


# ---- what is found ----


@dataclass(frozen=True)
class Patches(Convolution):
    """One whose patches do not overlap."""

    kind, label = "patches", "a convolution of patches"

    def is_one(self) -> bool:
        """Whether the kernel is as large as the stride, and larger than one element."""
        kernel, transposed = self.kernel, self.numbers[3]
        fixed = all(isinstance(n, int) for n in kernel)
        return not transposed and fixed and max(kernel) > 1 and self.stride == kernel

    def why_left(self) -> str | None:
        """Why no product stands for it, None where one does."""
        _, padding, dilation, _, _, groups = self.numbers
        if any(not equal_sizes(p, 0) for p in padding):
            return "it pads: a patch is not all of x"
        if any(d != 1 for d in dilation):
            return "its kernel is dilated: patches overlap"
        if groups != 1:
            return f"it has {groups} groups"
        dtype = dtype_of(self.x)
        if dtype not in DTYPES or any(dtype_of(n) is not dtype for n in self.tensors()):
            return "mixed or unsupported dtypes"
        if dtype is torch.float32:
            why = why_another_precision(value(self.x).device.type)
            if why is not None:
                return why
        return self._why_size()

    def _why_size(self) -> str | None:
        sizes = shape_of(self.x)
        if not all(isinstance(s, int) and s > 0 for s in (*shape_of(self.weight), sizes[1])):
            return "its channels are not known"
        for size, width in zip(sizes[2:], self.kernel, strict=True):
            if not isinstance(size, int) and not equal_sizes(size % width, 0):
                return f"a size that is not known to be a multiple of {width}"
        return None

    def verdict(self, force: bool) -> Verdict:
        """Whether products pay."""
        x = value(self.x)
        return decide_patches(x, self.kernel, lies_last(x), force)

    @property
    def sizes(self) -> str:
        """M x N x K of the product that it is."""
        rows, _, *sizes = shape_of(self.x)
        for size, width in zip(sizes, self.kernel, strict=True):
            rows = rows * (size // width)
        outputs, *features = shape_of(self.weight)
        return f"{rows} x {outputs} x {math.prod(features)}"

    def written(self, writer: Writer) -> Pairs:
        """Writes the products."""
        products = _Products(writer, self)
        return products.forward() if self.dy is None else products.backward(self.dy)


# ---- what is written ----


class _Products(Layouts):
    """Writes the products of one convolution: features lie in a patch as they lie in x."""

    def __init__(self, writer: Writer, found: Convolution) -> None:
        self.kernel, self.found = found.kernel, found
        self.rank = len(self.kernel)
        super().__init__(writer, self.rank + 2)
        self.last = lies_last(value(found.x))
        self.channels = shape_of(found.x)[1]
        self.features = int(math.prod(shape_of(found.weight)[1:]))  # of a patch
        # NOTE: cuBLAS wants rows of whole 16 bytes, which CLIP's 588 halves are not; zeros behind
        # them cost nothing in the copy that makes patches.
        self.spare = -self.features % (ALIGNED_BYTES // dtype_of(found.x).itemsize)
        self.batch = self.size(found.x, 0)
        # Patches along each dim, and what is left over behind the last one.
        self.counts: list[Any] = []
        self.rest: list[int] = []
        for i, width in enumerate(self.kernel):
            size = self.size(found.x, i + 2)
            known = isinstance(size, int)
            self.counts.append(
                size // width if known else self.call(operator.floordiv, (size, width))
            )
            self.rest.append(size % width if known else 0)

    def size(self, node: Node, dim: int) -> Any:
        known = shape_of(node)[dim]
        return known if isinstance(known, int) else self.call(aten.sym_size.int, (node, dim))

    def forward(self) -> list[tuple[Node, Node]]:
        """(old, new) of the result."""
        patches, weight = self.patches(), self.permuted(self.weight(), [1, 0])
        if self.found.bias is None:
            product = self.call(aten.mm.default, (patches, weight))
        else:
            product = self.call(aten.addmm.default, (self.found.bias, patches, weight))
        node = self.found.node
        y = self.view(product, [self.batch, *self.counts, shape_of(node)[1]])
        return [(node, self.laid(y, True, node))]

    def backward(self, dy: Node) -> list[tuple[Node, Node]]:
        """(old, new) of each gradient that is read."""
        rows = self.rows(self.permuted(dy, channels_last(self.dims)), shape_of(dy)[1])
        gradients = (
            lambda old: (old, self.x_gradient(rows, old)),
            lambda old: self.weight_gradient(rows, old),
            lambda old: (old, self.bias_gradient(dy)),
        )
        return [gradients[i](old) for i, old in self.found.gradients()]

    def x_gradient(self, rows: Node, old: Node) -> Node:
        """dy @ weight, each row put back where its patch was, zeros where x was cut off."""
        widths, rank = list(self.kernel), self.rank
        features = [*widths, self.channels] if self.last else [self.channels, *widths]
        product = self.unpadded(self.call(aten.mm.default, (rows, self.weight())))
        product = self.view(product, [self.batch, *self.counts, *features])
        first = rank + 1 if self.last else rank + 2  # the dim of the first width
        sizes = [d for i in range(rank) for d in (i + 1, first + i)]
        channel = 2 * rank + 1 if self.last else rank + 1
        order = [0, *sizes, channel] if self.last else [0, channel, *sizes]
        whole = [
            size - rest if isinstance(size, int) else self.size(self.found.x, i + 2)
            for i, (size, rest) in enumerate(
                zip(shape_of(self.found.x)[2:], self.rest, strict=True)
            )
        ]
        shape = [*whole, self.channels] if self.last else [self.channels, *whole]
        dx = self.view(self.dense(self.permuted(product, order)), [self.batch, *shape])
        if any(self.rest):
            behind = [n for rest in reversed(self.rest) for n in (0, rest)]
            behind = [0, 0, *behind] if self.last else behind
            dx = self.call(aten.constant_pad_nd.default, (dx, behind, 0.0))
        return self.laid(dx, self.last, old)

    def weight_gradient(self, rows: Node, old: Node) -> tuple[Node, Node]:
        """dy.T @ patches, and the node that it stands for: a cast to float32 behind it is part.

        `layers.find_weight_gradient` looks for products with such a cast.
        """
        product = self.call(aten.mm.default, (self.permuted(rows, [1, 0]), self.patches()))
        users = list(old.users)
        if len(users) == 1 and is_call(users[0], CONVERT) and users[0].args[1] is torch.float32:
            old = users[0]
            product = self.call(CONVERT, (product, torch.float32))
        outputs, channels, *widths = shape_of(self.found.weight)
        shape = [outputs, *widths, channels] if self.last else [outputs, channels, *widths]
        product = self.view(self.dense(self.unpadded(product)), shape)
        return old, self.laid(product, self.last, old)

    def bias_gradient(self, dy: Node) -> Node:
        return self.call(aten.sum.dim_IntList, (dy, [0, *range(2, self.dims)]))

    def patches(self) -> Node:
        """x as a matrix: a row for each patch."""
        x, split = self.found.x, [self.batch, self.channels]
        for i, (count, width, rest) in enumerate(
            zip(self.counts, self.kernel, self.rest, strict=True)
        ):
            split += [count, width]
            if rest:
                x = self.call(aten.slice.Tensor, (x, i + 2, 0, count * width))
        counts = [2 + 2 * i for i in range(self.rank)]
        widths = [3 + 2 * i for i in range(self.rank)]
        order = [0, *counts, *widths, 1] if self.last else [0, *counts, 1, *widths]
        rows = self.rows(self.permuted(self.view(x, split), order), self.features)
        return self.padded(rows)

    def weight(self) -> Node:
        """The weight as a matrix (N, K), with the features of a patch in its order."""
        weight = self.found.weight
        if self.last:
            weight = self.permuted(weight, channels_last(self.dims))
        return self.padded(self.rows(weight, self.features))

    def padded(self, rows: Node) -> Node:
        """Rows of features, with zeros behind them."""
        if not self.spare:
            return rows
        return self.call(aten.constant_pad_nd.default, (rows, [0, self.spare], 0.0))

    def unpadded(self, rows: Node) -> Node:
        return self.call(aten.slice.Tensor, (rows, 1, 0, self.features)) if self.spare else rows

    def rows(self, node: Node, columns: int) -> Node:
        return self.view(self.dense(node), [-1, columns])
