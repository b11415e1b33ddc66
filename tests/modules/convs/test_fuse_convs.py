"""fusedops.fuse on convolutions with what stands behind them."""

from __future__ import annotations

import copy
import operator
import pickle

import pytest
import torch
from torch import nn

import fusedops
from fusedops._rewrite.convs import decide
from fusedops._rewrite.convs import unit as units
from modules.convs import conv_layers as layers

MODELS = {  # what it is, how many units it has and how many of them with a residual
    "basic": (layers.Basic, 2, 1),
    "downsample": (lambda: layers.Basic(8, 16, 2), 3, 1),
    "bottleneck": (layers.Bottleneck, 3, 1),
    "bottleneck_down": (lambda: layers.Bottleneck(8, 8, 2), 4, 1),
    "nested": (layers.Nested, 2, 1),
    "inverted": (layers.Inverted, 3, 1),
    "no_skip": (lambda: layers.Inverted(use_res_connect=False), 3, 0),
    "unet": (layers.UNet, 6, 0),
    "loop": (layers.Loop, 1, 0),
    "norm_act": (lambda: nn.Sequential(nn.Conv2d(8, 8, 3), layers.BatchNormAct(8)), 1, 0),
    "frozen": (lambda: layers.Basic(norm=layers.FrozenBatchNorm), 2, 1),
    "conv_act": (lambda: nn.Sequential(nn.Conv2d(8, 8, 3), nn.GELU()), 1, 0),
    "conv1d": (lambda: nn.Sequential(nn.Conv1d(8, 8, 3), nn.BatchNorm1d(8), nn.ReLU6()), 1, 0),
    "conv3d": (lambda: nn.Sequential(nn.Conv3d(8, 8, 1), nn.BatchNorm3d(8), nn.ReLU()), 1, 0),
}
LEFT = {
    "shared": layers.SharedValue,
    "both": layers.ReturnsBoth,
    "scaled": lambda: nn.Sequential(nn.Conv2d(8, 8, 3), layers.ScaledBatchNorm(8)),
    "alone": lambda: nn.Sequential(nn.Conv2d(8, 8, 3), nn.MaxPool2d(2)),
}


pytestmark = pytest.mark.usefixtures("exact_convolutions")


@pytest.fixture
def ran(monkeypatch):
    """The activations of the units that ran as one op."""
    found = []
    whole = units.run

    def run(x, conv, norm, activation, residual, hands_on):
        found.append((activation, residual is not None))
        return whole(x, conv, norm, activation, residual, hands_on)

    monkeypatch.setattr(units, "run", run)
    for name in ("may_pay", "pays"):  # on a CPU and for small images, too
        monkeypatch.setattr(units, name, lambda *_: True)
    return found


def both(make, device="cpu"):
    """A model before and after fuse, and the report."""
    torch.manual_seed(0)
    model = nn.Sequential(make()).to(device)
    original = copy.deepcopy(model)
    return original, model, fusedops.fuse(model)


def input_of(kind, device="cpu", dtype=torch.float32):
    shape = {
        "bottleneck": (2, 16, 7, 6),
        "conv1d": (2, 8, 9),
        "conv3d": (2, 8, 4, 3, 3),
        "unet": (2, 3, 8, 8),
    }
    torch.manual_seed(5)
    return torch.randn(shape.get(kind, (2, 8, 7, 6)), device=device, dtype=dtype)


def results(model, x):
    """Output, gradients and buffers of a call."""
    x = x.clone().requires_grad_()
    torch.manual_seed(9)
    y = model(x)
    y = y if isinstance(y, torch.Tensor) else torch.cat([part.flatten() for part in y])
    y.backward(torch.linspace(-1, 1, y.numel(), device=y.device, dtype=y.dtype).view(y.shape))
    grads = {name: p.grad for name, p in model.named_parameters()}
    model.zero_grad()
    return {"y": y.detach(), "x": x.grad, **grads, **copy.deepcopy(dict(model.named_buffers()))}


def assert_same(original, model, x, tolerance=None):
    want, got = results(original, x), results(model, x)
    assert want.keys() == got.keys()
    for name, value in want.items():
        close = {} if tolerance is None else {"rtol": tolerance, "atol": tolerance}
        torch.testing.assert_close(got[name], value, **close, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_same_results(kind, mode, device, ran):
    make, count, residuals = MODELS[kind]
    original, model, report = both(make, device)
    assert (len(report.convs), sum(conv.residual for conv in report.convs)) == (count, residuals)
    for one in (original, model):
        one.train(mode == "train")
    tolerance = 1e-3 if device == "cuda" else 1e-4
    assert_same(original, model, input_of(kind, device), tolerance)
    calls = 2 if kind == "loop" else 1
    assert len(ran) == count * calls
    assert sum(residual for _, residual in ran) == residuals


@pytest.mark.parametrize("kind", LEFT)
def test_left_alone(kind, ran):
    original, model, report = both(LEFT[kind])
    assert report.convs == []
    assert_same(original, model, input_of(kind))
    assert ran == []


def test_a_shortcut_that_changes_the_input_keeps_its_place(ran):
    original, model, report = both(layers.ChangesInput)
    assert [conv.residual for conv in report.convs] == [False]
    x = input_of("changes")
    with torch.no_grad():
        torch.testing.assert_close(model(x), original(x))
    assert ran == [("none", False)]


def test_report():
    _, model, report = both(layers.Basic)
    assert [(c.name, c.norm, c.activation) for c in report.convs] == [
        ("0.conv1", "0.bn1", "0.relu"),
        ("0.conv2", "0.bn2", "0.relu"),
    ]
    assert "0.conv2            0.bn2  0.relu      with residual" in str(report)
    again = fusedops.fuse(model)
    assert again.convs == []


def test_a_norm_that_stays_is_reported():
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.MaxPool2d(2), nn.BatchNorm2d(4))
    report = fusedops.fuse(model)
    assert [(s.name, s.kind) for s in report.skipped] == [("3", "BatchNorm2d")]
    assert "no convolution of torch.nn runs right before it" in report.skipped[0].reason


def test_a_dropped_path_runs_by_itself(ran):
    original, model, _ = both(lambda: layers.Inverted(p=0.5))
    assert_same(original, model, input_of("inverted"))
    assert ran == [("silu", False), ("hardswish", False), ("none", False)]
    ran.clear()
    assert_same(original.eval(), model.eval(), input_of("inverted"))
    assert ran[-1] == ("none", True)


def test_hooks_are_called(ran):
    original, model, _ = both(layers.Basic)
    seen = []
    for one in (original, model):
        one[0].bn1.register_forward_hook(lambda *_: seen.append("bn1"))
        one[0].relu.register_forward_hook(lambda m, i, o: o * 2)
    assert_same(original, model, input_of("basic"))
    assert seen == ["bn1", "bn1"]
    assert ran == [("none", False)]  # the second convolution with its norm, the rest alone


def test_changes_are_seen(ran):
    original, model, _ = both(lambda: layers.Basic(8, 16, 2))
    for one in (original, model):
        one[0].downsample = nn.Sequential(nn.AvgPool2d(2, 2, ceil_mode=True), nn.Conv2d(8, 16, 1))
        torch.manual_seed(2)
        nn.init.normal_(one[0].downsample[1].weight)
        nn.init.zeros_(one[0].downsample[1].bias)
    assert_same(original, model, input_of("basic"), 1e-4)
    for one in (original, model):
        one[0].conv1 = nn.Conv2d(8, 16, 3, 2, 1, padding_mode="reflect")
        one[0].conv1.load_state_dict({"weight": torch.ones(16, 8, 3, 3), "bias": torch.ones(16)})
    assert_same(original, model, input_of("basic"), 1e-3)
    for one in (original, model):
        one[0].downsample = None
        one[0].conv1.stride = one[0].conv2.stride = (1, 1)
    torch.manual_seed(5)
    x = torch.randn(2, 16, 7, 6)
    for one in (original, model):
        one[0].conv1 = nn.Identity()
    assert_same(original, model, x, 1e-3)


def test_a_function_that_was_replaced_is_called(monkeypatch):
    original, model, report = both(layers.Nested)
    assert len(report.convs) == 2
    monkeypatch.setattr(layers.F, "relu", torch.tanh)
    assert_same(original, model, input_of("nested"))


def test_frozen_norms_in_a_model_that_trains(ran):
    original, model, _ = both(layers.Basic)
    for one in (original, model):
        one[0].bn1.eval()
    before = model[0].bn1.running_mean.clone()
    assert_same(original, model, input_of("basic"))
    assert torch.equal(model[0].bn1.running_mean, before)
    assert len(ran) == 2


@pytest.mark.parametrize("kind", ["basic", "inverted", "unet", "norm_act"])
def test_copies_and_pickles(kind, ran):
    original, model, _ = both(MODELS[kind][0])
    x = input_of(kind)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        ran.clear()
        assert_same(copy.deepcopy(original), twin, x, 1e-4)
        assert len(ran) == MODELS[kind][1]


@pytest.mark.parametrize("kind", ["basic", "inverted", "frozen"])
def test_autocast(kind, device):
    original, model, _ = both(MODELS[kind][0], device)
    x = input_of(kind, device)
    with torch.autocast(device, torch.bfloat16):
        want, got = original(x), model(x)
    assert got.dtype is want.dtype
    torch.testing.assert_close(got, want, rtol=5e-2, atol=5e-2)


def test_channels_last_stays(device):
    original, model, _ = both(layers.Basic, device)
    x = input_of("basic", device).contiguous(memory_format=torch.channels_last)
    original, model = (m.to(memory_format=torch.channels_last) for m in (original, model))
    want, got = original(x), model(x)
    assert got.stride() == want.stride()
    torch.testing.assert_close(got, want, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("kind", ["basic", "inverted", "norm_act"])
def test_compiled_in_one_graph(kind):
    original, model, _ = both(MODELS[kind][0])
    x = input_of(kind)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), original(x))


def test_methods_are_those_of_the_class_again():
    """A method that was replaced on the class is called, and what was written is not."""

    class Local(layers.Basic):
        pass

    _, model, report = both(Local)
    assert len(report.convs) == 2
    Local.forward = lambda self, x: x + 1
    x = input_of("basic")
    assert torch.equal(model(x), x + 1)


def test_a_cpu_keeps_to_torch(monkeypatch):
    """Whose kernels are as fast there or faster."""
    original, model, report = both(layers.Basic)
    assert len(report.convs) == 2
    monkeypatch.setattr(units, "run", None)
    assert_same(original, model, input_of("basic"))


def a_call(shape, last, channels, kernel=1, passes=2, residual=False, training=False):
    """A call as the rule sees it, without memory."""
    form = torch.channels_last if last else torch.contiguous_format
    x = torch.empty(shape, device="meta", dtype=torch.float16, memory_format=form)
    weight = torch.empty(channels, shape[1], kernel, kernel, device="meta", dtype=torch.float16)
    result = (shape[0], channels, *shape[2:])
    other = torch.empty(result, device="meta") if residual else None
    return decide.Call(x, weight, other, result, passes, training)


@pytest.mark.parametrize(
    ("call", "gains"),
    [
        (a_call((64, 256, 56, 56), True, 64), True),
        (a_call((64, 256, 56, 56), True, 64, passes=1, training=True), True),
        (a_call((64, 256, 56, 56), False, 64), False),  # copies of x
        (a_call((64, 64, 56, 56), False, 256, passes=3, residual=True), False),
        (a_call((1, 2048, 7, 7), True, 512), True),
        (a_call((1, 2048, 7, 7), True, 512, passes=1), False),  # the fold is a launch, too
        (a_call((1, 8192, 7, 7), True, 8192), False),  # a weight of 134 MB
    ],
)
def test_what_pays_on_the_device(call, gains):
    theirs, ours = decide.device_us(call)
    assert (ours <= theirs) is gains


def test_what_pays_beside_the_host():
    """Layers of ResNet-50 whose times in eager are known, in us on an H200: 113, 118, 99."""
    calls = (
        a_call((64, 256, 56, 56), True, 64),
        a_call((64, 64, 56, 56), True, 64, 3),
        a_call((64, 256, 14, 14), True, 256, 3),
    )
    for call, known in zip(calls, (113, 118, 99), strict=True):
        assert 0.6 * known < decide.device_us(call)[0] < 1.2 * known
        assert decide.pays(call)
    small = a_call((8, 256, 14, 14), True, 256, 3)
    assert not decide.pays(small)
    assert operator.lt(*decide.device_us(small)[::-1])  # the host decides


def test_our_module_stays_what_it_is():
    layer = fusedops.nn.ConvBNAct(8, 8, 1)
    model = nn.Sequential(layer, nn.Conv2d(8, 8, 1), nn.ReLU())
    report = fusedops.fuse(model)
    assert [conv.name for conv in report.convs] == ["1"]
    assert report.skipped == []
    assert type(layer) is fusedops.nn.ConvBNAct
