"""Few rows against large weights: decoding, small batches. The weights' bytes are the floor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fusedops.bench.suites.linear import LinearSuite, linear_case

if TYPE_CHECKING:
    from fusedops.bench.suites.base import Case, Selection

ROWS = (1, 2, 4, 8, 16, 32, 64, 96, 128, 256)
WEIGHTS = ((4096, 4096), (11008, 4096), (4096, 11008), (8192, 1024))  # N, K


class SkinnySuite(LinearSuite):
    name = "skinny"
    passes: tuple[str, ...] = ("fwd",)

    def default_dtypes_of(self, pass_: str) -> tuple[str, ...]:
        return ("bf16",)

    def cases(self, selection: Selection) -> list[Case]:
        shapes = selection.shapes or [(m, n, k) for n, k in WEIGHTS for m in ROWS]
        activations = selection.activations or ("relu",)
        return [linear_case(shape, a) for shape in shapes for a in activations]

    def default_peers(self, pass_: str) -> tuple[str, ...]:
        return ("eager", "cublaslt")


SUITE = SkinnySuite
