"""The hidden layer of an MLP in one pass: its gradients and values in FP8, against passes apart."""

from __future__ import annotations

import math

import pytest
import torch

import fusedops
from fusedops import fp8, reference
from fusedops._core.activation import CODES, SAVES_OUTPUT
from util import ACTIVATIONS, HALVES, Calls, make, name

OP = torch.ops.fusedops._fp8_hidden_grads
PAIR = torch.ops.fusedops._fp8_quantize_pair
QUANTIZE = torch.ops.fusedops.fp8_quantize
# Less than a tile, whole ones, and tiles that are cut in every way; one that vectors cannot read.
SHAPES = [(5, 8), (128, 256), (300, 264), (129, 1030)]

pytestmark = pytest.mark.filterwarnings("ignore:fusedops.fp8")


def by_rows(q, scale, m, k):
    return fp8.dequantize(q[:, :k], scale[:, :m].t(), torch.float64)


def relative(a, b):
    return ((a.double() - b).norm() / b.norm()).item()


def exact_parts(dh, saved, factor, activation):
    """(gradients, hidden values) in float64."""
    dh, z = dh.double(), saved.double()
    if factor is None and SAVES_OUTPUT[CODES[activation]]:
        dz = torch.ops.fusedops.act_backward_bias_grad(
            dh.cpu(), z.cpu(), CODES[activation], True, False
        )[0]
        return [dz.to(dh.device)], z
    z = z.requires_grad_()
    value = reference.activate(z, activation)
    (slope,) = torch.autograd.grad(value.sum(), z)
    value = value.detach()
    if factor is None:
        return [dh * slope], value
    return [dh * slope * factor.double(), dh * value], value * factor.double()


def inputs(m, k, dtype, device, activation, gated):
    dh, z, factor = (make(m, k, dtype=dtype, device=device, seed=s) for s in range(3))
    if not gated and SAVES_OUTPUT[CODES[activation]]:
        z = reference.activate(z.double(), activation).to(dtype)
    return dh, z, factor if gated else None


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradients_and_values_of_every_activation(device, activation, gated):
    m, k = 140, 200
    code = CODES[activation]
    for dtype in (*HALVES, torch.float32):
        dh, saved, factor = inputs(m, k, dtype, device, activation, gated)
        q, scale, q_t, scale_t, h_t, h_scale, sums = OP(
            dh, saved, factor, code, 0, True, True, 4, False, True, True
        )
        exact, hidden = exact_parts(dh, saved, factor, activation)
        width, blocks = q.shape[1] // len(exact), scale.shape[0] // len(exact)
        for i, part in enumerate(exact):
            rows = q[:, i * width :], scale[i * blocks : (i + 1) * blocks]
            assert relative(by_rows(*rows, m, k), part) < 0.04
            columns = q_t[i * k : (i + 1) * k], scale_t[:, i * k : (i + 1) * k]
            assert relative(by_rows(*columns, k, m), part.t()) < 0.04
            # NOTE: a derivative that jumps, met by another rounding, counts.
            assert relative(sums[i * k : (i + 1) * k], part.sum(0)) < 0.01
        assert relative(fp8.dequantize(h_t[:, :m], h_scale, torch.float64), hidden.t()) < 0.04


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("gated", [False, True])
def test_scales_and_layouts_are_the_quantisers(device, shape, gated):
    """They are those of the values that the passes apart give: a relu's are the same in both."""
    m, k = shape
    for dtype in HALVES:
        dh, saved, factor = inputs(m, k, dtype, device, "relu", gated)
        for format, hidden, power_of_two in ((0, 4, False), (1, 3, True)):
            got = OP(dh, saved, factor, 1, format, True, True, hidden, power_of_two, False, False)
            parts = [QUANTIZE(dh, saved, factor, 1, True, format, 3, 3, power_of_two, False, False)]
            if gated:
                parts.append(
                    QUANTIZE(saved, None, dh, 1, False, format, 3, 3, power_of_two, False, False)
                )
            h = QUANTIZE(
                saved, None, factor, int(gated), False, 0, 0, hidden, power_of_two, False, False
            )
            expected = (
                torch.cat([p[0].float() for p in parts], 1),
                torch.cat([p[1] for p in parts]),
                torch.cat([p[2].float() for p in parts]),
                torch.cat([p[3][:, :k] for p in parts], 1),
                h[2].float(),
                h[3],
            )
            got = [t.float() for t in got[:6]]
            got[3] = got[3][:, : len(parts) * k]
            for a, b in zip(got, expected, strict=True):
                torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_strides_and_what_is_not_wanted(device):
    dh, z, up = (make(140, 400, dtype=torch.bfloat16, device=device, seed=s) for s in range(3))
    views = dh[:, 200:], z[:, :200], up[:, 1:201]
    options = 4, 0, True, False, 0, False, False, False
    got = OP(*views, *options)
    for a, b in zip(got, OP(*(v.contiguous() for v in views), *options), strict=True):
        torch.testing.assert_close(a.float(), b.float(), rtol=0, atol=0)
    assert [t.numel() == 0 for t in got] == [False, False, True, True, True, True, True]


def test_nan_and_infinity_show_in_their_blocks(device):
    dh, gate, up = (make(260, 300, dtype=torch.bfloat16, device=device, seed=s) for s in range(3))
    gate[130, 200] = math.nan
    dh[3, 7] = math.inf
    q, scale, _, scale_t, _, h_scale, _ = OP(
        dh, gate, up, CODES["silu"], 0, True, True, 4, False, False, False
    )
    assert scale[:, :260].isnan().sum() == 4  # two rows of gate's part and of up's
    assert scale[0, 3].isnan()
    assert scale[1, 130].isnan()
    assert scale_t[:, :600].isnan().sum() == 4
    assert h_scale.isnan().nonzero().tolist() == [[1, 1]]
    assert not q[0].float().isnan().any()


def test_empty_and_errors():
    for shape in ((0, 8), (8, 0)):
        x = torch.empty(shape)
        q, _, q_t, *_ = OP(x, x, x, 4, 0, True, True, 4, False, True, True)
        assert q.shape[0] == shape[0]
        assert q_t.shape[0] == 2 * shape[1]
    x = torch.ones(4, 6)
    for to in ("cpu", "meta"):
        y = x.to(to)
        with pytest.raises(RuntimeError, match="_fp8_hidden_grads: hidden must be 0, 3 or 4; got"):
            OP(y, y, None, 1, 0, True, True, 2, False, False, False)
        with pytest.raises(
            RuntimeError, match=r"_fp8_hidden_grads: saved must have shape \(4, 6\)"
        ):
            OP(y, y[:2], None, 1, 0, True, True, 3, False, False, False)
        with pytest.raises(RuntimeError, match="a must have a multiple of 128 rows; got shape"):
            PAIR(y, y, 0, True, False)
        with pytest.raises(RuntimeError, match="_fp8_quantize_pair: format must be a code"):
            PAIR(y, y, 2, True, False)


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32], ids=name)
def test_two_weights_are_quantised_as_one(device, dtype):
    a, b = (make(256, 200, dtype=dtype, device=device, seed=s) for s in range(2))
    for power_of_two in (False, True):
        expected = QUANTIZE(
            torch.cat([a, b]), None, None, 0, False, 0, 4, 4, power_of_two, False, False
        )
        for got, other in zip(PAIR(a, b, 0, True, power_of_two), expected[:4], strict=True):
            assert torch.equal(got.float(), other.float())


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_gate_and_up_in_one_product(device, packed, bias):
    """A hidden size that 128 divides: the block is that of halves that are multiplied apart."""
    recipe = fp8.Recipe(when="always")
    block = fusedops.nn.GatedMLP(72, 256, bias=bias, packed=packed, recipe=recipe)
    block.to(device, torch.bfloat16)
    x = make(140, 72, dtype=torch.bfloat16, device=device).requires_grad_()
    dy = make(140, 72, dtype=torch.bfloat16, device=device, seed=1)
    wanted = (x, *block.parameters())
    with Calls() as calls:
        y = block(x)
        got = (y, *torch.autograd.grad(y, wanted, dy))
    assert calls.ours.count("_fp8_hidden_grads") == 1
    assert calls.ours.count("_fp8_matmul") == (6 if packed else 7)
    # In bf16, of which FP8 is as far as its errors say.
    block.recipe = None
    y = block(x)
    for a, b in zip(got, (y, *torch.autograd.grad(y, wanted, dy)), strict=True):
        assert a.dtype is torch.bfloat16
        assert relative(a, b.double()) < 0.09


def test_a_pair_is_kept_until_either_weight_changes():
    recipe = fp8.Recipe(when="always")
    block = fusedops.nn.GatedMLP(32, 128, bias=False, recipe=recipe)
    x = torch.randn(16, 32)
    with torch.no_grad():
        before = block(x)
        with Calls() as calls:
            assert torch.equal(block(x), before)
        assert "_fp8_quantize_pair" not in calls.ours
        up = next(p for name, p in block.named_parameters() if "up" in name)
        up.mul_(2)
        assert not torch.equal(block(x), before)
        up.data.mul_(0.5)
        fp8.invalidate(up)
        assert torch.equal(block(x), before)
