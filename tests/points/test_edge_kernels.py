"""Layers over edges by their CUDA kernels: against float64, bit by bit, in graphs and on streams.

The raw ops are walked by tests/contract, which lists them in tests/samples/edges.py.
"""

from __future__ import annotations

import math
import warnings

import pytest
import torch

import fusedops
from fusedops.points import (
    BatchNorm,
    _edge_conv,
    _edge_fused,
    _edge_mlp,
    edge_conv,
    set_abstraction,
)
from fusedops.points._edge_problem import MOST_FEATURES
from points.layer_cases import Call, assert_as_accurate_as_torch, make_layers
from util import HALVES, assert_accurate, assert_replays_and_streams, generator, make, name

pytestmark = pytest.mark.gpu
reference = fusedops.reference.set_abstraction
PADDINGS = ("none", "repeats", "minus", "mixed")


@pytest.fixture(autouse=True)
def fused_calls(monkeypatch):
    """The number of calls that took the kernels; a composed one fails."""
    count = [0]

    def counting(function):
        def counted(*arguments):
            count[0] += 1
            return function(*arguments)

        return counted

    def composed(*_):
        pytest.fail("the layers were composed")

    for module, name_of in ((_edge_fused, "edge_mlp"), (_edge_conv, "edge_conv")):
        monkeypatch.setattr(module, name_of, counting(getattr(module, name_of)))
    monkeypatch.setattr(_edge_mlp._edge_composed, "edge_mlp", composed)
    yield count
    assert count[0] > 0


def neighbours(clouds, points, groups, k, padding, seed=0, empty=False):
    """Entries of a cloud, padded as searches pad."""
    drawn = generator("cpu", seed)
    idx = torch.randint(points, (clouds, groups, k), generator=drawn)
    count = torch.randint(1, k + 1, (clouds, groups, 1), generator=drawn)
    spare = torch.arange(k) >= count
    if padding in ("repeats", "mixed"):
        idx = torch.where(spare, idx[..., :1], idx)
    if padding == "minus":
        idx = torch.where(spare, -1, idx)
    if padding == "mixed":
        outside = torch.rand(idx.shape, generator=drawn) < 0.2
        idx = torch.where(outside, torch.where(spare, points, -1), idx)
    if empty:
        idx[0, 0] = -1
    return idx.cuda()


def cloud(points, groups, features, dtype, seed=0, clouds=2):
    xyz = torch.rand(clouds, points, 3, generator=generator("cpu", seed)).cuda()
    rows = None
    if features:
        rows = make(clouds, points, features, dtype=dtype, device="cuda", seed=seed + 1)
    return xyz, rows, xyz[:, :groups].contiguous()


def draws(widths, k=20, padding="repeats", kind="batch_train", dtype=torch.bfloat16, features=6,
          groups=37, count=3, empty=False, shift=0.0):  # fmt: skip
    """Clouds with layers, to be compared with torch's error in each."""
    found = []
    for seed in range(0, 100 * count, 100):
        xyz, rows, centers = cloud(60, groups, features, dtype, seed)
        idx = neighbours(2, 60, groups, k, padding, seed, empty)
        layers = make_layers(3 + features, widths, kind, dtype, "cuda", seed=10 + seed)
        found.append(((xyz + shift, rows, centers + shift), idx, layers))
    return found


WIDTHS = (
    (64,), (200,), (256,), (20, 10), (32, 64), (60, 64), (64, 128), (128, 256), (48, 200),
    (32, 32, 64), (64, 64, 128), (100, 128, 256), (20, 32, 48, 10), (64, 48, 20, 200),
    (32, 32, 32, 256), (64, 96, 128), (50, 90, 100),
)  # fmt: skip


@pytest.mark.parametrize("kind", ["none", "batch_eval", "batch_train"])
@pytest.mark.parametrize("widths", WIDTHS, ids=str)
def test_widths(widths, kind):
    assert_as_accurate_as_torch(set_abstraction, reference, draws(widths, kind=kind))


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("k", [1, 7, 16, 17, 33, 64, 130])
def test_neighbours(k, padding):
    given = draws((32, 64), k, padding, empty=padding == "minus")
    assert_as_accurate_as_torch(set_abstraction, reference, given)


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("kind", ["none", "batch_eval", "batch_train"])
@pytest.mark.parametrize("dtype", HALVES, ids=name)
def test_dtypes(dtype, kind, padding):
    given = draws((32, 48, 100), 17, padding, kind, dtype, empty=padding == "mixed")
    assert_as_accurate_as_torch(set_abstraction, reference, given)


@pytest.mark.parametrize("momentum", [0.1, 1.0])
def test_statistics_in_float32(momentum):
    """To the rounding of the activations below."""
    (tensors, idx, _), *_ = draws((64, 64, 128), 17, "mixed")
    layers = make_layers(9, (64, 64, 128), "batch_train", torch.bfloat16, "cuda", torch.float32)
    layers = (*layers[:2], [norm._replace(momentum=momentum) for norm in layers[2]])
    call, exact = Call(tensors, idx, layers), Call(tensors, idx, layers, torch.float64)
    call(set_abstraction), exact(reference)
    for mine, true in zip(call.running(), exact.running(), strict=True):
        torch.testing.assert_close(mine.double(), true, rtol=5e-3, atol=5e-3)


OPTIONS = (
    {"activation": "leaky_relu", "negative_slope": 0.2},
    {"activation": "leaky_relu", "negative_slope": 0.2, "last_activation": False},
    {"last_activation": False},
)


@pytest.mark.parametrize("kind", ["none", "batch_eval", "batch_train"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("widths", [(64,), (32, 64)], ids=str)
def test_activations(widths, options, kind):
    given = draws(widths, kind=kind)
    assert_as_accurate_as_torch(set_abstraction, reference, given, **options)


@pytest.mark.parametrize("kind", ["none", "batch_eval"])
def test_no_activation(kind):
    given = draws((32, 64), kind=kind)
    assert_as_accurate_as_torch(set_abstraction, reference, given, activation=None)


@pytest.mark.parametrize("features", [0, 6])
@pytest.mark.parametrize("groups", [1, 5])
def test_few_groups(groups, features):
    given = draws((32, 64), 7, groups=groups, features=features, count=6)
    assert_as_accurate_as_torch(set_abstraction, reference, given)


def still(function):
    """The function of coordinates that have no gradients: few features are gathered as they are."""

    def call(xyz, features, centers, *rest, **options):
        xyz, centers = (None if t is None else t.detach() for t in (xyz, centers))
        return function(xyz, features, centers, *rest, **options)

    return call


@pytest.mark.parametrize("features", [0, 1, 6, 8, 9, 10, 11])
@pytest.mark.parametrize("kind", ["none", "batch_train"])
@pytest.mark.parametrize("widths", [(64,), (32, 64), (40, 128, 256)], ids=str)
def test_few_features(widths, kind, features):
    given = draws(widths, kind=kind, features=features, padding="mixed", empty=True)
    assert_as_accurate_as_torch(still(set_abstraction), still(reference), given)


@pytest.mark.parametrize("features", [4, 10])
def test_few_features_without_coordinates(features):
    given = [
        ((None, rows, None), idx, ([w[0][:, 3:], *w[1:]], *rest))
        for (_, rows, _), idx, (w, *rest) in draws((64, 128), features=features)
    ]
    assert_as_accurate_as_torch(set_abstraction, reference, given)


@pytest.mark.parametrize("dtype", HALVES, ids=name)
def test_offsets_larger_than_a_half(dtype):
    """Up to twice the largest float16: the rest comes as what rounding left."""
    (tensors, idx, layers), *_ = draws((64,), 7, "none", "none", dtype, features=3)
    tensors[0][0, 5] = torch.tensor([90000.0, -70000.0, 1.0], device="cuda")
    idx[idx == 5] = 4
    idx[0, 2, 0] = 5
    layers[0][0].mul_(2**-6)
    with torch.no_grad():
        out = still(set_abstraction)(*tensors, idx, *layers)
        exact = Call(tensors, idx, layers, torch.float64)(reference)
    torch.testing.assert_close(out[0, 2].double(), exact[0, 2], rtol=1e-2, atol=1e-1)


def test_no_coordinates():
    given = [
        ((None, rows, None), idx, ([w[0][:, 3:], *w[1:]], *rest))
        for (_, rows, _), idx, (w, *rest) in draws((64, 128))
    ]
    assert_as_accurate_as_torch(set_abstraction, reference, given)


def test_no_centers():
    given = [((xyz, rows, None), *rest) for (xyz, rows, _), *rest in draws((64, 128))]
    assert_as_accurate_as_torch(set_abstraction, reference, given)


@pytest.mark.parametrize("widths", [(64,), (64, 128)], ids=str)
@pytest.mark.parametrize("kind", ["none", "batch_eval", "batch_train"])
def test_edge_conv(widths, kind):
    given = []
    for seed in (0, 100, 200):
        rows = make(2, 60, 16, dtype=torch.bfloat16, device="cuda", seed=seed)
        layers = make_layers(32, widths, kind, torch.bfloat16, "cuda", seed=10 + seed)
        given.append(((rows,), neighbours(2, 60, 60, 20, "none", seed), layers))
    exact = fusedops.reference.edge_conv
    assert_as_accurate_as_torch(edge_conv, exact, given)


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("kind", ["none", "batch_eval", "batch_train"])
@pytest.mark.parametrize("width", [8, 72, 256])
def test_one_layer_of_edge_conv(width, kind, padding):
    """Whose gradients are sums by point alone, of points with many edges as well."""
    given = []
    for seed in (0, 100, 200):
        rows = make(2, 400, 16, dtype=torch.bfloat16, device="cuda", seed=seed)
        idx = neighbours(2, 400, 400, 20, padding, seed, empty=padding == "minus")
        idx[:, 1:, 1] = 7
        layers = make_layers(32, (width,), kind, torch.bfloat16, "cuda", seed=10 + seed)
        given.append(((rows,), idx, layers))
    exact = fusedops.reference.edge_conv
    assert_as_accurate_as_torch(edge_conv, exact, given)


@pytest.mark.parametrize("dtype", HALVES, ids=name)
def test_one_layer_of_edge_conv_repeats_and_infers(dtype):
    """Two runs agree bit by bit; without gradients the same values come in one pass."""
    rows = make(2, 300, 16, dtype=dtype, device="cuda").requires_grad_()
    idx = neighbours(2, 300, 300, 20, "mixed")
    layers = make_layers(32, (64,), "batch_eval", dtype, "cuda")
    leaves = [rows, *(weight.requires_grad_() for weight in layers[0])]
    runs = []
    for _ in range(2):
        out = edge_conv(rows, idx, *layers)
        runs.append([out, *torch.autograd.grad(out.float().square().sum(), leaves)])
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))
    with torch.no_grad():
        assert torch.equal(edge_conv(rows, idx, *layers), runs[0][0])


def test_one_layer_of_edge_conv_in_special_values():
    """NaN and infinity reach their groups; scales of 0 take the first neighbour."""
    rows = make(1, 60, 16, dtype=torch.bfloat16, device="cuda")
    idx = neighbours(1, 60, 60, 9, "minus")
    rows[0, 3, 1], rows[0, 5, 2] = math.nan, math.inf
    weights, biases, (norm,) = make_layers(32, (64,), "batch_eval", torch.bfloat16, "cuda")
    norm = norm._replace(
        weight=torch.where(torch.arange(64, device="cuda") % 3 > 0, norm.weight, 0)
    )
    call = Call((rows,), idx, (weights, biases, [norm]))
    exact = Call((rows,), idx, (weights, biases, [norm]), torch.float64)
    out = call(edge_conv)
    assert torch.equal(out.isnan(), exact(fusedops.reference.edge_conv).isnan())
    with torch.no_grad():
        assert torch.equal(call(edge_conv).isnan(), out.isnan())


@pytest.mark.parametrize("features", [0, 6])
@pytest.mark.parametrize("kind", ["batch_eval", "batch_train"])
def test_far_from_the_origin(kind, features):
    """Coordinates around 1000: float32 holds the offsets to 2^-14."""
    given = draws((32, 64), kind=kind, features=features, shift=1000.0)
    assert_as_accurate_as_torch(set_abstraction, reference, given)


@pytest.mark.parametrize("kind", ["none", "batch_eval"])
def test_nan_of_a_coordinate_reaches_its_groups_alone(kind):
    (tensors, idx, layers), *_ = draws((32, 64), 7, "minus", kind)
    tensors[0][0, 3, 1] = math.nan
    idx[idx == 3] = 4
    idx[0, 2, 0] = 3
    idx[1, 5, 0] = 3  # of the other cloud, which has no NaN
    with torch.no_grad():
        out = set_abstraction(*tensors, idx, *layers)
        eager = reference(*tensors, idx, *layers)
        exact = Call(tensors, idx, layers, torch.float64)(reference)
    assert out[0, 2].isnan().all()
    assert torch.equal(out.isnan(), exact.isnan())
    finite = ~exact.isnan()
    assert_accurate(out[finite], eager[finite], exact[finite])
    call = Call(tensors, idx, layers)
    trained = call(set_abstraction)
    assert torch.equal(trained.isnan(), out.isnan())


@pytest.mark.parametrize(
    "widths", [(32, 20, 64), (20, 20, 64), (64, 40, 40), (20, 40), (64, 90, 128)], ids=str
)
def test_infinity_of_a_hidden_layer_stays_infinity(widths):
    """Beyond 65504; padded channels, whose weights are 0, have no part in it."""
    features = torch.rand(1, 12, 8, generator=generator("cpu", 1)).half().cuda()
    features[0, 3] = 40000.0
    idx = torch.tensor([[[3, 1, 2], [4, 5, 6], [2, 2, 7]]], device="cuda")
    sizes = (8, *widths)
    weights = [
        torch.rand(n, k, generator=generator("cpu", n)).half().cuda()
        for k, n in zip(sizes, widths, strict=False)
    ]
    for leaves in (weights, [w.clone().requires_grad_() for w in weights]):
        out = set_abstraction(None, features, None, idx, leaves)
        assert out[0, 0].isposinf().all()
        assert out[0, 1:].isfinite().all()


@pytest.mark.parametrize("features", [0, 6])
def test_all_points_equal(features):
    """Variances of 0, and every neighbour a maximum: the first one wins."""
    (tensors, idx, layers), *_ = draws((32, 64), 7, "none", features=features)
    tensors = [None if t is None else t[:1, :1].expand_as(t).contiguous() for t in tensors]
    call, exact = Call(tensors, idx, layers), Call(tensors, idx, layers, torch.float64)
    out, expected = call(set_abstraction), exact(reference)
    torch.testing.assert_close(out.double(), expected, rtol=2e-2, atol=2e-2)
    assert all(g.isfinite().all() for g in call.gradients(out, torch.ones_like(out)).values())
    (tensors, idx, layers), *_ = draws((32, 64), 7, "none", "none", features=features)
    tensors = [None if t is None else t[:1, :1].expand_as(t).contiguous() for t in tensors]
    call = Call(tensors, idx, layers)
    out = call(set_abstraction)
    drows = call.gradients(out, torch.ones_like(out))["tensor 0"]
    losers = torch.ones(2, 60, dtype=torch.bool, device="cuda")
    for b in range(2):
        losers[b, idx[b, :, 0]] = False
    assert not drows[losers].any()


@pytest.mark.parametrize("kind", ["none", "batch_eval", "batch_train"])
def test_empty_groups(kind):
    """Zeros, and no gradient; where no group has a neighbour, running statistics stay."""
    (tensors, idx, layers), *_ = draws((32, 64), 7, "minus", kind)
    idx[:, ::2] = -1
    call = Call(tensors, idx, layers)
    out = call(set_abstraction)
    assert not out[:, ::2].any()
    assert out[:, 1::2].any()
    centers = call.gradients(out, torch.ones_like(out))["tensor 2"]
    assert not centers[:, ::2].any()
    none = Call(tensors, torch.full_like(idx, -1), layers)
    before = [t.clone() for t in none.running()]
    out = none(set_abstraction)
    assert not out.any()
    assert not any(g.any() for g in none.gradients(out, torch.ones_like(out)).values())
    assert all(torch.equal(a, b) for a, b in zip(none.running(), before, strict=True))


@pytest.mark.parametrize("kind", ["none", "batch_eval", "batch_train"])
@pytest.mark.parametrize("dtype", HALVES, ids=name)
def test_inference(dtype, kind):
    for widths in ((64,), (20, 10), (64, 64, 128), (128, 256)):
        (tensors, idx, layers), *_ = draws(widths, 33, "mixed", kind, dtype, empty=True)
        exact = Call(tensors, idx, layers, torch.float64)
        eager = Call(tensors, idx, layers)
        call = Call(tensors, idx, layers)
        with torch.no_grad():
            out = call(set_abstraction)
            assert_accurate(out, eager(reference), exact(reference))
        assert not out.requires_grad
        trained = Call(tensors, idx, layers)(set_abstraction)
        few = 4 * torch.finfo(dtype).eps
        torch.testing.assert_close(out, trained.detach(), rtol=few, atol=few)


def skip_beyond_training(widths):
    if max(widths[:2]) > 128 and torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("hidden widths beyond 128 have kernels on sm_90a alone")


SHAPES = (
    (32, 32, 64), (64, 64, 64), (64, 50, 101), (64, 64, 128), (64, 96, 128), (50, 90, 100),
    (128, 128, 128), (100, 128, 256), (128, 196, 256), (128, 208, 250),
)  # fmt: skip


@pytest.mark.parametrize("features", [0, 6, 30])
@pytest.mark.parametrize("dtype", HALVES, ids=name)
@pytest.mark.parametrize("widths", SHAPES, ids=str)
def test_shapes_of_inference(widths, dtype, features):
    """Three layers with ReLU: the bits of training's kernels, where those take the widths."""
    skip_beyond_training(widths)
    for k, padding, kind in (
        (33, "mixed", "batch_eval"),
        (16, "none", "none"),
        (70, "minus", "none"),
    ):
        (tensors, idx, layers), *_ = draws(widths, k, padding, kind, dtype, features, empty=True)
        with torch.no_grad():
            out = Call(tensors, idx, layers)(set_abstraction)
            eager, exact = Call(tensors, idx, layers), Call(tensors, idx, layers, torch.float64)
            assert_accurate(out, eager(reference), exact(reference))
        # NOTE: coordinates have gradients here: training gathers the product of few features then.
        if max(widths[:2]) <= 128 and not 0 < features <= MOST_FEATURES:
            assert torch.equal(out, Call(tensors, idx, layers)(set_abstraction).detach())


@pytest.mark.parametrize("widths", [(64, 96, 128), (128, 196, 256)], ids=str)
def test_many_groups_of_inference(widths):
    """More than resident warps, of one to nine tiles."""
    skip_beyond_training(widths)
    (tensors, idx, layers), *_ = draws(widths, 130, "minus", "batch_eval", features=0)
    xyz, rows, centers = tensors
    tensors, idx = (xyz, rows, centers.repeat(1, 80, 1)), idx.repeat(1, 80, 1)
    with torch.no_grad():
        out = Call(tensors, idx, layers)(set_abstraction)
        eager, exact = Call(tensors, idx, layers), Call(tensors, idx, layers, torch.float64)
        assert_accurate(out, eager(reference), exact(reference))
        assert torch.equal(out, Call(tensors, idx, layers)(set_abstraction))


def step_of(widths, kind, features=6, padding="mixed"):
    """A call without running statistics that are written, and its gradients, in one tensor."""
    (tensors, idx, layers), *_ = draws(widths, 17, padding, kind, features=features)
    weights, biases, norms = layers
    if kind == "batch_train":
        norms = [norm._replace(running_mean=None, running_var=None) for norm in norms]
    call = Call(tensors, idx, (weights, biases, norms))

    def step():
        out = call(set_abstraction)
        grads = call.gradients(out, out.detach())
        return torch.cat([t.detach().float().flatten() for t in (out, *grads.values())])

    def forward():
        with torch.no_grad():
            return call(set_abstraction)

    return step, forward


STEPS = [
    ((64,), "batch_train", 6), ((32, 64), "batch_train", 6), ((64, 64, 128), "batch_train", 0),
    ((128, 256), "batch_eval", 6), ((20, 10), "none", 0),
]  # fmt: skip


@pytest.mark.parametrize(("widths", "kind", "features"), STEPS)
def test_repeats_bitwise(widths, kind, features):
    for call in step_of(widths, kind, features):
        first = call()
        assert all(torch.equal(call(), first) for _ in range(3))


@pytest.mark.parametrize(("widths", "kind", "features"), STEPS)
def test_replays_in_graphs_and_runs_on_streams(widths, kind, features):
    for call in step_of(widths, kind, features):
        expected = call()
        assert_replays_and_streams(call, expected)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize(("widths", "kind", "features"), STEPS[:4])
def test_compiled(widths, kind, features, backend):
    """One graph, with the kernels in it, and the values of eager calls."""
    (tensors, idx, layers), *_ = draws(widths, 17, "mixed", kind, features=features)
    eager, traced = Call(tensors, idx, layers), Call(tensors, idx, layers)
    torch._dynamo.reset()
    compiled = torch.compile(set_abstraction, fullgraph=True, backend=backend)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", module="torch._inductor")
        # Dynamo's own, where it traces an autograd.Function.
        warnings.filterwarnings("ignore", "(?s).*should not be instantiated", DeprecationWarning)
        out = traced(compiled)
    expected = eager(set_abstraction)
    torch.testing.assert_close(out, expected)
    dout = make(*out.shape, dtype=out.dtype, device="cuda", seed=99)
    got, want = traced.gradients(out, dout), eager.gradients(expected, dout)
    for key, grad in got.items():
        torch.testing.assert_close(grad, want[key], rtol=2e-2, atol=2e-2)
    for mine, theirs in zip(traced.running(), eager.running(), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_sync_batch_norm_is_composed(monkeypatch, fused_calls):
    """Its statistics are summed over ranks, which the kernels do not do."""
    (tensors, idx, layers), *_ = draws((32, 64))
    set_abstraction(*tensors, idx, *layers)
    taken = []
    monkeypatch.setattr(
        _edge_mlp._edge_composed, "edge_mlp", lambda *a: taken.append(1) or torch.zeros(2, 37, 64)
    )
    norms = [norm._replace(group=object()) for norm in layers[2]]
    assert all(isinstance(norm, BatchNorm) for norm in norms)
    set_abstraction(*tensors, idx, *layers[:2], norms)
    assert (taken, fused_calls) == ([1], [1])
