"""Random shapes that are the same on any machine: exact arithmetic on one generator per case."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

T = TypeVar("T")

LAYOUTS = ("plain", "sliced", "transposed")
PADDING = 8  # columns of a sliced operand that nobody reads
STEPS = (8, 64)  # aligned sizes are multiples of one of them


class Draw:
    """One case's random numbers, from its family, seed and index alone.

    NOTE: only random() and sums, products and roundings that IEEE 754 defines: other functions of
    `random`, or a logarithm, may differ between versions of Python and of its C library.
    """

    def __init__(self, family: str, seed: int, index: int) -> None:
        self._random = random.Random(f"{family}/{seed}/{index}").random

    def chance(self, probability: float) -> bool:
        return self._random() < probability

    def pick(self, choices: Sequence[T]) -> T:
        return choices[int(self._random() * len(choices))]

    def weighted(self, **weights: float) -> str:
        left = self._random() * sum(weights.values())
        for name, weight in weights.items():
            left -= weight
            if left < 0:
                return name
        return next(iter(weights))

    def number(self, least: int, most: int) -> int:
        """Log-uniform: an octave, then a place in it."""
        first, last = least.bit_length() - 1, most.bit_length()
        while True:
            octave = 1 << (first + int(self._random() * (last - first)))
            value = octave + int(self._random() * octave)
            if least <= value <= most:
                return value

    def size(self, least: int, most: int) -> int:
        """Log-uniform; half of them are aligned, a quarter is odd."""
        value, kind = self.number(least, most), self._random()
        step = self.pick(STEPS)
        if kind < 0.5:
            aligned = max(value // step * step, step)
            return aligned if least <= aligned <= most else value
        odd = value | 1
        return odd if kind < 0.75 and odd <= most else value

    def dtype(self, *, wide: float = 0.3, double: float = 0.0) -> str:
        """Half of the others are bf16, where no more than that is asked."""
        narrow = 1 - wide - double
        return self.weighted(bf16=narrow * 0.65, fp16=narrow * 0.35, fp32=wide, fp64=double)

    def layout(self, *, sliced: float = 0.15, transposed: float = 0.15) -> str:
        return self.weighted(plain=1 - sliced - transposed, sliced=sliced, transposed=transposed)

    def within(self, limit: float, *sizes: int) -> tuple[int, ...]:
        """The largest is halved until their product stays within the limit; odd ones stay odd."""
        found = list(sizes)
        while _product(found) > limit:
            place = found.index(max(found))
            found[place] = max(found[place] // 2 | found[place] % 2, 1)
        return tuple(found)


def _product(sizes: Sequence[int]) -> int:
    total = 1
    for size in sizes:
        total *= size
    return total


def laid_out(tensor: Tensor, layout: str) -> Tensor:
    """The same values as a slice of wider rows, or with its last two dimensions swapped in memory.

    A leaf again: it requires a gradient where `tensor` does.
    """
    if layout == "plain" or tensor.dim() == 0:
        return tensor
    source = tensor.detach()
    if layout == "sliced":
        wide = source.new_empty((*source.shape[:-1], source.shape[-1] + PADDING))
        view = wide[..., : source.shape[-1]]
        view.copy_(source)
    elif tensor.dim() == 1:
        return tensor
    else:
        view = source.transpose(-1, -2).contiguous().transpose(-1, -2)
    return view.requires_grad_(tensor.requires_grad)
