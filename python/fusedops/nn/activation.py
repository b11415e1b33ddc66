"""Which activation of our table a module of torch.nn is."""

from __future__ import annotations

from typing import Any

from torch import nn as torch_nn

from .._core.activation import LEAKY_RELU_SLOPE, SOFTPLUS_THRESHOLD

_ACTIVATIONS = {
    torch_nn.ReLU: "relu",
    torch_nn.GELU: "gelu",
    torch_nn.SiLU: "silu",
    torch_nn.Sigmoid: "sigmoid",
    torch_nn.Tanh: "tanh",
    torch_nn.LeakyReLU: "leaky_relu",
    torch_nn.Hardswish: "hardswish",
    torch_nn.Mish: "mish",
    torch_nn.Softplus: "softplus",
    torch_nn.ELU: "elu",
    torch_nn.ReLU6: "relu6",
}
_GELUS = {"none": "gelu", "tanh": "gelu_tanh"}
# What a module's settings have to be, where ours have none.
_SETTINGS = {
    "leaky_relu": {"negative_slope": LEAKY_RELU_SLOPE},
    "softplus": {"beta": 1.0, "threshold": SOFTPLUS_THRESHOLD},
    "elu": {"alpha": 1.0},
    "relu6": {"min_val": 0.0, "max_val": 6.0},
}
_FORWARDS = {kind: kind.forward for kind in _ACTIVATIONS}


def activation_name(module: Any) -> str | None:
    """The activation that a call of a torch module computes, None for any other module."""
    # NOTE: exact types; a subclass may compute anything.
    kind = type(module)
    name = _ACTIVATIONS.get(kind)
    if name is None or "forward" in module.__dict__ or kind.forward is not _FORWARDS[kind]:
        return None
    if name in _SETTINGS and any(
        getattr(module, setting) != value for setting, value in _SETTINGS[name].items()
    ):
        return None
    return name if name != "gelu" else _GELUS.get(module.approximate)
