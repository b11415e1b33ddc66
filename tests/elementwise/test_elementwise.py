"""Elementwise fusions: values against float64, gradients, layouts, out and in place, dropout."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
import torch.nn.functional as F

import fusedops
from fusedops import reference
from util import ACTIVATIONS, DTYPES, LAYOUTS, SMOOTH, TORCH_ACTIVATION, assert_accurate, make, name

OPS = torch.ops.fusedops
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=name)


def integers(shape, dtype, device, seed=0):
    info = torch.iinfo(dtype)
    generator = torch.Generator().manual_seed(seed)
    low, high = max(info.min, -(2**40)), min(info.max, 2**40)
    return torch.randint(low, high, shape, dtype=dtype, generator=generator).to(device)


# ---- values ----

FUNCTIONS = {
    "add": (fusedops.add, torch.add, 2),
    "fma": (fusedops.fma, lambda a, x, b: a * x + b, 3),
    "square": (fusedops.square, torch.square, 1),
    "relu": (fusedops.relu, torch.relu, 1),
}
# Chunks of every dtype, blocks, and both with something left over.
SHAPES = [(), (0,), (1,), (3, 0, 5), (15,), (16,), (4097,), (3, 17, 5), (129, 257), (66000,)]


@every_dtype
@pytest.mark.parametrize("function", FUNCTIONS)
def test_matches_torch(device, function, dtype):
    ours, torchs, arity = FUNCTIONS[function]
    for shape in SHAPES:
        inputs = [make(*shape, dtype=dtype, device=device, seed=s) for s in range(arity)]
        y = ours(*inputs)
        assert y.is_contiguous()
        exact = torchs(*(t.double() for t in inputs))
        assert_accurate(y, torchs(*inputs), exact, f"{function} {shape}")


@pytest.mark.parametrize("dtype", INTEGERS, ids=name)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_integers_wrap_around_as_in_torch(device, function, dtype):
    ours, torchs, arity = FUNCTIONS[function]
    for shape in [(4099,), (65, 33), ()]:
        inputs = [integers(shape, dtype, device, s) for s in range(arity)]
        assert torch.equal(ours(*inputs), torchs(*inputs))


def test_nan_infinity_and_signed_zero(device):
    x = torch.tensor([math.nan, math.inf, -math.inf, -0.0, 0.0], device=device)
    for got, want in [
        (fusedops.relu(x), torch.relu(x)),
        (fusedops.add(x, x), x + x),
        (fusedops.scale_bias_act(x), x),
        (fusedops.bias_dropout_residual(x, p=0.0), x),
    ]:
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
    assert torch.signbit(fusedops.scale_bias_act(x)[3])
    assert torch.signbit(fusedops.bias_dropout_residual(x, p=0.0)[3])


BROADCASTS = [
    [(33, 70), (70,), (70,)],
    [(33, 70), (33, 1), ()],
    [(1,), (5, 1, 7), (6, 1)],
    [(4, 1, 40), (1, 9, 40), (4, 9, 1)],
    [(2, 3, 4, 5, 6), (3, 1, 5, 1), (6,)],
    [(1000, 3), (3,), (1000, 1)],
    [(130, 4099), (4099,), (1,)],
    [(), (0, 4), (4,)],
]


@pytest.mark.parametrize("shapes", BROADCASTS, ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int8], ids=name)
def test_broadcasts(device, shapes, dtype):
    if dtype is torch.int8:
        a, x, b = (integers(s, dtype, device, i) for i, s in enumerate(shapes))
    else:
        a, x, b = (make(*s, dtype=dtype, device=device, seed=i) for i, s in enumerate(shapes))
    assert torch.equal(fusedops.add(a, x), a + x)
    want = a.double() * x.double() + b.double()
    tolerance = {torch.bfloat16: 1e-2, torch.float64: 1e-15, torch.int8: 0}[dtype]
    if dtype is torch.int8:
        want = a * x + b
    torch.testing.assert_close(
        fusedops.fma(a, x, b).double(), want.double(), rtol=tolerance, atol=tolerance
    )


@every_dtype
def test_every_pair_of_layouts(device, dtype):
    for (first, make_a), (second, make_b) in itertools.product(LAYOUTS.items(), repeat=2):
        for shape in [(7, 9), (32, 64), (5, 129)]:
            a, b = (make(*shape, dtype=dtype, device=device, seed=s) for s in (1, 2))
            a, b = make_a(a), make_b(b)
            y = fusedops.add(a, b)
            assert y.stride() == torch.empty_like(a).stride()
            assert torch.equal(y, a + b), (first, second, shape)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float32], ids=name)
def test_every_alignment_of_every_operand(device, dtype):
    x = integers((400,), torch.uint8, device).to(dtype)
    steps = 16 // x.element_size()
    for a, b, c in itertools.product(range(0, steps + 1, max(1, steps // 4)), repeat=3):
        out = torch.zeros_like(x)
        want = out.clone()
        want[c : c + 300] = x[a : a + 300] + x[b : b + 300]
        fusedops.add(x[a : a + 300], x[b : b + 300], out=out[c : c + 300])
        assert torch.equal(out, want), (a, b, c)


def test_dimensions_that_do_not_merge(device):
    x = torch.arange(2.0**10, device=device).view([2] * 10)
    y = x.permute(0, 2, 1, 4, 3, 6, 5, 8, 7, 9)
    with pytest.raises(RuntimeError, match=r"add: the operands must have at most 8 dimensions"):
        fusedops.add(x.permute(9, 0, 8, 1, 7, 2, 6, 3, 5, 4), y)


# ---- out and in place ----


@every_dtype
@pytest.mark.parametrize("layout", [n for n in LAYOUTS if n != "expanded"])
def test_out_in_every_layout(device, layout, dtype):
    for shape in [(7, 9), (32, 64)]:
        x, y = (make(*shape, dtype=dtype, device=device, seed=s) for s in (1, 2))
        out = LAYOUTS[layout](torch.zeros_like(x))
        assert fusedops.add(x, y, out=out) is out
        assert torch.equal(out, x + y)
        target = LAYOUTS[layout](x)
        assert fusedops.relu_(target) is target
        assert torch.equal(target, x.relu())


def test_in_place_forms(device):
    x, y = (make(33, 65, dtype=torch.float32, device=device, seed=s) for s in (1, 2))
    b, key = y[0].clone(), torch.tensor([7], device=device)
    for in_place, call in [
        (lambda t: fusedops.add_(t, y), fusedops.add(x, y)),
        (lambda t: fusedops.fma_(y, t, b), fusedops.fma(y, x, b)),
        (fusedops.square_, fusedops.square(x)),
        (fusedops.relu_, fusedops.relu(x)),
        (
            lambda t: fusedops.scale_bias_act_(t, b, b, "gelu"),
            fusedops.scale_bias_act(x, b, b, "gelu"),
        ),
        (lambda t: fusedops.bias_act_(t, b, "silu"), fusedops.bias_act(x, b, "silu")),
        (
            lambda t: fusedops.bias_dropout_residual_(t, b, y, 0.3, seed=key),
            fusedops.bias_dropout_residual(x, b, y, 0.3, seed=key),
        ),
    ]:
        target = x.clone()
        version = target._version
        assert in_place(target) is target
        assert torch.equal(target, call)
        assert target._version > version


def test_channels_last_in_place_keeps_its_memory(device):
    x = make(2, 8, 5, 5, dtype=torch.float16, device=device)
    x = x.contiguous(memory_format=torch.channels_last)
    want = x.relu()
    assert fusedops.relu_(x).is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(x, want)


def test_out_is_checked(device):
    x = torch.ones(4, 5, device=device)
    flat = torch.ones(40, device=device)
    for out, text in [
        (torch.ones(4, 4, device=device), r"add: out must have shape \(4, 5\); got \(4, 4\)"),
        (x.double(), "add: out must have dtype float32 like x; got float64"),
        (torch.ones(5, device=device).expand(4, 5), "add: out must not overlap itself"),
        (flat[1:21].view(4, 5), "add: out must be y or share no memory with it"),
    ]:
        with pytest.raises(RuntimeError, match=text):
            fusedops.add(x, flat[:20].view(4, 5), out=out)
    with pytest.raises(RuntimeError, match="add_: out must be y or share no memory with it"):
        fusedops.add_(x, x[0])
    leaf = x.clone().requires_grad_()
    for call in (lambda: fusedops.add(x, x, out=leaf), lambda: fusedops.add(leaf, x, out=x)):
        with pytest.raises(RuntimeError, match=r"add: (x|out) must not require grad"):
            call()
    with torch.no_grad():
        fusedops.add_(leaf, x)
    assert torch.all(leaf == 2)


def test_an_empty_out_overlaps_nothing(device):
    empty = {
        "channels_last": torch.empty(2, 0, 4, 4, device=device, memory_format=torch.channels_last),
        "expanded": torch.empty(1, 0, device=device).expand(5, 0),
        "strided": torch.empty(0, device=device).as_strided((3, 0, 4), (0, 0, 0)),
    }
    for what, out in empty.items():
        x = torch.empty(out.shape, device=device)
        vector = torch.empty(out.shape[-1], device=device)
        assert fusedops.add(x, x, out=out) is out, what
        assert fusedops.fma(x, x, x, out=out) is out, what
        assert fusedops.square(x, out=out) is out, what
        assert fusedops.relu(x, out=out) is out, what
        assert fusedops.relu_(out) is out, what
        assert fusedops.scale_bias_act(x, vector, vector, "gelu", out=out) is out, what
        assert fusedops.bias_dropout_residual(x, vector, x, 0.5, out=out) is out, what


# ---- scale, bias, activation ----


def affine_inputs(shape, dtype, device):
    n = shape[-1]
    return (
        make(*shape, dtype=dtype, device=device, seed=1),
        make(n, dtype=dtype, device=device, seed=2),
        make(n, dtype=dtype, device=device, scale=0.5, seed=3),
        make(*shape, dtype=dtype, device=device, seed=4),
    )


@every_dtype
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_scale_bias_act(device, activation, dtype):
    act = TORCH_ACTIVATION[activation]
    for shape in [(33, 64), (257, 7), (5, 3, 129), (2, 4096), (70, 1)]:
        x, scale, bias, _ = affine_inputs(shape, dtype, device)
        wide = [t.double() for t in (x, scale, bias)]
        assert_accurate(
            fusedops.scale_bias_act(x, scale, bias, activation),
            act(x * scale + bias),
            reference.scale_bias_act(*wide, activation),
        )
        assert_accurate(
            fusedops.bias_act(x, bias, activation),
            act(x + bias),
            reference.scale_bias_act(wide[0], None, wide[2], activation),
        )


@every_dtype
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_scale_bias_act_backward(device, activation, dtype):
    act = TORCH_ACTIVATION[activation]
    for shape in [(33, 64), (257, 7), (5, 3, 129), (1000, 24), (2051, 3), (1025, 67), (521, 301)]:
        *inputs, dy = affine_inputs(shape, dtype, device)

        def grads(call, inputs, dy):
            leaves = [t.detach().requires_grad_() for t in inputs]
            return torch.autograd.grad(call(*leaves), leaves, dy)

        ours = grads(lambda *t: fusedops.scale_bias_act(*t, activation), inputs, dy)
        torchs = grads(lambda x, s, b: act(x * s + b), inputs, dy)
        wide = [t.double() for t in inputs]
        exact = grads(lambda *t: reference.scale_bias_act(*t, activation), wide, dy.double())
        for what, a, b, c in zip(("dx", "dscale", "dbias"), ours, torchs, exact, strict=True):
            assert_accurate(a, b, c, f"{what} {shape}")


def test_backward_of_strided_operands(device):
    x, scale, bias, dy = affine_inputs((33, 64), torch.float32, device)
    flags = (2, True, True, True)
    want = OPS.scale_bias_act_backward(dy, x, scale, bias, *flags)
    for layout in LAYOUTS.values():
        if layout is LAYOUTS["expanded"]:
            continue
        got = OPS.scale_bias_act_backward(layout(dy), layout(x), scale, bias, *flags)
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_gradients_of_broadcast_inputs(device):
    shapes = [(4, 1, 6), (5, 1), (6,)]
    a, x, b = (
        make(*s, dtype=torch.float64, device=device, seed=i).requires_grad_()
        for i, s in enumerate(shapes)
    )
    torch.autograd.gradcheck(fusedops.fma, (a, x, b))
    torch.autograd.gradcheck(fusedops.add, (a, b))
    torch.autograd.gradgradcheck(fusedops.fma, (a, x, b))


@every_dtype
@pytest.mark.parametrize(
    "shape", [(), (1,), (64,), (1, 64), (700, 1), (3, 1, 1), (1, 700, 64)], ids=str
)
def test_gradients_of_broadcast_inputs_are_sums(device, shape, dtype):
    y = make(*shape, dtype=dtype, device=device).requires_grad_()
    x, dy = (make(3, 700, 64, dtype=dtype, device=device, seed=s) for s in (1, 2))
    (grad,) = torch.autograd.grad(fusedops.add(x, y), y, dy)
    assert (grad.shape, grad.dtype) == (y.shape, dtype)
    assert_accurate(grad, dy.sum_to_size(shape), dy.double().sum_to_size(shape))


def test_gradients_of_inputs_that_gained_a_dim(device):
    x, y, dy = (make(*s, dtype=torch.float32, device=device) for s in ((1, 5), (5,), (1, 5)))
    (grad,) = torch.autograd.grad(fusedops.add(x, y.requires_grad_()), y, dy)
    assert torch.equal(grad, dy[0])


@pytest.mark.parametrize("activation", SMOOTH)
def test_gradients_of_any_order(device, activation):
    x, scale, bias, _ = affine_inputs((3, 5), torch.float64, device)
    inputs = [t.requires_grad_() for t in (x, scale, bias)]

    def call(*t):
        return fusedops.scale_bias_act(*t, activation)

    torch.autograd.gradcheck(call, inputs)
    torch.autograd.gradgradcheck(call, inputs)
    torch.autograd.gradcheck(lambda x, b: fusedops.bias_act(x, b, activation), inputs[::2])


def test_square_and_relu_backward(device):
    x = make(6, 7, dtype=torch.float64, device=device).requires_grad_()
    for function in (fusedops.square, fusedops.relu):
        torch.autograd.gradcheck(function, (x,))
        torch.autograd.gradgradcheck(function, (x,))
    scalar = torch.tensor(-2.0, device=device, requires_grad=True)
    for function, want in [(fusedops.square, -4.0), (fusedops.relu, 0.0)]:
        (grad,) = torch.autograd.grad(function(scalar), scalar)
        assert grad.item() == want


# ---- errors ----


def test_errors_name_the_argument(device):
    x = torch.ones(2, 3, device=device)
    for to in (device, "meta"):
        y = x.to(to)
        with pytest.raises(RuntimeError, match=r"add: y must have a shape that broadcasts with"):
            OPS.add(y, y[:, :2])
        with pytest.raises(RuntimeError, match=r"scale must have shape \(3,\) to match x \(2, 3\)"):
            OPS.scale_bias_act(y, y[0, :2], None, 0)
        with pytest.raises(RuntimeError, match="fma: b must have dtype float32 like a; got int64"):
            OPS.fma(y, y, y.long())
    with pytest.raises(TypeError, match="fma: x must be a Tensor; got float"):
        fusedops.fma(x, 2.0, x)
    with pytest.raises(TypeError, match="scale_bias_act: scale must be a Tensor or None; got int"):
        fusedops.scale_bias_act(x, 1)
    with pytest.raises(ValueError, match="bias_act: activation must be None or one of"):
        fusedops.bias_act(x, None, "softmax")


# ---- transforms ----


def test_compiles_whole(device):
    x, scale, bias, y = affine_inputs((8, 33), torch.float32, device)
    seed = torch.tensor([5], device=device)

    def step(x, scale, bias, y):
        z = fusedops.scale_bias_act(x, scale, bias, "gelu")
        z = fusedops.bias_dropout_residual(z, bias, y, 0.5, seed=seed)
        return fusedops.square(fusedops.relu(fusedops.fma(z, y, fusedops.add(x, bias))))

    def run(call):
        leaves = [t.detach().requires_grad_() for t in (x, scale, bias, y)]
        z = call(*leaves)
        return z.detach(), *torch.autograd.grad(z.sum(), leaves)

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    for a, b in zip(run(compiled), run(step), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_compiled_in_place(device):
    def step(x, y):
        fusedops.add_(x, y)
        return fusedops.relu_(x) * 2

    x, y = (make(5, 6, dtype=torch.float32, device=device, seed=s) for s in (1, 2))
    got, want = x.clone(), x.clone()
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(got, y), step(want, y))
    assert torch.equal(got, want)


def test_torch_func(device):
    x, scale, bias, _ = affine_inputs((4, 6), torch.float32, device)
    got = torch.func.vmap(lambda t: fusedops.scale_bias_act(t, scale, bias, "silu"))(x)
    torch.testing.assert_close(got, F.silu(x * scale + bias))
    grad = torch.func.grad(lambda t: fusedops.square(fusedops.relu(t)).sum())(x)
    torch.testing.assert_close(grad, 2 * x.relu())


# ---- devices ----


@pytest.mark.gpu
@every_dtype
def test_twenty_runs_are_bitwise_equal(dtype):
    x, scale, bias, dy = affine_inputs((1031, 515), dtype, "cuda")
    seed = torch.tensor([1], device="cuda")
    calls = [
        lambda: OPS.scale_bias_act_backward(dy, x, scale, bias, 3, True, True, True),
        lambda: OPS.bias_dropout_residual_backward(dy, seed, 0.5, True, True),
        lambda: (OPS.scale_bias_act(x, scale, bias, 2),),
        lambda: (OPS.fma(x, dy, bias),),
    ]
    for call in calls:
        first = call()
        for _ in range(19):
            assert all(torch.equal(a, b) for a, b in zip(call(), first, strict=True))


@pytest.mark.gpu
@pytest.mark.slow
def test_2_32_plus_17_bytes():
    count = 2**32 + 17
    x = torch.full((count,), 3, dtype=torch.uint8, device="cuda")
    y = fusedops.fma(x, x, x[:1])
    assert y[-1].item() == 12
    assert torch.all(y == 12)
    del y
    assert torch.all(fusedops.add(x, x) == 6)
    assert torch.all(fusedops.square_(x) == 9)
    del x
    half = torch.full((3, 715827885), -2.0, dtype=torch.bfloat16, device="cuda")  # 2^32 + 14 bytes
    assert torch.all(fusedops.relu(half) == 0)
    row = torch.full((715827885,), 3.0, dtype=torch.bfloat16, device="cuda")
    y = fusedops.scale_bias_act(half, row, row, "relu2")
    assert torch.all(y == 0)
    y = fusedops.scale_bias_act(half, -row, row, "relu2")
    assert torch.all(y == 81)
    dx, dscale, dbias = OPS.scale_bias_act_backward(half, half, None, None, 0, True, True, True)
    assert torch.all(dx == -2)
    assert torch.all(dscale == 12)
    assert torch.all(dbias == -6)
    y = fusedops.bias_dropout_residual(half, row, half, 0.5)
    assert torch.all((y == 0) | (y == -2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=name)
def test_fma_rounds_once(device, dtype):
    a, x = (make(1000, dtype=dtype, device=device, seed=seed) / 3 for seed in range(2))
    error = fusedops.fma(a, x, -(a * x))  # what the product lost by rounding
    assert (error != 0).float().mean() > 0.5


def test_out_that_overlaps_in_part_with_gaps(device):
    x = torch.arange(24.0, device=device).view(4, 6)
    refused = (
        (x, x[:, :1]),
        (x[:, 1:5], x[:, 0:4]),
        (x, x[:1].expand(4, 6)),
        (x[:, ::2], x[:, 1:4]),
        (x[:4, :4], x[:4, :4].t()),
        (x[:2, ::3], x[1:3, ::3]),
    )
    before = x.clone()
    for out, y in refused:
        with pytest.raises(RuntimeError, match="out must be y or share no memory with it"):
            fusedops.add_(out, y)
        with pytest.raises(RuntimeError, match="out must be x or share no memory with it"):
            fusedops.add(y.expand(out.shape), torch.ones_like(out), out=out)
    assert torch.equal(x, before)
    for out, y in ((x[:, ::2], x[:, 1::2]), (x[:, :3], x[:, 3:]), (x[::2], x[1::2]), (x, x)):
        expected = out + y
        assert torch.equal(fusedops.add_(out, y), expected)


@pytest.mark.parametrize("activation", ["relu", "relu2"])
def test_an_infinite_gradient_stops_at_zero(device, activation):
    x = torch.tensor([-1.0, 0.0, 2.0], device=device, requires_grad=True)
    y = fusedops.bias_act(x, None, activation)
    y.backward(torch.full_like(y, math.inf))
    assert x.grad.tolist() == [0, 0, math.inf]
