"""Stencils against F.pad and a depthwise convolution in float64: values, gradients, borders."""

from __future__ import annotations

import itertools
import re
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import fusedops
from fusedops import reference
from fusedops.ops.stencil import MOST_TAPS, PADDINGS
from util import DTYPES, LAYOUTS, assert_accurate, make, name

OPS = torch.ops.fusedops
FUNCTIONS = {1: fusedops.stencil1d, 2: fusedops.stencil2d, 3: fusedops.stencil3d}
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=name)
every_padding = pytest.mark.parametrize("padding", PADDINGS)

# Compiled and run-time taps; planes smaller and larger than a tile, odd and vectorisable rows.
SHAPES = [  # x, weight, dims
    ((5, 33), (3,), 1),
    ((2, 3, 1100), (3, 7), 1),
    ((4, 64), (5,), 1),
    ((3, 40), (9,), 1),
    ((1, 1), (1,), 1),
    ((4, 4), (3, 3), 2),
    ((70, 3, 7, 7), (3, 3, 3), 2),
    ((700, 3, 7, 7), (3, 3, 3), 2),
    ((2, 3, 41, 150), (3, 5, 5), 2),
    ((3, 35, 132), (7, 7), 2),
    ((2, 2, 20, 24), (2, 11, 5), 2),
    ((2, 16, 17), (3, 1), 2),
    ((2, 9, 33), (1, 3), 2),
    ((2, 5, 6, 7), (3, 3, 3), 3),
    ((2, 6, 35, 20), (5, 5, 5), 3),
    ((2, 4, 5, 6, 7), (4, 3, 3, 3), 3),
    ((1, 9, 9, 9), (3, 5, 7), 3),
    ((4, 35, 8), (4, 3, 3), 2),
    ((2, 1030), (7,), 1),
    ((2, 4, 4), (5, 7), 2),
    ((3, 2, 40, 12), (3, 3, 3), 3),
    ((8, 4, 29, 12), (4, 3, 3), 2),
    ((11, 16, 13), (16, 7), 1),
    ((16, 3, 40, 14), (3, 5, 5), 2),
    ((2, 3, 9, 16), (3, 7, 7), 2),
]
GRADCHECKS = [((2, 5), (3,), 1), ((2, 4, 5), (2, 3, 3), 2), ((3, 3, 4), (3, 1, 3), 3)]


def inputs(x_shape, weight_shape, dtype, device):
    return (
        make(*x_shape, dtype=dtype, device=device, seed=1),
        make(*weight_shape, dtype=dtype, device=device, scale=0.3, seed=2),
        make(*x_shape, dtype=dtype, device=device, seed=3),
    )


def test_constants_are_those_of_the_header():
    header = Path(__file__).parents[2] / "csrc" / "common" / "stencil.h"
    if not header.exists():
        pytest.skip("needs the sources")
    text = header.read_text()
    assert f"kMaxTaps = {MOST_TAPS};" in text
    found = re.search(r"enum class Padding : int64_t \{([^}]*)\}", text)
    codes = re.findall(r"k(\w+) = (\d)", found[1])
    assert {n.lower(): int(c) for n, c in codes} == PADDINGS


def outcome(call, x, weight, dy):
    """y, dx, dweight."""
    x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
    y = call(x, weight)
    return y.detach(), *torch.autograd.grad(y, (x, weight), dy)


@every_dtype
@every_padding
def test_values_and_gradients(device, padding, dtype):
    for x_shape, weight_shape, dims in SHAPES:
        x, weight, dy = inputs(x_shape, weight_shape, dtype, device)
        composed = partial(reference.stencil, scale=1.0, dims=dims, padding_mode=padding)
        ours = outcome(partial(FUNCTIONS[dims], padding_mode=padding), x, weight, dy)
        torchs = outcome(composed, x, weight, dy)
        exact = outcome(composed, x.double(), weight.double(), dy.double())
        for what, a, b, c in zip(("y", "dx", "dweight"), ours, torchs, exact, strict=True):
            assert_accurate(a, b, c, f"{what} {x_shape} {weight_shape}")


@every_padding
@pytest.mark.parametrize(("x_shape", "weight_shape", "dims"), GRADCHECKS, ids=str)
def test_gradcheck(device, x_shape, weight_shape, dims, padding):
    x, weight, _ = inputs(x_shape, weight_shape, torch.float64, device)
    leaves = [x.requires_grad_(), weight.requires_grad_()]
    call = partial(FUNCTIONS[dims], padding_mode=padding)
    torch.autograd.gradcheck(call, leaves)
    # NOTE: derivatives of higher order are torch's, whose padding adds its gradient by atomics.
    torch.autograd.gradgradcheck(call, leaves, nondet_tol=1e-12)


@every_dtype
def test_box_filter_keeps_a_constant(device, dtype):
    x = torch.ones(2, 9, 10, 11, dtype=dtype, device=device)
    for function in (fusedops.box_filter1d, fusedops.box_filter2d, fusedops.box_filter3d):
        for size in (3, 5):
            y = function(x, size, "reflect")
            torch.testing.assert_close(y, x, rtol=1e-6, atol=0)
    y = fusedops.box_filter2d(x, 3)
    assert abs(y[0, 0, 0, 0].item() - 4 / 9) < 2e-3


@pytest.mark.parametrize("size", [0, -1, 4, 17, 3.0, "a", None])
def test_box_filter_refuses_other_sizes(size):
    for dims in (1, 2, 3):
        op = f"box_filter{dims}d"
        with pytest.raises(ValueError, match=f"{op}: size must be odd and from 1 to 15; got"):
            getattr(fusedops, op)(torch.ones(4, 20, 20, 20), size)


def test_layouts_and_empty(device):
    x, weight = make(12, 20, dtype=torch.float32, device=device), torch.ones(3, 3, device=device)
    for layout in LAYOUTS.values():
        got = fusedops.stencil2d(layout(x), layout(weight), "circular")
        want = reference.stencil(layout(x).contiguous(), weight, 1.0, 2, "circular")
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    for shape in [(0, 4, 4), (2, 0, 4), (2, 4, 0)]:
        empty = torch.ones(shape, device=device)
        for padding in range(4):
            assert OPS.stencil(empty, weight, 1.0, 2, padding).shape == shape
            dx, dw = OPS.stencil_backward(empty, empty, weight, 1.0, 2, padding, True, True)
            assert dx.shape == shape
            assert torch.all(dw == 0)


def test_every_alignment(device):
    flat = make(3000, dtype=torch.bfloat16, device=device)
    weight = make(5, 5, dtype=torch.bfloat16, device=device, seed=1)
    for offset, width in itertools.product(range(5), (36, 37)):
        x = flat[offset : offset + 20 * width].view(20, width)
        got = fusedops.stencil2d(x, weight)
        torch.testing.assert_close(got, fusedops.stencil2d(x.clone(), weight), rtol=0, atol=0)


def test_nan_stays_in_its_neighbourhood(device):
    x = torch.zeros(40, 140, device=device)
    x[20, 70] = torch.nan
    y = fusedops.stencil2d(x, torch.ones(3, 3, device=device))
    hit = torch.isnan(y)
    assert hit.sum() == 9
    assert hit[19:22, 69:72].all()


def test_errors(device):
    x = torch.ones(2, 3, 5, 6, device=device)
    for weight, padding, dims, text in [
        (torch.ones(2, 3), 0, 2, r"stencil: weight must have odd extents from 1 to 15; got shape"),
        (torch.ones(17, 1), 0, 2, r"stencil: weight must have odd extents from 1 to 15; got shape"),
        (torch.ones(4, 3, 3), 0, 2, "stencil: weight must have as many channels as x"),
        (torch.ones(3), 0, 2, r"stencil: weight must have 2 dimension\(s\), or one more in front"),
        (torch.ones(3, 3), 4, 2, "stencil: padding must be a code from 0 to 3; got 4"),
        (torch.ones(3), 0, 0, "stencil: dims must be from 1 to 3; got 0"),
        (torch.ones(11, 1), 1, 2, "must be larger than half of weight .*; got an extent of 5"),
        (torch.ones(3).half(), 0, 1, "stencil: weight must have dtype float32 like x"),
    ]:
        for to in (device, "meta"):
            with pytest.raises(RuntimeError, match=text):
                OPS.stencil(x.to(to), weight.to(to), 1.0, dims, padding)
    with pytest.raises(RuntimeError, match=r"must have spatial extents of at most 2\^30; got"):
        OPS.stencil(torch.ones(2**30 + 1, device="meta"), torch.ones(3, device="meta"), 1.0, 1, 0)
    assert OPS.stencil(x, torch.ones(11, 1, device=device), 1.0, 2, 3).shape == x.shape
    with pytest.raises(ValueError, match="stencil2d: padding_mode must be one of 'zeros'"):
        fusedops.stencil2d(x, x[0, 0, :3, :3], "same")
    with pytest.raises(TypeError, match="stencil1d: weight must be a Tensor; got list"):
        fusedops.stencil1d(x, [1.0])


def test_compiles_whole(device):
    x, weight, dy = inputs((2, 3, 8, 9), (3, 3, 3), torch.float32, device)

    eager = partial(fusedops.stencil2d, padding_mode="reflect")
    compiled = torch.compile(eager, fullgraph=True, backend="aot_eager")
    for a, b in zip(outcome(compiled, x, weight, dy), outcome(eager, x, weight, dy), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


@pytest.mark.gpu
def test_twenty_runs_are_bitwise_equal():
    x, weight, dy = inputs((33, 7, 45, 70), (7, 3, 3), torch.bfloat16, "cuda")
    arguments = (dy, x, weight, 1.0, 2, 1, True, True)
    first = OPS.stencil_backward(*arguments)
    for _ in range(19):
        again = OPS.stencil_backward(*arguments)
        assert all(torch.equal(a, b) for a, b in zip(again, first, strict=True))


@pytest.mark.gpu
@pytest.mark.slow
def test_more_than_2_32_bytes():
    x = torch.ones(3, 715827885, dtype=torch.bfloat16, device="cuda")  # 2^32 + 14 bytes
    weight = torch.ones(3, dtype=torch.bfloat16, device="cuda")
    y = fusedops.stencil1d(x, weight, "replicate")
    assert torch.all(y == 3)
    del y
    dx, dw = OPS.stencil_backward(x, x, weight, 1.0, 1, 3, True, True)
    assert torch.all(dx == 3)
    assert torch.all(dw == 2147483655)
    del x, dx
    image = torch.ones(2, 32769, 32769, dtype=torch.bfloat16, device="cuda")
    assert torch.all(fusedops.box_filter2d(image, 3, "circular") == 1)


@pytest.mark.parametrize(
    ("dims", "shape", "taps"),
    [(2, (2, 0, 5), (3, 3)), (1, (2, 5, 0), (3,)), (1, (0, 5), (0, 3)), (2, (0, 4, 5), (3, 3))],
)
def test_composed_gradients_of_nothing(device, dims, shape, taps):
    op = getattr(fusedops, f"stencil{dims}d")
    x = torch.zeros(shape, device=device, requires_grad=True)
    weight = torch.ones(taps, device=device, requires_grad=True)
    dx, dw = torch.autograd.grad(op(x, weight).sum(), (x, weight), create_graph=True)
    assert dx.shape == x.shape
    assert dw.shape == weight.shape
    assert not dw.any()
    grad = torch.func.grad(lambda x: op(x, weight.detach()).sum())(x.detach())
    assert grad.shape == x.shape


def test_vmap_of_a_box_of_halves_does_not_overflow(device):
    x = torch.full((2, 20, 20), 6000.0, dtype=torch.float16, device=device)
    y = torch.func.vmap(lambda x: fusedops.box_filter2d(x, 7))(x)
    assert torch.equal(y, fusedops.box_filter2d(x, 7))


@pytest.mark.parametrize(("taps", "width"), [(5, 4), (3, 8)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=name)
def test_weight_gradient_of_many_small_planes(device, taps, width, dtype):
    """The tile takes what shared memory the sums of the warps leave."""
    x = make(300, 1, width, dtype=dtype, device=device)
    weight = make(taps, taps, dtype=dtype, device=device, seed=1)
    dy = make(300, 1, width, dtype=dtype, device=device, seed=2)
    ours, exact = weight.clone().requires_grad_(), weight.double().requires_grad_()
    fusedops.stencil2d(x, ours).backward(dy)
    F.conv2d(x.double()[:, None], exact[None, None], padding="same")[:, 0].backward(dy.double())
    torch.testing.assert_close(ours.grad.double(), exact.grad, rtol=1e-4, atol=1e-4)
