"""FP8 layers under DDP and FSDP2, of one rank, and in a CUDA graph."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn

import fusedops
from fusedops import fp8

BLOCK = fp8.Recipe(when="always")
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def one_rank():
    if dist.is_initialized():
        pytest.skip("another test holds the process group")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def model_of(device="cpu"):
    torch.manual_seed(0)
    return nn.Sequential(
        fusedops.nn.Linear(64, 96, activation="gelu", recipe=BLOCK),
        fusedops.nn.GatedMLP(96, 160, recipe=BLOCK),
    ).to(device)


def train(model, x, optimizer, steps=3):
    """Losses of some steps."""
    losses = []
    for _ in range(steps):
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("how", ["ddp", "fsdp2"])
def test_wrappers_train_as_the_model_alone(one_rank, how):
    plain, x = model_of(), torch.randn(32, 64)
    model = copy.deepcopy(plain)
    expected = train(plain, x, torch.optim.SGD(plain.parameters(), lr=0.5))
    if how == "ddp":
        wrapped = nn.parallel.DistributedDataParallel(model)
    else:
        from torch.distributed.fsdp import fully_shard

        mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
        for layer in model:
            fully_shard(layer, mesh=mesh)
        wrapped = fully_shard(model, mesh=mesh)
    got = train(wrapped, x, torch.optim.SGD(wrapped.parameters(), lr=0.5))
    torch.testing.assert_close(torch.tensor(got), torch.tensor(expected), rtol=1e-5, atol=0)
    assert got[0] > got[1] > got[2]


@pytest.mark.parametrize("packed", [False, True])
def test_main_grads_of_blocks(packed):
    """Added to what is there, for every weight of a gated MLP and an MLP."""
    for block in (fusedops.nn.MLP(64, 96), fusedops.nn.GatedMLP(64, 96, packed=packed)):
        block.to(torch.bfloat16).recipe = BLOCK
        twin = copy.deepcopy(block)
        x = torch.randn(32, 64, dtype=torch.bfloat16)
        weights = [p for p in block.parameters() if p.dim() == 2]
        for weight in weights:
            weight.main_grad = torch.ones(weight.shape)
        dy = torch.randn(32, 64, dtype=torch.bfloat16)
        block(x).backward(dy)
        twin(x).backward(dy)
        of_twin = [p.grad.double() for p in twin.parameters() if p.dim() == 2]
        for weight, grad in zip(weights, of_twin, strict=True):
            assert weight.grad is None
            added = weight.main_grad.double() - 1
            assert (added - grad).norm() < 0.01 * grad.norm()


@pytest.mark.gpu
def test_a_step_in_a_cuda_graph():
    model, x = model_of("cuda").bfloat16(), torch.randn(32, 64, device="cuda").bfloat16()
    leaves = list(model.parameters())

    def step():
        y = model(x)
        return y, *torch.autograd.grad(y.square().sum(), leaves)

    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    with torch.no_grad():
        for leaf in leaves:
            leaf.mul_(1.5)
    graph.replay()  # with the weights of now, not those that were kept
    for a, b in zip(captured, step(), strict=True):
        assert torch.equal(a, b)
