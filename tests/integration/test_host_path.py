"""What a call costs on the host: its allocations, and nothing that waits for the GPU."""

from __future__ import annotations

import pytest
import torch

import fusedops

pytestmark = pytest.mark.gpu


def allocations(call, calls=3):
    """Blocks taken from torch's allocator per call, results kept alive."""
    keep = [call()]  # warm-up
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    keep += [call() for _ in range(calls)]
    return (torch.cuda.memory_stats()["allocation.all.allocated"] - before) / calls


def inputs(m, n, k, dtype=torch.bfloat16):
    sizes = (m, k), (n, k), (n,)
    return [torch.randn(s, device="cuda", dtype=dtype) for s in sizes]


def splits(m, n, k):
    return fusedops.explain((m, k), (n, k)).products[0].plan["splits"]


@pytest.mark.parametrize("shape", [(512, 256, 128), (1024, 1024, 1024), (65, 33, 40)])
@pytest.mark.parametrize("activation", [None, "gelu"])
def test_forward_allocates_its_output_and_what_a_split_needs(shape, activation):
    x, w, b = inputs(*shape)
    with torch.no_grad():
        count = allocations(lambda: fusedops.linear(x, w, b, activation))
    assert count == 1 + (splits(*shape) != 1)


def test_a_split_allocates_its_workspace():
    shape = (192, 256, 16384)
    assert splits(*shape) > 1
    x, w, b = inputs(*shape)
    assert allocations(lambda: fusedops.linear(x, w, b)) == 2


def test_training_allocates_outputs_gradients_and_the_sums_of_dbias():
    m, n, k = 1024, 1024, 1024
    x, w, b = (t.requires_grad_() for t in inputs(m, n, k))
    dy = torch.randn(m, n, device="cuda", dtype=torch.bfloat16)

    def forward():
        return fusedops.linear(x, w, b, "gelu")

    assert allocations(forward) == 2  # y and the pre-activation
    y = forward()

    def backward():
        return torch.autograd.grad(y, (x, w, b), dy, retain_graph=True)

    work = sum(
        product.plan["splits"] != 1
        for product in fusedops.explain(x, w, b, "gelu").products
        if product.role != "forward"
    )
    # dx, dweight, dbias, dz, the partial sums of dbias, a workspace per product that needs one
    assert allocations(backward) == 5 + work


def test_no_call_waits_for_the_gpu():
    x, w, b = (t.requires_grad_() for t in inputs(512, 256, 128))
    fusedops.linear(x, w, b, "relu").sum().backward()
    torch.cuda.set_sync_debug_mode("error")
    try:
        fusedops.linear(x, w, b, "relu").sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    busy = torch.cuda.Event()
    torch.cuda._sleep(200_000_000)  # about 0.1 s
    fusedops.linear(x, w, b, "relu").sum().backward()
    busy.record()
    assert not busy.query()  # the host came through while the GPU was asleep
