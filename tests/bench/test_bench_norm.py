"""The norm suite: its cases, and that ours and torch compute the same in both passes."""

from __future__ import annotations

import sys

import pytest
import torch

from fusedops.bench import runner
from fusedops.bench.suites.base import PeerUnavailableError, Selection, load_suite
from fusedops.bench.suites.quack_rows import quack_rows

CPU = torch.device("cpu")


def test_cases_cover_the_bars() -> None:
    names = {case.name for case in load_suite("norm").cases(Selection("fwd"))}
    for op in ("softmax", "log_softmax", "layer_norm", "rms_norm"):
        for n in (256, 1023, 4096, 4097, 50257, 65536):
            assert f"{op}/{2**27 // n}x{n}" in names
    assert "cross_entropy/1046x128256" in names
    assert "softmax/8x4096" in names


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("pass_", ["fwd", "bwd"])
def test_ours_agrees_with_torch(pass_: str, dtype: str) -> None:
    suite = load_suite("norm")
    for case in suite.cases(Selection(pass_, (), ((6, 40),))):
        result = runner.measure(suite, case, dtype, pass_, ("eager",), CPU, 2)
        assert set(result.timings) == {"ours", "eager"}, result.notes
        assert suite.work(case, torch.bfloat16, pass_).bytes >= 6 * 40 * 2


def test_quack_is_skipped_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "quack", None)
    with pytest.raises(PeerUnavailableError, match="QuACK is not installed"):
        quack_rows("softmax", "fwd")
