"""fusedops.compat.pytorch3d against PyTorch3D's semantics, written out in torch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fusedops.compat.pytorch3d import (
    ball_query,
    chamfer_distance,
    knn_gather,
    knn_points,
    sample_farthest_points,
)

N, P1, P2, D = 3, 11, 14, 3


def clouds(device, dtype=torch.float64, grad=False):
    generator = torch.Generator().manual_seed(0)
    pair = [torch.randn(N, p, D, generator=generator).to(device, dtype) for p in (P1, P2)]
    return [cloud.requires_grad_(grad) for cloud in pair]


def sizes(device):
    return torch.tensor([11, 4, 0], device=device), torch.tensor([14, 2, 5], device=device)


def plain_knn(p1, p2, lengths1, lengths2, K, norm=2):
    """Loops over the points: 0 wherever there is no neighbour."""
    dists = []
    idx = torch.zeros(N, p1.shape[1], K, dtype=torch.int64, device=p1.device)
    for n in range(N):
        for i in range(p1.shape[1]):
            row = p1.new_zeros(K)
            count = min(K, int(lengths2[n])) if i < lengths1[n] else 0
            if count:
                delta = p1[n, i] - p2[n, : lengths2[n]]
                every = delta.abs().sum(-1) if norm == 1 else delta.square().sum(-1)
                values, order = every.sort(stable=True)
                row = torch.cat([values[:count], row[count:]])
                idx[n, i, :count] = order[:count]
            dists.append(row)
    return torch.stack(dists).reshape(N, -1, K), idx


def gradients(loss, *inputs):
    return torch.autograd.grad(loss, inputs)


@pytest.mark.parametrize("K", [1, 3, 20])
def test_knn_points_not_sorted(device, K):
    """The same neighbours, farthest first: PyTorch3D's own test asks that the order differs."""
    p1, p2 = clouds(device)
    lengths = sizes(device)
    near = knn_points(p1, p2, *lengths, K=K)
    far = knn_points(p1, p2, *lengths, K=K, return_nn=True, return_sorted=False)
    for n in range(N):
        count = min(K, int(lengths[1][n]))
        for a, b in ((near.dists, far.dists), (near.idx, far.idx)):
            assert torch.equal(a[n, :, :count].flip(-1), b[n, :, :count])
            assert torch.equal(a[n, :, count:], b[n, :, count:])
    assert torch.equal(far.knn, knn_gather(p2, far.idx, lengths[1]))


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("K", [1, 3, 14, 20])
def test_knn_points(device, K, norm):
    p1, p2 = clouds(device, grad=True)
    full = torch.full((N,), P1, device=device), torch.full((N,), P2, device=device)
    for lengths in (full, sizes(device)):
        given = lengths if lengths is not full else (None, None)
        out = knn_points(p1, p2, *given, norm=norm, K=K, return_nn=True)
        dists, idx = plain_knn(p1, p2, *lengths, K, norm)
        assert torch.equal(out.idx, idx)
        torch.testing.assert_close(out.dists, dists)
        used = torch.arange(K, device=device) < lengths[1][:, None, None]
        want = p2[torch.arange(N, device=device)[:, None, None], idx]
        assert torch.equal(out.knn, want * used[..., None])
        weight = torch.randn_like(dists)
        torch.testing.assert_close(
            gradients((out.dists * weight).sum(), p1, p2),
            gradients((dists * weight).sum(), p1, p2),
        )


def test_knn_points_ties_and_types(device):
    p2 = torch.zeros(1, 5, 2, device=device)
    out = knn_points(torch.ones(1, 2, 2, device=device), p2, K=3)
    assert out.idx.tolist() == [[[0, 1, 2]] * 2]
    assert out.dists.tolist() == [[[2.0] * 3] * 2]
    assert out.knn is None
    assert out.idx.dtype is torch.int64
    dists, idx, _ = knn_points(p2[:, :0], p2, K=2)
    assert dists.shape == idx.shape == (1, 0, 2)
    dists, idx, _ = knn_points(p2, p2[:, :0], K=2)
    assert not dists.any()
    assert not idx.any()


def test_knn_gather(device):
    _, lengths = sizes(device)
    x = torch.randn(N, P2, 4, device=device, dtype=torch.float64, requires_grad=True)
    idx = torch.randint(0, P2, (N, 6, 5), device=device)
    want = x[torch.arange(N, device=device)[:, None, None], idx]
    assert torch.equal(knn_gather(x, idx), want)
    mask = torch.arange(5, device=device) < lengths[:, None, None]
    want = want * mask[..., None]
    out = knn_gather(x, idx, lengths)
    assert torch.equal(out, want)
    weight = torch.randn_like(want)
    torch.testing.assert_close(
        gradients((out * weight).sum(), x), gradients((want * weight).sum(), x)
    )
    whole = (x.detach() * 10).long()
    want = whole[torch.arange(N, device=device)[:, None, None], idx] * mask[..., None]
    assert torch.equal(knn_gather(whole, idx, lengths), want)
    assert not knn_gather(x, torch.full_like(idx, -1)).any()  # what ball_query pads with


@pytest.mark.parametrize("K", [1, 4, 20])
def test_ball_query(device, K):
    p1, p2 = clouds(device, grad=True)
    lengths1, lengths2 = sizes(device)
    out = ball_query(p1, p2, lengths1, lengths2, K=K, radius=1.5)
    idx = torch.full((N, P1, K), -1, device=device)
    for n in range(N):
        for i in range(int(lengths1[n])):
            dist2 = (p1[n, i] - p2[n, : lengths2[n]]).square().sum(-1)
            found = (dist2 < 1.5**2).nonzero()[:K, 0]
            idx[n, i, : len(found)] = found
    assert (idx >= 0).any()
    assert torch.equal(out.idx, idx)
    rows = p2[torch.arange(N, device=device)[:, None, None], idx.clamp_min(0)]
    used = idx >= 0
    assert torch.equal(out.knn, rows * used[..., None])
    dists = (p1[:, :, None] - rows).square().sum(-1) * used
    torch.testing.assert_close(out.dists, dists)
    torch.testing.assert_close(gradients(out.dists.sum(), p1, p2), gradients(dists.sum(), p1, p2))


def test_ball_query_is_open(device):
    line = torch.arange(4.0, device=device)[None, :, None]
    out = ball_query(line[:, :1], line, K=4, radius=2.0, return_nn=False)
    assert out.idx.tolist() == [[[0, 1, -1, -1]]]
    assert out.knn is None


def plain_fps(cloud, count):
    chosen, nearest = [0], torch.full((len(cloud),), torch.inf, device=cloud.device)
    while len(chosen) < min(count, len(cloud)):
        nearest = torch.minimum(nearest, (cloud - cloud[chosen[-1]]).square().sum(-1))
        chosen.append(int(nearest.argmax()))
    return chosen


@pytest.mark.parametrize(
    "K", [4, [2, 6, 3], torch.tensor([5, 1, 6])], ids=["int", "list", "tensor"]
)
def test_sample_farthest_points(device, K):
    points = torch.randn(N, 20, 5, device=device, requires_grad=True)
    lengths = torch.tensor([20, 3, 7], device=device)
    K = K.to(device) if isinstance(K, torch.Tensor) else K
    counts = [K] * N if isinstance(K, int) else [int(k) for k in K]
    chosen, idx = sample_farthest_points(points, lengths, K)
    want = torch.full((N, max(counts)), -1, device=device)
    for n, count in enumerate(counts):
        row = plain_fps(points[n, : lengths[n]].detach(), count)
        want[n, : len(row)] = torch.tensor(row, device=device)
    assert torch.equal(idx, want)
    rows = points[torch.arange(N, device=device)[:, None], want.clamp_min(0)]
    rows = rows * (want >= 0)[..., None]
    assert torch.equal(chosen, rows)
    torch.testing.assert_close(gradients(chosen.sum(), points), gradients(rows.sum(), points))


def test_sample_farthest_points_random_start(device):
    points = torch.randn(50, 40, 3, device=device, dtype=torch.float64)
    chosen, idx = sample_farthest_points(points, K=3, random_start_point=True)
    assert chosen.dtype is torch.float32
    assert len(idx[:, 0].unique()) > 5
    assert int(idx.min()) >= 0


def plain_chamfer(x, y, lengths, normals, norm, absolute):
    """Per point, both ways: losses and losses of the normals."""
    losses, of_normals = [], []
    for (a, b), (m, n), (u, v) in (
        ((x, y), lengths, normals),
        ((y, x), lengths[::-1], normals[::-1]),
    ):
        dists, idx = plain_knn(a, b, m, n, 1, norm)
        near = v[torch.arange(N, device=x.device)[:, None], idx[..., 0]]
        near = near * (n > 0)[:, None, None]
        cosine = F.cosine_similarity(u, near, dim=2, eps=1e-6)
        inside = torch.arange(a.shape[1], device=x.device) < m[:, None]
        losses.append(dists[..., 0])
        of_normals.append((1 - (cosine.abs() if absolute else cosine)) * inside)
    return losses, of_normals


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("batch", ["mean", "sum", None])
@pytest.mark.parametrize("point", ["mean", "sum"])
@pytest.mark.parametrize("single", [False, True])
def test_chamfer(device, point, batch, norm, single):
    x, y = clouds(device, grad=True)
    normals = [F.normalize(cloud.detach() + 1, dim=-1) for cloud in (x, y)]
    lengths = sizes(device)
    weights = torch.tensor([0.5, 2.0, 1.0], device=device, dtype=torch.float64)
    got = chamfer_distance(
        x, y, *lengths, *normals, weights, batch, point, norm, single, abs_cosine=single
    )
    parts = plain_chamfer(x, y, lengths, normals, norm, single)
    for result, both in zip(got, parts, strict=True):
        want = 0
        for part, length in list(zip(both, lengths, strict=True))[: 1 if single else 2]:
            total = part.sum(1) * weights
            want = want + (total / length.clamp_min(1) if point == "mean" else total)
        if batch is not None:
            want = want.sum() / (weights.sum() if batch == "mean" else 1)
        torch.testing.assert_close(result, want)
        if result is got[0]:
            used = (x,) if single else (x, y)
            torch.testing.assert_close(gradients(result.sum(), *used), gradients(want.sum(), *used))


def test_chamfer_without_point_reduction(device):
    x, y = clouds(device)
    full = torch.full((N,), P1, device=device), torch.full((N,), P2, device=device)
    (there, back), normals = plain_chamfer(x, y, full, [x, y], 2, True)
    loss, loss_normals = chamfer_distance(
        x, y, x_normals=x, y_normals=y, batch_reduction=None, point_reduction=None
    )
    torch.testing.assert_close(loss, (there, back))
    torch.testing.assert_close(loss_normals, tuple(normals))
    loss, loss_normals = chamfer_distance(x, y, batch_reduction=None, point_reduction="max")
    torch.testing.assert_close(loss, torch.maximum(there.amax(1), back.amax(1)))
    assert loss_normals is None


def test_chamfer_of_nothing(device):
    x, y = clouds(device, grad=True)
    zero = torch.zeros(N, device=device)
    for batch, shape in (("mean", ()), (None, (N, N))):
        for loss in chamfer_distance(x, y, weights=zero, batch_reduction=batch):
            assert loss.shape == shape
            assert loss.requires_grad
            assert not loss.any()
    empty = torch.zeros(2, 0, 3, device=device)
    assert chamfer_distance(empty, torch.ones(2, 4, 3, device=device))[0].item() == 0
    assert chamfer_distance(empty[:0], empty[:0])[0].item() == 0


class Pointclouds:
    """The three methods that chamfer_distance calls."""

    def __init__(self, points, lengths):
        self.points, self.lengths = points, lengths

    def points_padded(self):
        return self.points

    def num_points_per_cloud(self):
        return self.lengths

    def normals_padded(self):
        return None


def test_chamfer_of_pointclouds(device):
    x, y = clouds(device)
    a, b = sizes(device)
    got = chamfer_distance(Pointclouds(x, a), Pointclouds(y, b))
    assert torch.equal(got[0], chamfer_distance(x, y, a, b)[0])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: knn_points(p, p[:1]), "same batch dimension"),
        (lambda p: knn_points(p, p[..., :2]), "same point dimension"),
        (lambda p: knn_points(p, p, norm=3), "Support for 1 or 2 norm"),
        (lambda p: ball_query(p, p[:1]), "same batch dimension"),
        (lambda p: knn_gather(p, torch.zeros(1, 2, 2).long()), "must have same batch"),
        (lambda p: sample_farthest_points(p, K=[1, 2]), "K and points must have"),
        (lambda p: sample_farthest_points(p, torch.tensor([1])), "points and lengths must have"),
        (lambda p: sample_farthest_points(p, torch.tensor([1, 2, 99])), "too large"),
        (lambda p: chamfer_distance(p, p[:1]), "correct shape"),
        (lambda p: chamfer_distance(p, p, norm=3), "Support for 1 or 2 norm"),
        (lambda p: chamfer_distance(p, p, batch_reduction="max"), "batch_reduction must be"),
        (lambda p: chamfer_distance(p, p, point_reduction="min"), "point_reduction must be"),
        (lambda p: chamfer_distance(p, p, point_reduction=None), "Batch reduction must be None"),
        (lambda p: chamfer_distance(p, p, weights=torch.ones(2)), "weights must be of shape"),
        (lambda p: chamfer_distance(p, p, weights=-torch.ones(3)), "weights cannot be negative"),
        (lambda p: chamfer_distance([1], p), "Pointclouds objects or torch.Tensor"),
        (lambda p: chamfer_distance(p[None], p), "Expected points to be of shape"),
        (lambda p: chamfer_distance(p, p, x_lengths=torch.ones(2)), "Expected lengths to be"),
        (lambda p: chamfer_distance(p, p, x_normals=p[None]), "Expected normals to be"),
    ],
)
def test_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call(clouds("cpu")[0])


def test_lengths_beyond_the_clouds(device):
    p = torch.rand(2, 5, 3, device=device)
    lengths = torch.tensor([5, 6], device=device)
    for sizes in ({"x_lengths": lengths}, {"y_lengths": lengths}):
        with pytest.raises(ValueError, match="A length value was too long"):
            chamfer_distance(p, p, **sizes)


def test_knn_gather_of_integers_is_that_of_floats(device):
    x = torch.arange(1, 7, device=device).view(1, 3, 2)
    idx = torch.tensor([[[0, 2, -1], [7, 1, 1]]], device=device)
    assert torch.equal(knn_gather(x, idx), knn_gather(x.float(), idx).long())
