"""Reductions: values per dtype against float64, layouts, special values, gradients, repetition.

The shapes reach every kernel of reduce_plan.h (tests/reduce/test_reduce_plan.py pins which).
"""

from __future__ import annotations

import itertools
import math
import re
from pathlib import Path

import pytest
import torch

import fusedops
from fusedops._core.reduction import CODE, GRADIENTS, REDUCTIONS, wide_dtype
from fusedops.reference import reduce as reference
from util import DTYPES, LAYOUTS, assert_accurate, make, name

OPS = torch.ops.fusedops
FLOATING = ("sum", "mean", "prod", "amax", "amin", "norm_1", "norm_2", "norm_inf", "logsumexp")
EXACT = ("amax", "amin", "norm_inf", "count_nonzero", "any", "all", "argmax", "argmin")
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool)

# (shape, reduced dimensions)
SHAPES = [
    ((), ()),
    ((1,), (0,)),
    ((7,), (0,)),
    ((5, 1), (1,)),
    # rows: short, through shared memory, a warp, a block, several blocks
    ((300, 8), (1,)),
    ((129, 64), (1,)),
    ((45, 192), (1,)),
    ((301, 4), (1,)),
    ((301, 2), (1,)),
    ((1000, 17), (1,)),
    ((100, 30), (1,)),
    ((70, 129), (1,)),
    ((33, 1023), (1,)),
    ((33, 2047), (1,)),
    ((50, 4104), (1,)),
    ((3, 40001), (1,)),
    ((2, 700001), (1,)),
    ((1, 2000000), (0, 1)),
    # columns: vectors, folded rows, element by element, several blocks
    ((1000, 64), (0,)),
    ((5000, 4), (0,)),
    ((3001, 3), (0,)),
    ((2, 1001), (0,)),
    ((3, 4096), (0,)),
    ((200000, 8), (0,)),
    ((4099, 264), (0,)),
    # a dimension in the middle, several dimensions
    ((9, 50, 24), (1,)),
    ((9, 50, 7), (1,)),
    ((640, 3, 5), (1,)),
    ((8, 6, 7, 5), (0, 2, 3)),
    ((8, 6, 7, 5), (1, 3)),
    ((16, 6, 32, 32), (0, 2, 3)),
    ((4, 3, 5, 2, 6), (0, 2, 4)),
]


def shapes(device):
    """SHAPES, without the large ones on a CPU."""
    return [s for s in SHAPES if device != "cpu" or math.prod(s[0]) <= 200000]


def ours(kind, x, dims, keepdim=False, wide=False):
    """The op itself."""
    mask = sum(1 << d for d in dims)
    return OPS.reduce(x, CODE[kind], mask, keepdim, wide)


def values(kind, shape, dims, dtype, device):
    """Inputs whose result is neither infinite nor lost in rounding."""
    x = make(*shape, dtype=torch.float32, device=device)
    count = math.prod(shape[d] for d in dims)
    if kind == "prod":
        # 1, -1 and about six of 2 and 0.5: products are exact
        rare = x.abs() > math.sqrt(2) * torch.erfinv(torch.tensor(1 - min(0.3, 6 / count))).item()
        power = make(*shape, dtype=torch.float32, device=device, seed=9).sign()
        x = torch.where(rare, x.sign() * 2**power, x.sign())
    if kind in ("sum", "norm_1"):
        x = x * min(1, 10000 / count)
    return x.to(dtype)


def close(y, expected, rtol, what, atol=0.0):
    """assert_close that says what was compared."""
    torch.testing.assert_close(y, expected, rtol=rtol, atol=atol, msg=lambda m: f"{what}: {m}")


# ---- the tables ----


def test_tables_are_those_of_the_headers():
    common = Path(__file__).parents[2] / "csrc" / "common"
    if not (common / "reduction.h").exists():
        pytest.skip("needs the sources")
    for header, table in [("reduction.h", REDUCTIONS), ("reduce_gradient.h", GRADIENTS)]:
        text = (common / header).read_text()
        codes = {n.lower(): int(c) for n, c in re.findall(r"^\s*k(\w+) = (\d+),", text, re.M)}
        assert codes == {n.replace("_", ""): code for code, n in enumerate(table)}
        assert re.search(rf"kNum\w+ = {len(table)};", text)


# ---- values ----


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@pytest.mark.parametrize("kind", FLOATING)
def test_matches_float64(device, kind, dtype):
    for shape, dims in shapes(device):
        x = values(kind, shape, dims, dtype, device)
        exact = reference.reduce(x.double(), kind, dims)
        torchs = reference.reduce(x, kind, dims)
        y = ours(kind, x, dims)
        what = f"{kind} {shape} over {dims}"
        assert y.dtype is dtype, what
        if kind in EXACT:
            assert torch.equal(y, torchs), what
        elif dtype is torch.float64:
            close(y, exact, 1e-12, what, 1e-11)
        elif kind == "prod":
            assert torch.equal(y.double(), exact), what
        else:
            assert_accurate(y, torchs, exact, what)
        wide = ours(kind, x, dims, wide=True)
        assert wide.dtype is wide_dtype(dtype)
        assert torch.equal(wide.to(dtype), y), what


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@pytest.mark.parametrize("kind", ["argmax", "argmin", "count_nonzero", "any", "all"])
def test_indices_and_counts(device, kind, dtype):
    for shape, dims in shapes(device):
        x = make(*shape, dtype=dtype, device=device).mul_(2).round_()  # ties and zeros
        y, expected = ours(kind, x, dims), reference.reduce(x.cpu(), kind, dims)
        if kind.startswith("arg"):
            rows = reference._as_rows(x.cpu(), dims) if dims else x.cpu().unsqueeze(-1)
            best = rows.amax(-1) if kind == "argmax" else rows.amin(-1)
            expected = (rows == best.unsqueeze(-1)).byte().argmax(-1)  # the first of them
        assert y.dtype is expected.dtype
        assert torch.equal(y.cpu(), expected), f"{shape} over {dims}"


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@pytest.mark.parametrize("correction", [1, 0, 2.5])
def test_variance(device, dtype, correction):
    for shape, dims in shapes(device):
        count = math.prod(shape[d] for d in dims)
        if count <= correction:
            continue
        x = make(*shape, dtype=dtype, device=device) + 3
        exact = reference.var(x.double(), dims, correction)
        torchs = torch.var(x, dims or None, correction=correction).reshape(exact.shape)
        assert_accurate(fusedops.var(x, dims, correction=correction), torchs, exact, f"{shape}")
        y = fusedops.std(x, dims, correction=correction)
        assert_accurate(y, torchs.sqrt(), exact.sqrt(), f"std {shape}")
        _, mean = OPS.var_mean(x, sum(1 << d for d in dims), 1.0, False, False, False)
        assert_accurate(mean, x.mean(dims), x.double().mean(dims), f"mean {shape}")


def test_variance_is_stable(device):
    """A large mean does not eat the digits of the deviations."""
    x = make(3, 100000, dtype=torch.float32, device=device) + 10000
    exact = torch.var(x.double(), 1)
    torch.testing.assert_close(fusedops.var(x, 1).double(), exact, rtol=1e-4, atol=0)
    assert torch.equal(
        fusedops.var(torch.full((4, 999), 7.0, device=device), 1).cpu(), torch.zeros(4)
    )


@pytest.mark.parametrize("dtype", INTEGERS, ids=name)
@pytest.mark.parametrize("kind", ["sum", "prod", *EXACT])
def test_integers(device, kind, dtype):
    if kind == "norm_inf":
        pytest.skip("norms are of floating elements")
    for shape, dims in shapes(device):
        low, high = (0, 2) if dtype in (torch.uint8, torch.bool) else (-3, 4)
        x = torch.randint(low, high, shape, device="cpu").to(dtype)
        x = x.masked_fill(x == 0, 1) if kind == "prod" else x
        as_int = x.to(torch.int64) if kind not in ("amax", "amin") or dtype is torch.bool else x
        if kind.startswith("arg"):
            rows = reference._as_rows(as_int, dims) if dims else as_int.unsqueeze(-1)
            best = rows.amax(-1) if kind == "argmax" else rows.amin(-1)
            expected = (rows == best.unsqueeze(-1)).byte().argmax(-1)
        else:
            expected = reference.reduce(as_int, kind, dims)
        if kind in ("amax", "amin"):
            expected = expected.to(dtype)
        y = ours(kind, x.to(device), dims)
        assert y.dtype is expected.dtype
        assert torch.equal(y.cpu(), expected), f"{shape} over {dims}"


def test_integer_extremes(device):
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64):
        info = torch.iinfo(dtype)
        x = torch.tensor([[info.min, 3, info.max], [info.min] * 3, [info.max] * 3], dtype=dtype)
        x = x.to(device)
        for kind in ("amax", "amin", "sum", "count_nonzero"):
            assert torch.equal(ours(kind, x, (1,)), reference.reduce(x, kind, (1,)))
        assert ours("argmax", x, (1,)).tolist() == [2, 0, 0]
        assert ours("argmin", x, (1,)).tolist() == [0, 0, 0]


def test_fp16_sums_do_not_overflow(device):
    x = torch.full((4, 100000), 1.0, dtype=torch.float16, device=device)
    assert torch.all(ours("mean", x, (1,)) == 1)
    assert torch.all(ours("sum", x, (1,), wide=True) == 100000)
    assert torch.all(fusedops.sum(x, dtype=torch.float64) == 400000)


@pytest.mark.parametrize("kind", ["sum", "amax", "argmin", "logsumexp", "norm_2"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(device, kind, layout):
    for shape, dims in itertools.product([(37, 64), (5, 257), (300, 3)], [(0,), (1,), (0, 1)]):
        plain = make(*shape, dtype=torch.float32, device=device)
        x = LAYOUTS[layout](plain)
        expected = reference.reduce(x.double(), kind, dims)
        y = ours(kind, x, dims)
        assert y.is_contiguous()
        torch.testing.assert_close(y.to(expected.dtype), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("kind", ["sum", "argmax", "amin"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int8], ids=name)
def test_permuted_dimensions(device, kind, dtype):
    base = (make(4, 6, 5, 8, dtype=torch.float32, device=device) * 3).to(dtype)
    views = [base.permute(*p) for p in itertools.permutations(range(4))][::3]
    views += [base[:, ::2], base[:, 1:, :, :4], base[..., 3:4], base[:, :, None, :, None]]
    for x in views:
        for r in range(1, x.dim() + 1):
            for dims in list(itertools.combinations(range(x.dim()), r))[::2]:
                expected = reference.reduce(x.cpu().double(), kind, dims)
                y = ours(kind, x, dims).cpu()
                rtol = 1e-2 if dtype is torch.bfloat16 else 1e-6
                torch.testing.assert_close(y.double(), expected.double(), rtol=rtol, atol=0.05)


def test_many_dimensions(device):
    """More alternating dimensions than a kernel takes: reduced from a copy."""
    x = torch.arange(3**9, device=device, dtype=torch.float32).reshape([3] * 9)
    x = x.permute(8, 1, 6, 3, 4, 5, 2, 7, 0)[::2, :, ::2, :, ::2, :, ::2]
    for dims in [(0, 2, 4, 6, 8), (1, 3, 5, 7), (0, 1, 4, 5, 8)]:
        assert torch.equal(ours("sum", x, dims), x.sum(dims))
        assert torch.equal(ours("argmax", x, dims), reference.reduce(x, "argmax", dims))


# ---- special values ----


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_nan_and_infinity(device, dtype):
    nan, inf = math.nan, math.inf
    rows = [
        [1, nan, 3, nan],
        [nan, inf, -inf, 0],
        [-inf, -inf, -inf, -inf],
        [inf, 1, 2, inf],
        [0, -0.0, 0, -0.0],
    ]
    for width, dims in itertools.product([4, 640], [(1,), (0,)]):
        x = torch.tensor(rows, dtype=dtype, device=device).repeat(1, width // 4)
        x = x.t().contiguous() if dims == (0,) else x
        for kind in ("amax", "amin", "sum", "norm_inf", "logsumexp", "norm_1"):
            expected = reference.reduce(x, kind, dims)
            torch.testing.assert_close(ours(kind, x, dims), expected, equal_nan=True)
        assert ours("argmax", x, dims).tolist() == [1, 0, 0, 0, 0]
        assert ours("argmin", x, dims).tolist() == [1, 0, 0, 1, 0]
        assert ours("count_nonzero", x, dims).tolist() == [width, 3 * width // 4, width, width, 0]
        assert ours("any", x, dims).tolist() == [True, True, True, True, False]
        assert ours("all", x, dims).tolist() == [True, False, True, True, False]


def test_a_late_nan_wins(device):
    x = torch.zeros(3, 500000, device=device)
    x[1, 499999] = math.nan
    x[2, 1000], x[2, 400000] = 1, 1
    assert ours("argmax", x, (1,)).tolist() == [0, 499999, 1000]
    assert ours("argmax", x.t().contiguous(), (0,)).tolist() == [0, 499999, 1000]
    assert torch.isnan(ours("amin", x, (1,))).tolist() == [False, True, False]


def test_logsumexp_of_large_values(device):
    x = torch.tensor([[1000.0, 1000.0], [-1000.0, -1001.0], [88.0, -88.0]], device=device)
    torch.testing.assert_close(ours("logsumexp", x, (1,)), x.logsumexp(1))


def test_empty(device):
    x = torch.empty(3, 0, 2, device=device)
    for kind in (
        "sum",
        "mean",
        "prod",
        "norm_1",
        "norm_2",
        "logsumexp",
        "any",
        "all",
        "count_nonzero",
    ):
        expected = reference.reduce(x, kind, (1,))
        torch.testing.assert_close(ours(kind, x, (1,)), expected, equal_nan=True)
        assert ours(kind, x, (0,)).shape == (0, 2)
    assert torch.isnan(fusedops.var(x, 1)).all()
    for kind in ("amax", "amin", "norm_inf", "argmax", "argmin"):
        assert ours(kind, x, (0,)).shape == (0, 2)
        text = r"x must have at least one element along the reduced dimensions; got shape \(3, 0,"
        with pytest.raises(RuntimeError, match=text):
            ours(kind, x, (1,))


# ---- the Python face ----


def test_extrema_of_nothing_raise_torchs_error(device):
    x = torch.ones(3, 0, 2, device=device)
    for kind in ("amax", "amin", "argmax", "argmin"):
        for function in (getattr(torch, kind), getattr(fusedops, kind)):
            with pytest.raises(IndexError, match=kind):
                function(x, dim=1)


def test_signatures_follow_torch(device):
    x = make(4, 5, 6, dtype=torch.float32, device=device)
    for kind in ("sum", "mean", "amax", "amin", "std", "var", "logsumexp", "count_nonzero"):
        ours_, torchs = getattr(fusedops, kind), getattr(torch, kind)
        for dim in [0, -1, (0, 2), (1,), [2, 0]]:
            torch.testing.assert_close(ours_(x, dim), torchs(x, dim))
        if kind != "count_nonzero":
            torch.testing.assert_close(ours_(x, 1, keepdim=True), torchs(x, 1, keepdim=True))
    for kind in ("argmax", "argmin", "prod", "any", "all"):
        ours_, torchs = getattr(fusedops, kind), getattr(torch, kind)
        torch.testing.assert_close(ours_(x), torchs(x))
        torch.testing.assert_close(ours_(x, 1, True), torchs(x, 1, True))
        torch.testing.assert_close(ours_(x, ()), torchs(x))
    for p in (1, 2, math.inf, -math.inf):
        torch.testing.assert_close(fusedops.norm(x, p, 1), torch.linalg.vector_norm(x, p, 1))
    assert fusedops.sum(torch.tensor(3.0, device=device), -1) == 3


def test_dtype_argument(device):
    x = make(6, 8, dtype=torch.float16, device=device, scale=3)
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32):
        for kind in ("sum", "prod"):
            y = getattr(fusedops, kind)(x, 1, dtype=dtype)
            expected = getattr(torch, kind)(x, 1, dtype=dtype)
            torch.testing.assert_close(y, expected, rtol=2e-2, atol=1e-2)
    ints = torch.arange(-20, 20, device=device).reshape(4, 10)
    for dtype in (torch.float32, torch.float64, torch.int32, torch.uint8):
        assert torch.equal(fusedops.sum(ints, 1, dtype=dtype), ints.sum(1, dtype=dtype))
    torch.testing.assert_close(fusedops.mean(ints, 1, dtype=torch.float32), ints.float().mean(1))


@pytest.mark.gpu
def test_autocast():
    x = make(6, 8, dtype=torch.float16, device="cuda")
    with torch.autocast("cuda"):
        for kind in ("sum", "prod"):
            assert getattr(fusedops, kind)(x, 1).dtype is getattr(torch, kind)(x, 1).dtype
        assert fusedops.norm(x, 2, 1).dtype is torch.norm(x, 2, 1).dtype


def test_errors(device):
    x = torch.ones(2, 3, device=device)
    with pytest.raises(TypeError, match="sum: x must be a Tensor; got list"):
        fusedops.sum([1.0])
    with pytest.raises(IndexError, match=r"amax: dim must be from -2 to 1 for x with 2 dim.*got 2"):
        fusedops.amax(x, 2)
    with pytest.raises(RuntimeError, match=r"sum: dim must not name a dimension twice; got \(0, "):
        fusedops.sum(x, (0, -2))
    with pytest.raises(ValueError, match="norm: p must be 1, 2, inf or -inf; got 3"):
        fusedops.norm(x, 3)
    with pytest.raises(ValueError, match=r"bias_grad: dtype must be None or torch.float32; got"):
        fusedops.bias_grad(x, dtype=torch.float64)
    for to in (device, "meta"):
        y = x.to(to)
        for kind in ("mean", "norm_2", "logsumexp"):
            op = kind.split("_")[0]
            text = f"^{op}: x must be float16, bfloat16, float32 or float64; got int64$"
            with pytest.raises(RuntimeError, match=text):
                ours(kind, y.long(), (1,))
        with pytest.raises(RuntimeError, match=r"sum: x must be .* int64 or bool; got complex64$"):
            ours("sum", y.to(torch.complex64), (1,))
        with pytest.raises(RuntimeError, match=r"^reduce: reduction must be a code .* 15; got 16$"):
            OPS.reduce(y, 16, 0, False, False)
        text = r"^sum: dims must be a bit mask of the 2 dimension\(s\) of x; got 4$"
        with pytest.raises(RuntimeError, match=text):
            OPS.reduce(y, 0, 4, False, False)
        text = "extremum_count: reduction must be amax, amin or an infinity norm; got sum"
        with pytest.raises(RuntimeError, match=text):
            OPS.extremum_count(y, 0, 1, False)


def test_backward_op_errors(device):
    x = torch.ones(2, 3, dtype=torch.float16, device=device)
    good = torch.ones(2, 1, device=device)
    cases = [
        ((x, good, None, 6), "gradient must be a code from 0 to 5; got 6"),
        ((x, good, None, 2), "shift must be given for gradient code 2; got None"),
        ((x, good.half(), None, 0), "scale must have dtype float32 for x of float16; got float16"),
        ((x, good[:, 0], None, 0), r"scale must have the shape of x \(2, 3\) or 1 in each dimen"),
        ((x, good, good[:1], 0), r"shift must have shape \(2, 1\) like scale; got \(1, 1\)"),
    ]
    for arguments, text in cases:
        for to in (device, "meta"):
            moved = [a.to(to) if isinstance(a, torch.Tensor) else a for a in arguments]
            with pytest.raises(RuntimeError, match=f"^reduce_backward: {text}"):
                OPS.reduce_backward(*moved)


# ---- bias_grad ----


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@pytest.mark.parametrize("shape", [(40, 24), (1000, 7), (3, 50, 65), (9,), (0, 5), (3, 0)], ids=str)
def test_bias_grad(device, dtype, shape):
    dy = make(*shape, dtype=dtype, device=device)
    rows = dy.reshape(math.prod(shape[:-1]), shape[-1])
    y = fusedops.bias_grad(dy)
    assert y.shape == shape[-1:]
    assert_accurate(y, rows.sum(0), rows.double().sum(0))
    wide = fusedops.bias_grad(dy, dtype=wide_dtype(dtype))
    assert torch.equal(wide.to(dtype), y)
    sliced = make(50, 40, dtype=dtype, device=device)[:, 3:17]
    torch.testing.assert_close(fusedops.bias_grad(sliced), fusedops.bias_grad(sliced.contiguous()))
    leaf = dy.clone().requires_grad_()
    fusedops.bias_grad(leaf).sum().backward()
    assert torch.all(leaf.grad == 1)


# ---- GPU only ----


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["sum", "norm_2", "logsumexp", "argmax", "prod"])
def test_repeats_bitwise(kind):
    for shape, dims in [((1 << 22,), (0,)), ((1 << 18, 24), (0,)), ((300, 20001), (1,))]:
        x = values(kind, shape, dims, torch.bfloat16, "cuda")
        first = ours(kind, x, dims, wide=True)
        for _ in range(20):
            assert torch.equal(ours(kind, x, dims, wide=True), first)


@pytest.mark.gpu
@pytest.mark.slow
def test_more_than_2_32_bytes():
    n = 2**32 + 17
    x = torch.ones(n, dtype=torch.int8, device="cuda")
    x[-1] = 3
    assert ours("sum", x, (0,)).item() == n + 2
    assert ours("argmax", x, (0,)).item() == n - 1
    assert ours("count_nonzero", x, (0,)).item() == n
    assert ours("amin", x, (0,)).item() == 1
    rows = x[: n // 3 * 3].view(-1, 3)
    assert ours("sum", rows, (1,)).sum().item() == n // 3 * 3 + (2 if n % 3 == 0 else 0)
    assert ours("sum", rows, (0,)).sum().item() == n // 3 * 3 + (2 if n % 3 == 0 else 0)
    wide = x[: 2**32].view(2, -1)
    assert torch.all(ours("argmin", wide, (0,)) == 0)
    del x, rows, wide
    half = torch.ones(2**31 + 9, dtype=torch.bfloat16, device="cuda")
    assert ours("sum", half, (0,), wide=True).item() == pytest.approx(2**31 + 9, rel=1e-6)
    assert fusedops.var(half).item() == 0
    leaf = half.requires_grad_()
    fusedops.norm(leaf, 2).backward()
    assert leaf.grad[-1].item() == pytest.approx(2**-15.5, rel=1e-2)


def test_mean_of_integers_compiles(device):
    x = torch.arange(6, device=device).reshape(2, 3)
    compiled = torch.compile(
        lambda x: fusedops.mean(x, 1, dtype=torch.float32), fullgraph=True, backend="eager"
    )
    assert compiled(x).tolist() == [1.0, 4.0]


def test_dim_of_other_types(device):
    x = make(2, 3, dtype=torch.float32, device=device)
    assert torch.equal(fusedops.sum(x, torch.tensor([1]).numpy()[0]), fusedops.sum(x, 1))
    for dim in (1.0, [1.0], "a"):
        with pytest.raises(TypeError, match="sum: dim must be an int or a sequence of ints; got"):
            fusedops.sum(x, dim)


@pytest.mark.parametrize("shape", [(3, 40), (3, 100_000), (4000, 3)])
def test_variance_of_a_mean_whose_square_overflows(device, shape):
    x = torch.full(shape, 1e20, device=device)
    for dim in (0, 1, None):
        for kind in (fusedops.var, fusedops.std):
            assert torch.isfinite(kind(x, dim)).all()
