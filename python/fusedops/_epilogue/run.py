"""Running programs on a GPU: what was compiled for them, loaded and launched."""

from __future__ import annotations

import contextlib
import struct
from ctypes import addressof, c_uint64
from typing import TYPE_CHECKING, Any

import torch

from .backward import COLUMNS_PER_BLOCK, ROWS_PER_BLOCK, SUMS_PER_BLOCK, backward_source
from .graph import ACCUMULATOR
from .launch import Config, Kernel, MainLoop, Needs, choose, loops, multiprocessors
from .toolchain import cached, compile_text, link, main_loop, main_loop_digest
from .visitor import COLUMN, FULL, ROW, forward_source, is_long

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from .graph import Node

ARCH = "sm_90a"
ELEMENTS = {torch.bfloat16: "bf16", torch.float16: "fp16"}
MOST_LOOPS = 256  # products that a program keeps parameters of
Operands = tuple[tuple[str, str, int], ...]  # name, kind, bytes of an element


# ---- compiled ----


def forward_cubin(source: str, element: str, config: Config) -> bytes:
    """The main loop with the visitor in it."""

    def make() -> bytes:
        return link([main_loop(element, config), compile_text(source, ARCH, ir=True)], ARCH)

    # NOTE: a new version of the package may bring another main loop under the same name.
    loop = main_loop_digest(element, config)
    return cached(f"forward {element} {loop} {ARCH}\0{source}", ".cubin", make)


def backward_cubin(source: str) -> bytes:
    """The kernel of a derived backward."""
    return cached(
        f"backward {ARCH}\0{source}", ".cubin", lambda: compile_text(source, ARCH, ir=False)
    )


class Program:
    """An expression with its gradients, for operands of given kinds."""

    def __init__(self, output: Node, gradients: Mapping[str, Node], operands: Operands) -> None:
        self.output, self.gradients = output, dict(gradients)
        self.operands = operands
        self._kinds = {name: (kind, size) for name, kind, size in operands}
        self._forward: dict[tuple[torch.dtype, str, bool], Kernel] = {}
        self._loops: dict[Any, MainLoop] = {}
        self._backward: dict[Any, tuple[Kernel, Kernel | None]] = {}

    def forward_source(self, dtype: torch.dtype, loops: bool) -> str:
        """The CUDA C++ of the visitor."""
        return forward_source(self.output, self._kinds, ELEMENTS[dtype], loops)

    def backward_source(self, dtype: torch.dtype, names: Sequence[str]) -> str:
        """The CUDA C++ of the backward of some names."""
        chosen = {name: self.gradients[name] for name in names}
        return backward_source(chosen, self._kinds, ELEMENTS[dtype])

    def run(
        self, x: Tensor, weight: Tensor, values: Sequence[Tensor | float], keep: bool
    ) -> tuple[Tensor, Tensor | None]:
        """y and, with keep, the product; x (M, K), weight (N, K), on a Hopper GPU."""
        (m, k), n = x.shape, weight.shape[0]
        y = x.new_empty((m, n))
        sums = x.new_empty((m, n)) if keep else None
        if m == 0 or n == 0:
            return y, sums
        maps = (x, weight, y) if sums is None else (x, weight, y, sums)
        device = x.get_device()
        with on_device(device):
            key = (x.dtype, device, m, n, k, keep)
            loop = self._loops.get(key) or self._make_loop(key, maps, multiprocessors(device))
            addresses = [v if isinstance(v, float) else v.data_ptr() for v in values]
            loop.launch(device, stream_of(device), maps, addresses)
        return y, sums

    def _make_loop(self, key: Any, maps: Sequence[Tensor], sms: int) -> MainLoop:
        dtype, (_, _, m, n, k, keep) = maps[0].dtype, key
        full = sum(kind == FULL for _, kind, _ in self.operands)
        needs = Needs(full, is_long(self.output), keep)
        config = choose(m, n, k, sms, needs)
        wanted = dtype, config.name, loops(config, k, needs)
        kernel = self._forward.get(wanted)
        if kernel is None:
            source = self.forward_source(dtype, wanted[-1])
            cubin = forward_cubin(source, ELEMENTS[dtype], config)
            kernel = self._forward[wanted] = Kernel(cubin, "fusedops_visitor", config.shared_bytes)
        if len(self._loops) >= MOST_LOOPS:
            self._loops.clear()
        loop = MainLoop(
            kernel, config, sms, maps, [(kind, size) for _, kind, size in self.operands]
        )
        self._loops[key] = loop
        return loop

    def run_backward(
        self,
        dy: Tensor,
        acc: Tensor,
        values: Sequence[Tensor | float],
        names: Sequence[str],
    ) -> list[Tensor]:
        """The gradients of `names` (acc or operands), of the operands' shapes; on a GPU."""
        m, n = acc.shape
        down = -(-m // ROWS_PER_BLOCK)
        across = -(-n // COLUMNS_PER_BLOCK)
        kinds = {ACCUMULATOR: FULL, **{name: kind for name, (kind, _) in self._kinds.items()}}
        shapes = {FULL: (m, n), COLUMN: (down, n), ROW: (m, across)}
        parts = []
        for name in names:
            dtype = acc.dtype if kinds[name] == FULL else torch.float32
            parts.append(acc.new_empty(shapes[kinds[name]], dtype=dtype))
        whole, sums = self._backward_kernels(acc.dtype, tuple(names))
        device = acc.get_device()
        with on_device(device):
            _launch(whole, device, across * down, [m, n, dy, acc, *values, *parts])
            return parts if sums is None else self._add_up(sums, acc, names, parts)

    def _backward_kernels(
        self, dtype: torch.dtype, names: tuple[str, ...]
    ) -> tuple[Kernel, Kernel | None]:
        found = self._backward.get((dtype, names))
        if found is None:
            cubin = backward_cubin(self.backward_source(dtype, names))
            summed = any(self._kinds[name][0] != FULL for name in names if name != ACCUMULATOR)
            sums = Kernel(cubin, "fusedops_sums") if summed else None
            found = self._backward[dtype, names] = Kernel(cubin, "fusedops_backward"), sums
        return found

    def _add_up(
        self, kernel: Kernel, acc: Tensor, names: Sequence[str], parts: Sequence[Tensor]
    ) -> list[Tensor]:
        """parts, and of those that are sums of blocks the whole ones, by one launch."""
        m, n = acc.shape
        shapes, extents = {COLUMN: (n,), ROW: (m, 1)}, {COLUMN: n, ROW: m}
        found = list(parts)
        pairs: list[Tensor] = []
        blocks = 0
        for i, name in enumerate(names):
            kind, size = self._kinds.get(name, (FULL, 2))
            if kind == FULL:
                continue
            found[i] = acc.new_empty(shapes[kind], dtype=acc.dtype if size == 2 else torch.float32)
            pairs += [parts[i], found[i]]
            blocks = max(blocks, -(-extents[kind] // SUMS_PER_BLOCK[kind]))
        _launch(kernel, acc.get_device(), blocks * (len(pairs) // 2), [m, n, blocks, *pairs])
        return found


def _launch(
    kernel: Kernel, device: int, blocks: int, values: Sequence[Tensor | float | int]
) -> None:
    """Blocks of 32 by 8 threads; tensors are given by address, a float as one of 4 bytes."""
    words = [_word(value) for value in values]
    memory = (c_uint64 * len(words))(*words)
    begin = addressof(memory)
    arguments = range(begin, begin + 8 * len(words), 8)
    kernel.launch(device, stream_of(device), (blocks, 1), (32, 8), arguments)


def _word(value: Tensor | float | int) -> int:
    """One of a kernel's parameters; what has 4 bytes is in the lower half of its word."""
    if isinstance(value, float):
        return int.from_bytes(struct.pack("=f", value), "little")
    return value if isinstance(value, int) else value.data_ptr()


def stream_of(device: int) -> int:
    """The handle of the current one."""
    return int(torch.cuda.current_stream(device).cuda_stream)


def on_device(device: int) -> contextlib.AbstractContextManager[Any]:
    """The device is the current one in here."""
    here: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    if torch.cuda.current_device() != device:
        here = torch.cuda.device(device)
    return here
