"""Which activation of our table a module computes, by its values."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch import nn as torch_nn

from .._autograd.compose import activation_table, value_and_slope
from .._core.activation import ACTIVATIONS
from ..nn.activation import activation_name
from .forward_code import RefusedError
from .source import ACTIVATION_FORWARDS, Reader

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FunctionType

    from .forward_code import Outside

PLAIN_FUNCTIONS: dict[Any, str] = {
    F.relu: "relu",
    torch.relu: "relu",
    F.silu: "silu",
    torch.sigmoid: "sigmoid",
    F.sigmoid: "sigmoid",
    torch.tanh: "tanh",
    F.tanh: "tanh",
}
# With no argument but their input, and inplace.
DEFAULT_FUNCTIONS: dict[Any, str] = {
    F.leaky_relu: "leaky_relu",
    F.hardswish: "hardswish",
    F.mish: "mish",
    F.softplus: "softplus",
    F.elu: "elu",
    F.relu6: "relu6",
}
FUNCTIONS = {**PLAIN_FUNCTIONS, **DEFAULT_FUNCTIONS, F.gelu: "gelu"}
_POINTWISE = {
    *FUNCTIONS, torch.pow, torch.square, torch.erf, torch.exp, torch.mul, torch.add, torch.sub,
    "pow", "square", "tanh", "sigmoid", "erf", "exp", "mul", "add", "sub", "relu", "neg",
    *ACTIVATION_FORWARDS,
}  # fmt: skip
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_REFUSALS = (RefusedError, RuntimeError, TypeError, ValueError, AttributeError)


@functools.cache
def _probes() -> Tensor:
    ends = [0.0, 1e-6, 1e-3, 0.02, 12.0, 60.0, 1e3]
    values = [*ends, *(-x for x in ends), *(i / 20 for i in range(-180, 181))]
    return torch.tensor(values, dtype=torch.float64, device="cpu")


@functools.cache
def _table() -> tuple[tuple[Tensor, Tensor], ...]:
    return activation_table(_probes())


def read_activation(module: torch_nn.Module) -> tuple[str, Reader] | None:
    """The activation that a module without parameters computes, and what its code reads."""
    own = [t for t in (*module._parameters.values(), *module._buffers.values()) if t is not None]
    if own or module._modules or "forward" in vars(module):
        return None
    reader = Reader(module)
    try:
        reader.read()
        name = _computed(functools.partial(type(module).forward, module), reader)
    except _REFUSALS:
        return None
    return None if name is None else (name, reader)


def read_function(function: FunctionType) -> tuple[str, Outside] | None:
    """The activation that a function of one argument computes, and the names outside it reads."""
    reader = Reader(torch_nn.Module())
    try:
        reader.read_function(function)
        name = _computed(function, reader)
    except _REFUSALS:
        return None
    return None if name is None or reader.outside.has_cells else (name, reader.outside)


def _computed(function: Callable[[Tensor], Tensor], reader: Reader) -> str | None:
    """The activation whose values and slopes a function gives, where its code is pointwise."""
    if not reader.calls <= _POINTWISE:
        return None
    with torch.autocast("cpu", enabled=False):
        y, slope = value_and_slope(function, _probes())
        if any(function(_probes()[:2].to(d)).dtype is not d for d in _DTYPES):
            return None
    # NOTE: the kink of relu at 0 is probed too: the table says what its slope is there.
    for name, (want, want_slope) in zip(ACTIVATIONS, _table(), strict=True):
        if name != "none" and _close(y, want) and _close(slope, want_slope):
            return name
    return None


def _close(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool(torch.allclose(a, b, rtol=1e-6, atol=1e-9))


def activation_of(module: torch_nn.Module) -> str | None:
    """The activation that a module computes, None for any other module."""
    name = activation_name(module)
    if name is None:
        read = read_activation(module)
        name = None if read is None else read[0]
    return name
