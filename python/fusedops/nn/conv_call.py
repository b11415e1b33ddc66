"""A convolution and its batch norm as modules of torch.nn hold them, run by `fusedops.conv_bn_act`.

What stands here asks modules for their parameters and settings at each call, as torch's forwards
do: modes, momenta, hooks and replaced parameters are seen.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..ops.batch_norm import options_of
from ..ops.conv import Norm, conv_bn_act_and_input
from .linear import untouched

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import device as torch_device

R = TypeVar("R")

_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_PLAIN = (Tensor, nn.Parameter)
_CONVS: dict[type, tuple[int, Any, Any]] = {
    nn.Conv1d: (1, nn.Conv1d.forward, nn.Conv1d._conv_forward),
    nn.Conv2d: (2, nn.Conv2d.forward, nn.Conv2d._conv_forward),
    nn.Conv3d: (3, nn.Conv3d.forward, nn.Conv3d._conv_forward),
}
_forward = nn.modules.batchnorm._BatchNorm.forward
_sync_forward = nn.SyncBatchNorm.forward
# The dims of x that a norm takes; a SyncBatchNorm takes any.
_NORM_DIMS: dict[type, tuple[int, ...]] = {
    nn.BatchNorm1d: (2, 3),
    nn.BatchNorm2d: (4,),
    nn.BatchNorm3d: (5,),
    nn.SyncBatchNorm: (2, 3, 4, 5),
}


class NormArguments(NamedTuple):
    """A batch norm as `fusedops.conv_bn_act` takes it, with what its module does at a call."""

    mean: Tensor | None
    var: Tensor | None
    weight: Tensor | None
    bias: Tensor | None
    training: bool = False
    momentum: float | None = 0.1  # None: the running ones become the plain mean of all batches
    eps: float = 1e-5
    batches: Tensor | None = None  # goes up by one at a call; None: does not
    group: Any = None  # the processes that share the statistics; None: this one alone


def dims_of(conv: Any) -> int | None:
    """The dims of the convolution of torch.nn that a module is, and no more; None: it is none."""
    kind = type(conv)
    found = _CONVS.get(kind)
    if found is None or kind.forward is not found[1] or kind._conv_forward is not found[2]:
        return None
    if not untouched(conv) or "_conv_forward" in conv.__dict__:
        return None
    return found[0]


def is_norm(norm: Any) -> bool:
    """Whether a module is a batch norm of torch.nn and no more."""
    kind = type(norm)
    if kind not in _NORM_DIMS or not untouched(norm):
        return False
    return kind.forward is (_sync_forward if kind is nn.SyncBatchNorm else _forward)


def _process_group(norm: Any) -> Any:
    """The processes that share the statistics of a SyncBatchNorm now; None where there is one."""
    distributed = torch.distributed
    if type(norm) is not nn.SyncBatchNorm or not norm.training:
        return None
    if not (distributed.is_available() and distributed.is_initialized()):
        return None
    group = norm.process_group or distributed.group.WORLD
    return group if distributed.get_world_size(group) > 1 else None


def norm_arguments(norm: Any, dims: int) -> NormArguments | None:
    """What a norm of torch.nn would compute now; None where it is not the op's."""
    if dims + 2 not in _NORM_DIMS[type(norm)]:
        return None
    return norm_settings(norm)._replace(group=_process_group(norm))


def norm_settings(norm: Any) -> NormArguments:
    """What a module with the attributes of torch's batch norms would compute now."""
    # NOTE: from the dicts, where __getattr__ of a module finds them too; each call of a unit asks.
    buffers, parameters, momentum = norm._buffers, norm._parameters, norm.momentum
    mean, var = buffers.get("running_mean"), buffers.get("running_var")
    training = bool(norm.training or (mean is None and var is None))
    count = None
    if norm.training:
        if not norm.track_running_stats:
            mean = var = None
        else:
            count = buffers.get("num_batches_tracked")
    if momentum is None and count is None:
        momentum = 0.0
    weight, bias = parameters.get("weight"), parameters.get("bias")
    return NormArguments(mean, var, weight, bias, training, momentum, norm.eps, count)


def takes(x: Any, conv: Any, norm: NormArguments | None, residual: Any, dims: int) -> bool:
    """Whether the op stands for these modules on these tensors."""
    weight, bias = conv.weight, conv.bias
    if type(x) not in _PLAIN or x.dim() != dims + 2 or type(weight) not in _PLAIN:
        return False
    device: torch_device = x.device
    if weight.device != device or x.shape[1] != weight.shape[1] * conv.groups:
        return False
    dtype = compute_dtype(x)
    if dtype not in _DTYPES or compute_dtype(weight) is not dtype:
        return False
    if bias is not None and (type(bias) not in _PLAIN or compute_dtype(bias) is not dtype):
        return False
    if norm is not None and not _takes_norm(norm, weight.shape[0], device, dtype):
        return False
    shape = output_shape(x, conv)
    if min(shape[2:]) < 1:  # torch's error
        return False
    alone = norm is not None and norm.training and norm.group is None
    if alone and shape[0] * math.prod(shape[2:]) == 1:  # torch's error
        return False
    if residual is None:
        return True
    if type(residual) not in _PLAIN or residual.dtype is not dtype or residual.device != device:
        return False
    same: bool = residual.shape == shape
    return same


def takes_rows(x: Tensor, norm: NormArguments) -> bool:
    """Whether `fusedops.batch_norm_act` stands for a norm of rows (R, C)."""
    if x.dim() != 2 or x.numel() == 0 or x.dtype not in _DTYPES or not x.is_contiguous():
        return False
    if norm.training and norm.group is None and x.shape[0] == 1:  # torch's error
        return False
    return _takes_norm(norm, x.shape[1], x.device, x.dtype)


def compute_dtype(t: Tensor) -> torch.dtype:
    """A tensor's dtype in a convolution, which autocast may make."""
    device, dtype = t.device.type, t.dtype
    if device == "meta" or not torch.is_autocast_enabled(device):
        return dtype
    return torch.get_autocast_dtype(device) if dtype in _DTYPES[:3] else dtype


def _takes_norm(
    norm: NormArguments, channels: int, device: torch_device, dtype: torch.dtype
) -> bool:
    if (norm.mean is None) != (norm.var is None):
        return False
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    of = None
    for t in norm[:4]:
        if t is None:
            continue
        if type(t) not in _PLAIN or t.device != device or t.numel() != channels or t.dim() != 1:
            return False
        # NOTE: torch's kernels take all of them in x's dtype, or all in float32.
        if (t.dtype is not dtype and t.dtype is not wide) or (of is not None and t.dtype is not of):
            return False
        of = t.dtype
    return True


def output_shape(x: Tensor, conv: Any) -> tuple[int, ...]:
    """The shape of a convolution's result."""
    both = tuple(conv._reversed_padding_repeated_twice)
    return _shape(x.shape, conv.weight.shape, both, conv.dilation, conv.stride)


@functools.lru_cache(maxsize=1024)
def _shape(
    x: tuple[int, ...],
    weight: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    stride: tuple[int, ...],
) -> tuple[int, ...]:
    sizes = []
    for i, width in enumerate(weight[2:]):
        # NOTE: torch keeps the padding of the last dim first, of both sides.
        at = 2 * (len(x) - 1 - (i + 2))
        padded = x[i + 2] + padding[at] + padding[at + 1]
        sizes.append((padded - dilation[i] * (width - 1) - 1) // stride[i] + 1)
    return (x[0], weight[0], *sizes)


@functools.lru_cache(maxsize=256)
def _even(both: tuple[int, ...]) -> tuple[int, ...] | None:
    """The padding of each dim where it is the same on both sides."""
    sides = list(zip(both[::2], both[1::2], strict=True))[::-1]
    return tuple(a for a, _ in sides) if all(a == b for a, b in sides) else None


def padded(x: Tensor, conv: Any) -> tuple[Tensor, tuple[int, ...]]:
    """x and the padding of zeros that is left for the op: other modes are torch's own pass."""
    both = tuple(conv._reversed_padding_repeated_twice)
    even = _even(both)
    if conv.padding_mode == "zeros" and even is not None:
        return x, even
    mode = "constant" if conv.padding_mode == "zeros" else conv.padding_mode
    return F.pad(x, both, mode), (0,) * (len(both) // 2)


def run(
    given: Tensor,
    conv: Any,
    norm: NormArguments | None,
    activation: str,
    residual: Tensor | None,
    hands_on: bool = False,
) -> tuple[Tensor, Tensor]:
    """``act(norm(conv(x)) + residual)`` as one op, for what `takes` takes; and x for what else
    reads it, see `conv_bn_act_and_input`.
    """
    x, padding = padded(given, conv)
    found = NormArguments(None, None, None, None) if norm is None else norm
    window = (conv.stride, padding, conv.dilation, conv.groups)

    def op(mean: Tensor | None, var: Tensor | None, momentum: float) -> tuple[Tensor, Tensor]:
        return conv_bn_act_and_input(
            x, conv.weight, conv.bias, Norm(mean, var, found.weight, found.bias), residual, window,
            options_of("conv_bn_act", activation, found.training, momentum, found.eps, found.group),
            hands_on,
        )  # fmt: skip

    y, handed = stepped(op, found)
    return y, handed if x is given else given


def stepped(op: Callable[[Tensor | None, Tensor | None, float], R], norm: NormArguments) -> R:
    """An op of running statistics and momentum with a norm's, which become what its module makes of
    them.
    """
    mean, var, batches = norm.mean, norm.var, norm.batches
    if batches is not None:
        batches.add_(1)
    if norm.momentum is not None:
        return op(mean, var, norm.momentum)
    if mean is None or var is None:
        return op(mean, var, 0.0)
    # NOTE: the share of this batch, 1 / count, is on the device: it is mixed in behind the op.
    own_mean, own_var = torch.zeros_like(mean), torch.zeros_like(var)
    y = op(own_mean, own_var, 1.0)
    assert batches is not None
    with torch.no_grad():
        wide = torch.promote_types(mean.dtype, torch.float32)
        share = batches.to(wide).reciprocal()
        for running, batch in ((mean, own_mean), (var, own_var)):
            running.copy_(torch.lerp(running.to(wide), batch.to(wide), share))
    return y
