"""Scans: values, directions, strides, ties and NaN, gradients, long rows, repeats."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

import fusedops
from fusedops import reference
from util import DTYPES, assert_accurate, make, name

INTEGERS = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]

# Every way a line meets tiles, clusters, chains, strips and segments: short rows that share a tile,
# aligned or not, of a small block or a full one; one tile; a cluster (up to 8 tiles); a chain with
# groups (32 tiles); columns that vectors divide or not, one strip or many, in segments or not.
SHAPES = [
    ((), 0),
    ((0, 3), 1),
    ((3, 0), 1),
    ((1,), 0),
    ((7,), 0),
    ((1000, 1), 1),
    ((1000, 3), 1),
    ((129, 16), 1),
    ((64,), 0),
    ((37, 61), 1),
    ((1500, 100), 1),
    ((65, 512), 1),
    ((33, 1023), -1),
    ((9, 4096), 1),
    ((2, 20001), 1),
    ((3, 40000), 1),
    ((100003,), 0),
    ((2, 300007), -1),
    ((100, 64), 0),
    ((5000, 16), 0),
    ((300, 257), 0),
    ((20011, 3), 0),
    ((2, 700, 40), 1),
    ((5, 2, 3), 0),
    ((832, 1, 171), 1),
    ((65, 2, 477), 1),
    ((30, 9, 264), 1),
]
shapes = pytest.mark.parametrize(("shape", "dim"), SHAPES, ids=str)
directions = pytest.mark.parametrize(
    ("exclusive", "reverse"), [(False, False), (True, False), (False, True), (True, True)]
)


def integers(shape, dtype, device, high=5):
    generator = torch.Generator(device).manual_seed(3)
    values = torch.randint(0, high, shape, generator=generator, device=device)
    return values.to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@directions
@shapes
def test_cumsum(device, shape, dim, exclusive, reverse, dtype):
    x = make(*shape, dtype=dtype, device=device)
    y = fusedops.cumsum(x, dim, exclusive=exclusive, reverse=reverse)
    exact = reference.cumsum(x.double(), dim, exclusive, reverse)
    assert y.dtype is dtype
    assert_accurate(y, reference.cumsum(x, dim, exclusive, reverse), exact)


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@directions
@shapes
def test_cumprod(device, shape, dim, exclusive, reverse, dtype):
    length = max(shape[dim] if shape else 1, 1)
    deviation = 0.3 / math.sqrt(length)  # products stay near 1
    x = (1 + deviation * make(*shape, dtype=torch.float64, device=device)).to(dtype)
    y = fusedops.cumprod(x, dim, exclusive=exclusive, reverse=reverse)
    exact = reference.cumprod(x.double(), dim, exclusive, reverse)
    # A product of n factors is right to n roundings at worst, whoever makes it
    bound = length * torch.finfo(torch.float32).eps + 2 * torch.finfo(dtype).eps
    if dtype is torch.float64:
        bound = length * torch.finfo(dtype).eps
    assert (((y.double() - exact) / exact).abs() <= bound).all()


@pytest.mark.parametrize("dtype", INTEGERS, ids=name)
@directions
@pytest.mark.parametrize(
    ("shape", "dim"), [((100, 7), 1), ((3, 40001), 1), ((700, 5), 0), ((500, 64), 0)], ids=str
)
def test_integers_sum_and_multiply_in_int64(device, shape, dim, exclusive, reverse, dtype):
    x = integers(shape, dtype, device)
    for scan in ("cumsum", "cumprod"):
        y = getattr(fusedops, scan)(x, dim, exclusive=exclusive, reverse=reverse)
        expected = getattr(reference, scan)(x, dim, exclusive, reverse)
        assert y.dtype is torch.int64
        assert torch.equal(y, expected), scan


@pytest.mark.parametrize("dtype", [*DTYPES, *INTEGERS], ids=name)
@shapes
def test_extremes(device, shape, dim, dtype):
    if dtype.is_floating_point:
        x = make(*shape, dtype=dtype, device=device).mul(4).round().div(4)
        x = torch.where(make(*shape, dtype=torch.float32, device=device, seed=9) > 3, math.nan, x)
    else:
        x = integers(shape, dtype, device)
    x = x.to(dtype)
    for scan in ("cummax", "cummin"):
        values, indices = getattr(fusedops, scan)(x, dim)
        expected, positions = getattr(torch, scan)(x, dim)
        torch.testing.assert_close(values, expected, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(indices, positions), scan


def test_extremes_of_infinities(device):
    x = torch.tensor([-math.inf, -math.inf, 1.0, math.nan, math.inf, math.nan], device=device)
    values, indices = fusedops.cummax(x)
    assert indices.tolist() == [0, 1, 2, 3, 3, 5]
    assert values[:3].tolist() == [-math.inf, -math.inf, 1.0]
    assert values[3:].isnan().all()
    assert fusedops.cummin(x)[1].tolist() == [0, 1, 1, 3, 3, 5]


@pytest.mark.parametrize("reverse", [False, True])
def test_strides(device, reverse):
    wide = make(6, 20, 3001, dtype=torch.float32, device=device)
    views = {
        "row stride": (wide[:, 3, :2500], 1),
        "offset": (wide.view(-1)[5:9000], 0),
        "short rows apart": (wide[0, :, :100], 1),
        "columns": (wide[:, :, 7:107], 1),
        "outer dimensions do not merge": (wide[:, ::2, :600], 2),
        "transposed": (wide[0].t(), 1),
        "expanded": (wide[:1, 0].expand(5, 3001), 1),
    }
    for what, (x, dim) in views.items():
        y = fusedops.cumsum(x, dim, reverse=reverse)
        exact = reference.cumsum(x.double(), dim, reverse=reverse)
        assert_accurate(y, reference.cumsum(x, dim, reverse=reverse), exact, what)
        assert y.is_contiguous(), what


def test_dtype_converts_first(device):
    x = torch.full((1000,), 200, dtype=torch.uint8, device=device)
    y = fusedops.cumsum(x, dtype=torch.float32)
    assert y.dtype is torch.float32
    assert y[-1].item() == 200_000.0


@pytest.mark.parametrize("scan", ["cumsum", "cumprod", "cummax", "cummin"])
@pytest.mark.parametrize(("shape", "dim"), [((4, 5), 1), ((4, 5), 0), ((), 0), ((0, 3), 1)])
def test_gradients(device, scan, shape, dim):
    x = make(*shape, dtype=torch.float64, device=device).requires_grad_()
    dy = make(*shape, dtype=torch.float64, device=device, seed=2)

    def of(module):
        y = getattr(module, scan)(x, dim)
        y = y[0] if isinstance(y, tuple) else y
        return torch.autograd.grad(y, x, dy)[0]

    torch.testing.assert_close(of(fusedops), of(torch))


@directions
@pytest.mark.parametrize("zeros", [0, 1, 2])
def test_cumprod_gradient_at_zeros(device, zeros, exclusive, reverse):
    x = make(3, 7, dtype=torch.float64, device=device)
    x[1, 2], x[1, 5] = x[1, 2] * (zeros < 1), x[1, 5] * (zeros < 2)
    x[2, 0] *= zeros == 0
    x.requires_grad_()
    dy = make(3, 7, dtype=torch.float64, device=device, seed=2)
    y = fusedops.cumprod(x, exclusive=exclusive, reverse=reverse)
    expected = reference.cumprod(x, -1, exclusive, reverse)
    torch.testing.assert_close(y, expected)
    (ours,), (theirs,) = (torch.autograd.grad(t, x, dy) for t in (y, expected))
    torch.testing.assert_close(ours, theirs)


@directions
@pytest.mark.parametrize("scan", ["cumsum", "cumprod"])
@pytest.mark.parametrize("value", [0.0, 3.0])
def test_gradients_of_a_scalar(device, scan, value, exclusive, reverse):
    x = torch.tensor(value, dtype=torch.float64, device=device, requires_grad=True)
    for create_graph in (False, True):
        y = getattr(fusedops, scan)(x, 0, exclusive=exclusive, reverse=reverse)
        (dx,) = torch.autograd.grad(y, x, create_graph=create_graph)
        assert dx.shape == ()
        assert dx.item() == (0 if exclusive else 1)


def test_gradgradcheck(device):
    x = make(2, 4, dtype=torch.float64, device=device).requires_grad_()
    for scan in (fusedops.cumsum, fusedops.cumprod, lambda t: fusedops.cummax(t)[0]):
        assert torch.autograd.gradcheck(scan, x)
        assert torch.autograd.gradgradcheck(scan, x)


def test_cummax_gradient_of_long_runs(device):
    x = torch.zeros(3, 5000, device=device).requires_grad_()
    with torch.no_grad():
        x[:, 0], x[1, 4000] = 1, 2
    values, _ = fusedops.cummax(x)
    (dx,) = torch.autograd.grad(values.sum(), x)
    expected = torch.zeros_like(x)
    expected[0, 0] = expected[2, 0] = 5000
    expected[1, 0], expected[1, 4000] = 4000, 1000
    assert torch.equal(dx, expected)


def test_torch_func(device):
    x = make(3, 6, dtype=torch.float64, device=device)
    torch.testing.assert_close(torch.func.vmap(fusedops.cumsum)(x), x.cumsum(-1))
    jacobian = torch.func.jacfwd(lambda t: fusedops.cumprod(t, -1))(x)
    torch.testing.assert_close(jacobian, torch.func.jacfwd(lambda t: t.cumprod(-1))(x))


def test_compiles(device):
    def step(x):
        return fusedops.cumsum(x.sin(), 0).sum() + fusedops.cummax(x)[0].sum()

    x = make(20, 30, dtype=torch.float32, device=device).requires_grad_()
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    (expected,), (got,) = (torch.autograd.grad(f(x), x) for f in (step, compiled))
    torch.testing.assert_close(got, expected)


def test_errors(device):
    x = torch.ones(3, 4, device=device)
    with pytest.raises(TypeError, match=r"^cumsum: x must be a Tensor; got list$"):
        fusedops.cumsum([1.0])
    for scan in ("cumsum", "cumprod", "cummax", "cummin"):
        for dim in (2, -3, 2**40):
            for tensor in (x, x.to("meta")):
                text = f"^{scan}: dim must be from -2 to 1; got {dim}$"
                with pytest.raises(IndexError, match=text):
                    getattr(fusedops, scan)(tensor, dim)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int64], ids=name)
@pytest.mark.parametrize("shape", [(20_000_003,), (3, 9_000_001)], ids=str)
def test_long_rows_of_small_integers(shape, dtype):
    """Sums of at most 2^24, whose bits no order changes."""
    x = torch.randint(-1, 2, shape, device="cuda")
    for reverse, exclusive in itertools.product((False, True), repeat=2):
        y = fusedops.cumsum(x.to(dtype), reverse=reverse, exclusive=exclusive)
        assert torch.equal(y, reference.cumsum(x, -1, exclusive, reverse).to(dtype))
    values, indices = fusedops.cummax(x.to(dtype))
    expected, positions = torch.cummax(x, -1)
    assert torch.equal(values.long(), expected)
    assert torch.equal(indices, positions)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [*DTYPES, torch.uint8, torch.int64], ids=name)
@pytest.mark.parametrize("shape", [(64, 17, 3001), (31, 45, 4500), (3, 34, 180_224)], ids=str)
def test_columns_that_fill_the_gpu(shape, dtype):
    """Values of small integers, whose sums no order changes; a thread takes all rows."""
    x = torch.randint(0, 2, shape, device="cuda")
    for reverse, exclusive in itertools.product((False, True), repeat=2):
        y = fusedops.cumsum(x.to(dtype), 1, reverse=reverse, exclusive=exclusive)
        assert torch.equal(y.long(), reference.cumsum(x, 1, exclusive, reverse))
    values, indices = fusedops.cummax(x.to(dtype), 1)
    expected, positions = torch.cummax(x, 1)
    assert torch.equal(values.long(), expected)
    assert torch.equal(indices, positions)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=name)
@pytest.mark.parametrize(("shape", "dim"), [((1 << 24,), 0), ((3, 1 << 21), 1), ((1 << 18, 16), 0)])
def test_repeats_bitwise(shape, dim, dtype):
    x = make(*shape, dtype=dtype, device="cuda")
    first = fusedops.cumsum(x, dim), fusedops.cumprod(x, dim)
    for _ in range(20):
        assert torch.equal(fusedops.cumsum(x, dim), first[0])
        assert torch.equal(fusedops.cumprod(x, dim), first[1])


@pytest.mark.gpu
@pytest.mark.slow
def test_more_than_2_32_bytes():
    n = 2**32 + 17
    x = torch.ones(n, dtype=torch.uint8, device="cuda")
    y = fusedops.cumsum(x)
    assert y[-1].item() == n
    assert y[2**31 + 5].item() == 2**31 + 6
    del y
    x.zero_()
    x[n - 3] = 1
    values, indices = fusedops.cummax(x)
    assert values[n - 4 :].tolist() == [0, 1, 1, 1]
    assert indices[n - 4 :].tolist() == [n - 4, n - 3, n - 3, n - 3]
    del values, indices
    columns = x[: n - n % 4].view(-1, 4)
    assert fusedops.cumsum(columns, 0)[-1].sum().item() == columns.count_nonzero().item()


@pytest.mark.gpu
@pytest.mark.slow
def test_more_strips_than_a_grid_has_blocks():
    x = torch.empty(2**31, 2, 2, dtype=torch.float16, device="cuda")
    with pytest.raises(RuntimeError, match=r"^cumsum: x of shape .* along dim 1 needs \d+ blocks"):
        fusedops.cumsum(x, 1)
