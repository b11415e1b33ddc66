"""The kernels that a gated MLP has of its own, on more tiles than an H200 has places for."""

from __future__ import annotations

import re

import pytest
import torch

from fusedops import _C
from fusedops._core.activation import activation_code
from fusedops._tuning.names import STREAM_K_TAIL
from gemm.mlp_util import exact, inputs, ours, step, torchs
from util import ACTIVATIONS, HALVES, assert_accurate, make, name, poisoned

SHAPE = ((4000,), 2056, 1096, 2056)  # ragged in every tile; each kernel has over a wave of them
SHORT = ((8200,), 264, 1096, 72)  # the gradient has two steps of K

# of the input gradient
TILES = [
    "128x128 pingpong 1x1",
    "128x192 pingpong 1x1",
    "128x256 cooperative 2x1",
    "256x128 cooperative 1x1",
    "256x128 cooperative 1x2",
]

pytestmark = [pytest.mark.gpu, pytest.mark.sm90]


@pytest.mark.parametrize("shape", [SHAPE, SHORT], ids=["long", "short"])
@pytest.mark.parametrize("bias", [False, True], ids=["plain", "biased"])
@pytest.mark.parametrize("dtype", HALVES, ids=name)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("kind", ["gated", "packed"])
def test_many_tiles(kind, activation, dtype, bias, shape):
    arguments, _, dy = inputs(kind, dtype, "cuda", shape, bias=bias, residual=False)
    with poisoned():
        got = step(ours, kind, arguments, activation, None, dy)
    other = step(torchs, kind, arguments, activation, None, dy)
    truth = step(exact, kind, arguments, activation, None, dy, torch.float64)
    for i, (a, b, c) in enumerate(zip(got, other, truth, strict=True)):
        assert_accurate(a, b, c, f"result {i}")
    for a, b in zip(step(ours, kind, arguments, activation, None, dy), got, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("shape", [SHAPE, SHORT], ids=["long", "short"])
def test_each_product_has_its_kernel(shape):
    arguments, _, dy = inputs("gated", torch.bfloat16, "cuda", shape, bias=False, residual=False)
    kernels = kernels_of(lambda: step(ours, "gated", arguments, "silu", None, dy))
    assert sorted(re.findall(r"GatedProduct\)(\d),", kernels)) == ["0", "1", "2"]


@pytest.mark.parametrize("kind", ["gated", "packed"])
def test_inference_agrees_with_training(kind):
    arguments, _, _ = inputs(kind, torch.bfloat16, "cuda", SHAPE, bias=False, residual=False)
    with torch.no_grad():
        y = ours(kind, arguments, "silu")
    arguments[0].requires_grad_()
    assert torch.equal(ours(kind, arguments, "silu"), y)


@pytest.mark.parametrize("activation", ["relu", "relu2"])
def test_an_infinite_gradient_stops_where_relu_does(activation):
    m, hidden, n = 4000, 1096, 264
    dy, down, saved = (
        make(*shape, dtype=torch.bfloat16, device="cuda")
        for shape in ((m, n), (n, hidden), (2, m, hidden))
    )
    dy[7] = torch.inf
    gate = saved[0].clone()
    flags = (activation_code(activation), *[False] * 6)

    def run():
        torch.ops.fusedops.gated_mlp_backward_(dy.abs(), saved, down.abs() + 1, None, False, *flags)

    assert re.search(r"GatedProduct\)1,", kernels_of(run))
    assert saved[0, 7, gate[7] <= 0].eq(0).all()
    assert not saved[0, 7, gate[7] > 0].isfinite().any()


@pytest.mark.usefixtures("forget_plans")
@pytest.mark.parametrize("dtype", HALVES, ids=name)
@pytest.mark.parametrize("splits", [1, STREAM_K_TAIL], ids=["whole", "shared"])
@pytest.mark.parametrize("tile", TILES)
def test_tiles_of_the_input_gradient(tile, splits, dtype):
    arguments, _, dy = inputs("gated", dtype, "cuda", SHAPE, bias=False, residual=False)

    def run(function=ours, dtype=None):
        return step(function, "gated", arguments, "silu", None, dy, dtype)

    # To selection it is one product over gate and up.
    _C.start_recording()
    run()
    (tokens,), width, hidden, _ = SHAPE
    [(problem, *device)] = [
        found
        for found in _C.stop_recording()
        if [found[0][size] for size in "mnk"] == [tokens, width, 2 * hidden]
    ]
    [choice] = [
        c
        for c in _C.plan_gemm(problem, *device)["candidates"]
        if (c["name"], c["splits"]) == (f"sm90 {tile}", splits)
    ]
    assert _C.add_tuned_plan(problem, choice | {"us": 1.0}, *device)

    assert re.findall(r"GatedProduct\)2, (\d+)>", kernels_of(run)) == [str(choice["index"])]
    got = run()
    for a, b, c in zip(got, run(torchs), run(exact, torch.float64), strict=True):
        assert_accurate(a, b, c)
    for a, b in zip(run(), got, strict=True):
        assert torch.equal(a, b)


def kernels_of(call):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
    return " ".join(event.key for event in profile.key_averages())
