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
from fusedops.bench.suites.models.check import SMALL, worst_error

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
        found = {name: _tuple(result) for name, result in results.items()}
        truth = _tuple(FAMILIES[case["kind"]].exact(case, pass_, inputs))
        half = found["eager"][0].dtype.itemsize == 2 or inputs[-1].dtype.itemsize == 2
        if half and pass_ == "step":
            scales = [_scale(t, truth[1:]) for t in truth[1:]]
            found = {name: _together(result, scales) for name, result in found.items()}
            truth = _together(truth, scales)
        exact, plain, got = (_named(t) for t in (truth, found["eager"], found["ours"]))
        tolerance = TOLERANCES["bf16" if half else _label(found["eager"][0].dtype)]
        return {
            f"{name}/{pass_}": worst_error(of, plain, exact, tolerance)
            for name, of in (("ours", got), ("eager", plain))
        }


def _scale(gradient: Tensor, gradients: Sequence[Tensor]) -> Tensor:
    """Its norm; gradients that are zero in theory are noise far below the others."""
    norms = torch.stack([torch.linalg.vector_norm(t) for t in gradients])
    return torch.linalg.vector_norm(gradient).clamp_min(SMALL * float(norms.square().mean().sqrt()))


def _together(result: Sequence[Tensor], scales: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Loss and one vector of all gradients, each scaled to the same norm.

    In half precision a small gradient's error is that of few neighbours which win a maximum or not:
    of one parameter it says little.
    """
    scaled = [(t / scale).flatten() for t, scale in zip(result[1:], scales, strict=True)]
    return result[0], torch.cat(scaled)


def _named(result: Sequence[Tensor]) -> dict[str, Tensor]:
    return {f"result {i}": tensor for i, tensor in enumerate(result)}


def _tuple(value: Any) -> tuple[Tensor, ...]:
    return (value,) if isinstance(value, torch.Tensor) else tuple(value)


def _label(dtype: torch.dtype) -> str:
    return {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}.get(dtype, "fp64")


SUITE = PointNetSuite
