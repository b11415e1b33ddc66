"""Tensor, sequence and loss parallel, applied before and after `fuse`: the whole model's step."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import fusedops
from distributed.models import (
    D,
    FeedForward,
    H,
    check,
    expected,
    loss_of,
    make_batch,
    make_model,
    named_gradients,
)
from util import Calls

pytest.importorskip("torch.distributed.tensor")
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)


def tensor_parallel_plan(sequence):
    layout = Shard(1) if sequence else Replicate()
    plan = {
        "mlp.0": ColwiseParallel(input_layouts=layout),
        "mlp.2": RowwiseParallel(output_layouts=layout, use_local_output=not sequence),
        "ff": PrepareModuleInput(
            input_layouts=(layout,), desired_input_layouts=(Replicate(),), use_local_output=False
        ),
        "ff.gate": ColwiseParallel(use_local_output=False),
        "ff.up": ColwiseParallel(use_local_output=False),
        "ff.down": RowwiseParallel(output_layouts=layout, use_local_output=not sequence),
    }
    if sequence:
        plan |= {"norm1": SequenceParallel(), "norm2": SequenceParallel()}
    return plan


def tensor_parallel(device, sequence, order, loss_in_parts):
    mesh = init_device_mesh(device, (2,))
    want = expected(device)
    model = make_model(device)
    if order == "before":
        fusedops.fuse(model)
    for block in model.blocks:
        parallelize_module(block, mesh, tensor_parallel_plan(sequence))
    head = ColwiseParallel(
        input_layouts=Shard(1) if sequence else Replicate(),
        output_layouts=Shard(-1) if loss_in_parts else Replicate(),
        use_local_output=not loss_in_parts,
    )
    parallelize_module(model, mesh, {"head": head})
    if order == "after":
        report = fusedops.fuse(model)
        assert report.num_fused == 15, report
    x, target = make_batch(device)
    if sequence:
        x = distribute_tensor(x, mesh, [Shard(1)])
    calls = Calls()
    with calls:
        logits = model(x)
        if loss_in_parts:
            with loss_parallel():
                loss = loss_of(logits, target)
                loss.backward()
        else:
            loss = loss_of(logits, target)
            loss.backward()
    check(loss, named_gradients(model), want)
    return set(calls.ours)


@pytest.mark.parametrize("loss_in_parts", [False, True], ids=["whole", "loss_parallel"])
@pytest.mark.parametrize("order", ["before", "after"])
@pytest.mark.parametrize("sequence", [False, True], ids=["tp", "tp+sp"])
def test_tensor_parallel(ranks, sequence, order, loss_in_parts):
    for names in ranks.run(tensor_parallel, ranks.device, sequence, order, loss_in_parts):
        assert {"linear", "linear_backward", "layer_norm", "rms_norm_backward"} <= names


# ---- a whole MLP as one op ----


def whole_mlp(device, kind, sequence, fused):
    mesh = init_device_mesh(device, (2,))
    torch.manual_seed(6)
    plain = {
        "mlp": lambda: nn.Sequential(nn.Linear(D, H), nn.GELU(), nn.Linear(H, D)),
        "gated": FeedForward,
    }[kind]().to(device)
    ours = copy.deepcopy(plain)
    if fused == "before":
        fusedops.fuse(ours)
    layers = list(ours.children())
    for layer in (m for m in layers if isinstance(m, nn.Linear)):
        last = layer is layers[-1]
        for name, placement in (
            ("weight", Shard(int(last))),
            ("bias", [Shard(0), Replicate()][last]),
        ):
            value = distribute_tensor(getattr(layer, name).detach(), mesh, [placement])
            setattr(layer, name, nn.Parameter(value))
    rows = Shard(1) if sequence else Replicate()
    into = PrepareModuleInput(
        input_layouts=(rows,), desired_input_layouts=(Replicate(),), use_local_output=False
    )
    parallelize_module(ours, mesh, into)
    if fused == "after":
        fusedops.fuse(ours)
    torch.manual_seed(7)
    x = torch.randn(2, 4, D, device=device)
    want = plain(x)
    mine = x.chunk(2, 1)[mesh.get_rank()] if sequence else x
    with Calls() as calls:
        y = ours(mine)
        assert y.placements == (Partial(),)
        y = y.redistribute(placements=[rows])
        y.square().sum().backward()
    want.square().sum().backward()
    torch.testing.assert_close(y.full_tensor(), want)
    for got, other in zip(ours.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(got.grad.full_tensor(), other.grad, rtol=1e-4, atol=1e-5)
        assert got.grad.placements == got.placements
    return set(calls.ours)


@pytest.mark.parametrize("fused", ["before", "after"])
@pytest.mark.parametrize("sequence", [False, True], ids=["tp", "tp+sp"])
@pytest.mark.parametrize("kind", ["mlp", "gated"])
def test_a_whole_mlp_is_one_op(ranks, kind, sequence, fused):
    op = {"mlp": "mlp_forward", "gated": "gated_mlp_forward"}[kind]
    for names in ranks.run(whole_mlp, ranks.device, kind, sequence, fused):
        assert op in names


# ---- under torch.compile ----


def compiled(device, how):
    mesh = init_device_mesh(device, (2,))
    want = expected(device)
    model = make_model(device)
    fusedops.fuse(model)
    for block in model.blocks:
        if how == "fsdp2":
            fully_shard(block, mesh=mesh)
        else:
            parallelize_module(block, mesh, tensor_parallel_plan(False))
        block.compile(backend="aot_eager")
    if how == "fsdp2":
        fully_shard(model, mesh=mesh)
    loss = loss_of(model(make_batch(device)[0]), make_batch(device)[1])
    loss.backward()
    check(loss, named_gradients(model), want)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["fsdp2", "tp"])
def test_compiled_blocks(ranks, how):
    ranks.run(compiled, ranks.device, how)
