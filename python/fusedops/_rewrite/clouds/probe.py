"""Whether a module gives the values of what would run in its place, on clouds drawn at random."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

Calls = list[tuple[Any, ...]]
# float64 leaves no doubt; code that names float32 cannot run in it.
_DTYPES = (torch.float64, torch.float32)


def draws(like: Tensor) -> Callable[..., Tensor]:
    """A function that draws uniform tensors, of a tensor's dtype and device."""
    generator = torch.Generator().manual_seed(0)
    return lambda *shape: torch.rand(*shape, generator=generator).to(like)


def agrees(
    module: Any,
    ours: Callable[..., Any],
    calls: Callable[[Any, Tensor], Calls],
    *,
    exact: bool = False,
) -> bool | None:
    """Whether a module's values are ours, with the same random numbers, in evaluation and training.

    Norms of the copies that run are drawn at random: fresh ones hide what large weights or other
    statistics show. In training the statistics that a call leaves behind are compared as well.

    Args:
        module: Stays as it is; copies run.
        ours: Takes the copy and the arguments of a call; gives None where it cannot stand for it.
        calls: Makes arguments for the copy, of the dtype and device of a tensor.
        exact: Whether no group may have another neighbour in float32 either.

    Returns:
        None where the module's own code cannot run.
    """
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    autocast = [torch.autocast(kind, enabled=False) for kind in ("cpu", "cuda")]
    with torch.random.fork_rng(devices=devices), torch.no_grad(), autocast[0], autocast[1]:
        for dtype in _DTYPES:
            probe = copy.deepcopy(module).to(dtype)
            _draw_norms(probe)
            made = calls(probe, next(probe.parameters()))
            found = [
                _agrees(module, probe.train(mode), ours, made, exact) for mode in (False, True)
            ]
            if None not in found:
                return all(found)
    return None


def _draw_norms(probe: Any) -> None:
    torch.manual_seed(1)
    for norm in probe.modules():
        if isinstance(norm, torch.nn.modules.batchnorm._BatchNorm):
            for name, low, high in (("weight", 0.5, 6.0), ("bias", -1.0, 1.0)):
                if getattr(norm, name) is not None:
                    getattr(norm, name).uniform_(low, high)
            if norm.running_mean is not None and norm.running_var is not None:
                norm.running_mean.uniform_(-0.5, 0.5)
                norm.running_var.uniform_(0.5, 2.0)


def _agrees(
    module: Any, probe: Any, ours: Callable[..., Any], calls: Calls, exact: bool
) -> bool | None:
    own, other = copy.deepcopy(probe), copy.deepcopy(probe)
    for arguments in calls:
        torch.manual_seed(0)
        try:
            theirs = type(module).forward(own, *arguments)
        except Exception:  # its ops may be missing, or be of another device
            return None
        torch.manual_seed(0)
        y = ours(other, *arguments)
        if y is None or not _close(theirs, y, exact):
            return False
    buffers = zip(own.buffers(), other.buffers(), strict=True)
    return all(torch.allclose(a, b, rtol=1e-3, atol=1e-6) for a, b in buffers)


def _close(theirs: Any, ours: Any, exact: bool) -> bool:
    """Whether results are the same; in float32 but for a few groups, unless exact."""
    if not isinstance(ours, tuple):
        theirs, ours = (theirs,), (ours,)
    if not isinstance(theirs, tuple) or len(theirs) != len(ours):
        return False
    for a, b in zip(theirs, ours, strict=True):
        if a is None or b is None:
            if a is not b:
                return False
            continue
        if a.shape != b.shape or a.dtype is not b.dtype:
            return False
        double = b.dtype is torch.float64
        limit = (1e-9 if double else 1e-4) * b.abs().max().clamp_min(1e-6)
        # NOTE: a distance near the radius, rounded otherwise, gives a group another neighbour.
        far = ((a - b).abs() > limit).any(1).double().mean()
        if far > (0 if double or exact else 0.01):
            return False
    return True
