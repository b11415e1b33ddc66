"""Point clouds: furthest point sampling, neighbour search, grouping, interpolation.

Each family is a suite of its own in a file beside this one; a case names its `family`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fusedops.bench.suites import points_grouping, points_neighbours, points_sampling
from fusedops.bench.suites.base import Call, Case, Selection, Suite, Work

if TYPE_CHECKING:
    import torch
    from torch import Tensor

FAMILIES: dict[str, Suite] = {
    "fps": points_sampling.SUITE(),
    "group": points_grouping.SUITE(),
    "neighbours": points_neighbours.SUITE(),
    "features": points_neighbours.FeaturesSuite(),
}


class PointsSuite(Suite):
    name = "points"
    shape = "BxNxM"
    passes: tuple[str, ...] = ("fwd", "bwd")

    def cases(self, selection: Selection) -> list[Case]:
        return [
            Case(case.name, case.args | {"family": name})
            for name, family in FAMILIES.items()
            if selection.pass_ in family.passes
            for case in family.cases(selection)
        ]

    def runs(self, case: Case, dtype: str) -> bool:
        return dtype in self._family(case).default_dtypes

    def default_dtypes_of(self, pass_: str) -> tuple[str, ...]:
        return self.dtypes

    def make_inputs(
        self, case: Case, dtype: torch.dtype, pass_: str, device: torch.device
    ) -> tuple[Tensor, ...]:
        return self._family(case).make_inputs(case, dtype, pass_, device)

    def ours(self, case: Case, pass_: str) -> Call:
        return self._family(case).ours(case, pass_)

    def peers(self, case: Case, pass_: str) -> tuple[str, ...]:
        return self._family(case).peers(case, pass_)

    def default_peers(self, pass_: str) -> tuple[str, ...]:
        found = (family.default_peers(pass_) for family in FAMILIES.values())
        return tuple(dict.fromkeys(peer for peers in found for peer in peers))

    def peer(self, name: str, case: Case, pass_: str, device: torch.device) -> Call:
        return self._family(case).peer(name, case, pass_, device)

    def work(self, case: Case, dtype: torch.dtype, pass_: str) -> Work | None:
        return self._family(case).work(case, dtype, pass_)

    def _family(self, case: Case) -> Suite:
        return FAMILIES[case["family"]]


SUITE = PointsSuite
