"""fusedops.nn.ConvBNAct: what nn.Conv2d, nn.BatchNorm2d and an activation give in a row."""

from __future__ import annotations

import copy
import io
from collections import OrderedDict

import pytest
import torch
from torch import nn

import fusedops
from fusedops.nn import conv_call
from util import TORCH_ACTIVATION

CONVS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
NORMS = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
CASES = {
    "plain": {},
    "strided": {"kernel_size": 3, "stride": 2, "padding": 1},
    "dilated": {"kernel_size": 3, "dilation": 2, "padding": 2},
    "grouped": {"kernel_size": 3, "groups": 2},
    "depthwise": {"kernel_size": 3, "groups": 6, "out_channels": 6},
    "bias": {"bias": True},
    "same": {"kernel_size": 4, "padding": "same"},
    "valid": {"kernel_size": 3, "padding": "valid"},
    "reflect": {"kernel_size": 3, "padding": 1, "padding_mode": "reflect"},
    "circular": {"kernel_size": 3, "padding": 1, "padding_mode": "circular"},
    "no_affine": {"affine": False},
    "no_statistics": {"track_running_stats": False},
    "plain_mean": {"momentum": None},
    "momentum": {"momentum": 0.3, "eps": 1e-2},
}


pytestmark = pytest.mark.usefixtures("exact_convolutions")


@pytest.fixture
def ran(monkeypatch):
    """How often the op ran."""
    found = []
    whole = conv_call.run
    monkeypatch.setattr(conv_call, "run", lambda *args: found.append(args) or whole(*args))
    return found


def pair(dims=2, activation="relu", device="cpu", dtype=torch.float32, **options):
    """Ours, and torch's modules with the same parameters."""
    torch.manual_seed(0)
    outside = options.pop("out_channels", 8)
    settings = {key: options.pop(key) for key in ("eps", "momentum", "affine",
                "track_running_stats") if key in options}  # fmt: skip
    options.setdefault("kernel_size", 1)
    options.setdefault("bias", False)
    ours = fusedops.nn.ConvBNAct(
        6, outside, dims=dims, activation=activation, device=device, dtype=dtype,
        **options, **settings,
    )  # fmt: skip
    conv = CONVS[dims](6, outside, device=device, dtype=dtype, **options)
    norm = NORMS[dims](outside, device=device, dtype=dtype, **settings)
    theirs = nn.Sequential(OrderedDict(conv=conv, bn=norm))
    assert list(theirs.state_dict()) == list(ours.state_dict())
    with torch.no_grad():
        for p in ours.bn.parameters():
            p.uniform_(0.5, 1.5)
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


def an_input(dims=2, device="cpu", dtype=torch.float32, size=7):
    torch.manual_seed(1)
    return torch.randn(3, 6, *(size - i for i in range(dims)), device=device, dtype=dtype)


def composed(theirs, x, residual, activation):
    y = theirs(x)
    return TORCH_ACTIVATION[activation or "none"](y if residual is None else y + residual)


def assert_same(ours, theirs, x, activation="relu", with_residual=False, **close):
    residual = torch.randn_like(theirs.conv(x)) if with_residual else None
    grads = []
    for call in (
        lambda x, r: ours(x, r),
        lambda x, r: composed(theirs, x, r, activation),
    ):
        leaf = x.clone().requires_grad_()
        other = None if residual is None else residual.clone().requires_grad_()
        y = call(leaf, other)
        y.backward(torch.linspace(-1, 1, y.numel(), device=y.device, dtype=y.dtype).view(y.shape))
        grads.append([y.detach(), leaf.grad, *([] if other is None else [other.grad])])
    for got, want in zip(*grads, strict=True):
        torch.testing.assert_close(got, want, **close)
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, **close)
        p.grad = q.grad = None
    for a, b in zip(ours.buffers(), theirs.buffers(), strict=True):
        torch.testing.assert_close(a, b, **close)


def closeness(device):
    return dict.fromkeys(("rtol", "atol"), 2e-3 if device == "cuda" else 1e-4)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_forward_and_backward(device, case, mode, ran):
    ours, theirs = pair(device=device, **CASES[case])
    for one in (ours, theirs):
        one.train(mode == "train")
    for _ in range(3):  # statistics of several batches
        assert_same(ours, theirs, an_input(device=device), **closeness(device))
    assert len(ran) == 3


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("activation", [None, "relu", "silu", "hardswish", "leaky_relu", "gelu"])
def test_dims_activations_and_residuals(device, dims, activation, ran):
    ours, theirs = pair(dims, activation, device, kernel_size=3, padding=1)
    x = an_input(dims, device)
    assert_same(ours, theirs, x, activation, with_residual=True, **closeness(device))
    assert len(ran) == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_dtypes(device, dtype, mode):
    ours, theirs = pair(device=device, dtype=dtype, kernel_size=3)
    for one in (ours, theirs):
        one.train(mode == "train")
    close = {"rtol": 3e-2, "atol": 3e-2} if dtype.itemsize == 2 else {}
    x = an_input(device=device, dtype=dtype)
    with torch.no_grad():
        got, want = ours(x), composed(theirs, x, None, "relu")
    assert got.dtype is dtype
    torch.testing.assert_close(got, want, **close)
    for a, b in zip(ours.buffers(), theirs.buffers(), strict=True):
        torch.testing.assert_close(a, b, **close)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(device, dtype):
    ours, theirs = pair(device=device, kernel_size=3)
    x = an_input(device=device)
    with torch.autocast(device, dtype):
        got, want = ours(x), composed(theirs, x, None, "relu")
    assert got.dtype is want.dtype is dtype
    torch.testing.assert_close(got, want, rtol=3e-2, atol=3e-2)
    got.float().sum().backward()
    assert ours.conv.weight.grad.dtype is torch.float32


def test_a_plain_mean_counts_batches(ran):
    ours, theirs = pair(momentum=None)
    for size in (5, 6, 7):
        x = an_input(size=size)
        torch.testing.assert_close(ours(x), composed(theirs, x, None, "relu"))
    assert int(ours.bn.num_batches_tracked) == 3
    torch.testing.assert_close(ours.bn.running_var, theirs.bn.running_var)
    assert len(ran) == 3


def test_a_frozen_norm_trains_with_its_running_statistics():
    ours, theirs = pair()
    for one in (ours, theirs):
        one(an_input())
        one.bn.eval()
    assert_same(ours, theirs, an_input(size=6))
    assert int(ours.bn.num_batches_tracked) == 1


def test_what_runs_by_itself(ran):
    ours, theirs = pair()
    x = an_input()
    for one in (ours, theirs):
        one.bn.register_forward_hook(lambda module, args, y: y * 2)
    torch.testing.assert_close(ours(x), composed(theirs, x, None, "relu"))
    ours, theirs = pair()
    for one in (ours, theirs):
        one.bn = nn.InstanceNorm2d(8)
    torch.testing.assert_close(ours(x), composed(theirs, x, None, "relu"))
    ours, theirs = (one.eval() for one in pair())
    for one in (ours, theirs):
        one.bn = nn.Identity()
    torch.testing.assert_close(ours(x[0]), composed(theirs, x[0], None, "relu"))  # no batch
    assert ran == []


def test_errors_are_those_of_torch():
    ours, theirs = pair()
    x = torch.ones(1, 6, 1, 1)
    for one in (ours, theirs):
        with pytest.raises(ValueError, match="more than 1 value per channel"):
            one(x)
    with pytest.raises(ValueError, match=r"fusedops.nn.ConvBNAct: activation must .*got 'x'"):
        fusedops.nn.ConvBNAct(3, 4, 1, activation="x")
    with pytest.raises(ValueError, match="ConvBNAct: dims must be 1, 2 or 3; got 4"):
        fusedops.nn.ConvBNAct(3, 4, 1, dims=4)


def test_sync_batch_norm_of_one_process(device, ran):
    ours, theirs = pair(device=device)
    ours = nn.SyncBatchNorm.convert_sync_batchnorm(ours)
    assert type(ours.bn) is nn.SyncBatchNorm
    assert_same(ours, theirs, an_input(device=device), **closeness(device))
    assert len(ran) == 1


def test_from_torch_shares_modules():
    conv, norm = nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4).eval()
    for modules in ((conv, norm, nn.SiLU()), (nn.Sequential(conv, norm, nn.SiLU()),)):
        layer = fusedops.nn.ConvBNAct.from_torch(*modules)
        assert layer.conv is conv
        assert layer.bn is norm
        assert layer.activation == "silu"
        assert layer.training
        assert not norm.training
    assert fusedops.nn.ConvBNAct.from_torch(conv, norm).activation is None
    assert fusedops.nn.ConvBNAct.from_torch(conv, norm, activation="gelu").activation == "gelu"
    with pytest.raises(TypeError, match="expected a batch norm; got Conv2d, LayerNorm"):
        fusedops.nn.ConvBNAct.from_torch(conv, nn.LayerNorm(4))
    with pytest.raises(TypeError, match=r"expected a convolution, .* got Linear, BatchNorm2d"):
        fusedops.nn.ConvBNAct.from_torch(nn.Linear(3, 4), norm)
    with pytest.raises(TypeError, match="expected an activation of ours; got Softsign"):
        fusedops.nn.ConvBNAct.from_torch(conv, norm, nn.Softsign())
    with pytest.raises(ValueError, match=r"the norm must have 4 channels, .* got 5"):
        fusedops.nn.ConvBNAct.from_torch(conv, nn.BatchNorm2d(5))


def test_saves_copies_and_shows():
    ours, _ = pair()
    file = io.BytesIO()
    torch.save(ours, file)
    file.seek(0)
    x = an_input()
    for twin in (torch.load(file, weights_only=False), copy.deepcopy(ours)):
        torch.testing.assert_close(twin.eval()(x), ours.eval()(x))
    assert "activation='relu'\n" in repr(ours)
    assert "(bn): BatchNorm2d(8" in repr(ours)


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_compiled_in_one_graph(mode):
    ours, theirs = (one.train(mode == "train") for one in pair(kernel_size=3))
    x = an_input()
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), composed(theirs, x, None, "relu"))
    torch.testing.assert_close(ours.bn.running_mean, theirs.bn.running_mean)


def test_channels_last(device):
    ours, theirs = pair(device=device, kernel_size=3)
    x = an_input(device=device).contiguous(memory_format=torch.channels_last)
    got, want = ours(x), composed(theirs, x, None, "relu")
    assert got.stride() == want.stride()
    torch.testing.assert_close(got, want, **closeness(device))
