"""State dicts of torch_geometric's layers and example models, by twins with its names.

Where torch_geometric is importable, its own modules are compared as well.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fusedops import models
from fusedops.models import Stage
from fusedops.nn import EdgeConv, FeaturePropagation, GlobalSetAbstraction, SetAbstraction
from models.twin_ops import ball, furthest, nearest_three, rows_at, shuffle_norms

STAGES = ((16, 0.5, 8, (6, 10)), (6, 0.9, 5, (12, 14)))
PLAIN = {"last_norm": False, "last_activation": False, "bias": True}


class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.module = nn.BatchNorm1d(width)

    def forward(self, x):
        return self.module(x.flatten(0, -2)).view(x.shape)


class MLP(nn.Module):
    """Neither norm nor activation behind the last layer."""

    def __init__(self, widths, norm=True):
        super().__init__()
        self.lins = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self.norms = nn.ModuleList(Norm(b) if norm else nn.Identity() for b in widths[1:-1])

    def forward(self, x):
        for linear, norm in zip(self.lins, self.norms, strict=False):
            x = F.relu(norm(linear(x)))
        return self.lins[-1](x)


class Conv(nn.Module):
    """PointNetConv on balls, without loops: features first, then offsets."""

    def __init__(self, mlp):
        super().__init__()
        self.local_nn = mlp

    def forward(self, xyz, f, centers, radius, k):
        idx = ball(xyz, centers, radius, k, closed=False)
        offsets = rows_at(xyz, idx) - centers.unsqueeze(2)
        x = offsets if f is None else torch.cat([rows_at(f, idx), offsets], -1)
        return self.local_nn(x).max(2)[0]


class Holder(nn.Module):
    def __init__(self, **modules):
        super().__init__()
        for name, module in modules.items():
            self.add_module(name, module)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        width = 2
        for i, (_, _, _, mlp) in enumerate(STAGES, 1):
            self.add_module(f"sa{i}_module", Holder(conv=Conv(MLP([width + 3, *mlp]))))
            width = mlp[-1]
        self.sa3_module = Holder(nn=MLP([width + 3, 16, 20]))
        self.mlp = MLP([20, 12, 9, 5], norm=False)

    def forward(self, xyz, f):
        for i, (count, radius, k, _) in enumerate(STAGES, 1):
            centers = rows_at(xyz, furthest(xyz, count))
            f = getattr(self, f"sa{i}_module").conv(xyz, f, centers, radius, k)
            xyz = centers
        return self.mlp(self.sa3_module.nn(torch.cat([f, xyz], -1)).max(1)[0])


class Edge(nn.Module):
    """Own features first, then differences."""

    def __init__(self, mlp):
        super().__init__()
        self.nn = mlp

    def forward(self, x, k):
        idx = torch.cdist(x, x).topk(k, largest=False)[1]
        own = x.unsqueeze(2).expand(-1, -1, k, -1)
        return self.nn(torch.cat([own, rows_at(x, idx) - own], -1)).max(2)[0]


class Dynamic(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = Edge(MLP([6, 8, 8, 7])), Edge(MLP([14, 9]))
        self.lin1 = nn.Linear(16, 20)
        self.mlp = MLP([20, 12, 9, 5])

    def forward(self, x):
        a = self.conv1(x, 6)
        return self.mlp(self.lin1(torch.cat([a, self.conv2(a, 6)], -1)).max(1)[0])


def classifier():
    ours = models.PointNet2Classifier(
        5,
        2,
        stages=[Stage(n, (r,), (k,), (mlp,)) for n, r, k, mlp in STAGES],
        all_points=(16, 20),
        head=(12, 9),
        dropout=(0, 0),
        head_norm=None,
        **PLAIN,
    )
    return Classifier(), ours, 2


def dynamic():
    ours = models.DGCNN(
        5, mlps=[[8, 8, 7], [9]], k=6, embedding=20, head=(12, 9), dropout=(0, 0), pools=("max",),
        activation="relu", plain_last=True, bias=True,
    )  # fmt: skip
    return Dynamic(), ours, 0


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("make", [classifier, dynamic])
def test_example_models(device, make, training):
    torch.manual_seed(1)
    theirs, ours, channels = make()
    shuffle_norms(theirs).to(device, torch.float64).train(training)
    ours.to(device, torch.float64).train(training)
    state = {key: value.clone() for key, value in theirs.state_dict().items()}
    models.load_pyg(ours, state)
    assert all(torch.equal(value, state[key]) for key, value in models.to_pyg(ours).items())
    assert models.to_pyg(ours).keys() == state.keys()
    given = [torch.rand(3, 40, 3, dtype=torch.float64, device=device, requires_grad=True)]
    if channels:
        features = torch.randn(3, 40, channels, dtype=torch.float64, device=device)
        given.append(features.requires_grad_())
    want, got = theirs(*given), ours(*given)
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)
    for key, value in models.to_pyg(ours).items():
        torch.testing.assert_close(value, theirs.state_dict()[key], rtol=1e-9, atol=1e-9, msg=key)
    weight = torch.randn_like(want)
    for a, b in zip(
        *(torch.autograd.grad((y * weight).sum(), given) for y in (got, want)), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_layers_by_prefix(device):
    """Each kind of layer, from an MLP of a larger state dict, or from an nn.Sequential."""
    torch.manual_seed(1)
    xyz = torch.rand(2, 30, 3, dtype=torch.float64, device=device)
    f = torch.randn(2, 30, 4, dtype=torch.float64, device=device)
    known_xyz, known = xyz[:, :9] + 0.01, torch.randn_like(f[:, :9])
    centers = rows_at(xyz, furthest(xyz, 10))

    def propagate(mlp):
        dist2, idx = nearest_three(xyz, known_xyz)
        weight = 1 / dist2
        weight = weight / weight.sum(-1, keepdim=True)
        x = (rows_at(known, idx) * weight.unsqueeze(-1)).sum(2)
        return mlp(torch.cat([x, f], -1))

    cases = [
        (7, SetAbstraction(4, [8, 6], 0.5, 6, 10, **PLAIN), lambda m: m(xyz, f)[1],
         lambda mlp: Conv(mlp)(xyz, f, centers, 0.5, 6)),
        (7, GlobalSetAbstraction(4, [8, 6], **PLAIN), lambda m: m(xyz, f),
         lambda mlp: mlp(torch.cat([f, xyz], -1)).max(1)[0]),
        (8, FeaturePropagation(8, [8, 6], power=2, **PLAIN),
         lambda m: m(xyz, known_xyz, f, known), propagate),
        (8, EdgeConv(4, [8, 6], 5, activation="relu", **PLAIN), lambda m: m(f),
         lambda mlp: Edge(mlp)(f, 5)),
    ]  # fmt: skip
    for width, layer, run, plain in cases:
        layer.to(device, torch.float64).eval()
        mlp = MLP([width, 8, 6])
        steps = nn.Sequential(nn.Linear(width, 8), Norm(8), nn.ReLU(), nn.Linear(8, 6))
        for module in (mlp, steps):
            shuffle_norms(module).to(device, torch.float64).eval()
            state = {f"net.inner.{key}": value for key, value in module.state_dict().items()}
            models.load_pyg(layer, {**state, "other": xyz}, "net.inner.")
            want = plain(module)
            torch.testing.assert_close(run(layer), want, rtol=1e-6, atol=1e-6)
            written = models.to_pyg(layer, "net.inner.")
        assert written.keys() == {f"net.inner.{key}" for key in mlp.state_dict()}


def test_errors():
    layer = SetAbstraction(4, [[8], [6]], [0.1, 0.2], [3, 4])
    with pytest.raises(ValueError, match="must have one scale; got 2"):
        models.to_pyg(layer)
    with pytest.raises(TypeError, match=r"must be one of fusedops\.nn; got Linear"):
        models.load_pyg(nn.Linear(3, 4), {})
    layer = FeaturePropagation(8, [8], order="skip_first")
    with pytest.raises(ValueError, match="must have order 'known_first'"):
        models.load_pyg(layer, {})
    with pytest.raises(ValueError, match=r"missing lins\.0\.weight"):
        models.load_pyg(EdgeConv(4, [8]), {})


def test_its_own_modules():
    pyg = pytest.importorskip("torch_geometric", reason="torch_geometric is not installed")
    for options in ({}, {"plain_last": False}, {"norm": None}):
        theirs = shuffle_norms(pyg.nn.MLP([8, 10, 6], **options))
        last = not options.get("plain_last", True)
        norm = options.get("norm", "batch")
        ours = EdgeConv(
            4,
            [10, 6],
            norm=norm,
            bias=True,
            activation="relu",
            last_norm=last,
            last_activation=last,
        )
        models.load_pyg(ours, theirs.state_dict())
        theirs.load_state_dict(models.to_pyg(ours))
        x = torch.randn(5, 8)
        columns = torch.arange(8).roll(4)
        got = ours.eval().mlp(x[:, columns])
        torch.testing.assert_close(got, theirs.eval()(x))
