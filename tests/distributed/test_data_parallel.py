"""FSDP2, FSDP1, DDP and pipelines of fused models, wrapped before and after `fuse`."""

from __future__ import annotations

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import fusedops
from distributed.models import (
    check,
    expected,
    loss_of,
    make_batch,
    make_model,
    named_gradients,
)
from util import Calls

pytest.importorskip("torch.distributed.tensor")
import torch.distributed as dist
from torch.distributed.algorithms._checkpoint import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    fully_shard,
)

MLPS = {"mlp_forward", "gated_mlp_forward"}
ALL = {*MLPS, "linear", "layer_norm_backward", "rms_norm_backward"}
IN_PLACE = {"mlp_backward_", "gated_mlp_backward_"}  # not where checkpoints take what is saved


def my_batch(device):
    """This rank's half."""
    x, target = make_batch(device)
    return x.chunk(2)[dist.get_rank()], target.chunk(2)[dist.get_rank()]


def wrap_fsdp2(model, mesh, **options):
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def wrap(model, device, how):
    if how == "ddp":
        return DistributedDataParallel(model)
    if how == "fsdp1":
        return FullyShardedDataParallel(
            model, use_orig_params=True, device_id=torch.device(device, dist.get_rank())
            if device == "cuda" else torch.device("cpu"),
        )  # fmt: skip
    mesh = init_device_mesh(device, (2,))
    if how == "fsdp2":
        return wrap_fsdp2(model, mesh)
    if how == "fsdp2 each":
        for block in model.blocks:
            for module in (block.norm1, block.mlp, block.ff):
                fully_shard(module, mesh=mesh)
        return wrap_fsdp2(model, mesh)
    assert how == "checkpoint"
    for i, block in enumerate(model.blocks):
        model.blocks[i] = checkpoint_wrapper.checkpoint_wrapper(block)
    return wrap_fsdp2(model, mesh)


def one_step(device, how, order):
    want = expected(device)
    model = make_model(device)
    if order == "before":
        fusedops.fuse(model)
    model = wrap(model, device, how)
    if order == "after":
        fusedops.fuse(model)
    x, target = my_batch(device)
    with Calls() as calls:
        loss = loss_of(model(x), target)
        loss.backward()
    if how == "fsdp1":  # gradients are flat shards
        with FullyShardedDataParallel.summon_full_params(model, with_grads=True):
            gradients = {k: v.clone() for k, v in named_gradients(model).items()}
    else:
        gradients = named_gradients(model)
    dist.all_reduce(loss := loss.detach().clone())
    check(loss / 2, gradients, want)
    return set(calls.ours)


@pytest.mark.parametrize("order", ["before", "after"])
@pytest.mark.parametrize("how", ["ddp", "fsdp1", "fsdp2", "fsdp2 each", "checkpoint"])
def test_a_step(ranks, how, order):
    for names in ranks.run(one_step, ranks.device, how, order):
        assert names >= ALL | (set() if how == "checkpoint" else IN_PLACE)
