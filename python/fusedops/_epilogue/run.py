"""Running programs: on a GPU what was compiled for them, elsewhere torch's ops in float32."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import torch

from .graph import ACCUMULATOR
from .launch import Kernel, _sms, choose, launch_main_loop
from .toolchain import cached, compile_text, link, main_loop
from .visitor import (
    COLUMN,
    COLUMNS_PER_BLOCK,
    FULL,
    NUMBER,
    ROW,
    ROWS_PER_BLOCK,
    backward_source,
    forward_source,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from .graph import Node

ARCH = "sm_90a"
ELEMENTS = {torch.bfloat16: "bf16", torch.float16: "fp16"}
Operands = tuple[tuple[str, str, int], ...]  # name, kind, bytes of an element


# ---- compiled ----


def forward_cubin(source: str, element: str, config: int) -> bytes:
    """The main loop with the visitor in it."""

    def make() -> bytes:
        return link([main_loop(element, config), compile_text(source, ARCH, ir=True)], ARCH)

    return cached(f"forward {element} {config} {ARCH}\0{source}", ".cubin", make)


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
        self._forward: dict[tuple[torch.dtype, int], Kernel] = {}
        self._backward: dict[tuple[torch.dtype, tuple[str, ...]], Kernel] = {}

    def forward_source(self, dtype: torch.dtype) -> str:
        """The CUDA C++ of the visitor."""
        return forward_source(self.output, self._kinds, ELEMENTS[dtype])

    def backward_source(self, dtype: torch.dtype, names: Sequence[str]) -> str:
        """The CUDA C++ of the backward of some names."""
        chosen = {name: self.gradients[name] for name in names}
        return backward_source(chosen, self._kinds, ELEMENTS[dtype])

    def run(
        self, x: Tensor, weight: Tensor, values: Sequence[Any], keep: bool
    ) -> tuple[Tensor, Tensor | None]:
        """y and, with keep, the product; x (M, K), weight (N, K), on a Hopper GPU."""
        m, n = x.shape[0], weight.shape[0]
        y = x.new_empty(m, n)
        sums = x.new_empty(m, n) if keep else None
        if y.numel() == 0:
            return y, sums
        config = choose(m, n, _sms(x.get_device()))
        key = (x.dtype, config.number)
        kernel = self._forward.get(key)
        if kernel is None:
            cubin = forward_cubin(self.forward_source(x.dtype), ELEMENTS[x.dtype], config.number)
            kernel = Kernel(cubin, "fusedops_visitor", config.shared_bytes)
            self._forward[key] = kernel
        full, vectors, numbers = [], [], []
        for (_, kind, _), value in zip(self.operands, values, strict=True):
            if kind == NUMBER:
                numbers.append(float(value))
            elif kind == FULL:
                full.append(value)
            else:
                vectors.append((value, kind == ROW))
        with torch.cuda.device(x.device):
            launch_main_loop(kernel, config, x, weight, y, sums, full, vectors, numbers)
        return y, sums

    def run_backward(
        self,
        dy: Tensor,
        acc: Tensor,
        values: Sequence[Any],
        names: Sequence[str],
    ) -> list[Tensor]:
        """The gradients of `names` (acc or operands), of the operands' shapes; on a GPU."""
        m, n = acc.shape
        key = (acc.dtype, tuple(names))
        kernel = self._backward.get(key)
        if kernel is None:
            cubin = backward_cubin(self.backward_source(acc.dtype, names))
            kernel = self._backward[key] = Kernel(cubin, "fusedops_backward")
        grid = (-(-n // COLUMNS_PER_BLOCK), -(-m // ROWS_PER_BLOCK))
        kinds = {ACCUMULATOR: FULL, **{name: kind for name, (kind, _) in self._kinds.items()}}
        arguments: list[Any] = [ctypes.c_int64(m), ctypes.c_int64(n)]
        arguments += [ctypes.c_void_p(t.data_ptr()) for t in (dy, acc)]
        for (_, kind, _), value in zip(self.operands, values, strict=True):
            arguments.append(
                ctypes.c_float(float(value))
                if kind == NUMBER
                else ctypes.c_void_p(value.data_ptr())
            )
        shapes = {FULL: (m, n), COLUMN: (grid[1], n), ROW: (m, grid[0])}
        parts = []
        for name in names:
            like = acc if kinds[name] == FULL else acc.new_empty(0, dtype=torch.float32)
            parts.append(like.new_empty(shapes[kinds[name]]))
        arguments += [ctypes.c_void_p(t.data_ptr()) for t in parts]
        with torch.cuda.device(acc.device):
            kernel.launch(acc.get_device(), grid, (32, 8), arguments)
        sums = {COLUMN: lambda t: t.sum(0), ROW: lambda t: t.sum(1, keepdim=True)}
        return [
            part if kinds[name] == FULL else sums[kinds[name]](part)
            for name, part in zip(names, parts, strict=True)
        ]
