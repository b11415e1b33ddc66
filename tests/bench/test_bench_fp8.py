"""The FP8 suite: its cases, and that ours is near bf16 in every pass."""

from __future__ import annotations

import pytest
import torch

from fusedops.bench import runner
from fusedops.bench.suites.base import PeerUnavailableError, Selection, load_suite
from fusedops.bench.suites.fp8 import Fp8Suite

CPU = torch.device("cpu")
pytestmark = pytest.mark.filterwarnings("ignore:fusedops.fp8")


def test_cases_cover_the_bars() -> None:
    suite = load_suite("fp8")
    names = {p: {case.name for case in suite.cases(Selection(p))} for p in suite.passes}
    for shape in ("4096x4096x7168", "8192x4096x4096", "8192x14336x4096", "8192x8192x8192"):
        assert all(f"{shape}/block" in of_pass for of_pass in names.values())
    assert {
        "T8192_d4096_h16384/mlp",
        "T8192_d4096_h14336/gated",
        "T8192_d4096_h14336/norm_gated",
    } <= names["step"]
    assert "quantize/16384x14336" in names["fwd"]


@pytest.mark.parametrize("pass_", ["fwd", "wgrad", "step"])
def test_a_layer_is_near_bf16(pass_: str) -> None:
    suite = load_suite("fp8")
    (case,) = suite.cases(Selection(pass_, (), ((128, 256, 384),)))
    result = runner.measure(suite, case, "bf16", pass_, ("ours_bf16",), CPU, 2)
    assert set(result.timings) == {"ours", "ours_bf16"}, result.notes
    assert 0.02 < result.error < 0.06
    assert suite.work(case, torch.bfloat16, pass_).flops >= 2 * 128 * 256 * 384


@pytest.mark.parametrize(
    "kind", ["mlp", "gated", "quantize", "rms_norm", "layer_norm", "norm_gated"]
)
def test_blocks_and_the_quantiser(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    suite = Fp8Suite()
    only = {
        "norm_gated": ("step",),
        **dict.fromkeys(("quantize", "rms_norm", "layer_norm"), ("fwd",)),
    }
    passes = only.get(kind, ("fwd", "step"))
    for pass_ in passes:
        case = next(c for c in suite.cases(Selection(pass_)) if c.args["kind"] == kind)
        monkeypatch.setitem(case.args, "shape", (128, 256, 384))
        result = runner.measure(suite, case, "bf16", pass_, ("ours_bf16",), CPU, 2)
        assert result.error < (1e-6 if kind == "quantize" else 0.12), result.notes


def test_peers_say_what_they_miss() -> None:
    suite = Fp8Suite()
    (case,) = suite.cases(Selection("step", (), ((128, 256, 384),)))
    for name in ("scaled_mm_block", "torchao"):
        with pytest.raises(PeerUnavailableError):
            suite.peer(name, case, "step", CPU)
    assert suite.peers(case, "step") == ("ours_bf16", "torchao")
