"""linear_moments: a product and the statistics of its columns, as batch norm reads them."""

from __future__ import annotations

import re

import pytest
import torch

import fusedops
from fusedops import _C
from fusedops.ops import conv
from util import DTYPES, HALVES, LAYOUTS, assert_accurate, assert_replays_and_streams, make, name

OPS = torch.ops.fusedops
SHAPES = [(6, 8, 16), (5, 3, 7), (1, 64, 64), (8192, 64, 64), (8193, 72, 64), (20_000, 136, 72)]
ROWS = 2048


def operands(m, n, k, dtype, device, offset=0.0):
    """x (M, K), weight (N, K); the columns of the product have means of `offset` deviations."""
    x = make(m, k, dtype=dtype, device=device, seed=1) + offset
    return x, make(n, k, dtype=dtype, device=device, scale=k**-0.5, seed=2)


def check(x, weight, got=None):
    """The product by the accuracy rule; its moments against float64 ones of what it gave."""
    y, moments = OPS.linear_moments(x, weight) if got is None else got
    exact = x.double() @ weight.double().t()
    assert_accurate(y, x @ weight.t(), exact)
    m, n = exact.shape
    assert moments.shape == (2, n, -(-m // ROWS))
    for block, (means, squares) in zip(y.double().split(ROWS), moments.unbind(2), strict=True):
        mean, var = block.mean(0), block.var(0, correction=0)
        size = (var + mean.square()).sqrt()
        assert ((means - mean).abs() <= 1e-6 * size).all()
        near = 1e-5 * var + 1e-11 * mean.square()
        assert ((squares / len(block) - var).abs() <= near).all()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_moments(device, dtype, shape):
    check(*operands(*shape, dtype, device))


@pytest.mark.parametrize("offset", [30.0, 1000.0])
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_means_of_many_deviations(device, dtype, offset):
    """Sums of squares that are not about the mean would lose the variance."""
    check(*operands(9000, 64, 128, dtype, device, offset))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("operand", range(2))
def test_layouts(device, operand, layout):
    for dtype in (torch.bfloat16, torch.float32):
        tensors = list(operands(200, 72, 88, dtype, device))
        tensors[operand] = LAYOUTS[layout](tensors[operand])
        check(*tensors)


def test_leading_dimensions_and_empty(device):
    x, weight = operands(30, 64, 64, torch.float32, device)
    y, moments = OPS.linear_moments(x.view(2, 3, 5, 64), weight)
    assert y.shape == (2, 3, 5, 64)
    assert torch.equal(moments, OPS.linear_moments(x, weight)[1])
    y, moments = OPS.linear_moments(x[:0], weight)
    assert (y.shape, moments.shape) == ((0, 64), (2, 64, 0))
    y, moments = OPS.linear_moments(x, weight[:0])
    assert (y.shape, moments.shape) == ((30, 0), (2, 0, 1))
    y, moments = OPS.linear_moments(x[:, :0], weight[:, :0])
    assert not y.any()
    assert not moments.any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=name)
def test_nan_and_infinity_stay_in_their_columns(device, dtype):
    x, weight = operands(300, 72, 64, dtype, device)
    weight[3, 5], weight[40, 6] = float("nan"), float("inf")
    _, moments = OPS.linear_moments(x, weight)
    bad = torch.zeros(72, dtype=torch.bool)
    bad[3] = bad[40] = True
    assert torch.equal(moments[1].isfinite().cpu()[:, 0], ~bad)


@pytest.mark.parametrize("rows", [5, 8192, 20_000])
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_batch_norm_by_moments(device, dtype, rows):
    """Statistics, running ones included, are those that batch norm finds by itself."""
    y, moments = OPS.linear_moments(*operands(rows, 64, 64, dtype, device, 3.0))

    def run(given):
        wide = torch.float64 if dtype is torch.float64 else torch.float32
        running = [torch.full((64,), 0.5, device=device, dtype=wide) for _ in range(2)]
        norm = (None, None, None, None, *running, 0.25, 1e-5, 1)
        return (*OPS.batch_norm_train_(y, given, *norm), *running)

    for i, (got, want) in enumerate(zip(run(moments), run(None), strict=True)):
        close = {} if i == 0 and dtype in HALVES else {"rtol": 2e-5, "atol": 2e-5}
        torch.testing.assert_close(got, want, **close, check_dtype=True)


def test_moments_of_another_tensor_are_refused(device):
    x = make(20, 8, dtype=torch.float32, device=device)
    shapes = {"(2, 8, 2)": (2, 8, 2), "(2, 7, 1)": (2, 7, 1), "(16,)": (16,)}
    bad = {f"float64 {text}": torch.zeros(s, dtype=torch.float64) for text, s in shapes.items()}
    bad["float32 (2, 8, 1)"] = torch.zeros(2, 8, 1)
    for got, moments in bad.items():
        text = f"moments must be a float64 tensor of shape (2, 8, 1); got {got}"
        for to in (device, "meta"):
            with pytest.raises(RuntimeError, match=f"^batch_norm_statistics_: {re.escape(text)}$"):
                OPS.batch_norm_statistics_(x.to(to), moments.to(to), None, None, None, 0.1)


@pytest.mark.gpu
@pytest.mark.sm90
@pytest.mark.usefixtures("forget_plans")
@pytest.mark.parametrize("dtype", HALVES, ids=name)
@pytest.mark.parametrize("shape", [(1096, 264, 328), (9001, 64, 64), (129, 520, 72)])
def test_every_kernel(dtype, shape):
    """In tiles that do not divide the rows and columns."""
    tensors = operands(*shape, dtype, "cuda", 2.0)
    _C.start_recording()
    OPS.linear_moments(*tensors)
    [(problem, *device)] = _C.stop_recording()
    assert problem["epilogue"] == "moments"
    kernels = [c for c in _C.plan_gemm(problem, *device)["candidates"] if c["rejected"] is None]
    assert {"sm90 128x128 pingpong 1x1", "sm90 128x256 cooperative 2x1"} <= {
        c["name"] for c in kernels
    }
    for kernel in kernels:
        assert _C.add_tuned_plan(problem, kernel | {"us": 1.0}, *device)
        got = OPS.linear_moments(*tensors)
        check(*tensors, got)
        again = OPS.linear_moments(*tensors)
        assert all(torch.equal(a, b) for a, b in zip(again, got, strict=True))
        _C.clear_tuned_plans()


@pytest.mark.gpu
@pytest.mark.sm90
@pytest.mark.parametrize("dtype", HALVES, ids=name)
def test_a_convolution_in_training(monkeypatch, dtype):
    """With statistics beside the product and without: result, gradients and running statistics."""
    shape = (40, 128, 28, 28)  # more than batch norm keeps on the chip
    x = make(*shape, dtype=dtype, device="cuda").to(memory_format=torch.channels_last)
    weight = make(256, 128, 1, 1, dtype=dtype, device="cuda", seed=2, scale=0.1)
    norm = [make(256, dtype=torch.float32, device="cuda", seed=s) for s in (3, 4)]
    dy = make(40, 256, 28, 28, dtype=dtype, device="cuda", seed=5)

    def run(function, dtype=None):
        leaves = [t.detach().to(dtype or t.dtype).requires_grad_() for t in (x, weight, *norm)]
        running = [torch.zeros(256, device="cuda", dtype=dtype or torch.float32) for _ in range(2)]
        y = function(leaves[0], leaves[1], None, *running, *leaves[2:], activation="relu",
                     training=True, momentum=0.5)  # fmt: skip
        y.backward(dy.to(y.dtype))
        return [y.detach(), *(t.grad for t in leaves), *running]

    calls = []
    whole = conv.product
    spy = lambda *args: calls.append(args[-1]) or whole(*args)  # noqa: E731
    monkeypatch.setattr("fusedops._autograd.conv.product", spy)
    got = run(fusedops.conv_bn_act)
    monkeypatch.setattr(conv, "forms_moments", lambda *_: False)
    without = run(fusedops.conv_bn_act)
    assert calls == [True, False]
    exact = run(fusedops.reference.conv_bn_act, torch.float64)
    for a, b, c in zip(got, without, exact, strict=True):
        error, usual = ((t.double() - c).norm() for t in (a, b))
        assert error <= 1.1 * usual + 1e-6 * c.norm()


@pytest.mark.gpu
def test_graphs_and_streams():
    tensors = operands(9001, 264, 328, torch.bfloat16, "cuda")
    for i in range(2):
        call = lambda i=i: OPS.linear_moments(*tensors)[i]  # noqa: E731
        assert_replays_and_streams(call, call())
