"""explain_conv_bn_act says what a call runs."""

from __future__ import annotations

import pytest
import torch

import fusedops
from fusedops.ops import conv, conv_graph, conv_problem

X, POINTWISE, SPATIAL = (64, 64, 56, 56), (64, 64, 1, 1), (64, 64, 5, 5)
WINDOWS = (64, 64, 3, 3)
SIZE = 64 * 64 * 56 * 56 * 2  # bytes of x, and of the result


@pytest.fixture(params=[False, True], ids=["without_graphs", "with_graphs"])
def graphs(request, monkeypatch):
    monkeypatch.setattr(conv_graph, "is_installed", lambda: request.param)
    return request.param


def explain(weight=SPATIAL, **options):
    padding = weight[-1] // 2
    return fusedops.explain_conv_bn_act(X, weight, padding=padding, **options)


def test_paths(graphs):
    assert explain(POINTWISE, activation="silu", residual=True).path == "pointwise"
    assert explain(POINTWISE, activation="silu").path == "pointwise"
    assert explain(WINDOWS).path == "image"
    assert explain(WINDOWS, residual=True).path == ("graph" if graphs else "cudnn")
    for channels, residual in ((60, True), (60, False), (520, True)):
        found = fusedops.explain_conv_bn_act(
            (64, channels, 56, 56), (64, channels, 1, 1), activation="relu", residual=residual
        ).path
        odd = "gemm" if not residual else "graph" if graphs else "pass"
        assert found == ("pointwise" if channels == 520 else odd)
    few = fusedops.explain_conv_bn_act((64, 92, 56, 56), (20, 92, 1, 1))
    assert few.path == ("graph" if graphs else "gemm")
    assert explain(residual=True).path == ("graph" if graphs else "cudnn")
    assert explain().path == ("graph" if graphs else "pass")
    assert explain(activation="mish").path == "pass"
    assert explain(device="cpu").path == "pass"
    assert explain(dtype=torch.float32).path == "pass"
    assert explain(training=True).path == "train"
    assert explain(backward=True).path == "pass"


def test_bytes(graphs):
    assert explain(POINTWISE).moved_bytes == 2 * SIZE
    assert explain(residual=True).moved_bytes == 3 * SIZE
    assert explain(activation="mish").moved_bytes == 4 * SIZE
    # x and z, the statistics' z, z and y; dy and z twice, dz; what the convolution's gradients read
    assert explain(training=True).moved_bytes == (2 + 1 + 2 + 2 + 3 + 3) * SIZE


def test_batch_norm_of_what_fits_on_the_chip_is_one_kernel_each_way():
    small = fusedops.explain_conv_bn_act((8, 256, 14, 14), (256, 256, 1, 1), training=True)
    assert sum("in one kernel" in p.kernel for p in small.passes) == 2
    assert len(small.passes) == 4
    size = 8 * 256 * 14 * 14 * 2
    # z and y; dy, z and dz; what the products read and write
    assert small.moved_bytes == (2 + 2 + 3 + 3) * size
    beside = fusedops.explain_conv_bn_act(
        (64, 256, 14, 14), (256, 256, 1, 1), residual=True, training=True
    )
    assert [("in one kernel" in p.kernel) for p in beside.passes] == [False, True, *[False] * 3]
    for change in ({"dtype": torch.float32}, {"training": False, "backward": True}):
        other = fusedops.explain_conv_bn_act((8, 256, 14, 14), (256, 256, 1, 1), **change)
        assert not any("in one kernel" in p.kernel for p in other.passes)


def test_a_report_names_its_kernels(graphs):
    text = str(explain(POINTWISE, training=True, residual=True))
    for words in ("fusedops.linear of the rows", "statistics beside it", "residual's gradient"):
        assert words in text
    assert "of (64, 64, 56, 56) by (64, 64, 1, 1)" in text


def test_whose_gradients_run():
    depthwise = {"weight": (64, 1, 3, 3), "groups": 64, "training": True}
    first = fusedops.explain_conv_bn_act(
        (64, 3, 224, 224), (64, 3, 7, 7), stride=2, padding=3, training=True
    )
    both = "gradients of x and weight"
    for report, forward, backward in (
        (explain(**depthwise), "our depthwise", f"our depthwise {both}"),
        (explain(**depthwise, stride=2), "our depthwise", f"our depthwise {both}"),
        (first, "our kernel for three", "our gradients of weight and x"),
        (explain(training=True), "torch's", f"cuDNN's {both}"),
        (explain(WINDOWS, training=True), "our kernel for 3x3", "our gradient of x, cuDNN's"),
        (explain((72, 64, 3, 3), training=True), "our kernel for 3x3", f"cuDNN's {both}"),
    ):
        assert report.passes[0].kernel.startswith(forward)
        assert report.passes[-1].kernel.startswith(backward)


def test_another_gpu(monkeypatch):
    monkeypatch.setattr(conv_problem, "_is_hopper", lambda: False)
    assert explain(POINTWISE, activation="mish", residual=True).path == "pass"


def test_what_is_refused():
    with pytest.raises(RuntimeError, match=r"^explain_conv_bn_act: x must have 64 channels"):
        fusedops.explain_conv_bn_act((1, 3, 9, 9), SPATIAL)
    with pytest.raises(ValueError, match=r"^explain_conv_bn_act: activation must be"):
        explain(activation="rulu")


def test_the_product_in_front_of_a_pass(monkeypatch):
    """As on a GPU, with its gradients."""
    monkeypatch.setattr(conv, "uses_product", lambda *_: True)
    x = torch.randn(3, 8, 5, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(6, 8, 1, 1, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(6, dtype=torch.float64)
    results = []
    for function in (fusedops.conv_bn_act, fusedops.reference.conv_bn_act):
        y = function(x, weight, bias, activation="silu", training=True)
        results.append([y, *torch.autograd.grad(y.square().sum(), (x, weight))])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b)


def test_the_product_of_a_gpu_without_a_pass(monkeypatch):
    monkeypatch.setattr(conv, "inference_path", lambda *_: (conv.GEMM, ""))
    x, weight = torch.randn(3, 8, 5, 5), torch.randn(6, 8, 1, 1)
    mean, var = torch.randn(6), torch.rand(6) + 0.5
    with torch.no_grad():
        got = fusedops.conv_bn_act(x, weight, None, mean, var, activation="gelu")
    want = fusedops.reference.conv_bn_act(x, weight, None, mean, var, activation="gelu")
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
