"""Tensor, sequence and loss parallel, applied before and after `fuse`: the whole model's step."""

from __future__ import annotations

import pytest

import fusedops
from distributed.models import (
    Calls,
    check,
    expected,
    loss_of,
    make_batch,
    make_model,
    named_gradients,
)

pytest.importorskip("torch.distributed.tensor")
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
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
    return calls.names


@pytest.mark.parametrize("loss_in_parts", [False, True], ids=["whole", "loss_parallel"])
@pytest.mark.parametrize("order", ["before", "after"])
@pytest.mark.parametrize("sequence", [False, True], ids=["tp", "tp+sp"])
def test_tensor_parallel(ranks, sequence, order, loss_in_parts):
    for names in ranks.run(tensor_parallel, ranks.device, sequence, order, loss_in_parts):
        assert {"linear", "linear_backward", "layer_norm", "rms_norm_backward"} <= names
