"""What a case is made of: sizes, dtypes, layouts and values, all of one seed."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
LAYOUTS = ("dense", "dense", "transposed", "stepped", "shifted", "expanded")
VALUES = ("normal", "normal", "large", "small", "zeros", "ties", "special")
SIZES = (0, 1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129)


@dataclass
class Case:
    """A call: ours and its definition, of the same tensors."""

    name: str
    ours: Callable[..., Any]
    exact: Callable[..., Any]  # of tensors in float64
    tensors: list[Tensor]
    differentiable: bool = False
    scale: Callable[..., Tensor] | None = None  # magnitude of the terms that are summed
    facts: list[str] = field(default_factory=list)


class Draw:
    """Random choices that a seed and a number repeat."""

    def __init__(self, seed: int, number: int, device: str) -> None:
        self.random = random.Random(f"{seed}:{number}")
        self.generator = torch.Generator().manual_seed(self.random.getrandbits(40))
        self.device = device
        self.facts: list[str] = []

    def pick(self, choices: Sequence[Any]) -> Any:
        return self.random.choice(list(choices))

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def size(self, low: int = 0, high: int = 129) -> int:
        return int(self.pick([n for n in SIZES if low <= n <= high] or [low]))

    def shape(self, least: int = 0, most: int = 3, elements: int = 20000) -> tuple[int, ...]:
        sizes = [self.size() for _ in range(self.random.randint(least, most))]
        while math.prod(sizes) > elements:
            sizes[sizes.index(max(sizes))] //= 2
        return tuple(sizes)

    def dtype(self, choices: Sequence[torch.dtype] = FLOATING) -> torch.dtype:
        return self.pick(choices)

    def floats(
        self,
        shape: Sequence[int],
        dtype: torch.dtype,
        values: str | None = None,
        layout: str | None = None,
    ) -> Tensor:
        """A tensor of a random layout, with values of a random kind."""
        values = values or self.pick(VALUES)
        layout = layout or self.pick(LAYOUTS)
        self.facts.append(f"{tuple(shape)} {str(dtype)[6:]} {layout} {values}")
        x = torch.randn(tuple(shape), generator=self.generator, dtype=torch.float64)
        if values == "large":
            x *= 100
        elif values == "small":
            x *= 1e-3
        elif values == "zeros":
            x *= 0
        elif values == "ties":
            x = x.mul(2).round().clamp(-3, 3)
        elif values == "special" and x.numel():
            chosen = torch.rand(x.shape, generator=self.generator)
            x[chosen < 0.02] = math.nan
            x[(chosen >= 0.02) & (chosen < 0.04)] = math.inf
            x[(chosen >= 0.04) & (chosen < 0.06)] = -math.inf
            x[(chosen >= 0.06) & (chosen < 0.08)] = -0.0
        return self.laid_out(x.to(dtype).to(self.device), layout)

    def integers(self, shape: Sequence[int], low: int, high: int) -> Tensor:
        """int64 in [low, high)."""
        found = torch.randint(low, max(high, low + 1), tuple(shape), generator=self.generator)
        return found.to(self.device)

    def laid_out(self, x: Tensor, layout: str) -> Tensor:
        """The same values with other strides, on their device; `expanded` repeats the first row."""
        if x.dim() == 0 or x.numel() == 0:
            return x
        if layout == "transposed" and x.dim() > 1:
            return x.transpose(0, -1).contiguous().transpose(0, -1)
        if layout == "stepped":
            wide = x.new_full((*x.shape[:-1], 2 * x.shape[-1]), 77.0)
            wide[..., ::2] = x
            return wide[..., ::2]
        if layout == "shifted":
            flat = x.new_full((x.numel() + 1,), 77.0)
            flat[1:] = x.flatten()
            return flat[1:].view(x.shape)
        if layout == "expanded" and x.dim() > 1:
            return x[:1].expand(x.shape)
        return x
