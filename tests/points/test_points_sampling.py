"""Furthest point sampling: the same indices as the definition, in every regime and on every input.

Results are compared exactly: distances are rounded alike everywhere.
"""

from __future__ import annotations

import math

import pytest
import torch

import fusedops
from fusedops.points import farthest_point_sample
from util import DTYPES, generator, name

reference = fusedops.reference.farthest_point_sample


def cloud(n, dim=3, device="cpu", dtype=torch.float32, seed=0, scale=1.0):
    """Uniform points in a cube around the origin."""
    values = torch.rand(n, dim, generator=generator("cpu", seed), dtype=torch.float64) - 0.5
    return (values * scale).to(device=device, dtype=dtype)


def expect(points, n, lengths=None, start=0):
    """The definition, cloud by cloud, on the CPU."""
    rows = []
    for b, x in enumerate(points.cpu()):
        length = x.shape[0] if lengths is None else int(lengths[b])
        found = reference(x[:length], n, start)
        rows.append(torch.cat([found, found.new_full((n - found.numel(),), -1)]))
    return torch.stack(rows)


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@pytest.mark.parametrize("dim", [1, 2, 3, 4, 7])
def test_matches_the_definition(device, dtype, dim):
    points = torch.stack([cloud(300, dim, device, dtype, seed) for seed in range(3)])
    for n in (1, 2, 77, 300):
        got = farthest_point_sample(points, n)
        assert got.dtype == torch.int64
        assert torch.equal(got.cpu(), expect(points, n))


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6, 1e15])
def test_scales_and_offsets(device, scale):
    for shift in (0.0, -3.0, 100.0):
        points = (cloud(500, device=device, scale=scale) + shift * scale)[None]
        assert torch.equal(farthest_point_sample(points, 200).cpu(), expect(points, 200))


# Sizes around every change of kernel on a GPU; few samples, the definition is slow.
@pytest.mark.parametrize(
    "n_points",
    [
        *(1, 2, 255, 256, 257, 512, 513, 1024, 1025, 2048, 2049, 3072, 3073, 4097, 8191, 12289),
        *(16385, 40000, 70000, 131073),
    ],
)
def test_every_regime(device, n_points):
    points = cloud(n_points, device=device)[None]
    assert torch.equal(farthest_point_sample(points, 50).cpu(), expect(points, 50))


@pytest.mark.gpu
@pytest.mark.parametrize("batch", [1, 3, 16, 40, 150])
@pytest.mark.parametrize("n_points", [100, 2048, 5000, 20000])
def test_batches_on_the_gpu_equal_those_on_the_cpu(batch, n_points):
    points = torch.stack([cloud(n_points, seed=seed) for seed in range(batch)])
    lengths = torch.randint(0, n_points + 1, (batch,), generator=generator("cpu"))
    got = farthest_point_sample(points.cuda(), 40, lengths.cuda())
    assert torch.equal(got.cpu(), farthest_point_sample(points, 40, lengths))


@pytest.mark.gpu
@pytest.mark.parametrize("n_points", [200_000, 1_000_000, 2_000_000, 5_000_000])
def test_large_clouds_on_the_gpu_equal_those_on_the_cpu(n_points):
    points = torch.rand(1, n_points, 3, generator=generator("cpu"))
    got = farthest_point_sample(points.cuda(), 100, start=7)
    assert torch.equal(got.cpu(), farthest_point_sample(points, 100, start=7))
    assert got.min() >= 0


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@pytest.mark.parametrize(("n_points", "dim"), [(3000, 16), (50000, 6), (500, 1500), (60, 5000)])
def test_many_dimensions_on_the_gpu_equal_those_on_the_cpu(dtype, n_points, dim):
    points = torch.stack([cloud(n_points, dim, dtype=dtype, seed=seed) for seed in range(2)])
    got = farthest_point_sample(points.cuda(), 60)
    assert torch.equal(got.cpu(), farthest_point_sample(points, 60))


@pytest.mark.gpu
def test_large_batches_of_large_clouds():
    points = torch.rand(9, 120_000, 3, generator=generator("cpu"))
    got = farthest_point_sample(points.cuda(), 30)
    assert torch.equal(got.cpu(), farthest_point_sample(points, 30))


@pytest.mark.parametrize("n_points", [40, 400, 1000, 2000, 3000, 20000])
def test_ties_take_the_lowest_index_and_indices_differ(device, n_points):
    grid = torch.randint(0, 3, (1, n_points, 3), generator=generator("cpu")).float().to(device)
    got = farthest_point_sample(grid, min(n_points, 200))
    assert torch.equal(got.cpu(), expect(grid, min(n_points, 200)))
    assert got.unique().numel() == got.numel()


@pytest.mark.parametrize("n_points", [1, 33, 400, 700, 1500, 2500, 9000])
def test_equal_points_come_in_order(device, n_points):
    points = torch.full((2, n_points, 3), -2.5, device=device)
    count = min(n_points, 400)
    assert torch.equal(farthest_point_sample(points, count)[1].cpu(), torch.arange(count))


@pytest.mark.parametrize("n_points", [64, 400, 1000, 2000, 3000, 5000])
def test_nan_and_infinite_points(device, n_points):
    points = cloud(n_points)
    points[5, 1] = math.nan
    points[11] = math.nan
    points[20, 2] = math.inf
    points[21, 0] = -math.inf
    points[22] = math.inf
    points = points.to(device)[None]
    n = min(n_points, 300)
    for start in (0, 5, 20):
        got = farthest_point_sample(points, n, start=start)
        assert torch.equal(got.cpu(), expect(points, n, start=start))
        assert got.unique().numel() == n
    everything = farthest_point_sample(points[:, :64], 64)[0].cpu()
    assert everything[-2:].tolist() == [5, 11]
    nothing = torch.full((1, 10, 3), math.nan, device=device)
    assert farthest_point_sample(nothing, 10, start=3)[0].tolist() == [3, 0, 1, 2, *range(4, 10)]


def test_one_sample_is_the_start(device):
    points = torch.stack([cloud(3000, device=device, seed=seed) for seed in range(4)])
    lengths = torch.tensor([3000, 0, 1, 40], device=device)
    start = torch.tensor([17, 0, 0, 39], device=device)
    got = farthest_point_sample(points, 1, lengths, start=start)
    assert got.tolist() == [[17], [-1], [0], [39]]
    assert farthest_point_sample(points, 1).tolist() == [[0]] * 4


@pytest.mark.parametrize("start", [0, 13])
def test_samples_in_the_order_they_came_are_their_own_samples(device, start):
    """What `fusedops.models.searches` builds on: ties, NaN and infinities included."""
    points = torch.randint(0, 4, (3, 400, 3), generator=generator("cpu")).float()
    points[1] = cloud(400)
    points[2, 7], points[2, 9, 1], points[2, 30] = math.nan, math.inf, -math.inf
    lengths = torch.tensor([400, 50, 390], device=device)
    points = points.to(device)
    first = farthest_point_sample(points, 120, lengths, start=start)
    samples = points.gather(1, first.clamp(min=0)[..., None].expand(-1, -1, 3))
    counts = lengths.clamp(max=120)
    again = farthest_point_sample(samples, 70, counts)
    want = torch.arange(70, device=device).expand(3, -1)
    assert torch.equal(again, torch.where(want < counts[:, None], want, -1))


def test_lengths(device):
    points = torch.stack([cloud(50, device=device, seed=seed) for seed in range(6)])
    lengths = torch.tensor([50, 0, 1, 13, 49, 20], device=device)
    points[2, 1:] = math.nan  # what lies beyond a cloud's length is never read
    got = farthest_point_sample(points, 20, lengths)
    assert torch.equal(got.cpu(), expect(points, 20, lengths))
    assert (got[1] == -1).all()
    assert got[2].tolist() == [0] + [-1] * 19


def test_lengths_outside_the_tensor_are_clamped(device):
    points = torch.stack([cloud(50, device=device, seed=seed) for seed in range(3)])
    lengths = torch.tensor([1000, -5, 2**62], device=device)
    got = farthest_point_sample(points, 5, lengths)
    assert torch.equal(got.cpu(), expect(points, 5, [50, 0, 50]))


def test_more_samples_than_points(device):
    points = cloud(10, device=device)[None]
    got = farthest_point_sample(points, 25)[0].cpu()
    assert sorted(got[:10].tolist()) == list(range(10))
    assert (got[10:] == -1).all()


def test_a_number_of_samples_for_each_cloud(device):
    points = torch.stack([cloud(30, device=device, seed=seed) for seed in range(3)])
    got = farthest_point_sample(points, torch.tensor([3, 0, 12], device=device)).cpu()
    whole = expect(points, 12)
    assert got.shape == (3, 12)
    assert torch.equal(got[2], whole[2])
    assert torch.equal(got[0], torch.cat([whole[0, :3], torch.full((9,), -1)]))
    assert (got[1] == -1).all()


def test_start(device):
    points = torch.stack([cloud(30, device=device, seed=seed) for seed in range(3)])
    assert torch.equal(farthest_point_sample(points, 8, start=4).cpu(), expect(points, 8, start=4))
    starts = torch.tensor([1, 29, 2**40], device=device)
    got = farthest_point_sample(points, 8, start=starts).cpu()
    for b, start in enumerate([1, 29, 29]):
        assert torch.equal(got[b], expect(points, 8, start=start)[b])
    lengths = torch.tensor([30, 1, 7], device=device)
    drawn = torch.stack(
        [farthest_point_sample(points, 1, lengths, "random")[:, 0].cpu() for _ in range(100)]
    )
    assert (drawn >= 0).all()
    assert (drawn < lengths.cpu()).all()
    assert drawn[:, 2].unique().numel() == 7
    torch.manual_seed(3)
    first = farthest_point_sample(points, 5, start="random")
    torch.manual_seed(3)
    assert torch.equal(first, farthest_point_sample(points, 5, start="random"))


def test_packed_is_padded_without_the_padding(device):
    sizes = [40, 0, 1, 700, 13]
    parts = [cloud(size, device=device, seed=seed) for seed, size in enumerate(sizes)]
    offsets = torch.tensor([0, *torch.tensor(sizes).cumsum(0)], device=device)
    for n in (5, torch.tensor([2, 3, 4, 50, 0], device=device)):
        indices, out_offsets = farthest_point_sample(torch.cat(parts), n, offsets=offsets, start=2)
        edges = out_offsets.tolist()
        assert edges[-1] == indices.numel()
        for b, part in enumerate(parts):
            count = n if isinstance(n, int) else int(n[b])
            expected = reference(part.cpu(), count, 2) + int(offsets[b])
            assert torch.equal(indices[edges[b] : edges[b + 1]].cpu(), expected)


def test_empty(device):
    for shape, n in [((0, 5, 3), 4), ((2, 0, 3), 4), ((2, 5, 3), 0), ((0, 0, 3), 0)]:
        got = farthest_point_sample(torch.empty(shape, device=device), n)
        assert got.shape == (shape[0], n)
        assert (got == -1).all()
    nothing = torch.empty(0, 3, device=device)
    for offsets in ([0], [0, 0, 0]):
        indices, edges = farthest_point_sample(
            nothing, 3, offsets=torch.tensor(offsets, device=device)
        )
        assert indices.numel() == 0
        assert edges.tolist() == offsets
    without_dims = torch.empty(1, 6, 0, device=device)
    assert farthest_point_sample(without_dims, 4)[0].tolist() == [0, 1, 2, 3]


def test_strided_points(device):
    points = cloud(60, 6, device)[None]
    for view in (
        points[:, ::2, 1::2],
        points[..., :3].flip(1),
        points.mT[:, :, :3].contiguous().mT,
    ):
        assert torch.equal(farthest_point_sample(view, 9).cpu(), expect(view, 9))


def test_points_that_require_grad_and_autocast(device):
    points = cloud(60, device=device)[None].requires_grad_()
    with torch.autocast(device, dtype=torch.bfloat16):
        got = farthest_point_sample(points, 9)
    assert not got.requires_grad
    assert torch.equal(got.cpu(), expect(points.detach(), 9))


def test_compiles_without_a_graph_break(device):
    points = torch.stack([cloud(60, device=device, seed=seed) for seed in range(2)])
    lengths = torch.tensor([60, 31], device=device)
    compiled = torch.compile(
        lambda x, m: farthest_point_sample(x, 9, m, 3) + 1, fullgraph=True, backend="aot_eager"
    )
    assert torch.equal(compiled(points, lengths).cpu(), expect(points, 9, lengths, 3) + 1)


@pytest.mark.parametrize("to", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu), "meta"])
def test_errors(to):
    def check(text, points=(2, 5, 3), dtype=torch.float32, n=2, **options):
        with pytest.raises(RuntimeError, match=f"^farthest_point_sample: {text}$"):
            farthest_point_sample(torch.ones(points, dtype=dtype, device=to), n, **options)

    def index(*values, dtype=torch.int64, device=to):
        return torch.tensor(values, dtype=dtype, device=device)

    check("points must be float16, bfloat16, float32 or float64; got int32", dtype=torch.int32)
    check(r"points must be 3-dimensional, \(B, N, D\); got shape \(5, 3\)", (5, 3))
    check(r"lengths must have shape \(2,\); got \(3,\)", lengths=index(1, 2, 3))
    check("lengths must have dtype int64; got int32", lengths=index(1, 2, dtype=torch.int32))
    check(r"start must have shape \(2,\); got \(1,\)", start=index(1))
    check("n must be >= 0; got -1", n=-1)
    check("n must be >= 0; got -1", (5, 3), n=-1, offsets=index(0, 5))
    check(r"n must have shape \(2,\); got \(1,\)", n=index(3))
    check(r"n must have shape \(2,\); got \(\)", n=index(3)[0])
    check(r"n must have shape \(1,\); got \(2,\)", (5, 3), n=index(3, 3), offsets=index(0, 5))
    if to != "cpu":
        where = "cuda:0" if to == "cuda" else to
        check(f"lengths must be on {where} like points; got cpu", lengths=index(1, 2, device="cpu"))
    with pytest.raises(TypeError, match="points must be a Tensor; got list"):
        farthest_point_sample([1.0], 1)
    with pytest.raises(TypeError, match="lengths must be a Tensor or None; got list"):
        farthest_point_sample(torch.ones(1, 1, 3, device=to), 1, [1])
    for truncated in ({"n": 2.9}, {"n": 1, "start": 1.9}):
        with pytest.raises(TypeError, match=r"must be an int or a Tensor; got [12]\.9$"):
            farthest_point_sample(torch.ones(1, 5, 3, device=to), **truncated)
    for bad in (-1, "first"):
        with pytest.raises(ValueError, match="start must be"):
            farthest_point_sample(torch.ones(1, 1, 3, device=to), 1, start=bad)
    if to != "meta":  # the packed form reads a size
        one = {"offsets": index(0, 5)}
        check("lengths must be None where offsets is given; got a tensor", lengths=index(1), **one)
        check(r"points must be 2-dimensional, \(P, D\); got shape \(1, 5, 3\)", (1, 5, 3), **one)


@pytest.mark.gpu
def test_packed_without_synchronisation_in_a_graph():
    """The op itself takes the offsets of its result, and can then be captured."""
    points, offsets = cloud(50, device="cuda"), torch.tensor([0, 30, 50], device="cuda")
    out_offsets = torch.tensor([0, 10, 16], device="cuda")
    op = torch.ops.fusedops.farthest_point_sample
    expected = op(points, None, offsets, None, out_offsets, 16, 50)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = op(points, None, offsets, None, out_offsets, 16, 50)
    got.zero_()
    graph.replay()
    assert torch.equal(got, expected)


@pytest.mark.gpu
@pytest.mark.slow
def test_more_than_2_31_elements():
    points = torch.rand(360, 2_000_000, 3, device="cuda", dtype=torch.float16)
    got = farthest_point_sample(points, 20)
    for b in (0, 359):
        alone = farthest_point_sample(points[b : b + 1], 20)
        assert torch.equal(got[b : b + 1], alone)
    assert got.max() > 1_000_000


def test_ranks_without_points(device):
    """More teams of a grid than there are points left for them."""
    points = torch.zeros(1, 4096, 64, device=device)
    assert farthest_point_sample(points, 100)[0].tolist() == list(range(100))
