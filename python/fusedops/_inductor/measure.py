"""What a site takes on the GPU that is there: our calls as they are emitted, and cuBLAS's products.

The time model was fitted on one card at rest. In a step the card is at its power limit, and another
card has other limits; so a compilation measures, once for every kind and size of site, on random
data, both in turns. What Inductor's pointwise kernels take is not compiled here: they move bytes,
and that is modelled (decide.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import Node
from torch.utils._python_dispatch import _disable_current_modes

from .._timing.backlog import sample
from .graph import aten, value
from .sites import Derived, Out, nodes_in

if TYPE_CHECKING:
    from .graph import Product
    from .sites import Site

RUN_US = 4000.0  # that each side runs in a row
ROUNDS = 9
# The round, by ascending time, that counts: another process on the GPU makes some longer, and the
# first ones run at the clock of a GPU that was idle.
TAKEN = 2
MOST_CALLS = 60
MEMORY_SHARE = 0.4  # of the free memory, for the tensors of both sides
ALIGNMENT = 16  # bytes of a row that TMA takes; Inductor pads others

Size = Callable[[Any], int | None]
_measured: dict[str, tuple[float, float]] = {}


def measured(site: Site, size: Size, bytes_per_us: float) -> tuple[float, float] | None:
    """(our calls, their products) in us; None where they cannot be measured here."""
    device = value(site.node).device
    if device.type != "cuda" or not torch.cuda.is_available():
        return None
    key = _key(site, size)
    if key is None:
        return None
    if key not in _measured:
        before = torch.cuda.memory_reserved(device)
        times = _times(site, size, device, bytes_per_us)
        _give_back(device, before)
        if times is None:
            return None
        _measured[key] = times
    return _measured[key]


def _times(
    site: Site, size: Size, device: torch.device, bytes_per_us: float
) -> tuple[float, float] | None:
    with _disable_current_modes(), unset_fake_temporarily(), torch.no_grad():
        try:
            with torch.autocast(device.type, enabled=False), torch.cuda.device(device):
                return _Bench(site, size, device, bytes_per_us).times()
        except Exception:  # no memory, say; nothing here may stop the compilation
            return None


def _give_back(device: torch.device, before: int) -> None:
    """Return what a measurement left in torch's cache to the GPU, where it made the cache grow.

    The driver cannot take it from there for the code of kernels that are loaded next, Inductor's
    among them, nor can other processes.
    """
    if torch.cuda.memory_reserved(device) > before:
        torch.cuda.empty_cache()


def _key(site: Site, size: Size) -> str | None:
    """Everything that the times depend on; None where a size is unknown."""

    def told(arg: Any) -> Any:
        if isinstance(arg, Node):
            fake = value(arg)
            if not isinstance(fake, Tensor):
                return size(fake)
            return str(fake.dtype), *_layout(fake, size)
        if isinstance(arg, torch.SymInt):
            return size(arg)
        if isinstance(arg, (tuple, list)):
            return tuple(map(told, arg))
        return arg

    steps = [(str(step.op), told(step.args)) for step in site.steps]
    products = [told((p.a, p.b, p.bias)) for p in site.products]
    text = repr((steps, products, str(value(site.node).device)))
    return None if "None" in repr([told(n) for n in _nodes(site)]) else text


def _nodes(site: Site) -> set[Node]:
    ours = {n for step in site.steps for n in nodes_in(step.args)}
    theirs = {n for p in site.products for n in (p.a, p.b, p.bias) if n is not None}
    return ours | theirs


def _layout(fake: Tensor, size: Size) -> tuple[list[int | None], list[int | None]]:
    return [size(s) for s in fake.shape], [size(s) for s in fake.stride()]


class _Bench:
    def __init__(self, site: Site, size: Size, device: torch.device, bytes_per_us: float) -> None:
        self.site, self.size, self.device = site, size, device
        self.bytes_per_us = bytes_per_us
        self.random = torch.Generator(device).manual_seed(0)
        self.values: dict[Node, Any] = {}
        self.left = float("inf")
        if device.type == "cuda":
            kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
            self.left = MEMORY_SHARE * (torch.cuda.mem_get_info(device)[0] + kept)

    def times(self) -> tuple[float, float]:
        ours, (theirs, copies_us) = self.ours, self.theirs()
        once = sample([(ours, 2), (theirs, 2)], [()], self.device)
        calls = [max(1, min(int(RUN_US / us) + 1, MOST_CALLS)) for us in once]
        rounds = sample([(ours, calls[0]), (theirs, calls[1])] * ROUNDS, [()], self.device)
        ours_us, theirs_us = (sorted(rounds[i::2])[TAKEN] for i in (0, 1))
        return ours_us, theirs_us + copies_us

    # ---- ours ----

    def ours(self) -> None:
        results: list[Any] = []

        def made(arg: Any) -> Any:
            if isinstance(arg, Out):
                result = results[arg.step]
                return result if isinstance(result, Tensor) else result[arg.item]
            if isinstance(arg, Derived):
                return arg.op(*map(made, arg.args), **(arg.kwargs or {}))
            if isinstance(arg, Node):
                return self.tensor(arg)
            if isinstance(arg, torch.SymInt):
                return self.size(arg)
            if isinstance(arg, (tuple, list)) and not isinstance(arg, torch.Size):
                return type(arg)(map(made, arg))
            return arg

        for step in self.site.steps:
            results.append(step.op(*made(step.args)))  # noqa: PERF401  (made reads them)

    # ---- theirs ----

    def theirs(self) -> tuple[Callable[[], None], float]:
        """Their products, and what it takes to copy operands whose rows Inductor pads."""
        padded = {n: rest for p in self.site.products for n in (p.a, p.b) if (rest := self.rest(n))}
        copied = sum(2 * self.tensor(n).nbytes for n in padded)
        calls = [self.product(p) for p in self.site.products]

        def run() -> None:
            for call in calls:
                call()

        return run, copied / self.bytes_per_us

    def rest(self, node: Node) -> int:
        """By how many elements the rows of a matrix in memory are too long, or 0."""
        matrix: Tensor = self.tensor(node)
        longest = max((s for s in matrix.stride() if s != 1), default=0)
        return int(longest % (ALIGNMENT // matrix.element_size()))

    def product(self, product: Product) -> Callable[[], Tensor]:
        a, b = self.aligned(product.a), self.aligned(product.b)
        inner = min(a.shape[1], b.shape[0])  # one side may be padded along K
        a, b = a[:, :inner], self.wide(b[:inner])
        if product.bias is None or b.shape[1] != self.tensor(product.bias).shape[-1]:
            return lambda: torch.mm(a, b)
        bias = self.tensor(product.bias)
        return lambda: aten.addmm.default(bias, a, b)

    def aligned(self, node: Node) -> Tensor:
        """The operand in rows of whole chunks, as Inductor copies it."""
        matrix = self.tensor(node)
        if not self.rest(node):
            return matrix
        transposed = matrix.stride(0) == 1
        rows, columns = matrix.T.shape if transposed else matrix.shape
        wide = self.made((rows, self.whole(columns, matrix)), None, matrix.dtype)
        return wide.T if transposed else wide

    def wide(self, b: Tensor) -> Tensor:
        """b with as many columns as make whole chunks of the result's rows; Inductor slices."""
        k, n = b.shape
        columns = self.whole(n, b)
        if columns == n:
            return b
        if b.stride(0) == 1:
            return self.made((columns, k), None, b.dtype).T
        return self.made((k, columns), None, b.dtype)

    @staticmethod
    def whole(columns: int, matrix: Tensor) -> int:
        per = ALIGNMENT // matrix.element_size()
        return int(-(-columns // per) * per)

    # ---- tensors ----

    def tensor(self, node: Node) -> Any:
        """Random values in the layout of the node's; a size's own value."""
        if node not in self.values:
            fake = value(node)
            if not isinstance(fake, Tensor):
                return self.size(fake)
            shape, strides = _layout(fake, self.size)
            self.values[node] = self.made(shape, strides, fake.dtype)
        return self.values[node]

    def made(self, shape: Any, strides: Any, dtype: torch.dtype) -> Tensor:
        """Random values; elements share memory where strides are 0, as in a sum's gradient."""
        if strides is None:
            strides = torch.empty(shape, device="meta").stride()
        elements = 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
        elements = elements if all(shape) else 0
        self.left -= elements * dtype.itemsize
        if self.left < 0:
            raise torch.OutOfMemoryError("too large to be measured")
        memory = torch.empty(elements, dtype=dtype, device=self.device)
        if dtype.is_floating_point:
            memory.normal_(generator=self.random)
        else:
            memory.zero_()
        return memory.as_strided(shape, strides)
