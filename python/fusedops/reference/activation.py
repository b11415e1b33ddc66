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

    ========== =====================================================
    name       act(z)
    ========== =====================================================
    none       z
    relu       max(z, 0)
    gelu       z * (1 + erf(z / sqrt 2)) / 2
    gelu_tanh  z * (1 + tanh(sqrt(2 / pi) (z + 0.044715 z^3))) / 2
    silu       z * sigmoid(z)
    sigmoid    1 / (1 + exp(-z))
    tanh       tanh(z)
    relu2      max(z, 0)^2
    quick_gelu z * sigmoid(1.702 z)
    leaky_relu z where z > 0, else 0.01 z
    hardswish  z * min(max(z + 3, 0), 6) / 6
    mish       z * tanh(log(1 + exp(z)))
    softplus   log(1 + exp(z)); z where z > 20
    elu        z where z > 0, else exp(z) - 1
    relu6      min(max(z, 0), 6)
    ========== =====================================================

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
        case "quick_gelu":
            return z * torch.sigmoid(1.702 * z)
        case "leaky_relu":
            return torch.where(z > 0, z, 0.01 * z)
        case "hardswish":
            return z * ((z + 3.0).clamp(0, 6) / 6.0)
        case "mish":
            return z * torch.tanh(torch.logaddexp(z, torch.zeros_like(z)))
        case "softplus":
            # NOTE: an exponential that overflows would have a gradient of NaN, unused as it is.
            return torch.where(z > 20, z, torch.log1p(torch.exp(z.clamp(max=20))))
        case "elu":
            return torch.where(z > 0, z, torch.expm1(z.clamp(max=0)))
        case "relu6":
            return z.clamp(0, 6)
    raise ValueError(f"reference: unknown activation {activation!r}")


def activate_grad(z: Tensor, activation: str | None = None) -> Tensor:
    """The derivative act'(z), in z's dtype; at the kink of relu it is 0, as in torch.

    At those of the others it is torch's too: 0.01 for leaky_relu at 0, 0 and 1 for hardswish at -3
    and 3, 0 for relu6 at 0 and 6.
    """
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
        case "quick_gelu":
            s = torch.sigmoid(1.702 * z)
            return s * (1.0 + 1.702 * z * (1.0 - s))
        case "leaky_relu":
            return torch.where(z > 0, torch.ones_like(z), torch.full_like(z, 0.01))
        case "hardswish":
            slope = torch.where(z < 3, z / 3.0 + 0.5, torch.ones_like(z))
            return torch.where(z <= -3, torch.zeros_like(z), slope)
        case "mish":
            t = torch.tanh(torch.log1p(torch.exp(z)))
            return t + z * torch.sigmoid(z) * (1.0 - t.square())
        case "softplus":
            return torch.where(z > 20, torch.ones_like(z), torch.sigmoid(z))
        case "elu":
            return torch.where(z <= 0, torch.exp(z), torch.ones_like(z))
        case "relu6":
            return torch.where((z <= 0) | (z >= 6), torch.zeros_like(z), torch.ones_like(z))
    raise ValueError(f"reference: unknown activation {activation!r}")
