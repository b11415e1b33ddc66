"""Pipelines, SyncBatchNorm, distributed checkpoints and main_grad on two ranks."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import fusedops
from distributed.models import (
    check,
    expected,
    loss_of,
    make_batch,
    make_model,
    named_gradients,
    whole,
)
from util import Calls

pytest.importorskip("torch.distributed.tensor")
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe


def mine(tensor):
    return tensor.chunk(2)[dist.get_rank()]


def shard_model(model, device, **options):
    mesh = init_device_mesh(device, (2,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


# ---- pipeline ----


def pipeline(device):
    want = expected(device)
    rank = dist.get_rank()
    model = make_model(device)
    part = model.blocks[0] if rank == 0 else nn.Sequential(model.blocks[1], model.head)
    prefixes = [("", "blocks.0.")] if rank == 0 else [("0.", "blocks.1."), ("1.", "head.")]
    assert fusedops.fuse(part).blocks
    stage = PipelineStage(part, rank, 2, torch.device(device, rank if device == "cuda" else None))
    schedule = ScheduleGPipe(stage, 2, loss_fn=loss_of)
    x, target = make_batch(device)
    losses = []
    with Calls() as calls:
        if rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=target, losses=losses)
            torch.testing.assert_close(torch.stack(losses).mean(), want[0])
    for name, grad in named_gradients(part).items():
        old, new = next(p for p in prefixes if name.startswith(p[0]))
        key = new + name.removeprefix(old)
        torch.testing.assert_close(grad, want[1][key], rtol=1e-5, atol=1e-5)
    return set(calls.ours)


def test_pipeline_stages(ranks):
    for names in ranks.run(pipeline, ranks.device):
        assert names >= {"mlp_forward", "gated_mlp_backward_"}


# ---- SyncBatchNorm ----


def sync_batch_norm(device):
    def make():
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.BatchNorm1d(16), nn.Linear(16, 4))

    torch.manual_seed(4)
    x = torch.randn(8, 8).to(device)
    model = make().to(device)
    model(x).square().mean().backward()
    ours = nn.SyncBatchNorm.convert_sync_batchnorm(make()).to(device)
    assert fusedops.fuse(ours).num_fused == 2
    ours = DistributedDataParallel(ours)
    ours(mine(x)).square().mean().backward()
    for got, want in zip(ours.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(got.grad, want.grad, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(ours.module[2].running_var, model[2].running_var)


@pytest.mark.multi_gpu  # torch has SyncBatchNorm for GPUs alone
def test_sync_batch_norm(ranks):
    if ranks.device == "cpu":
        pytest.skip("SyncBatchNorm wants a GPU")
    ranks.run(sync_batch_norm, ranks.device)


# ---- distributed checkpoints ----


def checkpoint(device, folder, saved_fused):
    model = shard_model(make_model(device), device)
    want = {k: whole(v).clone() for k, v in model.state_dict().items()}
    other = shard_model(make_model(device), device)
    fusedops.fuse(model if saved_fused else other)
    with torch.no_grad():
        for p in other.parameters():
            p.zero_()
    dcp.save(get_model_state_dict(model), checkpoint_id=folder)
    state = get_model_state_dict(other)
    dcp.load(state, checkpoint_id=folder)
    set_model_state_dict(other, state)
    x, target = make_batch(device)
    assert {k: whole(v) for k, v in other.state_dict().items()}.keys() == want.keys()
    for name, value in other.state_dict().items():
        assert torch.equal(whole(value), want[name]), name
    loss = loss_of(other(mine(x)), mine(target))
    loss.backward()
    dist.all_reduce(loss := loss.detach().clone())
    check(loss / 2, named_gradients(other), expected(device))


@pytest.mark.parametrize("saved_fused", [True, False], ids=["fused to plain", "plain to fused"])
def test_distributed_checkpoint(ranks, tmp_path, saved_fused):
    ranks.run(checkpoint, ranks.device, str(tmp_path), saved_fused)


# ---- accumulation ----


def accumulate(device, how):
    want = expected(device, steps=2)
    model = make_model(device)
    fusedops.fuse(model)
    if how == "main_grad":  # without a wrapper, as Megatron: gradients are reduced by the trainer
        for p in model.parameters():
            if p.dim() == 2:
                p.main_grad = torch.zeros_like(p)
                p.grad_added_to_main_grad = False
        run = model
    else:
        run = DistributedDataParallel(model) if how == "ddp" else shard_model(model, device)
    x, target = make_batch(device)
    for step in range(2):
        if how == "fsdp2":
            run.set_requires_gradient_sync(step == 1)
        with run.no_sync() if how == "ddp" and step == 0 else torch.enable_grad():
            loss = loss_of(run(mine(x)), mine(target))
            loss.backward()
    if how == "main_grad":
        for p in model.parameters():
            p.grad = p.main_grad if p.dim() == 2 else p.grad
            dist.all_reduce(p.grad)
            p.grad /= 2
    dist.all_reduce(loss := loss.detach().clone())
    check(loss / 2, named_gradients(model), want)


@pytest.mark.parametrize("how", ["ddp", "fsdp2", "main_grad"])
def test_gradient_accumulation(ranks, how):
    ranks.run(accumulate, ranks.device, how)


# ---- mixed precision ----


def mixed_precision(device, order):
    want = expected(device)
    model = make_model(device)
    if order == "before":
        fusedops.fuse(model)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = shard_model(model, device, mp_policy=policy)
    if order == "after":
        fusedops.fuse(model)
    x, target = make_batch(device)
    with Calls() as calls:
        loss = loss_of(model(mine(x)).float(), mine(target))
        loss.backward()
    dist.all_reduce(loss := loss.detach().clone())
    assert all(p.grad.dtype is torch.float32 for p in model.parameters())
    check(loss / 2, named_gradients(model), want, tolerance=0.05)
    return set(calls.ours)


@pytest.mark.parametrize("order", ["before", "after"])
def test_fsdp2_in_bfloat16(ranks, order):
    for names in ranks.run(mixed_precision, ranks.device, order):
        assert names >= {"mlp_backward_", "gated_mlp_backward_", "rms_norm_backward"}
