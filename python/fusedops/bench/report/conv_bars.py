"""The bars of the suite conv: blocks in inference and training, and whole ResNet-50."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from fusedops.bench.report.figures import bar, geomean, select, speedup

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fusedops.bench.report.results import Row

# Geomeans over blocks, of a pass over a peer.
BLOCKS = {
    "infer": {"eager": 1.9, "compile": 1.15, "cudnn": 1.0},
    "step": {"eager": 1.35, "compile": 1.15},
}
FOLDED = "/folded_"  # of cases whose norm was folded into the weight ahead
LEAST = 0.95  # of the best peer, every layer in inference
NETS = {
    ("resnet50/B256", "step"): {"eager": 1.25, "compile": 1.10},
    ("resnet50/B64", "infer"): {"eager": 1.7},
}


def conv_bars(rows: Sequence[Row]) -> list[str]:
    """Lines as summary.bars has them; of each half that was measured."""
    rows = select(rows, suite="conv")
    lines = []
    for dtype in ("bf16", "fp16"):
        half = select(rows, dtype=dtype)
        if not half and dtype == "fp16":
            continue
        layers = [row for row in half if not row["case"].startswith("resnet50")]
        folded = [row for row in layers if FOLDED in row["case"]]
        blocks = [row for row in layers if FOLDED not in row["case"]]
        for pass_, peers in BLOCKS.items():
            found = select(blocks, **{"pass": pass_})
            for peer, least in peers.items():
                values = [speedup(row) for row in select(found, peer=peer)]
                name = f"conv {pass_} {dtype} over {peer}, geomean"
                lines.append(bar(name, values, geomean, least))
        for members, what in ((blocks, ""), (folded, " norm folded ahead")):
            best: dict[str, float] = {}
            for row in select(members, **{"pass": "infer"}):
                best[row["case"]] = min(speedup(row), best.get(row["case"], math.inf))
            name = f"conv infer {dtype}{what} over the best peer, every layer"
            lines.append(bar(name, [*best.values()], min, LEAST))
        for (case, pass_), peers in NETS.items():
            for peer, least in peers.items():
                found = select(half, case=case, peer=peer, **{"pass": pass_})
                values = [speedup(row) for row in found]
                lines.append(bar(f"{case} {pass_} {dtype} over {peer}", values, min, least))
    return lines
