"""The ops of our convolutions, depthwise and of images: against float64, borders, two runs."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import fusedops
from fusedops.ops import conv
from fusedops.ops.conv_problem import DEPTHWISE, conv_problem, inference_path
from util import DTYPES, HALVES, make, name

ops = torch.ops.fusedops
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=name)
# x (N, H, W, C), kernel, stride, padding: tiles that fit and not, chunks of channels, borders that
# are wider than the kernel needs, odd channels, kernels and strides without a kernel of their own;
# eights of channels, for which tiles lie in shared memory: blocks of one strip and of eight; walks
# down columns in one segment and several (3x3 with stride 2); band matrices (5x5, 7x7) of wide and
# narrow images, segments that end in one and tiles of several.
CASES = [
    ((2, 12, 8, 8), 3, 1, 1),
    ((1, 9, 7, 130), 3, 1, 0),
    ((2, 13, 10, 6), 3, 2, 1),
    ((1, 8, 9, 132), 3, 2, 0),
    ((2, 14, 14, 60), 5, 1, 2),
    ((1, 5, 5, 2), 5, 1, 4),
    ((2, 11, 12, 4), 5, 2, 2),
    ((1, 7, 7, 200), 5, 2, 1),
    ((2, 6, 7, 5), 3, 1, 1),
    ((2, 9, 9, 4), 7, 3, 3),
    ((70, 4, 4, 2), 3, 1, 1),
    ((2, 7, 7, 72), 3, 1, 1),
    ((1, 29, 17, 16), 3, 2, 1),
    ((1, 8, 9, 136), 3, 2, 0),
    ((2, 14, 14, 480), 5, 1, 2),
    ((1, 5, 6, 56), 5, 1, 4),
    ((1, 33, 31, 40), 5, 2, 2),
    ((1, 1, 1, 8), 3, 1, 1),
    ((1, 5, 6, 8), 3, 1, 4),
    ((1, 40, 3, 24), 3, 1, 1),
    ((2, 14, 14, 64), 7, 1, 3),
    ((1, 30, 9, 136), 7, 1, 6),
    ((5, 6, 30, 24), 7, 1, 3),
    ((1, 3, 70, 8), 7, 1, 3),
    ((3, 7, 7, 72), 7, 1, 3),
    ((1, 60, 1, 2), 7, 1, 3),
    ((1, 9, 11, 3), 7, 1, 0),
]
every_case = pytest.mark.parametrize("case", CASES, ids=str)


def inputs(case, dtype, device):
    """x, weight, dy and the float64 convolution with its leaves."""
    shape, kernel, stride, padding = case
    x = make(*shape, dtype=dtype, device=device, seed=1)
    weight = make(shape[3], kernel, kernel, dtype=dtype, device=device, seed=2, scale=1 / kernel)
    leaves = x.double().requires_grad_(), weight.double().requires_grad_()
    image, filters = leaves[0].movedim(-1, 1), leaves[1].unsqueeze(1)
    z = F.conv2d(image, filters, None, stride, padding, 1, shape[3]).movedim(1, -1)
    dy = make(*z.shape, dtype=dtype, device=device, seed=3)
    return x, weight, dy, z, leaves


def geometry(case):
    return (case[2], case[2], case[3], case[3])


def assert_rounded(got, exact):
    """As near as the exact values rounded to the dtype, but for sums in float32."""
    rounded = (exact.to(got.dtype).double() - exact).norm()
    assert (got.double() - exact).norm() <= 1.05 * rounded + 5e-6 * exact.norm()


@every_dtype
@every_case
def test_values(device, case, dtype):
    x, weight, _, z, _ = inputs(case, dtype, device)
    n = x.shape[-1]
    plain = ops.depthwise_conv(x, weight, *[None] * 6, *geometry(case), 0.0, 0)
    assert_rounded(plain, z.detach())
    vectors = [make(n, dtype=dtype, device=device, seed=s) for s in (4, 5, 6, 7)]
    bias, mean, gamma, beta = vectors
    var = make(n, dtype=dtype, device=device, seed=8).abs() + 0.5
    residual = make(*z.shape, dtype=dtype, device=device, seed=9)
    y = ops.depthwise_conv(
        x, weight, bias, mean, var, gamma, beta, residual, *geometry(case), 1e-5, 1
    )
    wide = [t.double() for t in (bias, mean, var, gamma, beta, residual)]
    exact = (z.detach() + wide[0] - wide[1]) / (wide[2] + 1e-5).sqrt() * wide[3] + wide[4] + wide[5]
    assert_rounded(y, exact.relu())


@every_dtype
@every_case
def test_gradients(device, case, dtype):
    x, weight, dy, z, leaves = inputs(case, dtype, device)
    exact = torch.autograd.grad(z, leaves, dy.double())
    got = ops.depthwise_conv_backward(dy, x, weight, *geometry(case), True, True)
    for a, b in zip(got, exact, strict=True):
        assert_rounded(a, b)
    again = ops.depthwise_conv_backward(dy, x, weight, *geometry(case), True, True)
    assert all(torch.equal(a, b) for a, b in zip(got, again, strict=True))
    only_x, none = ops.depthwise_conv_backward(dy, x, weight, *geometry(case), True, False)
    assert torch.equal(only_x, got[0])
    assert none.shape == (0,)


@every_dtype
def test_addresses_and_strides(device, dtype):
    """Odd addresses have no pairs of channels, odd pairs no eights; other strides are copied."""
    case = ((2, 6, 7, 8), 3, 1, 1)
    x, weight, _, z, _ = inputs(case, dtype, device)
    flat, pairs = (torch.cat([x.flatten()[:n], x.flatten()])[n:].view(x.shape) for n in (1, 2))
    turned = x.transpose(1, 2).contiguous().transpose(1, 2)
    for image in (flat, pairs, turned):
        y = ops.depthwise_conv(image, weight, *[None] * 6, *geometry(case), 0.0, 0)
        assert_rounded(y, z.detach())


def test_empty(device):
    x = torch.randn(0, 5, 5, 4, device=device)
    weight = torch.randn(4, 3, 3, device=device)
    y = ops.depthwise_conv(x, weight, *[None] * 6, 1, 1, 1, 1, 0.0, 0)
    assert y.shape == (0, 5, 5, 4)
    dx, dweight = ops.depthwise_conv_backward(y, x, weight, 1, 1, 1, 1, True, True)
    assert dx.shape == x.shape
    assert torch.equal(dweight, torch.zeros_like(weight))


@every_dtype
@pytest.mark.parametrize(("channels", "kernel"), [(4, 3), (8, 3), (8, 5), (8, 7)])
def test_nan_and_infinity_stay_where_they_are(device, dtype, channels, kernel):
    x = make(1, 12, 12, channels, dtype=dtype, device=device)
    x[0, 4, 4, 1], x[0, 0, 11, 2] = torch.nan, torch.inf
    weight = torch.ones(channels, kernel, kernel, dtype=dtype, device=device)
    reach = kernel // 2
    geometry = (1, 1, reach, reach)
    y = ops.depthwise_conv(x, weight, *[None] * 6, *geometry, 0.0, 0)
    dx, _ = ops.depthwise_conv_backward(x, x, weight, *geometry, True, False)
    for found in (y, dx):
        near = torch.zeros(12, 12, dtype=torch.bool, device=device)
        near[4 - reach : 5 + reach, 4 - reach : 5 + reach] = True
        assert torch.equal(found[0, ..., 1].isnan(), near)
        near = torch.zeros_like(near)
        near[: 1 + reach, 11 - reach :] = True
        assert torch.equal(found[0, ..., 2].isinf(), near)
        assert found[0, ..., [0, 3]].isfinite().all()


@pytest.mark.parametrize("training", [False, True])
def test_the_op_in_front_of_a_norm(device, monkeypatch, training):
    """As on a GPU, with gradients of first and second order."""
    monkeypatch.setattr(conv, "uses_depthwise", lambda *_: True)
    x = torch.randn(2, 4, 7, 6, dtype=torch.float64, device=device, requires_grad=True)
    weight = torch.randn(4, 1, 3, 3, dtype=torch.float64, device=device, requires_grad=True)
    bias = torch.randn(4, dtype=torch.float64, device=device, requires_grad=True)
    mean, var = torch.randn_like(bias).detach(), torch.rand_like(bias).detach() + 0.5
    found = []
    for function in (fusedops.conv_bn_act, fusedops.reference.conv_bn_act):
        y = function(
            x, weight, bias, mean.clone(), var.clone(), activation="silu", training=training,
            padding=1, stride=2, groups=4,
        )  # fmt: skip
        first = torch.autograd.grad(y.square().sum(), (x, weight, bias), create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in first[:2]), (x, weight))
        found.append([y, *first, *second])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("dtype", HALVES, ids=name)
def test_which_convolutions_have_the_kernels(dtype):
    def uses(x, weight, device="cuda", of=dtype, **geometry):
        meta = [torch.empty(s, dtype=of, device="meta") for s in (x, weight)]
        options = {"stride": 1, "padding": 1, "dilation": 1, "groups": x[1], **geometry}
        return conv.uses_depthwise(device, of, weight, conv_problem("op", *meta, **options))

    x, weight = (2, 8, 9, 9), (8, 1, 3, 3)
    assert uses(x, weight)
    assert uses(x, (8, 1, 5, 5), stride=2, padding=2)
    assert not uses(x, weight, device="cpu")
    assert not uses(x, weight, of=torch.float32)
    assert not uses(x, weight, stride=3)
    assert not uses(x, weight, stride=(1, 2))
    assert not uses(x, weight, dilation=2)
    assert uses(x, (8, 1, 7, 7), padding=3)
    assert not uses(x, (8, 1, 7, 7), stride=2)
    assert not uses(x, (8, 1, 9, 9))
    assert not uses(x, (8, 1, 3, 5))
    assert not uses(x, (16, 1, 3, 3))
    assert not uses((2, 7, 9, 9), (7, 1, 3, 3))
    assert not uses((2, 8, 9, 9, 9), (8, 1, 3, 3, 3))


@pytest.mark.parametrize(("kernel", "with_residual"), [(5, True), (7, False), (7, True)])
def test_what_has_the_residual_behind_its_sums(kernel, with_residual):
    x, weight = (2, 8, 9, 9), (8, 1, kernel, kernel)
    meta = [torch.empty(s, dtype=torch.float16, device="meta") for s in (x, weight)]
    problem = conv_problem("op", *meta, 1, kernel // 2, 1, 8)
    path, _ = inference_path("cuda", torch.float16, x, weight, problem, 0, with_residual)
    assert (path == DEPTHWISE) is (kernel < 7 or not with_residual)


# x (N, H, W, C), outputs, kernel, stride, padding: tiles that fit and not, one and two parts of
# outputs and a part of one, more than a block has; then sizes without a kernel of their own.
FIRST = [
    ((2, 32, 64, 3), 64, 7, 2, 3),
    ((1, 19, 41, 3), 24, 7, 2, 3),
    ((3, 8, 9, 3), 32, 3, 2, 1),
    ((1, 37, 35, 3), 136, 3, 2, 0),
    ((2, 9, 9, 3), 64, 7, 2, 8),
    ((1, 36, 70, 3), 16, 7, 2, 2),
    ((1, 9, 9, 3), 5, 7, 2, 3),
    ((2, 8, 9, 4), 16, 5, 3, 2),
]
# The same of image_conv: tiles that fit and not, one and two steps of channels, parts of outputs;
# then channels without a kernel of their own.
IMAGE = [
    ((2, 8, 16, 64), 64, 3, 1, 1),
    ((1, 13, 9, 64), 72, 3, 1, 1),
    ((3, 17, 7, 128), 64, 3, 1, 1),
    ((1, 9, 10, 64), 128, 3, 1, 1),
    ((1, 5, 7, 6), 9, 3, 1, 1),
]


@every_dtype
@pytest.mark.parametrize("case", FIRST, ids=str)
def test_first_layers(device, case, dtype):
    _, _, _, stride, padding = case
    geometry = (stride, stride, padding, padding)
    assert_convolves(
        device, case, dtype, ops.first_conv, (ops.first_conv_image, ops.first_conv_weight), geometry
    )


@every_dtype
@pytest.mark.parametrize("case", IMAGE, ids=str)
def test_layers_of_3x3(device, case, dtype):
    assert_convolves(device, case, dtype, ops.image_conv, (ops.image_conv_backward,), ())


def assert_convolves(device, case, dtype, forward, backward, geometry):
    """The op, its gradients of x and, where there are two, of weight are float64's, rounded."""
    shape, outputs, kernel, stride, padding = case
    x = make(*shape, dtype=dtype, device=device, seed=1)
    scale = (kernel * kernel * shape[3]) ** -0.5
    sizes = (outputs, kernel, kernel, shape[3])
    weight = make(*sizes, dtype=dtype, device=device, seed=2, scale=scale)
    wide = [t.double().requires_grad_() for t in (x, weight)]
    z = F.conv2d(*(t.movedim(-1, 1) for t in wide), None, stride, padding).movedim(1, -1)
    dy = make(*z.shape, dtype=dtype, device=device, seed=3)
    gradients = torch.autograd.grad(z, wide[: len(backward)], dy.double())
    z = z.detach()
    plain = forward(x, weight, *[None] * 5, *geometry, 0.0, 0)
    assert_rounded(plain, z)
    assert torch.equal(plain, forward(x, weight, *[None] * 5, *geometry, 0.0, 0))
    for gradient, exact in zip(backward, gradients, strict=True):
        got = gradient(dy, x, weight, *geometry)
        assert_rounded(got, exact)
        assert torch.equal(got, gradient(dy, x, weight, *geometry))
    vectors = [make(outputs, dtype=dtype, device=device, seed=s) for s in (4, 5, 6, 7)]
    bias, mean, gamma, beta = vectors
    var = make(outputs, dtype=dtype, device=device, seed=8).abs() + 0.5
    y = forward(x, weight, bias, mean, var, gamma, beta, *geometry, 1e-5, 1)
    bias, mean, var, gamma, beta = (t.double() for t in (bias, mean, var, gamma, beta))
    assert_rounded(y, ((z + bias - mean) / (var + 1e-5).sqrt() * gamma + beta).relu())


@pytest.mark.parametrize("dtype", HALVES, ids=name)
def test_what_first_layers_read_beyond_a_window_does_not_count(device, dtype):
    """The last eight values of a window's row are partly those of the next pixels."""
    x = torch.zeros(1, 16, 40, 3, dtype=dtype, device=device)
    x[0, 8, 20] = torch.nan
    weight = torch.ones(8, 7, 7, 3, dtype=dtype, device=device)
    y = ops.first_conv(x, weight, *[None] * 5, 2, 2, 3, 3, 0.0, 0)
    near = torch.zeros(8, 20, dtype=torch.bool, device=device)
    near[3:6, 9:12] = True  # windows of rows 2 i - 3 .. 2 i + 3 with row 8; columns likewise
    assert torch.equal(y[0, ..., 0].isnan(), near)


@pytest.mark.parametrize("dtype", HALVES, ids=name)
def test_what_no_window_of_3x3_sees_does_not_count(device, dtype):
    """Patches hold more pixels than a result sees."""
    x = torch.zeros(2, 20, 17, 64, dtype=dtype, device=device)
    x[1, 8, 15, 3] = torch.nan
    weight = torch.ones(64, 3, 3, 64, dtype=dtype, device=device)
    near = torch.zeros(2, 20, 17, dtype=torch.bool, device=device)
    near[1, 7:10, 14:17] = True
    y = ops.image_conv(x, weight, *[None] * 5, 0.0, 0)
    dx = ops.image_conv_backward(x, x, weight)
    for result in (y, dx):
        assert torch.equal(result.isnan(), near.unsqueeze(-1).expand_as(result))


def layers_of_torch(x, weight, bias, *norm, activation, padding, training):
    """silu(batch_norm(conv2d(x))), rounded behind each of the three."""
    assert activation == "silu"
    y = F.conv2d(x, weight, bias, padding=padding)
    return F.silu(F.batch_norm(y, *norm, training=training))


@pytest.mark.gpu
@pytest.mark.parametrize("outputs", [64, 72])
@pytest.mark.parametrize("training", [True, False])
def test_a_layer_of_3x3(outputs, training):
    """As accurate as torch's layers, with all gradients."""
    x = make(34, 64, 24, 24, dtype=torch.bfloat16, device="cuda", seed=1)
    x = x.to(memory_format=torch.channels_last)
    weight = make(outputs, 64, 3, 3, dtype=torch.bfloat16, device="cuda", seed=2, scale=0.05)
    norm = [make(outputs, dtype=torch.float32, device="cuda", seed=s) for s in range(3, 7)]
    norm[1] = norm[1].abs() + 0.5
    dy = make(34, outputs, 24, 24, dtype=torch.bfloat16, device="cuda", seed=8)
    problem = conv_problem("op", x, weight, 1, 1, 1, 1)
    assert conv.uses_image("cuda", x.dtype, weight.shape, problem)
    found = []
    for function, dtype in (
        (fusedops.conv_bn_act, x.dtype),
        (layers_of_torch, x.dtype),
        (fusedops.reference.conv_bn_act, torch.float64),
    ):
        wide = dtype is torch.float64
        leaves = [t.to(dtype).requires_grad_() for t in (x, weight)]
        own = [t.to(dtype) if wide else t.clone() for t in norm]
        y = function(
            leaves[0], leaves[1], None, *own, activation="silu", padding=1, training=training
        )
        found.append([y.detach(), *torch.autograd.grad(y, leaves, dy.to(dtype))])
        if not training:
            with torch.no_grad():
                args = leaves[0], leaves[1], None, *own
                found[-1].append(function(*args, activation="silu", padding=1, training=False))
    for ours, torchs, exact in zip(*found, strict=True):
        error, torch_error = ((t.double() - exact).norm() for t in (ours, torchs))
        assert error <= 1.1 * torch_error


def test_which_convolutions_are_of_windows():
    def uses(x, weight, of=torch.bfloat16, **geometry):
        meta = [torch.empty(s, dtype=of, device="meta") for s in (x, weight)]
        options = {"stride": 1, "padding": 1, "dilation": 1, "groups": 1, **geometry}
        return conv.uses_image("cuda", of, weight, conv_problem("op", *meta, **options))

    x, weight = (64, 64, 56, 56), (64, 64, 3, 3)
    assert uses(x, weight)
    assert uses((8, 128, 256, 256), (64, 128, 3, 3))
    assert not uses(x, weight, of=torch.float32)
    assert not uses(x, weight, stride=2)
    assert not uses(x, weight, padding=0)
    assert not uses(x, weight, dilation=2)
    assert not uses(x, (64, 64, 5, 5), padding=2)
    assert not uses((64, 64, 28, 28), weight)  # a quarter of the tiles would be beyond it
    assert not uses((1, 64, 56, 56), weight)
    assert not uses((64, 96, 56, 56), (64, 96, 3, 3))
    assert not uses(x, (256, 64, 3, 3))


def test_first_layers_in_front_of_a_norm(device, monkeypatch):
    monkeypatch.setattr(conv, "uses_first", lambda *_: True)
    x = torch.randn(2, 3, 9, 8, dtype=torch.float64, device=device, requires_grad=True)
    weight = torch.randn(8, 3, 3, 3, dtype=torch.float64, device=device, requires_grad=True)
    bias = torch.randn(8, dtype=torch.float64, device=device, requires_grad=True)
    found = []
    for function in (fusedops.conv_bn_act, fusedops.reference.conv_bn_act):
        y = function(x, weight, bias, activation="silu", training=True, padding=1, stride=2)
        first = torch.autograd.grad(y.square().sum(), (x, weight, bias), create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in first[:2]), (x, weight))
        found.append([y, *first, *second])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-8)


def test_layers_of_3x3_in_front_of_a_norm(device, monkeypatch):
    monkeypatch.setattr(conv, "uses_image", lambda *_: True)
    x = torch.randn(2, 6, 9, 8, dtype=torch.float64, device=device, requires_grad=True)
    weight = torch.randn(64, 6, 3, 3, dtype=torch.float64, device=device, requires_grad=True)
    bias = torch.randn(64, dtype=torch.float64, device=device, requires_grad=True)
    found = []
    for function in (fusedops.conv_bn_act, fusedops.reference.conv_bn_act):
        y = function(x, weight, bias, activation="silu", training=True, padding=1)
        once = torch.autograd.grad(y.square().sum(), (x, weight, bias), retain_graph=True)
        first = torch.autograd.grad(y.square().sum(), (x, weight, bias), create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in first[:2]), (x, weight))
        found.append([y, *once, *first, *second])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("op", ["image_conv", "image_conv_backward"])
def test_windows_are_of_3x3(device, op):
    x, weight = torch.ones(2, 5, 5, 8, device=device), torch.ones(8, 2, 3, 8, device=device)
    backward = op == "image_conv_backward"
    given = (torch.ones(2, 6, 5, 8, device=device), x, weight) if backward else (x, weight)
    rest = () if backward else (*[None] * 5, 0.0, 0)
    with pytest.raises(RuntimeError, match=rf"{op}: weight must have shape \(O, 3, 3, C\); got"):
        getattr(ops, op)(*given, *rest)


def test_which_convolutions_are_first_layers():
    def uses(outputs=64, channels=3, kernel=7, of=torch.bfloat16, **geometry):
        sizes = (2, channels, 32, 32), (outputs, channels, kernel, kernel)
        meta = [torch.empty(s, dtype=of, device="meta") for s in sizes]
        options = {"stride": 2, "padding": 3, "dilation": 1, "groups": 1, **geometry}
        return conv.uses_first("cuda", of, sizes[1], conv_problem("op", *meta, **options))

    assert uses()
    assert uses(kernel=3, outputs=32)
    assert not uses(kernel=5)
    assert not uses(stride=1)
    assert not uses(channels=4)
    assert not uses(outputs=60)
    assert not uses(of=torch.float32)
    assert not uses(dilation=2)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", HALVES, ids=name)
@pytest.mark.parametrize(
    "shape", [(64, 56, 56, 96, 3, 2), (32, 28, 28, 144, 5, 1), (16, 14, 14, 480, 5, 1)], ids=str
)
def test_layers_of_a_network(dtype, shape):
    *image, kernel, stride = shape
    case = (tuple(image), kernel, stride, kernel // 2)
    x, weight, dy, z, leaves = inputs(case, dtype, "cuda")
    y = ops.depthwise_conv(x, weight, *[None] * 6, *geometry(case), 0.0, 0)
    assert_rounded(y, z.detach())
    got = ops.depthwise_conv_backward(dy, x, weight, *geometry(case), True, True)
    for a, b in zip(got, torch.autograd.grad(z, leaves, dy.double()), strict=True):
        assert_rounded(a, b)
