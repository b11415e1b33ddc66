"""The bars of the suite points: times of whole calls, shares of copy bandwidth, feature k-NN."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fusedops.bench.report.figures import bar, ratios, select, speedup

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fusedops.bench.report.results import Row

# Microseconds at most
TIMES = {
    "knn/B8_N1024_M256_k16_uniform": 40,
    "knn/B32_N1024_M512_k32_uniform": 80,
    "knn/B32_N4096_M1024_k16_uniform": 110,
    "knn/B16_N16384_M16384_k16_uniform": 1800,
    "knn/B1_N100000_M100000_k16_uniform": 900,
    "knn/B1_N100000_M100000_k16_sphere": 1800,
    "knn/B1_N100000_M100000_k16_lidar": 1800,
    "knn/B1_N1000000_M1000000_k16_uniform": 6000,
    "knn/B1_N1000000_M1000000_k16_sphere": 12000,
    "knn/B1_N1000000_M1000000_k16_lidar": 12000,
    "ball/B8_N1024_M256_r0.2_k32_uniform": 30,
    "ball/B32_N1024_M512_r0.2_k32_uniform": 50,
    "ball/B32_N4096_M1024_r0.1_k32_uniform": 110,
    "ball/B16_N16384_M4096_r0.05_k32_uniform": 600,
    "ball/B1_N100000_M100000_r0.03_k32_uniform": 1000,
    "ball/B1_N1000000_M1000000_r0.0125_k32_uniform": 10000,
    "fps/B8_N1024_M256_uniform": 160,
    "fps/B32_N1024_M512_uniform": 320,
    "fps/B16_N4096_M1024_uniform": 750,
    "fps/B16_N16384_M4096_uniform": 6000,
    "fps/B1_N100000_M10000_uniform": 25000,
    "fps/B1_N1000000_M4096_uniform": 25000,
}
FEATURES = "knn/B8_N4096_M4096_D64_k20_normal"
FEATURE_SPEEDUP = 3.0  # over cdist and topk
FEATURE_MB = 64.0
GROUP = "group/B32_N1024_M512_K32_C128"
GROUP_SHARES = {"fwd": 0.7, "bwd": 0.5}  # of the copy bandwidth


def point_bars(rows: Sequence[Row]) -> list[str]:
    """Lines as summary.bars has them."""
    rows = select(rows, suite="points")
    lines = []
    for case, most in TIMES.items():
        times = [float(row["ours_us"]) for row in select(rows, case=case, dtype="fp32")]
        lines.append(bar(f"{case}, {most} us / ours", [most / us for us in times], min, 1.0))
    for dtype in ("bf16", "fp32"):
        found = select(rows, case=FEATURES, dtype=dtype, peer="eager")
        values = [speedup(row) for row in found]
        lines.append(bar(f"{FEATURES} {dtype} over cdist, topk", values, min, FEATURE_SPEEDUP))
        memory = ratios((FEATURE_MB, row["ours_extra_mb"]) for row in found)
        lines.append(bar(f"{FEATURES} {dtype}, {FEATURE_MB:.0f} MB / ours", memory, min, 1.0))
    for pass_, share in GROUP_SHARES.items():
        found = select(rows, case=GROUP, dtype="bf16", **{"pass": pass_})
        values = ratios((row["floor_us"], row["ours_us"]) for row in found)
        lines.append(bar(f"{GROUP} bf16 {pass_}, share of copy", values, min, share))
    return lines
