"""Where a convolution with what stands behind it runs as one op: where that moves fewer bytes.

Torch reads and writes the result of a convolution once more for the norm, for the sum and for the
activation each. The op does neither, and which kernel convolves it chooses for itself
(`fusedops.explain`). What may cost more is memory in another order than its kernels on a GPU have
it in: tensors that are not in ``torch.channels_last`` are copied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def pays(x: Tensor, result: int, passes: int, residual: Tensor | None) -> bool:
    """Whether the op moves no more bytes than torch's kernels.

    Args:
        x: The convolution's input.
        result: How many elements its result has.
        passes: How many of norm, sum and activation stand behind it.
        residual: What is added, or None.
    """
    if not x.is_cuda or _lies_last(x):
        return True
    copied = x.numel() + result + (0 if residual is None else residual.numel())
    return bool(copied <= passes * result)


def _lies_last(x: Tensor) -> bool:
    """Whether the channels of x lie last in memory."""
    form = _LAST.get(x.dim())
    if form is not None:
        return bool(x.is_contiguous(memory_format=form))
    return bool(x.transpose(1, -1).is_contiguous())
