"""FP32 products of operands that begin anywhere: FMA kernels read them word by word."""

from __future__ import annotations

import pytest
import torch

import fusedops
from fusedops import _C, reference
from util import assert_accurate, linear_inputs, poisoned, torch_linear

HOPPER = {"capability": 90, "sm_count": 132}
OPTIONS = {"dtype": "float32", "epilogue": "fused", "activation": 0, "allow_tf32": False} | HOPPER


def prepared(m, n, k, **options):
    return _C.prepare_gemm(m, n, k, **({"a": (k, 1, 0), "b": (1, k, 0)} | OPTIONS | options))


def test_words_are_read_one_by_one_where_a_copy_takes_longer():
    few = prepared(44_338, 64, 2415)
    assert few["pack_a"] is None  # each word meets one tile
    assert few["pack_b"] is not None  # each word meets 347 tiles: a copy is nothing beside that
    assert few["problem"]["k"] == 2415
    assert prepared(44_338, 64, 2415, allow_tf32=True)["pack_a"] is not None
    sliced = prepared(3776, 191, 3369, a=(3372, 1, 0), b=(1, 3376, 0))
    assert sliced["pack_a"] is sliced["pack_b"] is None  # they begin at 16 bytes, that is enough


def test_single_words_take_time():
    times = []
    for k in (2412, 2415):
        candidates = _C.select_config(44_338, 64, k, "float32", math="fp32", **HOPPER)[1]
        times.append(min(c["expected_us"] for c in candidates if c["rejected"] is None))
    assert times[0] * 1.03 < times[1] < times[0] * 1.8


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(5003, 64, 415), (3001, 35, 1001), (40, 1001, 2003)], ids=str)
def test_results_and_gradients(shape):
    x, weight, bias, dy = linear_inputs(*shape, torch.float32, "cuda")
    leaves = [t.detach().requires_grad_() for t in (x, weight, bias)]
    torchs = [t.detach().requires_grad_() for t in (x, weight, bias)]
    theirs = torch_linear(*torchs, "gelu")
    theirs.backward(dy)
    with poisoned():
        y = fusedops.linear(*leaves, "gelu")
        y.backward(dy)
    wide = [t.double() for t in (dy, x, weight, bias)]
    assert_accurate(y, theirs, reference.linear(*wide[1:], "gelu"), "y")
    exact = reference.linear_backward(*wide, "gelu")
    # NOTE: a sum over rows may cancel: its rounding is that of its terms.
    squares = wide[0].square()
    scales = (None, (squares.T @ wide[1].square()).sqrt(), squares.sum(0).sqrt())
    for leaf, other, truth, scale in zip(leaves, torchs, exact, scales, strict=True):
        assert_accurate(leaf.grad, other.grad, truth, f"{tuple(leaf.shape)}", scale)
