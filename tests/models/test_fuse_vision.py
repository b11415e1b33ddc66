"""fusedops.fuse on whole models of torchvision and timm: their convolutions, in both modes."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import fusedops
from fusedops._rewrite.convs import unit as units

# How many convolutions run with what stands behind them, and how many of them with a residual.
MODELS = {
    "torchvision": {
        "resnet18": (20, 8),
        "efficientnet_b0": (81, 9),
        "mobilenet_v2": (52, 17),
        "mobilenet_v3_small": (34, 6),
        "regnet_y_400mf": (85, 12),
    },
    "timm": {
        "resnet18": (20, 8),
        "mobilenetv3_small_100": (35, 6),
        "regnety_002": (44, 0),
        "convnext_atto": (0, 0),
    },
}
ALL = [(package, name) for package, names in MODELS.items() for name in names]


@pytest.fixture(autouse=True)
def _op_runs(monkeypatch):
    """On a CPU too, where fuse keeps to torch's kernels."""
    for name in ("may_pay", "pays"):
        monkeypatch.setattr(units, name, lambda *_: True)


def build(package, name):
    pytest.importorskip(package)
    torch.manual_seed(0)
    if package == "timm":
        import timm

        return timm.create_model(name)
    import torchvision

    return getattr(torchvision.models, name)()


def results(model, x):
    torch.manual_seed(3)  # dropout and stochastic depth draw the same
    y = model(x)
    y.square().mean().backward()
    grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return {"y": y.detach(), **grads, **copy.deepcopy(dict(model.named_buffers()))}


def assert_same(original, model, x, tolerance):
    """Norms of the differences, by the norm of all of a kind: a model's gradients vary widely."""
    want, got = results(original, x), results(model, x)
    assert want.keys() == got.keys()
    for name, value in want.items():
        if not value.is_floating_point():
            assert torch.equal(got[name], value), name
            continue
        size = value.norm() + 1e-3 * want["y"].norm()
        assert (got[name] - value).norm() <= tolerance * size, name


@pytest.mark.parametrize(("package", "name"), ALL)
def test_same_results(package, name, device):
    model = build(package, name).to(device)
    original = copy.deepcopy(model)
    report = fusedops.fuse(model)
    found = len(report.convs), sum(conv.residual for conv in report.convs)
    assert found == MODELS[package][name]
    # NOTE: float32 takes a kink of ReLU6 from either side, torch's too: percents of a gradient.
    model, original = (m.double() for m in (model, original))
    x = torch.randn(2, 3, 64, 64, device=device, dtype=torch.float64)
    for mode in (False, True):
        tolerance = 1e-3 if mode else 1e-4
        assert_same(original.train(mode), model.train(mode), x, tolerance)


def test_frozen_norms_of_torchvision(device):
    pytest.importorskip("torchvision")
    from torchvision.models import resnet18
    from torchvision.ops import FrozenBatchNorm2d

    torch.manual_seed(0)
    model = resnet18(norm_layer=FrozenBatchNorm2d).to(device).double()
    original = copy.deepcopy(model)
    assert len(fusedops.fuse(model).convs) == 20
    x = torch.randn(2, 3, 64, 64, device=device, dtype=torch.float64)
    assert_same(original, model, x, 1e-9)


def test_state_dicts_are_exchangeable():
    model = build("torchvision", "resnet18")
    original = copy.deepcopy(model)
    fusedops.fuse(model)
    assert list(model.state_dict()) == list(original.state_dict())
    model.load_state_dict(original.state_dict())
    assert type(model).__name__ == type(original).__name__
    assert isinstance(model, type(original))


def test_sync_batch_norm_after_fuse():
    """nn.SyncBatchNorm in a model that is fused already is one process's here."""
    model = build("torchvision", "resnet18")
    fusedops.fuse(model)
    model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    original = nn.SyncBatchNorm.convert_sync_batchnorm(build("torchvision", "resnet18"))
    original.load_state_dict(model.state_dict())
    assert_same(original, model, torch.randn(2, 3, 64, 64), 1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["resnet50", "efficientnet_b0", "mobilenet_v3_small"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_channels_last(name, dtype):
    """Ours is as near to float64 as torch, in inference and for the loss of a step."""
    model = build("torchvision", name).cuda().to(memory_format=torch.channels_last).eval()
    original, exact = copy.deepcopy(model), copy.deepcopy(model).double()
    fusedops.fuse(model)
    x = torch.randn(8, 3, 128, 128, device="cuda").contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        want = exact(x.double())
        with torch.autocast("cuda", dtype):
            theirs, ours = original(x), model(x)
    assert ours.dtype is theirs.dtype
    errors = [float((y.double() - want).norm() / want.norm()) for y in (ours, theirs)]
    assert errors[0] <= 1.2 * errors[1] + 1e-3, errors
    losses = []
    for one in (original.train(), model.train()):
        torch.manual_seed(1)
        with torch.autocast("cuda", dtype):
            loss = nn.functional.cross_entropy(one(x).float(), torch.arange(8, device="cuda"))
        loss.backward()
        losses.append(float(loss))
        assert all(bool(p.grad.isfinite().all()) for p in one.parameters())
    assert losses[0] == pytest.approx(losses[1], rel=3e-2)
