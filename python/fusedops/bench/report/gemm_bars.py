"""The bars of the GEMM half against the fastest peers: linear, mlp, gated_mlp, skinny, wgrad."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from fusedops.bench.report.figures import (
    LARGE_M,
    activation,
    bar,
    geomean,
    ratios,
    select,
    shape,
    speedup,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fusedops.bench.report.results import Row

SMALL_K = 1536  # up to here the epilogue decides, above it the power limit
SKINNY_M = 128
MEMORY_SHARE = 0.75  # of eager's extra memory
MAIN_GRAD = 1.03  # dW into an fp32 main_grad, in times of dW into bf16
GATED = "glu"  # in the activation's name: swiglu, geglu, reglu, glu


def gemm_bars(rows: Sequence[Row]) -> list[str]:
    """Lines as summary.bars has them; bf16."""
    half = select(rows, dtype="bf16")
    steps = select(half, **{"pass": "step"})
    mlp = select(steps, suite="mlp")
    plain = [row for row in mlp if GATED not in activation(row)]
    gated = [row for row in mlp if GATED in activation(row)]
    lines = _forward_bars(select(half, suite="linear", **{"pass": "fwd"}))
    # A training step over the better of eager and torch.compile.
    lines += _pair("linear step over the best peer", best(select(steps, suite="linear")), 1.20, 1.0)
    lines += _pair("mlp step over the best peer", best(plain), 1.13, 1.03)
    lines += _pair("gated_mlp step over the best peer", best(gated), 1.10, 1.02)
    eager = select(plain, peer="eager")
    memory = ratios((row["peer_extra_mb"], row["ours_extra_mb"]) for row in eager)
    lines.append(bar("mlp step eager's memory / ours, every case", memory, min, 1 / MEMORY_SHARE))
    skinny = [
        speedup(row)
        for row in select(half, suite="skinny", peer="cublaslt")
        if shape(row)[0] <= SKINNY_M
    ]
    lines += _pair(f"skinny M <= {SKINNY_M} over cublaslt", skinny, 1.20, 1.00)
    main_grad = [speedup(row) for row in select(half, suite="wgrad", peer="ours_own")]
    name = "dW into bf16 / dW into main_grad, every case"
    return [*lines, bar(name, main_grad, min, 1 / MAIN_GRAD)]


def best(rows: Sequence[Row]) -> list[float]:
    """The speed-up over the better of eager and torch.compile, per case."""
    cases: dict[str, float] = {}
    for row in rows:
        if row["peer"] in ("eager", "compile"):
            cases[row["case"]] = min(speedup(row), cases.get(row["case"], math.inf))
    return [*cases.values()]


def _forward_bars(rows: Sequence[Row]) -> list[str]:
    fused = [row for row in rows if activation(row) in ("relu", "gelu_tanh") and shape(row)]
    lt = select(fused, peer="cublaslt")
    large = [row for row in lt if shape(row)[0] >= LARGE_M]
    groups = (
        (f"M >= {LARGE_M}, K <= {SMALL_K}", [r for r in large if shape(r)[2] <= SMALL_K], 1.25, 1),
        (f"M >= {LARGE_M}, K > {SMALL_K}", [r for r in large if shape(r)[2] > SMALL_K], 1.04, 0.98),
        (f"M < {LARGE_M}", [r for r in lt if shape(r)[0] < LARGE_M], 1.05, 0.97),
    )
    lines: list[str] = []
    for name, members, mean, least in groups:
        values = [speedup(row) for row in members]
        lines += _pair(f"fwd relu, gelu_tanh over cublaslt, {name}", values, mean, least)
    quack = [speedup(row) for row in select(fused, peer="quack")]
    return [*lines, bar("fwd relu, gelu_tanh over QuACK, geomean", quack, geomean, 1.03)]


def _pair(name: str, values: Sequence[float], mean: float, least: float) -> list[str]:
    return [
        bar(f"{name}, geomean", values, geomean, mean),
        bar(f"{name}, every case", values, min, least),
    ]
