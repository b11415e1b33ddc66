"""The picture of the suite models: each model's step, ours and theirs, over eager."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fusedops.bench.report.model_bars import COMPILE, VARIANTS, ModelRows, models

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fusedops.bench.report.results import Row

OURS, COMPILED, LIGER = "#2a6fbb", "#9aa5b1", "#d8b365"


def times(model: ModelRows) -> dict[str, float]:
    """Speed over eager of the best of ours, of compile and of Liger, where measured.

    All are ratios of one run: those of our fastest variant and its peers.
    """
    name = model.fastest()
    rows = {peer: row for (variant, peer), row in model.rows.items() if variant == name}
    if "eager" not in rows or not rows["eager"]["speedup"]:
        return {}
    eager = float(rows["eager"]["peer_us"])
    found = {"fusedops": eager / float(rows["eager"]["ours_us"])}
    compiled = [float(rows[peer]["peer_us"]) for peer in COMPILE if peer in rows]
    if compiled:
        found["torch.compile"] = eager / min(compiled)
    if "liger" in rows:
        found["Liger"] = eager / float(rows["liger"]["peer_us"])
    return found


def speed_chart(rows: Sequence[Row], pass_: str) -> Any:
    """Bars per model, the largest gain on top; None without rows of eager."""
    bars = {m.model: times(m) for m in models(rows, pass_) if m.over(VARIANTS) is not None}
    bars = {name: found for name, found in bars.items() if found}
    if not bars:
        return None
    from matplotlib import pyplot

    names = sorted(bars, key=lambda name: bars[name]["fusedops"])
    figure, axes = pyplot.subplots(figsize=(7.6, 0.9 + 0.36 * len(names)), layout="constrained")
    series = (("Liger", LIGER), ("torch.compile", COMPILED), ("fusedops", OURS))
    for place, (label, colour) in enumerate(series):
        have = [(i, bars[name][label]) for i, name in enumerate(names) if label in bars[name]]
        if have:
            at = [i + 0.26 * (place - 1) for i, _ in have]
            drawn = axes.barh(at, [v for _, v in have], 0.25, color=colour, label=label)
            axes.bar_label(drawn, fmt="%.2f", fontsize=6, padding=2)
    axes.axvline(1.0, color="black", lw=0.8)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_xlabel("times as fast as eager", fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], fontsize=8, loc="lower right")
    what = "training step" if pass_ == "step" else "inference"
    axes.set_title(f"{what}, bf16, {rows[0]['gpu']}", fontsize=10)
    return figure
