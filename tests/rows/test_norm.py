"""layer_norm, rms_norm and their modules: values, gradients, residuals, dtypes, errors."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import fusedops
from fusedops import reference
from util import DTYPES, HALVES, LAYOUTS, assert_accurate, make, name, poisoned

every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=name)
every_norm = pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
# One per team: lanes of a warp, a warp, a block; partial first and last chunks.
LENGTHS = (1, 2, 7, 8, 33, 64, 255, 256, 1000, 1023, 1024, 1025, 4097)
# Clusters, and rows that no cluster holds.
LONG = (16384, 20001, 50257, 131072, 140001)
# Enough data that threads hold several chunks: of a warp, a block, a block with shared memory.
MUCH = [
    *((40000, 40), (6001, 256), (5000, 300), (3001, 512), (1500, 1001), (1300, 1024), (300, 4097)),
    *((240, 5000), (100, 12345), (90, 16384), (70, 20000), (71, 20001), (40, 50256), (40, 50257)),
    *((40, 65536), (40, 65537), (40, 67000)),
]
MANY = (
    *((20011, n) for n in (3, 7, 40, 256, 1000, 1023, 4096)),
    *((888, 119), (600, 20), (1024, 128)),  # teams of a warp that have a row each
    *((2003, 4097), (2003, 5000), (1300, 8192)),
    *((700, 16384), (700, 20001), (300, 20002), (300, 32768), (150, 50257), (150, 65536)),
)
# Small tensors: a block or a cluster for a row, 1 to 16 rows at once for column sums; blocks of two
# warps for rows that one warp holds where there are more.
FEW = (
    *((1, 1), (1, 255), (1, 32768), (1, 131072), (2, 4097), (3, 20001), (5, 8192), (16, 5000)),
    *((300, 120), (510, 196), (384, 512)),
)
EPS = 1e-3  # large enough that rows of one element are well conditioned


def inputs(rows, n, dtype, device, parameter_dtype=None):
    """x, weight, bias, dy."""
    weight, bias = (make(n, dtype=parameter_dtype or dtype, device=device, seed=s) for s in (1, 2))
    x = make(rows, n, dtype=dtype, device=device) + 0.5
    return x, weight, bias, make(rows, n, dtype=dtype, device=device, seed=3)


def call(module, norm, x, weight, bias, **options):
    """One of the norms; rms_norm drops the bias."""
    shape = tuple(weight.shape)
    if norm == "layer_norm":
        return module.layer_norm(x, shape, weight, bias, eps=EPS, **options)
    return module.rms_norm(x, shape, weight, eps=EPS, **options)


def check(norm, x, weight, bias, dy):
    """Values and gradients against float64, by torch's own error."""
    tensors = (x, weight, bias)
    ours = [t.detach().clone().requires_grad_() for t in tensors]
    # torch has no mixed rms_norm kernel: its own error in x's dtype
    theirs = [t.detach().to(x.dtype).requires_grad_() for t in tensors]
    exact = [t.detach().double().requires_grad_() for t in tensors]
    with poisoned():
        y = call(fusedops, norm, *ours)
        y.backward(dy)
    torch_y, exact_y = call(F, norm, *theirs), call(reference, norm, *exact)
    torch_y.backward(dy)
    exact_y.backward(dy.double())
    assert y.dtype is x.dtype
    assert_accurate(y.detach(), torch_y.detach(), exact_y.detach(), norm)
    names = ("dx", "dweight", "dbias")[: 2 if norm == "rms_norm" else 3]
    for what, a, b, c in zip(names, ours, theirs, exact, strict=False):
        assert a.grad.dtype is a.dtype
        if what == "dx" and x.shape[-1] == 1:
            continue  # zero but for rounding
        assert_accurate(a.grad, b.grad, c.grad, what)


@every_dtype
@pytest.mark.parametrize("n", LENGTHS)
@every_norm
def test_rows(device, norm, n, dtype):
    check(norm, *inputs(19, n, dtype, device))


@every_dtype
@pytest.mark.parametrize(("rows", "n"), FEW)
@every_norm
def test_few_rows(device, norm, rows, n, dtype):
    check(norm, *inputs(rows, n, dtype, device))


@pytest.mark.gpu
@every_dtype
@pytest.mark.parametrize("n", LONG)
@every_norm
def test_long_rows(norm, n, dtype):
    check(norm, *inputs(9, n, dtype, "cuda"))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=name)
@pytest.mark.parametrize(("rows", "n"), MANY)
@every_norm
def test_many_rows(norm, rows, n, dtype):
    """More rows than teams: every team walks over several."""
    check(norm, *inputs(rows, n, dtype, "cuda"))


# Rows that a GPU sums in another order beside a residual: blocks have other shapes (plan_tall,
# plan_long).
OTHER_BLOCKS = {
    *((200, 8192), (240, 5000), (90, 16384), (70, 20000), (71, 20001), (40, 50256), (40, 50257)),
    *((40, 65536), (40, 65537), (40, 67000)),
}


def assert_same_norm(fused, separate):
    """Bitwise, but for a rounding where sums have another order."""
    if fused.is_cuda and fused.dtype in HALVES and tuple(fused.shape) in OTHER_BLOCKS:
        torch.testing.assert_close(fused, separate, rtol=torch.finfo(fused.dtype).eps, atol=1e-5)
    else:
        assert torch.equal(fused, separate)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", HALVES, ids=name)
@pytest.mark.parametrize(("rows", "n"), MUCH)
@every_norm
def test_much_data(norm, rows, n, dtype):
    x, weight, bias, dy = inputs(rows, n, dtype, "cuda")
    check(norm, x, weight, bias, dy)
    y, total = call(fusedops, norm, x, weight, bias, residual=dy)
    assert torch.equal(total, x + dy)
    assert_same_norm(y, call(fusedops, norm, x + dy, weight, bias))


@pytest.mark.parametrize("dtype", HALVES, ids=name)
@pytest.mark.parametrize("n", [64, 1023, 4096])
@pytest.mark.parametrize("rows", [19, 600])
@every_norm
def test_float32_parameters(device, norm, rows, n, dtype):
    check(norm, *inputs(rows, n, dtype, device, torch.float32))


@every_norm
def test_a_large_mean_costs_no_accuracy(device, norm):
    x, weight, bias, dy = inputs(16, 300, torch.float32, device)
    check(norm, x + 1000, weight, bias, dy)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=name)
@pytest.mark.parametrize(("rows", "n"), [(19, 64), (600, 1023), (600, 256), (20, 140001)])
@every_norm
def test_statistics_are_left_out_where_nobody_needs_them(device, norm, rows, n, dtype):
    x, weight, bias, _ = inputs(rows, n, dtype, device)
    parameters = (weight, bias) if norm == "layer_norm" else (weight,)
    op = getattr(torch.ops.fusedops, norm)
    y, _, *statistics = op(x, None, *parameters, 1, EPS, False, True)
    assert all(t.shape == (rows,) for t in statistics)
    with poisoned():
        bare, _, *statistics = op(x, None, *parameters, 1, EPS, False, False)
    assert torch.equal(bare, y)
    assert all(t.shape == (0,) for t in statistics)


@pytest.mark.parametrize("affine", [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("shape", [(6,), (4, 6), (3, 4, 6)])
def test_optional_parameters_and_several_dims(device, shape, affine):
    x = make(2, 5, *shape, dtype=torch.float32, device=device).requires_grad_()
    weight, bias = (
        make(*shape, dtype=torch.float32, device=device, seed=s).requires_grad_() if given else None
        for s, given in enumerate(affine)
    )
    leaves = [t for t in (x, weight, bias) if t is not None]
    dy = make(*x.shape, dtype=torch.float32, device=device, seed=4)
    results = []
    for module in (fusedops, F):
        y = module.layer_norm(x, shape, weight, bias)
        results.append((y, *torch.autograd.grad(y, leaves, dy)))
        if bias is None:
            y = module.rms_norm(x, shape, weight)
            results[-1] += (y, *torch.autograd.grad(y, leaves, dy))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=name)
@pytest.mark.parametrize(
    ("rows", "n"),
    [(19, 40), (19, 1023), (19, 5000), (3, 32768), (600, 256), (600, 1023), (200, 8192)],
)
@every_norm
def test_residual(device, norm, rows, n, dtype):
    x, weight, bias, dy = inputs(rows, n, dtype, device)
    residual = make(rows, n, dtype=dtype, device=device, seed=5)
    leaves = [t.requires_grad_() for t in (x, residual, weight, bias)]
    y, total = call(fusedops, norm, x, weight, bias, residual=residual)
    assert torch.equal(total, x + residual)
    assert_same_norm(y, call(fusedops, norm, x + residual, weight, bias))
    dtotal = make(rows, n, dtype=dtype, device=device, seed=6)
    grads = torch.autograd.grad((y, total), leaves, (dy, dtotal), allow_unused=True)
    assert torch.equal(grads[0], grads[1])
    exact = [t.detach().double().requires_grad_() for t in (total, weight, bias)]
    exact_y = call(reference, norm, *exact)
    wanted = torch.autograd.grad(exact_y, exact, dy.double(), allow_unused=True)
    tolerance = 2e-2 if dtype is torch.bfloat16 else 1e-4
    torch.testing.assert_close(
        grads[0].double(), wanted[0] + dtotal.double(), rtol=tolerance, atol=tolerance
    )
    for got, want in zip(grads[2:], wanted[1:], strict=True):
        if want is not None:
            assert (got.double() - want).norm() <= 5e-3 * want.norm()
    # Each output alone
    (only_total,) = torch.autograd.grad(
        call(fusedops, norm, x, weight, bias, residual=residual)[1].sum(), x
    )
    assert torch.equal(only_total, torch.ones_like(x))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", HALVES, ids=name)
@pytest.mark.parametrize(("rows", "n"), [(600, 4097), (200, 20001), (40, 32768), (17, 65536)])
@every_norm
def test_residual_gradients_of_long_rows(norm, rows, n, dtype):
    x, weight, bias, dy = inputs(rows, n, dtype, "cuda")
    dtotal = make(rows, n, dtype=dtype, device="cuda", seed=6)
    x.requires_grad_()
    both = call(fusedops, norm, x, weight, bias, residual=torch.zeros_like(x))
    (dx,) = torch.autograd.grad(both, x, (dy, dtotal))
    exact = x.detach().double().requires_grad_()
    y = call(reference, norm, exact, weight.double(), bias.double())
    (wanted,) = torch.autograd.grad(y, exact, dy.double())
    torch.testing.assert_close(dx.double(), wanted + dtotal.double(), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("layout", LAYOUTS)
@every_norm
def test_layouts(device, norm, layout):
    x, weight, bias, dy = inputs(24, 40, torch.bfloat16, device)
    laid, grad = (LAYOUTS[layout](t) for t in (x, dy))
    spread = torch.stack([weight, weight], 1)[:, 0]
    results = []
    for a, w, g in [(laid, spread, grad), (laid.contiguous(), weight, grad.contiguous())]:
        leaves = [a.detach().requires_grad_(), w.detach().requires_grad_()]
        y = call(fusedops, norm, *leaves, bias)
        results.append((y, *torch.autograd.grad(y, leaves, g)))
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (0, 0)])
@every_norm
def test_empty(device, norm, shape):
    x = torch.ones(shape, device=device, requires_grad=True)
    weight, bias = (torch.ones(shape[1:], device=device, requires_grad=True) for _ in range(2))
    y = call(fusedops, norm, x, weight, bias)
    y.sum().backward()
    assert y.shape == x.grad.shape == shape
    assert torch.equal(weight.grad, torch.zeros(shape[1:], device=device))


@every_norm
def test_gradients_nobody_asked_for(device, norm):
    x, weight, bias, dy = inputs(6, 8, torch.float32, device)
    for wanted in ([x], [weight], [bias], [x, bias]):
        if norm == "rms_norm" and any(t is bias for t in wanted):
            continue
        for t in (x, weight, bias):
            t.requires_grad_(any(t is w for w in wanted))
        grads = torch.autograd.grad(call(fusedops, norm, x, weight, bias), wanted, dy)
        theirs = torch.autograd.grad(call(F, norm, x, weight, bias), wanted, dy)
        for a, b in zip(grads, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", HALVES, ids=name)
@pytest.mark.parametrize(("rows", "n"), [(16, 40), (600, 255), (600, 2048)])
@every_norm
def test_autocast_gives_the_dtypes_of_torch(device, dtype, rows, n, norm):
    if device == "cpu" and rows > 16:
        pytest.skip("torch's sums over rows are in the half's precision on a CPU")
    x, weight, bias, dy = inputs(rows, n, dtype, device, torch.float32)
    leaves = [
        t.requires_grad_() for t in ((x, weight, bias) if norm == "layer_norm" else (x, weight))
    ]
    with torch.autocast(device, dtype=dtype):
        y, want = call(fusedops, norm, x, weight, bias), call(F, norm, x, weight, bias)
        assert y.dtype is want.dtype
        assert call(fusedops, norm, x.float(), weight, bias).dtype is torch.float32
    torch.testing.assert_close(y, want)
    ours = torch.autograd.grad(y, leaves, dy.to(y.dtype))
    theirs = torch.autograd.grad(want, leaves, dy.to(y.dtype))
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype is b.dtype
        assert (a - b).norm() <= 2e-2 * b.norm()


@every_norm
def test_higher_derivatives(device, norm):
    x, weight, bias, _ = inputs(4, 6, torch.float64, device)
    residual = make(4, 6, dtype=torch.float64, device=device, seed=5)
    leaves = [t.requires_grad_() for t in (x, weight, bias)]
    assert torch.autograd.gradcheck(lambda *t: call(fusedops, norm, *t), leaves)
    assert torch.autograd.gradgradcheck(lambda *t: call(fusedops, norm, *t), leaves)

    def with_residual(x, residual, weight):
        return call(fusedops, norm, x, weight, bias.detach(), residual=residual)

    leaves = [x, residual.requires_grad_(), weight]
    assert torch.autograd.gradcheck(with_residual, leaves)
    assert torch.autograd.gradgradcheck(with_residual, leaves)


@every_norm
def test_compile_and_transforms(device, norm):
    x, weight, bias, dy = inputs(4, 6, torch.float32, device)
    leaves = [x.requires_grad_(), weight.requires_grad_()]
    compiled = torch.compile(
        lambda x, w: call(fusedops, norm, x, w, bias), fullgraph=True, backend="aot_eager"
    )
    y, want = compiled(*leaves), call(F, norm, *leaves, bias)
    torch.testing.assert_close(y, want)
    grads = torch.autograd.grad(y, leaves, dy), torch.autograd.grad(want, leaves, dy)
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b)
    mapped = torch.func.vmap(lambda row: call(fusedops, norm, row, weight, bias))(x)
    torch.testing.assert_close(mapped, want)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=name)
@pytest.mark.parametrize("n", [256, 1023, 4096, 20001])
@every_norm
def test_twenty_runs_are_bitwise_equal(device, norm, n, dtype):
    rows = 5000 if device == "cuda" else 7
    x, weight, bias, dy = inputs(rows, n, dtype, device)
    leaves = [x.requires_grad_(), weight.requires_grad_()]
    first = None
    for _ in range(20):
        y = call(fusedops, norm, *leaves, bias)
        results = (y, *torch.autograd.grad(y, leaves, dy))
        first = first or results
        assert all(torch.equal(a, b) for a, b in zip(results, first, strict=True))


# ---- modules ----

MODULES = {
    "layer_norm": (fusedops.nn.LayerNorm, torch.nn.LayerNorm),
    "rms_norm": (fusedops.nn.RMSNorm, torch.nn.RMSNorm),
}


@pytest.mark.parametrize("options", [{}, {"elementwise_affine": False}, {"eps": 0.1}], ids=str)
@pytest.mark.parametrize("shape", [8, (4, 8)])
@every_norm
def test_module_is_torchs(device, norm, shape, options):
    ours, theirs = (kind(shape, device=device, **options) for kind in MODULES[norm])
    assert repr(ours) == repr(theirs)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(a, b)
        with torch.no_grad():
            b.normal_()
    ours.load_state_dict(theirs.state_dict())
    x = make(3, 4, 8, dtype=torch.float32, device=device)
    torch.testing.assert_close(ours(x), theirs(x))
    y, total = ours(x, x)
    assert torch.equal(total, x + x)
    torch.testing.assert_close(y, theirs(x + x))


def test_layer_norm_without_bias(device):
    ours, theirs = (kind(8, bias=False, device=device) for kind in MODULES["layer_norm"])
    x = make(3, 8, dtype=torch.float32, device=device)
    assert repr(ours) == repr(theirs)
    torch.testing.assert_close(ours(x), theirs(x))


@every_norm
def test_fuse_replaces_the_module(device, norm):
    model = torch.nn.Sequential(MODULES[norm][1](8), torch.nn.Linear(8, 8)).to(device)
    x = make(3, 8, dtype=torch.float32, device=device)
    want, weight = model(x), model[0].weight
    report = fusedops.fuse(model)
    assert type(model[0]) is MODULES[norm][0]
    assert model[0].weight is weight
    assert {layer.name: layer.shape for layer in report.fused} == {"0": "(8,)", "1": "8 -> 8"}
    torch.testing.assert_close(model(x), want)
    assert fusedops.fuse(model).unchanged == 2


@every_norm
def test_fuse_goes_by_what_a_subclass_computes(norm):
    class Same(MODULES[norm][1]):
        pass

    class Twice(MODULES[norm][1]):
        def forward(self, x):
            return 2 * super().forward(x)

    model = torch.nn.Sequential(Same(8, eps=1e-5), Twice(8, eps=1e-5))
    report = fusedops.fuse(model)
    assert [layer.name for layer in report.fused] == ["0"]
    assert isinstance(model[0], Same)
    assert [(s.name, s.kind) for s in report.skipped] == [("1", "Twice")]
    assert type(model[1]) is Twice


# ---- errors ----


@every_norm
def test_errors(device, norm):
    x, weight, _, _ = inputs(4, 6, torch.float32, device)
    for to in (device, "meta"):
        a, w = x.to(to), weight.to(to)
        text = (
            rf"{norm}: normalized_shape must be the last dimension\(s\) of x \(4, 6\); got \(5,\)"
        )
        with pytest.raises(RuntimeError, match=text):
            getattr(fusedops, norm)(a, 5)
        with pytest.raises(RuntimeError, match=r"must be the last .*; got \(\)"):
            getattr(fusedops, norm)(a, ())
        text = r"weight must have the shape of the last 1 dimension\(s\) of x \(4, 6\); got \(3,\)"
        with pytest.raises(RuntimeError, match=text):
            getattr(fusedops, norm)(a, 6, w[:3])
        # By the op: the functions take what torch's take (test_norm_dtypes.py)
        options = (*((None,) if norm == "layer_norm" else ()), 1, 1e-5, False, True)
        op = getattr(torch.ops.fusedops, norm)
        with pytest.raises(
            RuntimeError, match="weight must have dtype float32 like x; got float16"
        ):
            op(a, None, w.half(), *options)
        text = "weight must have dtype float16 like x or float32; got float64"
        with pytest.raises(RuntimeError, match=text):
            op(a.half(), None, w.double(), *options)
        with pytest.raises(RuntimeError, match="residual must have dtype float32 like x"):
            op(a, a.half(), w, *options)
        with pytest.raises(RuntimeError, match=r"residual must have shape \(4, 6\) like x"):
            getattr(fusedops, norm)(a, 6, w, residual=a[:2])
    with pytest.raises(TypeError, match="x must be a Tensor; got list"):
        getattr(fusedops, norm)([1.0], 1)
    with pytest.raises(TypeError, match="weight must be a Tensor or None; got float"):
        getattr(fusedops, norm)(x, 6, 1.0)


@pytest.mark.gpu
@pytest.mark.slow
@every_norm
def test_more_than_2_32_bytes(norm):
    n = 4097
    rows = (2**32 + 17) // 2 // n + 1
    x = torch.ones(rows, n, dtype=torch.float16, device="cuda")
    x[:, ::2] = -1
    weight, bias = (torch.full((n,), v, dtype=torch.float16, device="cuda") for v in (2.0, 0.5))
    leaves = [x, weight.requires_grad_()]
    y = call(fusedops, norm, *leaves, bias)
    torch.testing.assert_close(y[-1], call(F, norm, x[-1], weight, bias))
    assert torch.equal(y, y[:1].expand(rows, n))
    (dw,) = torch.autograd.grad(y, weight, torch.full_like(x, 2**-10))
    one, zero = (torch.full((n,), v, device="cuda") for v in (1.0, 0.0))
    want = rows * 2**-10 * call(F, norm, x[0].float(), one, zero)
    torch.testing.assert_close(dw.float(), want, rtol=2e-3, atol=0)


@pytest.mark.parametrize("n", [40, 1024, 5000, 140_001])
def test_mean_whose_square_overflows(device, n):
    x = torch.full((3, n), 1e20, device=device)
    assert torch.isfinite(fusedops.layer_norm(x, n)).all()
