"""fusedops.fast_attention: which backends attention asks, in which order, and for how long."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, _cur_sdpa_kernel_backends, sdpa_kernel

import fusedops
from fusedops.ops import attention
from util import make

CUDNN, FLASH, MATH = SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.MATH


def order():
    """The enabled backends as torch asks them."""
    return _cur_sdpa_kernel_backends(with_priority=True)


@pytest.fixture
def hopper():
    """A machine that looks like one with a Hopper, where torch takes flash by itself."""
    theirs = [FLASH, SDPBackend.EFFICIENT_ATTENTION, MATH, CUDNN]
    with (
        mock.patch.object(torch.cuda, "is_available", return_value=True),
        mock.patch.object(torch.cuda, "get_device_capability", return_value=(9, 0)),
        mock.patch.object(torch.version, "cuda", "13.0"),
        mock.patch.object(torch.backends.cudnn, "is_available", return_value=True),
        mock.patch.object(torch.cuda, "current_device", return_value=0),
        mock.patch.object(attention, "_fill_in_order"),
        sdpa_kernel(theirs, set_priority=True),
    ):
        yield


def test_cudnn_comes_first_and_the_order_comes_back(hopper):
    before = order()
    assert before[0] is FLASH
    with fusedops.fast_attention():
        assert order() == [CUDNN, *(b for b in before if b is not CUDNN)]
        with fusedops.fast_attention():  # a second one changes nothing
            assert order()[0] is CUDNN
        assert order()[0] is CUDNN
    assert order() == before


def test_the_order_comes_back_after_an_exception(hopper):
    before = order()
    with pytest.raises(ZeroDivisionError), fusedops.fast_attention():
        raise ZeroDivisionError
    assert order() == before


def test_what_is_disabled_stays_disabled(hopper):
    with sdpa_kernel([FLASH, CUDNN], set_priority=True):
        with fusedops.fast_attention():
            assert order() == [CUDNN, FLASH]
        assert order() == [FLASH, CUDNN]
    with sdpa_kernel([FLASH, MATH], set_priority=True), fusedops.fast_attention():
        assert order() == [FLASH, MATH]


@pytest.mark.parametrize(
    ("owner", "name", "value"),
    [
        (torch.cuda, "is_available", lambda: False),
        (torch.cuda, "get_device_capability", lambda *_: (8, 0)),
        (torch.version, "cuda", None),
        (torch.backends.cudnn, "is_available", lambda: False),
        (torch, "are_deterministic_algorithms_enabled", lambda: True),
    ],
    ids=["no_gpu", "ampere", "rocm", "no_cudnn", "deterministic"],
)
def test_elsewhere_nothing_changes(hopper, owner, name, value):
    before = order()
    with mock.patch.object(owner, name, value), fusedops.fast_attention():
        assert order() == before


def test_an_order_that_begins_with_cudnn_stays(hopper):
    with sdpa_kernel([CUDNN, MATH], set_priority=True):
        before = torch._C._get_sdp_priority_order()
        with fusedops.fast_attention():
            assert torch._C._get_sdp_priority_order() == before


class Attends(torch.nn.Module):
    """Attention inside the context."""

    def forward(self, x):
        with fusedops.fast_attention():
            y = F.scaled_dot_product_attention(x, x, x)
        return y * 2


def test_compiles_whole():
    """NOTE: only our own questions are answered; torch.compile asks torch.cuda as well."""
    before = order()
    x = make(2, 4, 8, 16, dtype=torch.float32, device="cpu")
    seen = []

    def backend(graph, inputs):
        seen.extend(str(node.target) for node in graph.graph.nodes)
        return graph

    compiled = torch.compile(Attends(), backend=backend, fullgraph=True)
    with (
        mock.patch.object(attention, "_may_use_cudnn", lambda: True),  # noqa: PT008
        mock.patch.object(torch.cuda, "current_device", lambda: 0),  # noqa: PT008
        mock.patch.object(attention, "_fill_in_order", lambda _: None),  # noqa: PT008
    ):
        torch.testing.assert_close(compiled(x), Attends()(x))
    assert sum("_sdpa_kernel" in name for name in seen) == 2  # set, and taken back
    assert order() == before


def test_values_are_those_of_other_backends(device):
    q, k, v = (make(2, 4, 64, 64, dtype=torch.bfloat16, device=device, seed=i) for i in range(3))
    for x in (q, k, v):
        x.requires_grad_()
    torch._fused_sdp_choice(q, k, v)  # torch fills in its own order at the first call
    before = order()
    found = []
    with sdpa_kernel(MATH):
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        found.append((y, *torch.autograd.grad(y.float().square().sum(), (q, k, v))))
    with fusedops.fast_attention():
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    found.append((y, *torch.autograd.grad(y.float().square().sum(), (q, k, v))))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(b, a, rtol=3e-2, atol=3e-2)
    assert order() == before


def test_a_hopper_takes_cudnn(device):
    if torch.device(device).type != "cuda" or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs a Hopper")
    q = make(2, 4, 512, 64, dtype=torch.bfloat16, device=device)
    with fusedops.fast_attention():
        assert torch._fused_sdp_choice(q, q, q, is_causal=True) == int(CUDNN)
