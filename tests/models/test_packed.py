"""Packed clouds in layers and models give what padded ones with lengths do."""

from __future__ import annotations

import copy

import pytest
import torch

from fusedops import models
from fusedops.nn import EdgeConv, FeaturePropagation, GlobalSetAbstraction, SetAbstraction
from models.test_forward import MAKE, SEGMENT, STAGES
from models.twin_ops import shuffle_norms

LENGTHS = (24, 17, 20)
DOUBLE = {"dtype": torch.float64}


def padded(device):
    """(xyz, features, lengths): what lies behind a length would change everything."""
    generator = torch.Generator().manual_seed(0)
    xyz = torch.rand(3, max(LENGTHS), 3, generator=generator, **DOUBLE).to(device)
    features = torch.randn(3, max(LENGTHS), 2, generator=generator, **DOUBLE).to(device)
    lengths = torch.tensor(LENGTHS, device=device)
    return xyz.requires_grad_(), features.requires_grad_(), lengths


def offsets_of(lengths, around=0):
    """Where packed clouds begin, with rows of no cloud around them."""
    return torch.nn.functional.pad(lengths.cumsum(0), (1, 0)) + around


def pack(x, lengths, around=0):
    rows = torch.cat([one[:count] for one, count in zip(x, lengths.tolist(), strict=True)])
    return torch.nn.functional.pad(rows, (0, 0, around, around), value=0.3)


def assert_same(ours, run_packed, run_padded, inputs):
    """Values, gradients of inputs and parameters, and running statistics."""
    other = copy.deepcopy(ours)
    got, want = run_packed(ours), run_padded(other)
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)
    weight = torch.randn_like(want)
    grads = [
        torch.autograd.grad((y * weight).sum(), [*inputs, *m.parameters()], allow_unused=True)
        for y, m in ((got, ours), (want, other))
    ]
    for a, b in zip(*grads, strict=True):
        zero = torch.zeros((), **DOUBLE, device=want.device)
        a, b = (zero if g is None else g for g in (a, b))
        torch.testing.assert_close(*torch.broadcast_tensors(a, b), rtol=1e-8, atol=1e-8)
    for key, value in ours.state_dict().items():
        torch.testing.assert_close(value, other.state_dict()[key], rtol=1e-9, atol=1e-9, msg=key)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", MAKE)
def test_models(device, name, training):
    torch.manual_seed(1)
    model = shuffle_norms(MAKE[name]()).to(device, torch.float64).train(training)
    xyz, features, lengths = padded(device)
    offsets = offsets_of(lengths)

    def unpacked(y):
        return y if y.dim() == 2 else pack(y, lengths)

    if name == "dgcnn":
        wide = torch.cat([xyz, features], -1)
        assert_same(
            model,
            lambda m: m(pack(wide, lengths), offsets=offsets),
            lambda m: m(wide, lengths),
            [xyz, features],
        )
        return
    assert_same(
        model,
        lambda m: m(pack(xyz, lengths), pack(features, lengths), offsets=offsets),
        lambda m: unpacked(m(xyz, features, lengths=lengths)),
        [xyz, features],
    )


LAYERS = {
    "abstraction": lambda: SetAbstraction(2, [[8, 9], [7]], [0.4, 0.8], [4, 6], 19, **DOUBLE),
    "nearest": lambda: SetAbstraction(2, [8, 9], None, 5, 6, pool="mean", **DOUBLE),
    "global": lambda: GlobalSetAbstraction(2, [8, 9], **DOUBLE),
    "global mean": lambda: GlobalSetAbstraction(2, [8, 9], pool="mean", **DOUBLE),
    "propagation": lambda: FeaturePropagation(7, [8, 9], **DOUBLE),
    "everywhere": lambda: FeaturePropagation(7, [8, 9], **DOUBLE),
    "edge": lambda: EdgeConv(2, [8, 9], 5, **DOUBLE),
}


@pytest.mark.parametrize("hooked", [False, True], ids=["fused", "by layers"])
@pytest.mark.parametrize("name", LAYERS)
def test_layers(device, name, hooked):
    """Rows before the first cloud and behind the last one are no points."""
    torch.manual_seed(1)
    layer = shuffle_norms(LAYERS[name]()).to(device)
    if hooked:
        for module in layer.modules():
            if isinstance(module, torch.nn.BatchNorm1d):
                module.register_forward_hook(lambda *_: None)
    xyz, features, lengths = padded(device)
    around = 0 if name == "edge" else 3
    offsets = offsets_of(lengths, around)
    at, rows = pack(xyz, lengths, around), pack(features, lengths, around)
    inside = slice(around, around + sum(LENGTHS))
    if name in ("abstraction", "nearest"):
        centers, _, starts = layer.sample(at, offsets=offsets)
        counts = starts.diff()
        assert counts.tolist() == [min(layer.num_points, count) for count in LENGTHS]
        got = copy.deepcopy(layer)(at, rows, offsets=offsets)
        assert torch.equal(got[0], centers)
        assert torch.equal(got[2], starts)
        given = copy.deepcopy(layer)(at, rows, centers, offsets=offsets, center_offsets=starts)
        assert torch.equal(given[1], got[1])
        assert_same(
            layer,
            lambda m: m(at, rows, offsets=offsets)[1],
            lambda m: pack(m(xyz, features, lengths=lengths)[1], counts),
            [features],
        )
        return
    if name.startswith("global"):
        run = (
            lambda m: m(at, rows, offsets=offsets),
            lambda m: m(xyz, features, lengths=lengths),
        )
    elif name == "edge":
        run = (
            lambda m: m(rows, offsets=offsets),
            lambda m: pack(m(features, lengths=lengths), lengths),
        )
    else:
        generator = torch.Generator().manual_seed(5)
        known = torch.randn(3, 5, 5, generator=generator, **DOUBLE).to(device)
        known_xyz = torch.rand(3, 5, 3, generator=generator, **DOUBLE).to(device)
        if name == "everywhere":
            known, known_xyz = known[:, 0], None
        counts = torch.tensor([5, 4, 5], device=device)

        def packed(m):
            if known_xyz is None:
                y = m(at, None, rows, known, offsets=offsets)
            else:
                y = m(
                    at, pack(known_xyz, counts), rows, pack(known, counts), offsets=offsets,
                    known_offsets=offsets_of(counts),
                )  # fmt: skip
            assert not y[: inside.start].any()
            return y[inside]

        more = {} if known_xyz is None else {"known_lengths": counts}
        run = (
            packed,
            lambda m: pack(m(xyz, known_xyz, features, known, lengths=lengths, **more), lengths),
        )
    assert_same(layer, *run, [features])


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_segmenter_of_parts(device, training):
    torch.manual_seed(1)
    model = shuffle_norms(SEGMENT["dgcnn_parts"]()).to(device, torch.float64).train(training)
    model.transform.head.last.weight.data.normal_(std=0.1)
    xyz, _, lengths = padded(device)
    category = torch.tensor([2, 0, 1], device=device)
    assert_same(
        model,
        lambda m: m(pack(xyz, lengths), category, offsets=offsets_of(lengths)),
        lambda m: pack(m(xyz, category, lengths=lengths), lengths),
        [xyz],
    )


@pytest.mark.parametrize("segments", [False, True], ids=["clouds", "points"])
def test_pointnext(device, segments):
    """Every cloud has centres by its own number of points."""
    torch.manual_seed(1)
    model = models.PointNeXt(
        5, 2, width=6, blocks=(1, 2), strides=(2, 3), radius=0.3, k=6, head=(8,), dropout=(0.0,)
    )
    model = SEGMENT["pointnext_scenes"]() if segments else model
    model = shuffle_norms(model).to(device, torch.float64).eval()
    xyz, features, lengths = padded(device)
    got = model(pack(xyz, lengths), pack(features, lengths), offsets=offsets_of(lengths))
    alone = [model(xyz[i : i + 1, :n], features[i : i + 1, :n]) for i, n in enumerate(LENGTHS)]
    want = torch.cat([y.flatten(0, -2) for y in alone])
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


def test_an_empty_cloud_among_packed_ones(device):
    torch.manual_seed(1)
    model = shuffle_norms(MAKE["classifier"]()).to(device, torch.float64).eval()
    xyz, features, _ = padded(device)
    xyz, features = xyz[0], features[0]
    offsets = torch.tensor([0, 12, 12, 24], device=device)
    got = model(xyz, features, offsets=offsets)
    for cloud, rows in ((0, slice(0, 12)), (2, slice(12, 24))):
        alone = model(xyz[None, rows], features[None, rows])
        torch.testing.assert_close(got[cloud], alone[0], rtol=1e-9, atol=1e-9)
    assert got.isfinite().all()


def test_segmenter_of_categories(device):
    torch.manual_seed(1)
    config = models.Segmentation(STAGES, (8,), ((9,), (8,), (7,)), "skip_first", 2, True)
    model = models.PointNet2Segmenter(5, num_categories=3, config=config, head=(6,), dropout=(0,))
    model = shuffle_norms(model).to(device, torch.float64).eval()
    xyz, _, lengths = padded(device)
    category = torch.tensor([2, 0, 1], device=device)
    got = model(pack(xyz, lengths), None, category, offsets=offsets_of(lengths))
    want = pack(model(xyz, None, category, lengths=lengths), lengths)
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


def test_errors_of_packed_clouds():
    layer = GlobalSetAbstraction(0, [8])
    rows, offsets = torch.zeros(5, 3), torch.tensor([0, 5])
    for error, message, arguments in (
        (RuntimeError, "lengths must be None where offsets is given",
         {"lengths": torch.tensor([5]), "offsets": offsets}),
        (TypeError, "offsets must be a Tensor", {"offsets": [0, 5]}),
        (RuntimeError, "offsets must have dtype int64; got int32", {"offsets": offsets.int()}),
    ):  # fmt: skip
        with pytest.raises(error, match=f"GlobalSetAbstraction: {message}"):
            layer(rows, **arguments)
    with pytest.raises(RuntimeError, match="xyz must be 2-dimensional"):
        layer(rows[None], offsets=offsets)
