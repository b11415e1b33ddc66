"""Norms that quantise: as a norm followed by the quantiser, and in front of FP8 layers."""

from __future__ import annotations

import copy

import pytest
import torch

import fusedops
from fusedops import fp8, reference
from util import HALVES, make, name

OP = torch.ops.fusedops._fp8_norm
QUANTIZE = torch.ops.fusedops.fp8_quantize
# Less than a tile, whole ones, tiles cut in every way, long rows, and ones that vectors
# cannot read.
SHAPES = [(5, 8), (128, 256), (300, 264), (260, 1032), (129, 2048), (130, 4104), (64, 5120),
          (3, 12296), (129, 1030)]  # fmt: skip
# Enough elements for the kernel that does both: rows and tiles whole and cut, rows of one to eight
# warps.
MANY_ROWS = [(33000, 1024), (33000, 1040), (16400, 2056), (8192, 4096), (8192, 4104), (8200, 6144),
             (5001, 8192)]  # fmt: skip
RECIPE = fp8.Recipe(when="always")

pytestmark = pytest.mark.filterwarnings("ignore:fusedops.fp8")


def as_bytes(tensor):
    return tensor.view(torch.uint8)


def inputs(m, k, dtype, device, residual, parameters=None):
    x, other = (make(m, k, dtype=dtype, device=device, seed=s) for s in range(2))
    weight, bias = (
        make(k, dtype=parameters or dtype, device=device, seed=s) for s in (2, 3)
    )  # fmt: skip
    return x, other if residual else None, weight, bias


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("dtype", HALVES, ids=name)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rms_norm_is_what_the_quantiser_makes_of_the_norm(device, shape, dtype, residual):
    check_rms_norm(*inputs(*shape, dtype, device, residual)[:3])


@pytest.mark.parametrize("parameters", [None, torch.float32], ids=str)
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("dtype", HALVES, ids=name)
def test_rms_norm_of_many_rows(device, dtype, residual, parameters):
    check_rms_norm(*inputs(2200, 264, dtype, device, residual, parameters)[:3])


@pytest.mark.gpu
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("shape", MANY_ROWS, ids=str)
def test_rms_norm_in_one_kernel(shape, residual, weighted):
    x, other, weight, _ = inputs(*shape, torch.bfloat16, "cuda", residual)
    check_rms_norm(x, other, weight if weighted else None)


@pytest.mark.gpu
@pytest.mark.parametrize("power_of_two", [False, True])
@pytest.mark.parametrize("dtype", HALVES, ids=name)
def test_odd_rows_in_one_kernel(dtype, power_of_two):
    """Zeros, NaN, infinities, subnormals and rows of very different size, among 2^24 elements."""
    x, _, weight, _ = inputs(8200, 2056, dtype, "cuda", False)
    x *= torch.logspace(-6, 4, 8200, base=2, device="cuda")[:, None].to(dtype)
    x[40:300] = 0
    x[700, 5], x[701, 2055], x[8199, 0] = float("nan"), float("inf"), -float("inf")
    weight[128:256] *= 1e-6
    check_rms_norm(x, None, weight, power_of_two=power_of_two)


@pytest.mark.parametrize("sides", [(3, 0), (0, 4), (3, 3)], ids=str)
@pytest.mark.parametrize("format", [0, 1])
def test_one_side_and_other_formats(device, sides, format):
    x, other, weight, _ = inputs(300, 1032, torch.bfloat16, device, True)
    check_rms_norm(x, other, weight, format, sides, power_of_two=format == 1)


def check_rms_norm(x, other, weight, format=0, sides=(3, 4), power_of_two=False):
    """Bit for bit, given the row's statistic, whose sum may have another order."""
    dtype = x.dtype
    q, scale, q_t, scale_t, total, mean, rstd = OP(
        x, other, weight, None, True, 1e-6, format, *sides, power_of_two
    )
    normed = x if other is None else (x.float() + other.float()).to(dtype)
    if other is not None:
        assert torch.equal(total, normed)
    exact = (normed.double().square().mean(1) + 1e-6).rsqrt()
    torch.testing.assert_close(rstd.double(), exact, rtol=2e-6, atol=0, equal_nan=True)
    assert mean.numel() == 0
    y = normed.float() * rstd[:, None]
    y = (y if weight is None else y * weight.float()).to(dtype)
    check_quantized((q, scale, q_t, scale_t), y, format, sides, power_of_two)


def check_quantized(found, y, format=0, sides=(3, 4), power_of_two=False):
    wanted = QUANTIZE(y, None, None, 0, False, format, *sides, power_of_two, False, False)
    for got, want in zip(found, wanted, strict=False):
        assert got.shape == want.shape
        assert torch.equal(as_bytes(got), as_bytes(want))


@pytest.mark.gpu
@pytest.mark.parametrize("parameters", [None, torch.float32], ids=str)
@pytest.mark.parametrize("shape", MANY_ROWS, ids=str)
def test_layer_norm_in_one_kernel(shape, parameters):
    """Bit for bit, given the row's statistics. Two passes, of other calls, may round otherwise."""
    x, _, weight, bias = inputs(*shape, torch.bfloat16, "cuda", False, parameters)
    normed = x + 1
    *found, _, mean, rstd = OP(normed, None, weight, bias, False, 1e-5, 0, 3, 4, False)
    wide = normed.double()
    torch.testing.assert_close(mean.double(), wide.mean(1), rtol=1e-5, atol=1e-6)
    exact = (wide.var(1, correction=0) + 1e-5).rsqrt()
    torch.testing.assert_close(rstd.double(), exact, rtol=1e-5, atol=0)
    scaled = (normed.float() - mean[:, None]) * rstd[:, None]
    y = (scaled.double() * weight.double() + bias.double()).float().to(x.dtype)
    check_quantized(found, y)


@pytest.mark.gpu
@pytest.mark.parametrize("rms", [True, False])
def test_one_kernel_gives_the_same_bits_again(rms):
    x, other, weight, bias = inputs(8200, 4096, torch.bfloat16, "cuda", True)
    first, second = (
        OP(x, other, weight, None if rms else bias, rms, 1e-5, 0, 3, 4, False) for _ in range(2)
    )
    for a, b in zip(first, second, strict=True):
        assert torch.equal(as_bytes(a), as_bytes(b))


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("dtype", HALVES, ids=name)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_layer_norm_against_float64(device, shape, dtype, residual):
    m, k = shape
    x, other, weight, bias = inputs(m, k, dtype, device, residual, torch.float32)
    x = x + 3
    q, scale, q_t, scale_t, _, mean, rstd = OP(x, other, weight, bias, False, 1e-5, 0, 3, 4, False)
    normed = x if other is None else (x.float() + other.float()).to(dtype)
    wide = normed.double()
    torch.testing.assert_close(mean.double(), wide.mean(1), rtol=1e-5, atol=1e-6)
    exact_rstd = (wide.var(1, correction=0) + 1e-5).rsqrt()
    torch.testing.assert_close(rstd.double(), exact_rstd, rtol=1e-5, atol=0)
    exact = reference.layer_norm(wide, (k,), weight.double(), bias.double(), 1e-5)
    rows = fp8.dequantize(q[:, :k], scale[:, :m].t(), torch.float64)
    columns = fp8.dequantize(q_t[:, :m], scale_t, torch.float64)
    for got, want, scaling in ((rows, exact, "block"), (columns, exact.t(), "tile")):
        quantized = reference.fp8_quantize(want, scaling, torch.float8_e4m3fn)
        error = (reference.fp8_dequantize(*quantized) - want).norm()
        assert (got - want).norm() <= 1.05 * error + 3e-3 * want.norm()
    assert not q[:, k:].float().any()
    assert not q_t[:, m:].float().any()


def test_nan_and_inf_mark_their_rows(device):
    x = make(200, 512, dtype=torch.bfloat16, device=device, seed=0)
    x[3, 5], x[150, 400] = float("nan"), float("inf")
    _, scale, _, scale_t, *_ = OP(x, None, None, None, True, 1e-6, 0, 3, 3, False)
    bad = scale[:, :200].isnan().any(0)
    assert bad.nonzero().flatten().tolist() == [3, 150]
    assert scale_t.isnan().any()


@pytest.mark.parametrize("m", [0, 3])
def test_functions_and_leading_dimensions(device, m):
    x = make(2, m, 256, dtype=torch.bfloat16, device=device, seed=0)
    weight = make(256, dtype=torch.bfloat16, device=device, seed=1)
    plain = fp8.quantize(fusedops.rms_norm(x, 256, weight), transposed=True)
    found, total = fp8.rms_norm(x, weight, residual=torch.zeros_like(x), transposed=True)
    assert torch.equal(total, x)
    assert found.q.shape == (2 * m, 256)
    for got, want in zip(found, plain, strict=True):
        assert (got.shape, got.stride()) == (want.shape, want.stride())
    normed = fp8.layer_norm(x, weight)
    assert normed.q_t is None
    assert normed.scale.shape == (2 * m, 2)


def test_errors(device):
    x = make(4, 16, dtype=torch.bfloat16, device=device)
    with pytest.raises(RuntimeError, match="_fp8_norm: bias must be None for an RMS norm"):
        OP(x, None, None, x[0], True, 1e-6, 0, 3, 4, False)
    with pytest.raises(RuntimeError, match=r"^rms_norm: weight must have the shape of the last 1"):
        fp8.rms_norm(x, x[0, :8])
    with pytest.raises(RuntimeError, match=r"^layer_norm: residual must have shape"):
        fp8.layer_norm(x, residual=x[:2])
    with pytest.raises(TypeError, match=r"^layer_norm: eps must be a number; got NoneType"):
        fp8.layer_norm(x, eps=None)
    with pytest.raises(TypeError, match=r"^rms_norm: power_of_two_scales must be a bool; got str"):
        fp8.rms_norm(x, power_of_two_scales="yes")
    with pytest.raises(TypeError, match=r"PreNorm: norm must be a fusedops\.nn\.LayerNorm or"):
        fusedops.nn.PreNorm(torch.nn.LayerNorm(16), fusedops.nn.Linear(16, 16))
    with pytest.raises(TypeError, match="PreNorm: layer must be a "):
        fusedops.nn.PreNorm(fusedops.nn.RMSNorm(16), torch.nn.Linear(16, 16))


def layers(kind, recipe, **options):
    if kind == "linear":
        return fusedops.nn.Linear(256, 384, activation="gelu", recipe=recipe, **options)
    if kind == "mlp":
        return fusedops.nn.MLP(256, 384, recipe=recipe, **options)
    return fusedops.nn.GatedMLP(256, 384, packed=kind == "packed", recipe=recipe, **options)


def block_of(kind, device, rms=True, recipe=RECIPE, dtype=torch.bfloat16):
    torch.manual_seed(0)
    options = {"device": device, "dtype": dtype}
    norm = (fusedops.nn.RMSNorm if rms else fusedops.nn.LayerNorm)(256, **options)
    return fusedops.nn.PreNorm(norm, layers(kind, recipe, **options))


def gradients(block, x, residual, apart):
    tensors = [x.detach().requires_grad_(), residual.detach().requires_grad_()]
    if apart:
        y, total = block.norm(*tensors)
        y = block.layer(y)
    else:
        y, total = block(*tensors)
    parameters = [*tensors, *block.parameters()]
    loss = (y.float() * torch.linspace(-1, 1, y.shape[-1], device=y.device)).sum()
    loss = loss + total.float().square().sum()
    return [y, total, *torch.autograd.grad(loss, parameters)]


@pytest.mark.parametrize("rms", [True, False])
@pytest.mark.parametrize("kind", ["linear", "mlp", "gated", "packed"])
def test_blocks_are_norm_and_layer_one_after_the_other(device, kind, rms):
    block = block_of(kind, device, rms)
    x, residual = (make(2, 70, 256, dtype=torch.bfloat16, device=device, seed=s) for s in (1, 2))
    fused, apart = (gradients(block, x, residual, a) for a in (False, True))
    for got, want in zip(fused, apart, strict=True):
        # NOTE: a GPU's sums of a row may have another order, and a value the next e4m3 then.
        scale = want.float().norm()
        assert (got.float() - want.float()).norm() <= (0 if device == "cpu" else 0.01) * scale


def test_the_norms_result_is_never_written(device, monkeypatch):
    block = block_of("gated", device)
    monkeypatch.setattr(block.norm, "eps", 1e-6)
    calls = []
    real = torch.ops.fusedops._fp8_norm.default
    monkeypatch.setattr("fusedops.fp8.normed._fp8_norm", lambda *a: calls.append(a) or real(*a))
    block(make(8, 256, dtype=torch.bfloat16, device=device))
    assert len(calls) == 1


@pytest.mark.parametrize("case", ["hook", "recipe", "scaling", "fp32", "no recipe"])
def test_what_runs_apart(device, case, monkeypatch):
    monkeypatch.setattr(
        "fusedops.fp8.normed._fp8_norm", lambda *a: pytest.fail("the norm quantised")
    )
    recipe = {"scaling": fp8.Recipe("row", when="always"), "no recipe": None}.get(case, RECIPE)
    dtype = torch.float32 if case == "fp32" else torch.bfloat16
    block = block_of("gated", device, recipe=recipe, dtype=dtype)
    x = make(130, 256, dtype=dtype, device=device)
    if case == "hook":
        block.norm.register_forward_hook(lambda *a: None)
    if case == "recipe":
        block.layer.gate_proj.register_forward_hook(lambda *a: None)
    torch.testing.assert_close(block(x), block.layer(block.norm(x)))


def test_frozen_weights_and_inference(device):
    block = block_of("gated", device)
    x = make(40, 256, dtype=torch.bfloat16, device=device)
    with torch.no_grad():
        torch.testing.assert_close(block(x), block.layer(block.norm(x)), rtol=0.05, atol=0.05)
    for parameter in block.layer.parameters():
        parameter.requires_grad_(False)
    (gradient,) = torch.autograd.grad(block(x).float().sum(), block.norm.weight)
    assert gradient.isfinite().all()
    y = block(x.requires_grad_())
    with pytest.raises(RuntimeError, match="second derivatives"):
        torch.autograd.grad(y.float().sum(), x, create_graph=True)


def test_autocast_and_state_dicts(device):
    block = block_of("mlp", device, rms=False, dtype=torch.float32)
    x = make(40, 256, dtype=torch.bfloat16, device=device).requires_grad_()
    with torch.autocast(device, torch.bfloat16):
        y = block(x)
    assert y.dtype is torch.bfloat16
    y.float().sum().backward()
    assert block.norm.weight.grad.dtype is torch.float32
    again = copy.deepcopy(block)
    again.load_state_dict(block.state_dict())
    assert set(block.state_dict()) >= {"norm.weight", "norm.bias", "layer.fc1.weight"}


@pytest.mark.parametrize("kind", ["linear", "gated"])
def test_compiles_to_one_graph(device, kind):
    torch.compiler.reset()  # each block is compiled anew, and only so many are in a process
    block = block_of(kind, device)
    x, residual = (make(64, 256, dtype=torch.bfloat16, device=device, seed=s) for s in (1, 2))
    eager = gradients(block, x, residual, False)
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    tensors = [x.requires_grad_(), residual.requires_grad_()]
    y, total = compiled(*tensors)
    loss = (y.float() * torch.linspace(-1, 1, y.shape[-1], device=y.device)).sum()
    found = torch.autograd.grad(
        loss + total.float().square().sum(), [*tensors, *block.parameters()]
    )
    for got, want in zip((y, total, *found), eager, strict=True):
        torch.testing.assert_close(
            got, want, rtol=0.02, atol=0.02 * float(want.detach().abs().max())
        )


@pytest.mark.parametrize("with_residual", [False, True])
@pytest.mark.parametrize("rms", [True, False])
def test_compiles_to_one_graph_where_the_sum_is_not_used(device, rms, with_residual):
    torch.compiler.reset()  # each block is compiled anew, and only so many are in a process
    block = block_of("linear", device, rms)
    given = [make(64, 256, dtype=torch.bfloat16, device=device, seed=s) for s in (1, 2)]
    given = given[: 1 + with_residual]
    found = []
    for call in (block, torch.compile(block, fullgraph=True, backend="aot_eager")):
        tensors = [t.detach().clone().requires_grad_() for t in given]
        y = call(*tensors)[0] if with_residual else call(*tensors)
        grads = torch.autograd.grad(y.float().square().sum(), [*tensors, *block.parameters()])
        found.append((y, *grads))
    for got, want in zip(*found, strict=True):
        scale = want.float().norm()
        assert (got.float() - want.float()).norm() <= (0 if device == "cpu" else 0.01) * scale
