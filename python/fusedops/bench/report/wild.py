"""The distribution of speed-ups over random shapes: what the rows of the suite `wild` say."""

from __future__ import annotations

import csv
import math
import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from fusedops.bench.report.figures import bar, geomean, speedup
from fusedops.bench.report.results import KERNELS_COLUMNS, NO_PEER, Row, read_rows
from fusedops.bench.suites.base import WILD_FAMILIES

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

WORST = 10  # cases that are named
LEAST = 1.10  # geomean over the best peer
LEAST_COPY_BOUND = 1.03  # of families that memory bounds, where torch is at the limit
COPY_BOUND = ("reduce", "elementwise")
LEAST_5TH, LEAST_1ST, LEAST_WORST = 1.00, 0.95, 0.85
SHOWN = 0.25, 4.0  # speed-ups of the histogram; others count at its ends
BINS = 48

Group = tuple[str, str]  # family, seed


def group_of(row: Row) -> Group:
    family, _, facts, *_ = row["case"].split("/")
    found = re.match(r"seed(-?\d+)", facts)
    return family, found[1] if found else "?"


def best_peers(rows: Sequence[Row]) -> dict[Group, list[tuple[Row, float]]]:
    """Per family and seed (row of the fastest peer, speed-up over it), the worst case first."""
    fastest: dict[tuple[str, ...], Row] = {}
    for row in rows:
        if row["suite"] != "wild" or row["peer"] == NO_PEER or not row["speedup"]:
            continue
        key = (row["case"], row["dtype"], row["pass"])
        if key not in fastest or speedup(row) < speedup(fastest[key]):
            fastest[key] = row
    groups: dict[Group, list[tuple[Row, float]]] = defaultdict(list)
    for row in fastest.values():
        groups[group_of(row)].append((row, speedup(row)))
    for found in groups.values():
        found.sort(key=lambda pair: pair[1])
    known = {name: i for i, name in enumerate(WILD_FAMILIES)}
    return dict(sorted(groups.items(), key=lambda item: (known.get(item[0][0], 99), item[0][1])))


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The percentile of ascending values, interpolated between two of them."""
    place = percent / 100 * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def wild_report(paths: Sequence[Path], cases: Collection[str] | None = None) -> str:
    """The table of all families, then each one's worst cases with the kernels they took."""
    rows = [row for path in paths for row in read_rows(path)]
    if cases is not None:
        rows = [row for row in rows if row["case"] in cases]
    groups = best_peers(rows)
    if not groups:
        return "wild: no case has a time of a peer"
    kernels = read_kernels(paths)
    lines = [
        f"{'wild: over the best peer':26} {'cases':>5} {'geomean':>8} {'5 %':>6} {'1 %':>6} "
        f"{'worst':>6} {'below 1':>8}"
    ]
    for (family, seed), found in groups.items():
        values = [value for _, value in found]
        below = sum(value < 1 for value in values)
        lines.append(
            f"{family + ', seed ' + seed:26} {len(values):5} {geomean(values):8.3f} "
            f"{percentile(values, 5):6.2f} {percentile(values, 1):6.2f} {values[0]:6.2f} {below:8}"
        )
    for (family, seed), found in groups.items():
        lines += ["", f"{family}, seed {seed}: worst cases"]
        lines += [_worst(row, value, kernels) for row, value in found[:WORST]]
    return "\n".join(lines)


def _worst(row: Row, value: float, kernels: dict[tuple[str, ...], str]) -> str:
    name = f"{row['case']} {row['dtype']} {row['pass']}"
    text = f"  {value:6.3f}  {name}: ours {row['ours_us']} us, {row['peer']} {row['peer_us']} us"
    text += f", floor {row['floor_us'] or '-'} us"
    kernel = kernels.get((row["case"], row["dtype"], row["pass"]))
    return f"{text}; {kernel}" if kernel else text


def read_kernels(paths: Sequence[Path]) -> dict[tuple[str, ...], str]:
    """(case, dtype, pass): kernels, from the sidecars beside the given CSVs."""
    found: dict[tuple[str, ...], str] = {}
    for folder in {path if path.is_dir() else path.parent for path in paths}:
        for file in sorted(folder.glob("*_kernels.csv")):
            with file.open(newline="") as handle:
                reader = csv.DictReader(handle)
                if list(reader.fieldnames or []) == list(KERNELS_COLUMNS):
                    found |= {(r["case"], r["dtype"], r["pass"]): r["kernels"] for r in reader}
    return found


def wild_bars(rows: Sequence[Row]) -> list[str]:
    """Every family's bars, each seed alone."""
    lines = []
    for (family, seed), found in best_peers(rows).items():
        values = [value for _, value in found]
        least = LEAST_COPY_BOUND if family in COPY_BOUND else LEAST
        name = f"wild {family}, seed {seed}"
        lines += [
            bar(f"{name}, geomean", values, geomean, least),
            bar(f"{name}, 5th percentile", values, lambda v: percentile(v, 5), LEAST_5TH),
            bar(f"{name}, 1st percentile", values, lambda v: percentile(v, 1), LEAST_1ST),
            bar(f"{name}, worst", values, min, LEAST_WORST),
        ]
    return lines


def histogram(rows: Sequence[Row]) -> Any:
    """A panel per family: how many cases have which speed-up; None without any."""
    families: dict[str, list[float]] = defaultdict(list)
    for (family, _), found in best_peers(rows).items():
        families[family] += [value for _, value in found]
    if not families:
        return None
    from matplotlib import pyplot

    columns = min(4, len(families))
    lines = -(-len(families) // columns)
    size = (3.0 * columns + 0.4, 1.9 * lines + 0.6)
    figure, panels = pyplot.subplots(
        lines, columns, figsize=size, squeeze=False, sharex=True, layout="constrained"
    )
    low, high = (math.log2(value) for value in SHOWN)
    edges = [2 ** (low + (high - low) * i / BINS) for i in range(BINS + 1)]
    flat = [axes for line in panels for axes in line]
    for axes, (family, values) in zip(flat, families.items(), strict=False):
        shown = [min(max(value, edges[0]), edges[-1]) for value in values]
        _, _, bars = axes.hist(shown, bins=edges, color="#2a6fbb")
        for rectangle, edge in zip(bars, edges, strict=False):
            if edge < 0.999:
                rectangle.set_color("#c0504d")
        axes.axvline(1.0, color="black", lw=0.8)
        axes.set_xscale("log", base=2)
        axes.set_xlim(*SHOWN)
        axes.set_xticks([0.25, 0.5, 1, 2, 4], ["1/4", "1/2", "1", "2", "4"])
        axes.tick_params(labelsize=7)
        ordered = sorted(values)
        facts = f"{geomean(ordered):.2f}, 5 %: {percentile(ordered, 5):.2f}"
        axes.set_title(f"{family} ({len(values)}): {facts}", fontsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in flat[len(families) :]:
        axes.set_visible(False)
    figure.suptitle(f"wild on {rows[0]['gpu']}: speed-up over the best peer", fontsize=10)
    return figure
