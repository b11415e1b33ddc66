"""Set abstraction over a real scan, where FUSEDOPS_BENCH_SCAN names one."""

from __future__ import annotations

from fusedops.bench.suites import points_clouds
from fusedops.bench.suites.base import Case

from .layers import Layer

GROUPS, K, RADIUS = 4096, 32, 1.0  # metres
WIDTHS = ((64, 64, 128), (32, 32, 64))


def scan_cases() -> list[Case]:
    """Every point of the scan, 4096 centres by furthest point sampling; none without a scan."""
    n = points_clouds.scan_size()
    found = [
        Layer(1, n, min(GROUPS, n), K, 0, widths, RADIUS, "scan") for widths in WIDTHS if n > 0
    ]
    return [Case(f"scan/{of.name}", {"kind": "scan", "of": of}) for of in found]
