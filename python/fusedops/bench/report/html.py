"""A report of one HTML file: what the CSVs hold, to read on any screen and to send to somebody."""

from __future__ import annotations

import html
import math
from collections import defaultdict
from typing import TYPE_CHECKING

from fusedops._core.files import replace_file
from fusedops.bench.report.figures import geomean, speedup
from fusedops.bench.report.results import NO_PEER, Row, read_rows
from fusedops.bench.report.summary import bars, kind, read_errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

MOST = 1.6  # doublings at the ends of the colour scale
CHART_WIDTH, CHART_HEIGHT, MARGIN = 640, 360, 46

STYLE = """
:root { color-scheme: light dark; --line: #8884; --faint: #8882; }
body { font: 15px/1.45 system-ui, sans-serif; margin: 0 auto; max-width: 72rem; padding: 1rem; }
h1 { font-size: 1.5rem; margin: 0 0 .3rem; } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
p { margin: .3rem 0; } .wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; }
th, td { padding: .2rem .5rem; border-bottom: 1px solid var(--line); text-align: right; }
th { cursor: pointer; position: sticky; top: 0; background: Canvas; }
th:first-child, td:first-child, td.text { text-align: left; white-space: nowrap; }
td.speed { color: #000; } input { font: inherit; padding: .3rem; width: 100%; max-width: 24rem; }
@media (max-width: 40rem) { td.text, td:first-child { white-space: normal; } }
th, td { vertical-align: top; } svg { max-width: 100%; height: auto; }
svg text { font-size: 11px; fill: currentColor; }
.dots span { display: inline-block; margin-right: 1rem; } details { margin: .6rem 0; }
summary { cursor: pointer; font-weight: 600; } pre { overflow-x: auto; background: var(--faint); }
"""
SCRIPT = """
const number = text => text === '' ? -Infinity : (isNaN(text) ? text : Number(text));
document.querySelectorAll('th').forEach(head => head.onclick = () => {
  const body = head.closest('table').tBodies[0], i = head.cellIndex;
  const down = head.dataset.down = head.dataset.down === '1' ? '0' : '1';
  [...body.rows].sort((a, b) => {
    const x = number(a.cells[i].textContent), y = number(b.cells[i].textContent);
    return (x < y ? -1 : x > y ? 1 : 0) * (down === '1' ? -1 : 1);
  }).forEach(row => body.append(row));
});
document.getElementById('find').oninput = event => {
  const words = event.target.value.toLowerCase().split(' ');
  document.querySelectorAll('tbody.rows tr').forEach(row => {
    const text = row.textContent.toLowerCase();
    row.hidden = !words.every(word => text.includes(word));
  });
  if (event.target.value) document.querySelectorAll('details').forEach(d => d.open = true);
};
"""
COLOURS = ("#2a6fbb", "#d9822b", "#3a8f5c", "#7b5aa6", "#b0413e", "#4aa8b8", "#9a7b2f", "#8a94a0")


def write_html(paths: Sequence[Path], out: Path) -> Path:
    """Writes the rows of CSVs or folders as one file without anything from outside; returns it."""
    rows = [row for path in paths for row in read_rows(path)]
    compared = [row for row in rows if row["peer"] != NO_PEER and row["speedup"]]
    parts = [_head(rows), _overview(compared), _roofline(rows)]
    parts += [
        "<h2>Bars</h2>",
        f"<pre>{html.escape(chr(10).join(bars(rows, read_errors(paths))))}</pre>",
    ]
    parts += ['<h2>Cases</h2><p><input id="find" placeholder="words that a row must contain"></p>']
    suites: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        suites[row["suite"]].append(row)
    parts += [_cases(suite, members) for suite, members in suites.items()]
    title = f"fusedops on {', '.join(dict.fromkeys(row['gpu'] for row in rows)) or 'nothing'}"
    text = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head><body>"
        f"<h1>{html.escape(title)}</h1>{''.join(parts)}<script>{SCRIPT}</script></body></html>\n"
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    replace_file(out, text)
    return out


def _values(rows: Iterable[Row], key: str) -> str:
    return html.escape(", ".join(dict.fromkeys(row[key] for row in rows if row[key])))


def _head(rows: Sequence[Row]) -> str:
    return (
        f"<p>{len(rows)} rows; torch {_values(rows, 'torch')}, CUDA {_values(rows, 'cuda')}; "
        f"commit {_values(rows, 'commit')}; {_values(rows, 'date')}.</p>"
        "<p>A speed-up is the peer's time over ours in the same run: blue is where fusedops is "
        "faster, red where it is slower. A click on a heading sorts.</p>"
    )


def shade(value: float) -> str:
    """The colour of a speed-up on a diverging scale of doublings: white at 1, blue above it."""
    share = max(-1.0, min(1.0, math.log2(value) / MOST)) if value > 0 else -1.0
    end = (67, 147, 195) if share > 0 else (214, 96, 77)
    mixed = (round(255 + (c - 255) * abs(share)) for c in end)
    return f"rgb({','.join(map(str, mixed))})"


def _speed(value: float) -> str:
    return f'<td class="speed" style="background:{shade(value)}">{value:.3f}</td>'


def _overview(rows: Sequence[Row]) -> str:
    """Geometric means by suite, pass, dtype, kind and peer."""
    groups: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for row in rows:
        key: tuple[str, ...] = (row["suite"], row["pass"], row["dtype"], kind(row), row["peer"])
        groups[key].append(speedup(row))
    heads = ("op", "geomean", "over", "pass", "worst", "best", "cases")
    body = []
    for key, values in groups.items():
        suite, pass_, dtype, kind_, peer = key
        what = suite if kind_ == suite else f"{suite} {kind_}"
        cells = [
            f'<td class="text">{html.escape(what)}</td>',
            _speed(geomean(values)),
            f'<td class="text">{html.escape(peer)}</td>',
            f'<td class="text">{pass_} {dtype}</td>',
            _speed(min(values)),
            _speed(max(values)),
            f"<td>{len(values)}</td>",
        ]
        body.append(f"<tr>{''.join(cells)}</tr>")
    return f"<h2>Geometric means</h2>{_table(heads, body)}"


def _table(heads: Sequence[str], body: Sequence[str]) -> str:
    head = "".join(f"<th>{name}</th>" for name in heads)
    return (
        f'<div class="wide"><table><thead><tr>{head}</tr></thead>'
        f'<tbody class="rows">{"".join(body)}</tbody></table></div>'
    )


def _cases(suite: str, rows: Sequence[Row]) -> str:
    heads = ("case", "dtype", "pass", "ours us", "peer", "peer us", "speed-up", "GB/s", "TFLOP/s",
             "of the floor", "MB", "peer MB")  # fmt: skip
    body = []
    for row in rows:
        text = "".join(
            f'<td class="text">{html.escape(row[k])}</td>' for k in ("case", "dtype", "pass")
        )
        floor = f"{float(row['floor_us']) / float(row['ours_us']):.2f}" if row["floor_us"] else ""
        speed = _speed(speedup(row)) if row["speedup"] else "<td></td>"
        body.append(
            f"<tr>{text}<td>{row['ours_us']}</td><td class='text'>{html.escape(row['peer'])}</td>"
            f"<td>{row['peer_us']}</td>{speed}<td>{row['gbps']}</td><td>{row['tflops']}</td>"
            f"<td>{floor}</td><td>{row['ours_extra_mb']}</td><td>{row['peer_extra_mb']}</td></tr>"
        )
    title = f"{html.escape(suite)}: {len(rows)} rows"
    return f"<details><summary>{title}</summary>{_table(heads, body)}</details>"


def _roofline(rows: Sequence[Row]) -> str:
    """What ours reached over FLOPs per byte, on logarithmic axes, as a drawing in the page."""
    found = [
        (row["suite"], 1e3 * float(row["tflops"]) / float(row["gbps"]), float(row["tflops"]))
        for row in {(r["suite"], r["case"], r["dtype"], r["pass"]): r for r in rows}.values()
        if float(row["tflops"] or 0) > 0 and float(row["gbps"] or 0) > 0
    ]
    if not found:
        return ""
    x_axis = _Axis([x for _, x, _ in found], MARGIN, CHART_WIDTH - 10)
    y_axis = _Axis([y for _, _, y in found], CHART_HEIGHT - MARGIN, 10)
    suites = list(dict.fromkeys(suite for suite, _, _ in found))
    colours = {suite: COLOURS[i % len(COLOURS)] for i, suite in enumerate(suites)}
    marks = []
    for power in x_axis.powers():
        x = x_axis.at(10.0**power)
        marks.append(f'<line x1="{x:.1f}" y1="10" x2="{x:.1f}" y2="{CHART_HEIGHT - MARGIN}"/>')
        marks.append(
            f'<text x="{x:.1f}" y="{CHART_HEIGHT - 28}" text-anchor="middle">{10.0**power:g}</text>'
        )
    for power in y_axis.powers():
        y = y_axis.at(10.0**power)
        marks.append(f'<line x1="{MARGIN}" y1="{y:.1f}" x2="{CHART_WIDTH - 10}" y2="{y:.1f}"/>')
        marks.append(
            f'<text x="{MARGIN - 6}" y="{y + 4:.1f}" text-anchor="end">{10.0**power:g}</text>'
        )
    points = "".join(
        f'<circle cx="{x_axis.at(x):.1f}" cy="{y_axis.at(y):.1f}" r="3" fill="{colours[suite]}" '
        f'fill-opacity=".7"/>'
        for suite, x, y in found
    )
    legend = "".join(
        f'<span style="color:{colour}">&#9679; {html.escape(suite)}</span>'
        for suite, colour in colours.items()
    )
    return (
        f'<h2>What ours reached: TFLOP/s over FLOP per byte</h2><p class="dots">{legend}</p>'
        f'<svg viewBox="0 0 {CHART_WIDTH} {CHART_HEIGHT}" role="img" '
        f'aria-label="TFLOP/s over FLOP per byte"><g stroke="#8886">{"".join(marks)}</g>'
        f"{points}</svg>"
    )


class _Axis:
    """Numbers on a logarithmic scale, to pixels."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        self.low = math.floor(math.log10(min(values)))
        self.high = max(self.low + 1, math.ceil(math.log10(max(values))))
        self.start, self.end = start, end

    def powers(self) -> range:
        return range(self.low, self.high + 1)

    def at(self, value: float) -> float:
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)
