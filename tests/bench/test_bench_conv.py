"""The suite `conv`: its cases, small runs of it on the CPU, its bars."""

from __future__ import annotations

import pytest
import torch

from fusedops.bench import runner
from fusedops.bench.report.conv_bars import conv_bars
from fusedops.bench.report.summary import kind
from fusedops.bench.suites.base import ALL, PeerUnavailableError, Selection, load_suite
from fusedops.bench.suites.conv import layers, nets

CPU = torch.device("cpu")
SMALL = (
    layers.Layer(2, 8, 9, 16, 3, 2),
    layers.Layer(2, 8, 6, 12, 1, activation="none", residual=True),
    layers.Layer(2, 6, 7, 6, 3, 1, 6, "silu"),
    layers.Layer(2, 3, 12, 8, 7, 2, residual=True),
    layers.Layer(2, 8, 6, 12, 1, folded=True),
    layers.Layer(2, 8, 6, 12, 1, activation="none", residual=True, folded=True),
)


def test_cases() -> None:
    suite = load_suite("conv")
    names = {p: [case.name for case in suite.cases(Selection(p))] for p in suite.passes}
    assert len(set(names["step"])) == len(names["step"]) > 25
    assert {"N64_C256_H56_O64_k1_s1/relu", "N64_C3_H224_O64_k7_s2/relu"} <= set(names["infer"])
    assert "N64_C64_H56_O256_k1_s1/add_relu" in names["step"]
    assert "N64_C64_H56_O256_k1_s1/folded_add_relu" in names["infer"]
    assert not any("folded" in name for name in names["step"])
    assert "N64_C96_H112_O96_k3_s2_g96/silu" in names["step"]
    assert names["infer"][-1] == "resnet50/B64"
    assert names["step"][-1] == "resnet50/B256"
    assert "conv" not in ALL  # a peer compiles every case for seconds
    (case,) = suite.cases(Selection("infer", ("silu",), ((2, 8, 9, 16, 3, 2),)))
    assert case.name == "N2_C8_H9_O16_k3_s2/silu"


@pytest.mark.parametrize("layer", SMALL, ids=lambda layer: layer.name)
@pytest.mark.parametrize("pass_", ["infer", "step"])
def test_a_layer(layer: layers.Layer, pass_: str) -> None:
    suite = load_suite("conv")
    result = runner.measure(suite, layer.case, "bf16", pass_, ("eager", "cudnn"), CPU, 1)
    assert set(result.timings) == {"ours", "eager"}
    assert result.error is not None
    assert result.error < (6e-2 if pass_ == "step" else 1e-2)
    missing = ["cudnn skipped: needs a GPU"] if pass_ == "infer" else []
    assert result.notes == missing
    assert set(result.errors) == ({"ours", "eager"} if pass_ == "infer" else set())
    (row,) = runner.rows(suite, result, CPU)
    assert row["tflops"]
    # NOTE: the row rounds the rate of a busy machine to 0.
    work = suite.work(layer.case, torch.bfloat16, pass_)
    assert work.flops > 0
    inputs = suite.make_inputs(layer.case, torch.bfloat16, pass_, CPU)
    assert inputs[0].is_contiguous(memory_format=torch.channels_last)
    operands = inputs[: layer.residual_at + layer.residual]
    y = layers.by_torch(layer, False)(*(t.detach() for t in operands))
    assert y.shape == (layer.batch, layer.out, layer.out_side, layer.out_side)


def test_the_summary_has_a_line_a_kind_of_layer() -> None:
    names = [layer.name for layer in SMALL] + ["resnet50/B64"]
    kinds = [kind({"suite": "conv", "case": name}) for name in names]
    assert kinds == ["3x3", "1x1", "depthwise", "7x7", "folded 1x1", "folded 1x1", "resnet50"]
    names = ["8x16x24/block", "T8_d16_h32/mlp", "quantize/8x16", "rms_norm/8x16"]
    kinds = [kind({"suite": "fp8", "case": name}) for name in names]
    assert kinds == ["block", "mlp", "quantize", "rms_norm"]


def test_errors_stop_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    suite = load_suite("conv")
    case = SMALL[0].case
    inputs = suite.make_inputs(case, torch.float32, "infer", CPU)
    y = suite.peer("eager", case, "infer", CPU)(*inputs)
    with pytest.raises(ValueError, match="relative error"):
        suite.errors(case, "infer", inputs, {"ours": y * 1.001, "eager": y})


@pytest.mark.parametrize("pass_", ["infer", "step"])
def test_resnet50_in_tiny_images(pass_: str) -> None:
    pytest.importorskip("torchvision")
    suite = load_suite("conv")
    case = nets.case(nets.BATCHES[pass_])
    result = runner.measure(suite, case, "fp32", pass_, ("eager", "cudnn"), CPU, 1)
    assert set(result.timings) == {"ours", "eager"}
    assert result.error is not None
    assert result.error < 1e-3


def test_peers_say_what_they_miss() -> None:
    suite = load_suite("conv")
    net, layer = nets.case(256), SMALL[0].case
    assert suite.peers(net, "step") == suite.peers(layer, "step") == ("eager", "compile")
    for case, pass_ in ((net, "infer"), (layer, "step")):
        with pytest.raises(PeerUnavailableError):
            suite.peer("cudnn", case, pass_, CPU)
    with pytest.raises(RuntimeError, match="make_inputs builds the model"):
        suite.ours(net, "step")


def test_bars() -> None:
    def row(case: str, pass_: str, peer: str, speedup: float) -> dict[str, str]:
        times = {"ours_us": "100", "peer_us": str(100 * speedup), "speedup": str(speedup)}
        return {"suite": "conv", "case": case, "dtype": "bf16", "pass": pass_, "peer": peer} | times

    layer = SMALL[0].name
    rows = [
        row(layer, "infer", "eager", 2.0),
        row(layer, "infer", "cudnn", 0.9),
        row("resnet50/B256", "step", "eager", 1.3),
        row("resnet50/B64", "infer", "eager", 1.5),
    ]
    lines = [" ".join(line.split()) for line in conv_bars(rows)]
    assert any(line.startswith("pass conv infer bf16 over eager, geomean") for line in lines)
    assert any(line.startswith("FAIL conv infer bf16 over the best peer") for line in lines)
    assert any(line.startswith("pass resnet50/B256 step bf16 over eager") for line in lines)
    assert any(line.startswith("FAIL resnet50/B64 infer bf16 over eager") for line in lines)
    assert any(line.startswith("no data conv step bf16 over compile") for line in lines)
