"""conv_bn_act over the ranks of a group: what one process gives for the whole batch."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import fusedops
from util import make

SHARES = (slice(0, 3), slice(3, 4))  # of the images, by rank


def run(device, share, group, activation):
    """y, dx, dresidual, then what ranks add up: dweight and the norm's; running statistics."""
    options = {"dtype": torch.float64, "device": device}
    x, residual = (make(4, c, 5, 5, seed=c, **options)[share] for c in (3, 6))
    weight, gamma, beta = (make(*s, seed=9, **options) for s in ((6, 3, 3, 3), (6,), (6,)))
    running = torch.zeros(6, **options), torch.ones(6, **options)
    leaves = [t.requires_grad_() for t in (x, residual, weight, gamma, beta)]
    results = []
    for create_graph in (False, True):
        own = [t.clone() for t in running]
        y = fusedops.conv_bn_act(
            x, weight, None, *own, gamma, beta, activation=activation, residual=residual, padding=1,
            training=True, group=group,
        )  # fmt: skip
        grads = torch.autograd.grad(y.square().sum(), leaves, create_graph=create_graph)
        results += [y, *grads, *own]
    penalty = grads[0].square().sum()
    results += [None, *torch.autograd.grad(penalty, leaves), *own]
    return [None if t is None else t.detach().cpu() for t in results]


def on_rank(device, activation):
    device = f"cuda:{dist.get_rank()}" if device == "cuda" else device
    return run(device, SHARES[dist.get_rank()], dist.group.WORLD, activation)


@pytest.mark.parametrize("activation", ["silu", "sigmoid"])
def test_ranks_share_their_statistics(ranks, activation):
    whole = run(ranks.device, slice(None), None, activation)
    shares = ranks.run(on_rank, ranks.device, activation)
    for i, expected in enumerate(whole):
        mine = [share[i] for share in shares]
        if expected is None:
            continue
        kind = i % 8
        if kind < 3:  # of images
            torch.testing.assert_close(torch.cat(mine), expected)
        elif kind < 6:  # of parameters
            torch.testing.assert_close(mine[0] + mine[1], expected)
        else:
            torch.testing.assert_close(mine[0], expected)
            assert torch.equal(*mine)
