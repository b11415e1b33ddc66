"""Layers as the package `kernels` wants them: a forward without a constructor or members.

`kernels` puts such a forward in the place of that of a module with the same layer name; `self` is
then that module, with its parameters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

import fusedops

if TYPE_CHECKING:
    from torch import Tensor

LAYERS = ("RMSNorm", "rotary_pos_emb")


class RMSNorm(nn.Module):
    """Llama's: ``weight * x / sqrt(mean(x^2) + eps)``, the statistics in fp32 (fp64)."""

    can_torch_compile = True
    has_backward = True

    weight: Tensor
    variance_epsilon: float

    def forward(self, hidden_states: Tensor) -> Tensor:
        eps = self.variance_epsilon
        weight = self.weight.to(hidden_states.dtype)
        y = fusedops.rms_norm(hidden_states, tuple(weight.shape), weight, eps)
        assert not isinstance(y, tuple)
        return y


class rotary_pos_emb(nn.Module):  # noqa: N801 (the name that `kernels` looks up)
    """Llama's: halves of a head rotate against each other; q and k in one kernel."""

    can_torch_compile = True
    has_backward = True

    def forward(
        self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1
    ) -> tuple[Tensor, Tensor]:
        rotated = fusedops.rope(q, k, cos, sin, unsqueeze_dim=unsqueeze_dim)
        assert isinstance(rotated, tuple)
        return rotated
