"""Launches leave the CUDA context that the caller made current alone."""

from __future__ import annotations

import ctypes

import pytest
import torch

import fusedops
from util import make


def current_context():
    context = ctypes.c_void_p()
    assert ctypes.CDLL("libcuda.so.1").cuCtxGetCurrent(ctypes.byref(context)) == 0
    return context.value


@pytest.mark.gpu
def test_a_green_context_stays_current():
    try:
        green = torch.cuda.GreenContext.create(16, torch.cuda.current_device())
    except (AttributeError, RuntimeError) as error:
        pytest.skip(f"no green contexts: {error}")
    x = make(64, 1000, dtype=torch.float32, device="cuda")
    values = torch.arange(20_000, device="cuda", dtype=torch.int32)  # bins of more than 48 KB
    outside = fusedops.softmax(x, 1), fusedops.bincount(values, 20_000)
    torch.cuda.synchronize()
    before = current_context()
    green.set_context()
    try:
        inside = current_context()
        results = fusedops.softmax(x, 1), fusedops.bincount(values, 20_000)
        after = current_context()
        torch.cuda.current_stream().synchronize()
    finally:
        green.pop_context()
    assert before != inside
    assert after == inside
    assert all(torch.equal(a, b) for a, b in zip(results, outside, strict=True))
