"""Searches ahead of a PointNet++'s layers: values are those of the layers' own searches."""

from __future__ import annotations

import contextlib

import pytest
import torch

from fusedops import models
from fusedops.models import Segmentation, Stage, searches
from fusedops.nn import FeaturePropagation, SetAbstraction
from fusedops.points import feature_propagation
from models.twin_ops import shuffle_norms
from util import captured

STAGES = (
    Stage(32, (0.3, 0.6), (8, 12), ((16, 16), (16, 24))),
    Stage(12, (0.6,), (6,), ((24, 40),)),
    Stage(5, (0.9,), (4,), ((24,),)),
)


def classifier():
    return models.PointNet2Classifier(
        7, 2, stages=STAGES, all_points=(32,), head=(16,), dropout=(0.0,)
    )


def segmenter(all_points=(32,)):
    widths = ((16, 16), (24,), (16,), (16,))[: 3 + (all_points is not None)]
    config = Segmentation(STAGES, all_points, widths, "skip_first", 2, True)
    return models.PointNet2Segmenter(7, 2, config=config, head=(16,), dropout=(0.0,))


MAKE = {
    "classifier": classifier,
    "segmenter": segmenter,
    "scenes": lambda: segmenter(None),
}


def test_neighbours_of_a_set_abstraction(device):
    torch.manual_seed(0)
    layer = SetAbstraction(2, [[8, 9], [7]], [0.4, 0.7], [5, 9], 12).to(device).eval()
    xyz, features, lengths = inputs(device, True)
    centers, want = layer(xyz, features, lengths=lengths)
    counts = lengths.clamp(max=12)
    found = layer.search(xyz, centers, lengths=lengths, center_lengths=counts)
    assert [idx.shape for idx in found] == [(4, 12, 5), (4, 12, 9)]
    given = {"lengths": lengths, "center_lengths": counts, "neighbours": found}
    assert torch.equal(layer(xyz, features, centers, **given)[1], want)
    given["neighbours"] = [idx[..., :1] for idx in found]
    assert not torch.equal(layer(xyz, features, centers, **given)[1], want)
    with pytest.raises(ValueError, match=r"^SetAbstraction: neighbours must have 2 tensor\(s\)"):
        layer(xyz, features, centers, neighbours=found[:1])
    with pytest.raises(ValueError, match=r"^SetAbstraction: centers must be given with neighbours"):
        layer(xyz, features, neighbours=found)


@pytest.mark.parametrize("hooked", [False, True])
@pytest.mark.parametrize("power", [1, 2])
def test_neighbours_of_a_feature_propagation(device, power, hooked):
    torch.manual_seed(0)
    layer = FeaturePropagation(5, [8, 9], power=power).to(device).eval()
    if hooked:  # the layers run one by one
        layer.mlp.linears[0].register_forward_hook(lambda *_: None)
    xyz, features, lengths = inputs(device, True)
    known_xyz, known = xyz[:, :10] + 0.1, torch.randn(4, 10, 3, device=device)
    clouds = {"lengths": lengths, "known_lengths": lengths.clamp(max=10)}
    want = layer(xyz, known_xyz, features, known, **clouds)
    found = layer.search(xyz, known_xyz, **clouds)
    assert torch.equal(layer(xyz, known_xyz, features, known, neighbours=found, **clouds), want)
    nearest = found[0][..., :1], torch.ones_like(found[1][..., :1])
    given = {**clouds, "neighbours": nearest}
    assert not torch.equal(layer(xyz, known_xyz, features, known, **given), want)


def test_what_is_wrong_with_neighbours(device):
    xyz, features, _ = inputs(device, False)
    weight = torch.randn(4, 5, device=device)
    idx, weights = xyz.new_zeros(4, 64, 3, dtype=torch.int64), xyz.new_ones(4, 64, 3)

    def run(*neighbours):
        known = torch.randn(4, 10, 3, device=device)
        return feature_propagation(
            xyz, xyz[:, :10], features, known, [weight], neighbours=neighbours
        )

    assert run(idx, weights).shape == (4, 64, 4)
    for arguments, error, text in (
        ((idx.int(), weights), RuntimeError, "idx must be int64"),
        ((idx[:, :9], weights), RuntimeError, r"idx must be \(4, 64, K\)"),
        ((idx, weights[..., :1]), RuntimeError, r"weights of neighbours must be \(4, 64, 3\)"),
        ((idx, idx), RuntimeError, "weights of neighbours must be float16"),
        ((None, weights), TypeError, "idx must be a Tensor"),
        ((idx, weights.half()), RuntimeError, "weights of neighbours must have dtype float32; got"),
        ((idx, weights, weights), ValueError, "neighbours must be two Tensors, idx and weights; g"),
    ):
        with pytest.raises(error, match=f"^feature_propagation: {text}"):
            run(*arguments)


@pytest.mark.parametrize("lengths", [False, True])
def test_features_of_one_known_point_are_those_of_every_point(device, lengths):
    """A layer without known coordinates gives what one known point anywhere gives."""
    torch.manual_seed(0)
    layer = FeaturePropagation(5, [8, 9]).to(device, torch.float64).eval()
    xyz, features, counts = inputs(device, lengths)
    xyz, features = xyz.double(), features.double()
    known = torch.randn(4, 3, dtype=torch.float64, device=device)
    got = layer(xyz, None, features, known, lengths=counts)
    place = torch.full((4, 1, 3), 0.25, dtype=torch.float64, device=device)
    want = layer(xyz, place, features, known.unsqueeze(1), lengths=counts)
    torch.testing.assert_close(got, want)


class NoStream:
    """What a stream is asked for, where there is none."""

    def wait_stream(self, other):
        pass

    def wait_event(self, event):
        assert event == "event"

    def record_event(self):
        return "event"


@pytest.fixture
def without_streams(monkeypatch):
    """Searches run ahead on a CPU, in the order of the calls."""

    def has(xyz, lengths, offsets):
        return offsets is None and not xyz.requires_grad

    monkeypatch.setattr(searches, "_has_streams", has)
    monkeypatch.setattr(searches, "_stream", lambda device: NoStream())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: NoStream())
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)


def call(model, given, grad):
    with torch.enable_grad() if grad else torch.no_grad():
        y = model(*given[:2], lengths=given[2])
        if not grad:
            return [y]
        return [y, *torch.autograd.grad(y.float().square().sum(), list(model.parameters()))]


def one_by_one(model, given, grad):
    """The call where no search runs ahead."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(searches, "_has_streams", lambda *_: False)
        return call(model, given, grad)


def inputs(device, lengths, dtype=torch.float32):
    torch.manual_seed(3)
    xyz = torch.rand(4, 64, 3, device=device)
    counts = torch.tensor([64, 33, 20, 64], device=device) if lengths else None
    return xyz, torch.randn(4, 64, 2, device=device, dtype=dtype), counts


@pytest.mark.parametrize("lengths", [False, True])
@pytest.mark.parametrize("name", MAKE)
def test_values_without_streams(name, lengths, without_streams):
    model = shuffle_norms(MAKE[name]()).eval()
    given = inputs("cpu", lengths)
    calls = []
    handle = searches.Searches.run

    def run(self, *args):
        calls.append(args)
        handle(self, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(searches.Searches, "run", run)
        got = call(model, given, False)
    assert len(calls) == 1
    assert torch.equal(got[0], one_by_one(model, given, False)[0])


def test_a_layer_of_another_kind_searches_itself(without_streams, monkeypatch):
    class Own(SetAbstraction):
        pass

    monkeypatch.setattr(searches.Searches, "run", lambda *_: pytest.fail("searches ran ahead"))
    model, given = classifier().eval(), inputs("cpu", False)
    model.stages[1].__class__ = Own
    call(model, given, False)
    model = classifier().eval()
    seen = []
    model.stages[0].register_forward_pre_hook(lambda layer, args: seen.append(len(args)))
    call(model, given, False)
    assert seen == [2]
    model = classifier().eval()
    call(model, (given[0].requires_grad_(), *given[1:]), True)


def test_propagations_of_another_kind_search_themselves(without_streams):
    class Own(FeaturePropagation):
        def forward(self, *args, **kwargs):
            assert kwargs.pop("neighbours", None) is None
            return super().forward(*args, **kwargs)

    class Plain(FeaturePropagation):
        """As layers are that know nothing of neighbours."""

        def forward(self, xyz, known_xyz, features, known_features, **clouds):
            assert "neighbours" not in clouds
            return super().forward(xyz, known_xyz, features, known_features, **clouds)

    for kind in (Own, Plain):
        model, given = segmenter().eval(), inputs("cpu", False)
        model.propagations[0].__class__ = kind
        assert torch.equal(call(model, given, False)[0], one_by_one(model, given, False)[0])


@pytest.mark.gpu
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("lengths", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", MAKE)
def test_values_on_a_second_stream(name, dtype, lengths, grad):
    model = shuffle_norms(MAKE[name]()).to("cuda", dtype).train(grad)
    given = inputs("cuda", lengths, dtype)
    expected = one_by_one(model, given, grad)
    for _ in range(20):  # memory of one call is that of the next
        for got, want in zip(call(model, given, grad), expected, strict=True):
            assert torch.equal(got, want)


@pytest.mark.gpu
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", MAKE)
def test_values_in_a_graph(name, grad):
    model = shuffle_norms(MAKE[name]()).to("cuda").train(grad)
    given = inputs("cuda", False)
    graph, found = captured(lambda: call(model, given, grad), warm_ups=2)
    for seed in range(3):
        torch.manual_seed(seed)
        given[0].uniform_()
        graph.replay()
        for got, want in zip(found, one_by_one(model, given, grad), strict=True):
            assert torch.equal(got, want)
