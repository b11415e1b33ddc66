"""The elementwise fusions written out, and the dropout mask as a function of seed and position."""

from __future__ import annotations

import torch
from torch import Tensor

from .activation import activate

_WORD = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)


def fma(a: Tensor, x: Tensor, b: Tensor) -> Tensor:
    """a * x + b, shapes broadcast."""
    return a * x + b


def scale_bias_act(
    x: Tensor, scale: Tensor | None, bias: Tensor | None, activation: str | None = None
) -> Tensor:
    """act(x * scale + bias) for x (..., N), scale and bias (N,)."""
    z = x if scale is None else x * scale
    return activate(z if bias is None else z + bias, activation)


def _philox(key: int, counter: Tensor) -> Tensor:
    """Philox4x32-7 of int64 counters (K,): four 32-bit words each, (K, 4) in int64."""
    # NOTE: products of two words wrap around in int64; masks after the shift make them unsigned.
    c0, c1 = counter & _WORD, (counter >> 32) & _WORD
    c2 = c3 = torch.zeros_like(counter)
    k0, k1 = key & _WORD, (key >> 32) & _WORD
    for _ in range(7):
        a, b = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (
            ((b >> 32) & _WORD) ^ c1 ^ k0,
            b & _WORD,
            ((a >> 32) & _WORD) ^ c3 ^ k1,
            a & _WORD,
        )
        k0, k1 = (k0 + _WEYL[0]) & _WORD, (k1 + _WEYL[1]) & _WORD
    return torch.stack([c0, c1, c2, c3], -1)


def dropout_mask(shape: torch.Size | tuple[int, ...], seed: Tensor, p: float) -> Tensor:
    """What dropout keeps, as a bool tensor: element i is kept where word i % 4 of Philox counter
    i / 4 is at least p * 2^32 (Salmon et al., SC 2011). Reads the seed: a synchronisation.
    """
    count = torch.Size(shape).numel()
    counters = torch.arange((count + 3) // 4, dtype=torch.int64, device=seed.device)
    words = _philox(int(seed.item()), counters).reshape(-1)[:count]
    return (words >= int(p * 2.0**32 + 0.5)).reshape(shape)


def bias_dropout_residual(
    x: Tensor, bias: Tensor | None, residual: Tensor | None, seed: Tensor | None, p: float
) -> Tensor:
    """dropout(x + bias) + residual for x and residual (..., N), bias (N,), seed (1,)."""
    z = x if bias is None else x + bias
    if p > 0:
        assert seed is not None
        keep = dropout_mask(x.shape, seed, p)
        z = torch.where(keep, z / (1 - p) if p < 1 else z, torch.zeros_like(z))
    return z if residual is None else z + residual
