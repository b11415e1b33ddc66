"""Grouping and interpolation: values and gradients against the definitions in float64."""

from __future__ import annotations

import pytest
import torch

import fusedops
from fusedops.points import (
    gather,
    group,
    interpolate,
    interpolation_weights,
    knn_interpolate,
    three_interpolate,
    three_nn,
)
from util import DTYPES, HALVES, generator, make, name

reference = fusedops.reference

# Clouds, points, groups, neighbours, channels: rows of every alignment, and wider than a warp
SHAPES = [
    (2, 40, 7, 5, 1),
    (1, 9, 3, 4, 3),
    (3, 50, 11, 8, 16),
    (2, 30, 5, 3, 65),
    (1, 20, 4, 6, 520),
    (2, 300, 100, 16, 12),
]


def indices(clouds, rows, groups, k, device, low=-1, seed=0):
    """With repeats, -1 and (unless low is 0) one beyond the cloud."""
    high = rows + 1 if low < 0 else rows
    drawn = torch.randint(low, high, (clouds, groups, k), generator=generator("cpu", seed))
    return drawn.to(device)


def tables(shape, dtype, device, dim=3):
    """features, idx, points, centers."""
    clouds, rows, groups, k, channels = shape
    return (
        make(clouds, rows, channels, dtype=dtype, device=device),
        indices(clouds, rows, groups, k, device),
        make(clouds, rows, dim, dtype=dtype, device=device, seed=1),
        make(clouds, groups, dim, dtype=dtype, device=device, seed=2),
    )


def tolerance(dtype):
    """One rounding of a sum that was formed in a wider type."""
    return {"rtol": 4 * torch.finfo(dtype).eps, "atol": 16 * torch.finfo(dtype).eps}


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_group(device, dtype, shape):
    features, idx, points, centers = tables(shape, dtype, device)
    assert torch.equal(group(features, idx), reference.group(features, idx))
    with_points = group(features, idx, points=points)
    assert torch.equal(with_points, reference.group(features, idx, points))
    # A difference of two halves is exact in float32 and rounded once
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    centred = reference.group(features.to(wide), idx, points.to(wide), centers.to(wide)).to(dtype)
    got = group(features, idx, points=points, centers=centers)
    assert torch.equal(got, centred)
    assert got.is_contiguous()
    coordinates = group(None, idx, points=points, centers=centers)
    assert torch.equal(coordinates, centred[..., :3])


@pytest.mark.parametrize("dim", [1, 2, 7, 300])
def test_any_number_of_coordinates(device, dim):
    features, idx, points, centers = tables((2, 20, 6, 4, 5), torch.float32, device, dim)
    got = group(features, idx, points=points, centers=centers)
    assert torch.equal(got, reference.group(features, idx, points, centers))
    alone = group(None, idx, points=points)
    assert torch.equal(alone, reference.group(None, idx, points))


@pytest.mark.parametrize("dtype", HALVES, ids=name)
def test_float32_coordinates_beside_halves(device, dtype):
    features, idx, _, _ = tables((2, 40, 7, 5, 6), dtype, device)
    points = make(2, 40, 3, dtype=torch.float32, device=device) + 1000
    centers = points[:, :7].clone()
    got = group(features, idx, points=points, centers=centers)
    expected = reference.group(features.float(), idx, points, centers).to(dtype)
    assert torch.equal(got, expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_group_gradients(device, dtype, shape):
    inputs = tables(shape, dtype, device)
    features, idx, points, centers = inputs
    out = group(
        features.requires_grad_(),
        idx,
        points=points.requires_grad_(),
        centers=centers.requires_grad_(),
    )
    dout = make(*out.shape, dtype=dtype, device=device, seed=3)
    got = torch.autograd.grad(out, (features, points, centers), dout)
    exact_inputs = [t.detach().double().requires_grad_() for t in (features, points, centers)]
    exact_out = reference.group(exact_inputs[0], idx, *exact_inputs[1:])
    exact = torch.autograd.grad(exact_out, exact_inputs, dout.double())
    for ours, want, like in zip(got, exact, (features, points, centers), strict=True):
        assert ours.dtype == like.dtype
        torch.testing.assert_close(ours.double(), want, **tolerance(dtype))


@pytest.mark.parametrize("dtype", HALVES, ids=name)
def test_float32_coordinates_have_float32_gradients(device, dtype):
    features, idx, _, _ = tables((1, 4, 50, 8, 6), dtype, device)
    points = make(1, 4, 3, dtype=torch.float32, device=device).requires_grad_()
    out = group(features, idx, points=points)
    dout = make(*out.shape, dtype=dtype, device=device, seed=3)
    (got,) = torch.autograd.grad(out, points, dout)
    exact_points = points.detach().double().requires_grad_()
    exact_out = reference.group(None, idx, exact_points)
    (exact,) = torch.autograd.grad(exact_out, exact_points, dout[..., :3].double())
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), exact, rtol=1e-5, atol=1e-5)


# Few destinations: long sums, also beyond what one warp takes
@pytest.mark.parametrize(("rows", "groups", "k"), [(1, 700, 5), (3, 500, 40), (40, 3, 2000)])
@pytest.mark.parametrize("channels", [1, 4, 40])
def test_long_sums(device, rows, groups, k, channels):
    features = make(2, rows, channels, dtype=torch.float32, device=device).requires_grad_()
    idx = indices(2, rows, groups, k, device)
    idx[1] = rows - 1
    out = group(features, idx)
    dout = make(*out.shape, dtype=torch.float32, device=device, seed=3)
    (got,) = torch.autograd.grad(out, features, dout)
    exact_features = features.detach().double().requires_grad_()
    exact_out = reference.group(exact_features, idx)
    (exact,) = torch.autograd.grad(exact_out, exact_features, dout.double())
    torch.testing.assert_close(got.double(), exact, rtol=1e-4, atol=1e-3)


def test_backward_repeats_bitwise(device):
    features = make(2, 30, 24, dtype=torch.float16, device=device).requires_grad_()
    idx = indices(2, 30, 400, 16, device)
    dout = make(2, 400, 16, 24, dtype=torch.float16, device=device)
    first = torch.autograd.grad(group(features, idx), features, dout)[0]
    with_flag = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        for _ in range(3):
            again = torch.autograd.grad(group(features, idx), features, dout)[0]
            assert torch.equal(first, again)
    finally:
        torch.use_deterministic_algorithms(with_flag)


def test_gather_and_packed(device):
    features, idx, points, centers = tables((2, 40, 7, 5, 6), torch.float32, device)
    assert torch.equal(gather(features, idx[..., 0]), reference.group(features, idx)[:, :, 0])
    assert torch.equal(gather(features[0], idx[0, 0]), reference.group(features, idx)[0, 0])
    packed = group(features[1], idx[1], points=points[1], centers=centers[1])
    assert torch.equal(packed, reference.group(features, idx, points, centers)[1])
    weights = make(2, 7, 5, dtype=torch.float32, device=device)
    got = interpolate(features[1], idx[1], weights[1])
    assert torch.equal(got, interpolate(features, idx, weights)[1])


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_interpolate_and_gradients(device, dtype, shape):
    clouds, rows, queries, k, channels = shape
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    features = make(clouds, rows, channels, dtype=dtype, device=device).requires_grad_()
    idx = indices(clouds, rows, queries, k, device)
    for weight_dtype in {dtype, torch.float32 if dtype in HALVES else dtype}:
        weights = make(clouds, queries, k, dtype=weight_dtype, device=device, seed=1)
        weights.requires_grad_()
        out = interpolate(features, idx, weights)
        assert out.dtype == dtype
        exact_inputs = [t.detach().double().requires_grad_() for t in (features, weights)]
        exact_out = reference.interpolate(exact_inputs[0], idx, exact_inputs[1])
        torch.testing.assert_close(out.double(), exact_out, **tolerance(dtype))
        dout = make(*out.shape, dtype=dtype, device=device, seed=3)
        got = torch.autograd.grad(out, (features, weights), dout)
        exact = torch.autograd.grad(exact_out, exact_inputs, dout.double())
        for ours, want, like in zip(got, exact, (features, weights), strict=True):
            assert ours.dtype == like.dtype
            allowed = tolerance(dtype)
            allowed["atol"] += 16 * channels**0.5 * tolerance(wide)["atol"]  # a dot product
            torch.testing.assert_close(ours.double(), want, **allowed)


@pytest.mark.parametrize("needs", [(True, False), (False, True)])
def test_gradients_of_one_input(device, needs):
    features = make(2, 9, 8, dtype=torch.float64, device=device).requires_grad_(needs[0])
    weights = make(2, 5, 3, dtype=torch.float64, device=device).requires_grad_(needs[1])
    idx = indices(2, 9, 5, 3, device)
    inputs = [t for t in (features, weights) if t.requires_grad]
    grads = torch.autograd.grad(interpolate(features, idx, weights).square().sum(), inputs)
    want = torch.autograd.grad(reference.interpolate(features, idx, weights).square().sum(), inputs)
    for a, b in zip(grads, want, strict=True):
        torch.testing.assert_close(a, b)


def test_derivatives_of_higher_order(device):
    idx = indices(2, 6, 4, 3, device)
    features = make(2, 6, 2, dtype=torch.float64, device=device).requires_grad_()
    points = make(2, 6, 3, dtype=torch.float64, device=device, seed=1).requires_grad_()
    centers = make(2, 4, 3, dtype=torch.float64, device=device, seed=2).requires_grad_()
    weights = make(2, 4, 3, dtype=torch.float64, device=device, seed=3).requires_grad_()

    def grouped(f, p, c):
        return group(f, idx, points=p, centers=c).sin()

    def interpolated(f, w):
        return interpolate(f, idx, w).sin()

    assert torch.autograd.gradcheck(grouped, (features, points, centers))
    assert torch.autograd.gradgradcheck(grouped, (features, points, centers), fast_mode=True)
    assert torch.autograd.gradcheck(interpolated, (features, weights))
    assert torch.autograd.gradgradcheck(interpolated, (features, weights), fast_mode=True)


@pytest.mark.parametrize("kind", ["inverse_distance", "inverse_square", "uniform"])
def test_interpolation_weights(device, kind):
    dist2 = torch.tensor([[4.0, 1.0, 0.25], [0.0, 1.0, 1.0], [9.0, 1.0, 1.0], [1.0, 1.0, 1.0]])
    idx = torch.tensor([[0, 1, 2], [3, 1, 2], [0, -1, -1], [-1, -1, -1]], device=device)
    dist2 = dist2.to(device).requires_grad_()
    weights = interpolation_weights(dist2, idx, kind)
    raw = {
        "inverse_distance": [0.5, 1.0, 2.0],
        "inverse_square": [0.25, 1.0, 4.0],
        "uniform": [1.0, 1.0, 1.0],
    }[kind]
    expected = torch.tensor(raw, device=device) / sum(raw)
    torch.testing.assert_close(weights[0], expected)
    if kind != "uniform":
        assert weights[1, 0] > 0.999
        (gradient,) = torch.autograd.grad(weights[:, 0].sum(), dist2)
        assert torch.isfinite(gradient).all()
        assert gradient[0, 0] < 0
    assert weights[2].tolist() == [1, 0, 0]
    assert weights[3].tolist() == [0, 0, 0]


def test_three_interpolate_of_a_linear_function_at_the_corners(device):
    # Weights that sum to 1 leave a constant alone, and a neighbour at distance 0 decides alone
    features = torch.full((1, 10, 4), 2.5, device=device)
    idx = torch.tensor([[[0, 1, 2], [7, 8, 9]]], device=device)
    dist2 = torch.tensor([[[1.0, 2.0, 3.0], [0.0, 1.0, 1.0]]], device=device)
    out = three_interpolate(features, idx, interpolation_weights(dist2, idx))
    torch.testing.assert_close(out, torch.full((1, 2, 4), 2.5, device=device))


def test_empty(device):
    features = torch.empty(2, 0, 4, device=device, requires_grad=True)
    none = torch.full((2, 3, 5), -1, device=device)
    out = group(features, none)
    assert out.shape == (2, 3, 5, 4)
    assert (out == 0).all()
    assert torch.autograd.grad(out.sum(), features)[0].shape == (2, 0, 4)
    features = torch.ones(2, 6, 4, device=device, requires_grad=True)
    for shape in [(2, 0, 5), (2, 3, 0)]:
        idx = torch.empty(shape, dtype=torch.int64, device=device)
        out = group(features, idx)
        assert out.shape == (*shape, 4)
        assert (torch.autograd.grad(out.sum(), features)[0] == 0).all()
        weights = torch.empty(shape, device=device, requires_grad=True)
        blended = interpolate(features, idx, weights)
        assert (blended == 0).all()
        dfeatures, dweights = torch.autograd.grad(blended.sum(), (features, weights))
        assert (dfeatures == 0).all()
        assert dweights.shape == shape
    assert group(torch.ones(2, 6, 0, device=device), none).shape == (2, 3, 5, 0)


def test_strided_inputs_and_expanded_gradients(device):
    features = make(2, 8, 9, 2, dtype=torch.float32, device=device)[:, :, ::2, 1]
    offset = make(2 * 8 * 16 + 1, dtype=torch.float16, device=device)[1:].view(2, 8, 16)
    idx = indices(2, 8, 6, 4, device).mT.contiguous().mT
    assert torch.equal(group(features, idx), reference.group(features, idx))
    assert torch.equal(group(offset, idx), reference.group(offset, idx))
    weights = make(2, 4, 6, dtype=torch.float16, device=device).mT
    torch.testing.assert_close(
        interpolate(offset, idx, weights).double(),
        reference.interpolate(offset.double(), idx, weights.double()),
        rtol=2e-3,
        atol=5e-3,
    )
    features = features.clone().requires_grad_()
    (got,) = torch.autograd.grad(group(features, idx).sum(), features)  # an expanded dout
    (want,) = torch.autograd.grad(reference.group(features, idx).sum(), features)
    assert torch.equal(got, want)


def test_compiles_without_a_graph_break(device):
    features, idx, points, centers = tables((2, 40, 7, 5, 6), torch.float32, device)
    weights = make(2, 7, 5, dtype=torch.float32, device=device)

    def step(f, p, w):
        out = group(f, idx, points=p, centers=centers).square().mean()
        return out + interpolate(f, idx, w).square().mean()

    inputs = [t.clone().requires_grad_() for t in (features, points, weights)]
    want = torch.autograd.grad(step(*inputs), inputs)
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    got = torch.autograd.grad(compiled(*inputs), inputs)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("to", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu), "meta"])
def test_errors(to):
    f = torch.ones(2, 9, 4, device=to)
    i = torch.ones(2, 5, 3, device=to, dtype=torch.int64)
    p, c, w = torch.ones(2, 9, 3, device=to), torch.ones(2, 5, 3, device=to), torch.ones(i.shape)
    w = w.to(to)
    double = torch.float64
    cases = [
        (group, (f.int(), i), "group: features must be float16, .* or float64; got int32"),
        (group, (f, i.int()), "group: idx must have dtype int64; got int32"),
        (group, (f[:1], i), r"group: idx must have 1 cloud\(s\) like features; got 2"),
        (group, (f[..., None], i), r"group: features must be 3-dimensional, \(B, N, C\); got .*"),
        (group, (None, i), "group: features must be a tensor where points is None; got None"),
        (lambda: group(f, i, centers=c), (), "group: centers must be None where points is None.*"),
        (lambda: group(f, i, points=p[:, 1:]), (), r"group: points must have shape \(2, 9, 3\).*"),
        (lambda: group(f, i, points=p.to(double)), (), "group: points must have dtype float32 .*"),
        (lambda: group(f, i, points=p, centers=c[..., 1:]), (), "group: centers must have shape.*"),
        (interpolate, (f, i, w[..., 1:]), r"interpolate: weights must have shape \(2, 5, 3\) .*"),
        (interpolate, (f, i, w.to(double)), "interpolate: weights must have dtype float32 like .*"),
        (interpolate, (f.half(), i, w.to(double)), ".* must have dtype float16 or float32 like .*"),
    ]
    for function, arguments, text in cases:
        with pytest.raises(RuntimeError, match=f"^{text}$"):
            function(*arguments)
    op = torch.ops.fusedops.group_backward
    dout = torch.ones(2, 5, 3, 4, device=to)
    for n, first, count in [(9, -1, 2), (9, 3, 2), (9, 0, -1), (9, 2**62, 2**62)]:
        with pytest.raises(RuntimeError, match=r"^group_backward: first and count must name "):
            op(dout, i, n, first, count, False)
    with pytest.raises(RuntimeError, match=r"^group_backward: n must be >= 0; got -1$"):
        op(dout, i, -1, 0, 1, False)
    with pytest.raises(
        RuntimeError, match=r"^group_backward: the clouds must have at most 4294967"
    ):
        op(dout, i, 2**32, 0, 1, False)
    with pytest.raises(TypeError, match="group: idx must be a Tensor; got list"):
        group(f, [1])
    with pytest.raises(TypeError, match="gather: features must be a Tensor; got int"):
        gather(3, i)
    with pytest.raises(ValueError, match="weights must be"):
        interpolation_weights(w, i, "linear")


@pytest.mark.gpu
@pytest.mark.slow
def test_more_than_2_31_elements():
    features = make(2, 5, 128, dtype=torch.float16, device="cuda")
    idx = indices(2, 5, 300_000, 32, "cuda")  # 2.5e9 values
    out = group(features, idx)
    for b, m in [(0, 0), (1, 299_999)]:
        assert torch.equal(out[b, m], reference.group(features, idx[:, m : m + 1])[b, 0])
    points = make(2, 5, 3, dtype=torch.float16, device="cuda")
    del out
    out = group(features, idx, points=points)
    for b, m in [(0, 0), (1, 299_999)]:
        want = reference.group(features, idx[:, m : m + 1], points)[b, 0]
        assert torch.equal(out[b, m], want)
    counts = torch.ops.fusedops.group_backward(torch.ones_like(out), idx, 5, 3, 128, True)
    for b in range(2):
        for row in range(5):
            assert (counts[b, row] == (idx[b] == row).sum()).all()


@pytest.mark.parametrize("channels", [8, 9])
@pytest.mark.parametrize(
    ("clouds", "rows", "groups", "k"),
    [
        *((3, 7, 2000, 32), (1, 40_000, 2000, 16), (2, 200, 3000, 100), (1, 5, 600_000, 2)),
        (4, 16_384, 4096, 32),
    ],
)
def test_every_way_to_list_the_entries(device, clouds, rows, groups, k, channels):
    """Lists of every length, many destinations, and more entries than are counted at a time."""
    idx = indices(clouds, rows, groups, k, device)
    idx[:, :, 0] = 0  # long lists beside short ones
    dout = torch.randint(-8, 9, (clouds, groups, k, channels), generator=generator("cpu"))
    dout = dout.to(device=device, dtype=torch.float32)  # sums are exact
    got = torch.ops.fusedops.group_backward(dout, idx, rows, 0, channels, False)
    expected = torch.zeros(clouds, rows + 1, channels, device=device)
    where = torch.where((idx < 0) | (idx >= rows), rows, idx).reshape(clouds, -1, 1)
    expected.scatter_add_(1, where.expand(-1, -1, channels), dout.reshape(clouds, -1, channels))
    assert torch.equal(got, expected[:, :rows])


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("clouds", "rows", "groups", "k"),
    [
        *((16, 16_384, 4096, 32), (32, 1024, 512, 32), (1, 100, 1250, 32), (3, 5000, 20_481, 1)),
        *((1, 9000, 8192, 32), (150, 3000, 700, 30)),
    ],
)
def test_lists_have_the_order_of_entries(clouds, rows, groups, k):
    idx = indices(clouds, rows, groups, k, "cuda")
    idx[:, :, 0] = 0  # long lists beside short ones
    lists, ranges = torch.ops.fusedops.edge_lists(idx, rows)
    flat, size = idx.view(clouds, -1), groups * k
    for b in range(clouds):
        inside = (flat[b] >= 0) & (flat[b] < rows)
        order = torch.where(inside, flat[b], rows).sort(stable=True).indices[: int(inside.sum())]
        assert torch.equal(lists[b * size :][: order.numel()].long(), order + b * size)
        ends = torch.bincount(flat[b][inside], minlength=rows).cumsum(0) + b * size
        assert torch.equal(ranges[b * rows :][:rows, 1].long(), ends)
        assert torch.equal(ranges[b * rows :][1:rows, 0].long(), ends[:-1])


@pytest.mark.parametrize("kind", ["inverse_distance", "inverse_square", "uniform"])
@pytest.mark.parametrize("k", [1, 3, 7])
def test_knn_interpolate(device, k, kind):
    points = make(2, 40, 3, dtype=torch.float64, device=device)
    queries = make(2, 15, 3, dtype=torch.float64, device=device, seed=1)
    features = make(2, 40, 6, dtype=torch.float64, device=device, seed=2)
    got = knn_interpolate(features, points, queries, k, kind)
    dist2, idx = (queries[:, :, None] - points[:, None]).square().sum(-1).topk(k, largest=False)
    raw = {
        "inverse_distance": 1 / (dist2.sqrt() + 1e-8),
        "inverse_square": 1 / (dist2 + 1e-8),
        "uniform": torch.ones_like(dist2),
    }[kind]
    expected = reference.interpolate(features, idx, raw / raw.sum(-1, keepdim=True))
    torch.testing.assert_close(got, expected)
    halves = knn_interpolate(features.half(), points, queries, k, kind)
    assert halves.dtype == torch.float16
    torch.testing.assert_close(halves.double(), expected, rtol=2e-3, atol=2e-3)
    at_points = knn_interpolate(features, points, points, k, "inverse_distance")
    torch.testing.assert_close(at_points, features, rtol=1e-4, atol=1e-4)


def test_knn_interpolate_gradients(device):
    inputs = [
        make(1, n, c, dtype=torch.float64, device=device, seed=c).requires_grad_()
        for n, c in [(8, 2), (8, 3), (4, 3)]
    ]
    assert torch.autograd.gradcheck(lambda f, p, q: knn_interpolate(f, p, q), inputs)


def test_three_nn_and_interpolation_of_clouds_of_different_sizes(device):
    points = make(3, 20, 3, dtype=torch.float32, device=device)
    queries = make(3, 9, 3, dtype=torch.float32, device=device, seed=1)
    features = make(3, 20, 4, dtype=torch.float32, device=device, seed=2)
    lengths = torch.tensor([20, 2, 0], device=device)
    idx, dist2 = three_nn(points, queries, lengths=lengths)
    assert idx.shape == dist2.shape == (3, 9, 3)
    assert (idx[1, :, 2] == -1).all()
    got = knn_interpolate(features, points, queries, lengths=lengths)
    assert torch.isfinite(got).all()
    torch.testing.assert_close(got[0], knn_interpolate(features[:1], points[:1], queries[:1])[0])
    assert (got[2] == 0).all()
    packed = knn_interpolate(
        torch.cat([features[0], features[1, :2]]),
        torch.cat([points[0], points[1, :2]]),
        torch.cat([queries[0], queries[1]]),
        offsets=torch.tensor([0, 20, 22], device=device),
        query_offsets=torch.tensor([0, 9, 18], device=device),
    )
    torch.testing.assert_close(packed, torch.cat([got[0], got[1]]))


def test_knn_interpolate_wants_a_row_of_features_for_each_point(device):
    points = make(1, 6, 3, dtype=torch.float32, device=device)
    with pytest.raises(RuntimeError, match="features must have one row for each of points"):
        knn_interpolate(points[:, :5], points, points)
