"""FP8 products by every kernel: tiles, scalings, operand and output types."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import torch

import fusedops  # noqa: F401  loads the ops

if TYPE_CHECKING:
    from collections import Counter

    from options import Options

OPS = torch.ops.fusedops

# By rows of a scale and by blocks of K: (1, 1), each row, 1x128, 128x128.
PAIRS = (("one", "one"), ("row", "row"), ("block", "tile"), ("block", "block"), ("tile", "block"))


def _scale(o: Options, scaling: str, rows: int, k: int) -> torch.Tensor:
    blocks = -(-k // 128)
    if scaling == "block":  # a unit of 16 bytes ends the memory
        return (o.rand(blocks, -(-rows // 4) * 4) + 0.5)[:, :rows].t()
    shape = {"one": (1, 1), "row": (rows, 1), "tile": (-(-rows // 128), blocks)}[scaling]
    return o.rand(*shape) + 0.5


def run_matmul(o: Options, count: Counter[str]) -> None:
    """The last shape takes tiles of 256 rows on a GPU of 132 SMs."""
    formats = (torch.float8_e4m3fn, torch.float8_e5m2)
    shapes = o.some(((3, 17, 16), (200, 136, 400), (130, 259, 144), (2000, 4104, 144)), 3)
    types = ((0, torch.float16), (1, torch.bfloat16), (2, torch.float32))
    products = itertools.product(shapes, PAIRS, formats, types)
    for (m, n, k), pair, format_a, (out, dtype) in o.mine(products):
        a, b = o.randn(m, k).to(format_a), o.randn(n, k).to(formats[0])
        scales = _scale(o, pair[0], m, k), _scale(o, pair[1], n, k)
        bias = o.randn(n, dtype=dtype)
        for activation, added in ((0, None), (0, bias), (2, bias), (11, bias)):
            OPS._fp8_matmul(a, b, *scales, added, activation, out)
        main_grad = o.randn(m, n)
        OPS._fp8_wgrad_(a, b, *scales, main_grad, True)
        count["fp8 matmul"] += 5


def run_quantize(o: Options, count: Counter[str]) -> None:
    """Whole tiles, cut ones, rows that vectors cannot read; as it is and behind a function."""
    shapes = o.some(((1, 1), (128, 128), (130, 262), (300, 1032)), 4)
    dtypes = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    for (m, k), dtype in itertools.product(shapes, dtypes):
        x, saved, factor = (o.randn(m, k + 1, dtype=dtype)[:, 1:] for _ in range(3))
        for given in (x, x.contiguous()):
            for rows, columns in ((3, 4), (4, 4), (3, 3), (2, 2), (1, 1), (3, 0), (0, 4)):
                for format in (0, 1):
                    OPS.fp8_quantize(
                        given, None, None, 0, False, format, rows, columns, False, True, True
                    )
                    count["fp8 quantize"] += 1
            for code in range(15):
                OPS.fp8_quantize(given, saved, None, code, True, 0, 3, 3, False, True, False)
                OPS.fp8_quantize(given, None, factor, code, False, 0, 3, 4, True, False, False)
                count["fp8 quantize"] += 2


def run_norm(o: Options, count: Counter[str]) -> None:
    """Norms that quantise: two passes, and many elements in one kernel."""
    shapes = [(1, 8), (130, 256), (33000, 1032), (4100, 2056)]
    shapes += [(3, 12296), (1368, 6152)] if o.clusters else []
    for (m, k), dtype in itertools.product(shapes, (torch.bfloat16, torch.float16)):
        x, residual = (o.randn(m, k + 8, dtype=dtype)[:, 8:] for _ in range(2))
        for parameters in (dtype, torch.float32):
            weight, bias = (o.randn(k, dtype=parameters) for _ in range(2))
            sides = ((3, 4), (3, 3), (3, 0)) if m * k < 1 << 25 else ((3, 4),)
            for rows, columns in sides:
                for other in (None, residual):
                    last = (0, rows, columns, False)
                    OPS._fp8_norm(x, other, weight, None, True, 1e-6, *last)
                    OPS._fp8_norm(x, other, weight, bias, False, 1e-5, *last)
                    count["fp8 norm"] += 2


def run_hidden(o: Options, count: Counter[str]) -> None:
    """Backward at hidden layers: several tiles for a block, cut ones, and rows apart."""
    shapes = o.some(((1, 1), (128, 128), (130, 264), (2000, 2056)), 3)
    dtypes = (torch.float16, torch.bfloat16, torch.float32)
    for (m, k), dtype in itertools.product(shapes, dtypes):
        dh, saved, factor = (o.randn(m, k + 8, dtype=dtype)[:, 8:] for _ in range(3))
        for code in range(15) if m < 1000 else (3, 4):
            OPS._fp8_hidden_grads(dh, saved, None, code, 0, True, True, 4, False, True, True)
            OPS._fp8_hidden_grads(dh, saved, factor, code, 1, True, True, 3, True, True, False)
            OPS.fp8_quantize(saved, None, factor, code, False, 0, 3, 0, False, False, False)
            count["fp8 hidden"] += 3
        pair = o.randn(256, k, dtype=dtype), o.randn(256, k, dtype=dtype)
        OPS._fp8_quantize_pair(*pair, 0, True, False)
        count["fp8 hidden"] += 1
