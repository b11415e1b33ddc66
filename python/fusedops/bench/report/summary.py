"""What the CSVs say: geomeans, worst cases, bars, regressions."""

from __future__ import annotations

import csv
import math
import re
from collections import defaultdict
from typing import TYPE_CHECKING

from fusedops.bench.report.conv_bars import FOLDED, conv_bars
from fusedops.bench.report.figures import (
    GEMM_SUITES,
    LARGE_M,
    activation,
    bar,
    first_size,
    geomean,
    select,
    shape,
    speedup,
)
from fusedops.bench.report.gemm_bars import gemm_bars
from fusedops.bench.report.memory_bars import memory_bars
from fusedops.bench.report.model_bars import model_bars
from fusedops.bench.report.point_bars import point_bars
from fusedops.bench.report.results import NO_PEER, Row, read_rows
from fusedops.bench.report.wild import wild_bars, wild_report

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

WORST = 6
REGRESSION = 0.97  # a new speed-up under this share of the old one; less is noise


def summary(paths: Sequence[Path]) -> str:
    rows = [row for path in paths for row in read_rows(path)]
    compared = [row for row in rows if row["peer"] != NO_PEER and row["suite"] != "wild"]
    report = bars(rows, read_errors(paths))
    lines = [_geomeans(compared), "", _worst(compared), ""] if compared else []
    if len(compared) < len(rows) and any(row["suite"] == "wild" for row in rows):
        lines += [wild_report(paths), ""]
    lines += ["Bars", *report]
    return "\n".join(lines)


def kind(row: Row) -> str:
    """What cases of a suite have in common: a GEMM's activation, an op, a variant of ours, the
    window of a convolution, a recipe or block of FP8.
    """
    if row["suite"] in GEMM_SUITES:
        return activation(row)
    op = row["case"].split("/")[0]
    if row["suite"] == "conv":
        window = re.search(r"_k(\d+)_s\d+(_g)?", op)
        if not window:
            return op
        size = "depthwise" if window[2] else f"{window[1]}x{window[1]}"
        return f"folded {size}" if FOLDED in row["case"] else size
    if row["suite"] == "fp8" and re.match(r"T?\d", op):
        return activation(row)
    if row["suite"] == "models":
        return row["case"].split("/")[1]
    return f"{op}/{activation(row)}" if row["suite"] == "host" else op


def _geomeans(rows: Sequence[Row]) -> str:
    groups: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row["suite"], row["pass"], row["dtype"], kind(row), row["peer"]].append(row)
    lines = [
        f"{'suite pass dtype kind peer':46} {'cases':>5} {'geomean':>8} {'worst':>6} "
        f"{'best':>6} {f'M>={LARGE_M}':>8} {'worst':>6}"
    ]
    for key, members in groups.items():
        values = [speedup(row) for row in members]
        large = [speedup(row) for row in members if first_size(row) >= LARGE_M]
        text = f"{' '.join(key):46} {len(values):5} {geomean(values):8.3f} {min(values):6.2f} "
        text += f"{max(values):6.2f}"
        lines.append(text + (f" {geomean(large):8.3f} {min(large):6.2f}" if large else ""))
    return "\n".join(lines)


def _worst(rows: Sequence[Row]) -> str:
    lines = ["Worst cases"]
    others = [row for row in rows if not row["peer"].startswith("ours")]
    for row in sorted(others, key=speedup)[:WORST]:
        name = f"{row['suite']} {row['case']} {row['dtype']} {row['pass']}"
        lines.append(
            f"  {speedup(row):6.3f}  {name}: ours {row['ours_us']} us, "
            f"{row['peer']} {row['peer_us']} us, floor {row['floor_us'] or '-'} us"
        )
    return "\n".join(lines)


def bars(rows: Sequence[Row], errors: Sequence[Row]) -> list[str]:
    """The bars, each `pass`, `FAIL` or `no data`."""
    return [
        *_linear_bars(select(rows, suite="linear")),
        *_fp32_bars(select(rows, suite="fp32"), errors),
        *_host_bars(select(rows, suite="host")),
        *gemm_bars(rows),
        *memory_bars(rows),
        *point_bars(rows),
        *conv_bars(rows),
        *model_bars(rows),
        *wild_bars(rows),
    ]


def _linear_bars(rows: Sequence[Row]) -> list[str]:
    forward = select(rows, dtype="bf16", **{"pass": "fwd"})
    relu = [row for row in forward if activation(row) == "relu"]
    lt = [speedup(r) for r in select(relu, peer="cublaslt") if first_size(r) >= LARGE_M]
    eager = [speedup(row) for row in select(relu, peer="eager")]
    # gelu_tanh over relu: measured side by side by the peer ours_relu.
    gelu = [
        speedup(row)
        for row in select(forward, peer="ours_relu")
        if activation(row) == "gelu_tanh" and shape(row)[2] >= 512
    ]
    best: dict[str, float] = {}
    for row in select(rows, dtype="bf16", **{"pass": "step"}):
        if row["peer"] in ("eager", "compile"):
            best[row["case"]] = min(speedup(row), best.get(row["case"], math.inf))
    return [
        bar(f"fwd relu bf16 over cublaslt, M >= {LARGE_M}, geomean", lt, geomean, 1.06),
        bar(f"fwd relu bf16 over cublaslt, M >= {LARGE_M}, every case", lt, min, 0.90),
        bar("fwd relu bf16 over eager, all cases, geomean", eager, geomean, 1.25),
        bar("fwd bf16 relu time / gelu_tanh time, K >= 512, every case", gelu, min, 1 / 1.05),
        bar(
            "step bf16 over the better of eager and compile, geomean",
            [*best.values()],
            geomean,
            1.1,
        ),
    ]


def _fp32_bars(rows: Sequence[Row], errors: Sequence[Row]) -> list[str]:
    lines = []
    for dtype, least in (("fp32_highest", 1.5), ("fp32_high", 0.95)):
        found = select(rows, dtype=dtype, peer="eager", case="4096x4096x4096/relu")
        lines.append(bar(f"{dtype} over cuBLAS at 4096^3", [speedup(r) for r in found], min, least))
    by_case: dict[str, dict[str, float]] = defaultdict(dict)
    for row in select(errors, dtype="fp32_highest"):
        by_case[row["case"]][row["contender"]] = float(row["rel_error"])
    ratios = [e["eager"] / e["ours"] for e in by_case.values() if e.keys() >= {"eager", "ours"}]
    lines.append(bar("fp32_highest cuBLAS error / our error, every case", ratios, min, 1.0))
    return lines


def _host_bars(rows: Sequence[Row]) -> list[str]:
    def spare(case: str) -> list[float]:  # us left under the peer
        found = [r for r in rows if r["case"].startswith("linear/") and r["case"].endswith(case)]
        return [float(row["peer_us"]) - float(row["ours_us"]) for row in found]

    return [
        bar("host eager us - our us, with grad", spare("/grad"), min, -5.0),
        bar("host eager us - our us, without grad", spare("/nograd"), min, 0.0),
    ]


def read_errors(paths: Sequence[Path]) -> list[Row]:
    """The fp32 sidecars that lie beside the given CSVs."""
    rows: list[Row] = []
    for folder in {path if path.is_dir() else path.parent for path in paths}:
        for file in sorted(folder.glob("*_error.csv")):
            with file.open(newline="") as handle:
                rows += csv.DictReader(handle)
    return rows


def compare(
    old_path: Path, new_paths: Sequence[Path], allowed: float = REGRESSION
) -> tuple[str, int]:
    """Regressions of the speed-up, and their number; 1 where there is nothing to compare.

    Ratios hold while the card's clocks drift, times do not.
    """

    def keyed(paths: Sequence[Path]) -> dict[tuple[str, ...], Row]:
        key = ("suite", "case", "dtype", "pass", "peer")
        rows = [row for path in paths for row in read_rows(path) if row["peer"] != NO_PEER]
        return {tuple(row[k] for k in key): row for row in rows}

    old, new = keyed([old_path]), keyed(new_paths)
    shared = [key for key in old if key in new]
    if not shared:
        return f"compare: no case in common with {old_path}", 1  # nothing was held
    ratios = {key: speedup(new[key]) / speedup(old[key]) for key in shared}
    worse = sorted((key for key in shared if ratios[key] < allowed), key=ratios.__getitem__)
    better = sum(ratio > 1 / REGRESSION for ratio in ratios.values())
    lines = [
        f"compare: {len(shared)} rows, speed-up now / then {geomean(ratios.values()):.3f}; "
        f"{better} better, {len(worse)} worse; {len(old) - len(shared)} rows only then, "
        f"{len(new) - len(shared)} only now"
    ]
    lines += [
        f"  {ratios[key]:.3f}  {' '.join(key)}: speed-up {old[key]['speedup']} -> "
        f"{new[key]['speedup']}, ours {old[key]['ours_us']} -> {new[key]['ours_us']} us"
        for key in worse
    ]
    return "\n".join(lines), len(worse)
