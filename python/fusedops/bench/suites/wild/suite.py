"""Random shapes of every family against the usual peers: a list of cases proves nothing.

A case is `FAMILY/INDEX/seedS_LAYOUTS/NAME`, NAME as the family's own suite has it. Family, seed and
index alone decide it, on any machine (draw.py, families.py): `--case FAMILY/INDEX` with
the seed measures it again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fusedops._timing.timing import Pace
from fusedops.bench.suites.base import Call, Case, Selection, Suite, Work
from fusedops.bench.suites.wild.draw import Draw, laid_out
from fusedops.bench.suites.wild.families import FAMILIES, FEATURES

if TYPE_CHECKING:
    import contextlib

    import torch
    from torch import Tensor

SLACK = 4.0  # of a suite's tolerance: random sizes make longer sums than chosen ones
# Where a value so near a bound that rounding puts it on either side changes whole results: entries
# of a gradient at relu's zero, neighbours at a radius.
BOUND_TOLERANCES = {"fp32": 2e-3, "fp16": 2e-2, "bf16": 6e-2}


class WildSuite(Suite):
    name = "wild"
    passes: tuple[str, ...] = ("fwd", "bwd", "step")
    dtypes: tuple[str, ...] = ("bf16", "fp16", "fp32", "fp64", "u8")
    default_dtypes: tuple[str, ...] = dtypes
    activations: tuple[str, ...] = ()
    shape = ""
    # A case takes 0.3 s with its captures, so that 300 of a family take less than two minutes.
    pace = Pace(replay_us=800.0, settle_ms=20.0, captured_us=10_000.0)
    default_rounds = 5

    def cases(self, selection: Selection) -> list[Case]:
        families = selection.families or tuple(FAMILIES)
        drawn = (
            wild_case(family, selection.seed, index)
            for family in families
            for index in range(selection.count)
        )
        return [case for case in drawn if case["pass"] == selection.pass_]

    def runs(self, case: Case, dtype: str) -> bool:
        return bool(case["dtype"] == dtype)

    def context(self, dtype_label: str) -> contextlib.AbstractContextManager[None]:
        return FAMILIES["stencil"].suite.context(dtype_label)

    def make_inputs(
        self, case: Case, dtype: torch.dtype, pass_: str, device: torch.device
    ) -> tuple[Tensor, ...]:
        inputs = list(_suite(case).make_inputs(case, dtype, pass_, device))
        if case["family"] == "reduce" and case["kind"] != "prod":
            inputs[0].add_(1)  # NOTE: a sum near zero would have no relative error
        for i, layout in enumerate(case["layouts"]):
            inputs[i] = laid_out(inputs[i], layout)
        return tuple(inputs)

    def ours(self, case: Case, pass_: str) -> Call:
        return _suite(case).ours(case, pass_)

    def peers(self, case: Case, pass_: str) -> tuple[str, ...]:
        return tuple(
            peer
            for peer in _suite(case).peers(case, pass_)
            if peer != "exact" and not peer.startswith("ours")
        )

    def default_peers(self, pass_: str) -> tuple[str, ...]:
        """All that are installed and compile nothing."""
        return ("eager", "cublaslt", "pytorch3d", "torch_cluster", "pointnet2_ops")

    def peer(self, name: str, case: Case, pass_: str, device: torch.device) -> Call:
        return _suite(case).peer(name, case, pass_, device)

    def reference(self, case: Case) -> str:
        return _suite(case).reference(case)

    def tolerance(self, case: Case, dtype: str) -> float:
        tolerance = SLACK * _suite(case).tolerance(case, dtype)
        kink = case["pass"] == "step" and case.args.get("activation") == "relu"
        bounded = kink or case["family"] == "ball"
        return max(tolerance, BOUND_TOLERANCES[dtype]) if bounded else tolerance

    def work(self, case: Case, dtype: torch.dtype, pass_: str) -> Work | None:
        return _suite(case).work(case, dtype, pass_)


def wild_case(family: str, seed: int, index: int) -> Case:
    """The case that a family, a seed and an index stand for."""
    drawn = FAMILIES[family].draw(Draw(family, seed, index))
    layouts = "_".join(drawn.layouts) or "plain"
    facts: dict[str, Any] = {"family": family, "index": index, "dtype": drawn.dtype}
    facts |= {"pass": drawn.pass_, "layouts": drawn.layouts}
    name = f"{family}/{index}/seed{seed}_{layouts}/{drawn.case.name}"
    return Case(name, drawn.case.args | facts)


def _suite(case: Case) -> Suite:
    return FEATURES if case.args.get("features") else FAMILIES[case["family"]].suite


SUITE = WildSuite
