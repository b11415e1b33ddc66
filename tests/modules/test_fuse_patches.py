"""fusedops.fuse on convolutions whose patches do not overlap: they run as our linear."""

from __future__ import annotations

import copy
import pickle
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import fusedops
from fusedops._core import precision
from util import Calls, make

# Class, kernel, sizes of x behind batch and channels.
CASES = {
    "1d": (nn.Conv1d, (4,), (24,)),
    "1d cut": (nn.Conv1d, (4,), (27,)),
    "2d": (nn.Conv2d, (4, 4), (16, 12)),
    "2d cut": (nn.Conv2d, (4, 4), (19, 14)),
    "2d one dim": (nn.Conv2d, (1, 4), (3, 9)),
    "2d one patch": (nn.Conv2d, (4, 4), (4, 4)),
    "3d": (nn.Conv3d, (2, 4, 4), (4, 8, 8)),
    "3d cut": (nn.Conv3d, (2, 3, 2), (5, 7, 5)),
}
every_case = pytest.mark.parametrize("name", CASES)


@pytest.fixture(autouse=True)
def one_precision(monkeypatch):
    """Float32's settings count as equal, which they are not on a GPU as torch comes."""
    monkeypatch.setattr(precision, "fp32_precision", lambda kind, device: "ieee")


def pair(name, device, dtype=torch.float64, channels=3, **options):
    """A convolution, the same one fused, and an x."""
    torch.manual_seed(0)
    kind, kernel, sizes = CASES[name]
    theirs = kind(channels, 8, kernel, stride=kernel, **options).to(device, dtype)
    ours = copy.deepcopy(theirs)
    report = fusedops.fuse(ours)
    assert (report.num_fused, report.num_skipped) == (1, 0)
    return theirs, ours, make(2, channels, *sizes, dtype=dtype, device=device)


def runs_ours(module, x):
    with Calls() as calls:
        module(x)
    return calls.ours.count("linear") == 1


def strides(x):
    """Those that say where elements are."""
    return [stride for size, stride in zip(x.shape, x.stride(), strict=True) if size > 1]


def assert_same(theirs, ours, x, wanted=(True, True, True), tolerance=1e-12, same_strides=True):
    """Output and gradients of x, weight and bias are torch's."""
    results = []
    for module in (theirs, ours):
        leaf = x.detach().clone().requires_grad_(wanted[0])
        for p, needed in zip(module.parameters(), wanted[1:], strict=False):
            p.requires_grad_(needed)
        leaves = [t for t in (leaf, *module.parameters()) if t.requires_grad]
        y = module(leaf)
        dy = make(*y.shape, dtype=y.dtype, device=y.device, seed=7)
        results.append([y.detach(), *torch.autograd.grad(y, leaves, dy)])
    for a, b in zip(*results, strict=True):
        error = (a.double() - b.double()).abs().max()
        assert error <= tolerance * a.double().abs().max()
        assert a.dtype is b.dtype
    if same_strides:
        assert strides(results[0][0]) == strides(results[1][0])


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("lies", ["first", "x last", "both last"])
@every_case
def test_is_torchs(device, name, lies, bias):
    theirs, ours, x = pair(name, device, bias=bias)
    if lies != "first":
        x = x.movedim(1, -1).contiguous().movedim(-1, 1)
    if lies == "both last" and x.dim() > 3:
        form = {4: torch.channels_last, 5: torch.channels_last_3d}[x.dim()]
        theirs, ours = theirs.to(memory_format=form), ours.to(memory_format=form)
    assert runs_ours(ours, x)
    # NOTE: where a layout is mixed, each of torch's backends has its own.
    assert_same(theirs, ours, x, same_strides=lies == "first")


@pytest.mark.parametrize("wanted", list(product([True, False], repeat=3))[:-1], ids=str)
@pytest.mark.parametrize("name", ["2d cut", "3d"])
def test_every_combination_of_gradients(device, name, wanted):
    assert_same(*pair(name, device), wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["1d", "2d cut", "3d"])
def test_dtypes(device, name, dtype):
    theirs, ours, x = pair(name, device, dtype)
    assert runs_ours(ours, x)
    assert_same(theirs, ours, x, tolerance=5e-3 if dtype is torch.float32 else 2e-2)


def test_autocast(device):
    theirs, ours, x = pair("2d cut", device, torch.float32)
    with torch.autocast(device, dtype=torch.bfloat16):
        assert runs_ours(ours, x)
        assert ours(x).dtype is torch.bfloat16
        assert_same(theirs, ours, x, tolerance=2e-2)


def test_strided_and_empty_inputs(device):
    theirs, ours, x = pair("2d", device)
    assert_same(theirs, ours, x[:, :, ::2, 1:])
    assert ours(x[:0]).shape == theirs(x[:0]).shape


def test_gradients_of_second_order(device):
    _, ours, x = pair("2d", device)
    assert torch.autograd.gradgradcheck(ours, x[:1, :, :4, :4].requires_grad_())


# ---- when the layer's own forward runs ----


def test_what_the_layer_does_not_take_is_torchs_error(device):
    theirs, ours, x = pair("2d", device)
    for bad in (x[:, :2], x[0, 0], x[:, :, :3], x.float()):
        with pytest.raises(RuntimeError) as error:
            theirs(bad)
        with pytest.raises(RuntimeError) as same:
            ours(bad)
        assert str(same.value) == str(error.value)


def test_without_a_batch(device):
    theirs, ours, x = pair("2d", device)
    torch.testing.assert_close(ours(x[0]), theirs(x[0]))


def test_settings_of_float32_that_differ(device, monkeypatch):
    theirs, ours, x = pair("2d", device, torch.float32)
    assert runs_ours(ours, x)
    monkeypatch.setattr(precision, "fp32_precision", lambda kind, device: kind)
    assert not runs_ours(ours, x)
    assert torch.equal(ours(x), theirs(x))


def test_later_changes_are_respected(device, monkeypatch):
    theirs, ours, x = pair("2d", device)
    for module in (theirs, ours):
        module.stride = (2, 2)
    assert not runs_ours(ours, x)
    assert torch.equal(ours(x), theirs(x))
    _, ours, x = pair("2d", device)
    seen = []
    ours.register_forward_hook(lambda *_: seen.append(1))
    assert runs_ours(ours, x)
    assert seen == [1]
    monkeypatch.setattr(F, "conv2d", lambda *_: "replaced")
    assert ours(x) == "replaced"


def test_parametrizations(device):
    theirs, ours, x = pair("2d", device)
    parametrizations.weight_norm(theirs)
    parametrizations.weight_norm(ours)
    assert runs_ours(ours, x)
    torch.testing.assert_close(ours(x), theirs(x))


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, weight):
        self.calls += 1
        return 2 * weight


def test_a_parametrization_is_computed_once(device):
    _, ours, x = pair("2d", device)
    counting = Counting()
    parametrize.register_parametrization(ours, "weight", counting)
    for each in (x, x[0], x[:, :, :9, :9]):
        counting.calls = 0
        ours(each)
        assert counting.calls == 1
    parametrize.remove_parametrizations(ours, "weight")
    assert runs_ours(ours, x)


def test_a_parametrized_convolution_is_left_alone(device):
    torch.manual_seed(0)
    layer = parametrizations.spectral_norm(nn.Conv2d(3, 8, 4, 4)).to(device)
    before = copy.deepcopy(layer.state_dict())
    assert "parametrizations" in fusedops.fuse(layer).skipped[0].reason
    for name, value in layer.state_dict().items():
        assert torch.equal(value, before[name])
    parametrize.remove_parametrizations(layer, "weight")
    assert type(layer) is nn.Conv2d


def test_settings_that_are_no_tuples_are_torchs(device):
    theirs, ours, x = pair("2d", device)
    for module in (theirs, ours):
        module.stride, module.padding, module.dilation = 4, 0, 1
    assert torch.equal(ours(x), theirs(x))


# ---- recognition ----

LEFT = {
    "padding": (nn.Conv2d(4, 8, 2, 2, padding=1), "pads"),
    "dilation": (nn.Conv2d(4, 8, 2, 2, dilation=2), "dilated"),
    "groups": (nn.Conv2d(4, 8, 2, 2, groups=2), "2 groups"),
    "lazy": (nn.LazyConv2d(8, 2, 2), "not made yet"),
}


@pytest.mark.parametrize("name", LEFT)
def test_left_alone(name):
    layer, reason = LEFT[name]
    kind = type(layer)
    report = fusedops.fuse(nn.Sequential(layer))
    assert reason in report.skipped[0].reason
    assert type(layer) is kind


class Standardized(nn.Conv2d):
    """timm's StdConv2d, as far as it matters."""

    def forward(self, x):
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return F.conv2d(x, weight, self.bias, self.stride)


def test_a_subclass_that_computes_something_else():
    layer = Standardized(3, 8, 4, 4)
    report = fusedops.fuse(layer)
    assert "subclass" in report.skipped[0].reason
    assert type(layer) is Standardized


@pytest.mark.parametrize(("kernel", "stride"), [(1, 1), (3, 1), (4, 2)])
def test_a_convolution_of_another_kind_is_not_mentioned(kernel, stride):
    layer = nn.Conv2d(3, 8, kernel, stride)
    report = fusedops.fuse(layer)
    assert (report.num_fused, report.num_skipped) == (0, 0)
    assert type(layer) is nn.Conv2d


def test_report_and_identity():
    model = nn.Sequential(nn.Conv2d(3, 8, 4, 4), nn.Flatten(2))
    layer, parameters, keys = model[0], list(model.parameters()), list(model.state_dict())
    report = fusedops.fuse(model)
    assert "linear of patches of 4 x 4" in str(report)
    assert model[0] is layer
    assert isinstance(layer, nn.Conv2d)
    assert type(layer).__name__ == "Conv2d"
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    assert list(model.state_dict()) == keys
    again = fusedops.fuse(model)
    assert (again.num_fused, again.unchanged) == (0, 1)


def test_copies_and_pickles(device):
    _, ours, x = pair("2d", device)
    for made in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert runs_ours(made, x)
        assert torch.equal(made(x), ours(x))


def test_compiled_it_is_a_convolution(device):
    theirs, ours, x = pair("2d", device)
    torch._dynamo.reset()
    run = torch.compile(ours, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(run(x), theirs(x))


@pytest.mark.parametrize("name", ["ViT", "CLIPVision"])
def test_hugging_face(device, name):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(
        image_size=16, patch_size=4, hidden_size=16, intermediate_size=32,
        num_hidden_layers=1, num_attention_heads=2,
    )  # fmt: skip
    theirs = getattr(transformers, f"{name}Model")(config).to(device).eval()
    ours = copy.deepcopy(theirs)
    report = fusedops.fuse(ours)
    assert "linear of patches of 4 x 4" in str(report)
    x = torch.randn(2, 3, 16, 16, device=device)
    got, want = (m(pixel_values=x).last_hidden_state for m in (ours, theirs))
    torch.testing.assert_close(got, want, rtol=1e-2, atol=1e-2)
