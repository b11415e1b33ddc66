"""The loss suite: its cases, and that ours and torch compute the same in both passes."""

from __future__ import annotations

import sys

import pytest
import torch

from fusedops.bench import runner
from fusedops.bench.suites.base import PeerUnavailableError, Selection, load_suite
from fusedops.bench.suites.loss import liger

CPU = torch.device("cpu")


def test_the_case_of_the_bar_is_there() -> None:
    names = [case.name for case in load_suite("loss").cases(Selection("step"))]
    assert "linear_cross_entropy/4096x4096x128256" in names


@pytest.mark.parametrize("pass_", ["fwd", "step"])
def test_ours_agrees_with_torch(pass_: str) -> None:
    suite = load_suite("loss")
    (case,) = suite.cases(Selection(pass_, (), ((40, 16, 50),)))
    result = runner.measure(suite, case, "fp32", pass_, ("eager",), CPU, 2)
    assert set(result.timings) == {"ours", "eager"}, result.notes
    assert suite.work(case, torch.bfloat16, "step").flops == 6 * 40 * 16 * 50


def test_liger_is_skipped_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "liger_kernel.transformers", None)
    with pytest.raises(PeerUnavailableError, match="Liger is not installed"):
        liger()
