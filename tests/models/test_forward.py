"""What models promise beside values: padded clouds, half precision, torch.compile."""

from __future__ import annotations

import copy

import pytest
import torch

from fusedops import models
from fusedops.models import Segmentation, Stage
from fusedops.nn import GlobalSetAbstraction
from models.twin_ops import shuffle_norms
from util import Calls

STAGES = (Stage(8, (0.6,), (6,), ((8, 9),)), Stage(4, (0.9,), (4,), ((10,),)))


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

SEGMENT = {
    "dgcnn_parts": lambda: models.DGCNNSegmenter(
        5, num_categories=3, mlps=[[8, 8], [9]], k=4, embedding=12, category=6, head=(8, 7),
        dropout=(0.0, 0.0),
    ),
    "pointnext_scenes": lambda: models.PointNeXtSegmenter(
        5, 2, width=6, blocks=(1, 2), strides=(2, 3), radius=0.3, k=6, dropout=0.0
    ),
}  # fmt: skip


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


def test_more_points_than_there_are(device):
    """A length beyond N is N, for DGCNN's mean too; an empty cloud is zeros."""
    torch.manual_seed(1)
    model = shuffle_norms(MAKE["dgcnn"]()).to(device, torch.float64).eval()
    points = torch.rand(3, 24, 5, dtype=torch.float64, device=device)
    got = model(points, torch.tensor([24, 1000, 0], device=device))
    torch.testing.assert_close(got[:2], model(points[:2]), rtol=1e-9, atol=1e-9)
    assert got[2].isfinite().all()


@pytest.mark.parametrize("activation", ["gelu", "leaky_relu", "none"])
def test_activation_of_pointnext(device, activation):
    """Everywhere: no relu is left, behind residual connections neither."""
    torch.manual_seed(1)
    model = models.PointNeXt(
        5, width=6, blocks=(1, 2), radius=0.4, strides=(2, 2), k=6, head=(8,), dropout=(0.0,),
        activation=activation, negative_slope=0.3,
    ).to(device, torch.float64)  # fmt: skip
    xyz = torch.rand(2, 24, 3, dtype=torch.float64, device=device)
    with Calls() as calls:
        model(xyz)
    assert not [name for name in calls.names if name.startswith("aten.relu")]
    (first,), (_, block) = model.stages
    rows = torch.randn(2, 24, 6, dtype=torch.float64, device=device)
    centers, y, _ = first(xyz, rows)
    assert y.min() < 0
    assert block(centers, torch.cat([y, y], -1)).min() < 0


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


ALONE = {
    **{f"{name}_features": make for name, make in MAKE.items() if name != "dgcnn"},
    "classifier": lambda: models.PointNet2Classifier(
        5, stages=STAGES, all_points=(8, 12), head=(9,), dropout=(0.0,)
    ),
    "segmenter": lambda: models.PointNet2Segmenter(
        5,
        config=Segmentation(STAGES, (8,), ((9,), (8,), (7,)), "skip_first", 2, True),
        num_categories=3,
        head=(6,),
        dropout=(0.0,),
    ),
    "pointnext": lambda: models.PointNeXt(
        5, width=6, blocks=(1, 2), strides=(2, 2), radius=0.4, k=6, head=(8,), dropout=(0.0,)
    ),
    "pointnext_scenes_features": SEGMENT["pointnext_scenes"],
    "global": lambda: GlobalSetAbstraction(0, [8, 9]),
}


@pytest.mark.parametrize("name", ALONE)
def test_half_precision_and_autocast(device, name):
    """Coordinates stay float32; features and weights are halves, by autocast or by themselves."""
    torch.manual_seed(1)
    model = ALONE[name]().to(device)
    given = [torch.rand(4, 24, 3, device=device)]
    if name.endswith("_features"):
        given.append(torch.randn(4, 24, 2, device=device))
    elif name == "segmenter":
        given += [None, torch.arange(4, device=device) % 3]
    with torch.autocast(device, dtype=torch.bfloat16):
        y = model(*given)
    assert y.dtype is torch.bfloat16 or name == "global"
    y.float().square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    model = model.eval()
    want = model(*given)
    half = model.to(torch.bfloat16)
    if name.endswith("_features"):
        given[1] = given[1].bfloat16()
    got = half(*given)
    assert got.dtype is torch.bfloat16
    torch.testing.assert_close(got.float(), want, rtol=0.1, atol=0.1)


def test_dgcnn_of_parts(device):
    """Lengths, no category where none is wanted, and points that are turned by what is learnt."""
    torch.manual_seed(1)
    model = shuffle_norms(SEGMENT["dgcnn_parts"]()).to(device, torch.float64).eval()
    points = torch.rand(2, 24, 3, dtype=torch.float64, device=device)
    category = torch.tensor([2, 0], device=device)
    torch.testing.assert_close(model.transform(points), points)  # at first the identity
    model.transform.head.last.weight.data.normal_()
    got = model(points, category, lengths=torch.tensor([24, 17], device=device))
    alone = model(points[1:, :17], category[1:])
    torch.testing.assert_close(got[1:, :17], alone, rtol=1e-9, atol=1e-9)
    assert not got[1, 17:].any()
    with pytest.raises(ValueError, match="DGCNNSegmenter: category must be a Tensor; got None"):
        model(points)
    plain = models.DGCNNSegmenter(5, 4, num_categories=0, transform=False, k=4).eval()
    assert plain(torch.rand(2, 9, 4)).shape == (2, 9, 5)
    with pytest.raises(ValueError, match=r"dropout must have 3 value\(s\); got 1"):
        models.DGCNNSegmenter(5, dropout=(0.5,))


def test_features_of_pointnexts_scenes():
    model = models.PointNeXtSegmenter(5, 4, xyz_features=False, strides=(2, 2, 2, 2))
    with pytest.raises(ValueError, match="features must be a Tensor; got None"):
        model(torch.rand(2, 32, 3))
    with pytest.raises(ValueError, match="in_channels must be positive without xyz_features"):
        models.PointNeXtSegmenter(5, xyz_features=False)
    with pytest.raises(ValueError, match="PointNeXtSegmenter: strides must have a value for each"):
        models.PointNeXtSegmenter(5, blocks=(1, 1))


@pytest.mark.parametrize("name", ["classifier", "dgcnn"])
def test_compile(device, name):
    """One graph, forward and backward, in training and evaluation."""
    torch.manual_seed(1)
    model = shuffle_norms(MAKE[name]()).to(device, torch.float64)
    xyz = torch.rand(2, 24, 3, dtype=torch.float64, device=device)
    features = torch.randn(2, 24, 2, dtype=torch.float64, device=device)
    given = (torch.cat([xyz, features], -1),) if name == "dgcnn" else (xyz, features)
    compiled = torch.compile(copy.deepcopy(model), backend="aot_eager", fullgraph=True)
    for training in (True, False):
        model.train(training)
        compiled.train(training)
        want, got = model(*given), compiled(*given)
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)
        for y in (want, got):
            y.square().sum().backward()
    for a, b in zip(compiled.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-9, atol=1e-9)
    for a, b in zip(compiled.buffers(), model.buffers(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
