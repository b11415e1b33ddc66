"""Layers and whole models of PointNet++ and DGCNN, in device time and memory.

Peers: `eager` is the same in plain torch over our own sampling and searches, so that the fusion
alone differs; `compile` is torch.compile of it; `torch` has torch's searches too. Clouds are
surfaces. Ours is held against float64: its error may be little more than eager's.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from fusedops.bench.suites.base import TOLERANCES, Call, Case, Selection, Suite, Work
from fusedops.bench.suites.models.check import worst_error

from . import layers, nets, scans

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

FAMILIES: dict[str, Any] = {"net": nets, "sa": layers, "edge": layers, "sweep": layers,
                            "scan": layers}  # fmt: skip


class PointNetSuite(Suite):
    """`fwd` and `step` are of a layer, `infer` and `step` of a model; a step has batch norm."""

    name = "pointnet"
    shape = "BxNxM"
    passes: tuple[str, ...] = ("fwd", "step", "infer")
    default_dtypes: tuple[str, ...] = ("bf16",)

    def cases(self, selection: Selection) -> list[Case]:
        found: list[Case] = []
        if selection.pass_ != "infer":
            found += layers.layer_cases(selection)
            found += [] if selection.shapes else scans.scan_cases()
        if selection.pass_ != "fwd":
            found += nets.net_cases(selection)
        return found

    def make_inputs(
        self, case: Case, dtype: torch.dtype, pass_: str, device: torch.device
    ) -> tuple[Tensor, ...]:
        inputs: tuple[Tensor, ...] = FAMILIES[case["kind"]].make_inputs(case, dtype, pass_, device)
        return inputs

    def ours(self, case: Case, pass_: str) -> Call:
        call: Call = FAMILIES[case["kind"]].ours(case, pass_)
        return call

    def peers(self, case: Case, pass_: str) -> tuple[str, ...]:
        names: tuple[str, ...] = FAMILIES[case["kind"]].peers(case)
        return names

    def default_peers(self, pass_: str) -> tuple[str, ...]:
        return ("eager", "compile", "torch")

    def peer(self, name: str, case: Case, pass_: str, device: torch.device) -> Call:
        call: Call = FAMILIES[case["kind"]].peer(name, case, pass_)
        return call

    def work(self, case: Case, dtype: torch.dtype, pass_: str) -> Work | None:
        work: Work | None = FAMILIES[case["kind"]].work(case, dtype, pass_)
        return work

    def tolerance(self, case: Case, dtype: str) -> float:
        """Another neighbour wins a maximum in bf16 than in float32: `errors` says what is wrong."""
        return math.inf

    def errors(
        self, case: Case, pass_: str, inputs: Sequence[Tensor], results: dict[str, Any]
    ) -> dict[str, float]:
        """The largest of any result; raises models.check.WrongModelError where ours is worse."""
        family = FAMILIES[case["kind"]]
        names = [str(i) for i in range(len(family.exact(case, pass_, inputs)))]
        truth = dict(zip(names, family.exact(case, pass_, inputs), strict=True))
        plain = dict(zip(names, _tuple(results["eager"]), strict=True))
        got = dict(zip(names, _tuple(results["ours"]), strict=True))
        tolerance = TOLERANCES[_label(plain["0"].dtype)]
        return {
            f"{name}/{pass_}": worst_error(of, plain, truth, tolerance)
            for name, of in (("ours", got), ("eager", plain))
        }


def _tuple(value: Any) -> tuple[Tensor, ...]:
    return (value,) if isinstance(value, torch.Tensor) else tuple(value)


def _label(dtype: torch.dtype) -> str:
    return {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}.get(dtype, "fp64")


SUITE = PointNetSuite
