"""Writes the tables of README.md and docs/benchmarks.md from the committed CSVs: no figure is typed
by hand.

python perf/readme_table.py [--results perf/results/h200] [--check]
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from fusedops.bench.report.conv_bars import FOLDED
from fusedops.bench.report.figures import activation, first_size, geomean, speedup
from fusedops.bench.report.memory_bars import is_large, latest, share_of_copy
from fusedops.bench.report.model_bars import VARIANTS, ModelRows, models
from fusedops.bench.report.results import Row, read_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

ROOT = Path(__file__).resolve().parents[1]
README, BENCHMARKS = ROOT / "README.md", ROOT / "docs/benchmarks.md"
BEGIN, END = "<!-- perf:begin (perf/readme_table.py) -->", "<!-- perf:end -->"
# Whole models stand at the top of the README; nothing is between these while none is measured.
MODELS = "<!-- models:begin (perf/readme_table.py) -->", "<!-- models:end -->"
PEERS = {
    "eager": "eager",
    "cublaslt": "cuBLASLt epilogue",
    "compile": "torch.compile",
    "quack": "QuACK",
}
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
# Whose geomeans follow: title, suite, pass, the sizes M from and to, gated activations or others.
GROUPS = (
    ("linear", "linear", "fwd", 0, 2**40, False),
    ("linear, M >= 2048", "linear", "fwd", 2048, 2**40, False),
    ("linear, M <= 128", "skinny", "fwd", 0, 128, False),
    ("linear", "linear", "step", 0, 2**40, False),
    ("mlp", "mlp", "step", 0, 2**40, False),
    ("gated_mlp", "mlp", "step", 0, 2**40, True),
)
MODEL_COLUMNS = {
    "eager": "eager",
    "liger": "Liger",
    "compile": "compile per layer",
    "compile_whole": "compile",
    "compile_graphs": "compile, CUDA graphs",
    "fuse": "`fuse`",
    "fuse_compile": "`fuse` + compile",
    "inductor": "graph pass",
    "inductor_graphs": "graph pass, CUDA graphs",
}
MEMORY_SUITES = ("reduce", "norm", "rope", "embedding", "scan", "elementwise")
# The ten rows of the README: titles of those of GROUPS that are among them, then op, pass and
# dtypes of others (none: all that were measured).
HEADLINES = {
    1: "`linear`, relu, at least 2048 rows",
    2: "`linear`, relu, at most 128 rows",
    3: "`linear`",
    4: "`mlp`",
    5: "`gated_mlp`",
}
OTHER_HEADLINES = (
    ("softmax", "fwd", ()),
    ("layer_norm", "fwd", ()),
    ("cross_entropy", "bwd", ()),
    ("sum", "fwd", ()),
    ("knn", "fwd", ("bf16",)),
)
TITLES = {"knn": "`points.knn`, 64 features"}
POINTS = (
    "knn/B32_N4096_M1024_k16_uniform",
    "knn/B16_N16384_M16384_k16_uniform",
    "knn/B1_N1000000_M1000000_k16_uniform",
    "knn/B1_N1000000_M1000000_k16_lidar",
    "knn/B8_N4096_M4096_D64_k20_normal",
    "ball/B32_N4096_M1024_r0.1_k32_uniform",
    "ball/B1_N1000000_M1000000_r0.0125_k32_uniform",
    "fps/B16_N4096_M1024_uniform",
    "fps/B16_N16384_M4096_uniform",
    "fps/B1_N1000000_M4096_uniform",
    "group/B32_N1024_M512_K32_C128",
    "interpolate/B16_N1024_M4096_K3_C256",
)
# perf/draw_plots.py draws these.
PLOTS = ("linear_fwd_speedup", "linear_fwd_roofline", "linear_step_speedup", "skinny_fwd_speedup")
PASSES = {
    "fwd": "forward",
    "bwd": "backward",
    "step": "forward + backward",
    "infer": "inference",
}


def render(folder: Path) -> str:
    """All tables: docs/benchmarks.md."""
    rows = read_rows(folder) if folder.exists() else []
    if not rows:
        return "*No results yet.*"
    lines = [
        f"Speed-up over the peer (above 1 is faster) on {_stamp(rows)}.",
        "",
        f"| M x N x K / activation | pass | dtype | fusedops, us | {' | '.join(PEERS.values())} |",
        f"|---|---|---|---:|{'---:|' * len(PEERS)}",
    ]
    lines += [_line(found) for found in _chosen(rows)]
    lines += [*_geomeans(rows), "", *_other_runs(rows), *_images(folder)]
    lines += [*_memory(rows), *_points(rows), *_clouds(rows), *_convolutions(rows), _links(folder)]
    return "\n".join(lines)


def render_headlines(folder: Path) -> str:
    """The README's ten rows: geomeans."""
    rows = read_rows(folder) if folder.exists() else []
    if not rows:
        return "*No results yet.*"
    newest = max(rows, key=lambda r: r["date"])
    lines = [
        f"Speed-ups (geomean over the cases, their number in brackets; above 1 is faster) on one "
        f"{newest['gpu']}, torch {newest['torch']}, {newest['date']}:",
        "",
        f"| op | pass | dtype | {' | '.join(PEERS.values())} |",
        f"|---|---|---|{'---:|' * len(PEERS)}",
    ]
    groups = [(title, _members(rows, GROUPS[i])) for i, title in HEADLINES.items()]
    # Norms of fp8 write another thing, and random shapes have bars of their own.
    own = [r for r in rows if r["suite"] not in ("fp8", "wild")]
    for op, pass_, dtypes in OTHER_HEADLINES:
        found = [r for r in own if (r["case"].split("/")[0], r["pass"]) == (op, pass_)]
        chosen = [r for r in found if r["dtype"] in (dtypes or r["dtype"])]
        groups.append((TITLES.get(op, f"`{op}`"), chosen))
    lines += [_headline(title, members) for title, members in groups if members]
    return "\n".join(lines)


def _headline(title: str, members: Sequence[Row]) -> str:
    dtypes = ", ".join(dict.fromkeys(r["dtype"] for r in members))
    means = " | ".join(_mean(members, peer) for peer in PEERS)
    return f"| {title} | {PASSES[members[0]['pass']]} | {dtypes} | {means} |"


def _chosen(rows: Sequence[Row]) -> list[list[Row]]:
    """The rows of each of ROWS that was measured, one for each peer."""
    groups = [
        [r for r in rows if (r["suite"], r["case"], r["dtype"], r["pass"]) == key] for key in ROWS
    ]
    return [found for found in groups if found]


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
    commits = ", ".join(dict.fromkeys(r["commit"][:7] for r in rows))
    return (
        f"one {latest['gpu']} (torch {latest['torch']}, CUDA {latest['cuda']}, commits {commits}, "
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


def _other_runs(rows: Sequence[Row]) -> list[str]:
    """Which columns of ROWS hold ratios of another run than that of our time."""
    others: set[str] = set()
    for found in _chosen(rows):
        others |= {r["peer"] for r in found if r["ours_us"] != found[0]["ours_us"]}
    names = [title for peer, title in PEERS.items() if peer in others]
    if not names:
        return []
    return [
        f"{', '.join(names)} was measured in runs of its own: each ratio is of two times of "
        "one run, taken in turns, and the column of our times is from the run with the other "
        "peers.",
        "",
    ]


def _cells(name: str, pass_: str, dtype: str, us: str, found: Iterable[Row]) -> str:
    by_peer = {r["peer"]: f"{speedup(r):.2f}" for r in found if r["peer"] in PEERS}
    peers = " | ".join(by_peer.get(peer, "") for peer in PEERS)
    return f"| {name} | {pass_} | {dtype.replace('_', ' ')} | {us} | {peers} |"


def _members(rows: Sequence[Row], group: tuple[str, str, str, int, int, bool]) -> list[Row]:
    """The bf16 cases of a group, of relu where forward passes have several activations."""
    _, suite, pass_, least, most, gated = group
    return [
        r
        for r in rows
        if (r["suite"], r["dtype"], r["pass"]) == (suite, "bf16", pass_)
        and least <= first_size(r) <= most
        and ("glu" in activation(r)) == gated
        and (pass_ == "step" or activation(r) == "relu")
    ]


def _geomeans(rows: Sequence[Row]) -> list[str]:
    lines = []
    for group in GROUPS:
        chosen = _members(rows, group)
        if chosen:
            title, _, pass_ = group[:3]
            what = f"geomean (cases), {title}{', relu' if pass_ == 'fwd' else ''}"
            means = " | ".join(_mean(chosen, peer) for peer in PEERS)
            lines.append(f"| {what} | {PASSES[pass_]} | bf16 | | {means} |")
    return lines


def _mean(rows: Iterable[Row], peer: str) -> str:
    values = [speedup(r) for r in rows if r["peer"] == peer and r["speedup"]]
    return f"**{geomean(values):.2f}** ({len(values)})" if values else ""


def _memory(rows: Sequence[Row]) -> list[str]:
    """Per op the share of the copy bandwidth over its large cases, and speed-ups over all."""
    peers = [peer for peer in PEERS if peer != "cublaslt"]
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        if row["suite"] in MEMORY_SUITES:
            groups[row["case"].split("/")[0], row["pass"]].append(row)
    lines = []
    for (op, pass_), members in groups.items():
        shares = sorted(share_of_copy(r) for r in latest(members) if is_large(r))
        share = f"{geomean(shares):.2f} ({shares[0]:.2f} to {shares[-1]:.2f})" if shares else ""
        means = " | ".join(_mean(members, peer) for peer in peers)
        lines.append(f"| `{op}` | {PASSES[pass_]} | {share} | {means} |")
    if not lines:
        return []
    head = " | ".join(PEERS[peer] for peer in peers)
    return [
        "Ops that memory bounds: share of the bandwidth of a copy in the same run (geomean, worst "
        "to best of the large cases), then speed-ups (cases), small tensors included.",
        "",
        f"| op | pass | share of copy | {head} |",
        f"|---|---|---:|{'---:|' * len(peers)}",
        *lines,
        "",
    ]


def _points(rows: Sequence[Row]) -> list[str]:
    """Whole calls; eager torch compares all pairs, where that fits."""
    lines = []
    for case in POINTS:
        for row in rows:
            if (row["suite"], row["case"]) == ("points", case):
                us = float(row["ours_us"])
                time = f"{us:.3g} us" if us < 1000 else f"{us / 1000:.3g} ms"
                op, sizes = case.replace("_", " ").split("/")
                what = f"`{op}` | {sizes} | {PASSES[row['pass']]} | {row['dtype']}"
                lines.append(f"| {what} | {time} | {row['speedup']} |")
    head = ["| op | sizes | pass | dtype | fusedops | over eager |", "|---|---|---|---|---:|---:|"]
    return [*head, *lines, ""] if lines else []


def _clouds(rows: Sequence[Row]) -> list[str]:
    """Layers and models of point clouds: newest runs."""
    groups: dict[tuple[str, str], dict[str, Row]] = defaultdict(dict)
    for row in sorted(rows, key=lambda r: (r["case"], r["pass"], r["date"])):
        if row["suite"] == "pointnet" and not row["case"].startswith("sweep/"):
            groups[row["case"], row["pass"]][row["peer"]] = row
    lines = []
    for (case, pass_), peers in groups.items():
        newest = max(peers.values(), key=lambda r: r["date"])
        ratios = [f"{speedup(peers[p]):.2f}" if p in peers else "" for p in ("eager", "compile")]
        share, eager = "", peers.get("eager")
        if eager and eager["ours_extra_mb"] and eager["peer_extra_mb"]:
            share = f"{float(eager['ours_extra_mb']) / float(eager['peer_extra_mb']):.2f}"
        name, us = case.replace("_", " "), f"{float(newest['ours_us']):.0f}"
        lines.append(f"| {name} | {PASSES[pass_]} | {us} | {' | '.join(ratios)} | {share} |")
    if not lines:
        return []
    return [
        "Layers and models of point clouds in bf16. Both sides search by ours: the layers alone "
        "differ. Memory: what a call takes beside its inputs, as a share of eager's.",
        "",
        "| layer or model | pass | fusedops, us | eager | torch.compile | memory |",
        "|---|---|---:|---:|---:|---:|",
        *lines,
        "",
    ]


def _convolutions(rows: Sequence[Row]) -> list[str]:
    """Geomeans over the layers of the suite."""
    peers = {"eager": "eager", "compile": "torch.compile", "cudnn": "cuDNN's fused kernel"}
    lines = []
    for pass_ in ("infer", "step"):
        members = [r for r in rows if r["suite"] == "conv" and r["pass"] == pass_]
        for dtype in dict.fromkeys(r["dtype"] for r in members):
            own = [r for r in members if r["dtype"] == dtype and FOLDED not in r["case"]]
            layers = [r for r in own if r["case"].startswith("N")]
            cells = " | ".join(_mean(layers, peer) for peer in peers)
            lines.append(f"| {PASSES[pass_]} | {dtype} | {cells} |")
    if not lines:
        return []
    return [
        "Convolution, batch norm and activation (`conv_bn_act`): geomeans over the layers.",
        "",
        f"| pass | dtype | {' | '.join(peers.values())} |",
        f"|---|---|{'---:|' * len(peers)}",
        *lines,
        "",
    ]


def render_models(folder: Path) -> str:
    """Times of whole models, in ms, and their picture; nothing where none was measured."""
    rows = [r for r in read_rows(folder) if r["suite"] == "models"] if folder.exists() else []
    found = models(rows, "step")
    times = {m.model: _model_ms(m) for m in found if m.over(VARIANTS) is not None}
    columns = [name for name in MODEL_COLUMNS if any(name in ms for ms in times.values())]
    lines = [_model_line(m, times[m.model], columns) for m in found if m.model in times]
    if not lines:
        return ""
    newest = max(rows, key=lambda r: r["date"])
    head = " | ".join(MODEL_COLUMNS[name] for name in columns)
    best = geomean(v for m in found if (v := m.over(VARIANTS)) is not None)
    memory = [v for m in found if (v := m.memory()) is not None]
    text = f"the best of ours is {best:.2f} times as fast as the best of theirs"
    if memory:
        text += f" and takes {1 / geomean(memory):.2f} of compile's memory"
    picture = folder / "plots/models_step.svg"
    return "\n".join([
        f"Training steps (forward, loss, backward) in ms, bf16, on one {newest['gpu']}, torch "
        f"{newest['torch']}, {newest['date']}. As a geometric mean over {len(lines)} models "
        f"{text}.",
        "",
        f"| model | {head} | best of ours over best of theirs |",
        f"|---|{'---:|' * (len(columns) + 1)}",
        *lines,
        *(["", f'<img src="{_relative(picture, README)}" alt="speed over eager">']
          if picture.exists() else []),
    ])  # fmt: skip


def _model_ms(model: ModelRows) -> dict[str, float]:
    """Times by variant and peer: those of the newest run of each."""
    ms = {}
    for (variant, peer), row in sorted(model.rows.items(), key=lambda item: item[1]["date"]):
        ms[variant] = float(row["ours_us"]) * 1e-3
        if row["peer_us"]:
            ms[peer] = float(row["peer_us"]) * 1e-3
    return ms


def _model_line(model: ModelRows, ms: dict[str, float], columns: Sequence[str]) -> str:
    """The ratio is of times of one run."""
    cells = " | ".join(f"{ms[name]:.3g}" if name in ms else "" for name in columns)
    return f"| {model.model} | {cells} | **{model.over(VARIANTS):.2f}** |"


def _relative(path: Path, page: Path = BENCHMARKS) -> str:
    """As the page names it."""
    inside = path.resolve().is_relative_to(ROOT)
    return os.path.relpath(path.resolve(), page.parent) if inside else str(path)


def _links(folder: Path) -> str:
    inside = folder.resolve().is_relative_to(ROOT)
    name = folder.resolve().relative_to(ROOT) if inside else folder
    return f"All cases: [`{name}`]({_relative(folder)})."


def replace(page: str, table: str, markers: tuple[str, str] = (BEGIN, END)) -> str:
    begin, end = markers
    if page.count(begin) != 1 or page.count(end) != 1:
        raise ValueError(f"a page must hold the markers {begin} and {end} once each")
    head, rest = page.split(begin)
    table = f"{table}\n" if table else ""
    return f"{head}{begin}\n{table}{end}{rest.split(end)[1]}"


def pages(folder: Path) -> dict[Path, str]:
    """What the pages hold when they are up to date."""
    tables = {README: render_headlines(folder), BENCHMARKS: render(folder)}
    found = {page: replace(page.read_text(), table) for page, table in tables.items()}
    if MODELS[0] in found[README]:
        # NOTE: not all models may have been measured on both cards.
        folders = (folder, ROOT / "perf/results/h100")
        rendered = max((render_models(f) for f in folders), key=lambda text: text.count("\n"))
        found[README] = replace(found[README], rendered, MODELS)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--results", type=Path, default=ROOT / "perf/results/h200")
    parser.add_argument("--check", action="store_true", help="fail when a page is out of date")
    options = parser.parse_args()
    stale = {p: text for p, text in pages(options.results).items() if p.read_text() != text}
    for page, text in stale.items():
        if options.check:
            print(f"{page} is out of date; run: make figures", file=sys.stderr)
        else:
            page.write_text(text)
    return int(options.check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
