"""Ball query and radius search: membership, selection, padding, both algorithms."""

from __future__ import annotations

import math

import pytest
import torch

from fusedops import points as P
from fusedops.reference import neighbours as reference
from points.test_points_knn import ALGORITHMS, cloud, hard_clouds
from util import DTYPES, name


def assert_ball(result, points, queries, radius, k, select, **clouds):
    """Exact where no distance is within rounding of the radius or of another."""
    want = reference.ball_query(points.double(), queries.double(), radius, k, select, **clouds)
    assert torch.equal(result.idx, want[0])
    assert torch.equal(result.counts, want[1])
    torch.testing.assert_close(result.dist2.double(), want[2], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("select", ["first", "nearest"])
@pytest.mark.parametrize("dim", [1, 2, 3])
def test_matches_reference(device, dim, select, algorithm):
    points = cloud(2, 700, dim, device=device, dtype=torch.float64)
    queries = cloud(2, 90, dim, device=device, dtype=torch.float64, seed=1)
    lengths = torch.tensor([700, 2], device=device)
    query_lengths = torch.tensor([90, 41], device=device)
    for k in (1, 8, 32, 50):
        for clouds in ({}, {"lengths": lengths, "query_lengths": query_lengths}):
            result = P.ball_query(
                points,
                queries,
                0.2,
                k,
                select=select,
                algorithm=algorithm,
                return_dist=True,
                **clouds,
            )
            assert_ball(result, points, queries, 0.2, k, select, **clouds)


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@pytest.mark.parametrize("select", ["first", "nearest"])
def test_algorithms_agree(device, dtype, select):
    points = cloud(2, 3000, 3, device=device, dtype=dtype)
    queries = cloud(2, 4500, 3, device=device, dtype=dtype, seed=1)
    for k in (4, 16, 32, 60):
        a, b = (
            P.ball_query(
                points, queries, 0.15, k, select=select, algorithm=algorithm, return_dist=True
            )
            for algorithm in ALGORITHMS
        )
        for x, y in zip(a, b, strict=True):
            assert torch.equal(x, y)
    one = P.ball_query(points, queries[:, :9], 0.15, 16, select=select, algorithm="grid")
    assert torch.equal(one.idx, P.ball_query(points, queries, 0.15, 16, select=select).idx[:, :9])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_boundary_and_padding(device, algorithm):
    points = torch.tensor([[[0.0, 0, 0], [3, 4, 0], [0, 0, 1], [9, 9, 9]]], device=device)
    queries = points[:, :1]
    open_ball = P.ball_query(points, queries, 5.0, 4, algorithm=algorithm)
    assert open_ball.idx.tolist() == [[[0, 2, -1, -1]]]
    assert open_ball.counts.tolist() == [[2]]
    closed = P.ball_query(points, queries, 5.0, 4, closed=True, algorithm=algorithm)
    assert closed.idx.tolist() == [[[0, 1, 2, -1]]]
    near = P.ball_query(
        points,
        queries,
        5.0,
        4,
        closed=True,
        select="nearest",
        pad="first",
        algorithm=algorithm,
        return_dist=True,
    )
    assert near.idx.tolist() == [[[0, 2, 1, 0]]]
    assert near.dist2.tolist() == [[[0.0, 1.0, 25.0, 0.0]]]
    empty = P.ball_query(points, queries + 100, 5.0, 3, pad="first", algorithm=algorithm)
    assert empty.idx.tolist() == [[[-1, -1, -1]]]
    assert empty.counts.tolist() == [[0]]
    zero = P.ball_query(points, queries, 0.0, 2, closed=True, algorithm=algorithm)
    assert zero.idx.tolist() == [[[0, -1]]]
    assert P.ball_query(points, queries, 0.0, 2, algorithm=algorithm).counts.item() == 0
    everything = P.ball_query(points, queries, math.inf, 4, algorithm=algorithm)
    assert everything.idx.tolist() == [[[0, 1, 2, 3]]]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_not_a_number_and_duplicates(device, algorithm):
    points = torch.full((1, 3000, 3), 0.5, device=device)
    points[0, 1] = math.nan
    queries = points[:, :3].clone()
    for select in ("first", "nearest"):
        result = P.ball_query(points, queries, 0.1, 5, select=select, algorithm=algorithm)
        assert result.idx.tolist() == [[[0, 2, 3, 4, 5], [-1] * 5, [0, 2, 3, 4, 5]]]
        assert result.counts.tolist() == [[5, 0, 5]]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=name)
def test_radius_search(device, algorithm, dtype):
    points = cloud(2, 500, 3, device=device, dtype=dtype)
    queries = cloud(2, 60, 3, device=device, dtype=dtype, seed=1)
    lengths = torch.tensor([500, 77], device=device)
    query_lengths = torch.tensor([13, 60], device=device)
    result = P.radius_search(
        points,
        queries,
        0.3,
        lengths=lengths,
        query_lengths=query_lengths,
        algorithm=algorithm,
        return_dist=True,
    )
    dense = P.ball_query(
        points,
        queries,
        0.3,
        500,
        lengths=lengths,
        query_lengths=query_lengths,
        algorithm="brute",
        return_dist=True,
    )
    assert result.offsets[0] == 0
    assert torch.equal(result.offsets.diff(), dense.counts.flatten())
    used = dense.idx.flatten(0, 1) >= 0
    assert torch.equal(result.idx, dense.idx.flatten(0, 1)[used])
    assert torch.equal(result.dist2, dense.dist2.flatten(0, 1)[used])
    nothing = P.radius_search(points + 10, queries, 0.3, algorithm=algorithm)
    assert nothing.idx.numel() == 0
    assert torch.all(nothing.offsets == 0)


def test_packed_radius_search_and_index(device):
    points, queries = cloud(400, 3, device=device), cloud(50, 3, device=device, seed=1)
    offsets = torch.tensor([0, 250, 250, 400], device=device)
    query_offsets = torch.tensor([0, 20, 30, 50], device=device)
    index = P.GridIndex(points, offsets=offsets)
    clouds = {"offsets": offsets, "query_offsets": query_offsets}
    brute = P.radius_search(points, queries, 0.3, algorithm="brute", return_dist=True, **clouds)
    grid = index.radius_search(queries, 0.3, query_offsets=query_offsets, return_dist=True)
    for a, b in zip(brute, grid, strict=True):
        assert torch.equal(a, b)
    first = brute.idx[: brute.offsets[20]]
    assert torch.all(first < 250)
    assert torch.all(brute.idx[brute.offsets[30] :] >= 250)
    ball = index.ball_query(queries, 0.3, 7, query_offsets=query_offsets, select="nearest")
    want = P.ball_query(points, queries, 0.3, 7, select="nearest", algorithm="brute", **clouds)
    assert torch.equal(ball.idx, want.idx)


def test_hard_clouds(device):
    for what, points in hard_clouds(3000, device):
        radius = (points.amax(0) - points.amin(0)).max().item() * 0.05
        a, b = (
            P.ball_query(points[None], None, radius, 20, algorithm=algorithm)
            for algorithm in ALGORITHMS
        )
        assert torch.equal(a.idx, b.idx), what
        assert torch.equal(a.counts, b.counts), what


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [50, 7_000, 13_000, 26_000])  # 1 to 8 queries a warp
def test_brute_force_bounds_lose_nothing(rows):
    """Only pairs that pass a rounded bound are measured, whatever the scale and the place."""
    for what, points in hard_clouds(2500, "cuda"):
        size = (points.amax(0) - points.amin(0)).max().item()
        queries = points[torch.arange(rows, device="cuda") % 2500]
        queries[7], queries[9, 1], queries[11] = math.nan, math.inf, queries[11] * 1e20
        for radius, closed in [(0.0, True), (0.05 * size, False), (math.inf, True)]:
            a, b = (
                P.ball_query(
                    points[None], queries[None], radius, 20, closed=closed, algorithm=algorithm
                )
                for algorithm in ALGORITHMS
            )
            assert torch.equal(a.idx, b.idx), (what, radius)
            assert torch.equal(a.counts, b.counts), (what, radius)


def test_more_coordinates_and_empty(device):
    points = cloud(2, 200, 7, device=device)
    for select in ("first", "nearest"):
        result = P.ball_query(points, None, 0.7, 10, select=select, return_dist=True)
        want = reference.ball_query(points.double(), points.double(), 0.7, 10, select)
        assert torch.equal(result.idx, want[0])
    for n, m, b in [(0, 5, 2), (5, 0, 2), (5, 5, 0)]:
        result = P.ball_query(
            torch.rand(b, n, 3, device=device), torch.rand(b, m, 3, device=device), 1.0, 4
        )
        assert result.idx.shape == (b, m, 4)
        assert result.counts.sum() == b * m * min(n, 4)
        empty = P.radius_search(
            torch.rand(b, n, 3, device=device), torch.rand(b, m, 3, device=device), 0.0
        )
        assert empty.offsets.shape == (b * m + 1,)


def test_gradient(device):
    points = cloud(1, 100, 3, device=device, dtype=torch.float64).requires_grad_()
    ball = P.ball_query(points, None, 0.2, 50, select="nearest", return_dist=True)
    ball.dist2.masked_fill(ball.dist2.isinf(), 0).sum().backward()
    exact = points.detach().clone().requires_grad_()
    pairs = reference.pair_distances(exact[0], exact[0])
    pairs[pairs < 0.04].sum().backward()
    torch.testing.assert_close(points.grad, exact.grad)


def test_errors(device):
    x = torch.rand(1, 10, 3, device=device)
    with pytest.raises(ValueError, match="ball_query: select must be 'first' or 'nearest'"):
        P.ball_query(x, x, 0.1, 2, select="last")
    with pytest.raises(ValueError, match="ball_query: pad must be -1 or 'first'; got 0"):
        P.ball_query(x, x, 0.1, 2, pad=0)
    for to in (device, "meta"):
        y = x.to(to)
        with pytest.raises(RuntimeError, match=r"radius must not be negative; got -1$"):
            P.ball_query(y, y, -1.0, 2)
        with pytest.raises(RuntimeError, match=r"k must be from 1 to 1024; got 2000$"):
            P.ball_query(y, y, 1.0, 2000)
        with pytest.raises(RuntimeError, match="algorithm must be auto, brute or grid; got tensor"):
            P.ball_query(y, y, 1.0, 2, algorithm="tensor")


@pytest.mark.parametrize("algorithm", ["auto", "brute", "grid"])
def test_rows_without_clouds(device, algorithm):
    none = torch.zeros(1, dtype=torch.int64, device=device)
    points = torch.rand(100, 3, device=device)
    clouds = {"offsets": none, "query_offsets": none, "algorithm": algorithm, "return_dist": True}
    for select in ("first", "nearest"):
        ball = P.ball_query(points, points, 0.5, 4, select=select, **clouds)
        assert torch.all(ball.idx == -1)
        assert torch.all(ball.counts == 0)
    found = P.knn(points, points, 4, **clouds)
    assert torch.all(found.idx == -1)
    assert torch.all(found.dist2 == torch.inf)
    assert P.radius_search(points, points, 0.5, **clouds).idx.numel() == 0
    P.GridIndex(points, offsets=none)


def assert_scales(points, queries, radii, ks, pad=-1, closed=False, **clouds):
    """What searches of one radius find, every place and count."""
    found = P.ball_query_scales(points, queries, radii, ks, pad=pad, closed=closed, **clouds)
    assert len(found) == len(radii)
    for ball, radius, k in zip(found, radii, ks, strict=True):
        want = P.ball_query(points, queries, radius, k, pad=pad, closed=closed, **clouds)
        assert ball.idx.shape == want.idx.shape
        assert torch.equal(ball.idx, want.idx)
        assert torch.equal(ball.counts, want.counts)
        assert ball.dist2 is None
    return found


SCALES = (
    ((0.2,), (8,)),
    ((0.1, 0.4), (16, 3)),
    ((0.4, 0.1, 0.2), (128, 16, 32)),
    ((0.3, 0.0, math.inf, 0.3), (1, 4, 1024, 70)),
)


@pytest.mark.parametrize(("radii", "ks"), SCALES, ids=lambda value: str(len(value)))
@pytest.mark.parametrize("dim", [2, 3, 5])
def test_scales_match_reference(device, dim, radii, ks):
    points = cloud(2, 700, dim, device=device, dtype=torch.float64)
    queries = cloud(2, 90, dim, device=device, dtype=torch.float64, seed=1)
    clouds = {
        "lengths": torch.tensor([700, 2], device=device),
        "query_lengths": torch.tensor([90, 41], device=device),
    }
    for options in ({}, clouds):
        want = reference.ball_query_scales(points, queries, radii, ks, **options)
        for ball, (idx, counts) in zip(
            P.ball_query_scales(points, queries, radii, ks, **options), want, strict=True
        ):
            assert torch.equal(ball.idx, idx)
            assert torch.equal(ball.counts, counts)


@pytest.mark.parametrize(("radii", "ks"), SCALES, ids=lambda value: str(len(value)))
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_scales_are_searches_of_one_radius(device, dtype, radii, ks):
    # Few and many queries; the last point of a tile, and one beyond
    for n, m in ((1537, 300), (3072, 4500 if "cuda" in str(device) else 100)):
        points = cloud(2, n, 3, device=device, dtype=dtype)
        queries = cloud(2, m, 3, device=device, dtype=dtype, seed=1)
        clouds = {
            "lengths": torch.tensor([n, 40], device=device),
            "query_lengths": torch.tensor([m - 5, 41], device=device),
        }
        for pad, closed in ((-1, True), ("first", False)):
            assert_scales(points, queries, radii, ks, pad, closed)
            assert_scales(points, queries, radii, ks, pad, closed, **clouds)
    packed = points.flatten(0, 1)
    offsets = torch.tensor([0, 700, 690, 4000], device=device)
    assert_scales(packed, None, radii, ks, offsets=offsets)


def test_scales_of_hard_clouds(device):
    for _, points in hard_clouds(1700, device):
        points[5] = math.nan
        points[6, 1] = math.inf
        for radii, ks in SCALES[1:]:
            assert_scales(points[None], points[None, -40:], radii, ks)
            assert_scales(points[None], points[None, :70], radii, ks, "first", True)


def test_scales_of_nothing(device):
    points, queries = cloud(2, 9, 3, device=device), cloud(2, 4, 3, device=device)
    for p, q in ((points[:, :0], queries), (points, queries[:, :0]), (points[:0], queries[:0])):
        assert_scales(p, q, (0.5, 1.0), (3, 2), "first")


def test_scales_errors(device):
    points = cloud(1, 9, 3, device=device)
    cases = (
        ((), (), "radii and ks must be 1 to 4 of each; got 0 and 0"),
        ((1.0,), (1, 2), "radii and ks must be 1 to 4 of each; got 1 and 2"),
        ((1.0,) * 5, (1,) * 5, "radii and ks must be 1 to 4 of each; got 5 and 5"),
        ((1.0, -1.0), (1, 2), "radius must not be negative; got -1"),
        ((1.0, 1.0), (1, 0), "k must be from 1 to 1024; got 0"),
    )
    for radii, ks, message in cases:
        with pytest.raises(RuntimeError, match=f"ball_query_scales: {message}"):
            P.ball_query_scales(points, None, radii, ks)
    with pytest.raises(ValueError, match="ball_query_scales: pad must be -1 or 'first'; got 0"):
        P.ball_query_scales(points, None, (1.0,), (1,), pad=0)
    with pytest.raises(TypeError, match="ball_query_scales: ks must be ints; got"):
        P.ball_query_scales(points, None, (1.0,), (1.5,))


def test_scales_compile(device):
    points = cloud(2, 300, 3, device=device)

    def search(points):
        found = P.ball_query_scales(points, None, (0.1, 0.3), (4, 9), pad="first")
        return [ball.idx for ball in found]

    compiled = torch.compile(search, fullgraph=True)
    for a, b in zip(compiled(points), search(points), strict=True):
        assert torch.equal(a, b)
