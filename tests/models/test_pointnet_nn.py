"""fusedops.nn's layers of point clouds beside plain torch, and what torch.nn's modules promise."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fusedops
from fusedops.nn import (
    EdgeConv,
    FeaturePropagation,
    GlobalSetAbstraction,
    SetAbstraction,
    SharedMLP,
)
from fusedops.nn.points import neighbourhoods as searches
from models.twin_ops import ball, furthest, rows_at, shuffle_norms

DOUBLE = {"dtype": torch.float64}


def clouds(device, channels=4, count=30, seed=0):
    """Coordinates and features that want gradients."""
    generator = torch.Generator().manual_seed(seed)
    xyz = torch.rand(2, count, 3, generator=generator, **DOUBLE)
    features = torch.randn(2, count, channels, generator=generator, **DOUBLE)
    return xyz.to(device).requires_grad_(), features.to(device).requires_grad_()


def by_modules(mlp, x):
    """The layers of a SharedMLP, module by module."""
    for i, layer in enumerate(mlp.linears):
        x = layer(x)
        if i < len(mlp.norms):
            x = mlp.norms[i](x.flatten(0, -2)).view(x.shape)
        if i < len(mlp.linears) - 1 or mlp.last_activation:
            if mlp.activation == "leaky_relu":
                x = F.leaky_relu(x, mlp.negative_slope)
            else:
                x = {"relu": F.relu, "gelu": F.gelu}[mlp.activation](x)
    return x


def pooled(y, pool):
    if pool == "max":
        return y.max(-2)[0]
    return y.mean(-2) if pool == "mean" else y.sum(-2)


def plain_abstraction(layer, xyz, features, centers=None):
    """Set abstraction by torch: first k points, filled with the first."""
    centers = rows_at(xyz, furthest(xyz, layer.num_points)) if centers is None else centers
    found = []
    for mlp, radius, k in zip(layer.scales, layer.radii, layer.ks, strict=True):
        idx = ball(xyz, centers, radius, k, layer.closed)
        parts = []
        if layer.use_xyz:
            offsets = rows_at(xyz, idx) - centers.unsqueeze(2)
            parts.append(offsets / radius if layer.normalize_offsets else offsets)
        if features is not None:
            parts.append(rows_at(features, idx))
        found.append(pooled(by_modules(mlp, torch.cat(parts, -1)), layer.pool))
    return centers, torch.cat(found, -1)


def assert_same(ours, theirs, run, plain, inputs):
    """Values, gradients, and the state afterwards."""
    got, want = run(ours), plain(theirs)
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)
    weight = torch.randn_like(want)
    grads = [
        torch.autograd.grad((y * weight).sum(), [*inputs, *model.parameters()], allow_unused=True)
        for y, model in ((got, ours), (want, theirs))
    ]
    for a, b in zip(*grads, strict=True):
        zero = torch.zeros((), **DOUBLE, device=want.device)
        a, b = (zero if g is None else g for g in (a, b))
        torch.testing.assert_close(*torch.broadcast_tensors(a, b), rtol=1e-9, atol=1e-8)
    for (key, a), b in zip(ours.state_dict().items(), theirs.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9, msg=key)


ABSTRACTIONS = {
    "one": ((4, [8, 9], 0.4, 6), {}),
    "scales": ((4, [[8, 9], [6, 5, 7]], [0.3, 0.6], [4, 8]), {}),
    "mean": ((4, [8, 9], 0.4, 6), {"pool": "mean"}),
    "sum": ((4, [8, 9], 0.4, 6), {"pool": "sum", "norm": None}),
    "layer": ((4, [8, 9], 0.4, 6), {"norm": "layer"}),
    "plain": ((4, [8, 9], 0.4, 6), {"norm": None, "activation": "gelu"}),
    "last": ((4, [8, 9], 0.4, 6), {"last_norm": False, "last_activation": False, "bias": True}),
    "features": ((4, [8, 9], 0.4, 6), {"use_xyz": False}),
    "coordinates": ((0, [8, 9], 0.4, 6), {}),
    "normalized": ((4, [8, 9], 0.4, 6), {"normalize_offsets": True, "closed": True}),
    "leaky": ((4, [8, 9], 0.4, 6), {"activation": "leaky_relu", "negative_slope": 0.3}),
}


def abstraction(name, device):
    torch.manual_seed(1)
    arguments, options = ABSTRACTIONS[name]
    layer = SetAbstraction(*arguments, 10, **options, **DOUBLE)
    return shuffle_norms(layer).to(device)


@pytest.mark.parametrize("hooked", [False, True], ids=["fused", "by layers"])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", ABSTRACTIONS)
def test_set_abstraction(device, name, training, hooked):
    ours = abstraction(name, device).train(training)
    theirs = copy.deepcopy(ours)
    called = []
    if hooked:
        for mlp in ours.scales:
            mlp.linears[0].register_forward_hook(lambda *_: called.append(1))
    xyz, features = clouds(device)
    given = (xyz, None if name == "coordinates" else features)
    inputs = [x for x in given if x is not None]
    torch.testing.assert_close(ours(*given)[0], plain_abstraction(theirs, *given)[0])
    assert_same(
        ours, theirs, lambda m: m(*given)[1], lambda m: plain_abstraction(m, *given)[1], inputs
    )
    assert bool(called) == hooked


def test_given_centres_and_neighbours_by_number(device):
    xyz, features = clouds(device)
    layer = abstraction("one", device).eval()
    centers = xyz[:, :5] + 0.01
    got = layer(xyz, features, centers)
    assert got[0] is centers
    torch.testing.assert_close(got[1], plain_abstraction(layer, xyz, features, centers)[1])
    layer.num_points = None
    with pytest.raises(ValueError, match="centers must be given without num_points"):
        layer(xyz, features)
    nearest = SetAbstraction(4, [8], None, 3, 10, **DOUBLE).to(device).eval()
    centers, y = nearest(xyz, features)
    far = torch.cdist(centers, xyz).topk(3, largest=False)[1]
    rows = torch.cat([rows_at(xyz, far) - centers.unsqueeze(2), rows_at(features, far)], -1)
    torch.testing.assert_close(y, by_modules(nearest.scales[0], rows).max(2)[0])


def test_large_clouds_are_indexed_once(device, monkeypatch):
    xyz, features = clouds(device)
    layer = abstraction("scales", device).eval()
    layer.radii[0] = None
    want = layer(xyz, features)[1]
    monkeypatch.setattr(searches, "_INDEXED", 1)
    assert torch.equal(layer(xyz, features)[1], want)


def test_fewer_points_than_centres_and_missing_neighbours(device):
    xyz, features = clouds(device, count=6)
    layer = abstraction("one", device)
    centers, y = layer(xyz, features)
    assert centers.shape == (2, 6, 3)
    assert y.shape == (2, 6, 9)
    # An empty ball gives zeros, and -1 leaves repeats out of the statistics.
    layer.pad = -1
    far = torch.full((2, 1, 3), 50.0, device=device, **DOUBLE)
    _, y = layer(xyz, features, torch.cat([centers, far], 1))
    assert y.isfinite().all()
    assert not y[:, -1].any()


def test_global_set_abstraction(device):
    torch.manual_seed(1)
    xyz, features = clouds(device)
    for pool in ("max", "mean", "sum"):
        ours = shuffle_norms(GlobalSetAbstraction(4, [8, 9], pool=pool, **DOUBLE)).to(device)
        theirs = copy.deepcopy(ours)
        assert_same(
            ours,
            theirs,
            lambda m: m(xyz, features),
            lambda m, pool=pool: pooled(by_modules(m.mlp, torch.cat([xyz, features], -1)), pool),
            [xyz, features],
        )
    lengths = torch.tensor([30, 11], device=device)
    for hooked in (False, True):
        ours.eval()
        if hooked:
            ours.mlp.norms[0].register_forward_hook(lambda *_: None)
        got = ours(xyz, features, lengths=lengths)
        torch.testing.assert_close(got[1:], ours(xyz[1:, :11], features[1:, :11]))


@pytest.mark.parametrize("hooked", [False, True], ids=["fused", "by layers"])
@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("order", ["known_first", "skip_first"])
def test_feature_propagation(device, order, power, hooked):
    torch.manual_seed(1)
    xyz, skip = clouds(device)
    known_xyz, known = clouds(device, 6, 9, seed=5)
    ours = shuffle_norms(FeaturePropagation(10, [8, 9], order=order, power=power, **DOUBLE))
    ours.to(device)
    theirs = copy.deepcopy(ours)
    if hooked:
        ours.mlp.linears[0].register_forward_hook(lambda *_: None)

    def plain(layer):
        dist2, idx = (
            (xyz.unsqueeze(2) - known_xyz.unsqueeze(1)).square().sum(-1).topk(3, largest=False)
        )
        weight = 1 / (dist2 ** (power / 2) + 1e-8)
        weight = weight / weight.sum(-1, keepdim=True)
        x = (rows_at(known, idx) * weight.unsqueeze(-1)).sum(2)
        parts = [x, skip] if order == "known_first" else [skip, x]
        return by_modules(layer.mlp, torch.cat(parts, -1))

    inputs = [xyz, known_xyz, skip, known]
    assert_same(ours, theirs, lambda m: m(xyz, known_xyz, skip, known), plain, inputs)
    everywhere = known.mean(1)
    x = everywhere.unsqueeze(1).expand(-1, 30, -1)
    parts = [x, skip] if order == "known_first" else [skip, x]
    got = ours.eval()(xyz, None, skip, everywhere)
    torch.testing.assert_close(got, by_modules(theirs.eval().mlp, torch.cat(parts, -1)))
    lengths = torch.tensor([30, 12], device=device)
    known_lengths = torch.tensor([9, 5], device=device)
    got = ours(xyz, known_xyz, skip, known, lengths=lengths, known_lengths=known_lengths)
    alone = ours(xyz[1:, :12], known_xyz[1:, :5], skip[1:, :12], known[1:, :5])
    torch.testing.assert_close(got[1:, :12], alone)
    assert not got[1, 12:].any()


@pytest.mark.parametrize("hooked", [False, True], ids=["fused", "by layers"])
@pytest.mark.parametrize("mlp", [[8], [8, 9]], ids=str)
@pytest.mark.parametrize("pool", ["max", "mean"])
def test_edge_conv(device, pool, mlp, hooked):
    torch.manual_seed(1)
    _, features = clouds(device)
    ours = shuffle_norms(EdgeConv(4, mlp, 5, pool=pool, **DOUBLE)).to(device)
    theirs = copy.deepcopy(ours)
    if hooked:
        ours.mlp.linears[0].register_forward_hook(lambda *_: None)

    def plain(layer):
        idx = torch.cdist(features, features).topk(5, largest=False)[1]
        own = features.unsqueeze(2).expand(-1, -1, 5, -1)
        rows = torch.cat([rows_at(features, idx) - own, own], -1)
        return pooled(by_modules(layer.mlp, rows), pool)

    assert_same(ours, theirs, lambda m: m(features), plain, [features])
    idx = torch.cdist(features, features).topk(5, largest=False)[1]
    torch.testing.assert_close(ours.eval()(features, idx), ours(features))


# ---- what torch.nn's norms promise ----


@pytest.mark.parametrize("change", ["momentum", "untracked", "frozen", "sync", "unaffine"])
def test_norms_are_torchs(device, change):
    xyz, features = clouds(device)
    ours = abstraction("scales", device)
    for module in ours.modules():
        if isinstance(module, nn.BatchNorm1d):
            if change == "momentum":
                module.momentum = None
            if change == "untracked":
                module.track_running_stats = False
                module.running_mean = module.running_var = module.num_batches_tracked = None
            if change == "frozen":
                module.eval()
            if change == "unaffine":
                module.weight = module.bias = None
    theirs = copy.deepcopy(ours)
    if change == "sync":
        ours = nn.SyncBatchNorm.convert_sync_batchnorm(ours)
        assert any(type(module) is nn.SyncBatchNorm for module in ours.modules())
    for training in (True, True, False):
        if change != "frozen":
            ours.train(training)
            theirs.train(training)
        assert_same(
            ours,
            theirs,
            lambda m: m(xyz, features)[1],
            lambda m: plain_abstraction(m, xyz, features)[1],
            [xyz, features],
        )
    if change != "untracked":
        count = ours.scales[0].norms[0].num_batches_tracked
        assert count == (3 if change == "frozen" else 5)


def test_an_ensemble_in_training(device):
    """Models side by side by torch.vmap, with their own running statistics."""
    xyz, features = (t.detach() for t in clouds(device))
    layers = [abstraction("scales", device) for _ in range(3)]
    with torch.no_grad():
        for i, layer in enumerate(layers):
            for p in layer.parameters():
                p.add_(0.1 * i * torch.randn_like(p))
    parameters, buffers = torch.func.stack_module_state(layers)

    def run(parameters, buffers):
        state = (parameters, buffers)
        return torch.func.functional_call(layers[0], state, (xyz, features))[1]

    got = torch.vmap(run)(parameters, buffers)
    wanted = [layer(xyz, features)[1] for layer in layers]
    torch.testing.assert_close(got, torch.stack(wanted))
    for name, value in buffers.items():
        torch.testing.assert_close(value, torch.stack([m.state_dict()[name] for m in layers]))


def test_names_and_copies(device):
    layer = abstraction("scales", device).eval()
    names = {name.rsplit(".", 1)[0] for name in layer.state_dict()}
    assert names == {
        *(f"scales.0.{kind}.{i}" for kind in ("linears", "norms") for i in range(2)),
        *(f"scales.1.{kind}.{i}" for kind in ("linears", "norms") for i in range(3)),
    }
    xyz, features = clouds(device)
    want = layer(xyz, features)[1]
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(other(xyz, features)[1], want)
    assert "radius=[0.3, 0.6]" in repr(layer)
    assert fusedops.fuse(layer).blocks == []
    assert torch.equal(layer(xyz, features)[1], want)


def test_shared_mlp(device):
    torch.manual_seed(1)
    x = torch.randn(2, 5, 4, device=device, requires_grad=True, **DOUBLE)
    for options in ({}, {"norm": None}, {"norm": "layer"}, {"last_norm": False}):
        for activation in ("relu", "leaky_relu", "gelu"):
            mlp = SharedMLP(
                [4, 8, 6], activation=activation, negative_slope=0.2, **options, **DOUBLE
            )
            ours = shuffle_norms(mlp).to(device)
            assert_same(ours, copy.deepcopy(ours), lambda m: m(x), lambda m: by_modules(m, x), [x])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: SetAbstraction(4, [8], [0.1, 0.2], 3), r"each of 1 scale\(s\) of"),
        (lambda: SetAbstraction(0, [8], 0.1, 3, use_xyz=False), "in_channels must be positive"),
        (lambda: SetAbstraction(4, [8], 0.1, 3, pool="min"), "pool must be one of 'max'"),
        (lambda: SetAbstraction(4, [8], None, 3, normalize_offsets=True), "needs a radius"),
        (lambda: GlobalSetAbstraction(0, [8], use_xyz=False), "in_channels must be positive"),
        (lambda: EdgeConv(4, [8], pool="min"), "EdgeConv: pool must be one of"),
        (lambda: FeaturePropagation(4, [8], order="first"), "'known_first' or 'skip_first'"),
        (lambda: FeaturePropagation(4, [8], power=3), "power must be 1 or 2; got 3"),
        (lambda: SetAbstraction(4, [], 0.1, 3), "SetAbstraction: mlps must have one width or"),
        (lambda: SharedMLP([4]), "two widths or more"),
        (lambda: SharedMLP([4, 8], norm="group"), "norm must be 'batch', 'layer' or None"),
        (lambda: SharedMLP([4, 8], activation="swish"), "activation must be None or one of"),
    ],
)  # fmt: skip
def test_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: SetAbstraction(4, ["a"], 0.1, 3), "SetAbstraction: mlps must be a sequence of"),
        (lambda: SetAbstraction(4, [8], "a", 3), "SetAbstraction: radius must be a number or None"),
        (lambda: SetAbstraction(4, [8], 0.1, 3.0), "SetAbstraction: k must be an int; got 3.0"),
        (lambda: SetAbstraction(4, [8], 0.1, True), "SetAbstraction: k must be an int; got True"),
        (lambda: GlobalSetAbstraction(4, 8), "GlobalSetAbstraction: mlp must be a sequence of"),
        (lambda: EdgeConv(4, 8), "EdgeConv: mlp must be a sequence of ints; got 8"),
        (lambda: FeaturePropagation(4, None), "FeaturePropagation: mlp must be a sequence of"),
        (lambda: SharedMLP(4), "SharedMLP: channels must be a sequence of ints; got 4"),
        (lambda: SharedMLP([4, 8.0]), "SharedMLP: channels must be a sequence of ints; got 8.0"),
    ],
)  # fmt: skip
def test_errors_of_types(call, message):
    with pytest.raises(TypeError, match=f"^{message}"):
        call()


def test_numbers_of_numpy():
    """Configurations hold them: np.arange, np.sqrt and tables of pandas give no Python numbers."""
    xyz = torch.rand(2, 20, 3, generator=torch.Generator().manual_seed(0))
    width, k, radius = np.int64(8), np.int32(3), np.float32(0.25)
    for one, several in [
        (([width], radius, k), ([[width], (4, width)], [radius, np.float64(0.5)], (k, 2))),
        (
            (np.array([4, 8]), torch.tensor(0.25), torch.tensor(3)),
            (((4, 8), [8]), (0.25, 1), (3, k)),
        ),
    ]:
        for arguments in (one, several):
            layer = SetAbstraction(0, *arguments, num_points=np.int64(5))
            plain = pickle.loads(pickle.dumps(layer))
            assert all(type(n) in (int, float) for n in (*layer.radii, *layer.ks))
            assert torch.equal(layer.eval()(xyz)[1], plain.eval()(xyz)[1])
    assert fusedops.layer_norm(xyz, np.int64(3)).shape == xyz.shape
    assert fusedops.rms_norm(xyz, np.int32(3)).shape == xyz.shape


@pytest.mark.parametrize(
    ("make_layer", "channels"),
    [
        (lambda: SetAbstraction(4, [6, 5], 0.6, 3, num_points=4), (3, 4)),
        (lambda: SetAbstraction(4, [[6], [3]], [0.6, 0.9], [3, 4], num_points=4), (3, 4)),
        (lambda: EdgeConv(4, [6, 5], k=3), (4,)),
        (lambda: FeaturePropagation(7, [6, 5]), (3, 3, 3, 4)),
    ],
    ids=["one scale", "two scales", "edges", "propagation"],
)
def test_exports_batches_of_any_size(make_layer, channels):
    """torch.export keeps the batch as a symbol, of which nothing in a layer makes a number."""
    layer = make_layer().eval()
    generator = torch.Generator().manual_seed(0)
    inputs = tuple(torch.rand(6, 9, c, generator=generator) for c in channels)
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(
        layer, tuple(x[:3] for x in inputs), dynamic_shapes=tuple({0: batch} for _ in inputs),
        strict=False,
    )  # fmt: skip
    for got, want in zip(
        torch.utils._pytree.tree_leaves(program.module()(*inputs)),
        torch.utils._pytree.tree_leaves(layer(*inputs)),
        strict=True,
    ):
        torch.testing.assert_close(got, want)
