"""Writes csrc/cutlass/select/sm90_measured.h: the products that the time model gets wrong.

    python perf/gemm/make_gemm_table.py perf/results/h200/gemm_sweep.csv

The sweep comes from tune_gemm.py on a GPU. A product enters the table when the model's choice
costs more than TOLERANCE times the best measured one; into main_grad, also when its own product has
another kernel that does not; with a costly activation (gelu_tanh stands for all of them), when the
choice for the cheap ones costs too much.
"""

from __future__ import annotations

import csv
import math
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import fusedops
from fusedops._core.activation import CODES

TOLERANCE = 1.01
# Long products run at the power limit in a training step: no sweep sees it, the model knows it.
LONG_US, LONG_TOLERANCE = 100, 1.06
# What cluster kernels lose to sm90's in a CUDA graph, behind another kernel, beside a sweep's queue
# of calls: between nothing and 0.3 us for products of 3 to 12 us.
GRAPH_US = {"sm90": 0.0, "cluster": 0.15}
HEADER = Path(__file__).parents[2] / "csrc/cutlass/select/sm90_measured.h"
MAJORS = {"TN": ("kK", "kK"), "NN": ("kK", "kMN"), "NT": ("kMN", "kMN")}
FAMILIES = ("sm90", "cluster")  # that the table chooses among

# What a sweep's epilogue has after the activation, and the epilogue that it stands for.
EPILOGUES = {"": "fused", "preact": "preact", "main_grad": "accumulator"}

CHEAP, COSTLY = ("none", "relu"), "gelu_tanh"

Problem = tuple[int, int, int, str, str, bool]  # m, n, k, layout, a key of EPILOGUES, costly
Choice = tuple[str, int, int]  # name, splits, tiles that share operands

TEMPLATE = """// Written by perf/gemm/make_gemm_table.py from {source}: do not edit.
// Products for which the time model chooses over {percent:.0f} % more time than the best,
// and those that take the kernel of the same product with another output. costly: with an
// activation that costs more than relu.
#pragma once

#include "csrc/cutlass/configs/config.h"

namespace fusedops {{

struct MeasuredGemm {{
  int64_t m, n, k;
  Major a, b;
  Epilogue epilogue;
  bool costly;
  Family family;
  int tile_m, tile_n, cluster_m, cluster_n, splits, shared_tiles;
}};

namespace measured {{

using enum Major;
using enum Epilogue;
using enum Family;

inline constexpr MeasuredGemm kProducts[] = {{
{rows}
}};

}}  // namespace measured
}}  // namespace fusedops
"""


def enumerator(name: str) -> str:
    """The C++ enumerator of a name."""
    return f"k{name.capitalize()}"


def choice_of(kernel: dict[str, Any]) -> Choice:
    """What a sweep's row or a candidate stands for; the raster width is not chosen."""
    shared_tiles = int(kernel["swizzle"]) if kernel["family"] == "cluster" else 1
    return (kernel["name"], int(kernel["splits"]), shared_tiles)


def read(path: Path) -> dict[Problem, dict[Choice, float]]:
    """The fastest time of every choice."""
    times: dict[Problem, dict[Choice, float]] = defaultdict(dict)
    known = {c["name"] for c in fusedops._C.gemm_configs()}
    for row in csv.DictReader(path.open()):
        activation, _, epilogue = row["epilogue"].partition("+")
        costly = epilogue == "" and activation not in CHEAP
        if row["family"] not in FAMILIES or row["name"] not in known:
            continue
        problem = (int(row["m"]), int(row["n"]), int(row["k"]), row["layout"], epilogue, costly)
        choice = choice_of(row)
        us = float(row["us"]) + GRAPH_US[row["family"]]
        times[problem][choice] = min(us, times[problem].get(choice, us))
    return times


def expected(problem: Problem) -> dict[Choice, float]:
    """The model's times of what the table may choose: nothing where the skinny kernels run."""
    m, n, k, layout, output, costly = problem
    a, b = (major[1:].lower() for major in MAJORS[layout])
    activation = CODES[COSTLY] if costly else 0
    chosen, candidates = fusedops._C.select_config(
        m, n, k, epilogue=EPILOGUES[output], a_major=a, b_major=b, activation=activation
    )
    if chosen is None or chosen["family"] not in FAMILIES:
        return {}
    ranked = (c for c in candidates if c["rejected"] is None)
    return {choice_of(c): c["expected_us"] for c in ranked}


def pick(times: dict[Choice, float], default: Choice, own: Choice | None) -> Choice:
    """The fastest choice, but `own` or the default where that is within the tolerance."""
    best = min(times, key=times.__getitem__)
    limit = times[best] * (LONG_TOLERANCE if times[best] > LONG_US else TOLERANCE)
    if own is not None and times.get(own, math.inf) <= limit:
        return own
    # What a sweep did not time was far behind, but for more splits than it tried.
    untried = math.inf if default[1] == 1 else 0.0
    return default if times.get(default, untried) <= limit else best


def main(source: str) -> None:
    rows = []
    picked: dict[Problem, Choice] = {}
    listed: dict[Problem, Choice] = {}
    for problem, measured in sorted(read(Path(source)).items()):
        model = expected(problem)
        times = {choice: us for choice, us in measured.items() if choice in model}
        if not times:
            continue
        m, n, k, layout, output, costly = problem
        # Without a row of its own.
        default = min(model, key=model.__getitem__)
        if costly:
            default = listed.get((m, n, k, layout, output, False), default)
        # A gradient in main_grad runs as the one in a tensor of its own does.
        own = picked.get((m, n, k, layout, "", False)) if output == "main_grad" else None
        best = picked[problem] = pick(times, default, own)
        if best == default:
            continue
        listed[problem] = best
        a, b = MAJORS[layout]
        family, _, shape = best[0].partition(" ")
        tile = re.findall(r"\d+", shape.replace("split-k", ""))
        rows.append(
            f"    {{{m}, {n}, {k}, {a}, {b}, {enumerator(EPILOGUES[output])}, "
            f"{str(costly).lower()}, {enumerator(family)}, {', '.join(tile)}, {best[1]}, "
            f"{best[2]}}},"
        )
    text = TEMPLATE.format(source=source, percent=100 * (TOLERANCE - 1), rows="\n".join(rows))
    HEADER.write_text(text)
    print(f"{HEADER}: {len(rows)} products")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python perf/gemm/make_gemm_table.py SWEEP.csv")
    main(sys.argv[1])
