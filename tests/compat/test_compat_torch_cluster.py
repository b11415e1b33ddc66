"""fusedops.compat.torch_cluster against torch_cluster's semantics, written out in torch."""

from __future__ import annotations

import math

import pytest
import torch

from fusedops.compat.torch_cluster import fps, knn, knn_graph, radius, radius_graph

SIZES_X, SIZES_Y = (40, 0, 7, 25), (9, 3, 0, 12)  # points and queries of four clouds


def batch_of(sizes, device):
    return torch.arange(len(sizes), device=device).repeat_interleave(
        torch.tensor(sizes, device=device)
    )


def make(device, dim=3, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    x, y = (
        torch.randn(sum(sizes), dim, generator=generator, dtype=dtype).to(device)
        for sizes in (SIZES_X, SIZES_Y)
    )
    return x, y, batch_of(SIZES_X, device), batch_of(SIZES_Y, device)


def distances(x, y, batch_x=None, batch_y=None, cosine=False):
    """(M, N), infinite between clouds."""
    if cosine:
        dist = 1 - (y @ x.T) / (y.norm(dim=1)[:, None] * x.norm(dim=1))
    else:
        dist = (y[:, None] - x).square().sum(-1)
    if batch_x is not None:
        dist = dist.masked_fill(batch_y[:, None] != batch_x, math.inf)
    return dist


def plain_knn(k, *clouds, cosine=False):
    pairs = []
    for row, dist in enumerate(distances(*clouds, cosine=cosine)):
        order = dist.sort(stable=True).indices[:k].tolist()
        pairs += [(row, column) for column in order if dist[column] < math.inf]
    return pairs


def plain_radius(r, most, *clouds, same=True):
    pairs = []
    for row, dist in enumerate(distances(*clouds)):
        inside = [j for j in (dist < r * r).nonzero()[:, 0].tolist() if same or j != row]
        pairs += [(row, column) for column in inside[:most]]
    return pairs


def pairs_of(edges):
    assert edges.dtype is torch.int64
    assert edges.shape[0] == 2
    return [tuple(pair) for pair in edges.T.tolist()]


@pytest.mark.parametrize("cosine", [False, True])
@pytest.mark.parametrize("k", [1, 5, 30, 200])
def test_knn(device, k, cosine):
    x, y, batch_x, batch_y = make(device)
    assert pairs_of(knn(x, y, k, cosine=cosine)) == plain_knn(k, x, y, cosine=cosine)
    want = plain_knn(k, x, y, batch_x, batch_y, cosine=cosine)
    assert pairs_of(knn(x, y, k, batch_x, batch_y, cosine)) == want
    assert pairs_of(knn(x, y, k, batch_x, batch_y, cosine, batch_size=6)) == want


def test_knn_of_vectors_ties_and_far_points(device):
    x = torch.tensor([2e5, -1.0, 1.0, -1.0], device=device)
    y = torch.tensor([0.0], device=device)
    assert pairs_of(knn(x, y, 9)) == [(0, 1), (0, 2), (0, 3), (0, 0)]
    assert pairs_of(knn_graph(x, 1)) == [(2, 0), (3, 1), (1, 2), (1, 3)]


def test_cosine_scale_and_zero(device):
    x = torch.tensor([[1e30, 0], [0, 1e-30], [0, 0], [1, 1]], device=device)
    y = torch.tensor([[3.0, 0.1], [0, 0]], device=device)
    assert pairs_of(knn(x, y, 4, cosine=True)) == [(0, 0), (0, 3), (0, 1)]


@pytest.mark.parametrize("flow", ["source_to_target", "target_to_source"])
@pytest.mark.parametrize("loop", [False, True])
def test_graphs(device, loop, flow):
    x, _, batch, _ = make(device)
    for found, want in (
        (knn_graph(x, 4, batch, loop, flow), plain_knn(4 if loop else 5, x, x, batch, batch)),
        (
            radius_graph(x, 1.5, batch, loop, 6, flow),
            plain_radius(1.5, 6, x, x, batch, batch, same=loop),
        ),
    ):
        want = [pair for pair in want if loop or pair[0] != pair[1]]
        if flow == "source_to_target":
            want = [pair[::-1] for pair in want]
        assert pairs_of(found) == want


@pytest.mark.parametrize("graph", [knn_graph, lambda x, k: radius_graph(x, 1.0, None, False, k)])
def test_graphs_of_duplicates(device, graph):
    """k edges each, no loops, although more than k others are as near as the point itself."""
    edges = graph(torch.zeros(10, 3, device=device), 2)
    assert (edges[0] != edges[1]).all()
    assert edges[1].bincount().tolist() == [2] * 10


@pytest.mark.parametrize("most", [1, 3, 32, 2000])
@pytest.mark.parametrize("r", [0.01, 1, 2.5])
def test_radius(device, r, most):
    x, y, batch_x, batch_y = make(device)
    assert pairs_of(radius(x, y, r, max_num_neighbors=most)) == plain_radius(r, most, x, y)
    for same in (True, False):
        found = radius(x, y, r, batch_x, batch_y, most, ignore_same_index=not same)
        assert pairs_of(found) == plain_radius(r, most, x, y, batch_x, batch_y, same=same)


def test_radius_beyond_the_columns_of_ball_query(device):
    x = torch.rand(1500, 2, device=device, dtype=torch.float64)
    for most in (1100, 2000):
        found = radius(x, x[:5], 0.9, max_num_neighbors=most)
        assert pairs_of(found) == plain_radius(0.9, most, x, x[:5])
    found = radius_graph(x, 9.0, max_num_neighbors=1030)
    assert found[1].bincount().tolist() == [1030] * 1500


def test_radius_is_open(device):
    x = torch.tensor([[0.0], [1.0], [2.0]], device=device)
    assert pairs_of(radius(x, x[:1], 2)) == [(0, 0), (0, 1)]


def plain_fps(x, count):
    chosen = [0]
    while len(chosen) < count:
        nearest = (x[:, None] - x[chosen]).square().sum(-1).amin(1)
        chosen.append(int(nearest.argmax()))
    return chosen


def test_fps(device):
    x, _, batch, _ = make(device)
    ptr = [0, 40, 40, 47, 72]
    for ratio in (None, 0.5, 0.3, 1.0, torch.tensor(0.2), torch.tensor([0.1, 0.5, 0.9, 1.0])):
        shares = torch.as_tensor(0.5 if ratio is None else ratio).double().expand(4).tolist()
        want = []
        for begin, size, share in zip(ptr[:-1], SIZES_X, shares, strict=True):
            count = math.ceil(round(size * share, 4))
            rows = plain_fps(x[begin : begin + size], count) if count else []
            want += [begin + row for row in rows]
        ratio = ratio.to(device) if isinstance(ratio, torch.Tensor) else ratio
        for clouds in (
            {"batch": batch},
            {"batch": batch, "batch_size": 4},
            {"ptr": ptr},
            {"ptr": torch.tensor(ptr, device=device)},
        ):
            assert fps(x, ratio=ratio, random_start=False, **clouds).tolist() == want
    assert fps(x, ratio=0.1, random_start=False).tolist() == plain_fps(x, 8)
    assert fps(x[:, 0], ratio=0.1, random_start=False).tolist() == plain_fps(x[:, :1], 8)


def test_fps_random_start(device):
    x = torch.randn(200, 3, device=device)
    batch = torch.arange(2, device=device).repeat_interleave(100)
    draws = torch.stack([fps(x, batch, 0.25) for _ in range(20)])
    assert draws.shape == (20, 50)
    assert len(draws[:, 0].unique()) > 5
    assert (draws[:, :25] < 100).all()
    assert (draws[:, 25:] >= 100).all()
    assert all(len(row.unique()) == 50 for row in draws)


def test_empty(device):
    x, none = torch.rand(5, 3, device=device), torch.rand(0, 3, device=device)
    for a, b in ((x, none), (none, x), (none, none)):
        assert knn(a, b, 2).shape == (2, 0)
        assert radius(a, b, 2.0).shape == (2, 0)
    assert knn_graph(none, 2).shape == (2, 0)
    assert radius_graph(none, 2.0).shape == (2, 0)
    assert fps(none).shape == (0,)


def test_compiles(device):
    """With graph breaks where sizes are data."""
    x, _, batch, _ = make(device)
    for function in (
        lambda x: knn_graph(x, 3, batch),
        lambda x: radius_graph(x, 1.0, batch),
        lambda x: fps(x, batch, 0.5, False),
    ):
        assert torch.equal(torch.compile(function, backend="eager")(x), function(x))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x, b: knn(x, x, 2, b[:3], b), r"knn: batch_x must be \(5,\); got \(3,\)"),
        (lambda x, b: knn(x, x, 2, b, None), "knn: batch_y must be given for 2 clouds; got None"),
        (lambda x, b: radius(x, x, 1.0, None, b), "radius: batch_x must be given for 2 clouds"),
        (lambda x, b: knn_graph(x, 2, flow="up"), "knn_graph: flow must be .* got 'up'"),
        (lambda x, b: radius_graph(x, 2.0, flow="up"), "radius_graph: flow must be .* got 'up'"),
        (lambda x, b: fps(x, b[:2]), r"fps: batch must be \(5,\); got \(2,\)"),
    ],
)
def test_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call(torch.rand(5, 3), torch.tensor([0, 0, 0, 1, 1]))


def test_most_neighbours_of_a_graph():
    x = torch.arange(1025.0)
    with pytest.raises(ValueError, match="knn_graph: k must be at most 1023 with loop=False; got"):
        knn_graph(x, 1024)
    with pytest.raises(ValueError, match="knn_graph: k must be at most 1024 with loop=True; got"):
        knn_graph(x, 1025, loop=True)
    assert knn_graph(x, 1023).shape == (2, 1025 * 1023)
    assert knn_graph(x, 1024, loop=True).shape == (2, 1025 * 1024)
    assert knn_graph(x[:1024], 2000).shape == (2, 1024 * 1023)


def test_compiles_where_scalars_are_captured(device):
    """Sizes that only the device knows must not reach an op as traced numbers."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(60, 3, generator=generator).to(device)
    batch = torch.arange(60, device=device) // 20
    calls = [
        lambda x, ratio: fps(x, batch, ratio, False),
        lambda x, ratio: radius_graph(x, 0.3, batch),
        lambda x, ratio: radius(x, x, 0.3, batch, batch, max_num_neighbors=2000),
        lambda x, ratio: knn_graph(x, 4, batch),
    ]
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        for call in calls:
            compiled = torch.compile(call, backend="aot_eager")
            for ratio in (0.25, 0.5):
                share = torch.full((3,), ratio, device=device)
                assert torch.equal(compiled(x, share), call(x, share))


def test_radius_without_neighbours(device):
    x = torch.rand(5, 3, device=device)
    assert radius(x, x, 1.0, max_num_neighbors=0).shape == (2, 0)
    assert radius_graph(x, 1.0, max_num_neighbors=0).shape == (2, 0)
