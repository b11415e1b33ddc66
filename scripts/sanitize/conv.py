"""Batch norm and convolutions: whole chunks of 16 bytes, odd channels, odd addresses, one value."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import torch

import fusedops

if TYPE_CHECKING:
    from collections import Counter

    from options import Options

DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
# Rows and channels: idle threads, several steps, more columns than a block has; the last is for
# passes in half precision, too, of which the others' training is one kernel of clusters.
SHAPES = (
    (3, 8), (1000, 24), (129, 7), (77, 1), (5000, 64), (19, 600), (2, 2056), (200, 264),
    (36_000, 16),
)  # fmt: skip
# Channels, side, kernel, stride: tiles that fit and that do not, two chunks of channels; any.
DEPTHWISE = (
    (8, 8, 3, 1), (130, 9, 3, 2), (96, 14, 5, 1), (2, 13, 5, 2), (132, 6, 5, 1), (3, 7, 3, 1),
    (4, 9, 7, 3), (24, 19, 3, 2), (40, 9, 5, 1), (24, 20, 7, 1), (136, 6, 7, 1), (8, 66, 7, 1),
)  # fmt: skip
# Side, channels, outputs: tiles that fit and not, several for each block, two steps of channels.
WINDOWS = ((16, 64, 64), (13, 128, 72), (9, 6, 5))
# Rows, channels, outputs: a weight that is kept and one that comes again, tiles of 64, 128 and 192
# columns, several for each block; odd ones.
POINTWISE = (
    (300, 16, 24), (40_000, 64, 128), (20_000, 512, 128), (300, 264, 320), (100, 512, 2048),
    (390, 1032, 264), (60, 30, 12),
)  # fmt: skip


def run(o: Options, count: Counter[str]) -> None:
    activations = o.some(("relu", "silu", "sigmoid", "none"), 2)
    for dtype, (rows, channels) in itertools.product(o.some(DTYPES, 2), SHAPES):
        for activation, with_residual in itertools.product(activations, (False, True)):
            x = o.randn(rows, channels + 1, dtype=dtype)
            for view in (x[:, :channels].contiguous(), x.flatten()[1 : rows * channels + 1]):
                part = view.view(rows, channels)
                count["batch_norm_act"] += norm_act(o, part, activation, with_residual)
    for dtype in (torch.float16, torch.bfloat16):
        for kernel, activation in itertools.product((1, 3), ("relu", "silu")):
            convolve(o, dtype, kernel, activation)
            count["conv_bn_act"] += 3
    for dtype in o.some(DTYPES, 2):
        for channels, side, kernel, stride in DEPTHWISE:
            depthwise(o, dtype, channels, side, kernel, stride)
            count["depthwise_conv"] += 5
        for channels, outputs, kernel in ((3, 64, 7), (3, 24, 3), (3, 136, 3), (2, 5, 3)):
            first(o, dtype, channels, outputs, kernel)
            count["first_conv"] += 1
            count["first_conv_image"] += 1
            count["first_conv_weight"] += 1
    for dtype in (torch.float16, torch.bfloat16):
        for side, channels, outputs in WINDOWS:
            windows(o, dtype, side, channels, outputs)
            count["image_conv"] += 1
            count["image_conv_backward"] += 1
        for rows, channels, outputs in POINTWISE:
            pointwise(o, dtype, rows, channels, outputs)
            count["pointwise_conv"] += 2


def norm_act(o: Options, x: torch.Tensor, activation: str, with_residual: bool) -> int:
    """Evaluation, and training where its kernels may run; how many calls these are."""
    x = x.detach().requires_grad_()
    mean, weight, bias = (torch.randn_like(x[0]).detach() for _ in range(3))
    var = torch.rand_like(mean) + 0.5
    weight, bias = weight.requires_grad_(), bias.requires_grad_()
    residual = torch.randn_like(x).requires_grad_() if with_residual else None
    torch.ops.fusedops.batch_norm_statistics_(x.detach(), None, None, None, None, 0.1)
    rows, channels = x.shape
    whole = channels % 8 == x.data_ptr() % 16 == 0 and x.dtype.itemsize == 2
    clusters = whole and rows < 1 << 15
    passes = (True, False) if o.clusters or not clusters else (False,)
    for training in passes:
        y = fusedops.batch_norm_act(
            x, mean, var, weight, bias, activation=activation, residual=residual, training=training
        )
        y.sum().backward()
    return len(passes)


def convolve(o: Options, dtype: torch.dtype, kernel: int, activation: str) -> None:
    x = o.randn(2, 24, 7, 9, dtype=dtype).to(memory_format=torch.channels_last)
    weight = o.randn(40, 24, kernel, kernel, dtype=dtype)
    mean, var = o.randn(40, dtype=dtype), o.rand(40, dtype=dtype) + 0.5
    for residual in (None, o.randn(2, 40, 7, 9, dtype=dtype)):
        fusedops.conv_bn_act(
            x, weight, None, mean, var, activation=activation, residual=residual,
            padding=kernel // 2,
        )  # fmt: skip
    torch.ops.fusedops.batch_norm_fold(weight.flatten(1), None, mean, var, None, None, 1e-5)
    weight = weight.requires_grad_()
    fusedops.conv_bn_act(
        x, weight, None, mean, var, activation=activation, padding=kernel // 2,
        training=o.clusters,
    ).sum().backward()  # fmt: skip


def depthwise(
    o: Options, dtype: torch.dtype, channels: int, side: int, kernel: int, stride: int
) -> None:
    x = o.randn(3, side, side, channels, dtype=dtype)
    weight = o.randn(channels, kernel, kernel, dtype=dtype)
    geometry = (stride, stride, kernel // 2, kernel // 2)
    mean, var = o.randn(channels, dtype=dtype), o.rand(channels, dtype=dtype) + 0.5
    y = torch.ops.fusedops.depthwise_conv(
        x, weight, None, mean, var, mean, var, None, *geometry, 1e-5, 1
    )
    torch.ops.fusedops.depthwise_conv(x, weight, mean, *[None] * 4, y, *geometry, 0.0, 4)
    x[1, 0, 0, 0] = torch.inf
    torch.ops.fusedops.depthwise_conv(x, weight, *[None] * 6, *geometry, 0.0, 0)
    for needs in ((True, True), (True, False)):
        torch.ops.fusedops.depthwise_conv_backward(y, x, weight, *geometry, *needs)


def first(o: Options, dtype: torch.dtype, channels: int, outputs: int, kernel: int) -> None:
    x = o.randn(2, 19, 35, channels, dtype=dtype)
    weight = o.randn(outputs, kernel, kernel, channels, dtype=dtype)
    mean, var = o.randn(outputs, dtype=dtype), o.rand(outputs, dtype=dtype) + 0.5
    half = kernel // 2
    y = torch.ops.fusedops.first_conv(
        x, weight, None, mean, var, mean, var, 2, 2, half, half, 1e-5, 1
    )
    for name in ("first_conv_image", "first_conv_weight"):
        getattr(torch.ops.fusedops, name)(y, x, weight, 2, 2, half, half)


def windows(o: Options, dtype: torch.dtype, side: int, channels: int, outputs: int) -> None:
    x = o.randn(3, side, side, channels, dtype=dtype)
    weight = o.randn(outputs, 3, 3, channels, dtype=dtype)
    mean, var = o.randn(outputs, dtype=dtype), o.rand(outputs, dtype=dtype) + 0.5
    y = torch.ops.fusedops.image_conv(x, weight, None, mean, var, mean, var, 1e-5, 1)
    torch.ops.fusedops.image_conv_backward(y, x, weight)


def pointwise(o: Options, dtype: torch.dtype, rows: int, channels: int, outputs: int) -> None:
    x, weight = o.randn(rows, channels, dtype=dtype), o.randn(outputs, channels, dtype=dtype)
    mean, var = o.randn(outputs, dtype=dtype), o.rand(outputs, dtype=dtype) + 0.5
    for residual in (None, o.randn(rows, outputs, dtype=dtype)):
        torch.ops.fusedops.pointwise_conv(x, weight, None, mean, var, mean, var, residual, 1e-5, 1)
