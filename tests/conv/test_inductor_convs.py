"""The graph pass finds convolutions with a batch norm behind them, and what goes with both."""

from __future__ import annotations

import copy
import operator

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fusedops
from integration.test_inductor import without_codegen
from models.test_inductor_groups import results
from models.twin_ops import shuffle_norms

C, SIDE = 8, 6


class Block(nn.Module):
    """A bottleneck, whose input is read by two layers."""

    def __init__(self, act=nn.ReLU, stride=1, groups=1, inplace=True, wide=C):
        super().__init__()
        thin = wide // 2
        self.conv1, self.bn1 = nn.Conv2d(wide, thin, 1, bias=False), nn.BatchNorm2d(thin)
        self.conv2 = nn.Conv2d(thin, thin, 3, stride, 1, groups=groups)
        self.bn2 = nn.BatchNorm2d(thin)
        self.conv3, self.bn3 = nn.Conv2d(thin, wide, 1, bias=False), nn.BatchNorm2d(wide)
        self.act = act(inplace=inplace)
        self.short = None
        if stride > 1:
            self.short = nn.Sequential(nn.Conv2d(wide, wide, 1, stride), nn.BatchNorm2d(wide))

    def forward(self, x):
        y = self.act(self.bn1(self.conv1(x)))
        y = self.act(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        y += x if self.short is None else self.short(x)
        return self.act(y)


def unit(x, model):
    return model.act(model.bn1(model.conv1(x)))


# ---- what is none ----


def read_twice(x, model):
    y = model.conv1(x)
    return F.relu(model.bn1(y)) + y


def act_before(x, model):
    return model.bn1(F.relu(model.conv1(x)))


def no_momentum(x, model):
    model.bn1.momentum = None
    return unit(x, model)


def evaluated(x, model):
    """Constant statistics beside gradients."""
    return F.relu(F.batch_norm(model.conv1(x), model.bn1.running_mean, model.bn1.running_var))


def read_statistics(x, model):
    y = model.conv1(x)
    seen = model.bn1.running_mean.sum()
    return F.relu(model.bn1(y)) + seen


def changed_between(x, model):
    other = torch.ones(3, 4, SIDE, SIDE, dtype=x.dtype, device=x.device)
    y = model.conv1(x)
    other.mul_(2)
    return model.bn1(y) + other


OTHERS = (read_twice, act_before, evaluated, read_statistics, changed_between)


def compiled(function, *given, fullgraph=True):
    torch._dynamo.reset()
    ours = fusedops.inductor(force=True)
    backend = without_codegen(ours["options"])
    run = torch.compile(function, backend=backend, fullgraph=fullgraph, dynamic=False)
    return run(*given), ours.report


def made(device, dtype=torch.float64, form=torch.channels_last, **options):
    """A model and its input; cuDNN gives no float64 where channels lie last."""
    torch.manual_seed(1)
    if device == "cuda" and dtype is torch.float64:
        form = torch.contiguous_format
    model = shuffle_norms(Block(**options)).to(device, dtype).to(memory_format=form)
    x = torch.randn(3, C, SIDE, SIDE, dtype=dtype).to(device).contiguous(memory_format=form)
    return model.train(), x.requires_grad_()


def assert_same(function, model, x, rtol=1e-9):
    # NOTE: torch's hardswish on a GPU multiplies by a sixth in float32, in float64, too.
    other, y = copy.deepcopy(model).cpu(), x.detach().cpu().requires_grad_()
    stride = function(x, copy.deepcopy(model)).stride()
    got, report = compiled(function, x, model)
    want = function(y, other)
    assert got.stride() == stride
    pairs = zip(results(got, model, [x]), results(want, other, [y]), strict=True)
    for a, b in pairs:
        torch.testing.assert_close(a.cpu(), b, rtol=rtol, atol=rtol)
    return report


@pytest.mark.parametrize("form", [torch.channels_last, torch.contiguous_format], ids=str)
@pytest.mark.parametrize("act", [nn.ReLU, nn.SiLU, nn.ReLU6, nn.Hardswish])
@pytest.mark.parametrize("stride", [1, 2])
def test_blocks(device, stride, act, form):
    """Two layers read what comes in; the second one's gradient is added by the first one."""
    model, x = made(device, form=form, act=act, stride=stride)
    report = assert_same(lambda x, model: model(x), model, x)
    assert report.kinds() == ["conv_bn_act"] * (3 if stride == 1 else 4)
    name = act.__name__.lower()
    kinds = [name] * 3 if stride == 1 else [name, name, name, "none"]
    assert [site.activation for site in report.replaced] == kinds


@pytest.mark.parametrize("options", [{"inplace": False}, {"groups": 4}], ids=str)
def test_other_layers(device, options):
    model, x = made(device, **options)
    report = assert_same(lambda x, model: model(x), model, x)
    assert report.kinds() == ["conv_bn_act"] * 3


@pytest.mark.parametrize("stride", [1, 2])
def test_inference(device, stride):
    model, x = made(device, stride=stride)
    other = copy.deepcopy(model).eval()
    with torch.no_grad():
        got, report = compiled(lambda x, model: model(x), x, model.eval())
        torch.testing.assert_close(got, other(x), rtol=1e-9, atol=1e-9)
    assert report.kinds() == ["conv_bn_act"] * (3 if stride == 1 else 4)
    assert not any(site.training for site in report.replaced)


def test_other_activations_are_left_behind(device):
    model, x = made(device)
    report = assert_same(lambda x, model: torch.sin(model.bn1(model.conv1(x))), model, x)
    assert [site.activation for site in report.replaced] == ["none"]


@pytest.mark.parametrize("form", OTHERS, ids=operator.attrgetter("__name__"))
def test_what_stays(device, form):
    model, x = made(device)
    assert "conv_bn_act" not in assert_same(form, model, x).kinds()


def test_the_mean_of_all_batches_stays(device):
    model, x = made(device)
    _, report = compiled(no_momentum, x, model, fullgraph=False)
    assert "conv_bn_act" not in report.kinds()


def test_what_is_handed_on(device):
    """The first layer's gradient takes in that of what else reads the block's input."""
    model, x = made(device)
    seen = []

    def first(graph):
        seen.append(graph)

    torch._dynamo.reset()
    ours = fusedops.inductor(force=True, pre_grad_custom_pass=first)
    backend = without_codegen(ours["options"])
    torch.compile(model, backend=backend, fullgraph=True, dynamic=False)(x)
    calls = [n for n in seen[0].nodes if getattr(n.target, "__name__", "") == "conv_layer"]
    assert [call.args[-1] for call in calls] == [True, False, False]
    assert calls[2].args[4].args == (calls[0], 1)


def test_autocast(device):
    model, x = made(device, torch.float32)
    exact = copy.deepcopy(model).double()(x.double())
    with torch.autocast(torch.device(device).type, torch.bfloat16):
        want = copy.deepcopy(model)(x)
        got, report = compiled(lambda x, model: model(x), x, model)
    assert report.kinds() == ["conv_bn_act"] * 3
    assert got.dtype is want.dtype
    errors = [(y.double() - exact).norm() / exact.norm() for y in (got, want)]
    assert errors[0] < 1.5 * errors[1]


def test_the_whole_of_inductor(device):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model, x = made(device)
    other = copy.deepcopy(model)
    ours = fusedops.inductor(force=True)
    got, want = torch.compile(model, dynamic=False, **ours)(x), other(x)
    for a, b in zip(results(got, model, [x]), results(want, other, [x]), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    assert ours.report.kinds() == ["conv_bn_act"] * 3
    assert not torch._dynamo.utils.counters["aot_autograd"]["autograd_cache_bypass"]


@pytest.mark.gpu
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("form", [torch.channels_last, torch.contiguous_format], ids=str)
def test_where_channels_lie_last(form, stride):
    """Without force, in half precision: where channels lie last, and nowhere else.

    Errors are those of many numbers: of few, two roundings differ by chance.
    """
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = shuffle_norms(Block(stride=stride, wide=64))
    model = model.to("cuda", torch.bfloat16).to(memory_format=form).train()
    x = torch.randn(16, 64, 32, 32, device="cuda", dtype=torch.bfloat16)
    x = x.contiguous(memory_format=form).requires_grad_()
    weight = torch.randn(16, 64, 32 // stride, 32 // stride, device="cuda").bfloat16()

    def run(function, model, x):
        y = function(x)
        grads = torch.autograd.grad((y * weight).sum(), [x, *model.parameters()])
        names = ["x", *(name for name, _ in model.named_parameters())]
        # The gradient of a bias before a norm is zero.
        return {n: g for n, g in zip(names, grads, strict=True) if "bias" not in n} | {"y": y}

    twins = [copy.deepcopy(model) for _ in range(2)]
    wide = x.detach().double().requires_grad_()
    ours = fusedops.inductor()
    exact = run(twins[0].double(), twins[0], wide)
    want = run(twins[1], twins[1], x)
    got = run(torch.compile(model, dynamic=False, **ours), model, x)
    count = 2 + stride if form is torch.channels_last else 0
    assert ours.report.kinds().count("conv_bn_act") == count
    for name, c in exact.items():
        errors = [((t[name].double() - c).norm() / c.norm()).item() for t in (got, want)]
        assert errors[0] <= 1.2 * errors[1] + 1e-3, name
    for a, b in zip(model.buffers(), twins[0].buffers(), strict=True):
        torch.testing.assert_close(a.double(), b.double(), rtol=2e-2, atol=2e-2)
