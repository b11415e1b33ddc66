"""mlp and gated_mlp, written out: what every kernel has to compute."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .activation import activate
from .gemm import linear, linear_preact

if TYPE_CHECKING:
    from torch import Tensor


def mlp(
    x: Tensor,
    w1: Tensor,
    b1: Tensor | None,
    w2: Tensor,
    b2: Tensor | None,
    activation: str | None,
    residual: Tensor | None = None,
) -> Tensor:
    """y = act(x w1^T + b1) w2^T + b2 + residual for x (..., K), w1 (H, K), w2 (N, H)."""
    y = linear(linear(x, w1, b1, activation), w2, b2)
    return y if residual is None else y + residual


def gated_mlp(
    x: Tensor,
    w_gate: Tensor,
    w_up: Tensor | None,
    w_down: Tensor,
    b_gate: Tensor | None = None,
    b_up: Tensor | None = None,
    b_down: Tensor | None = None,
    activation: str | None = "silu",
    residual: Tensor | None = None,
) -> Tensor:
    """y = (act(gate) * up) w_down^T + b_down + residual with gate = x w_gate^T + b_gate, up alike.

    Without w_up, w_gate (2H, K) and b_gate (2H,) hold both, gate first.
    """
    gate = linear_preact(x, w_gate, b_gate)
    if w_up is None:
        gate, up = gate.chunk(2, dim=-1)
    else:
        up = linear_preact(x, w_up, b_up)
    y = linear(activate(gate, activation) * up, w_down, b_down)
    return y if residual is None else y + residual
