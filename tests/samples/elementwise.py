"""Samples of the elementwise ops; an `_out` op's last argument is where it writes."""

from __future__ import annotations

import torch

from util import make

# Ops that also take integers.
INTEGER_OPS = {"add", "add_out", "fma", "fma_out", "square", "square_out", "relu", "relu_out"}

SHAPES = [(6, 8), (5, 7), (), (300,), (2, 3, 40)]


def with_out(samples):
    """The same arguments and a tensor like the result."""

    def generate(device, dtype, codes):
        for *arguments, shape in samples(device, dtype, codes):
            yield (*arguments, torch.zeros(shape, dtype=dtype, device=device))

    return generate


def without_shape(samples):
    def generate(device, dtype, codes):
        for *arguments, _ in samples(device, dtype, codes):
            yield tuple(arguments)

    return generate


def unary(device, dtype, codes):
    for shape in SHAPES:
        yield make(*shape, dtype=dtype, device=device), shape


def binary(device, dtype, codes):
    for shape in SHAPES:
        x = make(*shape, dtype=dtype, device=device)
        yield x, make(*shape, dtype=dtype, device=device, seed=1), shape
        yield x, make(*shape[-1:], dtype=dtype, device=device, seed=1), shape
    column, row = (make(*s, dtype=dtype, device=device) for s in [(6, 1), (1, 7)])
    yield column, row, (6, 7)


def ternary(device, dtype, codes):
    for x, y, shape in binary(device, dtype, codes):
        yield x, y, make(*shape[-1:], dtype=dtype, device=device, seed=2), shape


def affine(device, dtype, codes):
    for shape in [(6, 8), (5, 7), (3, 2, 40)]:
        x = make(*shape, dtype=dtype, device=device)
        scale, bias = (make(shape[-1], dtype=dtype, device=device, seed=s) for s in (1, 2))
        for code in codes:
            yield x, scale, bias, code, shape
            yield x, None, bias, code, shape
            yield x, scale, None, code, shape


def affine_backward(device, dtype, codes):
    for x, scale, bias, code, shape in affine(device, dtype, codes):
        dy = make(*shape, dtype=dtype, device=device, seed=4)
        yield dy, x, scale, bias, code, True, True, True
        yield dy, x, scale, bias, code, False, True, False
        yield dy, x, scale, bias, code, True, False, False
        yield dy, x, scale, bias, code, False, False, True


def dropout(device, dtype, codes):
    for seed, shape in enumerate([(6, 8), (5, 7), (3, 2, 40)]):
        x = make(*shape, dtype=dtype, device=device)
        residual = make(*shape, dtype=dtype, device=device, seed=1)
        bias = make(shape[-1], dtype=dtype, device=device, seed=2)
        key = torch.tensor([seed - 1], device=device)
        yield x, bias, residual, key, 0.5, shape
        yield x, None, residual, key, 0.1, shape
        yield x, bias, None, key, 1.0, shape
        yield x, bias, residual, None, 0.0, shape


def dropout_backward(device, dtype, codes):
    for dy, _, _, seed, p, _ in dropout(device, dtype, codes):
        for flags in [(True, True), (True, False), (False, True), (False, False)]:
            yield dy, seed, p, *flags


SAMPLES = {
    "add": without_shape(binary),
    "add_out": with_out(binary),
    "fma": without_shape(ternary),
    "fma_out": with_out(ternary),
    "square": without_shape(unary),
    "square_out": with_out(unary),
    "square_backward": lambda *a: ((x, x.sin()) for x, _ in unary(*a)),
    "relu": without_shape(unary),
    "relu_out": with_out(unary),
    "scale_bias_act": without_shape(affine),
    "scale_bias_act_out": with_out(affine),
    "scale_bias_act_backward": affine_backward,
    "bias_dropout_residual": without_shape(dropout),
    "bias_dropout_residual_out": with_out(dropout),
    "bias_dropout_residual_backward": dropout_backward,
}
