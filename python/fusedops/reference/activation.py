"""The activations and their derivatives, written out: what every kernel has to compute."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_SQRT_2_OVER_PI = math.sqrt(2.0 / math.pi)
_GELU_CUBIC = 0.044715


def _gelu_tanh_inner(z: Tensor) -> Tensor:
    return _SQRT_2_OVER_PI * (z + _GELU_CUBIC * z * z * z)


def activate(z: Tensor, activation: str | None = None) -> Tensor:
    """Apply an activation to the pre-activation z, in z's dtype.

    ========= =====================================================
    name      act(z)
    ========= =====================================================
    none      z
    relu      max(z, 0)
    gelu      z * (1 + erf(z / sqrt 2)) / 2
    gelu_tanh z * (1 + tanh(sqrt(2 / pi) (z + 0.044715 z^3))) / 2
    silu      z * sigmoid(z)
    sigmoid   1 / (1 + exp(-z))
    tanh      tanh(z)
    relu2     max(z, 0)^2
    ========= =====================================================

    NaN gives NaN for every activation.
    """
    match activation:
        case None | "none":
            return z
        case "relu":
            return z.clamp(min=0)
        case "gelu":
            return z * 0.5 * torch.erfc(-z * math.sqrt(0.5))
        case "gelu_tanh":
            return z * torch.sigmoid(2.0 * _gelu_tanh_inner(z))
        case "silu":
            return z * torch.sigmoid(z)
        case "sigmoid":
            return torch.sigmoid(z)
        case "tanh":
            return torch.tanh(z)
        case "relu2":
            return z.clamp(min=0).square()
    raise ValueError(f"reference: unknown activation {activation!r}")


def activate_grad(z: Tensor, activation: str | None = None) -> Tensor:
    """The derivative act'(z), in z's dtype; at the kink of relu it is 0, as in torch."""
    match activation:
        case None | "none":
            return torch.ones_like(z)
        case "relu":
            return torch.where(z <= 0, torch.zeros_like(z), torch.ones_like(z))
        case "gelu":
            density = torch.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
            return 0.5 * torch.erfc(-z * math.sqrt(0.5)) + z * density
        case "gelu_tanh":
            s = torch.sigmoid(2.0 * _gelu_tanh_inner(z))
            slope = _SQRT_2_OVER_PI * (1.0 + 3.0 * _GELU_CUBIC * z * z)
            return s + 2.0 * z * slope * s * (1.0 - s)
        case "silu":
            s = torch.sigmoid(z)
            return s * (1.0 + z * (1.0 - s))
        case "sigmoid":
            s = torch.sigmoid(z)
            return s * (1.0 - s)
        case "tanh":
            return 1.0 - torch.tanh(z).square()
        case "relu2":
            return 2.0 * z.clamp(min=0)
    raise ValueError(f"reference: unknown activation {activation!r}")
