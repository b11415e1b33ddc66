"""Fits the constants of the GEMM time model to sweeps: csrc/cutlass/select/time_constants.h.

    python perf/gemm/fit_time_model.py            # how far off the constants are, and a refit's
    python perf/gemm/fit_time_model.py --write    # writes the refit if it is better
    python perf/gemm/fit_time_model.py --keep     # writes the header anew, with today's figures

The sweeps come from tune_gemm.py on a GPU (gemm_sweep.csv, gemm_sweep_large.csv; skinny_sweep.csv
has a kernel's name alone). What counts is which kernel the model chooses: the loss of a product
is how much longer that kernel takes than the best one. A fifth of the products is held out, and a
refit counts as better if it loses less there.

The formulas are those of csrc/cutlass/select itself: compiled here, with variables for constants.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import math
import os
import re
import subprocess
import sys
import tempfile
import zlib
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import fusedops
from fusedops._core.activation import CODES
from fusedops._tuning.names import EPILOGUES

sys.path.insert(0, str(Path(__file__).parent))
import make_gemm_table as table  # the reader of sweeps

ROOT = Path(__file__).resolve().parents[2]
SELECT = ROOT / "csrc/cutlass/select"
HEADER = SELECT / "time_constants.h"
SWEEPS = ROOT / "perf/results/h200"
GEMM_SWEEPS, SKINNY_SWEEP = ("gemm_sweep.csv", "gemm_sweep_large.csv"), "skinny_sweep.csv"

HELD_OUT = 5  # one product of so many, by a hash of its sizes
SOFTNESS = 0.01  # kernels whose expected times differ by so much are nearly tied
TIME_WEIGHT = 0.02  # of the error of the times themselves, beside the loss of the choice
STEPS = (0.3, 0.1, 0.04, 0.015, 0.006)  # by which a constant changes, the next where none helps

# What no sweep determines; the header says where each figure comes from.
NOT_FITTED = {
    "kClockGhz",
    "kGradientCycles",
    "kAddCycles",
    "kPrefetchedAddCycles",
    "kPowerBytesPerUs",
    "kPowerOverlap",
    "kPowerUs",
    "kUnsteady",
    "kSkinnyCutSector",
    "kCopiedBytesPerUs",
    "kTransposedBytesPerUs",
    "kCopyUs",
    "kCopiedRowUs",
    "kStoredWords",
    "kSm80Half",
    "kSm80Tf32",
    "kTileCycles",
    "kSimtLarge",
    "kSimtMedium",
    "kSimtSmall",
    "kSimtAlone",
    "kReduceOverlapUs",
    "kA100DramBytesPerUs",
    "kOtherDramBytesPerUs",
}
NUMBER = r"-?\d[\d.]*(?:e[+-]?\d+)?"
LINE = re.compile(rf"^FUSEDOPS_TIME_CONSTANT (k\w+) = ({NUMBER});", re.MULTILINE)

TEMPLATE = """\
// Constants of the time model: written by perf/gemm/fit_time_model.py, which fits them to sweeps
// in {sweeps}. A comment says where a figure comes from that no sweep determines.
//
// Over the products of a sweep, the kernel that the time model alone chooses takes so much longer
// than the best one:
{errors}
#pragma once

#ifndef FUSEDOPS_TIME_CONSTANT  // a variable in perf/gemm/time_model_probe.cpp
#define FUSEDOPS_TIME_CONSTANT inline constexpr double
#endif

// clang-format off
namespace fusedops {{

{constants}

}}  // namespace fusedops
"""


@dataclass
class Product:
    sweep: str
    problem: table.Problem
    candidates: list[int]  # positions in selection's list
    us: list[float]  # that the sweep found

    @property
    def held_out(self) -> bool:
        """The same for all layouts and epilogues of one shape."""
        return zlib.crc32(repr(sorted(self.problem[:3])).encode()) % HELD_OUT == 0


# ---- sweeps ----


def read_products(folder: Path, sm_count: int) -> list[Product]:
    """Products with several timed kernels; the kernels that selection may choose. A sweep may be
    missing.
    """
    found = []
    for name in (*GEMM_SWEEPS, SKINNY_SWEEP):
        path = folder / name
        if not path.is_file():
            continue
        times = read_skinny(path) if name == SKINNY_SWEEP else table.read(path)
        for problem, choices in sorted(times.items()):
            positions = candidates_of(problem, sm_count)
            known = {positions[c]: us for c, us in choices.items() if c in positions}
            if len(known) > 1:
                found.append(Product(name, problem, list(known), list(known.values())))
    return found


def read_skinny(path: Path) -> dict[table.Problem, dict[table.Choice, float]]:
    times: dict[table.Problem, dict[table.Choice, float]] = defaultdict(dict)
    for row in csv.DictReader(path.open()):
        if row["kernel"].startswith("skinny"):
            problem = (int(row["m"]), int(row["n"]), int(row["k"]), "TN", "", False)
            times[problem][row["kernel"], 1, 1] = float(row["us"])
    return times


def arguments_of(problem: table.Problem) -> tuple[str, str, str, int]:
    """a's and b's major, the epilogue's and the activation's name for selection."""
    _, _, _, layout, output, costly = problem
    a, b = (major[1:].lower() for major in table.MAJORS[layout])
    return a, b, table.EPILOGUES[output], CODES[table.COSTLY] if costly else 0


def candidates_of(problem: table.Problem, sm_count: int) -> dict[table.Choice, int]:
    """Positions among the candidates of selection."""
    a, b, epilogue, activation = arguments_of(problem)
    options = {"epilogue": epilogue, "a_major": a, "b_major": b, "activation": activation}
    _, candidates = fusedops._C.select_config(*problem[:3], **options, sm_count=sm_count)
    families = (*table.FAMILIES, "skinny")
    return {
        table.choice_of(c): i
        for i, c in enumerate(candidates)
        if c["rejected"] is None and c["family"] in families
    }


# ---- the model ----


class Model:
    """csrc/cutlass/select, compiled with constants that can be set."""

    def __init__(self, products: list[Product], sm_count: int) -> None:
        self.products, self.sm_count = products, sm_count
        self._library = load_library(list(read_header()))
        for product in products:
            a, b, epilogue, activation = arguments_of(product.problem)
            wanted = (ctypes.c_int64 * len(product.candidates))(*product.candidates)
            self._library.add_product(
                *map(ctypes.c_int64, product.problem[:3]),
                *(a == "k", b == "k", EPILOGUES[epilogue], activation),
                *(wanted, ctypes.c_int64(len(wanted))),
            )
        self.starts = np.cumsum([0, *(len(p.candidates) for p in products)])
        self.us = np.concatenate([p.us for p in products])
        self.best = np.minimum.reduceat(self.us, self.starts[:-1])
        self.sizes = np.diff(self.starts)

    def predict(self, values: dict[str, float]) -> np.ndarray:
        """Expected us of every candidate."""
        for name, value in values.items():
            assert self._library.set_constant(name.encode(), ctypes.c_double(value)), name
        us = np.empty(len(self.us))
        pointer = us.ctypes.data_as(ctypes.POINTER(ctypes.c_double))
        self._library.predict(90, self.sm_count, pointer)
        return us

    def losses(self, expected: np.ndarray) -> np.ndarray:
        """How much more than the best kernel the chosen one takes, for each product."""
        lost = []
        for i, (start, end) in enumerate(zip(self.starts, self.starts[1:], strict=False)):
            lost.append(self.us[start + np.argmin(expected[start:end])] / self.best[i] - 1)
        return np.array(lost)

    def objective(self, expected: np.ndarray) -> np.ndarray:
        """A loss of each product that is smooth in the constants."""
        least = np.repeat(np.minimum.reduceat(expected, self.starts[:-1]), self.sizes)
        weights = np.exp(-np.log(expected / least) / SOFTNESS)
        excess = self.us / np.repeat(self.best, self.sizes) - 1
        at = self.starts[:-1]
        chosen = np.add.reduceat(weights * excess, at) / np.add.reduceat(weights, at)
        times = np.add.reduceat(np.abs(np.log(expected / self.us)), at) / self.sizes
        return chosen + TIME_WEIGHT * times


def load_library(constants: list[str]) -> ctypes.CDLL:
    with tempfile.TemporaryDirectory() as folder:
        names = "\n".join(f'{{"{name}", &{name}}},' for name in constants)
        Path(folder, "named_constants.inc").write_text(names)
        library = Path(folder, "time_model.so")
        sources = [Path(__file__).parent / "time_model_probe.cpp", *sorted(SELECT.rglob("*.cpp"))]
        sources.append(ROOT / "csrc/cutlass/configs/config.cpp")
        flags = ["-std=c++20", "-O2", "-fPIC", "-shared", f"-I{ROOT}", f"-I{folder}"]
        define = "-DFUSEDOPS_TIME_CONSTANT=inline double"
        compiler = os.environ.get("CXX", "c++")
        subprocess.run([compiler, *flags, define, *sources, "-o", library], check=True)
        loaded = ctypes.CDLL(str(library), mode=os.RTLD_LAZY)
    loaded.set_constant.restype = ctypes.c_bool
    return loaded


# ---- the fit ----


def fit(model: Model, values: dict[str, float], products: np.ndarray) -> dict[str, float]:
    """Constants that lose less on the products of a mask: each in turn a step up or down."""
    values = dict(values)
    least = model.objective(model.predict(values))[products].mean()
    for step in STEPS:
        improved = True
        while improved:
            improved = False
            for name in (n for n in values if n not in NOT_FITTED):
                for factor in (1 + step, 1 / (1 + step)):
                    tried = values | {name: values[name] * factor}
                    loss = model.objective(model.predict(tried))[products].mean()
                    if loss < least * (1 - 1e-4):
                        least, values, improved = loss, tried, True
                        break
            print(f"step {step:g}: {100 * least:.3f} %", file=sys.stderr, flush=True)
    return values


# ---- the header ----


def read_header() -> dict[str, float]:
    return {match[1]: float(match[2]) for match in LINE.finditer(HEADER.read_text())}


def sweep_losses(model: Model, values: dict[str, float]) -> dict[str, tuple[int, float]]:
    """(products, mean loss) of each sweep."""
    lost = model.losses(model.predict(values))
    names = [p.sweep for p in model.products]
    sweeps = {name: lost[np.array(names) == name] for name in dict.fromkeys(names)}
    return {name: (len(each), float(each.mean())) for name, each in sweeps.items()}


def render(text: str, values: dict[str, float], model: Model, sweeps: str) -> str:
    """The header's text with these constants, and with the losses that they have."""
    losses = [
        f"//   {name}: {100 * loss:.2f} % ({count} products)"
        for name, (count, loss) in sweep_losses(model, values).items()
    ]
    constants = text.split("namespace fusedops {\n\n")[1].split("\n\n}  // namespace")[0]
    constants = LINE.sub(
        lambda match: f"FUSEDOPS_TIME_CONSTANT {match[1]} = {values[match[1]]:.4g};", constants
    )
    return TEMPLATE.format(sweeps=sweeps, errors="\n".join(losses), constants=constants)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sweeps", type=Path, default=SWEEPS, help="folder of the CSVs")
    parser.add_argument("--sm-count", type=int, default=132, help="of the GPU of the sweeps")
    parser.add_argument("--write", action="store_true", help="the refit, if it is better")
    parser.add_argument("--keep", action="store_true", help="write without a refit")
    options = parser.parse_args(argv)
    products = read_products(options.sweeps, options.sm_count)
    if not products:
        parser.error(f"no sweep in {options.sweeps}: make one with tune_gemm.py")
    model = Model(products, options.sm_count)
    sweeps = options.sweeps.resolve()
    sweeps = str(sweeps.relative_to(ROOT) if sweeps.is_relative_to(ROOT) else sweeps)
    values = read_header()
    if options.keep:
        HEADER.write_text(render(HEADER.read_text(), values, model, sweeps))
        return 0
    held_out = np.array([product.held_out for product in products])
    today = model.losses(model.predict(values))
    refit = fit(model, values, ~held_out)
    new = model.losses(model.predict(refit))
    for words, mask in (("fitted", ~held_out), ("held out", held_out)):
        before, after = 100 * today[mask].mean(), 100 * new[mask].mean()
        print(f"{words}: {mask.sum()} products lose {before:.2f} %, {after:.2f} % after a refit")
    for name, value in refit.items():
        if not math.isclose(value, values[name]):
            print(f"{name}: {values[name]:g} -> {value:.4g}")
    if not options.write:
        return 0
    if new[held_out].mean() >= today[held_out].mean():
        print("not written: the refit is no better on what was held out")
        return 1
    refit = {name: float(f"{value:.4g}") for name, value in refit.items()}
    HEADER.write_text(render(HEADER.read_text(), refit, model, sweeps))
    print(f"wrote {HEADER}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
