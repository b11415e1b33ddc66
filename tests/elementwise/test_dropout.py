"""bias_dropout_residual: the mask against its definition, values, gradients, seeds and graphs."""

from __future__ import annotations

import math

import pytest
import torch

import fusedops
from fusedops import reference
from util import DTYPES, LAYOUTS, assert_accurate, make, name

OPS = torch.ops.fusedops
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=name)


def test_philox_known_answers():
    words = reference.elementwise._philox(0, torch.tensor([0]))
    assert [f"{w:08x}" for w in words[0].tolist()] == [
        "5f6fb709",
        "0d893f64",
        "4f121f81",
        "4f730a48",
    ]


@every_dtype
@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 1.0])
def test_dropout_matches_the_reference(device, p, dtype):
    keys = {
        (33, 64): -5,
        (257, 7): 2**62 + 1,
        (3, 5, 129): 0,
        (70, 1): 9,
        (2051, 3): 4,
        (521, 301): 6,
    }
    for shape, key in keys.items():
        x, residual = (make(*shape, dtype=dtype, device=device, seed=s) for s in (1, 2))
        bias = make(shape[-1], dtype=dtype, device=device, seed=3)
        seed = torch.tensor([key], device=device)
        leaves = [t.detach().requires_grad_() for t in (x, bias, residual)]
        wide = [t.detach().double().requires_grad_() for t in (x, bias, residual)]
        ours = fusedops.bias_dropout_residual(*leaves, p, seed=seed)
        exact = reference.bias_dropout_residual(*wide, seed, p)
        assert torch.equal(OPS.bias_dropout_residual(x, bias, residual, seed, p), ours)
        torchs = reference.bias_dropout_residual(x, bias, residual, seed, p)
        assert_accurate(ours, torchs, exact.detach())
        narrow = [t.detach().requires_grad_() for t in (x, bias, residual)]
        torch_grads = torch.autograd.grad(
            reference.bias_dropout_residual(*narrow, seed, p), narrow, x
        )
        for a, b, c in zip(
            torch.autograd.grad(ours, leaves, x),
            torch_grads,
            torch.autograd.grad(exact, wide, x.double()),
            strict=True,
        ):
            assert_accurate(a, b, c)


def test_dropout_drops_its_share_and_draws_anew(device):
    x = torch.ones(1000, 1000, device=device)
    torch.manual_seed(1)
    first = fusedops.bias_dropout_residual(x, p=0.3)
    second = fusedops.bias_dropout_residual(x, p=0.3)
    kept = (first != 0).float().mean().item()
    assert abs(kept - 0.7) < 4 * math.sqrt(0.3 * 0.7 / 1e6)
    assert torch.all((first == 0) | (first == 1 / 0.7))
    both = ((first != 0) & (second != 0)).float().mean().item()
    assert abs(both - 0.49) < 4 * math.sqrt(0.49 * 0.51 / 1e6)
    torch.manual_seed(1)
    assert torch.equal(fusedops.bias_dropout_residual(x, p=0.3), first)
    assert torch.equal(fusedops.bias_dropout_residual(x, p=0.3, training=False), x)


def test_dropout_mask_ignores_layout_and_place(device):
    x = torch.ones(40, 50, device=device)
    seed = torch.tensor([3], device=device)
    want = fusedops.bias_dropout_residual(x, p=0.5, seed=seed)
    for layout in LAYOUTS.values():
        assert torch.equal(fusedops.bias_dropout_residual(layout(x), p=0.5, seed=seed), want)
    for offset in range(1, 6):
        out = torch.zeros(2000 + offset, device=device)[offset:].view(40, 50)
        assert torch.equal(fusedops.bias_dropout_residual(x, p=0.5, seed=seed, out=out), want)


def test_dropout_is_checked(device):
    x = torch.ones(2, 3, device=device)
    text = "seed must be an int64 tensor of shape"
    for to in (device, "meta"):
        y = x.to(to)
        with pytest.raises(RuntimeError, match=r"p must be from 0 to 1; got 1.5"):
            OPS.bias_dropout_residual(y, None, None, None, 1.5)
        with pytest.raises(RuntimeError, match=rf"{text} \(1,\); got None"):
            OPS.bias_dropout_residual(y, None, None, None, 0.5)
        seed = torch.ones(1, dtype=torch.int32, device=to)
        with pytest.raises(RuntimeError, match=rf"{text} \(1,\); got int32 \(1,\)"):
            OPS.bias_dropout_residual(y, None, None, seed, 0.5)
        with pytest.raises(RuntimeError, match=r"residual must have shape \(2, 3\) like x; got"):
            OPS.bias_dropout_residual(y, None, y[:1], None, 0.0)


@pytest.mark.gpu
def test_cpu_and_gpu_drop_the_same():
    x = make(64, 130, dtype=torch.float32, device="cpu")
    seed = torch.tensor([11])
    cpu = fusedops.bias_dropout_residual(x, p=0.4, seed=seed)
    gpu = fusedops.bias_dropout_residual(x.cuda(), p=0.4, seed=seed.cuda())
    torch.testing.assert_close(gpu.cpu(), cpu, rtol=1e-6, atol=0)


@pytest.mark.gpu
def test_a_graph_draws_a_new_mask_at_each_replay():
    x = torch.ones(512, 512, device="cuda")
    fusedops.bias_dropout_residual(x, p=0.5)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = fusedops.bias_dropout_residual(x, p=0.5)
    graph.replay()
    first = y.clone()
    graph.replay()
    assert 0.2 < (first != y).float().mean().item() < 0.8
