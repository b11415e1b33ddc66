"""fusedops.compat.pointnet2_ops against pointnet2_ops' semantics, written out in torch."""

from __future__ import annotations

import pytest
import torch

from fusedops.compat import pointnet2_ops
from fusedops.compat.pointnet2_ops import pointnet2_utils as utils

B, N, M, C, K = 2, 30, 8, 5, 6


def cloud(device, count=N, seed=0, grad=False):
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(B, count, 3, generator=generator, dtype=torch.float64) + 1
    return points.to(device).requires_grad_(grad)


def features(device):
    values = torch.randn(B, C, N, device=device, dtype=torch.float64)
    return values.requires_grad_()


def indices(device, *shape):
    return torch.randint(0, N, (B, *shape), device=device, dtype=torch.int32)


def assert_same(got, want, *inputs):
    """Values and gradients."""
    assert got.is_contiguous()
    torch.testing.assert_close(got, want)
    weight = torch.randn_like(want)
    torch.testing.assert_close(
        torch.autograd.grad((got * weight).sum(), inputs),
        torch.autograd.grad((want * weight).sum(), inputs),
    )


def test_names():
    for name in utils.__all__:
        assert getattr(pointnet2_ops, name) is getattr(utils, name)


def test_furthest_point_sample(device):
    xyz = cloud(device)
    idx = utils.furthest_point_sample(xyz, M)
    assert idx.dtype is torch.int32
    for points, row in zip(xyz, idx.tolist(), strict=True):
        assert row[0] == 0
        for step in range(1, M):
            nearest = torch.cdist(points, points[row[:step]]).amin(1)
            assert row[step] == int(nearest.argmax())
    with pytest.raises(ValueError, match="npoint must be at most N = 30; got 31"):
        utils.furthest_point_sample(xyz, N + 1)


def test_furthest_point_sample_of_duplicates(device):
    idx = utils.furthest_point_sample(torch.zeros(1, 5, 3, device=device), 5)
    assert idx.tolist() == [[0, 1, 2, 3, 4]]


def test_gather_operation(device):
    values, idx = features(device), indices(device, M)
    want = values.gather(2, idx.long()[:, None].expand(-1, C, -1))
    assert_same(utils.gather_operation(values, idx), want, values)


def test_grouping_operation(device):
    values, idx = features(device), indices(device, M, K)
    want = values.gather(2, idx.long().flatten(1)[:, None].expand(-1, C, -1)).reshape(B, C, M, K)
    assert_same(utils.grouping_operation(values, idx), want, values)


@pytest.mark.parametrize("count", [N, 3, 2, 1])
def test_three_nn(device, count):
    known, unknown = cloud(device, count, grad=True), cloud(device, M, seed=1)
    dist, idx = utils.three_nn(unknown, known)
    assert idx.dtype is torch.int32
    assert not dist.requires_grad
    used = min(count, 3)
    want = torch.cdist(unknown, known).topk(used, largest=False)
    torch.testing.assert_close(dist[..., :used], want.values)
    assert torch.equal(idx[..., :used].long(), want.indices)
    assert dist[..., used:].isinf().all()
    assert not idx[..., used:].any()


def test_three_interpolate(device):
    values, idx = features(device), indices(device, M, 3)
    weight = torch.rand(B, M, 3, device=device, dtype=torch.float64, requires_grad=True)
    rows = values.gather(2, idx.long().flatten(1)[:, None].expand(-1, C, -1)).reshape(B, C, M, 3)
    want = (rows * weight[:, None]).sum(-1)
    assert_same(utils.three_interpolate(values, idx, weight), want, values, weight)


def plain_ball_query(radius, nsample, xyz, new_xyz):
    """The first hits; then the first again; an empty ball is 0."""
    idx = torch.zeros(B, new_xyz.shape[1], nsample, dtype=torch.int32, device=xyz.device)
    for b in range(B):
        for m, center in enumerate(new_xyz[b]):
            found = ((xyz[b] - center).square().sum(-1) < radius**2).nonzero()[:nsample, 0]
            if len(found):
                idx[b, m] = found[0]
                idx[b, m, : len(found)] = found.int()
    return idx


@pytest.mark.parametrize("radius", [0.01, 1.0, 1.8])
def test_ball_query(device, radius):
    xyz, new_xyz = cloud(device), cloud(device, M, seed=1)
    idx = utils.ball_query(radius, K, xyz, new_xyz)
    want = plain_ball_query(radius, K, xyz, new_xyz)
    assert idx.dtype is torch.int32
    assert torch.equal(idx, want)
    assert want.any() == (radius > 0.01)


def test_ball_query_is_open(device):
    xyz = torch.tensor([[[0.0, 0, 0], [1, 0, 0], [2, 0, 0]]], device=device)
    assert utils.ball_query(2.0, 4, xyz, xyz[:, 2:]).tolist() == [[[1, 2, 1, 1]]]


@pytest.mark.parametrize("use_xyz", [True, False])
@pytest.mark.parametrize("with_features", [True, False])
def test_query_and_group(device, use_xyz, with_features):
    xyz, new_xyz = cloud(device, grad=True), cloud(device, M, seed=1, grad=True)
    values = features(device) if with_features else None
    module = utils.QueryAndGroup(1.5, K, use_xyz)
    if not (use_xyz or with_features):
        with pytest.raises(AssertionError, match="not use xyz"):
            module(xyz, new_xyz)
        return
    idx = plain_ball_query(1.5, K, xyz, new_xyz).long().flatten(1)[:, None]
    parts, inputs = [], []
    if use_xyz:
        rows = xyz.transpose(1, 2).gather(2, idx.expand(-1, 3, -1)).reshape(B, 3, M, K)
        parts.append(rows - new_xyz.transpose(1, 2)[..., None])
        inputs += [xyz, new_xyz]
    if with_features:
        parts.append(values.gather(2, idx.expand(-1, C, -1)).reshape(B, C, M, K))
        inputs.append(values)
    assert_same(module(xyz, new_xyz, values), torch.cat(parts, 1), *inputs)


def test_group_all(device):
    xyz, values = cloud(device), features(device)
    coordinates = xyz.transpose(1, 2)[:, :, None]
    assert torch.equal(utils.GroupAll()(xyz, None), coordinates)
    both = torch.cat([coordinates, values[:, :, None]], 1)
    assert torch.equal(utils.GroupAll()(xyz, None, values), both)
    assert torch.equal(utils.GroupAll(use_xyz=False)(xyz, None, values), values[:, :, None])


def test_empty(device):
    xyz = torch.zeros(B, N, 3, device=device)
    assert utils.ball_query(1.0, K, xyz, xyz[:, :0]).shape == (B, 0, K)
    assert utils.furthest_point_sample(xyz[:0], M).shape == (0, M)
    dist, idx = utils.three_nn(xyz[:, :0], xyz)
    assert dist.shape == idx.shape == (B, 0, 3)
    none = torch.zeros(B, 0, K, dtype=torch.int32, device=device)
    assert utils.grouping_operation(features(device), none).shape == (B, C, 0, K)


def test_functions_by_their_class(device):
    xyz = torch.rand(1, 9, 3, device=device)
    pairs = (
        ("FurthestPointSampling", "furthest_point_sample", (xyz, 4)),
        ("BallQuery", "ball_query", (1.0, 4, xyz, xyz)),
        ("ThreeNN", "three_nn", (xyz, xyz)),
        ("GatherOperation", "gather_operation", (xyz, torch.tensor([[0, 2]], device=device))),
        ("GroupingOperation", "grouping_operation", (xyz, torch.tensor([[[0, 2]]], device=device))),
    )
    for kind, function, arguments in pairs:
        result = getattr(utils, kind).apply(*arguments)
        torch.testing.assert_close(result, getattr(utils, function)(*arguments))
    idx = torch.tensor([[[0, 1, 2]]], device=device)
    weight = idx.float()
    torch.testing.assert_close(
        utils.ThreeInterpolate.apply(xyz, idx, weight), utils.three_interpolate(xyz, idx, weight)
    )
