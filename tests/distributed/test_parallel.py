"""Parallelised models with fusedops, parallelised before and after `fuse`: the whole model's step."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fusedops

pytest.importorskip("torch.distributed.tensor")
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard  # noqa: E402
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor  # noqa: E402
from torch.distributed.tensor.parallel import (  # noqa: E402
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

D, H, V = 16, 32, 24


class FeedForward(nn.Module):
    def __init__(self, bias):
        super().__init__()
        self.gate = nn.Linear(D, H, bias=bias)
        self.up = nn.Linear(D, H, bias=bias)
        self.down = nn.Linear(H, D, bias=bias)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, bias):
        super().__init__()
        self.norm1 = nn.LayerNorm(D)
        self.mlp = nn.Sequential(nn.Linear(D, H), nn.GELU(), nn.Linear(H, D))
        self.norm2 = nn.RMSNorm(D)
        self.ff = FeedForward(bias)

    def forward(self, x):
        x = x + self.mlp(self.norm1(x))
        return x + self.ff(self.norm2(x))


class Model(nn.Module):
    def __init__(self, bias=True):
        super().__init__()
        self.blocks = nn.ModuleList([Block(bias) for _ in range(2)])
        self.head = nn.Linear(D, V, bias=False)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def make_model(device, bias=True):
    torch.manual_seed(1)
    model = Model(bias)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.05 * torch.randn_like(p))
    return model.to(device)


def make_batch(device, batch=4):
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(batch, 6, D, generator=generator)
    return x.to(device), torch.randint(V, (batch, 6), generator=generator).to(device)


def loss_of(logits, target):
    return F.cross_entropy(logits.flatten(0, -2), target.flatten())


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def named_gradients(model):
    return {name: whole(p.grad) for name, p in model.named_parameters()}


def expected(device, bias=True):
    """Loss and gradients of the unfused model on all of the batch."""
    model = make_model(device, bias)
    x, target = make_batch(device)
    loss = loss_of(model(x), target)
    loss.backward()
    return loss.detach(), named_gradients(model)


def check(loss, gradients, want, tolerance=1e-5):
    torch.testing.assert_close(whole(loss.detach()), want[0], rtol=tolerance, atol=tolerance)
    assert gradients.keys() == want[1].keys()
    for name, grad in gradients.items():
        torch.testing.assert_close(
            grad, want[1][name], rtol=tolerance, atol=tolerance, msg=lambda t, n=name: f"{n}: {t}"
        )


# ---- tensor and sequence parallel ----


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
        assert report.num_fused >= 10 * (1 if sequence else 1), report
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


class Calls(torch.utils._python_dispatch.TorchDispatchMode):
    """The names of our ops that ran."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "fusedops":
            self.names.add(function.__name__.removesuffix(".default"))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("loss_in_parts", [False, True], ids=["whole", "loss_parallel"])
@pytest.mark.parametrize("order", ["before", "after"])
@pytest.mark.parametrize("sequence", [False, True], ids=["tp", "tp+sp"])
def test_tensor_parallel(ranks, sequence, order, loss_in_parts):
    for names in ranks.run(tensor_parallel, ranks.device, sequence, order, loss_in_parts):
        assert {"linear", "linear_backward", "layer_norm", "rms_norm_backward"} <= names
