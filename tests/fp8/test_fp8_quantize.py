"""fp8.quantize and its op: values bit for bit, scales, what no number is, sums and activations."""

from __future__ import annotations

import math

import pytest
import torch

import fusedops
from fusedops import fp8, reference
from fusedops._core.fp8 import BLOCK, SCALING_CODES, scale_shape
from util import ACTIVATIONS, DTYPES, LAYOUTS, make, name

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
FORMATS = (E4M3, E5M2)
OP = torch.ops.fusedops.fp8_quantize
# A tile and less, whole tiles, tiles that are cut in every way.
SHAPES = [(1, 1), (5, 7), (128, 128), (256, 384), (129, 257), (300, 72), (17, 1030)]
SCALINGS = ("block", "tile", "row", "tensor")


def bits(tensor):
    """The bytes of an FP8 tensor."""
    return tensor.contiguous().view(torch.uint8)


def of_range(m, k, device, dtype=torch.float32):
    """Values over 20 binades, with rows, columns and tiles that differ."""
    x = make(m, k, dtype=torch.float32, device=device, seed=1)
    rows = make(m, 1, dtype=torch.float32, device=device, seed=2, scale=3)
    columns = make(1, k, dtype=torch.float32, device=device, seed=3, scale=3)
    return (x * torch.exp2(rows + columns)).to(dtype)


def assert_is_reference(got, scale, x, scaling, dtype, power_of_two=False):
    q, expected = reference.fp8_quantize(x.float(), scaling, dtype, power_of_two)
    torch.testing.assert_close(scale, expected, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(got.float(), q, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", FORMATS, ids=name)
def test_rounding_of_the_reference_is_torchs(dtype):
    """Every FP8 value, what lies between two of them and just beside the middle."""
    values = torch.arange(256, dtype=torch.uint8).view(dtype).float()
    values = values[values.isfinite()].unique()
    middle = (values[1:] + values[:-1]) / 2
    up, down = (torch.nextafter(middle, torch.tensor(s * math.inf)) for s in (1, -1))
    x = torch.cat([values, middle, up, down])
    assert torch.equal(reference.fp8_round(x, dtype), x.to(dtype).float())
    assert torch.equal(reference.fp8_round(x.double(), dtype), x.to(dtype).double())


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_both_orientations_are_the_reference(device, shape, scaling):
    x = of_range(*shape, device)
    for dtype in FORMATS:
        for power_of_two in (False, True):
            q, scale, q_t, scale_t = fp8.quantize(x, scaling, dtype, True, power_of_two)
            assert_is_reference(q, scale, x, scaling, dtype, power_of_two)
            assert_is_reference(q_t, scale_t, x.t(), scaling, dtype, power_of_two)
            if scaling in ("tile", "tensor"):
                assert torch.equal(bits(q_t), bits(q.t()))
                assert torch.equal(scale_t, scale.t())


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_and_dtypes(device, dtype, layout):
    x = LAYOUTS[layout](of_range(140, 200, device, dtype))
    q, scale, q_t, scale_t = fp8.quantize(x, transposed=True)
    assert_is_reference(q, scale, x, "block", E4M3)
    assert_is_reference(q_t, scale_t, x.t(), "block", E4M3)


def test_layout_of_the_result(device):
    """Rows of multiples of 16 bytes whose padding is zeros; 1x128 scales of rows side by side."""
    x = of_range(130, 150, device)
    q, scale, q_t, scale_t = fp8.quantize(x, transposed=True)
    assert (q.shape, q.stride()) == ((130, 150), (160, 1))
    assert (q_t.shape, q_t.stride()) == ((150, 130), (144, 1))
    assert (scale.shape, scale.stride()) == ((130, 2), (1, 132))
    assert (scale_t.shape, scale_t.stride()) == ((150, 2), (1, 152))
    whole, _, whole_t, *_ = OP(x, None, None, 0, False, 0, 3, 3, False, False, False)
    assert not bits(whole)[:, 150:].any()
    assert not bits(whole_t)[:, 130:].any()
    assert fp8.quantize(x).q_t is None


def test_rows_of_blocks_with_columns_of_tiles(device):
    """What a layer asks of its input."""
    x = of_range(260, 130, device, torch.bfloat16)
    q, scale, q_t, scale_t, _ = OP(x, None, None, 0, False, 0, 3, 4, False, False, False)
    assert_is_reference(q[:, :130], scale[:, :260].t(), x, "block", E4M3)
    assert_is_reference(q_t[:, :260], scale_t, x.t(), "tile", E4M3)


def test_leading_dimensions_and_empty(device):
    x = make(2, 3, 40, dtype=torch.float32, device=device)
    assert torch.equal(bits(fp8.quantize(x).q), bits(fp8.quantize(x.view(6, 40)).q))
    for shape in [(0, 5), (5, 0), (0, 0)]:
        for scaling in SCALINGS:
            result = fp8.quantize(torch.empty(shape, device=device), scaling, transposed=True)
            assert result.q.shape == shape
            assert result.q_t.shape == shape[::-1]
            assert result.scale.isfinite().all()


def test_saturation_keeps_the_largest_value_exact(device):
    x = make(128, 256, dtype=torch.float32, device=device)
    x[3, 5] = 1e30
    q, scale, *_ = fp8.quantize(x)
    assert q[3, 5].item() == 448
    error = abs(fp8.dequantize(q, scale, torch.float64)[3, 5].item() / 1e30 - 1)
    assert error < 1e-6
    assert q.float().abs().max() == 448
    largest = torch.finfo(torch.float32).max
    q, scale, *_ = fp8.quantize(torch.full((1, 1), -largest, device=device), dtype="e5m2")
    assert q.item() == -57344
    assert scale.isfinite().all()


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_show_in_their_block_alone(device, bad, scaling):
    x = make(300, 300, dtype=torch.bfloat16, device=device)
    clean = fp8.quantize(x, scaling, transposed=True)
    x[130, 200] = bad
    got = fp8.quantize(x, scaling, transposed=True)
    assert_is_reference(got.q, got.scale, x, scaling, E4M3)
    assert_is_reference(got.q_t, got.scale_t, x.t(), scaling, E4M3)
    assert got.scale.isnan().sum() == got.scale_t.isnan().sum() == 1
    wide = fp8.dequantize(got.q, got.scale)
    assert wide[130, 200].isnan()
    alone = ~wide.isnan()
    assert torch.equal(wide[alone], fp8.dequantize(clean.q, clean.scale)[alone])
    assert alone.any() == (scaling != "tensor")


def test_zeros_and_values_under_the_floor(device):
    for x in (torch.zeros(130, 130, device=device), torch.full((4, 4), 1e-45, device=device)):
        for power_of_two in (False, True):
            result = fp8.quantize(x, power_of_two_scales=power_of_two)
            assert not result.q.float().any()
            assert torch.equal(result.scale.isfinite(), result.scale > 0)
            assert result.scale.min() >= torch.finfo(torch.float32).tiny
            assert_is_reference(result.q, result.scale, x, "block", E4M3, power_of_two)
    x = torch.tensor([[-0.0, 0.0, 2.0**-120, -(2.0**-100)]], device=device)
    q, scale, *_ = fp8.quantize(x)
    assert bits(q)[0].tolist()[:2] == [0x80, 0]
    assert fp8.dequantize(q, scale)[0, 3].item() == pytest.approx(-(2.0**-100), rel=1e-6)


def test_error_against_float64(device):
    """Half an ulp of e4m3 at most, from the block's maximum down to 2^-15 of it."""
    x = of_range(256, 256, device)
    for scaling in SCALINGS:
        q, scale, *_ = fp8.quantize(x, scaling)
        got, exact = fp8.dequantize(q, scale, torch.float64), x.double()
        step = fp8.dequantize(torch.ones_like(q), scale, torch.float64) * 2.0**-10
        assert ((got - exact).abs() <= exact.abs() * (2.0**-4 + 1e-6) + step).all()


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_an_activation_is_as_its_own_op_and_then_quantised(device, activation):
    code = fusedops._core.activation.CODES[activation]
    for dtype in DTYPES[:3]:
        z, factor, dy = (make(150, 200, dtype=dtype, device=device, seed=s) for s in range(3))
        act = torch.ops.fusedops.scale_bias_act(z, None, None, code)
        q, scale, *_ = OP(z, None, factor, code, False, 0, 4, 0, False, False, False)
        got = fp8.dequantize(q[:, :200], scale, torch.float64)
        expected = reference.activate(z.double(), activation) * factor.double()
        assert (got - expected).norm() <= 0.04 * expected.norm()
        saved = act if fusedops._core.activation.SAVES_OUTPUT[code] else z
        q, scale, _, _, sums = OP(dy, saved, None, code, True, 0, 3, 0, False, True, True)
        dz, dbias = torch.ops.fusedops.act_backward_bias_grad(dy, saved, code, True, True)
        direct, direct_scale, *_ = OP(dz, None, None, 0, False, 0, 3, 0, False, False, False)
        got, expected = (
            fp8.dequantize(a[:, :200], b[:, :150].t())
            for a, b in ((q, scale), (direct, direct_scale))
        )
        assert (got - expected).norm() <= 0.002 * expected.norm()
        torch.testing.assert_close(sums, dbias, rtol=1e-5, atol=1e-4)


def test_sums_are_those_of_the_values(device):
    x = make(300, 70, dtype=torch.bfloat16, device=device)
    for fp32, dtype in ((True, torch.float32), (False, torch.bfloat16)):
        *_, sums = OP(x, None, None, 0, False, 0, 3, 3, False, True, fp32)
        assert sums.dtype is dtype
        exact = x.double().sum(0)
        eps = torch.finfo(dtype).eps
        assert ((sums.double() - exact).abs() <= eps * exact.abs() + 1e-4).all()


def test_scale_shapes_are_those_of_the_header():
    assert scale_shape(SCALING_CODES["block"], 130, 150) == (2, 132)
    assert scale_shape(SCALING_CODES["tile"], 130, 150) == (2, 2)
    assert scale_shape(SCALING_CODES["row"], 130, 150) == (130, 1)
    assert BLOCK == reference.fp8.BLOCK


def test_compiles_whole_and_detaches():
    x = torch.randn(40, 50, requires_grad=True)
    eager = fp8.quantize(x, "tile", transposed=True)
    assert not eager.scale.requires_grad
    compiled = torch.compile(fp8.quantize, fullgraph=True, backend="aot_eager")
    for a, b in zip(compiled(x, "tile", transposed=True), eager, strict=True):
        assert torch.equal(a.float(), b.float())


def test_errors():
    x = torch.ones(4, 4)
    with pytest.raises(ValueError, match="quantize: scaling must be 'block', 'tile', 'row' or"):
        fp8.quantize(x, "rows")
    with pytest.raises(ValueError, match=r"quantize: scaling must be .*; got \['block'\]"):
        fp8.quantize(x, ["block"])
    with pytest.raises(TypeError, match=r"^quantize: power_of_two_scales must be a bool; got str"):
        fp8.quantize(x, power_of_two_scales="yes")
    with pytest.raises(ValueError, match="quantize: dtype must be 'e4m3', 'e5m2'"):
        fp8.quantize(x, dtype=torch.float16)
    with pytest.raises(TypeError, match="quantize: x must be a Tensor"):
        fp8.quantize([1.0])
    with pytest.raises(RuntimeError, match=r"^quantize: x must be float16.*; got int64"):
        fp8.quantize(x.long())
    with pytest.raises(RuntimeError, match="quantize: x must have at least 1 dimension"):
        fp8.quantize(torch.tensor(1.0))
    for rows, columns in ((1, 3), (2, 4)):
        for to in ("cpu", "meta"):
            with pytest.raises(RuntimeError, match="rows and columns must be scaled alike"):
                OP(x.to(to), None, None, 0, False, 0, rows, columns, False, False, False)
    with pytest.raises(RuntimeError, match=r"dequantize: scale must have shape \(1, 1\)"):
        fp8.dequantize(fp8.quantize(x).q, torch.ones(3, 3))
    with pytest.raises(RuntimeError, match=r"dequantize: q must be 2-dimensional, \(M, K\); got"):
        fp8.dequantize(fp8.quantize(x).q[None], torch.ones(1, 1))
    with pytest.raises(TypeError, match=r"^dequantize: scale must be a Tensor; got NoneType"):
        fp8.dequantize(fp8.quantize(x).q, None)
    with pytest.raises(TypeError, match=r"^invalidate: model must be a Module or a Tensor or None"):
        fp8.invalidate("model")


@pytest.mark.parametrize("shape", [(0,), (2, 3, 0), (0, 5), (2, 0, 5)], ids=str)
def test_no_elements(device, shape):
    x = torch.ones(shape, device=device)
    rows, columns = math.prod(shape[:-1]), shape[-1]
    made = [fp8.quantize(x, scaling, transposed=True) for scaling in SCALINGS]
    made += [fp8.rms_norm(x, transposed=True), fp8.layer_norm(x, transposed=True)]
    for q, scale, q_t, scale_t in made:
        assert (tuple(q.shape), tuple(q_t.shape)) == ((rows, columns), (columns, rows))
        assert fp8.dequantize(q, scale).shape == q.shape
        assert fp8.dequantize(q_t, scale_t).shape == q_t.shape
    total = fp8.rms_norm(x, residual=x)[1]
    assert total.shape == x.shape
    w8 = torch.ones(4, columns, device=device).to(E4M3)
    one, bias = torch.ones(1, device=device), torch.ones(4, device=device)
    y = fp8.linear(x.to(E4M3), w8, one, one, bias, dtype=torch.float32)
    assert torch.equal(y, torch.nn.functional.linear(x, w8.float(), bias))
