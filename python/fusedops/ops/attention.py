"""fast_attention: cuDNN's attention first, where torch would take another one on Hopper."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.attention import SDPBackend, _cur_sdpa_kernel_backends, sdpa_kernel

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["fast_attention"]


def _may_use_cudnn() -> bool:
    """Whether this is a Hopper whose cuDNN may compute attention."""
    if not torch.cuda.is_available() or torch.version.cuda is None:
        return False
    if not torch.backends.cudnn.is_available() or not torch.backends.cuda.cudnn_sdp_enabled():
        return False
    return bool(torch.cuda.get_device_capability() == (9, 0))


@functools.cache
def _fill_in_order(device: int) -> None:
    """Have torch set its own order of backends.

    It does so at the first call of attention, and would not do it again behind a context that
    restored the order before that.
    """
    q = torch.empty(1, 1, 64, 64, dtype=torch.float16, device=torch.device("cuda", device))
    torch._fused_sdp_choice(q, q, q)


def _order() -> tuple[str, ...]:
    """The names of the backends that are enabled, cuDNN's first; none where nothing is to do."""
    if torch.are_deterministic_algorithms_enabled() or not _may_use_cudnn():
        return ()
    _fill_in_order(torch.cuda.current_device())
    cudnn = SDPBackend.CUDNN_ATTENTION
    enabled = _cur_sdpa_kernel_backends(with_priority=True)
    if enabled[0] is cudnn:
        return ()
    return tuple(b.name for b in sorted(enabled, key=lambda b: b is not cudnn))


# NOTE: torch.compiler.assume_constant_result without its import of torch._dynamo.
_order._dynamo_marked_constant = True  # type: ignore[attr-defined]


@contextlib.contextmanager
def _priority(names: tuple[str, ...]) -> Iterator[None]:
    """These backends first. torch's sdpa_kernel sets all flags anew, too, and takes 25 us."""
    before = torch._C._get_sdp_priority_order()
    first = [int(getattr(SDPBackend, name)) for name in names]
    torch._C._set_sdp_priority_order(first + [b for b in before if b not in first])
    try:
        yield
    finally:
        torch._C._set_sdp_priority_order(before)


def fast_attention() -> contextlib.AbstractContextManager[Any]:
    """Let ``F.scaled_dot_product_attention`` take cuDNN's kernels first, inside a ``with``.

    For models that call torch's attention, on Hopper and in half precision: where torch's own order
    there is another one, cuDNN's backend stands before the others, which go on to serve what it
    does not (float32, wide heads). Everything else, and every other device, stays as it is: also
    where cuDNN's attention is disabled, and under ``torch.use_deterministic_algorithms``, since
    torch counts cuDNN's attention as not deterministic. Two runs may then differ in their last
    bits: that is why `fuse` does not do this by itself.

    torch keeps the order for the whole process and takes it back at the end of the ``with``, also
    after an exception; other threads see it meanwhile. The order counts where attention runs
    forward, so a backward may stand outside, unless activation checkpointing runs the forward again
    in it: then both belong inside. It is read when torch.compile traces a model, so enter the
    context before the first call, or inside the model's forward. cuDNN builds a plan for each new
    shape, which takes many milliseconds: this is for steps of the same shapes, not for a decoder
    whose cache grows.

    Example:
        >>> with fusedops.fast_attention():
        ...     model(x).sum().backward()
    """
    order = _order()
    if not order:
        return contextlib.nullcontext()
    if not torch.compiler.is_dynamo_compiling():
        return _priority(order)
    context: contextlib.AbstractContextManager[Any] = sdpa_kernel(  # which Dynamo knows
        [getattr(SDPBackend, name) for name in order], set_priority=True
    )
    return context
