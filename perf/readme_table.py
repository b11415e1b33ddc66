"""Writes the README's table of figures from the committed CSVs: no figure is typed by hand.

python perf/readme_table.py [--results perf/results/h200] [--check]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fusedops.bench.report import activation, first_size, geomean, speedup
from fusedops.bench.results import Row, read_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- perf:begin (perf/readme_table.py) -->", "<!-- perf:end -->"
PEERS = {"eager": "eager", "cublaslt": "cuBLASLt epilogue", "compile": "torch.compile"}
# suite, case, dtype, pass: what a reader looks for; cases without a result are left out.
ROWS = (
    ("linear", "8192x4096x1024/relu", "bf16", "fwd"),
    ("linear", "8192x4096x1024/gelu_tanh", "bf16", "fwd"),
    ("linear", "16384x3072x768/relu", "bf16", "fwd"),
    ("linear", "65536x256x256/relu", "bf16", "fwd"),
    ("linear", "131072x128x128/relu", "bf16", "fwd"),
    ("linear", "4096x4096x4096/relu", "bf16", "fwd"),
    ("linear", "8192x11008x4096/relu", "bf16", "fwd"),
    ("linear", "1024x1024x1024/relu", "bf16", "fwd"),
    ("linear", "16x4096x4096/relu", "bf16", "fwd"),
    ("linear", "8192x4096x1024/relu", "bf16", "step"),
    ("linear", "8192x4096x1024/gelu_tanh", "bf16", "step"),
    ("linear", "8192x4096x4096/relu", "bf16", "step"),
    ("linear", "65536x256x256/relu", "bf16", "step"),
    ("fp32", "4096x4096x4096/relu", "fp32_highest", "fwd"),
    ("fp32", "4096x4096x4096/relu", "fp32_high", "fwd"),
    ("host", "linear/64x64x64/relu/nograd", "bf16", "fwd"),
    ("host", "linear/64x64x64/relu/grad", "bf16", "fwd"),
)
# Of `python -m fusedops bench --plot`.
PLOTS = ("linear_fwd_speedup", "linear_fwd_roofline", "linear_step_speedup", "skinny_fwd_speedup")
PASSES = {"fwd": "forward", "step": "forward + backward"}


def render(folder: Path) -> str:
    rows = read_rows(folder) if folder.exists() else []
    if not rows:
        return "*No results yet.*"
    lines = [
        f"Speed-up over the peer (above 1 is faster) on {_stamp(rows)}.",
        "",
        f"| M x N x K / activation | pass | dtype | fusedops, us | {' | '.join(PEERS.values())} |",
        f"|---|---|---|---:|{'---:|' * len(PEERS)}",
    ]
    for key in ROWS:
        found = [r for r in rows if (r["suite"], r["case"], r["dtype"], r["pass"]) == key]
        if found:
            lines.append(_line(found))
    lines += [*_geomeans(rows), "", *_images(folder), _links(folder)]
    return "\n".join(lines)


def _images(folder: Path) -> list[str]:
    """The committed plots, two in a line."""
    files = [folder / "plots" / f"{name}.svg" for name in PLOTS]
    images = [
        f'<img src="{_relative(file)}" width="49%" alt="{file.stem.replace("_", " ")}">'
        for file in files
        if file.exists()
    ]
    return ["<p>", *images, "</p>", ""] if images else []


def _stamp(rows: Sequence[Row]) -> str:
    latest = max(rows, key=lambda r: r["date"])
    commits = ", ".join(dict.fromkeys(r["commit"] for r in rows))
    return (
        f"one {latest['gpu']} (torch {latest['torch']}, CUDA {latest['cuda']}, commit {commits}, "
        f"{latest['date']})"
    )


def _line(found: Sequence[Row]) -> str:
    row = found[0]
    name = row["case"].replace("x", " x ").replace("/", " ")
    pass_ = PASSES[row["pass"]] if row["suite"] != "host" else "CPU time of a call"
    if row["suite"] == "host":
        name = " ".join(row["case"].split("/")[1:]).replace("x", " x ")
    times = [float(r["ours_us"]) for r in found]
    return _cells(
        name, pass_, row["dtype"], f"{times[0]:.3g}" if times[0] < 1e3 else f"{times[0]:.0f}", found
    )


def _cells(name: str, pass_: str, dtype: str, us: str, found: Iterable[Row]) -> str:
    by_peer = {r["peer"]: f"{speedup(r):.2f}" for r in found if r["peer"] in PEERS}
    peers = " | ".join(by_peer.get(peer, "") for peer in PEERS)
    return f"| {name} | {pass_} | {dtype.replace('_', ' ')} | {us} | {peers} |"


def _geomeans(rows: Sequence[Row]) -> list[str]:
    """One row per pass: all bf16 linear cases, and those with M >= 2048."""
    lines = []
    for pass_, least in (("fwd", 1), ("fwd", 2048), ("step", 1)):
        chosen = [
            r
            for r in rows
            if (r["suite"], r["dtype"], r["pass"]) == ("linear", "bf16", pass_)
            and first_size(r) >= least
            and (pass_ == "step" or activation(r) == "relu")
            and r["peer"] in PEERS
        ]
        if not chosen:
            continue
        means = []
        for peer in PEERS:
            values = [speedup(r) for r in chosen if r["peer"] == peer]
            means.append(f"**{geomean(values):.2f}** ({len(values)})" if values else "")
        what = "geomean (cases)" if least == 1 else f"geomean, M >= {least} (cases)"
        what += ", relu" if pass_ == "fwd" else ""
        lines.append(f"| {what} | {PASSES[pass_]} | bf16 | | {' | '.join(means)} |")
    return lines


def _relative(path: Path) -> Path:
    where = path.resolve()
    return where.relative_to(ROOT) if where.is_relative_to(ROOT) else path


def _links(folder: Path) -> str:
    relative = _relative(folder)
    return f"All cases: [`{relative}`]({relative})."


def replace(readme: str, table: str) -> str:
    if readme.count(BEGIN) != 1 or readme.count(END) != 1:
        raise ValueError(f"README.md must hold the markers {BEGIN} and {END} once each")
    head, rest = readme.split(BEGIN)
    return f"{head}{BEGIN}\n{table}\n{END}{rest.split(END)[1]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--results", type=Path, default=ROOT / "perf/results/h200")
    parser.add_argument("--check", action="store_true", help="fail when the README is out of date")
    options = parser.parse_args()
    readme = ROOT / "README.md"
    old = readme.read_text()
    new = replace(old, render(options.results))
    if options.check:
        return int(new != old)
    readme.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
