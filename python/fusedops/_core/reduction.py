"""The reduction table: names users read in errors, codes the ops take."""

from __future__ import annotations

import torch

# NOTE: csrc/common/reduction.h and csrc/common/reduce_gradient.h hold the same tables;
# tests/reduce/test_reduce.py compares them.
REDUCTIONS: tuple[str, ...] = (
    "sum",
    "mean",
    "prod",
    "prod_nonzero",
    "amax",
    "amin",
    "norm_1",
    "norm_2",
    "norm_inf",
    "norm_minus_inf",
    "logsumexp",
    "count_nonzero",
    "any",
    "all",
    "argmax",
    "argmin",
)
CODE: dict[str, int] = {name: code for code, name in enumerate(REDUCTIONS)}

GRADIENTS: tuple[str, ...] = ("affine", "sign", "exp", "equal", "equal_abs", "prod")
GRADIENT_CODE: dict[str, int] = {name: code for code, name in enumerate(GRADIENTS)}

FLOATING_ONLY = frozenset(
    CODE[name]
    for name in (
        "mean",
        "prod_nonzero",
        "norm_1",
        "norm_2",
        "norm_inf",
        "norm_minus_inf",
        "logsumexp",
    )
)
NEEDS_ELEMENTS = frozenset(
    CODE[name] for name in ("amax", "amin", "norm_inf", "norm_minus_inf", "argmax", "argmin")
)


def public_name(code: int) -> str:
    """What an error message calls a reduction."""
    name = REDUCTIONS[code]
    return "norm" if name.startswith("norm_") else name


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """The compute type of a floating dtype."""
    return torch.float64 if dtype is torch.float64 else torch.float32


def result_dtype(code: int, dtype: torch.dtype, wide: bool) -> torch.dtype:
    """The dtype that a reduction of a dtype has."""
    name = REDUCTIONS[code]
    if name in ("any", "all"):
        return torch.bool
    if name in ("argmax", "argmin", "count_nonzero"):
        return torch.int64
    if dtype.is_floating_point:
        return wide_dtype(dtype) if wide else dtype
    return dtype if name in ("amax", "amin") else torch.int64
