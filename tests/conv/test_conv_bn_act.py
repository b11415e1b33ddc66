"""conv_bn_act: values and gradients by path, geometry, layouts, autocast, edges, errors."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import fusedops
from fusedops import reference
from util import (
    DTYPES,
    HALVES,
    TORCH_ACTIVATION,
    assert_accurate,
    assert_replays_and_streams,
    make,
    name,
)

CONV = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}
LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


pytestmark = pytest.mark.usefixtures("exact_convolutions")


every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=name)

# x, weight, geometry. One for each path: 1x1, strided 1x1, 3x3, a first layer, depthwise, groups,
# dilated, uneven padding, odd sizes, one channel, batch 1, one and three dimensions.
CASES = {
    "1x1": ((3, 16, 7, 7), (24, 16, 1, 1), {}),
    "1x1_stride2": ((3, 16, 8, 8), (24, 16, 1, 1), {"stride": 2}),
    "3x3": ((2, 16, 9, 9), (32, 16, 3, 3), {"padding": 1}),
    "3x3_stride2": ((2, 16, 9, 8), (32, 16, 3, 3), {"padding": 1, "stride": 2}),
    "first": ((2, 3, 15, 15), (16, 3, 7, 7), {"padding": 3, "stride": 2}),
    "depthwise": ((2, 24, 8, 8), (24, 1, 5, 5), {"padding": 2, "groups": 24}),
    "depthwise_3x3": ((2, 130, 9, 11), (130, 1, 3, 3), {"padding": 1, "groups": 130}),
    "depthwise_stride2": ((2, 6, 9, 12), (6, 1, 5, 5), {"padding": 2, "stride": 2, "groups": 6}),
    "groups": ((2, 16, 8, 8), (24, 4, 3, 3), {"padding": 1, "groups": 4}),
    "dilated": ((2, 8, 11, 11), (8, 8, 3, 3), {"padding": (2, 1), "dilation": (2, 1)}),
    "same_uneven": ((2, 8, 7, 7), (8, 8, 4, 2), {"padding": "same"}),
    "odd": ((1, 5, 7, 5), (7, 5, 3, 3), {"padding": 1}),
    "one_channel": ((2, 1, 6, 6), (1, 1, 3, 3), {"padding": 1}),
    "1d": ((3, 8, 17), (16, 8, 5), {"padding": 2}),
    "3d": ((2, 8, 5, 5, 4), (8, 8, 3, 3, 3), {"padding": 1}),
}
every_case = pytest.mark.parametrize("case", CASES)


def as_last(x):
    """The same values in channels_last memory, where there is such."""
    return x.to(memory_format=LAST[x.dim()]) if x.dim() in LAST else x


def vectors(channels, dtype, device):
    """running_mean, running_var, bn_weight, bn_bias."""
    mean, weight, bias = (make(channels, dtype=dtype, device=device, seed=s) for s in (1, 2, 3))
    return mean, make(channels, dtype=dtype, device=device, seed=4).abs() + 0.5, weight + 1, bias


def inputs(case, dtype, device, *, channels_last=True):
    """x, weight, bias, residual."""
    x_shape, w_shape, geometry = CASES[case]
    x = make(*x_shape, dtype=dtype, device=device, seed=5)
    fan_in = torch.Size(w_shape[1:]).numel()
    weight = make(*w_shape, dtype=dtype, device=device, seed=6, scale=fan_in**-0.5)
    bias = make(w_shape[0], dtype=dtype, device=device, seed=7)
    out = CONV[x.dim()](x.float(), weight.float(), **geometry)
    residual = make(*out.shape, dtype=dtype, device=device, seed=8)
    if channels_last:
        x, weight, residual = as_last(x), as_last(weight), as_last(residual)
    return x, weight, bias, residual


def torchs(x, weight, bias, mean, var, gamma, beta, *, activation, residual, training, **geometry):
    """What a user writes."""
    z = CONV[x.dim()](x, weight, bias, **geometry)
    if mean is not None:
        z = F.batch_norm(z, mean, var, gamma, beta, training)
    return TORCH_ACTIVATION[activation](z if residual is None else z + residual)


def compare(case, dtype, device, activation, with_residual, with_bias, norm_dtype=None):
    """A call without gradients against float64, by torch's own error."""
    x, weight, bias, residual = inputs(case, dtype, device)
    bias, residual = bias if with_bias else None, residual if with_residual else None
    norm = vectors(weight.shape[0], norm_dtype or dtype, device)
    options = {"activation": activation, "training": False, **CASES[case][2]}
    with torch.no_grad():
        got = fusedops.conv_bn_act(x, weight, bias, *norm, residual=residual, **options)
        own = torchs(x, weight, bias, *norm, residual=residual, **options)
        wide = [None if t is None else t.double() for t in (x, weight, bias, *norm, residual)]
        exact = reference.conv_bn_act(*wide[:7], residual=wide[7], **options)
    assert_accurate(got, own, exact, case)
    assert got.dtype is x.dtype
    if got.dim() == 4 and 1 not in got.shape:
        # NOTE: torch's convolution of float64 on a GPU leaves channels_last, ours does not.
        kept = got.is_cuda and dtype is torch.float64
        assert got.stride() == (as_last(own) if kept else own).stride()


@pytest.mark.smoke
@every_dtype
@every_case
def test_evaluation(device, case, dtype):
    for activation, with_residual in itertools.product(("relu", "silu"), (False, True)):
        compare(case, dtype, device, activation, with_residual, with_bias=False)
    compare(case, dtype, device, "none", with_residual=False, with_bias=True)


@pytest.mark.gpu
@pytest.mark.parametrize("case", ["1x1", "3x3"])
def test_evaluation_in_tf32(case):
    """Where torch's setting allows it: eleven bits of each factor."""
    x, weight, _, _ = inputs(case, torch.float32, "cuda")
    norm = vectors(weight.shape[0], torch.float32, "cuda")
    with torch.no_grad(), torch.backends.cudnn.flags(enabled=True, allow_tf32=True):
        got = fusedops.conv_bn_act(x, weight, None, *norm, activation="relu", **CASES[case][2])
    wide = [t.double() for t in (x, weight, *norm)]
    exact = reference.conv_bn_act(*wide[:2], None, *wide[2:], activation="relu", **CASES[case][2])
    assert (got - exact).norm() <= 2e-3 * exact.norm()


@pytest.mark.parametrize("dtype", HALVES, ids=name)
@pytest.mark.parametrize("case", ["1x1", "3x3"])
def test_evaluation_with_a_float32_norm(device, case, dtype):
    compare(case, dtype, device, "relu", True, True, norm_dtype=torch.float32)
    compare(case, dtype, device, "relu", False, False, norm_dtype=torch.float32)


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@every_case
def test_gradients(device, case, training):
    x, weight, bias, residual = inputs(case, torch.float64, device)
    mean, var, gamma, beta = vectors(weight.shape[0], torch.float64, device)
    for activation, with_residual in itertools.product(("relu", "silu"), (False, True)):
        found = []
        for function in (fusedops.conv_bn_act, reference.conv_bn_act):
            leaves = [
                t.detach().clone(memory_format=torch.preserve_format).requires_grad_()
                for t in (x, weight, bias, gamma, beta, residual)
            ]
            own = mean.clone(), var.clone()
            y = function(
                *leaves[:3], *own, *leaves[3:5], activation=activation,
                residual=leaves[5] if with_residual else None, training=training, **CASES[case][2],
            )  # fmt: skip
            wanted = leaves if with_residual else leaves[:5]
            found.append([y.detach(), *own, *torch.autograd.grad(y.square().sum(), wanted)])
        for a, b in zip(*found, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-9)


WANTS = list(itertools.product((False, True), repeat=6))


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_every_combination_of_gradients(device, training):
    x, weight, bias, residual = inputs("3x3", torch.float64, device)
    mean, var, gamma, beta = vectors(weight.shape[0], torch.float64, device)
    tensors = (x, weight, bias, gamma, beta, residual)
    for wants in WANTS[1::3]:
        found = []
        for function in (fusedops.conv_bn_act, reference.conv_bn_act):
            leaves = [t.clone().requires_grad_(w) for t, w in zip(tensors, wants, strict=True)]
            y = function(
                *leaves[:3], mean.clone(), var.clone(), *leaves[3:5], activation="relu",
                residual=leaves[5], training=training, padding=1,
            )  # fmt: skip
            y.square().sum().backward()
            found.append([t.grad for t in leaves])
        for got, want in zip(*found, strict=True):
            assert (got is None) == (want is None)
            assert got is None or torch.allclose(got, want, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("with_residual", [False, True])
def test_without_a_norm(device, with_residual):
    x, weight, bias, residual = inputs("3x3", torch.float32, device)
    residual = residual if with_residual else None
    for some, wants in itertools.product((None, bias), (False, True)):
        w = weight.clone().requires_grad_(wants)
        b = None if some is None else some.clone().requires_grad_(wants)
        y = fusedops.conv_bn_act(x, w, b, residual=residual, activation="relu", padding=1)
        z = F.conv2d(x.double(), w.double(), None if b is None else b.double(), padding=1)
        want = F.relu(z if residual is None else z + residual)
        torch.testing.assert_close(y.double(), want.double(), rtol=1e-4, atol=1e-5)
        if wants:
            leaves = [w] if b is None else [w, b]
            for got, exact in zip(
                torch.autograd.grad(y.sum(), leaves), torch.autograd.grad(want.sum(), leaves),
                strict=True,
            ):  # fmt: skip
                torch.testing.assert_close(got, exact, rtol=1e-3, atol=1e-3)


@every_dtype
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_contiguous_input_gives_a_contiguous_result(device, dtype, training):
    x, weight, _, residual = inputs("3x3", dtype, device, channels_last=False)
    norm = vectors(weight.shape[0], dtype, device)
    options = {"activation": "relu", "training": training, "padding": 1}
    results = []
    for form in (lambda t: t, as_last):
        own = [t.clone() for t in norm]
        y = fusedops.conv_bn_act(form(x), weight, None, *own, residual=form(residual), **options)
        assert y.is_contiguous() == (form is not as_last)
        results.append(y)
    torch.testing.assert_close(*results, rtol=2e-2, atol=2e-2)


def autocast_by_torch(x, weight, bias, norm, residual, training, dtype):
    """By torch's functions, under autocast where there is a dtype."""
    mean, var, gamma, beta = norm
    with torch.autocast(x.device.type, dtype, enabled=dtype is not None):
        return torchs(
            x, weight, bias, mean.clone(), var.clone(), gamma, beta, residual=residual,
            activation="relu", padding=1, training=training,
        )  # fmt: skip


@pytest.mark.parametrize("dtype", HALVES, ids=name)
def test_autocast(device, dtype):
    x, weight, bias, residual = inputs("3x3", torch.float32, device)
    norm = vectors(weight.shape[0], torch.float32, device)
    for training in (False, True):
        w, g = weight.clone().requires_grad_(), norm[2].clone().requires_grad_()
        with torch.autocast(device, dtype):
            y = fusedops.conv_bn_act(
                x, w, bias, norm[0].clone(), norm[1].clone(), g, norm[3], residual=residual,
                activation="relu", padding=1, training=training,
            )  # fmt: skip
        assert y.dtype is dtype

        want, own = (
            autocast_by_torch(x, w, bias, (*norm[:2], g, norm[3]), residual, training, half)
            for half in (None, dtype)
        )
        torch.testing.assert_close(y.float(), want, rtol=5e-2, atol=5e-2)
        found = [torch.autograd.grad(f.float().sum(), (w, g)) for f in (y, own, want)]
        for a, b, exact in zip(*found, strict=True):
            assert a.dtype is torch.float32
            assert (a - exact).norm() <= 1.5 * (b - exact).norm() + 0.01 * exact.norm()


def test_empty_batches(device):
    x, weight, _, _ = inputs("3x3", torch.float32, device)
    norm = vectors(weight.shape[0], torch.float32, device)
    for case_weight, training in itertools.product((weight, weight[..., :1, :1]), (False, True)):
        own = [t.clone() for t in norm]
        y = fusedops.conv_bn_act(
            x[:0], case_weight, None, *own, activation="relu", training=training
        )
        assert y.shape[:2] == (0, weight.shape[0])
        assert all(torch.equal(a, b) for a, b in zip(own, norm, strict=True))


def test_changed_weights_and_statistics_count_at_once(device):
    x, weight, _, _ = inputs("1x1", torch.float32, device)
    norm = [t.clone() for t in vectors(weight.shape[0], torch.float32, device)]
    for tensor in (weight, *norm):
        with torch.no_grad():
            before = fusedops.conv_bn_act(x, weight, None, *norm)
            tensor.data.mul_(1.5)  # which no version tells of
            after = fusedops.conv_bn_act(x, weight, None, *norm)
            want = torchs(x, weight, None, *norm, activation="none", residual=None, training=False)
        assert not torch.equal(before, after)
        torch.testing.assert_close(after, want, rtol=1e-4, atol=1e-4)


def test_compiles_in_one_graph(device):
    x, weight, bias, residual = inputs("3x3", torch.float32, device)
    mean, var, gamma, beta = vectors(weight.shape[0], torch.float32, device)

    def call(w, mean, var, training):
        return fusedops.conv_bn_act(
            x, w, bias, mean, var, gamma, beta, residual=residual, activation="silu", padding=1,
            training=training,
        )  # fmt: skip

    torch.compiler.reset()
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    for training in (False, True):
        found = []
        for function in (compiled, call):
            w, own = weight.clone().requires_grad_(), (mean.clone(), var.clone())
            y = function(w, *own, training)
            found.append([y, *own, *torch.autograd.grad(y.sum(), w)])
        for a, b in zip(*found, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_second_derivatives(device):
    x = make(2, 2, 4, 4, dtype=torch.float64, device=device).requires_grad_()
    w = make(3, 2, 2, 2, dtype=torch.float64, device=device, seed=1).requires_grad_()
    mean, var, gamma, beta = vectors(3, torch.float64, device)

    def call(x, w):
        return fusedops.conv_bn_act(
            x, w, None, mean.clone(), var.clone(), gamma, beta, activation="silu", training=True
        )

    assert torch.autograd.gradgradcheck(call, (x, w))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", HALVES, ids=name)
@pytest.mark.parametrize("case", ["1x1", "3x3", "depthwise"])
def test_is_captured_in_a_cuda_graph_and_repeats(case, dtype):
    x, weight, _, residual = inputs(case, dtype, "cuda")
    norm = vectors(weight.shape[0], dtype, "cuda")
    for some in (None, residual):
        with torch.no_grad():

            def call(some=some):
                return fusedops.conv_bn_act(
                    x, weight, None, *norm, residual=some, activation="relu", **CASES[case][2]
                )

            assert_replays_and_streams(call, call())


@pytest.mark.gpu
@pytest.mark.parametrize("case", ["1x1", "3x3", "depthwise", "1x1_stride2"])
def test_memory_that_was_there_before_does_not_show(case):
    x, weight, _, residual = inputs(case, torch.float16, "cuda")
    norm = vectors(weight.shape[0], torch.float16, "cuda")
    for some in (None, residual):
        for _ in range(3):
            dirty = [torch.full_like(residual, torch.nan) for _ in range(8)]
            del dirty
            y = fusedops.conv_bn_act(
                x, weight, None, *norm, residual=some, activation="relu", **CASES[case][2]
            )
            assert not y.isnan().any()


@pytest.mark.gpu
@pytest.mark.slow
def test_more_than_2_to_the_31_elements():
    x = torch.zeros(1, 8, 16400, 16400, dtype=torch.bfloat16, device="cuda")
    x = x.to(memory_format=torch.channels_last)
    x[0, :, -1, -1] = 1
    weight = torch.ones(8, 8, 1, 1, dtype=torch.bfloat16, device="cuda")
    ones, zeros = torch.ones(8, device="cuda"), torch.zeros(8, device="cuda")
    with torch.no_grad():
        y = fusedops.conv_bn_act(x, weight, None, zeros, ones, activation="relu")
    assert (y[0, :, -1, -1].float() - 8).abs().max() < 0.1
    assert not y[0, :, :-1].any()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"x": torch.ones(2, 4, 5, 5, dtype=torch.int32)}, "x must be float16, .*; got int32"),
        ({"x": torch.ones(2, 4, 5)}, "x must be 4-dimensional, .N, C, ...., to match weight"),
        ({"x": torch.ones(2, 5, 5, 5)}, r"x must have 4 channels to match weight .* in 1 group"),
        ({"x": torch.ones(2, 4, 2, 5)}, "x must be as large as the kernel"),
        ({"weight": torch.ones(6, 4)}, "weight must be .O, C / groups, .... with one to three"),
        ({"weight": torch.ones(6, 4, 3, 3).half()}, "weight must have dtype float32 like x"),
        ({"bias": torch.ones(5)}, r"bias must have shape \(6,\); got \(5,\)"),
        ({"bn_weight": torch.ones(5)}, r"bn_weight must have shape \(6,\); got \(5,\)"),
        ({"residual": torch.ones(2, 6, 3, 1)}, "residual must have the result's shape"),
        ({"groups": 4}, "groups must divide the 6 channels"),
        ({"stride": 0}, "stride must be one number or 2, each at least 1; got 0"),
        ({"padding": (1, 2, 3)}, "padding must be one number or 2, each at least 0"),
        ({"padding": "same", "stride": 2}, "stride must be 1 where padding is 'same'"),
        ({"running_var": None}, "must both be given or neither; running_var is None"),
        (
            {"running_mean": None, "running_var": None, "bn_weight": torch.ones(6)},
            "must be given where training is False",
        ),
    ],
    ids=str,
)
def test_errors(device, change, text):
    arguments = {
        "x": torch.ones(2, 4, 5, 5), "weight": torch.ones(6, 4, 3, 3),
        "running_mean": torch.zeros(6), "running_var": torch.ones(6),
    }  # fmt: skip
    arguments |= change
    moved = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in arguments.items()}
    with pytest.raises(RuntimeError, match=f"^conv_bn_act: .*{text}"):
        fusedops.conv_bn_act(**moved)


def test_errors_of_python(device):
    x, weight = torch.ones(1, 4, 1, 1, device=device), torch.ones(6, 4, 1, 1, device=device)
    with pytest.raises(ValueError, match=r"^conv_bn_act: x must give more than 1 value"):
        fusedops.conv_bn_act(x, weight, training=True)
    with pytest.raises(ValueError, match=r"^conv_bn_act: activation must be None or one of"):
        fusedops.conv_bn_act(x, weight, activation="rulu")
    with pytest.raises(ValueError, match=r"^conv_bn_act: padding must be 'valid', 'same' or"):
        fusedops.conv_bn_act(x, weight, padding="full")
    with pytest.raises(TypeError, match=r"^conv_bn_act: weight must be a Tensor; got NoneType"):
        fusedops.conv_bn_act(x, None)


def test_numbers_that_equal_an_int(device):
    """Geometry is kept by its arguments, in which True and 2.0 are equal to 1 and 2."""
    x, weight = torch.ones(1, 3, 9, 11, device=device), torch.ones(5, 3, 3, 3, device=device)
    for argument in ("stride", "padding", "dilation"):
        for wrong in (True, 2.0, (2.0, 2.0), (True, 1), None):
            with pytest.raises(TypeError, match=f"^conv_bn_act: {argument} must be an int"):
                fusedops.conv_bn_act(x, weight, **{argument: wrong})
        for right in (np.int64(2), [np.int32(2), 2], torch.Size((2, 2)), torch.tensor(2)):
            y = fusedops.conv_bn_act(x, weight, **{argument: right})
            assert torch.equal(y, F.conv2d(x, weight, **{argument: 2}))
    with pytest.raises(TypeError, match=r"^conv_bn_act: groups must be an int; got True"):
        fusedops.conv_bn_act(x, weight, groups=True)
    assert torch.equal(fusedops.conv_bn_act(x, weight), F.conv2d(x, weight))


def test_what_torch_refuses_of_a_norm(device):
    x, weight = torch.ones(2, 4, 3, 3, device=device), torch.ones(6, 4, 1, 1, device=device)
    calls = {
        "conv_bn_act": lambda **k: fusedops.conv_bn_act(x, weight, **k),
        "batch_norm_act": lambda **k: fusedops.batch_norm_act(x, **k),
    }
    for op, call in calls.items():
        with pytest.raises(TypeError, match=f"^{op}: training must be a bool; got 'yes'"):
            call(training="yes")
        for eps in (0, -1.0):
            with pytest.raises(ValueError, match=f"^{op}: eps must be positive; got {eps}"):
                call(training=True, eps=eps)
        channels = {"conv_bn_act": 6, "batch_norm_act": 4}[op]
        mean, var = torch.zeros(channels, device=device), torch.ones(channels, device=device)
        for which, value in (("running_mean", mean), ("running_var", var)):
            given = {"running_mean": mean, "running_var": var} | {
                which: value.clone().requires_grad_()
            }
            with pytest.raises(RuntimeError, match=f"^{op}: {which} must not require grad"):
                call(**given, training=True)
    with pytest.raises(RuntimeError, match=r"^conv_bn_act: x must have at least 1 channel"):
        fusedops.conv_bn_act(x[:, :0], weight[:, :0])
