"""Samples of embedding_backward."""

from __future__ import annotations

import torch

from util import make


def embedding_backward_samples(device, dtype, codes):
    drawn = torch.tensor([[3, 0, 7, 3], [8, 3, 0, 5], [3, 3, 1, 8]], device=device)
    for d, padding_idx in [(5, -1), (16, 0), (1, 3)]:
        grad = make(3, 4, d, dtype=dtype, device=device)
        yield grad, drawn, 9, padding_idx
        yield grad[0], drawn[0].int(), 11, padding_idx
    yield make(0, 8, dtype=dtype, device=device), drawn.flatten()[:0], 3, -1
    yield make(300, 8, dtype=dtype, device=device), torch.ones_like(drawn[0, :1]).expand(300), 2, -1


SAMPLES = {"embedding_backward": embedding_backward_samples}
