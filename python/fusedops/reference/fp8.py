"""FP8 written out: rounding to e4m3 and e5m2, scales, quantisation and the product.

Fed with float32 these are the op's own steps, bit for bit; fed with float64, their exact values.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .activation import activate

BLOCK = 128
SMALLEST_MAXIMUM = 2.0**-100  # zeros stay zeros, and 448 / maximum stays finite
# (bits of the mantissa, exponent of the smallest normal number, largest value)
_FORMATS = {torch.float8_e4m3fn: (3, -6, 448.0), torch.float8_e5m2: (2, -14, 57344.0)}


def fp8_round(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The nearest values of an FP8 dtype, ties to even, in x's dtype.

    What lies above the largest value becomes that; NaN stays.
    """
    mantissa, smallest, largest = _FORMATS[dtype]
    inside = x.clamp(-largest, largest)
    _, exponent = torch.frexp(inside.nan_to_num())  # in [0.5, 1)
    step = torch.exp2((exponent - 1).clamp_min(smallest).to(x.dtype) - mantissa)
    return (inside / step).round() * step


def _blocks(scaling: str, rows: int, columns: int) -> tuple[int, int]:
    sizes = {
        "tensor": (rows, columns),
        "row": (1, columns),
        "block": (1, BLOCK),
        "tile": (BLOCK, BLOCK),
    }
    height, width = sizes[scaling]
    return max(height, 1), max(width, 1)


def _spread(scale: Tensor, block: tuple[int, int], shape: torch.Size) -> Tensor:
    """The scale of each element."""
    wide = scale.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)
    return wide[: shape[0], : shape[1]]


def fp8_scales(
    x: Tensor, scaling: str, dtype: torch.dtype, power_of_two: bool = False
) -> tuple[Tensor, Tensor]:
    """(scale, 1 / scale) of the blocks of a matrix.

    The largest magnitude of a block becomes the dtype's largest value. A block with NaN or infinity
    has a scale of NaN and 0 for the inverse.
    """
    largest = _FORMATS[dtype][2]
    rows, columns = x.shape
    height, width = _blocks(scaling, rows, columns)
    across, down = -(-columns // width), -(-rows // height)
    padded = x.new_zeros(down * height, across * width)
    padded[:rows, :columns] = x
    maxima = padded.view(down, height, across, width).abs().amax((1, 3))
    finite = maxima.isfinite()
    maxima = maxima.clamp_min(SMALLEST_MAXIMUM)
    # NOTE: torch divides numbers by tensors, and on a GPU tensors by numbers, by a reciprocal.
    of_format = torch.full_like(maxima, largest)
    scale, inverse = maxima / of_format, of_format / maxima
    if power_of_two:
        fraction, exponent = torch.frexp(scale.nan_to_num(1.0, 1.0))
        power = exponent - (fraction == 0.5).int()
        scale = torch.ldexp(torch.ones_like(scale), power)
        inverse = torch.ldexp(torch.ones_like(scale), -power)
    return torch.where(finite, scale, torch.nan), torch.where(finite, inverse, 0.0)


def fp8_quantize(
    x: Tensor, scaling: str, dtype: torch.dtype, power_of_two: bool = False
) -> tuple[Tensor, Tensor]:
    """(q, scale): x = q * scale for a matrix x, with q in x's dtype, on the grid of an FP8 dtype.

    Scaling "tensor", "row", "block" (1x128) or "tile" (128x128); scale has an entry for each block,
    in the shape that `_fp8_matmul` reads.
    """
    scale, inverse = fp8_scales(x, scaling, dtype, power_of_two)
    block = _blocks(scaling, *x.shape)
    return fp8_round(x * _spread(inverse, block, x.shape), dtype), scale


def fp8_dequantize(q: Tensor, scale: Tensor) -> Tensor:
    """Q * scale in scale's dtype; the scale's shape says what an entry is for."""
    rows, columns = q.shape
    height = 1 if scale.shape[0] == rows else rows if scale.shape[0] == 1 else BLOCK
    width = columns if scale.shape[1] == 1 else BLOCK
    if scale.shape[0] == -(-rows // BLOCK) and scale.shape[0] not in (1, rows):
        height = BLOCK
    return q.to(scale.dtype) * _spread(scale, (max(height, 1), max(width, 1)), q.shape)


def fp8_matmul(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
) -> Tensor:
    """act((a * scale_a) (b * scale_b)^T + bias) for a (M, K), b (N, K), bias (N,).

    In the dtype of the scales. Kernels form the sums over 128 of K in their Tensor Cores, multiply
    them by the scales and add them in fp32: the same value but for the order.
    """
    z = fp8_dequantize(a, scale_a) @ fp8_dequantize(b, scale_b).t()
    return activate(z if bias is None else z + bias, activation)
