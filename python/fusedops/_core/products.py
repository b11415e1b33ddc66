"""What torch's tools know of our products and convolutions: what checkpoints should save, flops."""

from __future__ import annotations

from typing import Any

import torch

from .. import _C  # noqa: F401  (registers torch.ops.fusedops)
from .after_import import import_after

_ops = torch.ops.fusedops

# The ops whose results selective activation checkpointing should save rather than compute again;
# public as fusedops.compute_intensive_ops. A list, since create_selective_checkpoint_contexts takes
# nothing else.
compute_intensive_ops: list[torch._ops.OpOverload[..., Any]] = [
    _ops.linear.default,
    _ops.linear_preact.default,
    _ops.matmul.default,
    _ops.matmul_preact.default,
    _ops.mlp_forward.default,
    _ops.gated_mlp_forward.default,
    _ops.gated_linear.default,
    _ops._fp8_matmul.default,
    _ops.first_conv.default,
    _ops.image_conv.default,
    _ops.depthwise_conv.default,
]

import_after("torch.utils.flop_counter", f"{__package__}.flops")  # takes 0.2 s by itself
