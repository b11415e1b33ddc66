"""linear_cross_entropy, and its parts where ranks share the classes."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import torch

import fusedops
from options import DTYPES

if TYPE_CHECKING:
    from collections import Counter

    from options import Options

SHAPES = ((37, 1), (37, 255), (37, 1023), (600, 40), (600, 1024))


def run(o: Options, count: Counter[str]) -> None:
    for dtype, (rows, n) in itertools.product(DTYPES, SHAPES):
        losses(o, count, dtype, rows, n)


def losses(o: Options, count: Counter[str], dtype: torch.dtype, rows: int, n: int) -> None:
    """linear_cross_entropy in three chunks and in one, with all its options and none."""
    x, weight = (o.randn(m, 24, dtype=dtype, grad=True) for m in (rows, n))
    bias = o.randn(n, dtype=dtype, grad=True)
    target = torch.arange(rows, device=o.device) % n
    call = fusedops.linear_cross_entropy
    for loss in (
        call(x, weight, target),
        call(x, weight, target, bias, label_smoothing=0.1, softcap=9.0, z_loss=0.1, chunk_size=13),
        call(x, weight, target, bias, chunk_size=20),
        call(x, weight, target, bias, reduction="none"),
    ):
        loss.backward(torch.full_like(loss, 0.5))
        count[f"losses of {n} classes"] += 1
    shards(o, count, dtype, rows, n)


def shards(o: Options, count: Counter[str], dtype: torch.dtype, rows: int, n: int) -> None:
    """The loss where n are some of 3 n classes."""
    pitch = -(-n // 8) * 8
    target = torch.arange(rows, device=o.device) % (3 * n)
    for softcap in (0.0, 9.0):
        logits = o.randn(rows, pitch, dtype=dtype)
        where = (n, n, 3 * n, -100)
        parts = torch.ops.fusedops.loss_shard_parts(logits, target, *where, softcap, True)
        lse, factor = parts[:, 0].contiguous(), parts[:1, 1].contiguous()
        torch.ops.fusedops.loss_shard_gradient_(
            logits, target, lse, factor, *where, 0.1, softcap, 0.01
        )
        count[f"losses of {n} classes"] += 1
