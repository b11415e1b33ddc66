"""Samples of the passes of an MLP over edges, which run on CUDA only: on the CPU there are none.

Every entry counts, so that every element of a result is written.
"""

from __future__ import annotations

from itertools import pairwise

import torch

from util import make

CLOUDS, POINTS, GROUPS, K = 2, 40, 5, 16


def half_of(dtype):
    return dtype if dtype.itemsize == 2 else torch.bfloat16


def fp32(*shape, device, seed=0):
    return make(*shape, dtype=torch.float32, device=device, seed=seed)


def neighbours(device):
    """Distinct ones."""
    drawn = torch.rand(CLOUDS, GROUPS, POINTS, generator=torch.Generator().manual_seed(3))
    return drawn.argsort(2)[..., :K].contiguous().to(device)


def edge_list(device):
    """(list, ends) where every entry counts once."""
    idx = neighbours(device)
    cloud = torch.arange(CLOUDS, device=device).view(-1, 1, 1)
    group = torch.arange(CLOUDS * GROUPS, device=device).view(CLOUDS, GROUPS, 1)
    place = torch.arange(K, device=device)
    weight = torch.ones((), device=device).view(torch.int32)
    columns = (idx + POINTS * cloud, group, place, weight)
    rows = torch.stack([t.expand(idx.shape).int() for t in columns], -1).view(-1, 4)
    return rows, torch.arange(K, (CLOUDS * GROUPS + 1) * K, K, device=device, dtype=torch.int32)


def coordinates(device):
    points = fp32(CLOUDS, POINTS, 3, device=device, seed=1)
    return points, points[:, :GROUPS].contiguous()


def operands_of(device, dtype, planes):
    """Rows of every edge; the columns that hold no feature are small."""
    return make(planes, CLOUDS * GROUPS * K, 8, dtype=dtype, device=device, seed=1)


def problem(device, dtype, widths, rows=True, group_rows=False, planes=1):
    """The arguments up to the slope."""
    first = widths[0]
    first_weight = operands = None
    if planes:
        first_weight = make(planes, first, 8, dtype=dtype, device=device, seed=2)
        operands = operands_of(device, dtype, planes)
    values = sum(a * b for a, b in pairwise(widths))
    affine = fp32(sum(widths), 2, device=device, seed=6)
    return (
        fp32(CLOUDS, POINTS, first, device=device, seed=3) if rows else None,
        fp32(CLOUDS, GROUPS, first, device=device, seed=4) if group_rows else None,
        first_weight, operands, *edge_list(device),
        make(values, dtype=dtype, device=device, seed=5, scale=0.1), affine,
        CLOUDS, *widths, *[0] * (4 - len(widths)), 0.0,
    )  # fmt: skip


def winners_of(device, dtype, width):
    """A maximum's gradient and its neighbour's place above it."""
    value = make(CLOUDS, GROUPS, width, dtype=dtype, device=device, seed=8)
    place = torch.arange(width, device=device).remainder(K).expand(value.shape).int()
    return (place << 16) | (value.view(torch.int16).int() & 0xFFFF)


def statistics(device, width):
    """Means, reciprocal deviations, variances and counts."""
    deviation = fp32(width, device=device, seed=9).abs() + 0.5
    count = torch.full_like(deviation, CLOUDS * GROUPS * K)
    mean = fp32(width, device=device, seed=10)
    return torch.stack([mean, 1 / deviation, deviation.square(), count])


def on_cuda(samples):
    """Nothing on the CPU; 16-bit types in place of the others."""

    def given(device, dtype, codes):
        if not device.startswith("cpu"):
            yield from samples(device, half_of(dtype))

    return given


def edge_counts_samples(device, dtype):
    yield neighbours(device), POINTS


def edge_list_samples(device, dtype):
    idx, ends = neighbours(device), edge_list(device)[1]
    like = make(1, dtype=dtype, device=device)
    features = make(CLOUDS, POINTS, 10, dtype=dtype, device=device, seed=2)
    yield idx, ends, POINTS, *coordinates(device), None, like
    yield idx, None, POINTS, coordinates(device)[0], None, features, like
    yield idx, ends, POINTS, None, None, None, like


def edge_parameters_samples(device, dtype):
    like = make(1, dtype=dtype, device=device)
    first = make(30, 13, dtype=dtype, device=device, seed=1)
    w2 = make(60, 30, dtype=dtype, device=device, seed=2)
    of_one = [fp32(30, device=device, seed=i) for i in range(4)]
    var = fp32(30, device=device, seed=9).abs()
    norms = [t for kind in (*of_one, var) for t in (kind, None, None, None)]
    none = [None] * 20
    widths, eps = (32, 64, 0, 0), (1e-5, 0.0, 0.0, 0.0)
    yield first[:, :3], first[:, 3:], w2, None, None, *norms, *widths, *eps, like
    yield first[:, :3], None, None, None, None, *none, 64, 0, 0, 0, *eps, like
    yield None, None, w2, None, None, *none, *widths, *eps, like


def edge_mlp_forward_samples(device, dtype):
    yield *problem(device, dtype, (32, 64)), 60, True, False, False, 1e-5
    yield *problem(device, dtype, (64, 64, 128), rows=False, planes=2), 128, False, True, True, 1e-5
    yield *problem(device, dtype, (128, 256), planes=0), 250, False, True, False, 1e-5
    yield *problem(device, dtype, (32, 32), group_rows=True), 32, False, False, True, 1e-5
    yield *problem(device, dtype, (64,), group_rows=True), 64, False, True, True, 1e-5


def edge_mlp_backward__samples(device, dtype):
    edges = CLOUDS * GROUPS * K
    for widths in ((64, 128), (32, 256)):
        winners = winners_of(device, dtype, widths[-1])
        dense = fp32(widths[-1], 2, device=device, seed=11)
        below_stats = statistics(device, widths[0])
        yield *problem(device, dtype, widths), winners, None, dense, below_stats
    above = make(edges, 64, dtype=dtype, device=device, seed=12)
    yield *problem(device, dtype, (64, 64, 64), rows=False), None, above, None, None


def pooled(device, channels):
    best = fp32(CLOUDS, GROUPS, channels, device=device)
    which = torch.arange(channels, device=device).remainder(K).expand(best.shape)
    return best, which.to(torch.int16)


def edge_pool_forward_samples(device, dtype):
    for channels in (10, 64):
        affine = fp32(64, 2, device=device, seed=1)
        yield *pooled(device, channels), affine, make(1, dtype=dtype, device=device), 0.2


def edge_pool_backward_samples(device, dtype):
    for channels, stats in ((10, None), (64, statistics(device, 64))):
        best, which = pooled(device, channels)
        dout = make(*best.shape, dtype=dtype, device=device, seed=3)
        yield dout, best, which, fp32(64, 2, device=device, seed=1), stats, 0.0


def edge_moments_samples(device, dtype):
    points, centers = coordinates(device)
    yield *edge_list(device), points, centers
    yield *edge_list(device), points, None


def edge_winners_samples(device, dtype):
    yield winners_of(device, dtype, 64), *edge_list(device), make(1, dtype=dtype, device=device)


def edge_group_sums_samples(device, dtype):
    rows = make(CLOUDS * GROUPS * K, 32, dtype=dtype, device=device)
    yield rows, *edge_list(device), False
    yield rows.float(), *edge_list(device), False
    yield fp32(CLOUDS, POINTS, 64, device=device), *edge_list(device), True


def edge_products_samples(device, dtype):
    for width, planes in ((64, 1), (96, 2)):
        rows = make(CLOUDS * GROUPS * K, width, dtype=dtype, device=device)
        yield rows, *edge_list(device), operands_of(device, dtype, planes)


def edge_first_grads_samples(device, dtype):
    for width, planes in ((64, 1), (96, 2)):
        affine, dense = (fp32(width, 2, device=device, seed=i) for i in (1, 2))
        weight = make(planes, width, 8, dtype=dtype, device=device, seed=3)
        yield fp32(width + 32, 16, device=device), affine, dense, weight
        yield fp32(width + 32, 16, device=device), None, None, weight


def edge_close_samples(device, dtype):
    count, width = 70, 64
    rows = [fp32(count, width, device=device, seed=i) for i in range(3)]
    pairs = [fp32(width, 2, device=device, seed=i) for i in (3, 4)]
    moments, where = fp32(count, 4, device=device, seed=5), fp32(count, 3, device=device, seed=6)
    one = make(1, width, 8, dtype=dtype, device=device, seed=7)
    yield rows[0], pairs[0], pairs[1], moments, rows[1], rows[2], one, where, one
    yield rows[0], pairs[0], None, None, None, None, None, None, one


def edge_feature_grads_samples(device, dtype):
    count = 300
    for width, features in ((64, 9), (256, 3), (128, 6)):
        sums, moments = (fp32(count, n, device=device, seed=n) for n in (width, 4))
        affine, dense = (fp32(width, 2, device=device, seed=i) for i in (3, 4))
        weight = make(2, width, 8, dtype=dtype, device=device, seed=7)
        rows = make(count, features, dtype=dtype, device=device, seed=8)
        yield sums, affine, dense, moments, weight, rows
        yield sums, None, None, None, weight, rows


def lists_of(idx, n):
    """(entries, ranges) by the point that entries of idx name; all are points."""
    to = idx + n * torch.arange(idx.shape[0], device=idx.device).view(-1, 1, 1)
    order = to.flatten().sort(stable=True).indices
    counts = to.flatten().bincount(minlength=idx.shape[0] * n)
    ends = counts.cumsum(0)
    return order.int(), torch.stack([ends - counts, ends], 1).int()


def edge_lists_samples(device, dtype):
    yield neighbours(device), POINTS


def edge_point_sums_samples(device, dtype):
    lists, edges = lists_of(neighbours(device), POINTS), CLOUDS * GROUPS * K
    yield make(edges, 40, dtype=dtype, device=device), *lists, None, 1
    weights = fp32(edges, device=device, seed=1)
    yield fp32(CLOUDS * GROUPS, 64, device=device), *lists, weights, K


def edge_message_sums_samples(device, dtype):
    """Rows of nodes by both ends of edges: some nodes have none, one has many."""
    entries, ranges = lists_of(neighbours(device), POINTS)
    yield make(CLOUDS * GROUPS * K + 3, 40, dtype=dtype, device=device), entries, ranges
    few = entries % 7
    whole = torch.tensor([[0, len(few)], [5, 5], [3, 4]], dtype=torch.int32, device=device)
    yield make(7, 33, dtype=dtype, device=device), few, whole


def edge_point_moments_samples(device, dtype):
    lists = lists_of(neighbours(device), POINTS)
    points, centers = (t.flatten(0, 1) for t in coordinates(device))
    yield *lists, *edge_list(device), points, centers
    yield *lists, *edge_list(device), None, None


def all_neighbours(device):
    """K of every point."""
    drawn = torch.rand(CLOUDS, POINTS, POINTS, generator=torch.Generator().manual_seed(4))
    return drawn.argsort(2)[..., :K].contiguous().to(device)


def edge_conv_forward__samples(device, dtype):
    like, idx = make(1, dtype=dtype, device=device), all_neighbours(device)
    for channels, width, infer, sums in (
        (64, 64, False, True), (40, 64, True, False), (136, 256, False, False),
    ):  # fmt: skip
        products = fp32(CLOUDS, POINTS, 2 * channels, device=device, seed=1)
        affine = fp32(width, 2, device=device, seed=2)
        yield products, idx, affine, like, 0.2, infer, sums, 1e-5


def edge_conv_backward_samples(device, dtype):
    like, idx = make(1, dtype=dtype, device=device), all_neighbours(device)
    for channels, width, batch in ((64, 64, True), (136, 256, False)):
        products = fp32(CLOUDS, POINTS, 2 * channels, device=device, seed=1)
        value = make(CLOUDS, POINTS, width, dtype=dtype, device=device, seed=2)
        place = torch.arange(width, device=device).remainder(K).expand(value.shape).int()
        winners = (place << 16) | (value.view(torch.int16).int() & 0xFFFF)
        totals = fp32(CLOUDS, POINTS, channels, device=device, seed=3) if batch else None
        dense = fp32(width, 2, device=device, seed=4) if batch else None
        yield products, idx, winners, totals, dense, *lists_of(idx, POINTS), like


# {op: its samples of a 16-bit type on any device}
OF_HALVES = {
    name.removesuffix("_samples"): samples
    for name, samples in list(globals().items())
    if name.endswith("_samples")
}
SAMPLES = {op: on_cuda(samples) for op, samples in OF_HALVES.items()}

_NOT_FLOATING = "must be float16, bfloat16, float32 or float64; got int32$"

# The first argument that int32 tensors are wrong for.
REFUSED = {
    op: (torch.int32, f"^{op}: {text}")
    for op, text in {
        "edge_counts": "idx must be int64; got int32$",
        "edge_list": "idx must be int64; got int32$",
        "edge_lists": "idx must be int64; got int32$",
        "edge_point_moments": "points must have dtype float32; got int32$",
        "edge_conv_forward_": "products must have dtype float32; got int32$",
        "edge_conv_backward": "products must have dtype float32; got int32$",
        "edge_parameters": f"like {_NOT_FLOATING}",
        "edge_mlp_forward": f"weights {_NOT_FLOATING}",
        "edge_mlp_backward_": f"weights {_NOT_FLOATING}",
        "edge_pool_forward": "best must have dtype float32; got int32$",
        "edge_pool_backward": "best must have dtype float32; got int32$",
        "edge_moments": "points must have dtype float32; got int32$",
        "edge_winners": f"like {_NOT_FLOATING}",
        "edge_group_sums": f"rows {_NOT_FLOATING}",
        "edge_products": f"rows {_NOT_FLOATING}",
        "edge_first_grads": "products must have dtype float32; got int32$",
        "edge_feature_grads": "sums must have dtype float32; got int32$",
        "edge_close": "sums must have dtype float32; got int32$",
    }.items()
}
