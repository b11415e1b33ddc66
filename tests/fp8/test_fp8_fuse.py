"""fuse with a recipe, and what "auto" decides."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fusedops
from fusedops import fp8
from fusedops.fp8.decide import estimate, pays, rows_to_pay, times
from util import calls_of

BLOCK = fp8.Recipe(when="always")
pytestmark = pytest.mark.filterwarnings("ignore:fusedops.fp8")


class Block(nn.Module):
    """A gated MLP of another library."""

    def __init__(self):
        super().__init__()
        self.gate, self.up = nn.Linear(64, 96, bias=False), nn.Linear(64, 96, bias=False)
        self.down = nn.Linear(96, 64, bias=False)

    def forward(self, x):
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(16, 64), Block(), nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 64),
        nn.Linear(64, 4),
    )  # fmt: skip


def test_first_and_last_layers_are_skipped_by_default():
    model, x = network(), torch.randn(8, 16)
    before = model.state_dict().keys()
    report = fusedops.fuse(model, fp8=BLOCK)
    assert model.state_dict().keys() == before
    runs = {layer.name: layer.runs for layer in report.fp8}
    assert [name for name, has in runs.items() if not has] == ["0", "5"]
    assert model[1].gate.recipe == model[2].recipe == BLOCK
    assert model[0].recipe is model[5].recipe is None
    ours = calls_of(model, x).ours
    # The gated block: x, three weights, the product; the MLP: x, two weights, the hidden size.
    assert ours.count("_fp8_matmul") == 3 + 2
    assert ours.count("fp8_quantize") == 5 + 4
    assert ours.count("linear") == 2  # the ends
    assert "the first or last linear layer" in str(report)
    assert "FP8 layer" in str(report)
    plain = network()
    assert (model(x) - plain(x)).norm() < 0.1 * plain(x).norm()
    model(x).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_skipped_names_are_patterns_and_split_blocks_run_by_layers():
    model, x = network(), torch.randn(8, 16)
    report = fusedops.fuse(model, fp8=BLOCK, skip=["*.down", "4"])
    without = [layer.name for layer in report.fp8 if not layer.runs]
    assert without == ["1.down", "4"]
    assert model[0].recipe == BLOCK
    assert calls_of(model, x).ours.count("_fp8_matmul") == 5
    model(x).sum().backward()


def test_a_recipe_comes_later_and_goes_again():
    model, x = network(), torch.randn(8, 16)
    fusedops.fuse(model)
    plain = model(x)
    fusedops.fuse(model, fp8=BLOCK)
    assert not torch.equal(model(x), plain)
    for module in model.modules():
        if hasattr(module, "recipe"):
            module.recipe = None
    assert torch.equal(model(x), plain)


def test_modules_of_ours_take_it_whole():
    model = nn.Sequential(
        fusedops.nn.Linear(8, 8), fusedops.nn.MLP(8, 8), fusedops.nn.GatedMLP(8, 8),
        fusedops.nn.Linear(8, 8),
    )  # fmt: skip
    report = fusedops.fuse(model, fp8=BLOCK)
    assert model[1].recipe == model[2].recipe == BLOCK
    assert sum(layer.runs for layer in report.fp8) == 5
    again = nn.Sequential(fusedops.nn.MLP(8, 8))
    fusedops.fuse(again, fp8=BLOCK, skip=["0.fc1"])
    assert again[0].recipe is None


def test_errors_of_fuse():
    with pytest.raises(TypeError, match=r"fuse: recipe must be a fusedops\.fp8\.Recipe or None"):
        fusedops.fuse(network(), fp8="block")


# ---- "auto" ----


def test_auto_is_as_asked_where_fp8_is_emulated():
    assert pays(((16, 16),), 4, True, True, torch.device("cpu"))
    layer = fusedops.nn.Linear(16, 16, recipe=fp8.Recipe())
    assert "_fp8_matmul" in calls_of(layer, torch.randn(4, 16)).ours


def test_auto_takes_large_layers_and_leaves_small_ones():
    for shape in [(8192, 4096, 4096), (16384, 5120, 5120), (8192, 14336, 4096)]:
        assert estimate(*shape).pays
        assert 1.2 < estimate(*shape).speedup < 1.6
    for shape in [(128, 256, 256), (512, 1024, 1024), (8192, 256, 256), (8192, 4096, 64)]:
        found = estimate(*shape)
        assert not found.pays
        assert "passes that quantise take" in found.reason
    assert rows_to_pay(4096, 4096) is not None
    assert rows_to_pay(256, 256) is None


def test_the_estimate_counts_what_runs():
    """Floors of fp8.md: 866 us of FP8 and 1216 us of bf16 for a step of 8192x4096x4096."""
    bf16, in_fp8 = times(8192, 4096, 4096, True, True, 4.2e6)
    assert bf16 == pytest.approx(1216, rel=0.05)
    assert in_fp8 == pytest.approx(866, rel=0.08)
    forward_bf16, forward_fp8 = times(8192, 4096, 4096, False, False, 4.2e6)
    assert forward_bf16 < bf16 / 2.9
    assert forward_fp8 < in_fp8 / 2.9
    assert estimate(8192, 4096, 4096, gpu="H100").fp8_us > estimate(8192, 4096, 4096).fp8_us


def test_explain_says_whether_fp8_pays():
    text = str(fusedops.explain((8192, 4096), (4096, 4096), backward=True, recipe=fp8.Recipe()))
    assert "FP8" in text
    assert "us expected against" in text
    found = fusedops.explain((64, 64), (64, 64), recipe=fp8.Recipe())
    assert not found.fp8.pays
    assert fusedops.explain((64, 64), (64, 64)).fp8 is None
    padded = fusedops.explain((8192, 4100), (4096, 4100), recipe=fp8.Recipe())
    assert "K is padded to 4112" in str(padded)
