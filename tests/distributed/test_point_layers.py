"""Batch norm of point layers over the ranks of a group: what one process gives for all clouds."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from fusedops.points import edge_conv, feature_propagation, set_abstraction
from points.layer_cases import Call, indices, make_layers
from util import make

N, M, K, FEATURES, WIDTHS = 12, 5, 4, 3, (6, 4)
SHARES = (slice(0, 3), slice(3, 4))  # of the clouds, by rank


def arguments(layer, device):
    """(function, tensors, idx, columns) of all four clouds."""
    clouds = SHARES[-1].stop
    options = {"dtype": torch.float64, "device": device}
    xyz, features = make(clouds, N, 3, **options), make(clouds, N, FEATURES, seed=1, **options)
    some = make(clouds, M, 3, seed=2, **options)
    if layer == "set_abstraction":
        idx = indices(clouds, N, M, K, device)
        return set_abstraction, (xyz, features, some), idx, 3 + FEATURES
    if layer == "edge_conv":
        return edge_conv, (features,), indices(clouds, N, N, K, device), 2 * FEATURES
    known = make(clouds, M, 2, seed=3, **options)
    return feature_propagation, (xyz, some, features, known), None, FEATURES + 2


def run(layer, device, share, group, options):
    """Output, gradients, running statistics and gradients of a gradient's square."""
    function, tensors, idx, columns = arguments(layer, device)
    weights, biases, norms = make_layers(columns, WIDTHS, "batch_train", torch.float64, device)
    norms = [norm._replace(group=group) for norm in norms]
    tensors = [t[share] for t in tensors]
    call = Call(tensors, None if idx is None else idx[share], (weights, biases, norms))
    out = call(function, **options)
    weight = torch.linspace(-1, 1, out.shape[-1], dtype=out.dtype, device=device)
    leaves = list(call.named_leaves().values())
    loss = (out.square() * weight).sum()
    grads = torch.autograd.grad(loss, leaves, create_graph=True, allow_unused=True)
    penalty = sum(g.square().sum() for g in grads[: len(call.tensors)])
    second = torch.autograd.grad(penalty, leaves, allow_unused=True)
    call_again = Call(tensors, call.idx, (weights, biases, norms))  # without create_graph
    first = torch.autograd.grad(
        (call_again(function, **options).square() * weight).sum(),
        list(call_again.named_leaves().values()),
        allow_unused=True,
    )
    parts = [out, *first, *grads, *second, *call.running()]
    return [None if t is None else t.detach().cpu() for t in parts], len(call.tensors), len(leaves)


def on_rank(layer, device, options):
    device = f"cuda:{dist.get_rank()}" if device == "cuda" else device
    return run(layer, device, SHARES[dist.get_rank()], dist.group.WORLD, options)


CASES = [
    ("set_abstraction", {}),
    ("set_abstraction", {"pool": "mean", "activation": "gelu"}),
    ("edge_conv", {"activation": "tanh"}),
    ("feature_propagation", {}),
]


@pytest.mark.parametrize(("layer", "options"), CASES, ids=[f"{a}-{b}" for a, b in CASES])
def test_ranks_share_their_statistics(ranks, layer, options):
    whole, inputs, leaves = run(layer, ranks.device, slice(None), None, options)
    shares = [parts for parts, _, _ in ranks.run(on_rank, layer, ranks.device, options)]
    for i, expected in enumerate(whole):
        mine = [share[i] for share in shares]
        if expected is None:
            assert mine == [None, None]
            continue
        of_leaf = (i - 1) % leaves
        is_gradient = 1 <= i <= 3 * leaves
        if i == 0 or (is_gradient and of_leaf < inputs):
            torch.testing.assert_close(torch.cat(mine), expected)
        elif is_gradient:
            torch.testing.assert_close(sum(mine), expected)
        else:
            torch.testing.assert_close(mine, [expected, expected])


def edge_counts(device):
    """One edge on each rank: enough for both, and refused by neither."""
    _, tensors, idx, columns = arguments("set_abstraction", device)
    layers = make_layers(columns, WIDTHS[:1], "batch_train", torch.float64, device)
    layers[2][0] = layers[2][0]._replace(group=dist.group.WORLD)
    tensors = [t[dist.get_rank(), :1][None] for t in tensors]
    return Call(tensors, idx[:1, :1, :1] * 0, layers)(set_abstraction).detach()


def test_one_edge_a_rank(ranks):
    assert all(out.isfinite().all() for out in ranks.run(edge_counts, ranks.device))
