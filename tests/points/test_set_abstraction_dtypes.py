"""Set abstraction in every dtype and under autocast: held to the error of torch's own layers."""

from __future__ import annotations

import pytest
import torch

import fusedops
from fusedops.points import _edge_batch_norm, set_abstraction
from points.layer_cases import NORMS, Call, assert_as_accurate_as_torch, make_layers
from util import DTYPES, HALVES, assert_accurate, generator, make, name

reference = fusedops.reference.set_abstraction

# clouds, points, groups, neighbours, features, widths: PointNet++'s layers, small; a part
# segmentation's odd width; wide ones
SIZES = {
    "sa1": (2, 128, 16, 32, 0, (64, 64, 128)),
    "sa2": (1, 64, 8, 64, 128, (128, 128, 256)),
    "normals": (1, 128, 64, 32, 6, (32, 32, 64)),
    "odd": (1, 100, 30, 17, 5, (48, 196, 40)),
    "one layer": (2, 100, 40, 20, 16, (64,)),
    "two layers": (2, 100, 40, 8, 3, (24, 56)),
    "wide": (1, 64, 24, 16, 256, (256, 512)),
}


def cloud(size, dtype, device, seed=0):
    """Points of a sphere with a ball's neighbours: (xyz, features, centers), idx."""
    clouds, points, groups, k, features, _ = size
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    xyz = make(clouds, points, 3, dtype=wide, device=device, seed=seed)
    xyz = torch.nn.functional.normalize(xyz, dim=2)
    centers = xyz[:, :groups].contiguous()
    rows = None
    if features:
        rows = make(clouds, points, features, dtype=dtype, device=device, seed=seed + 1)
    return (xyz, rows, centers), fusedops.points.ball_query(xyz, centers, 0.7, k).idx


def layers_of(size, kind, dtype, device, seed=10):
    return make_layers(3 + size[4], size[5], kind, dtype, device, seed=seed)


def draws_of(size, kind, dtype, device, count=6):
    """Clouds with layers, to be compared with torch's error in each."""
    seeds = [100 * i for i in range(count)]
    return [
        (*cloud(size, dtype, device, seed), layers_of(size, kind, dtype, device, 10 + seed))
        for seed in seeds
    ]


@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("dtype", HALVES, ids=name)
def test_halves(device, dtype, size, kind):
    draws = draws_of(size, kind, dtype, device)
    assert_as_accurate_as_torch(set_abstraction, reference, draws)


@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("pool", ["mean", "sum"])
@pytest.mark.parametrize("activation", [None, "tanh"])
@pytest.mark.parametrize("dtype", HALVES, ids=name)
def test_smooth_layers_in_halves(device, dtype, activation, pool, kind):
    """Where no rounding moves a whole entry of a gradient."""
    if activation is None and kind == "batch_train":
        pytest.skip("the gradient of a norm's bias before another norm is 0, and noise in torch")
    draws = draws_of(SIZES["normals"], kind, dtype, device, 3)
    options = {"activation": activation, "pool": pool, "jumps": False}
    assert_as_accurate_as_torch(set_abstraction, reference, draws, **options)


OPTIONS = (
    {"pool": "mean"},
    {"pool": "sum"},
    {"activation": "leaky_relu"},
    {"activation": "leaky_relu", "negative_slope": 0.2},
    {"last_activation": False},
    {"activation": None},
    {"activation": "gelu"},
)


@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_options_in_bfloat16(device, options, kind):
    draws = draws_of(SIZES["normals"], kind, torch.bfloat16, device)
    if options.get("activation", 0) is None and kind == "batch_train":
        draws = [(tensors, idx, [part[:1] for part in layers]) for tensors, idx, layers in draws]
    assert_as_accurate_as_torch(set_abstraction, reference, draws, **options)


@pytest.mark.parametrize("pool", ["max", "mean"])
@pytest.mark.parametrize("kind", ["none", "batch_eval", "layer"])
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("dtype", HALVES, ids=name)
def test_inference_in_halves(device, dtype, size, kind, pool):
    """Without gradients, where norms may be folded into weights."""
    tensors, idx = cloud(size, dtype, device)
    layers = layers_of(size, kind, dtype, device)
    exact = Call(tensors, idx, layers, torch.float64)
    with torch.no_grad():
        ours = set_abstraction(*tensors, idx, *layers, pool=pool)
        eager = reference(*tensors, idx, *layers, pool=pool)
        assert_accurate(ours, eager, exact(reference, pool=pool))


@pytest.mark.parametrize("kind", NORMS)
def test_repeated_padding_in_halves(device, kind):
    """What ball queries of PointNet++ give: the first neighbour again."""
    draws = [
        (tensors, torch.where(idx < 0, idx[..., :1], idx), layers)
        for tensors, idx, layers in draws_of(SIZES["sa1"], kind, torch.bfloat16, device)
    ]
    assert_as_accurate_as_torch(set_abstraction, reference, draws)


@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("size", ["sa1", "odd"])
def test_float32(device, size, kind):
    draws = draws_of(SIZES[size], kind, torch.float32, device)
    assert_as_accurate_as_torch(set_abstraction, reference, draws)


@pytest.mark.parametrize("shift", [0.0, 30.0])
def test_few_neighbours_in_many_slots(device, shift):
    """Statistics of 2 in 128 slots, far from 0: to float32's accuracy."""
    size = (2, 100, 30, 128, 5, (16, 24))
    tensors, idx = cloud(size, torch.float32, device)
    idx = torch.where(torch.arange(128, device=device) < 126, -1, idx[..., :1] + 1)
    idx[..., 127] = torch.arange(30, device=device)
    layers = layers_of(size, "batch_train", torch.float32, device)
    tensors = (tensors[0], tensors[1] + shift, tensors[2])
    call, exact = Call(tensors, idx, layers), Call(tensors, idx, layers, torch.float64)
    out, expected = call(set_abstraction), exact(reference)
    tolerance = 1e-4 if shift else 1e-5
    torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance)
    for mine, true in zip(call.running(), exact.running(), strict=True):
        torch.testing.assert_close(mine.double(), true, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", HALVES, ids=name)
@pytest.mark.parametrize("mean", [0.0, 10.0])
def test_statistics_of_halves(device, dtype, mean):
    """Sums over all slots, less the copies, are those of the slots that count."""
    y = make(3, 50, 1, 24, dtype=dtype, device=device) + mean
    count = torch.randint(0, 9, (3, 50, 1), generator=generator("cpu")).to(device)
    valid = (torch.arange(8, device=device) >= 8 - count).unsqueeze(3)
    own = make(3, 50, 8, 24, dtype=dtype, device=device, seed=1) + mean
    y = torch.where(valid, own, own.gather(2, (8 - count).clamp_max(7)[..., None].expand_as(y)))
    got = _edge_batch_norm._statistics(y, _edge_batch_norm.Slots(valid, 8 - count), 1e-5, None)
    rows = y.double()[valid.squeeze(3)]
    for ours, exact in ((got.mean, rows.mean(0)), (got.var, rows.var(0, correction=0))):
        assert ours.dtype is torch.float32
        torch.testing.assert_close(ours.double(), exact, rtol=1e-5, atol=1e-5)
    assert got.count == len(rows)


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_dtypes_of_results(device, dtype):
    size = SIZES["two layers"]
    tensors, idx = cloud(size, dtype, device)
    call = Call(tensors, idx, layers_of(size, "batch_train", dtype, device))
    out = call(set_abstraction)
    assert out.dtype is dtype
    assert out.is_contiguous()
    grads = call.gradients(out, out.detach())
    assert all(grads[key].dtype is leaf.dtype for key, leaf in call.named_leaves().items())


@pytest.mark.parametrize("dtype", HALVES, ids=name)
def test_coordinates_in_halves_are_taken_as_float32(device, dtype):
    size = SIZES["two layers"]
    (xyz, features, centers), idx = cloud(size, dtype, device)
    layers = layers_of(size, "batch_train", dtype, device)
    half = Call((xyz.to(dtype), features, centers.to(dtype)), idx, layers)
    wide = Call((xyz.to(dtype).float(), features, centers.to(dtype).float()), idx, layers)
    out = half(set_abstraction)
    assert torch.equal(out, wide(set_abstraction))
    assert half.gradients(out, out.detach())["tensor 0"].dtype is dtype


@pytest.mark.parametrize("dtype", HALVES, ids=name)
def test_far_from_the_origin(device, dtype):
    """Offsets are formed before they are rounded or multiplied."""
    size = SIZES["sa1"]
    (xyz, _, _), idx = cloud(size, dtype, device)
    # Steps of 2^-10 around 1000: a shift that float32 holds exactly.
    xyz = (xyz * 1024).round() / 1024
    layers = layers_of(size, "batch_train", dtype, device)
    outs = []
    for shift in (0, 1000):
        at = xyz + shift
        call = Call((at, None, at[:, : size[2]]), idx, layers)
        outs.append(call(set_abstraction))
    assert torch.equal(*outs)


@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("dtype", HALVES, ids=name)
def test_autocast(device, dtype, kind):
    """float32 parameters give what halves give; coordinates and norms stay float32."""
    size = SIZES["normals"]
    tensors, idx = cloud(size, torch.float32, device)
    layers = layers_of(size, kind, torch.float32, device)
    call = Call(tensors, idx, layers)
    with torch.autocast(device, dtype):
        out = call(set_abstraction)
    assert out.dtype is dtype
    grads = call.gradients(out, out.detach())
    assert all(grads[key].dtype is torch.float32 for key in grads)
    xyz, features, centers = tensors
    weights, biases, norms = layers
    halves = Call(
        (xyz, features.to(dtype), centers), idx, ([w.to(dtype) for w in weights], biases, norms)
    )
    expected = halves(set_abstraction)
    assert torch.equal(out, expected)
    want = halves.gradients(expected, expected.detach())
    for key, grad in grads.items():
        torch.testing.assert_close(grad, want[key].float(), rtol=1e-5, atol=1e-5)


def test_autocast_leaves_float64(device):
    size = SIZES["two layers"]
    tensors, idx = cloud(size, torch.float64, device)
    call = Call(tensors, idx, layers_of(size, "batch_train", torch.float64, device))
    expected = call(set_abstraction)
    with torch.autocast(device, torch.bfloat16):
        out = call(set_abstraction)
    assert torch.equal(out, expected)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=name)
def test_millions_of_points(dtype):
    """A cloud of 5 million points, 20 million edges; a part of it alone gives the same."""
    n, m, k = 5_000_000, 625_000, 32
    drawn = generator("cuda")
    xyz = torch.rand(1, n, 3, generator=drawn, device="cuda")
    centers = xyz[:, :m]
    idx = torch.randint(n, (1, m, k), generator=drawn, device="cuda")
    layers = make_layers(3, (16, 32), "batch_eval", dtype, "cuda")
    with torch.no_grad():
        out = set_abstraction(xyz, None, centers, idx, *layers)
        some = slice(m - 100, m)
        part = set_abstraction(xyz, None, centers[:, some], idx[:, some], *layers)
    tolerance = 8 * torch.finfo(dtype).eps
    torch.testing.assert_close(out[:, some], part, rtol=tolerance, atol=tolerance)
