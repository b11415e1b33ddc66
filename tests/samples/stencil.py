"""Samples of the stencil ops."""

from __future__ import annotations

from util import make

CASES = [  # x, weight, dims
    ((3, 9), (3,), 1),
    ((2, 3, 21), (3, 7), 1),
    ((6, 8), (3, 3), 2),
    ((2, 3, 7, 10), (3, 5, 5), 2),
    ((2, 9, 12), (9, 1), 2),
    ((2, 4, 5, 6), (2, 3, 3, 3), 3),
]


def stencil_samples(device, dtype, codes):
    for x_shape, weight_shape, dims in CASES:
        x = make(*x_shape, dtype=dtype, device=device)
        weight = make(*weight_shape, dtype=dtype, device=device, seed=1)
        for padding in range(4):
            yield x, weight, 0.5, dims, padding


def stencil_backward_samples(device, dtype, codes):
    for x, *rest in stencil_samples(device, dtype, codes):
        dy = make(*x.shape, dtype=dtype, device=device, seed=2)
        yield dy, x, *rest, True, True
        yield dy, x, *rest, False, True
        yield dy, x, *rest, True, False


SAMPLES = {"stencil": stencil_samples, "stencil_backward": stencil_backward_samples}
