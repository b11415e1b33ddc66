"""Rotary embeddings of query and key, and the gradient of an embedding."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

import fusedops
from options import DTYPES

if TYPE_CHECKING:
    from collections import Counter

    from options import Options


def run(o: Options, count: Counter[str]) -> None:
    for dtype in DTYPES:
        rotations(o, count, dtype)
        embeddings(o, count, dtype)


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
