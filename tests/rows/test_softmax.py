"""softmax and log_softmax: values, gradients, layouts, dtypes, special values, errors."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

import fusedops
from fusedops import reference
from util import DTYPES, HALVES, LAYOUTS, assert_accurate, make, name, poisoned

OURS = {"softmax": fusedops.softmax, "log_softmax": fusedops.log_softmax}
THEIRS = {"softmax": F.softmax, "log_softmax": F.log_softmax}
EXACT = {"softmax": reference.softmax, "log_softmax": reference.log_softmax}
# One per team: lanes of a warp, a warp, a block; partial first and last chunks.
LENGTHS = (1, 2, 7, 8, 33, 64, 255, 256, 1000, 1023, 1024, 1025, 4097)
# A cluster, and rows that no cluster holds.
LONG = (16384, 20001, 50257, 131072, 140001)

both = pytest.mark.parametrize("op", OURS)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=name)


def check(op, x, dy, dim):
    """Values and gradient against float64, by torch's own error."""
    ours, theirs = (x.detach().clone(memory_format=torch.preserve_format) for _ in range(2))
    exact = x.detach().double()
    for t in (ours, theirs, exact):
        t.requires_grad_()
    with poisoned():
        y = OURS[op](ours, dim)
    torch_y, exact_y = THEIRS[op](theirs, dim), EXACT[op](exact, dim)
    assert y.is_contiguous()
    assert y.dtype is x.dtype
    assert_accurate(y.detach(), torch_y.detach(), exact_y.detach(), op)
    if x.shape[dim] == 1:  # the gradient is zero but for rounding
        return
    with poisoned():
        y.backward(dy)
    torch_y.backward(dy)
    exact_y.backward(dy.double())
    assert_accurate(ours.grad, theirs.grad, exact.grad, f"{op} gradient")


@every_dtype
@pytest.mark.parametrize("n", LENGTHS)
@both
def test_rows(device, op, n, dtype):
    x = make(19, n, dtype=dtype, device=device, scale=2.0)
    check(op, x, make(19, n, dtype=dtype, device=device, seed=1), 1)


@pytest.mark.gpu
@every_dtype
@pytest.mark.parametrize("n", LONG)
@both
def test_long_rows(op, n, dtype):
    x = make(9, n, dtype=dtype, device="cuda", scale=2.0)
    check(op, x, make(9, n, dtype=dtype, device="cuda", seed=1), 1)


@pytest.mark.gpu
@pytest.mark.parametrize("n", [40, 256, 1023, 4096])
@both
def test_many_rows(op, n):
    """More rows than teams: every team walks over several."""
    x = make(20011, n, dtype=torch.bfloat16, device="cuda")
    check(op, x, make(20011, n, dtype=torch.bfloat16, device="cuda", seed=1), 1)


# Enough data that threads hold several chunks: of a warp, a block, a cluster, shared memory.
MUCH = [
    *((40000, 40), (9000, 129), (5000, 255), (3000, 385), (1500, 767), (1500, 777), (1500, 1001)),
    *((1300, 1023), (1300, 1024), (300, 4097), (300, 4104), (150, 8200), (100, 12345), (90, 16384)),
    *((40, 50256), (40, 50257), (40, 65536), (40, 65537), (20, 98304), (20, 131017), (20, 131072)),
    (20, 140000),
]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", HALVES, ids=name)
@pytest.mark.parametrize(("rows", "n"), MUCH)
@both
def test_much_data(op, rows, n, dtype):
    x = make(rows, n, dtype=dtype, device="cuda", scale=2.0)
    check(op, x, make(rows, n, dtype=dtype, device="cuda", seed=1), 1)


@every_dtype
@pytest.mark.parametrize(("shape", "dim"), [((3, 7, 5), 1), ((300, 3), 0), ((2, 65, 256), -2)])
@both
def test_other_dims(device, op, shape, dim, dtype):
    x = make(*shape, dtype=dtype, device=device, scale=2.0)
    check(op, x, make(*shape, dtype=dtype, device=device, seed=1), dim)


@pytest.mark.parametrize("layout", LAYOUTS)
@both
def test_layouts(device, op, layout):
    values, dy = (make(24, 40, dtype=torch.bfloat16, device=device, seed=s) for s in (0, 1))
    x = LAYOUTS[layout](values)
    y = OURS[op](x, 1)
    assert torch.equal(y, OURS[op](x.contiguous(), 1))
    grads = [
        torch.ops.fusedops.softmax_backward(g, y, 1, op == "log_softmax", 0)
        for g in (LAYOUTS[layout](dy), LAYOUTS[layout](dy).contiguous())
    ]
    assert torch.equal(*grads)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (0, 3), (2, 0, 3)], ids=str)
@both
def test_degenerate_shapes(device, op, shape):
    x = torch.ones(shape, device=device, requires_grad=True)
    y = OURS[op](x, -1)
    assert torch.equal(y, THEIRS[op](x, -1))
    y.sum().backward()
    assert x.grad.shape == shape


@every_dtype
@both
def test_special_values(device, op, dtype):
    inf, nan = math.inf, math.nan
    rows = [
        [0, -inf, 1],
        [-inf] * 3,
        [inf, 0, 1],
        [nan, 0, 1],
        [1e4, -1e4, 0],
        [3e4] * 3,
        [-3e4] * 3,
    ]
    for pad in (0, 1500):
        x = torch.tensor(rows, dtype=dtype, device=device)
        x = F.pad(x, (0, pad), value=-inf)
        torch.testing.assert_close(OURS[op](x, 1), THEIRS[op](x, 1), equal_nan=True)
        if dtype is not torch.float64:
            wide = x.float() * 1000
            torch.testing.assert_close(OURS[op](wide, 1), THEIRS[op](wide, 1), equal_nan=True)


@pytest.mark.parametrize("dtype", HALVES, ids=name)
@both
def test_float32_from_half(device, op, dtype):
    """dtype=float32, and what autocast on a GPU makes of it, without a pass for the cast."""
    x = make(6, 77, dtype=dtype, device=device).requires_grad_()
    y, want = OURS[op](x, 1, torch.float32), THEIRS[op](x, 1, dtype=torch.float32)
    torch.testing.assert_close(y, want)
    dy = make(6, 77, dtype=torch.float32, device=device, seed=1)
    (ours,), (theirs,) = torch.autograd.grad(y, x, dy), torch.autograd.grad(want, x, dy)
    assert ours.dtype is dtype
    torch.testing.assert_close(ours, theirs)
    for given in (x, x.float(), x.double()):
        with torch.autocast(device, dtype=dtype):
            assert OURS[op](given, 1).dtype is THEIRS[op](given, 1).dtype
    assert OURS[op](x, 1, torch.float64).dtype is torch.float64


@both
def test_higher_derivatives(device, op):
    x = make(4, 6, dtype=torch.float64, device=device).requires_grad_()
    assert torch.autograd.gradcheck(lambda t: OURS[op](t, 1), x)
    assert torch.autograd.gradgradcheck(lambda t: OURS[op](t, 1), x)


@both
def test_transforms_and_compile(device, op):
    x = make(4, 6, dtype=torch.float32, device=device)
    want = torch.func.vmap(lambda t: THEIRS[op](t, 0))(x)
    torch.testing.assert_close(torch.func.vmap(lambda t: OURS[op](t, 0))(x), want)
    compiled = torch.compile(OURS[op], fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, 1), THEIRS[op](x, 1))
    x.requires_grad_()
    dy = make(4, 6, dtype=torch.float32, device=device, seed=1)
    (ours,) = torch.autograd.grad(compiled(x, 1), x, dy)
    torch.testing.assert_close(ours, torch.autograd.grad(THEIRS[op](x, 1), x, dy)[0])


@both
def test_errors(device, op):
    x = torch.ones(2, 3, device=device)
    for to in (device, "meta"):
        with pytest.raises(IndexError, match=rf"^{op}: dim must be from -2 to 1 .*; got 2$"):
            OURS[op](x.to(to), 2)
        with pytest.raises(RuntimeError, match=r"softmax: x must be float16.*; got int64"):
            OURS[op](x.long().to(to), 1)
    with pytest.raises(TypeError, match=f"{op}: x must be a Tensor; got list"):
        OURS[op]([1.0], 0)
    backward = torch.ops.fusedops.softmax_backward
    for to in (device, "meta"):
        with pytest.raises(RuntimeError, match="dx_dtype must be a code from 0 to 2; got 3"):
            backward(x.to(to), x.to(to), 1, False, 3)
        with pytest.raises(RuntimeError, match="y must have dtype float32 like dy; got float64"):
            backward(x.to(to), x.double().to(to), 1, False, 0)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("n", [4097, 50257])
def test_more_than_2_32_bytes(n):
    rows = (2**32 + 17) // 2 // n + 1
    x = torch.zeros(rows, n, dtype=torch.float16, device="cuda")
    x[-1, -1] = math.log(n)
    y = fusedops.softmax(x, 1)
    torch.testing.assert_close(y[-1], F.softmax(x[-1], 0))
    assert torch.equal(y[:-1], y[:1].expand(rows - 1, n))
    dx = torch.ops.fusedops.softmax_backward(x, y, 1, False, 0)
    assert torch.isfinite(dx[-1]).all()
    assert dx[-1, -1] > 0


@pytest.mark.gpu
@pytest.mark.slow
def test_one_row_of_more_than_2_32_bytes():
    x = torch.zeros(2**31 + 9, dtype=torch.float16, device="cuda")
    x[-1] = 16.0
    y = fusedops.log_softmax(x, 0)
    log_sum = math.log(2**31 + 8 + math.exp(16.0))
    assert y[-1].item() == pytest.approx(16.0 - log_sum, rel=2e-3)
    assert y[0].item() == pytest.approx(-log_sum, rel=2e-3)


@pytest.mark.parametrize("n", [3, 40, 1023, 5000, 20_001, 140_001])
@both
def test_far_bfloat16(device, op, n):
    """Far from zero a row's equal values share it, whatever log2(e) times them overflows to."""
    lowest = torch.finfo(torch.bfloat16).min
    for top in (1e9, -1e9, 1e10, -1e10, -1e30, 2e38, 3e38, -3e38, lowest):
        x = torch.full((4, n), top, dtype=torch.bfloat16, device=device)
        x[1, 1:] = lowest
        x[2, 0] = -math.inf
        x[3, :2] = 0
        expected = THEIRS[op](x.double(), 1).to(x.dtype)
        torch.testing.assert_close(OURS[op](x, 1), expected)
        torch.testing.assert_close(OURS[op](x.t().contiguous(), 0), expected.t())
