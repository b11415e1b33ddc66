"""What the families of this package share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

T = TypeVar("T")

DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


@dataclass(frozen=True)
class Options:
    """clusters: also the shapes that reach kernels of thread block clusters.

    Without them, for racecheck, which takes a hundred times as long: fewer activations and dtypes.
    part: (I, N), this process runs each N-th item from the I-th on, counted from 0.
    """

    device: str = "cuda"
    clusters: bool = True
    kernels: str = ""
    part: tuple[int, int] = (0, 1)

    def some(self, everything: Sequence[T], few: int) -> Sequence[T]:
        return everything if self.clusters else everything[:few]

    def mine(self, items: Iterable[T]) -> list[T]:
        """The part of a long list that falls to this process."""
        first, step = self.part
        return list(items)[first::step]

    def randn(
        self, *shape: int, dtype: torch.dtype = torch.float32, grad: bool = False
    ) -> torch.Tensor:
        return torch.randn(shape, device=self.device, dtype=dtype, requires_grad=grad)

    def rand(
        self, *shape: int, dtype: torch.dtype = torch.float32, grad: bool = False
    ) -> torch.Tensor:
        return torch.rand(shape, device=self.device, dtype=dtype, requires_grad=grad)

    def operand(
        self, rows: int, k: int, transposed: bool, dtype: torch.dtype, first: int
    ) -> torch.Tensor:
        """(rows, k), its first element so many behind a multiple of 16 bytes, to the end of its
        memory.
        """
        shape = (k, rows) if transposed else (rows, k)
        flat = self.randn(first + rows * k, dtype=dtype)[first:].view(shape)
        return flat.t() if transposed else flat

    def integers(self, *values: int) -> torch.Tensor:
        return torch.tensor(values, device=self.device)
