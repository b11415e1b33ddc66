"""softmax, norms, cross entropy, rotary and other embeddings, forward and backward."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import torch

import fusedops
from options import DTYPES

if TYPE_CHECKING:
    from collections import Counter

    from options import Options

SHAPES = (*((37, n) for n in (1, 40, 255, 1023, 4093)), (600, 255), (600, 1024))
CLUSTERED = ((37, 4097), (3, 32768), (37, 20001), (37, 140001))
ONE_BLOCK = 8192  # the longest rows whose gradient of softmax no cluster holds
# Enough data that threads hold several chunks of a row.
MUCH = (
    *((28000, 40), (4300, 256), (4200, 300), (2200, 511), (1200, 1023), (1101, 1024), (300, 4097)),
    *((240, 5000), (90, 12345), (70, 16384), (60, 20000), (34, 32769), (34, 32776), (23, 50257)),
)
MUCH_CLUSTERED = ((18, 65536),)  # one beside a residual


def run(o: Options, count: Counter[str]) -> None:
    shapes = (*SHAPES, *(CLUSTERED if o.clusters else ()))
    for dtype, (rows, n) in itertools.product(DTYPES, shapes):
        x, r = (o.randn(rows, n, dtype=dtype, grad=True) for _ in range(2))
        w, b = (o.randn(n, dtype=dtype, grad=True) for _ in range(2))
        target = torch.arange(rows, device=o.device) % n
        outputs = [
            fusedops.softmax(x, 1),
            fusedops.log_softmax(x, 0),
            *fusedops.layer_norm(x, n, w, b, residual=r),
            fusedops.rms_norm(x, n, w),
            fusedops.cross_entropy(x, target, label_smoothing=0.1),
        ]
        for y in outputs:
            y.backward(torch.ones_like(y), retain_graph=True)
        count[f"rows of {n}"] += len(outputs)
        losses(o, count, dtype, rows, n)
    for dtype in DTYPES:
        rotations(o, count, dtype)
        embeddings(o, count, dtype)
    shapes = (*MUCH, *(MUCH_CLUSTERED if o.clusters else ()))
    for dtype, (rows, n) in itertools.product((torch.float16, torch.bfloat16), shapes):
        x, r = (o.randn(rows, n, dtype=dtype, grad=True) for _ in range(2))
        w, b = (o.randn(n, dtype=dtype) for _ in range(2))
        outputs = [
            fusedops.softmax(x, 1),
            *fusedops.layer_norm(x, n, w, b, residual=r),
            fusedops.rms_norm(x, n, w),
        ]
        if n <= ONE_BLOCK or o.clusters:
            outputs[0].backward(torch.ones_like(x))
        count[f"{rows} rows of {n}"] += len(outputs)


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


def rotations(o: Options, count: Counter[str], dtype: torch.dtype) -> None:
    """rope by vectors and by elements, halves and pairs, a head and several heads of a thread."""
    for d, rotary, time in ((128, 128, 40), (80, 32, 40), (72, 36, 40), (18, 6, 3), (64, 64, 9000)):
        q, k = (o.randn(2, time, h, d, dtype=dtype, grad=True).transpose(1, 2) for h in (6, 3))
        cos, sin = (o.randn(time, rotary // 2, dtype=dtype) for _ in range(2))
        for interleaved in (False, True):
            y = fusedops.rope(q, k, cos, sin, interleaved=interleaved, rotary_dim=rotary)
            torch.autograd.backward(y, [torch.ones_like(t) for t in y])
            count[f"rotations of {rotary} in {d}"] += 1


def embeddings(o: Options, count: Counter[str], dtype: torch.dtype) -> None:
    """embedding_backward: by vectors and by elements, short lists, chunks, counted and sorted."""
    backward = torch.ops.fusedops.embedding_backward
    for entries, rows, d in ((60, 300, 2056), (60, 9, 65), (5000, 5, 16), (5000, 1, 3)):
        indices = torch.randint(rows, (entries,), device=o.device)
        grad = o.randn(entries, d, dtype=dtype)
        for idx, padding_idx in ((indices, -1), (indices.int(), rows - 1)):
            backward(grad, idx, rows, padding_idx)
            count[f"embeddings of {d}"] += 1
    many = torch.randint(70, (300_000,), device=o.device)  # sorted, not counted
    backward(o.randn(300_000, 8, dtype=dtype), many, 70, -1)
    if o.device != "cpu":  # where indices that are no rows are an error
        none = torch.tensor([-1, 3, 2**40] * 50, device=o.device)
        backward(o.randn(150, 8, dtype=dtype), none, 4, -1)
