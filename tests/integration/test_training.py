"""Training steps: checkpointing, CUDA graphs, streams, data parallelism, hooks."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import fusedops
from util import (
    batch,
    captured,
    gradients,
    linear_inputs,
    mlp,
    name,
)


@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "non_reentrant"])
@pytest.mark.parametrize("autocast", [True, False], ids=["autocast", "fp32"])
def test_checkpointing(device, reentrant, autocast):
    model = mlp(device)
    x, labels = batch(device)
    x.requires_grad_()

    def step(forward):
        model.zero_grad(set_to_none=True)
        with torch.autocast(device, dtype=torch.bfloat16, enabled=autocast):
            loss = F.cross_entropy(forward(x), labels)
        return (
            [loss, *torch.autograd.grad(loss, list(model.parameters()))]
            if not reentrant
            else (loss.backward() or [loss, *(p.grad for p in model.parameters())])
        )

    expected = step(model)
    for got, want in zip(
        step(lambda x: checkpoint(model, x, use_reentrant=reentrant)), expected, strict=True
    ):
        assert torch.equal(got, want)


@pytest.mark.smoke
def test_a_step_is_bitwise_repeatable(device):
    model = mlp(device)
    x, labels = batch(device, 200)
    loss, grads = gradients(model, x, labels)
    for _ in range(5):
        again, others = gradients(model, x, labels)
        assert torch.equal(again, loss)
        assert all(torch.equal(a, b) for a, b in zip(others, grads, strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(65536, 64, 64), (2048, 1024, 1024), (1000, 333, 127)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=name)
def test_large_steps_are_bitwise_repeatable(dtype, shape):
    x, weight, bias, dy = linear_inputs(*shape, dtype, "cuda")
    leaves = [t.requires_grad_() for t in (x, weight, bias)]
    first = torch.autograd.grad(fusedops.linear(*leaves, "gelu"), leaves, dy)
    for _ in range(3):
        again = torch.autograd.grad(fusedops.linear(*leaves, "gelu"), leaves, dy)
        assert all(torch.equal(a, b) for a, b in zip(again, first, strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_a_whole_step_in_a_cuda_graph(dtype):
    model = mlp("cuda")
    twin = copy.deepcopy(model)
    x, labels = batch("cuda")

    def make_step(model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step():
            optimizer.zero_grad(set_to_none=False)
            with torch.autocast(
                "cuda", dtype=dtype, enabled=dtype is not None, cache_enabled=False
            ):
                loss = F.cross_entropy(model(x), labels)
            loss.backward()
            optimizer.step()
            return loss

        return step

    eager = make_step(twin)
    graph, loss = captured(make_step(model), warm_ups=3)
    for _ in range(3):  # the warm-up; the capture itself ran nothing
        eager()
    for _ in range(4):
        graph.replay()
        assert torch.equal(loss, eager())
    for got, want in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(got, want)


@pytest.mark.gpu
def test_a_step_on_a_side_stream():
    model = mlp("cuda")
    x, labels = batch("cuda")
    _, expected = gradients(model, x, labels)
    late = torch.zeros_like(x)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(5_000_000)
        late.copy_(x)
        _, grads = gradients(model, late, labels)
    stream.synchronize()
    for got, want in zip(grads, expected, strict=True):
        assert torch.equal(got, want)


def test_distributed_data_parallel_with_one_process(device):
    dist = torch.distributed
    if not dist.is_available():
        pytest.skip("torch without distributed")
    backend = "nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = mlp(device)
        parallel = nn.parallel.DistributedDataParallel(copy.deepcopy(model))
        x, labels = batch(device)
        loss, grads = gradients(model, x, labels)
        for _ in range(2):
            parallel_loss, parallel_grads = gradients(parallel, x, labels)
            assert torch.equal(parallel_loss, loss)
            for got, want in zip(parallel_grads, grads, strict=True):
                assert torch.equal(got, want)
    finally:
        dist.destroy_process_group()


@pytest.mark.smoke
def test_gradient_accumulation_and_hooks(device):
    model = mlp(device)
    x, labels = batch(device)
    _, once = gradients(model, x, labels)
    seen = []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: seen.append(p.shape))
    F.cross_entropy(model(x), labels).backward()
    assert len(seen) == len(once)
    for parameter, grad in zip(model.parameters(), once, strict=True):
        torch.testing.assert_close(parameter.grad, 2 * grad)


def test_saved_tensor_hooks_see_what_is_saved(device):
    packed = []
    x, weight, bias, _ = linear_inputs(8, 12, 16, torch.float32, device)
    leaves = [t.requires_grad_() for t in (x, weight, bias)]
    expected = torch.autograd.grad(fusedops.linear(*leaves, "gelu").sum(), leaves)

    def pack(tensor):
        packed.append(tuple(tensor.shape))
        return tensor.cpu()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t.to(device)):
        y = fusedops.linear(*leaves, "gelu")
    assert sorted(packed) == [(8, 12), (8, 16), (12, 16)]
    for got, want in zip(torch.autograd.grad(y.sum(), leaves), expected, strict=True):
        assert torch.equal(got, want)


@pytest.mark.smoke
def test_inference_mode(device):
    model = mlp(device)
    x, _ = batch(device)
    with torch.inference_mode():
        y = model(x)
    assert y.is_inference()
    torch.testing.assert_close(y.clone(), model(x).detach())
