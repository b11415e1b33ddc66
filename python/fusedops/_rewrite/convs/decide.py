"""Where a convolution with what stands behind it runs as one op: where that loses no time.

On a GPU torch reads and writes the result of a convolution once more for the norm, for the sum and
for the activation each. The op does all of them in one pass at most, and which kernel convolves it
chooses for itself. What it may have to do besides: copy tensors that are not in
``torch.channels_last``, and fold a norm with constant statistics into the weight. It also takes the
host longer than torch's modules, which counts where the GPU waits for it: for small images.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from torch import Tensor

_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
# What a Hopper GPU does in a microsecond, and how long a small kernel takes.
_BYTES_US, _FLOPS_US, _LAUNCH_US = 2.5e6, {2: 3e8, 4: 1.5e8}, 2.0
# Where torch's kernels take the GPU less than this, it would wait for the host with ours. Of layers
# as those of ResNet-50, which vary around it, the host is then ahead of the GPU in the mean.
_LEAST_US = 35.0


class Call(NamedTuple):
    """One call of a unit."""

    x: Any  # the convolution's input
    weight: Any
    residual: Any  # what is added, or None
    shape: tuple[int, ...]  # of the result
    passes: int  # how many of norm, sum and activation stand behind the convolution
    training: bool  # with gradients or statistics of the batch


def may_pay(x: Any) -> bool:
    """Whether the op can pay for any call with this input: on a CPU it is there to be right."""
    return type(x) is torch.Tensor and x.is_cuda


def pays(call: Call) -> bool:
    """Whether the op takes no longer than torch's kernels."""
    theirs, ours = device_us(call)
    if ours > theirs:
        return False
    # NOTE: by sizes alone, whether a CUDA graph is captured or not: the same bits in every run.
    return theirs >= _LEAST_US


def norm_pays(x: Tensor) -> bool:
    """Whether a norm of x and the activation behind it are worth one op of ours."""
    return 2 * _pass_us(x.numel() * x.element_size()) >= _LEAST_US


def _pass_us(size: float) -> float:
    """A pass that reads and writes so many bytes."""
    return 2 * size / _BYTES_US + _LAUNCH_US


def device_us(call: Call) -> tuple[float, float]:
    """Rough times of torch's kernels and of the op on a GPU, in microseconds."""
    x, weight, size = call.x, call.weight, call.x.element_size()
    result = math.prod(call.shape) * size
    flops = 2.0 * math.prod(call.shape) * weight[0].numel()
    moved = (x.numel() + weight.numel()) * size + result
    moved += 0 if call.residual is None else result
    conv = flops / _FLOPS_US.get(size, 3e7) + moved / _BYTES_US + _LAUNCH_US
    theirs, ours = call.passes * _pass_us(result), _pass_us(result)
    if not call.training:
        ours = max(ours, _pass_us(weight.numel() * size))
    if not _lies_last(x):
        copied = x.numel() * size + result * (1 if call.residual is None else 2)
        ours += 2 * copied / _BYTES_US + _LAUNCH_US * (2 if call.residual is None else 3)
    return conv + theirs, conv + ours


def _lies_last(x: Tensor) -> bool:
    """Whether the channels of x lie last in memory."""
    form = _LAST.get(x.dim())
    if form is not None:
        return bool(x.is_contiguous(memory_format=form))
    return bool(x.transpose(1, -1).is_contiguous())
