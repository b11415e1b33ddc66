"""FP8 products against float64: kernels on sm_90a, emulation elsewhere."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

import fusedops  # noqa: F401  loads the ops
from fusedops import reference
from util import ACTIVATIONS, LAYOUTS, assert_replays_and_streams, make, name, poisoned

OP = torch.ops.fusedops._fp8_matmul
WGRAD = torch.ops.fusedops._fp8_wgrad_
OUT = {torch.float16: 0, torch.bfloat16: 1, torch.float32: 2}
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
PAIRS = (
    ("tensor", "tensor"), ("row", "row"), ("row", "tensor"), ("block", "tile"), ("block", "block"),
    ("tile", "block"), ("tile", "tile"), ("block", "row"), ("tensor", "block"), ("row", "tile"),
)  # fmt: skip
KERNEL_PAIRS = (PAIRS[0], PAIRS[1], *PAIRS[3:6])

# Rounding of the output, norm-wise, and that of accumulators of 14 bits that are promoted every 128
# of K: by simulation 0.013 % for random signs, 0.06 % where all terms are positive.
ROUNDING = {torch.float16: 2**-11, torch.bfloat16: 2**-8, torch.float32: 0.0}
ACCUMULATORS = 0.0005, 0.002


def scale_shape(scaling, rows, blocks):
    tiles = math.ceil(rows / 128)
    return {"tensor": (1, 1), "row": (rows, 1), "block": (rows, blocks), "tile": (tiles, blocks)}[
        scaling
    ]


def make_operand(rows, k, scaling, device, seed, dtype=E4M3, positive=False):
    """An FP8 matrix and dequantising scales, each between 2^-9 and 2^-7."""
    x = make(rows, k, dtype=torch.float32, device=device, scale=16.0, seed=seed)
    shape = scale_shape(scaling, rows, math.ceil(k / 128))
    scale = (
        make(*shape, dtype=torch.float32, device=device, seed=seed + 1).sigmoid() * 2 - 8
    ).exp2()
    if scaling == "block":  # the layout that kernels read as it is
        padded = scale.new_full((shape[1], (rows + 3) // 4 * 4), math.nan)
        padded[:, :rows] = scale.t()
        scale = padded[:, :rows].t()
    return (x.abs() if positive else x).to(dtype), scale


def dequantized(q, scale, scaling):
    wide = scale.double()
    if scaling == "tile":
        wide = wide.repeat_interleave(128, 0)[: q.shape[0]]
    if scaling in ("block", "tile"):
        wide = wide.repeat_interleave(128, 1)[:, : q.shape[1]]
    return q.double() * wide


def check(y, exact, positive=False, what=""):
    """Norm-wise, and no element far off."""
    assert y.shape == exact.shape, what
    assert y.is_contiguous(), what
    assert torch.isfinite(y).all(), what
    error, allowed = (y.double() - exact).abs(), ROUNDING[y.dtype] + ACCUMULATORS[positive]
    assert error.norm() <= allowed * exact.norm(), f"{what}: {error.norm() / exact.norm():.2e}"
    size = exact.norm() / math.sqrt(exact.numel())
    worst = (error / (exact.abs() + size)).max().item()
    assert worst <= 2 * ROUNDING[y.dtype] + 20 * ACCUMULATORS[positive], f"{what}: {worst:.2e}"


def run_and_check(m, n, k, pair, device, out, formats=(E4M3, E4M3), positive=False):
    a, scale_a = make_operand(m, k, pair[0], device, 1, formats[0], positive)
    b, scale_b = make_operand(n, k, pair[1], device, 3, formats[1], positive)
    with poisoned():
        y = OP(a, b, scale_a, scale_b, None, 0, OUT[out])
    exact = dequantized(a, scale_a, pair[0]) @ dequantized(b, scale_b, pair[1]).t()
    assert y.dtype is out
    check(y, exact, positive, f"{pair} {m}x{n}x{k}")
    return y


# M, N, K: ragged on every side, odd, one step of K and many, one row, one column.
SHAPES = (
    (1, 8, 16),
    (130, 264, 144),
    (200, 129, 400),
    (257, 7, 272),
    (64, 1, 512),
    (384, 256, 1040),
)


@pytest.mark.parametrize("out", OUT, ids=name)
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_every_pair_of_scalings(device, pair, out):
    for m, n, k in SHAPES:
        for formats in ((E4M3, E4M3), (E5M2, E4M3), (E4M3, E5M2)):
            run_and_check(m, n, k, pair, device, out, formats)


def test_a_mean_survives(device):
    """Terms of one sign: what accumulators of 14 bits would lose toward zero."""
    for pair in KERNEL_PAIRS:
        run_and_check(256, 136, 4096, pair, device, torch.float32, positive=True)


@pytest.mark.gpu
@pytest.mark.sm90
@pytest.mark.parametrize("pair", KERNEL_PAIRS, ids="-".join)
@pytest.mark.parametrize("out", OUT, ids=name)
def test_large_tiles(out, pair):
    """Whole waves of tiles of 256 rows, the last ones ragged."""
    for m, n, k in ((4096, 4096, 512), (4000, 4104, 1552), (2176, 8200, 144)):
        for format_a in (E4M3, E5M2):
            run_and_check(m, n, k, pair, "cuda", out, (format_a, E4M3))


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("out", OUT, ids=name)
def test_bias_and_activation(device, out, activation):
    code = ACTIVATIONS.index(activation)
    for (m, n, k), pair in itertools.product(((130, 264, 144), (70, 133, 272)), PAIRS[:4]):
        a, scale_a = make_operand(m, k, pair[0], device, 1)
        b, scale_b = make_operand(n, k, pair[1], device, 3)
        bias = make(n, dtype=out, device=device, seed=5)
        with poisoned():
            y = OP(a, b, scale_a, scale_b, bias, code, OUT[out])
        z = dequantized(a, scale_a, pair[0]) @ dequantized(b, scale_b, pair[1]).t() + bias.double()
        exact = reference.activate(z, activation)
        # The activation's own rounding, and what it makes of an error in z.
        allowed = 4 * (ROUNDING[out] + 2 * ACCUMULATORS[0])
        error, size = (y.double() - exact).abs(), exact.abs() + z.abs() + 1
        assert (error <= allowed * size).all(), f"{pair}: {(error / size).max():.2e}"


@pytest.mark.parametrize("pair", [PAIRS[1], *PAIRS[3:6]], ids="-".join)
def test_every_layout(device, pair):
    """The same bits wherever operands and scales lie."""
    m, n, k = 200, 136, 272
    a, scale_a = make_operand(m, k, pair[0], device, 1)
    b, scale_b = make_operand(n, k, pair[1], device, 3)
    bias = make(n, dtype=torch.bfloat16, device=device, seed=5)
    expected = OP(a, b, scale_a, scale_b, bias, 0, 1)
    layouts = {key: lay for key, lay in LAYOUTS.items() if key != "expanded"}
    for key, lay in layouts.items():
        scales = (lay(scale_a), scale_b), (scale_a, lay(scale_b))
        for scale_pair in scales:
            assert torch.equal(OP(a, b, *scale_pair, bias, 0, 1), expected), f"scales {key}"
        for x, w in ((lay(a), b), (a, lay(b))):
            assert torch.equal(OP(x, w, scale_a, scale_b, bias, 0, 1), expected), key
    wide = torch.zeros(m, k + 48, device=device).to(E4M3)
    wide[:, 16 : k + 16].copy_(a)
    assert torch.equal(OP(wide[:, 16 : k + 16], b, scale_a, scale_b, bias, 0, 1), expected)
    strided_bias = torch.stack((bias, bias), 1)[:, 0]
    assert torch.equal(OP(a, b, scale_a, scale_b, strided_bias, 0, 1), expected)


@pytest.mark.parametrize("pair", KERNEL_PAIRS, ids="-".join)
def test_nan_and_infinity_stay_in_their_rows(device, pair):
    m, n, k = 140, 136, 272
    a, scale_a = make_operand(m, k, pair[0], device, 1, E5M2)
    b, scale_b = make_operand(n, k, pair[1], device, 3)
    wide_a, wide_b = a.float(), b.float()
    wide_a[3, 5], wide_a[70, 200], wide_b[9, 17] = math.nan, math.inf, math.nan
    a, b = wide_a.to(E5M2), wide_b.to(E4M3)
    y = OP(a, b, scale_a, scale_b, None, 0, 2)
    exact = dequantized(a, scale_a, pair[0]) @ dequantized(b, scale_b, pair[1]).t()
    assert torch.equal(y.isfinite(), exact.isfinite())
    assert torch.equal(y.isnan(), exact.isnan())


@pytest.mark.parametrize("pair", [PAIRS[3], PAIRS[4], PAIRS[5]], ids="-".join)
def test_a_nan_scale_shows(device, pair):
    """A block whose values were not finite has no scale: GradScaler has to see that."""
    m, n, k = 140, 136, 272
    a, scale_a = make_operand(m, k, pair[0], device, 1)
    b, scale_b = make_operand(n, k, pair[1], device, 3)
    scale_a[0, 1], scale_b[0, 2] = math.nan, math.nan
    y = OP(a, b, scale_a, scale_b, None, 0, 2)
    exact = dequantized(a, scale_a, pair[0]) @ dequantized(b, scale_b, pair[1]).t()
    assert torch.equal(y.isnan(), exact.isnan())


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("pair", KERNEL_PAIRS, ids="-".join)
def test_main_grad(device, pair, accumulate):
    """Any layout of what gradients are added to; N that units of 16 bytes do not divide."""
    for (m, n, k), lay in itertools.product(((200, 136, 400), (130, 135, 144)), LAYOUTS):
        if lay == "expanded":
            continue
        a, scale_a = make_operand(m, k, pair[0], device, 1, E5M2)
        b, scale_b = make_operand(n, k, pair[1], device, 3)
        before = make(m, n, dtype=torch.float32, device=device, seed=5)
        main_grad = LAYOUTS[lay](before.clone())
        assert WGRAD(a, b, scale_a, scale_b, main_grad, accumulate) is None
        exact = dequantized(a, scale_a, pair[0]) @ dequantized(b, scale_b, pair[1]).t()
        check(main_grad.contiguous(), exact + before.double() * accumulate, what=f"{lay} {n}")
    wrong = torch.zeros(m, n, device=device, dtype=torch.bfloat16)
    with pytest.raises(RuntimeError, match="main_grad must be a float32 tensor"):
        WGRAD(a, b, scale_a, scale_b, wrong, accumulate)


def test_nothing_to_multiply(device):
    for m, n, k in ((0, 16, 32), (16, 0, 32), (16, 8, 0)):
        a, b = (torch.zeros(r, k, device=device).to(E4M3) for r in (m, n))
        one = torch.ones(1, 1, device=device)
        bias = make(n, dtype=torch.bfloat16, device=device)
        y = OP(a, b, one, one, bias, ACTIVATIONS.index("relu"), 1)
        assert torch.equal(y, bias.relu().expand(m, n))
        main_grad = torch.ones(m, n, device=device)
        WGRAD(a, b, one, one, main_grad, True)
        assert (main_grad == 1).all()
        WGRAD(a, b, one, one, main_grad, False)
        assert (main_grad == 0).all()


def test_bad_input_is_refused(device):
    a, scale_a = make_operand(32, 64, "tensor", device, 1)
    b, scale_b = make_operand(16, 64, "tensor", device, 3)
    bias = torch.zeros(16, device=device, dtype=torch.bfloat16)
    refused = (
        ("b must have shape", (a, b[:, :48], scale_a, scale_b, None, 0, 1)),
        ("a must be float8", (a.float(), b, scale_a, scale_b, None, 0, 1)),
        ("scale_a must be float32", (a, b, scale_a.double(), scale_b, None, 0, 1)),
        ("scale_b must have shape", (a, b, scale_a, scale_b.expand(3, 1), None, 0, 1)),
        ("bias must have dtype float32", (a, b, scale_a, scale_b, bias, 0, 2)),
        ("bias must have shape", (a, b, scale_a, scale_b, bias[:8], 0, 1)),
        ("out_dtype must be", (a, b, scale_a, scale_b, None, 0, 3)),
    )
    for message, arguments in refused:
        with pytest.raises(RuntimeError, match=message):
            OP(*arguments)


@pytest.mark.gpu
@pytest.mark.sm90
@pytest.mark.parametrize("out", OUT, ids=name)
def test_graphs_and_streams(out):
    """The same bits in every run, and no synchronisation."""
    for (m, n, k), pair in itertools.product(((300, 264, 400), (4096, 2048, 1024)), KERNEL_PAIRS):
        a, scale_a = make_operand(m, k, pair[0], "cuda", 1, E5M2)
        b, scale_b = make_operand(n, k, pair[1], "cuda", 3)
        arguments = (a, b, scale_a, scale_b, None, 2, OUT[out])
        assert_replays_and_streams(lambda arguments=arguments: OP(*arguments), OP(*arguments))


@pytest.mark.gpu
@pytest.mark.sm90
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_hopper_has_a_kernel_for_it(pair):
    for format_a, out in itertools.product((E4M3, E5M2), OUT.values()):
        a, scale_a = make_operand(256, 256, pair[0], "cuda", 1, format_a)
        b, scale_b = make_operand(256, 256, pair[1], "cuda", 3)
        arguments = (a, b, scale_a, scale_b, None, 0, out)
        OP(*arguments)
        activities = [torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) as profile:
            OP(*arguments)
            torch.cuda.synchronize()
        assert any("fp8_kernel" in event.name for event in profile.events())
