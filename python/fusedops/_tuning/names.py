"""What a GEMM problem and the plan for it are called: in calls, in files and in reports."""

from __future__ import annotations

from typing import Any

import torch

from .. import _C
from .._core.activation import ACTIVATIONS

_ENUMS = _C.enums()

# A name's code, as torch.ops.fusedops_tuning.gemm_with_config takes it.
FAMILIES = {name: code for code, name in enumerate(_ENUMS["family"])}
EPILOGUES = {name: code for code, name in enumerate(_ENUMS["epilogue"])}
DTYPES: dict[torch.dtype, str] = {getattr(torch, name): name for name in _ENUMS["dtype"]}
LAYOUTS = {("k", "k"): "TN", ("k", "mn"): "NN", ("mn", "mn"): "NT", ("mn", "k"): "TT"}

DEFAULT_RASTER_WIDTH = 8  # GemmPlan::raster_width of csrc/cutlass/configs/plan.h
STREAM_K_TAIL = 0  # the number of splits that stands for one (plan_from_numbers, there)


def problem_text(problem: dict[str, Any]) -> str:
    """`8192x4096x1024 bfloat16 TN gelu_tanh`; the layout as BLAS names it."""
    words = [
        f"{problem['m']}x{problem['n']}x{problem['k']}",
        problem["dtype"] if problem["math"] != "tf32" else "tf32",
        LAYOUTS[problem["a_major"], problem["b_major"]],
        ACTIVATIONS[problem["activation"]],
    ]
    if problem["epilogue"] != "fused":
        words.append("+ " + problem["epilogue"])
    return " ".join(words)


def plan_text(plan: dict[str, Any]) -> str:
    """`sm90 128x128 pingpong 2x1, 4 splits, raster width 4`; defaults are left out."""
    words = [plan["name"]]
    if plan["splits"] > 1:
        words.append(f"{plan['splits']} splits")
    elif plan["splits"] == STREAM_K_TAIL:
        words.append("stream-K tail")
    if plan["family"] == "cluster":
        if plan["swizzle"] > 1:
            words.append(f"clusters of {plan['swizzle']} tiles")
    elif plan["swizzle"] != DEFAULT_RASTER_WIDTH:
        words.append(f"raster width {plan['swizzle']}")
    return ", ".join(words)


def us_text(us: float) -> str:
    """Three significant digits."""
    return f"{us:.3g} us" if us < 1000 else f"{us:.0f} us"
