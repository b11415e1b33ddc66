"""Samples of convolutions on kernels of ours."""

from __future__ import annotations

from util import make

from .batch_norm import vectors, wide

# Shape of x, kernel, strides, padding: kernels of their own first, odd ones behind.
CASES = [
    ((2, 5, 6, 8), (3, 3), (1, 1), (1, 1)),
    ((1, 9, 7, 6), (3, 3), (2, 2), (1, 1)),
    ((2, 6, 9, 4), (5, 5), (1, 1), (2, 2)),
    ((1, 11, 8, 2), (5, 5), (2, 2), (2, 2)),
    ((2, 4, 5, 3), (3, 2), (2, 1), (0, 1)),
]


def forward(device, dtype, codes):
    for i, (shape, kernel, stride, padding) in enumerate(CASES):
        x = make(*shape, dtype=dtype, device=device)
        channels = shape[-1]
        weight = make(channels, *kernel, dtype=dtype, device=device, seed=2)
        mean, var, scale, bias = vectors(channels, dtype, device)
        sizes = zip(shape[1:3], kernel, stride, padding, strict=True)
        out = [(n + 2 * p - k) // s + 1 for n, k, s, p in sizes]
        residual = make(shape[0], *out, channels, dtype=dtype, device=device, seed=3)
        conv_bias = make(channels, dtype=dtype, device=device, seed=6)
        geometry = (*stride, *padding)
        for code in codes if i == 0 else codes[:2]:
            yield x, weight, None, mean, var, scale, bias, residual, *geometry, 1e-5, code
            norm = (mean.to(wide(dtype)), var.to(wide(dtype)), None, None)
            yield x, weight, conv_bias, *norm, None, *geometry, 1e-3, code
        yield x, weight, None, None, None, None, None, None, *geometry, 0.0, 0


def backward(device, dtype, codes):
    for shape, kernel, stride, padding in CASES:
        x = make(*shape, dtype=dtype, device=device)
        weight = make(shape[-1], *kernel, dtype=dtype, device=device, seed=2)
        sizes = zip(shape[1:3], kernel, stride, padding, strict=True)
        out = [(n + 2 * p - k) // s + 1 for n, k, s, p in sizes]
        dy = make(shape[0], *out, shape[-1], dtype=dtype, device=device, seed=3)
        for needs in ((True, True), (True, False), (False, True)):
            yield dy, x, weight, *stride, *padding, *needs


# Shape of x, outputs, kernel, strides, padding: kernels of their own first, others behind.
FIRST = [
    ((1, 21, 37, 3), 72, (7, 7), (2, 2), (3, 3)),
    ((2, 9, 8, 3), 32, (3, 3), (2, 2), (1, 1)),
    ((1, 17, 34, 3), 64, (7, 7), (2, 2), (3, 3)),
    ((1, 6, 5, 2), 5, (3, 2), (2, 1), (0, 1)),
]


def first(device, dtype, codes):
    for i, (shape, outputs, kernel, stride, padding) in enumerate(FIRST):
        x = make(*shape, dtype=dtype, device=device)
        weight = make(outputs, *kernel, shape[3], dtype=dtype, device=device, seed=2, scale=0.1)
        mean, var, scale, bias = vectors(outputs, dtype, device)
        conv_bias = make(outputs, dtype=dtype, device=device, seed=6)
        geometry = (*stride, *padding)
        for code in codes if i == 1 else codes[:2]:
            yield x, weight, conv_bias, mean, var, scale, bias, *geometry, 1e-5, code
        wides = (mean.to(wide(dtype)), var.to(wide(dtype)))
        yield x, weight, None, *wides, None, None, *geometry, 1e-3, 0
        yield x, weight, None, None, None, None, None, *geometry, 0.0, 0


def first_gradient(device, dtype, codes):
    for shape, outputs, kernel, stride, padding in FIRST:
        x = make(*shape, dtype=dtype, device=device)
        weight = make(outputs, *kernel, shape[3], dtype=dtype, device=device, seed=2)
        sizes = zip(shape[1:3], kernel, stride, padding, strict=True)
        out = [(n + 2 * p - k) // s + 1 for n, k, s, p in sizes]
        dy = make(shape[0], *out, outputs, dtype=dtype, device=device, seed=3)
        yield dy, x, weight, *stride, *padding


# Shape of x, outputs: for kernels of their own first, others behind.
IMAGE = [((2, 9, 17, 64), 72), ((1, 8, 6, 128), 64), ((1, 3, 5, 6), 5)]


def image(device, dtype, codes):
    for i, (shape, outputs) in enumerate(IMAGE):
        x = make(*shape, dtype=dtype, device=device)
        weight = make(outputs, 3, 3, shape[3], dtype=dtype, device=device, seed=2, scale=0.1)
        mean, var, scale, bias = vectors(outputs, dtype, device)
        conv_bias = make(outputs, dtype=dtype, device=device, seed=6)
        for code in codes if i == 1 else codes[:2]:
            yield x, weight, conv_bias, mean, var, scale, bias, 1e-5, code
        wides = (mean.to(wide(dtype)), var.to(wide(dtype)))
        yield x, weight, None, *wides, None, None, 1e-3, 0
        yield x, weight, None, None, None, None, None, 0.0, 0


def image_gradient(device, dtype, codes):
    for shape, outputs in IMAGE:
        x = make(*shape, dtype=dtype, device=device)
        weight = make(outputs, 3, 3, shape[3], dtype=dtype, device=device, seed=2)
        yield make(*shape[:3], outputs, dtype=dtype, device=device, seed=3), x, weight


# Leading sizes, channels, outputs: for kernels of their own first, others behind.
POINTWISE = [((2, 9, 8), 64, 72), ((3, 50), 24, 136), ((130,), 136, 200), ((2, 3), 5, 7)]


def pointwise(device, dtype, codes):
    for i, (rows, channels, outputs) in enumerate(POINTWISE):
        x = make(*rows, channels, dtype=dtype, device=device)
        weight = make(outputs, channels, dtype=dtype, device=device, seed=2, scale=0.1)
        mean, var, scale, bias = vectors(outputs, dtype, device)
        conv_bias = make(outputs, dtype=dtype, device=device, seed=6)
        residual = make(*rows, outputs, dtype=dtype, device=device, seed=3)
        for code in codes if i == 0 else codes[:2]:
            yield x, weight, conv_bias, mean, var, scale, bias, residual, 1e-5, code
        wides = (mean.to(wide(dtype)), var.to(wide(dtype)))
        yield x, weight, None, *wides, None, None, None, 1e-3, codes[-1]
        yield x, weight, None, None, None, None, None, residual, 0.0, 0


SAMPLES = {
    "first_conv": first,
    "first_conv_image": first_gradient,
    "first_conv_weight": first_gradient,
    "image_conv": image,
    "image_conv_backward": image_gradient,
    "pointwise_conv": pointwise,
    "depthwise_conv": forward,
    "depthwise_conv_backward": backward,
}
