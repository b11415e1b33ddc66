"""Words of FP8, as csrc/common/fp8.h has them."""

from __future__ import annotations

import torch

BLOCK = 128  # elements of K, and rows, that share a scale
PADDING = 16  # columns of q come in these
SCALE_ROWS = 4  # rows of 1x128 scales come in these

FORMATS = (torch.float8_e4m3fn, torch.float8_e5m2)  # by their codes
FORMAT_NAMES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
SCALINGS = ("none", "tensor", "row", "block", "tile")  # by their codes
SCALING_CODES = {name: code for code, name in enumerate(SCALINGS)}
NONE, TENSOR, ROW, BLOCKS, TILES = range(5)
OUT_DTYPES = (torch.float16, torch.bfloat16, torch.float32)  # by their codes
OUT_CODES = {dtype: code for code, dtype in enumerate(OUT_DTYPES)}


def ceil_div(a: int, b: int) -> int:
    """a / b, rounded up."""
    return (a + b - 1) // b


def scale_shape(scaling: int, rows: int, columns: int) -> tuple[int, int]:
    """The sizes of a scale tensor of a (rows, columns) matrix, as the quantiser writes it."""
    if scaling == NONE:
        return 0, 0
    if scaling == TENSOR:
        return 1, 1
    if scaling == ROW:
        return rows, 1
    if scaling == BLOCKS:
        return ceil_div(columns, BLOCK), ceil_div(rows, SCALE_ROWS) * SCALE_ROWS
    return ceil_div(rows, BLOCK), ceil_div(columns, BLOCK)
