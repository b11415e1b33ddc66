"""Where a convolution with what stands behind it runs as one op: where that moves fewer bytes.

Torch reads and writes the result of a convolution once more for the norm, for the sum and for the
activation each. The op does all of them in one pass at most, and which kernel convolves it chooses
for itself. What it may have to do besides, on a GPU: copy tensors that are not in
``torch.channels_last``, and fold a norm with constant statistics into the weight.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
_LAUNCH = 6e6  # bytes: what a GPU of 3 TB/s moves in the 2 us that a small kernel takes


def pays(
    x: Tensor, weight: Tensor, residual: Tensor | None, result: int, passes: int, folds: bool
) -> bool:
    """Whether the op moves no more bytes than torch's kernels.

    Args:
        x: The convolution's input.
        weight: Its weight.
        residual: What is added, or None.
        result: How many elements the convolution's result has.
        passes: How many of norm, sum and activation stand behind it.
        folds: Whether the op may fold the norm into the weight.
    """
    if not x.is_cuda:  # the op is there to be right: torch's kernels are as fast or faster
        return False
    size = x.element_size()
    theirs = passes * (2 * result * size + _LAUNCH)
    ours = 2 * result * size + _LAUNCH
    if folds:
        ours = max(ours, 2 * weight.numel() * size + _LAUNCH)
    if not _lies_last(x):
        copied = x.numel() + result + (0 if residual is None else residual.numel())
        ours += 2 * copied * size + _LAUNCH * (2 if residual is None else 3)
    return bool(ours <= theirs)


def _lies_last(x: Tensor) -> bool:
    """Whether the channels of x lie last in memory."""
    form = _LAST.get(x.dim())
    if form is not None:
        return bool(x.is_contiguous(memory_format=form))
    return bool(x.transpose(1, -1).is_contiguous())
