"""batch_norm_act: values, statistics, gradients of every order, layouts, edges, errors."""

from __future__ import annotations

import functools
import itertools

import pytest
import torch
import torch.nn.functional as F

import fusedops
from fusedops import reference
from util import (
    ACTIVATIONS,
    DTYPES,
    HALVES,
    TORCH_ACTIVATION,
    assert_accurate,
    assert_replays_and_streams,
    make,
    name,
    poisoned,
)

every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=name)
in_training = pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
# One channel, odd ones, whole chunks of 16 bytes, more than a block's columns; one step of a block,
# several, and many rows for each; few rows of many channels, and of as many as a block has.
SHAPES = (
    *((2, 1, 3, 3), (3, 3, 5, 7), (1, 7, 4, 4), (4, 8, 3, 5), (2, 24, 9, 9), (2, 40, 8, 8)),
    *((5, 64, 14, 14), (2, 300, 5, 5), (3, 520, 2, 2), (700, 12), (6, 16, 50), (2, 16, 3, 4, 5)),
    *((3, 256, 6, 6), (64, 520)),
)
LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def as_last(x):
    """The same values in channels_last memory, where there is such."""
    return x.to(memory_format=LAST[x.dim()]) if x.dim() in LAST else x


def vectors(channels, dtype, device):
    """running_mean, running_var, weight, bias."""
    mean, weight, bias = (make(channels, dtype=dtype, device=device, seed=s) for s in (1, 2, 3))
    return mean, make(channels, dtype=dtype, device=device, seed=4).abs() + 0.5, weight + 1, bias


def torchs(x, mean, var, weight, bias, *, activation, residual, training, momentum=0.1):
    """What a user writes."""
    z = F.batch_norm(x, mean, var, weight, bias, training, momentum)
    return TORCH_ACTIVATION[activation](z if residual is None else z + residual)


def results(function, x, norm, residual, dy, **options):
    """y, the running statistics, dx, dweight, dbias, dresidual."""
    mean, var = (t.clone() for t in norm[:2])
    leaves = [t.detach().clone(memory_format=torch.preserve_format) for t in (x, *norm[2:])]
    leaves += [] if residual is None else [residual.clone(memory_format=torch.preserve_format)]
    leaves = [t.requires_grad_() for t in leaves]
    with poisoned():
        added = None if residual is None else leaves[3]
        y = function(leaves[0], mean, var, *leaves[1:3], residual=added, **options)
        grads = torch.autograd.grad(y, leaves, dy)
    return y.detach(), mean, var, *grads


def check(
    shape, dtype, device, *, activation="relu", with_residual=True, training=True, offset=0.5
):
    """Everything against float64, by torch's own error."""
    x = as_last(make(*shape, dtype=dtype, device=device) + offset)
    dy = as_last(make(*shape, dtype=dtype, device=device, seed=8))
    residual = as_last(make(*shape, dtype=dtype, device=device, seed=9)) if with_residual else None
    norm = vectors(shape[1], dtype, device)
    options = {"activation": activation, "training": training}
    ours = results(fusedops.batch_norm_act, x, norm, residual, dy, **options)
    theirs = results(torchs, x, norm, residual, dy, **options)
    wide = [None if t is None else t.double() for t in (x, *norm, residual, dy)]
    exact = results(reference.batch_norm_act, wide[0], wide[1:5], *wide[5:], **options)
    names = ("y", "running_mean", "running_var", "dx", "dweight", "dbias", "dresidual")
    for what, a, b, c in zip(names, ours, theirs, exact, strict=False):
        # Sums that cancel have no digits of their own: ulps are those of their terms.
        scale = dy.double().abs().sum() / shape[1] if what in ("dweight", "dbias") else c
        scale = torch.maximum(dy.double().abs(), c.abs()) if what == "dx" else scale
        assert_accurate(a, b, c, what, scale=scale)
    return ours


@pytest.mark.smoke
@in_training
@every_dtype
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_values_and_gradients(device, shape, dtype, training):
    for with_residual in (False, True):
        check(shape, dtype, device, with_residual=with_residual, training=training)


@in_training
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation(device, activation, training):
    for dtype, with_residual in itertools.product((torch.float32, torch.bfloat16), (False, True)):
        check(
            (3, 16, 7, 9), dtype, device, activation=activation, with_residual=with_residual,
            training=training, offset=0.0,
        )  # fmt: skip


def test_a_large_mean_leaves_the_variance_its_digits(device):
    x = torch.randn(64, 24, 9, 9, device=device, dtype=torch.float64)
    x = as_last((x + 1000 * (torch.arange(24, device=device).view(1, -1, 1, 1) % 3 - 1)).float())
    mean, var = torch.zeros(24, device=device), torch.ones(24, device=device)
    y = fusedops.batch_norm_act(x, mean, var, training=True, momentum=1.0)
    exact_var, exact_mean = torch.var_mean(x.double(), (0, 2, 3))
    torch.testing.assert_close(mean.double(), exact_mean, rtol=1e-7, atol=1e-6)
    torch.testing.assert_close(var.double(), exact_var, rtol=1e-6, atol=0)
    exact = reference.batch_norm_act(x.double(), training=True)
    torch.testing.assert_close(y.double(), exact, rtol=1e-4, atol=1.5e-4)


@pytest.mark.parametrize("dtype", HALVES, ids=name)
def test_parameters_and_statistics_in_float32_beside_a_half_x(device, dtype):
    x = as_last(make(4, 16, 6, 6, dtype=dtype, device=device))
    dy = as_last(make(4, 16, 6, 6, dtype=dtype, device=device, seed=1))
    norm = vectors(16, torch.float32, device)
    for training in (False, True):
        options = {"activation": "silu", "training": training}
        got = results(fusedops.batch_norm_act, x, norm, None, dy, **options)
        wide = [t.double() for t in (x, *norm, dy)]
        want = results(reference.batch_norm_act, wide[0], wide[1:5], None, wide[5], **options)
        assert [t.dtype for t in got[1:3] + got[4:]] == [torch.float32] * 4
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a.double(), b, rtol=2e-2, atol=2e-2)


WANTS = list(itertools.product((False, True), repeat=4))


@in_training
@pytest.mark.parametrize("activation", ["identity", "relu", "silu"])
def test_every_combination_of_gradients(device, activation, training):
    shape = (3, 8, 4, 5)
    x, residual, dy = (
        as_last(make(*shape, dtype=torch.float64, device=device, seed=s)) for s in (1, 2, 3)
    )
    mean, var, weight, bias = vectors(8, torch.float64, device)
    for wants in WANTS[1:]:
        found = []
        for function in (fusedops.batch_norm_act, reference.batch_norm_act):
            inputs = [
                t.detach().clone().requires_grad_(want)
                for t, want in zip((x, residual, weight, bias), wants, strict=True)
            ]
            y = function(
                inputs[0], mean.clone(), var.clone(), *inputs[2:], residual=inputs[1],
                activation=activation, training=training,
            )  # fmt: skip
            y.backward(dy)
            found.append([t.grad for t in inputs])
        for got, want in zip(*found, strict=True):
            assert (got is None) == (want is None)
            assert got is None or torch.allclose(got, want, rtol=1e-9, atol=1e-11)


@in_training
@pytest.mark.parametrize("activation", ["identity", "silu", "sigmoid", "tanh"])
def test_second_derivatives(device, activation, training):
    x, residual = (
        make(3, 2, 2, 2, dtype=torch.float64, device=device, seed=s).requires_grad_()
        for s in (1, 2)
    )
    mean, var, *rest = vectors(2, torch.float64, device)
    weight, bias = (t.requires_grad_() for t in rest)
    for some in (None, residual):

        def call(x, weight, bias, *added):
            return fusedops.batch_norm_act(
                x, mean.clone(), var.clone(), weight, bias, activation=activation,
                residual=added[0] if added else None, training=training,
            )  # fmt: skip

        inputs = (x, weight, bias, *(() if some is None else (some,)))
        assert torch.autograd.gradcheck(call, inputs)
        assert torch.autograd.gradgradcheck(call, inputs)


def _note(kept, tensor):
    kept.append(tensor)
    return tensor


@in_training
def test_what_is_kept_for_backward(device, training):
    x = as_last(make(4, 8, 6, 6, dtype=torch.float32, device=device)).requires_grad_()
    mean, var, weight, bias = vectors(8, torch.float32, device)
    for activation, with_residual in itertools.product(("relu", "silu"), (False, True)):
        residual = torch.randn_like(x) if with_residual else None
        kept = []
        keep = functools.partial(_note, kept)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
            y = fusedops.batch_norm_act(
                x, mean, var, weight, bias, activation=activation, residual=residual,
                training=training,
            )  # fmt: skip
        large = {t.data_ptr() for t in kept if t.numel() == x.numel()}
        own = {x.data_ptr(), y.data_ptr()} | ({residual.data_ptr()} if with_residual else set())
        assert large <= own


@in_training
def test_layouts_and_memory_format(device, training):
    x = make(4, 6, 5, 7, dtype=torch.float32, device=device)
    norm = vectors(6, torch.float32, device)
    wanted = None
    for form in (x, as_last(x), x.transpose(2, 3).contiguous().transpose(2, 3), x[:, :, :, :5]):
        mean, var, weight, bias = (t.clone() for t in norm)
        residual = torch.ones_like(form)
        y = fusedops.batch_norm_act(
            form, mean, var, weight, bias, residual=residual, activation="relu", training=training
        )
        assert y.is_contiguous() == (form is not as_last(x) and not _is_last(form))
        want = reference.batch_norm_act(
            form.double(), *(t.double() for t in norm), residual=residual.double(),
            activation="relu", training=training,
        )  # fmt: skip
        torch.testing.assert_close(y.double(), want, rtol=1e-5, atol=1e-5)
        if form.shape == x.shape:
            wanted = y if wanted is None else wanted
            assert torch.equal(y, wanted)


def _is_last(x):
    return x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()


def test_unaligned_memory(device):
    flat = torch.randn(2 * 16 * 3 * 3 + 1, device=device).to(torch.bfloat16)[1:]
    x = flat.view(2, 3, 3, 16).permute(0, 3, 1, 2)
    y = fusedops.batch_norm_act(x, training=True, activation="relu")
    aligned = fusedops.batch_norm_act(
        x.clone(memory_format=torch.channels_last), training=True, activation="relu"
    )
    torch.testing.assert_close(y, aligned, rtol=1e-2, atol=1e-2)


def test_empty_batches(device):
    mean, var, weight, bias = vectors(4, torch.float32, device)
    x = torch.empty(0, 4, 3, 3, device=device, requires_grad=True)
    weight.requires_grad_()
    for training in (False, True):
        before = mean.clone()
        y = fusedops.batch_norm_act(x, mean, var, weight, bias, training=training)
        y.sum().backward()
        assert y.shape == x.grad.shape == x.shape
        assert torch.equal(mean, before)
        assert torch.equal(weight.grad, torch.zeros(4, device=device))


def test_nan_and_inf_stay_in_their_channels(device):
    x = as_last(make(2, 8, 4, 4, dtype=torch.float32, device=device))
    x[1, 2, 3, 3], x[0, 5, 0, 0] = torch.nan, torch.inf
    y = fusedops.batch_norm_act(x, training=True, activation="relu")
    want = F.relu(F.batch_norm(x, None, None, training=True))
    assert torch.equal(y.isnan(), want.isnan())


def test_no_running_statistics_and_momentum(device):
    x = as_last(make(4, 6, 5, 5, dtype=torch.float32, device=device))
    for momentum in (0.0, 0.1, 1.0):
        ours, theirs = (
            [torch.zeros(6, device=device), torch.ones(6, device=device)] for _ in range(2)
        )
        fusedops.batch_norm_act(x, *ours, training=True, momentum=momentum)
        F.batch_norm(x, *theirs, training=True, momentum=momentum)
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b)
    torch.testing.assert_close(
        fusedops.batch_norm_act(x, training=True), F.batch_norm(x, None, None, training=True),
        rtol=1e-5, atol=1e-5,
    )  # fmt: skip


def test_running_statistics_count_as_changed(device):
    mean, var = torch.zeros(6, device=device), torch.ones(6, device=device)
    versions = mean._version, var._version
    x = torch.randn(4, 6, device=device)
    fusedops.batch_norm_act(x, mean, var, training=False)
    assert (mean._version, var._version) == versions
    fusedops.batch_norm_act(x, mean, var, training=True)
    assert mean._version > versions[0]
    assert var._version > versions[1]


@in_training
def test_two_runs_agree_bit_by_bit(device, training):
    shape = (8, 40, 33, 17)
    x, residual, dy = (
        as_last(make(*shape, dtype=torch.bfloat16, device=device, seed=s)) for s in (1, 2, 3)
    )
    norm = vectors(40, torch.float32, device)
    runs = [
        results(
            fusedops.batch_norm_act, x, norm, residual, dy, activation="silu", training=training
        )
        for _ in range(2)
    ]
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


def test_compiles_in_one_graph(device):
    x = as_last(make(4, 6, 5, 5, dtype=torch.float32, device=device)).requires_grad_()
    mean, var, weight, bias = vectors(6, torch.float32, device)

    def call(x, mean, var):
        return fusedops.batch_norm_act(
            x, mean, var, weight, bias, activation="relu", residual=x, training=True
        )

    torch.compiler.reset()
    got, want = [], []
    for function, found in (
        (torch.compile(call, fullgraph=True, backend="aot_eager"), got),
        (call, want),
    ):
        own = mean.clone(), var.clone()
        y = function(x, *own)
        found += [y, *own, *torch.autograd.grad(y.sum(), x)]
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_torch_func_and_forward_mode(device):
    x = make(4, 6, 5, 5, dtype=torch.float64, device=device)
    mean, var, weight, bias = vectors(6, torch.float64, device)

    def call(x):
        return fusedops.batch_norm_act(x, mean, var, weight, bias, activation="silu")

    got = torch.func.jvp(call, (x,), (torch.ones_like(x),))
    want = torch.func.jvp(
        lambda x: reference.batch_norm_act(x, mean, var, weight, bias, activation="silu"), (x,),
        (torch.ones_like(x),),
    )  # fmt: skip
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.gpu
def test_is_captured_in_a_cuda_graph():
    x, residual = (
        as_last(make(8, 64, 14, 14, dtype=torch.bfloat16, device="cuda", seed=s)) for s in (1, 2)
    )

    def call():
        return fusedops.batch_norm_act(x, residual=residual, activation="relu", training=True)

    assert_replays_and_streams(call, call())


# Few and many rows and channels, with ragged ends.
TRAINED = (
    (3000, 64), (300_000, 64), (4000, 512), (100_003, 264), (70_000, 24), (130, 4104), (511, 1032),
    (12_544, 80), (3136, 1152), (12_541, 1024), (3130, 2056),
)  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES[:3], ids=name)
@pytest.mark.parametrize("shape", TRAINED, ids=str)
def test_training_agrees_with_the_passes(shape, dtype):
    ops, rows, channels = torch.ops.fusedops, *shape
    x, residual, dy = (make(*shape, dtype=dtype, device="cuda", seed=s) for s in (1, 2, 3))
    norm = vectors(channels, torch.float32, "cuda")[2:]
    exact = torch.var_mean((x + 2).double(), 0, correction=0)[::-1]
    for some, code in itertools.product((None, residual), (0, 1)):
        runs = [
            ops.batch_norm_train_(x + 2, None, *norm, some, None, None, None, 0.1, 1e-5, code)
            for _ in range(2)
        ]
        y, *found = runs[0]
        assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))
        for a, b in zip(found, exact, strict=True):
            torch.testing.assert_close(a.double(), b, rtol=2e-6, atol=1e-6)
        want = ops.batch_norm_apply(x + 2, *found, *norm, some, 1e-5, code)
        torch.testing.assert_close(y, want)
        need = some is not None and code == 1
        saved = y if need else None
        arguments = (x + 2, *found, *norm)
        runs = [
            ops.batch_norm_train_backward(dy, *arguments, saved, 1e-5, code, need) for _ in range(2)
        ]
        dx, dz, sums = runs[0]
        assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))
        want_sums, want_dz = ops.batch_norm_sums(dy, *arguments, saved, 1e-5, code, need)
        torch.testing.assert_close(dz, want_dz)
        torch.testing.assert_close(sums, want_sums, rtol=1e-5, atol=1e-4 * rows**0.5)
        rest = (None, sums, None, 1e-5, 0 if need else code, False)
        want, _ = ops.batch_norm_backward(dz if need else dy, *arguments, *rest)
        torch.testing.assert_close(dx, want)


@pytest.mark.gpu
@pytest.mark.slow
def test_more_than_2_to_the_31_elements():
    channels = 8
    x = torch.zeros(2**31 // channels + 999, channels, dtype=torch.bfloat16, device="cuda")
    x[-1], x[-2] = 64.0, -64.0
    y = fusedops.batch_norm_act(
        x, torch.zeros(8, device="cuda"), torch.ones(8, device="cuda"), activation="relu"
    )
    assert y[-1].float().sub(64).abs().max() < 0.5
    assert not y[:-1].any()
    mean, var = torch.zeros(8, device="cuda"), torch.zeros(8, device="cuda")
    fusedops.batch_norm_act(x, mean, var, training=True, momentum=1.0)
    assert mean.abs().max() < 1e-6
    torch.testing.assert_close(
        var, torch.full_like(var, 2 * 64.0**2 / x.shape[0]), rtol=1e-3, atol=0
    )


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"x": torch.ones(3, 4, dtype=torch.int32)}, "x must be float16, .*; got int32"),
        ({"x": torch.ones(3)}, "x must be .N, C, .... with two to five dimensions; got shape"),
        ({"weight": torch.ones(5)}, r"weight must have shape \(4,\); got \(5,\)"),
        ({"weight": torch.ones(4).double()}, "weight must have dtype float32 like x; got float64"),
        ({"residual": torch.ones(3, 4, 1)}, "residual must have the result's shape"),
        ({"residual": torch.ones(3, 4).half()}, "residual must have dtype float32 like x"),
        ({"running_var": None}, "must both be given or neither; running_var is None"),
        ({"running_mean": None, "running_var": None}, "must be given where training is False"),
    ],
    ids=str,
)
def test_errors(device, change, text):
    arguments = {
        "x": torch.ones(3, 4), "running_mean": torch.zeros(4), "running_var": torch.ones(4),
    }  # fmt: skip
    arguments |= change
    arguments = {k: v if v is None else v.to(device) for k, v in arguments.items()}
    with pytest.raises(RuntimeError, match=f"^batch_norm_act: .*{text}"):
        fusedops.batch_norm_act(**arguments)


def test_errors_of_python(device):
    x = torch.ones(1, 4, device=device)
    with pytest.raises(ValueError, match=r"more than 1 value per channel when training"):
        fusedops.batch_norm_act(x, training=True)
    with pytest.raises(ValueError, match=r"^batch_norm_act: activation must be None or one of"):
        fusedops.batch_norm_act(x, training=True, activation="rulu")
    with pytest.raises(TypeError, match=r"^batch_norm_act: x must be a Tensor; got list"):
        fusedops.batch_norm_act([1.0], training=True)
