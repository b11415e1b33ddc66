"""rope: values, gradients, layouts in memory, tables, grouped heads, errors."""

from __future__ import annotations

import math

import pytest
import torch

import fusedops
from fusedops import reference
from util import DTYPES, HALVES, assert_accurate, calls_of, make, name, poisoned

every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=name)
both_pairings = pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "interleaved"])
both_orders = pytest.mark.parametrize("heads_dim", [1, 2])
# D, rotary_dim: whole vectors of every dtype; a part of the row rotated; pairs alone.
WIDTHS = [(128, 128), (64, 64), (80, 32), (256, 64), (72, 72), (18, 6), (9, 4)]


def tables(time, rotary, dtype, device, *, interleaved=False, batch=None):
    """cos and sin as Hugging Face builds them, as wide as rotary."""
    steps = torch.arange(rotary // 2, device=device) / (rotary // 2)
    positions = torch.arange(time, device=device)
    if batch is not None:
        positions = positions + 7 * torch.arange(batch, device=device).unsqueeze(1)
    angles = positions.unsqueeze(-1) * 10000.0**-steps
    angles = angles.repeat_interleave(2, -1) if interleaved else torch.cat((angles, angles), -1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rows(heads_dim, heads, time, d, dtype, device, seed=0, batch=2):
    """q or k as a projection gives it: (B, T, H, D) in memory."""
    x = make(batch, time, heads, d, dtype=dtype, device=device, seed=seed)
    return x.transpose(1, 2) if heads_dim == 1 else x


def rotate_half(x):
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)


def eager(x, cos, sin, interleaved, rotary, heads_dim):
    """What Hugging Face's models compute, rounding after every operation."""
    cos, sin = (t.unsqueeze(heads_dim - 4) for t in (cos, sin))
    part, rest = x[..., :rotary], x[..., rotary:]
    if interleaved:
        turned = torch.stack((-part[..., 1::2], part[..., ::2]), -1).flatten(-2)
    else:
        turned = rotate_half(part)
    return torch.cat((part * cos + turned * sin, rest), -1)


@every_dtype
@both_orders
@both_pairings
@pytest.mark.parametrize(("d", "rotary"), WIDTHS)
def test_values_and_gradients(device, d, rotary, interleaved, heads_dim, dtype):
    time, how = 19, (interleaved, rotary, heads_dim)
    cos, sin = tables(time, rotary, dtype, device, interleaved=interleaved, batch=2)
    q, k = (rows(heads_dim, h, time, d, dtype, device, seed=h) for h in (6, 2))
    q.requires_grad_(), k.requires_grad_()
    options = {"interleaved": interleaved, "rotary_dim": rotary, "unsqueeze_dim": heads_dim}
    with poisoned():
        ours = fusedops.rope(q, k, cos, sin, **options)
        grads = torch.autograd.grad(ours, (q, k), [t.detach().square() for t in ours])
    for x, y, dx in zip((q, k), ours, grads, strict=True):
        wide = x.detach().double().requires_grad_()
        exact = reference.rope(wide, cos.double(), sin.double(), *how)
        torchs = eager(x, cos, sin, *how)
        assert_accurate(y.detach(), torchs.detach(), exact.detach(), "rope")
        dy = y.detach().square()
        (exact_dx,) = torch.autograd.grad(exact, wide, dy.double())
        (torchs_dx,) = torch.autograd.grad(torchs, x, dy)
        assert_accurate(dx, torchs_dx, exact_dx, "rope gradient")
        assert torch.equal(y[..., rotary:], x[..., rotary:])


@every_dtype
@both_pairings
@pytest.mark.parametrize(("d", "rotary"), [(64, 64), (18, 6)])
def test_every_element_has_its_own_column(device, d, rotary, interleaved, dtype):
    """Tables that are no rotation: what Hugging Face's expression makes of them."""
    x = rows(1, 3, 5, d, dtype, device).requires_grad_()
    cos, sin = (make(5, rotary, dtype=dtype, device=device, seed=s) for s in (1, 2))
    y = fusedops.rope(x, None, cos, sin, interleaved=interleaved, rotary_dim=rotary)
    torchs = eager(x, cos, sin, interleaved, rotary, 1)
    wide = x.detach().double().requires_grad_()
    exact = eager(wide, cos.double(), sin.double(), interleaved, rotary, 1)
    assert_accurate(y.detach(), torchs.detach(), exact.detach(), "rope")
    dy = make(*y.shape, dtype=dtype, device=device, seed=3)
    grads = [torch.autograd.grad(a, b, dy.to(a.dtype))[0]
             for a, b in ((y, x), (torchs, x), (exact, wide))]  # fmt: skip
    assert_accurate(*grads, "rope gradient")


@pytest.mark.parametrize("dtype", HALVES, ids=name)
@both_pairings
def test_rounds_once(device, interleaved, dtype):
    q, k = (rows(1, h, 9, 64, dtype, device, seed=h) for h in (4, 2))
    cos, sin = tables(9, 64, torch.float32, device, interleaved=interleaved)
    for narrow in (cos, sin), (cos.to(dtype), sin.to(dtype)):
        ours = fusedops.rope(q, k, *narrow, interleaved=interleaved)
        wide = [t.double() for t in narrow]
        for x, y in zip((q, k), ours, strict=True):
            exact = reference.rope(x.double(), *wide, interleaved)
            assert y.dtype is dtype
            error = (y.double() - exact).abs()
            half_ulp = torch.finfo(dtype).eps / 2 * exact.abs()
            assert (error <= 1.001 * half_ulp + 1e-6).all()


@both_orders
@both_pairings
def test_tables_of_every_form_agree(device, heads_dim, interleaved):
    q, k = (rows(heads_dim, h, 7, 32, torch.float32, device, seed=h) for h in (4, 2))
    cos, sin = tables(7, 32, torch.float32, device, interleaved=interleaved)
    half = [t[:, ::2] if interleaved else t[:, :16] for t in (cos, sin)]
    options = {"interleaved": interleaved, "unsqueeze_dim": heads_dim}
    want = fusedops.rope(q, k, cos, sin, **options)
    forms = [
        half,
        [t.contiguous() for t in half],
        [t.unsqueeze(0) for t in (cos, sin)],
        [t.expand(2, -1, -1) for t in half],
        [t.t().contiguous().t() for t in (cos, sin)],
        [torch.nn.functional.pad(t, (1, 0))[:, 1:] for t in (cos, sin)],
    ]
    for form in forms:
        for got, expected in zip(fusedops.rope(q, k, *form, **options), want, strict=True):
            assert torch.equal(got, expected)
    assert torch.equal(fusedops.rope(q, None, cos, sin, **options), want[0])


@both_pairings
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=name)
def test_strides(device, interleaved, dtype):
    """Slices of a packed projection, rows off by one element, strided and expanded ones."""
    packed = make(2, 5, 8 * 32, dtype=dtype, device=device)
    q, k, _ = (t.unflatten(-1, (-1, 32)).transpose(1, 2) for t in packed.split([128, 64, 64], -1))
    cos, sin = tables(5, 32, dtype, device, interleaved=interleaved)
    want = fusedops.rope(q.contiguous(), k.contiguous(), cos, sin, interleaved=interleaved)
    shifted = torch.nn.functional.pad(q, (1, 2))[..., 1:-2]
    strided = torch.stack((q, q), -1)[..., 0]
    for given in (q, shifted, strided, q.contiguous()):
        got = fusedops.rope(given, k, cos, sin, interleaved=interleaved)
        assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    one = q[:, :1].expand(-1, 4, -1, -1)
    got = fusedops.rope(one, None, cos, sin, interleaved=interleaved)
    assert torch.equal(got, want[0][:, :1].expand(-1, 4, -1, -1))


@both_orders
def test_results_lie_as_their_inputs(device, heads_dim):
    cos, sin = tables(5, 32, torch.float32, device)
    inner = rows(heads_dim, 4, 5, 32, torch.float32, device)
    other = inner.transpose(1, 2).contiguous().transpose(1, 2)
    for x in (inner, other):
        x.requires_grad_()
        y = fusedops.rope(x, None, cos, sin, unsqueeze_dim=heads_dim)
        assert y.stride() == x.stride()
        (dx,) = torch.autograd.grad(y, x, torch.ones_like(y))
        assert dx.stride() == x.stride()
        for arguments in [(x.detach(), None), (x.detach(), x.detach())]:
            how = (cos, sin, heads_dim, 32, False, False)
            torch.library.opcheck(torch.ops.fusedops.rope.default, (*arguments, *how))


@pytest.mark.parametrize("shape", [(0, 4, 5, 8), (2, 0, 5, 8), (2, 4, 0, 8)], ids=str)
def test_empty(device, shape):
    q = torch.ones(shape, device=device, requires_grad=True)
    k = torch.ones((shape[0], 3, *shape[2:]), device=device, requires_grad=True)
    cos, sin = tables(shape[2], 8, torch.float32, device)
    ours = fusedops.rope(q, k, cos, sin)
    assert [y.shape for y in ours] == [q.shape, k.shape]
    (ours[0].sum() + ours[1].sum()).backward()
    assert (q.grad.shape, k.grad.shape) == (q.shape, k.shape)
    assert torch.equal(ours[1], reference.rope(k, cos, sin))


@both_pairings
def test_higher_derivatives(device, interleaved):
    q, k = (rows(1, h, 3, 6, torch.float64, device).requires_grad_() for h in (2, 1))
    cos, sin = tables(3, 6, torch.float64, device, interleaved=interleaved)

    def call(q, k):
        return fusedops.rope(q, k, cos, sin, interleaved=interleaved)

    assert torch.autograd.gradcheck(call, (q, k))
    assert torch.autograd.gradgradcheck(call, (q, k))
    assert torch.autograd.gradcheck(lambda k: call(q.detach(), k), (k,))


def test_tables_that_require_grad(device):
    q = rows(1, 2, 3, 8, torch.float64, device).requires_grad_()
    cos, sin = (t[:, :4].requires_grad_() for t in tables(3, 8, torch.float64, device))
    assert torch.autograd.gradcheck(lambda *a: fusedops.rope(a[0], None, *a[1:]), (q, cos, sin))


def test_one_of_two_gradients(device):
    q, k = (rows(1, h, 3, 8, torch.float32, device) for h in (2, 1))
    cos, sin = tables(3, 8, torch.float32, device)
    k.requires_grad_()
    y = fusedops.rope(q, k, cos, sin)
    (dk,) = torch.autograd.grad(y[1].sum() + y[0].sum(), k)
    (want,) = torch.autograd.grad(reference.rope(k, cos, sin).sum(), k)
    torch.testing.assert_close(dk, want)


@both_pairings
def test_transforms_and_compile(device, interleaved):
    torch.compiler.reset()
    q, k = (rows(1, h, 5, 16, torch.float32, device, seed=h) for h in (4, 2))
    cos, sin = tables(5, 16, torch.float32, device, interleaved=interleaved)

    def call(q, k):
        return fusedops.rope(q, k, cos, sin, interleaved=interleaved)

    want = call(q, k)
    assert calls_of(call, q, k).ours == ["rope"]
    targets = []

    def backend(graph, inputs):
        targets.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    compiled = torch.compile(call, fullgraph=True, backend=backend)
    for y, expected in zip(compiled(q, k), want, strict=True):
        torch.testing.assert_close(y, expected)
    assert targets
    assert not any("fusedops" in target for target in targets)  # for Inductor to fuse
    tangents = torch.func.jvp(call, (q, k), (q, k))[1]
    for y, expected in zip(tangents, want, strict=True):
        torch.testing.assert_close(y, expected)
    q.requires_grad_()
    (ours,) = torch.autograd.grad(call(q, k)[0].square().sum(), q)
    (theirs,) = torch.autograd.grad(compiled(q, k)[0].square().sum(), q)
    torch.testing.assert_close(ours, theirs)


def test_errors(device):
    ones = torch.ones
    q, k, t = ones(2, 4, 5, 8), ones(2, 2, 5, 8), ones(5, 8)
    how = (1, 8, False, False)
    cases = [
        ((q[0], k, t, t, *how), r"q must be 4-dimensional, \(B, H, T, D\); got shape \(4, 5, 8\)"),
        ((q, k, t, t, 3, 8, False, False), "heads_dim must be 1 or 2; got 3"),
        ((q, k, t, t, 1, 7, False, False), "rotary_dim must be even and from 2 to D = 8; got 7"),
        ((q, k, t, t, 1, 10, False, False), "rotary_dim must be even and from 2 to D = 8; got 10"),
        ((q, k[:1], t, t, *how), r"k must have shape .* but for the number of heads; got \(1, 2"),
        ((q, k.double(), t, t, *how), "k must have dtype float32 like q; got float64"),
        ((q, k, t[:4], t, *how), r"cos must have shape \(5, W\) or \(2, 5, W\) with W = 8 or 4; g"),
        ((q, k, t, t[:, :3], *how), r"sin must have shape \(5, W\) .* got \(5, 3\)"),
        ((q, k, t, t[:, :4], *how), r"sin must have shape \(5, 8\) like cos; got \(5, 4\)"),
        ((q, k, t.double(), t, *how), "cos must have dtype float32 like q; got float64"),
        ((q.half(), None, t.half(), t, *how), "sin must have dtype float16 like cos; got float32"),
    ]
    for arguments, text in cases:
        for to in (device, "meta"):
            moved = [a.to(to) if isinstance(a, torch.Tensor) else a for a in arguments]
            with pytest.raises(RuntimeError, match=f"^rope: {text}"):
                torch.ops.fusedops.rope(*moved)
    with pytest.raises(TypeError, match="rope: cos must be a Tensor; got list"):
        fusedops.rope(q, k, [1.0], t)
    with pytest.raises(RuntimeError, match="rope: rotary_dim must be even"):
        fusedops.rope(q, k, t, t, rotary_dim=5)


@pytest.mark.gpu
@pytest.mark.slow
def test_more_than_2_32_bytes():
    time = (2**32 + 17) // 2 // 128 + 1
    q = torch.zeros(1, 1, time, 128, dtype=torch.float16, device="cuda")
    q[..., -1, 0] = 1
    cos = torch.full((time, 64), math.cos(0.5), dtype=torch.float32, device="cuda")
    sin = torch.full((time, 64), math.sin(0.5), dtype=torch.float32, device="cuda")
    y = fusedops.rope(q, None, cos, sin)
    assert y[0, 0, -1, 0].item() == pytest.approx(math.cos(0.5), rel=1e-3)
    assert y[0, 0, -1, 64].item() == pytest.approx(math.sin(0.5), rel=1e-3)
    assert not y[0, 0, :-1].any()


@pytest.mark.gpu
@both_pairings
@both_orders
def test_many_tokens(heads_dim, interleaved):
    """Enough of them that a thread has several heads, of q and of k."""
    for q_heads, k_heads in [(32, 8), (5, 1), (3, 0)]:
        q = rows(heads_dim, q_heads, 3000, 128, torch.bfloat16, "cuda", batch=3)
        k = rows(heads_dim, k_heads, 3000, 128, torch.bfloat16, "cuda", 1, 3) if k_heads else None
        cos, sin = tables(3000, 128, torch.bfloat16, "cuda", interleaved=interleaved, batch=3)
        options = {"interleaved": interleaved, "unsqueeze_dim": heads_dim}
        got = fusedops.rope(q, k, cos, sin, **options)
        for x, y in zip((q, k), got if k_heads else (got,), strict=False):
            torchs = eager(x, cos, sin, interleaved, 128, heads_dim)
            how = (interleaved, 128, heads_dim)
            exact = reference.rope(x.double(), cos.double(), sin.double(), *how)
            assert_accurate(y, torchs, exact, "rope")
