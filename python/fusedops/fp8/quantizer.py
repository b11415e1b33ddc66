"""quantize and dequantize, and the calls of the quantiser that layers make."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from .. import _fakes  # noqa: F401  (registers the fakes)
from .._core.calls import public
from .._core.checks import raise_not_tensor
from .._core.fp8 import (
    BLOCK,
    BLOCKS,
    FORMAT_NAMES,
    FORMATS,
    NONE,
    SCALING_CODES,
)
from .._core.traced import is_exporting

_quantize = torch.ops.fusedops.fp8_quantize.default


def as_rows(tensor: Tensor) -> Tensor:
    """(..., K) as the matrix (M, K)."""
    # NOTE: reshape(-1, K) cannot tell M where K is 0, torch does not batch flatten in a backward,
    # and torch.Size.numel makes numbers of the sizes that torch.export keeps as symbols.
    return tensor.reshape(math.prod(tensor.shape[:-1]), tensor.shape[-1])


class Quantized(NamedTuple):
    """An FP8 matrix with its scales, ``x = q * scale``, and its transpose where it was asked for.

    q (M, K) and q_t (K, M) are row-major with rows of a multiple of 16 bytes. scale is (M,
    ceil(K/128)) for "block", with the scales of neighbouring rows side by side in memory,
    (ceil(M/128), ceil(K/128)) for "tile", (M, 1) for "row" and (1, 1) for "tensor"; scale_t is
    that of q_t.
    """

    q: Tensor
    scale: Tensor
    q_t: Tensor | None = None
    scale_t: Tensor | None = None


class Operand(NamedTuple):
    """One FP8 operand of a product, as the quantiser wrote it."""

    q: Tensor  # columns padded to a multiple of 16
    scale: Tensor  # of 1x128 blocks: transposed and padded
    blocks: bool  # whether it is one of those

    def scale_of_rows(self) -> Tensor:
        """The scale as `_fp8_matmul` takes it."""
        if not self.blocks:
            return self.scale
        rows = self.q.shape[0]
        if is_exporting():  # a slice would ask whether it fits, which becomes a bound of rows
            return self.scale.as_strided((rows, self.scale.shape[0]), (1, self.scale.shape[1]))
        return self.scale[:, :rows].t()


def quantize_rows(
    x: Tensor,
    dtype: torch.dtype,
    rows: int,
    columns: int,
    power_of_two: bool,
    *,
    saved: Tensor | None = None,
    factor: Tensor | None = None,
    activation: int = 0,
    gradient: bool = False,
    need_sums: bool = False,
    sums_fp32: bool = False,
) -> tuple[Operand, Operand, Tensor]:
    """(rows, columns, sums) of one pass over x (M, K); the scalings are codes."""
    q, scale, q_t, scale_t, sums = _quantize(
        x, saved, factor, activation, gradient, FORMATS.index(dtype), rows, columns,
        power_of_two, need_sums, sums_fp32,
    )  # fmt: skip
    return Operand(q, scale, rows == BLOCKS), Operand(q_t, scale_t, columns == BLOCKS), sums


def as_format(op: str, dtype: object) -> torch.dtype:
    """The FP8 dtype of "e4m3", "e5m2" or a dtype."""
    found = FORMAT_NAMES.get(dtype, dtype) if isinstance(dtype, str) else dtype
    if found not in FORMATS:
        raise ValueError(
            f"{op}: dtype must be 'e4m3', 'e5m2', torch.float8_e4m3fn or torch.float8_e5m2; got "
            f"{dtype!r}"
        )
    return found


@public
def quantize(
    x: Tensor,
    scaling: str = "block",
    dtype: torch.dtype | str = torch.float8_e4m3fn,
    transposed: bool = False,
    power_of_two_scales: bool = False,
) -> Quantized:
    """Quantise x to FP8 with scales, and its transpose, in one pass over it.

    The largest magnitude of a block becomes the largest value of the format (448 of e4m3, 57344 of
    e5m2): ``scale = amax / 448``, ``q = round(x * (448 / amax))``, ties to even, in fp32. Blocks of
    zeros, and what is under 2^-100, are zeros with a scale of 2^-100 / 448. A block that holds NaN
    or infinity has a scale of NaN, so that a loss scaler sees it, and no other block does.

    Args:
        x: Matrix (M, K), or (..., K) with leading dimensions that count as rows, any strides;
            float16, bfloat16, float32, or float64, which is rounded to float32 first.
        scaling: "block": a scale for 1x128 elements along a row, and along a row of the transpose.
            "tile": for 128x128, the same for both. "row": for a row, and a row of the transpose.
            "tensor": one. The last two read x twice.
        dtype: torch.float8_e4m3fn ("e4m3") or torch.float8_e5m2 ("e5m2").
        transposed: Whether to write the transpose as well.
        power_of_two_scales: Round scales up to powers of two.

    Returns:
        `Quantized`: (q, scale, q_t, scale_t), the last two None unless asked for. No gradient flows
        through it.

    Raises:
        ValueError: The scaling or dtype is unknown.
        TypeError: x is not a tensor.
        RuntimeError: x has another dtype or no dimension.

    Block scaling is DeepSeek-V3's (arXiv 2412.19437, 3.3.2).

    Example:
        >>> q, scale, q_t, scale_t = fusedops.fp8.quantize(x, transposed=True)
    """
    if not isinstance(x, Tensor):
        raise_not_tensor("quantize", x=x)
    if not isinstance(scaling, str) or scaling not in SCALING_CODES or scaling == "none":
        allowed = "'block', 'tile', 'row' or 'tensor'"
        raise ValueError(f"quantize: scaling must be {allowed}; got {scaling!r}")
    code, wanted = SCALING_CODES[scaling], as_format("quantize", dtype)
    if x.dim() == 0:
        raise RuntimeError("quantize: x must have at least 1 dimension(s); got shape ()")
    matrix = as_rows(x.detach())
    columns = code if transposed else NONE
    by_rows, by_columns, _ = quantize_rows(matrix, wanted, code, columns, power_of_two_scales)
    m, k = matrix.shape
    q, scale = by_rows.q[:, :k], by_rows.scale_of_rows()
    if not transposed:
        return Quantized(q, scale)
    return Quantized(q, scale, by_columns.q[:, :m], by_columns.scale_of_rows())


@public
def dequantize(q: Tensor, scale: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Form ``q * scale`` for a matrix and its scale of any shape that `quantize` gives.

    Args:
        q: Matrix (M, K) of an FP8 dtype.
        scale: (1, 1), (M, 1), (M, ceil(K/128)) or (ceil(M/128), ceil(K/128)), float32.
        dtype: Dtype of the result.

    Returns:
        A new tensor (M, K).

    Raises:
        TypeError: q or scale is not a tensor.
        RuntimeError: q is no matrix, or the scale's shape is none of these.
    """
    if q.dim() != 2:
        raise RuntimeError(f"dequantize: q must be 2-dimensional, (M, K); got {tuple(q.shape)}")
    m, k = q.shape
    tiles, blocks = -(-m // BLOCK), -(-k // BLOCK)
    shape = tuple(scale.shape)
    if shape not in ((1, 1), (m, 1), (m, blocks), (tiles, blocks)):
        raise RuntimeError(
            f"dequantize: scale must have shape (1, 1), ({m}, 1), ({m}, {blocks}) or ({tiles}, "
            f"{blocks}); got {shape}"
        )
    if shape[0] not in (1, m):
        scale = scale.repeat_interleave(BLOCK, 0)[:m]
    if shape[1] != 1:
        scale = scale.repeat_interleave(BLOCK, 1)[:, :k]
    return (q.to(scale.dtype) * scale).to(dtype)
