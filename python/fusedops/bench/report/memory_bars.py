"""The bars of what memory bounds: reductions, norms, scans, elementwise ops against a copy."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from fusedops.bench.report.figures import bar, select, speedup
from fusedops.bench.suites.norm import NEIGHBOURS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fusedops.bench.report.results import Row

SMALL_US = 30.0  # a copy that takes less is no test of bandwidth
# Shapes with a bar of their own
SHORT = ("16777216x64_dim", "67108864x16_dim", "268435456x4_dim")


def memory_bars(rows: Sequence[Row]) -> list[str]:
    """Lines as summary.bars has them. Share: of the copy bandwidth measured in the same run."""
    by_suite = {name: select(rows, suite=name) for name in ("reduce", "norm", "scan")}
    forward = select(rows, suite="elementwise", **{"pass": "fwd"})
    reduce, scan = by_suite["reduce"], by_suite["scan"]
    short = [row for row in reduce if any(size in row["case"] for size in SHORT)]
    lines = [
        _share("reduce", [row for row in reduce if row not in short], 0.88),
        _share("reduce, rows of 4 to 64", short, 0.85),
        _share("elementwise fwd", forward, 0.93),
        _share("cumsum", _of(scan, "cumsum/"), 0.75),
        _share("bincount", _of(scan, "bincount/"), 0.80),
        _share("segment_reduce", _of(scan, "segment_"), 0.70),
        *_norm_bars(by_suite["norm"]),
    ]
    everything = [*reduce, *by_suite["norm"], *scan, *forward]
    for name, test in (("large", is_large), ("small", lambda row: not is_large(row))):
        for peer in ("eager", "compile", "quack"):
            found = [row for row in select(everything, peer=peer) if test(row) and row["speedup"]]
            values = [speedup(row) for row in found]
            lines.append(bar(f"memory suites over {peer}, {name}, every case", values, min, 1.0))
    return lines


def _norm_bars(rows: Sequence[Row]) -> list[str]:
    rows = [row for row in rows if not row["case"].startswith("cross_entropy/")]
    lines = []
    for pass_, least in (("fwd", 0.88), ("bwd", 0.80)):
        found = select(rows, **{"pass": pass_})
        even = [row for row in found if _row_length(row) not in NEIGHBOURS]
        lines += [_share(f"norm {pass_}, rows of 256 to 65536", even, least)]
        shares: dict[str, dict[int, float]] = defaultdict(dict)
        for row in filter(is_large, latest(found)):
            shares[row["case"].split("/")[0]][_row_length(row)] = share_of_copy(row)
        ratios = [
            share[odd] / share[near]
            for share in shares.values()
            for odd, near in NEIGHBOURS.items()
            if odd in share and near in share
        ]
        lines.append(bar(f"norm {pass_}, odd row over its even neighbour", ratios, min, 0.92))
    return lines


def _row_length(row: Row) -> int:
    return int(row["case"].split("x")[-1])


def is_large(row: Row) -> bool:
    """Whether a copy of the same bytes takes long enough to compare with."""
    return float(row["floor_us"] or 0) >= SMALL_US


def share_of_copy(row: Row) -> float:
    """The share of the copy bandwidth measured in the same run."""
    return float(row["floor_us"]) / float(row["ours_us"])


def latest(rows: Sequence[Row]) -> list[Row]:
    """A row of every case, of its newest day: its peers may have been measured on several."""
    found: dict[tuple[str, ...], Row] = {}
    for row in rows:
        key = (row["suite"], row["case"], row["dtype"], row["pass"])
        if key not in found or row["date"] >= found[key]["date"]:
            found[key] = row
    return [*found.values()]


def _of(rows: Sequence[Row], op: str) -> list[Row]:
    return [row for row in rows if row["case"].startswith(op)]


def _share(name: str, rows: Sequence[Row], least: float) -> str:
    values = [share_of_copy(row) for row in latest(rows) if is_large(row)]
    return bar(f"{name}, share of copy, every case", values, min, least)
