"""The kernels that a gated MLP has of its own, on more tiles than an H200 has places for."""

from __future__ import annotations

import pytest
import torch

from mlp_util import exact, inputs, ours, step, torchs
from util import ACTIVATIONS, HALVES, assert_accurate, name, poisoned

SHAPE = ((2100,), 2056, 1096, 1032)  # ragged in every tile; each kernel has over a wave of them

pytestmark = [pytest.mark.gpu, pytest.mark.sm90]


@pytest.mark.parametrize("bias", [False, True], ids=["plain", "biased"])
@pytest.mark.parametrize("dtype", HALVES, ids=name)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("kind", ["gated", "packed"])
def test_many_tiles(kind, activation, dtype, bias):
    arguments, _, dy = inputs(kind, dtype, "cuda", SHAPE, bias=bias, residual=False)
    with poisoned():
        got = step(ours, kind, arguments, activation, None, dy)
    other = step(torchs, kind, arguments, activation, None, dy)
    truth = step(exact, kind, arguments, activation, None, dy, torch.float64)
    for i, (a, b, c) in enumerate(zip(got, other, truth, strict=True)):
        assert_accurate(a, b, c, f"result {i}")
    for a, b in zip(step(ours, kind, arguments, activation, None, dy), got, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("kind", ["gated", "packed"])
def test_inference_agrees_with_training(kind):
    arguments, _, _ = inputs(kind, torch.bfloat16, "cuda", SHAPE, bias=False, residual=False)
    with torch.no_grad():
        y = ours(kind, arguments, "silu")
    arguments[0].requires_grad_()
    assert torch.equal(ours(kind, arguments, "silu"), y)
