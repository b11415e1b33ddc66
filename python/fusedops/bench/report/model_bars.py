"""The bars of whole models, and the figures that they, the table and the picture are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fusedops.bench.report.figures import bar, geomean, ratios, select, speedup

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fusedops.bench.report.results import Row

VARIANTS = ("fuse", "inductor", "fuse_compile", "inductor_graphs")
COMPILED = ("inductor", "fuse_compile", "inductor_graphs")
COMPILE = ("compile", "compile_whole", "compile_graphs")
GRAPHS = ("inductor_graphs", "compile_graphs")  # whose replays allocate nothing
OVER_EAGER = {"llama": 1.40, "bert": 1.45, "gpt2_medium": 2.10, "qwen3": 1.55}  # of fuse alone


@dataclass(frozen=True)
class ModelRows:
    """The rows of one model, dtype and pass, by (variant, peer)."""

    model: str
    dtype: str
    pass_: str
    rows: dict[tuple[str, str], Row]

    def over(self, variants: Iterable[str], peers: Iterable[str] | None = None) -> float | None:
        """The speed-up of the best of the variants over the best of the peers (None: of all).

        Each is a ratio of two times of one run, also where variants were measured in several.
        """
        worst = []
        for variant in variants:
            found = [
                speedup(row)
                for (name, peer), row in self.rows.items()
                if name == variant and row["speedup"] and (peers is None or peer in peers)
            ]
            worst += [min(found)] if found else []
        return max(worst, default=None)

    def fastest(self, variants: Iterable[str] = VARIANTS) -> str:
        """The best of our variants."""
        return max(variants, key=lambda variant: self.over((variant,)) or 0.0)

    def memory(self) -> float | None:
        """The least of compile's memory over that of our fastest variant, without CUDA graphs."""
        name = self.fastest([v for v in VARIANTS if v not in GRAPHS])
        peers = [p for p in COMPILE if p not in GRAPHS]
        rows = [row for peer in peers if (row := self.rows.get((name, peer)))]
        return min(ratios((r["peer_extra_mb"], r["ours_extra_mb"]) for r in rows), default=None)


def models(rows: Sequence[Row], pass_: str, dtype: str = "bf16") -> list[ModelRows]:
    grouped: dict[str, dict[tuple[str, str], Row]] = {}
    for row in select(rows, suite="models", dtype=dtype, **{"pass": pass_}):
        model, _, variant = row["case"].partition("/")
        grouped.setdefault(model, {})[variant, row["peer"]] = row
    return [ModelRows(name, dtype, pass_, found) for name, found in grouped.items()]


def model_bars(rows: Sequence[Row]) -> list[str]:
    """Lines as summary.bars has them."""
    found = models(rows, "step")
    best = _known(m.over(VARIANTS) for m in found)
    compiled = _known(m.over(COMPILED, COMPILE) for m in found)
    eager = {m.model: value for m in found if (value := m.over(("fuse",), ("eager",))) is not None}
    memory = _known(m.memory() for m in found)
    lines = [
        bar("models step best of ours over best of theirs, geomean", best, geomean, 1.12),
        bar("models step best of ours over best of theirs, every model", best, min, 1.02),
        bar("models step graph pass or fuse + compile over compile, geomean", compiled, geomean,
            1.10),
        bar("models step graph pass or fuse + compile over compile, every model", compiled, min,
            1.00),
        bar("models step fuse over eager, geomean", [*eager.values()], geomean, 1.35),
    ]  # fmt: skip
    for name, least in OVER_EAGER.items():
        values = [eager[name]] if name in eager else []
        lines.append(bar(f"models step fuse over eager, {name}", values, min, least))
    lines.append(bar("models step compile's memory / ours, every model", memory, min, 1.00))
    return lines


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]
