"""k-NN: values against the reference, ties, padding, hard clouds, gradients, the index."""

from __future__ import annotations

import math

import pytest
import torch

from fusedops import points as P
from fusedops.reference import neighbours as reference
from util import DTYPES, make, name

ALGORITHMS = ("brute", "grid")


def cloud(*shape, device, dtype=torch.float32, seed=0):
    """Uniform in the unit cube."""
    generator = torch.Generator(device).manual_seed(seed)
    return torch.rand(shape, generator=generator, device=device).to(dtype)


def assert_neighbours(result, points, queries, k, norm=2, rtol=1e-5, **clouds):
    """Distances are the reference's; indices are those distances' points, each once."""
    _, want = reference.knn(points.double(), queries.double(), k, norm, **clouds)
    scale = want[want.isfinite()].max().item() if want.isfinite().any() else 1.0
    torch.testing.assert_close(result.dist2.double(), want, rtol=rtol, atol=rtol * 1e-2 * scale)
    assert torch.equal(result.idx < 0, want.isinf())
    ordered = result.idx.sort(-1).values
    assert not ((ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] >= 0)).any()
    rows = points.double()[
        torch.arange(len(points), device=points.device)[:, None, None], result.idx.clamp_min(0)
    ]
    delta = queries.double().unsqueeze(-2) - rows
    dist = delta.abs().sum(-1) if norm == 1 else delta.square().sum(-1)
    dist = dist.masked_fill(result.idx < 0, math.inf)
    torch.testing.assert_close(dist, want, rtol=rtol, atol=rtol * 1e-2 * scale)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@pytest.mark.parametrize("dim", [1, 2, 3])
def test_matches_reference(device, dtype, dim, algorithm):
    points = cloud(2, 700, dim, device=device, dtype=dtype)
    queries = cloud(2, 90, dim, device=device, dtype=dtype, seed=1)
    for k in (1, 7, 8, 13, 16, 32, 33, 100):
        result = P.knn(points, queries, k, algorithm=algorithm)
        assert result.dist2.dtype is (torch.float64 if dtype is torch.float64 else torch.float32)
        assert_neighbours(result, points, queries, k)


@pytest.mark.parametrize("k", [1, 16, 32, 64])
def test_many_queries(device, k):
    """Enough of them for the kernels that serve several queries at once."""
    points = cloud(3, 2500, 3, device=device)
    queries = cloud(3, 3000, 3, device=device, seed=1)
    results = [P.knn(points, queries, k, algorithm=a) for a in ALGORITHMS]
    assert_neighbours(results[0], points, queries, k)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("dim", [4, 17, 33, 70])
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_more_coordinates(device, dtype, dim):
    points = cloud(2, 300, dim, device=device, dtype=dtype)
    queries = cloud(2, 50, dim, device=device, dtype=dtype, seed=1)
    for k in (5, 32, 40):
        assert_neighbours(P.knn(points, queries, k), points, queries, k)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=name)
@pytest.mark.parametrize("dim", [16, 20, 64, 131, 256])
def test_tensor_cores(dim, dtype):
    """Candidates are ranked by the distances of brute force: the results are the same bits."""
    points = make(2, 700, dim, dtype=dtype, device="cuda")
    queries = make(2, 150, dim, dtype=dtype, device="cuda", seed=1)
    lengths = torch.tensor([700, 19], device="cuda")
    query_lengths = torch.tensor([70, 150], device="cuda")
    for k in (1, 20, 32, 33, 128):
        if k == 128 and dim == 256 and dtype is not torch.bfloat16:
            continue  # more shared memory than there is
        for clouds in ({}, {"lengths": lengths, "query_lengths": query_lengths}):
            got = P.knn(points, queries, k, algorithm="tensor", **clouds)
            want = P.knn(points, queries, k, algorithm="brute", **clouds)
            assert torch.equal(got.idx, want.idx)
            assert torch.equal(got.dist2, want.dist2)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=name)
def test_tensor_cores_on_hard_features(dtype):
    def check(points):
        got = P.knn(points, None, 20, algorithm="tensor")
        want = P.knn(points, None, 20, algorithm="brute")
        assert torch.equal(got.idx, want.idx)
        assert torch.equal(got.dist2, want.dist2)

    x = make(1, 500, 64, dtype=dtype, device="cuda")
    check(torch.zeros_like(x))
    check(x[:, torch.arange(500, device="cuda") % 7])
    check(x * 1e-3 + 100)  # nothing but rounding errors is left of the products
    check(x * 1e19)  # squares overflow
    x[0, 3, 5], x[0, 9, 7] = math.nan, math.inf
    check(x)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_norm_1(device, algorithm):
    points, queries = cloud(2, 500, 3, device=device), cloud(2, 60, 3, device=device, seed=1)
    for k in (4, 40):
        result = P.knn(points, queries, k, norm=1, algorithm=algorithm)
        assert_neighbours(result, points, queries, k, norm=1)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("k", [1, 5, 32, 70])
def test_lengths(device, algorithm, k):
    points, queries = cloud(4, 300, 3, device=device), cloud(4, 50, 3, device=device, seed=1)
    lengths = torch.tensor([300, 3, 0, 33], device=device)
    query_lengths = torch.tensor([7, 50, 20, 0], device=device)
    clouds = {"lengths": lengths, "query_lengths": query_lengths}
    result = P.knn(points, queries, k, algorithm=algorithm, **clouds)
    assert_neighbours(result, points, queries, k, **clouds)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_packed_is_padded(device, algorithm):
    sizes, query_sizes = [130, 0, 1, 64, 400], [30, 5, 2, 0, 90]
    flat, wanted = cloud(595, 3, device=device), cloud(127, 3, device=device, seed=1)
    offsets = torch.tensor([0, 130, 130, 131, 195, 595], device=device)
    query_offsets = torch.tensor([0, 30, 35, 37, 37, 127], device=device)
    result = P.knn(
        flat, wanted, 9, offsets=offsets, query_offsets=query_offsets, algorithm=algorithm
    )
    assert result.idx.shape == (127, 9)
    starts = zip(offsets.tolist(), sizes, query_offsets.tolist(), query_sizes, strict=False)
    for start, size, query_start, query_size in starts:
        rows = slice(query_start, query_start + query_size)
        if not query_size:
            continue
        one = P.knn(flat[None, start : start + size], wanted[None, rows], 9, algorithm=algorithm)
        want = torch.where(one.idx[0] < 0, -1, one.idx[0] + start)
        assert torch.equal(result.idx[rows], want)
        assert torch.equal(result.dist2[rows], one.dist2[0])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("k", [1, 8, 20, 60])
def test_ties_go_to_the_lowest_index(device, algorithm, k):
    equal = torch.full((1, 3000, 3), 0.25, device=device)
    result = P.knn(equal, equal[:, :500], k, algorithm=algorithm)
    assert torch.equal(result.idx, torch.arange(k, device=device).expand(1, 500, k))
    assert torch.all(result.dist2 == 0)
    axis = torch.arange(8.0, device=device)
    lattice = torch.cartesian_prod(axis, axis, axis).repeat(2, 1)[None]
    result = P.knn(lattice, lattice, k, algorithm=algorithm)
    want, _ = reference.knn(lattice, lattice, k)
    assert torch.equal(result.idx, want)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_not_a_number_and_infinity(device, algorithm):
    points = cloud(1, 200, 3, device=device)
    points[0, 5, 1] = math.nan
    points[0, 17] = math.inf
    queries = cloud(1, 10, 3, device=device, seed=1)
    queries[0, 3, 2] = math.nan
    for k in (6, 50):
        result = P.knn(points, queries, k, algorithm=algorithm)
        assert not ((result.idx == 5) | (result.idx == 17)).any()
        assert torch.all(result.idx[0, 3] == -1)
        assert torch.all(result.dist2[0, 3] == math.inf)
        keep = [i for i in range(10) if i != 3]
        assert torch.all(result.idx[0, keep] >= 0)
    nothing = torch.full((1, 100, 3), math.nan, device=device)
    assert torch.all(P.knn(nothing, queries, 4, algorithm=algorithm).idx == -1)


def hard_clouds(n, device):
    """Shapes on which a uniform grid degenerates."""
    u = cloud(n, 3, device=device)
    normal = torch.randn(n, 3, generator=torch.Generator(device).manual_seed(2), device=device)
    scale = 10 ** -(6 * (torch.arange(n, device=device) % 7).float() / 7)[:, None]
    yield "plane", torch.cat([u[:, :2], torch.zeros_like(u[:, :1])], 1)
    yield "line", u[:, :1] * torch.tensor([[1.0, -2.0, 3.0]], device=device)
    yield "sphere", normal / normal.norm(dim=1, keepdim=True)
    yield "clusters", (u * 5).floor() + scale * normal
    yield "outlier", torch.cat([u[:-1], torch.full((1, 3), 1e6, device=device)])
    yield "far", u * 1e-3 + 1e3
    yield "large", (u - 0.5) * 1e6
    yield "small", (u - 0.5) * 1e-3
    yield "duplicates", u[torch.arange(n, device=device) % 17]


def test_hard_clouds(device):
    """Both algorithms compute the same distances: they agree to the last bit."""
    for what, points in hard_clouds(3000, device):
        for k in (5, 40):
            brute = P.knn(points[None], None, k, algorithm="brute")
            grid = P.knn(points[None], None, k, algorithm="grid")
            assert torch.equal(grid.idx, brute.idx), what
            assert torch.equal(grid.dist2, brute.dist2), what


def test_empty(device):
    for n, m, b in [(0, 5, 2), (5, 0, 2), (0, 0, 2), (5, 5, 0), (1, 1, 1)]:
        result = P.knn(torch.rand(b, n, 3, device=device), torch.rand(b, m, 3, device=device), 4)
        assert result.idx.shape == result.dist2.shape == (b, m, 4)
        assert torch.all(result.idx[..., min(n, 4) :] == -1)
        assert torch.all(result.dist2[..., min(n, 4) :] == math.inf)
    flat = P.knn(torch.rand(3, 0, 3, device=device), None, 2, algorithm="grid")
    assert flat.idx.shape == (3, 0, 2)
    wide = P.knn(torch.rand(1, 3, 0, device=device), None, 2)
    assert torch.equal(wide.idx, torch.tensor([[[0, 1]] * 3], device=device))


def test_large_k(device):
    points = cloud(1, 2000, 3, device=device)
    for algorithm in ALGORITHMS:
        for k in (129, 512, 1024):
            assert_neighbours(
                P.knn(points, points[:, :20], k, algorithm=algorithm), points, points[:, :20], k
            )


def test_strides_and_grid_index(device):
    points = cloud(2, 3, 600, device=device).transpose(1, 2)
    queries = cloud(2, 80, 6, device=device, seed=1)[..., ::2]
    want = P.knn(points.contiguous(), queries.contiguous(), 5, algorithm="brute")
    index = P.GridIndex(points)
    for result in (P.knn(points, queries, 5, algorithm="grid"), index.knn(queries, 5)):
        assert torch.equal(result.idx, want.idx)
        assert torch.equal(result.dist2, want.dist2)
    assert torch.equal(index.knn(None, 3).idx, P.knn(points, None, 3, algorithm="brute").idx)
    assert P.knn(points, queries, 5, return_dist=False).dist2 is None


@pytest.mark.parametrize("norm", [2, 1])
@pytest.mark.parametrize("packed", [False, True])
def test_gradients(device, norm, packed):
    points = cloud(2, 40, 3, device=device, dtype=torch.float64).requires_grad_()
    queries = cloud(2, 12, 3, device=device, dtype=torch.float64, seed=1).requires_grad_()

    def flat(tensor):
        return tensor.flatten(0, 1) if packed else tensor

    def offsets(count):
        return torch.tensor([0, count, 2 * count], device=device) if packed else None

    clouds = {"offsets": offsets(40), "query_offsets": offsets(12)} if packed else {}

    def ours(p, q):
        return P.knn(flat(p), flat(q), 5, norm=norm, **clouds).dist2.reshape(2, 12, 5)

    def plain(p, q):
        return reference.knn(p, q, 5, norm)[1]

    weights = cloud(2, 12, 5, device=device, dtype=torch.float64, seed=3)
    got = torch.autograd.grad((ours(points, queries) * weights).sum(), (points, queries))
    want = torch.autograd.grad((plain(points, queries) * weights).sum(), (points, queries))
    torch.testing.assert_close(got, want)
    if norm == 2:
        small = tuple(t.detach()[:, :6].clone().requires_grad_() for t in (points, queries))
        few = {"offsets": offsets(6), "query_offsets": offsets(6)} if packed else {}
        torch.autograd.gradgradcheck(lambda p, q: P.knn(flat(p), flat(q), 3, **few).dist2, small)


def test_gradient_of_padding_and_of_half(device):
    points = cloud(1, 3, 3, device=device, dtype=torch.float16).requires_grad_()
    dist = P.knn(points, None, 5).dist2
    dist.masked_fill(dist.isinf(), 0).sum().backward()
    exact = points.detach().double().requires_grad_()
    pairs = reference.pair_distances(exact[0], exact[0])
    pairs.sum().backward()
    torch.testing.assert_close(points.grad.double(), exact.grad, rtol=1e-2, atol=1e-2)
    assert points.grad.dtype is torch.float16
    idx = P.knn(points, None, 2, return_dist=False).idx
    assert not idx.requires_grad


def test_errors(device):
    x = torch.rand(2, 10, 3, device=device)
    with pytest.raises(TypeError, match="knn: points must be a Tensor; got int"):
        P.knn(3, x, 2)
    with pytest.raises(ValueError, match=r"knn: algorithm must be one of .*; got 'tree'"):
        P.knn(x, x, 2, algorithm="tree")
    cases = [
        ((x, x, 0), {}, "k must be from 1 to 1024; got 0"),
        ((x, x, 1025), {}, "k must be from 1 to 1024; got 1025"),
        ((x, x, 2), {"norm": 3}, "norm must be 1 or 2; got 3"),
        ((x, x[..., :2], 2), {}, "queries must have D = 3 like points; got D = 2"),
        ((x, x[:1], 2), {}, r"queries must have 2 cloud\(s\) like points; got 1"),
        ((x, x.double(), 2), {}, "queries must have dtype float32 like points; got float64"),
        ((x.repeat(1, 1, 2), None, 2), {"algorithm": "grid"}, "points must have 1 to 3 coord"),
    ]
    for arguments, options, text in cases:
        for to in (device, "meta"):
            moved = [a.to(to) if isinstance(a, torch.Tensor) else a for a in arguments]
            with pytest.raises(RuntimeError, match=f"^knn: {text}"):
                P.knn(*moved, **options)
    for to in (device, "meta"):
        with pytest.raises(RuntimeError, match="knn: algorithm tensor needs 16 to 512 coordinates"):
            P.knn(x.to(to), None, 2, algorithm="tensor")
    with pytest.raises(RuntimeError, match="knn: grid must be what point_grid made of points"):
        torch.ops.fusedops.knn(x, x, None, None, None, None, x.to(torch.uint8).flatten(), 2, 2, 0)


def test_compiles(device):
    @torch.compile(fullgraph=True, backend="aot_eager")
    def step(points, queries):
        return P.knn(points, queries, 4).dist2.sum()

    points, queries = cloud(1, 60, 3, device=device), cloud(1, 9, 3, device=device, seed=1)
    points.requires_grad_()
    step(points, queries).backward()
    got, points.grad = points.grad, None
    P.knn(points, queries, 4).dist2.sum().backward()
    torch.testing.assert_close(got, points.grad)


@pytest.mark.gpu
@pytest.mark.slow
def test_five_million_points():
    points = cloud(1, 5_000_000, 3, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = P.knn(points, None, 4)
    outputs = 5_000_000 * 4 * 12
    assert torch.cuda.max_memory_allocated() - before - outputs < 5_000_000 * 80
    sample = torch.arange(0, 5_000_000, 500_000, device="cuda")
    exact = P.knn(points, points[:, sample], 4, algorithm="brute")
    assert torch.equal(result.idx[:, sample], exact.idx)


def test_queries_of_none_take_no_sizes(device):
    points, one = cloud(1, 5, 3, device=device), torch.tensor([1], device=device)
    index = P.GridIndex(points)
    calls = (
        lambda **sizes: P.knn(points, None, 2, **sizes),
        lambda **sizes: P.ball_query(points, None, 1.0, 2, **sizes),
        lambda **sizes: P.radius_search(points, None, 1.0, **sizes),
        lambda **sizes: index.knn(None, 2, **sizes),
        lambda **sizes: index.ball_query(None, 1.0, 2, **sizes),
    )
    for call in calls:
        for argument in ("query_lengths", "query_offsets"):
            with pytest.raises(ValueError, match=f"{argument} must be None where queries is None"):
                call(**{argument: one})


def test_infinite_queries_on_the_cpu():
    """A box that reaches infinity is no reason to leave its points out."""
    inf = math.inf
    points = torch.tensor([[[0.0, 0.0], [1.0, 1.0], [inf, 0.0], [0.0, inf], [3.0, 3.0]]])
    queries = torch.tensor([[[inf, inf], [inf, 0.0], [0.0, -inf]]])
    brute = P.knn(points, queries, 3, algorithm="brute")
    grid = P.knn(points, queries, 3, algorithm="grid")
    assert torch.equal(brute.idx, grid.idx)
    assert (brute.idx >= 0).all()
