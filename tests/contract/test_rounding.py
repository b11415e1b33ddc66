"""Half precision is computed in fp32 and rounded once: activations see z, sums see their terms."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import fusedops
from util import ACTIVATIONS, HALVES, TORCH_ACTIVATION, make, name

OPS = torch.ops.fusedops
every_half = pytest.mark.parametrize("dtype", HALVES, ids=name)
RELU2 = ACTIVATIONS.index("relu2")


def one(value, device):
    return torch.tensor([[value]], dtype=torch.float16, device=device)


@pytest.mark.parametrize("activation", ACTIVATIONS[2:])
def test_a_preactivation_beyond_fp16_is_no_infinity(device, activation):
    x, w = one(300.0, device), one(-300.0, device)
    expected = TORCH_ACTIVATION[activation](torch.tensor([[-90000.0]], device=device)).half()
    needs_grad = w.clone().requires_grad_()  # takes the form that keeps z
    for weight in (w, needs_grad):
        assert torch.equal(fusedops.linear(x, weight, None, activation), expected)
        assert torch.equal(fusedops.matmul(x, weight, None, activation), expected)
        y = fusedops.mlp(x, weight, None, one(2.0, device), None, activation)
        assert torch.equal(y, 2 * expected)


@pytest.mark.parametrize("grad", [False, True])
def test_gate_and_up_are_not_rounded_before_their_product(grad):  # on a GPU they may be
    x, w = one(300.0, "cpu"), one(-300.0, "cpu").requires_grad_(grad)
    up = one(2.0, "cpu")
    assert fusedops.gated_mlp(x, w, up, up, activation="silu").item() == 0
    y = fusedops.gated_mlp(x, torch.cat([w, up]), None, up, activation="sigmoid")
    assert y.item() == 0


@every_half
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_linear_rounds_once(device, activation, grad, dtype):
    if device != "cpu" and activation not in ("none", "relu", "relu2"):
        pytest.skip("the GPU's exp and tanh are approximations of half precision's accuracy")
    x, w = (make(n, 1, dtype=dtype, device=device, scale=3, seed=n) for n in (257, 65))
    z = x.float() @ w.float().t()  # exact
    exact = TORCH_ACTIVATION[activation](z).to(dtype)
    y = fusedops.linear(x.requires_grad_(grad), w, None, activation)
    assert torch.equal(y, exact)
    assert torch.equal(fusedops.matmul(x, w.t(), None, activation), exact)
    if grad and activation not in ("none", "relu"):
        kept = OPS.linear_preact(x.detach(), w, None, ACTIVATIONS.index(activation), False)[1]
        assert torch.equal(kept, z.to(dtype))


@every_half
def test_mlp_rounds_the_hidden_layer_and_the_residual_once(dtype):
    x, w1, w2, residual = (
        make(*s, dtype=dtype, device="cpu", seed=i)
        for i, s in enumerate([(64, 1), (1, 1), (7, 1), (64, 7)])
    )
    hidden = F.silu(x.float() * w1.float()).to(dtype)
    exact = (hidden.float() @ w2.float().t() + residual.float()).to(dtype)
    assert torch.equal(fusedops.mlp(x, w1, None, w2, None, "silu", residual), exact)
    gated = (F.silu(x.float() * w1.float()) * (x.float() * w1.float())).to(dtype)
    exact = (gated.float() @ w2.float().t() + residual.float()).to(dtype)
    y = fusedops.gated_mlp(x, w1, w1, w2, activation="silu", residual=residual)
    assert torch.equal(y, exact)


def assert_sums(result, terms):
    """result (N,) is the sum of terms (M, N), fp64, of which none was rounded to half."""
    exact = terms.sum(0)
    allowed = torch.finfo(result.dtype).eps / 2 * exact.abs() + 2e-6 * terms.abs().sum(0)
    error = (result.double() - exact).abs()
    assert (error <= allowed).all(), f"error {(error / allowed).max():.1f} times the allowed one"


def operands(device, dtype, rows=3000, columns=40):
    """dy, x (rows, columns) and scale, bias (columns,)."""
    shapes = [(rows, columns)] * 2 + [(columns,)] * 2
    return [make(*s, dtype=dtype, device=device, seed=i) for i, s in enumerate(shapes)]


@every_half
def test_bias_gradients_sum_what_is_not_rounded(device, dtype):
    dy, z, *_ = operands(device, dtype)
    terms = 2 * z.double().relu() * dy.double()
    dz, dbias = OPS.act_backward_bias_grad(dy, z, RELU2, True, False)
    assert_sums(dbias, terms)
    assert torch.equal(dz, (2 * z.float().relu() * dy.float()).to(dtype))
    x, weight = (make(n, 1, dtype=dtype, device=device) for n in (len(dy), dy.shape[1]))
    gradients = OPS.linear_backward(dy, x, weight, z, RELU2, False, False, True, False, False)
    assert_sums(gradients[2], terms)


@every_half
def test_gradients_of_scale_and_bias_sum_what_is_not_rounded(device, dtype):
    dy, x, scale, bias = operands(device, dtype)
    scale.requires_grad_(), bias.requires_grad_()
    y = fusedops.scale_bias_act(x, scale, bias, "relu2")
    dscale, dbias = torch.autograd.grad(y, (scale, bias), dy)
    z = (x.double() * scale.double() + bias.double()).detach()
    dz = 2 * z.relu() * dy.double()
    assert_sums(dscale, dz * x.double())
    assert_sums(dbias, dz)


@every_half
def test_the_bias_gradient_of_dropout_sums_what_is_not_rounded(device, dtype):
    dy, x, _, bias = operands(device, dtype)
    seed = torch.tensor([7], device=device)
    y = fusedops.bias_dropout_residual(x, bias.requires_grad_(), None, 0.1, seed=seed)
    kept = fusedops.bias_dropout_residual(torch.ones_like(x), p=0.1, seed=seed) != 0
    (dbias,) = torch.autograd.grad(y, bias, dy)
    assert_sums(dbias, dy.double() * kept / 0.9)


@every_half
def test_gradients_of_broadcast_factors_sum_what_is_not_rounded(device, dtype):
    dy, x, a, b = operands(device, dtype)
    terms = dy.double() * x.double()
    for factor in (a.requires_grad_(), a.detach().unsqueeze(0).requires_grad_()):
        for call in (lambda f: fusedops.fma(f, x, b), lambda f: fusedops.fma(x, f, b)):
            (gradient,) = torch.autograd.grad(call(factor), factor, dy)
            assert_sums(gradient.flatten(), terms)
    (db,) = torch.autograd.grad(fusedops.fma(a, x, b.requires_grad_()), b, dy)
    assert_sums(db, dy.double())


@every_half
@pytest.mark.parametrize("function", ["layer_norm", "rms_norm"])
def test_parameter_gradients_of_norms_sum_what_is_not_rounded(device, function, dtype):
    dy, x, weight, bias = operands(device, dtype)
    leaves = [weight.requires_grad_(), bias.requires_grad_()][: 1 if function == "rms_norm" else 2]
    y = getattr(fusedops, function)(x, (x.shape[1],), *leaves)
    gradients = torch.autograd.grad(y, leaves, dy)
    wide = x.double()
    if function == "layer_norm":
        normal = F.layer_norm(wide, (x.shape[1],))
        assert_sums(gradients[1], dy.double())
    else:
        normal = F.rms_norm(wide, (x.shape[1],), eps=torch.finfo(torch.float32).eps)
    assert_sums(gradients[0], dy.double() * normal)


@every_half
@pytest.mark.parametrize("packed", [False, True])
def test_bias_gradients_inside_mlps_sum_what_is_not_rounded(packed, dtype):  # on a GPU dh may be
    dy, z, *_ = operands("cpu", dtype)
    w2 = make(dy.shape[1], z.shape[1], dtype=dtype, device="cpu", scale=0.2)
    dh = dy.double() @ w2.double()
    dbias = OPS.mlp_backward(dy, z, w2, RELU2, False, True, False, False, False, False)[1]
    assert_sums(dbias, 2 * z.double().relu() * dh)
    saved = torch.stack([z, dy], dim=1 if packed else 0)
    dbias = OPS.gated_mlp_backward(
        dy, saved, w2, RELU2, packed, False, True, False, False, False, False
    )[1]
    assert_sums(dbias[0], 2 * z.double().relu() * dh * dy.double())
    assert_sums(dbias[1], z.double().relu().square() * dh)
