"""Models beside plain torch where no other repository's names are at stake: PointNeXt, lengths."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fusedops import models
from fusedops.models import Segmentation, Stage
from models.twin_ops import ball, furthest, rows_at, shuffle_norms

STAGES = (Stage(8, (0.6,), (6,), ((8, 9),)), Stage(4, (0.9,), (4,), ((10,),)))


def rows(mlp, x):
    """The layers of a SharedMLP by torch, over (..., C)."""
    for i, linear in enumerate(mlp.linears):
        x = F.linear(x, linear.weight, linear.bias)
        if i < len(mlp.norms):
            norm = mlp.norms[i]
            flat = F.batch_norm(
                x.flatten(0, -2), norm.running_mean.clone(), norm.running_var.clone(), norm.weight,
                norm.bias, norm.training, 0.1, norm.eps,
            )  # fmt: skip
            x = flat.view(x.shape)
        if i < len(mlp.linears) - 1 or mlp.last_activation:
            x = F.relu(x)
    return x


def around(layer, xyz, f, centers):
    radius, k = layer.radii[0], layer.ks[0]
    idx = ball(xyz, centers, radius, k, closed=False)
    offsets = (rows_at(xyz, idx) - centers.unsqueeze(2)) / radius
    return rows(layer.scales[0], torch.cat([offsets, rows_at(f, idx)], -1)).max(2)[0]


def pointnext(model, xyz):
    """PointNeXt's forward in plain torch, with our parameters."""
    f = F.linear(xyz, model.stem.weight, model.stem.bias)
    for first, *blocks in model.stages:
        idx = furthest(xyz, xyz.shape[1] // first.stride)
        centers = rows_at(xyz, idx)
        y = around(first.abstraction, xyz, f, centers)
        if first.skip is not None:
            y = F.relu(y + F.linear(rows_at(f, idx), first.skip.weight, first.skip.bias))
        xyz, f = centers, y
        for block in blocks:
            f = F.relu(rows(block.mlp, around(block.abstraction, xyz, f, xyz)) + f)
    y = rows(model.all_points.mlp, torch.cat([xyz, f], -1)).max(1)[0]
    for layer in model.head.layers:
        y = rows(layer, y)
    return F.linear(y, model.head.last.weight, model.head.last.bias)


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("small", [True, False])
def test_pointnext(device, small, training):
    torch.manual_seed(1)
    options = {} if small else {"blocks": (2, 3), "sa_layers": 1, "residual": False}
    model = models.PointNeXt(
        5, width=6, **{"blocks": (1, 1), **options}, strides=(2, 2), radius=0.4, k=6,
        head=(8,), dropout=(0.0,), dtype=torch.float64,
    )  # fmt: skip
    shuffle_norms(model).to(device).train(training)
    xyz = torch.rand(3, 32, 3, dtype=torch.float64, device=device, requires_grad=True)
    want, got = pointnext(model, xyz), model(xyz)
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)
    weight = torch.randn_like(want)
    inputs = [xyz, *model.parameters()]
    grads = [torch.autograd.grad((y * weight).sum(), inputs) for y in (got, want)]
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


MAKE = {
    "classifier": lambda: models.PointNet2Classifier(
        5, 2, stages=STAGES, all_points=(8, 12), head=(9,), dropout=(0.0,)
    ),
    "segmenter": lambda: models.PointNet2Segmenter(
        5,
        2,
        config=Segmentation(STAGES, (8,), ((9,), (8,), (7,)), "skip_first", 2, True),
        head=(6,),
        dropout=(0.0,),
    ),
    "scenes": lambda: models.PointNet2Segmenter(
        5,
        2,
        config=Segmentation(STAGES, None, ((9,), (8,)), "known_first", 1, False),
        head=(6,),
        dropout=(0.0,),
    ),
    "dgcnn": lambda: models.DGCNN(
        5, 5, mlps=[[8], [9]], k=4, embedding=12, head=(8,), dropout=(0.0,)
    ),
}


@pytest.mark.parametrize("name", MAKE)
def test_lengths(device, name):
    """What lies behind a cloud's length counts nowhere: outputs are those of the cloud alone."""
    torch.manual_seed(1)
    model = shuffle_norms(MAKE[name]()).to(device, torch.float64).eval()
    xyz = torch.rand(2, 24, 3, dtype=torch.float64, device=device)
    features = torch.randn(2, 24, 2, dtype=torch.float64, device=device)
    lengths = torch.tensor([24, 17], device=device)
    if name == "dgcnn":
        wide = torch.cat([xyz, features], -1)
        got = model(wide, lengths)
        alone = model(wide[1:, :17])
    else:
        got = model(xyz, features, lengths=lengths)
        alone = model(xyz[1:, :17], features[1:, :17])
    got = got[1:] if got.dim() == 2 else got[1:, :17]
    torch.testing.assert_close(got, alone, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["classifier", "scenes"])
def test_lengths_in_training(device, name):
    """Batch statistics are over the points that count."""
    torch.manual_seed(1)
    xyz = torch.rand(2, 24, 3, dtype=torch.float64, device=device)
    features = torch.randn(2, 24, 2, dtype=torch.float64, device=device)
    lengths = torch.tensor([24, 17], device=device)
    found = []
    for fill in (0.0, 0.5):
        torch.manual_seed(2)
        model = MAKE[name]().to(device, torch.float64)
        xyz[1, 17:], features[1, 17:] = fill, fill
        y = model(xyz, features, lengths=lengths)
        found.append((y[:, :17] if y.dim() == 3 else y, model.state_dict()))
    (a, state), (b, other) = found
    torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    for key in state:
        torch.testing.assert_close(state[key], other[key], rtol=1e-12, atol=1e-12, msg=key)


def test_half_precision_and_autocast(device):
    torch.manual_seed(1)
    model = MAKE["classifier"]().to(device)
    xyz = torch.rand(4, 24, 3, device=device)
    features = torch.randn(4, 24, 2, device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        y = model(xyz, features)
    assert y.dtype is torch.bfloat16
    y.float().square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    model = model.eval()
    want = model(xyz, features)
    half = model.to(torch.bfloat16)
    got = half(xyz, features.bfloat16())
    torch.testing.assert_close(got.float(), want, rtol=0.1, atol=0.1)
