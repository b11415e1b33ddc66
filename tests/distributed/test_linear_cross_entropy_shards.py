"""linear_cross_entropy where ranks share the classes: the loss and gradients of one process."""

from __future__ import annotations

import pytest
import torch

import fusedops
from distributed.models import whole
from util import linear_inputs

pytest.importorskip("torch.distributed.tensor")
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

EXTRAS = {"label_smoothing": 0.1, "softcap": 3.0, "z_loss": 0.01}
PLACES = {"x": Replicate(), "rows of x": Shard(0)}
TOLERANCES = {
    torch.float64: (1e-10, 1e-12),
    torch.float32: (1e-5, 1e-6),
    torch.float16: (2e-3, 2e-4),
    torch.bfloat16: (2e-2, 2e-3),
}


def close(got, want):
    rtol, atol = TOLERANCES[want.dtype]
    torch.testing.assert_close(got, want, rtol=rtol, atol=atol)


def inputs(m, v, dtype, device):
    x, weight, bias, _ = linear_inputs(m, v, 12, dtype, device)
    target = torch.randint(v, (m,), generator=torch.Generator().manual_seed(0)).to(device)
    target[2::5] = -100
    return [t.requires_grad_() for t in (x, weight, bias)], target


def by_dtensors(device, m, v, dtype, place, options):
    mesh = init_device_mesh(device, (2,))
    plain, target = inputs(m, v, dtype, device)
    want = fusedops.linear_cross_entropy(plain[0], plain[1], target, plain[2], **options)
    want.backward(torch.full_like(want, 0.75))

    def step():
        places = (PLACES[place], Shard(0), Shard(0))
        x, w, b = (
            distribute_tensor(t.detach(), mesh, [p]).requires_grad_()
            for t, p in zip(plain, places, strict=True)
        )
        loss = fusedops.linear_cross_entropy(x, w, target, b, **options)
        assert loss.placements == (Replicate(),)
        loss.backward(DTensor.from_local(torch.full_like(loss.to_local(), 0.75), mesh))
        assert w.grad.placements == b.grad.placements == (Shard(0),)
        return [whole(t) for t in (loss.detach(), x.grad, w.grad, b.grad)]

    first = step()
    for got, expected in zip(first, (want.detach(), *(t.grad for t in plain)), strict=True):
        close(got, expected)
    assert all(torch.equal(a, b) for a, b in zip(first, step(), strict=True))
    return first[0].tolist()


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("extras", [{}, EXTRAS], ids=["plain", "extras"])
@pytest.mark.parametrize("v", [32, 37, 1])  # even, uneven, none for a rank
def test_dtensors(ranks, v, extras, reduction):
    options = {"reduction": reduction, **extras}
    one, two = ranks.run(by_dtensors, ranks.device, 12, v, torch.float64, "x", options)
    assert one == two


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_dtypes_and_chunks(ranks, dtype):
    for chunk_size in (None, 5):
        options = {"chunk_size": chunk_size, **EXTRAS}
        ranks.run(by_dtensors, ranks.device, 12, 37, dtype, "rows of x", options)


def by_group(device, reduction, main_grad):
    plain, target = inputs(12, 32, torch.float32, device)
    want = fusedops.linear_cross_entropy(
        plain[0], plain[1], target, plain[2], reduction=reduction, **EXTRAS
    )
    want.sum().backward()
    rank = dist.get_rank()
    rows = slice(16 * rank, 16 * rank + 16)
    x, w, b = (t.detach().clone().requires_grad_() for t in (
        plain[0], plain[1].detach()[rows], plain[2].detach()[rows]))  # fmt: skip
    if main_grad:
        w.main_grad = torch.ones_like(w)
    loss = fusedops.linear_cross_entropy(
        x, w, target, b, reduction=reduction, group=dist.group.WORLD, **EXTRAS
    )
    with torch.no_grad():
        alone = fusedops.linear_cross_entropy(
            x, w, target, b, reduction=reduction, group=dist.group.WORLD, **EXTRAS
        )
    assert torch.equal(alone, loss)
    loss.sum().backward()
    close(loss, want)
    dist.all_reduce(x.grad)
    close(x.grad, plain[0].grad)
    close(w.main_grad - 1 if main_grad else w.grad, plain[1].grad[rows])
    close(b.grad, plain[2].grad[rows])


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("main_grad", [False, True])
def test_a_group(ranks, reduction, main_grad):
    ranks.run(by_group, ranks.device, reduction, main_grad)


def compiled(device):
    mesh = init_device_mesh(device, (2,))
    plain, target = inputs(12, 37, torch.float32, device)
    want = fusedops.linear_cross_entropy(plain[0], plain[1], target)
    want.backward()
    x = distribute_tensor(plain[0].detach(), mesh, [Replicate()]).requires_grad_()
    w = distribute_tensor(plain[1].detach(), mesh, [Shard(0)]).requires_grad_()
    call = torch.compile(fusedops.linear_cross_entropy, fullgraph=True, backend="aot_eager")
    loss = call(x, w, distribute_tensor(target, mesh, [Replicate()]))
    loss.backward()
    close(whole(loss.detach()), want.detach())
    close(whole(x.grad), plain[0].grad)
    close(whole(w.grad), plain[1].grad)


def test_compiled(ranks):
    ranks.run(compiled, ranks.device)


def errors(device):
    (x, w, b), target = inputs(6, 8, torch.float32, device)
    group = dist.group.WORLD
    found = []
    for options in ({"chunk_size": -1}, {"softcap": -2.0}, {"label_smoothing": 1.5}):
        with pytest.raises(RuntimeError) as error:
            fusedops.linear_cross_entropy(x, w, target, b, group=group, **options)
        found.append(str(error.value))
    loss = fusedops.linear_cross_entropy(x, w, target, b, group=group)
    with pytest.raises(RuntimeError, match="gradients of gradients must not be asked for"):
        torch.autograd.grad(loss, x, create_graph=True)
    with pytest.raises(RuntimeError, match="transforms must not be asked for"):
        torch.func.grad(lambda x: fusedops.linear_cross_entropy(x, w, target, group=group))(x)
    target[1] = 16
    if device == "cpu":
        with pytest.raises(IndexError, match=r"Target 16 is out of bounds\."):
            fusedops.linear_cross_entropy(x, w, target, b, group=group)
    else:
        assert fusedops.linear_cross_entropy(x, w, target, b, group=group).isnan()
    return found


def test_errors(ranks):
    for found in ranks.run(errors, ranks.device):
        assert found == [
            "linear_cross_entropy: chunk_size must be at least 0; got -1",
            "linear_cross_entropy: softcap must be at least 0; got -2",
            "linear_cross_entropy: label_smoothing must be from 0 to 1; got 1.5",
        ]
