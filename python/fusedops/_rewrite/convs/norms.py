"""Batch norms of other classes than torch's: with an activation inside, as timm's, and frozen ones.

A class is known by what its module gives on probes, in both modes, and for as long as its forward
is the same function.
"""

from __future__ import annotations

import copy
import weakref
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch import nn as torch_nn

from ..._autograd.compose import activate, no_autocast
from ..._core.activation import CODES
from ...nn.activation import activation_name
from ...nn.conv_call import NormArguments, compute_dtype, is_norm, norm_arguments, norm_settings
from ...nn.linear import untouched
from ..known import close
from ..source import is_ordinary

_VECTORS = ("weight", "bias", "running_mean", "running_var")


class NormNow(NamedTuple):
    """What a norm computes at a call."""

    arguments: NormArguments
    activation: str  # behind it, in the same module
    promotes: bool = False  # whether it gives the wider dtype of x and its own

    def takes(self, x: Tensor) -> bool:
        """Whether its result has the dtype of what x is convolved in."""
        weight = self.arguments.weight
        return not self.promotes or weight is None or weight.dtype is compute_dtype(x)


# The forward of a class that was found equal, and whether it is frozen.
_known: weakref.WeakKeyDictionary[type, tuple[Any, bool]] = weakref.WeakKeyDictionary()


def norm_now(module: Any, dims: int) -> NormNow | None:
    """A norm as arguments of the op; None where it is none, or more than that now."""
    if is_norm(module):
        found = norm_arguments(module, dims)
        return None if found is None else NormNow(found, "none")
    known = _known.get(type(module))
    if known is None or dims != 2 or type(module).forward is not known[0]:
        return None
    if not untouched(module):
        return None
    activation = _inner_activation(module)
    if activation is None:
        return None
    if known[1]:
        vectors = tuple(getattr(module, name) for name in _VECTORS)
        weight, bias, mean, var = vectors
        found = NormArguments(mean, var, weight, bias, False, 0.0, module.eps)
        return NormNow(found, activation, promotes=True)
    return NormNow(norm_settings(module), activation)


def is_known_norm(module: Any) -> bool:
    """Whether a module is of a class that `know_norm` has found to be a batch norm."""
    kind = type(module)
    known = _known.get(kind)
    return is_norm(module) if known is None else kind.forward is known[0]


def _inner_activation(module: Any) -> str | None:
    """The activation inside of a norm: that of its child `act`, behind a `drop` that does none."""
    name = "none"
    for key, inner in module._modules.items():
        if key not in ("drop", "act") or inner is None or not untouched(inner):
            return None
        if type(inner) is torch_nn.Identity:
            continue
        found = activation_name(inner) if key == "act" else None
        if found is None:
            return None
        name = found
    return name


def know_norm(module: Any) -> bool:
    """Whether a module is a batch norm that the op computes; finds out where it is not known."""
    kind: Any = type(module)
    if is_norm(module):
        return True
    if kind in _known and kind.forward is _known[kind][0]:
        return _inner_activation(module) is not None
    frozen = not isinstance(module, torch_nn.BatchNorm2d)
    if not _may_be_norm(module, frozen) or _inner_activation(module) is None:
        return False
    _known[kind] = kind.forward, frozen
    try:
        cpu = torch.random.fork_rng(devices=[])
        with cpu, torch.inference_mode(False), torch.enable_grad():
            same = all(_agrees(module, mode) for mode in (False, True))
    except Exception:  # the class and its code may raise anything
        same = False
    if not same:
        del _known[kind]
    return same


def _may_be_norm(module: Any, frozen: bool) -> bool:
    if not is_ordinary(module) or type(module).__module__.startswith("torch.nn."):
        return False
    held = {**module._parameters, **module._buffers}
    counts = set() if frozen else {"num_batches_tracked"}
    if not set(held) <= {*_VECTORS, *counts} or not hasattr(module, "eps"):
        return False
    if not frozen:
        return True
    vectors = [held.get(name) for name in _VECTORS]
    return all(t is not None and t.dim() == 1 for t in vectors)


def _agrees(module: Any, training: bool) -> bool:
    """Whether a copy gives the values, gradients and statistics of the op's definition."""
    twin = copy.deepcopy(module).to("cpu", torch.float64).train(training)
    channels = next(t for t in (*twin.parameters(), *twin.buffers()) if t.dim() == 1).shape[0]
    with torch.no_grad():
        for name in _VECTORS:
            vector = getattr(twin, name, None)
            if vector is not None:
                vector.copy_(torch.rand(channels, dtype=torch.float64) + 0.5)
    other = copy.deepcopy(twin)
    x = torch.randn(3, channels, 2, 3, dtype=torch.float64, requires_grad=True)
    with no_autocast(x):
        theirs = twin(x)
        ours = _definition(other, x)
    if not close(theirs, ours, roundings=64):
        return False
    dy = torch.randn_like(ours)
    grads = [torch.autograd.grad(y, x, dy)[0] for y in (theirs, ours)]
    states = zip(twin.state_dict().values(), other.state_dict().values(), strict=True)
    return close(grads[0], grads[1], roundings=64) and all(
        torch.allclose(a, b, rtol=1e-9) for a, b in states
    )


def _definition(module: Any, x: Tensor) -> Tensor:
    now = norm_now(module, 2)
    assert now is not None
    norm = now.arguments
    if norm.batches is not None:
        norm.batches.add_(1)
    momentum = norm.momentum
    if momentum is None:
        assert norm.batches is not None
        momentum = 1 / float(norm.batches)
    y = F.batch_norm(
        x, norm.mean, norm.var, norm.weight, norm.bias, norm.training, momentum, norm.eps
    )
    return activate(y, CODES[now.activation])
