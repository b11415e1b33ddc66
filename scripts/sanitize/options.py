"""What the families of this package share."""

from __future__ import annotations

from dataclasses import dataclass

import torch

DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


@dataclass(frozen=True)
class Options:
    """clusters: also the shapes that reach kernels of thread block clusters."""

    device: str = "cuda"
    clusters: bool = True
    kernels: str = ""

    def randn(
        self, *shape: int, dtype: torch.dtype = torch.float32, grad: bool = False
    ) -> torch.Tensor:
        return torch.randn(shape, device=self.device, dtype=dtype, requires_grad=grad)

    def rand(
        self, *shape: int, dtype: torch.dtype = torch.float32, grad: bool = False
    ) -> torch.Tensor:
        return torch.rand(shape, device=self.device, dtype=dtype, requires_grad=grad)

    def integers(self, *values: int) -> torch.Tensor:
        return torch.tensor(values, device=self.device)
