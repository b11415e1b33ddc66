"""Samples of rope."""

from __future__ import annotations

from util import HALVES, make


def rope_samples(device, dtype, codes):
    for d, rotary, heads in [(16, 16, (4, 2)), (20, 8, (3, 3)), (6, 6, (2, 0))]:
        for heads_dim in (1, 2):
            shapes = [(2, h, 5, d) if heads_dim == 1 else (2, 5, h, d) for h in heads]
            q, k = (make(*s, dtype=dtype, device=device, seed=i) for i, s in enumerate(shapes))
            for columns, interleaved in [(rotary, False), (rotary // 2, True), (rotary, True)]:
                cos, sin = (make(5, columns, dtype=dtype, device=device, seed=s) for s in (2, 3))
                if interleaved:
                    cos, sin = (t.expand(2, -1, -1).contiguous() for t in (cos, sin))
                if dtype in HALVES and heads_dim == 2:
                    cos, sin = cos.float(), sin.float()
                given = k if heads[1] else None
                yield q, given, cos, sin, heads_dim, rotary, interleaved, interleaved


SAMPLES = {"rope": rope_samples}
