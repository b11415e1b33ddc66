"""loss_shard_parts and loss_shard_gradient_: the shards of one process make the whole loss."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fusedops import reference
from fusedops.ops.linear_cross_entropy_shard import _join
from util import DTYPES, assert_accurate, make, name

OPS = torch.ops.fusedops
EXTRAS = (0.1, 3.0, 0.01)  # label smoothing, softcap, z loss


def shards_of(logits, widths):
    """(first class, width, logits with rows of whole 16 bytes) of each shard."""
    first = 0
    for width in widths:
        own = logits[:, first : first + width]
        whole = 16 // logits.element_size()
        yield first, width, F.pad(own, (0, -width % whole), value=5.0).contiguous()
        first += width


def by_shards(logits, target, widths, dloss, numbers):
    """(losses, their gradient) as ranks form them."""
    smoothing, softcap, z_loss = numbers
    classes = logits.shape[1]
    shards = list(shards_of(logits, widths))
    parts = [
        OPS.loss_shard_parts(own, target, first, width, classes, -100, softcap, smoothing != 0)
        for first, width, own in shards
    ]
    loss, lse = _join(torch.stack(parts), target != -100, smoothing, z_loss, classes)
    for first, width, own in shards:
        given = (own, target, lse, dloss.to(lse.dtype))
        OPS.loss_shard_gradient_(*given, first, width, classes, -100, smoothing, softcap, z_loss)
        assert not own[:, width:].any()
    return loss, torch.cat([own[:, :width] for _, width, own in shards], 1)


def exact(logits, target, dloss, numbers, dtype):
    """The same by the definition, in a dtype."""
    smoothing, softcap, z_loss = numbers
    x = logits.to(dtype).requires_grad_()
    eye = torch.eye(x.shape[1], dtype=dtype, device=x.device)
    loss = reference.linear_cross_entropy(
        x, eye, target, reduction="none",
        label_smoothing=smoothing, softcap=softcap or None, z_loss=z_loss,
    )  # fmt: skip
    (gradient,) = torch.autograd.grad(loss, x, dloss.expand(len(target)).to(loss.dtype))
    return loss.detach(), gradient


def check(m, widths, dtype, device, numbers, per_row):
    logits = make(m, sum(widths), dtype=dtype, device=device)
    target = torch.randint(sum(widths), (m,), generator=torch.Generator().manual_seed(1))
    target[2::5] = -100
    target = target.to(device)
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    dloss = make(m if per_row else 1, dtype=wide, device=device, seed=2)
    loss, gradient = by_shards(logits, target, widths, dloss, numbers)
    want, want_gradient = exact(logits, target, dloss, numbers, torch.float64)
    near, near_gradient = exact(logits, target, dloss, numbers, wide)
    assert_accurate(loss, near, want, "loss")
    assert_accurate(gradient, near_gradient.to(dtype), want_gradient, "gradient")


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@pytest.mark.parametrize("numbers", [(0.0, 0.0, 0.0), EXTRAS], ids=["plain", "extras"])
@pytest.mark.parametrize("widths", [(16, 16), (20, 17, 0), (1, 600)], ids=str)
def test_shards_make_the_whole(device, widths, numbers, dtype):
    for per_row in (False, True):
        check(9, widths, dtype, device, numbers, per_row)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_long_rows(dtype):
    """Threads that hold several chunks, several times, and the elements behind them."""
    check(3, (9000, 4001), dtype, "cuda", EXTRAS, True)


def test_rows_that_have_no_logits_here(device):
    """Nothing, and rows whose logits are all -inf in one shard."""
    empty = torch.empty(0, 8, device=device)
    target = torch.empty(0, dtype=torch.int64, device=device)
    assert OPS.loss_shard_parts(empty, target, 0, 8, 8, -100, 0.0, True).shape == (0, 4)
    logits = make(4, 16, dtype=torch.float32, device=device)
    logits[:, 8:] = -torch.inf
    target = torch.tensor([0, 3, 7, 1], device=device)
    dloss = torch.ones(1, device=device)
    loss, gradient = by_shards(logits, target, (8, 8), dloss, (0.0, 0.0, 0.0))
    want = F.cross_entropy(logits, target, reduction="none")
    torch.testing.assert_close(loss, want)
    assert not gradient[:, 8:].any()


@pytest.mark.gpu
def test_a_wrong_target_is_nan():
    logits = make(4, 16, dtype=torch.bfloat16, device="cuda")
    target = torch.tensor([0, 16, -1, 15], device="cuda")
    loss, gradient = by_shards(
        logits, target, (8, 8), torch.ones(1, device="cuda"), (0.0, 0.0, 0.0)
    )
    assert loss.isnan().tolist() == [False, True, True, False]
    assert gradient.isnan().all(1).tolist() == [False, True, True, False]


def test_errors(device):
    logits, target = torch.ones(3, 8), torch.zeros(3, dtype=torch.int64)
    lse = torch.ones(3)
    for to in (device, "meta"):
        x, t, s = logits.to(to), target.to(to), lse.to(to)
        for arguments, text in [
            ((x[:, :7], t, 0, 7, 7, -100, 0.0, False), r"logits must have rows of whole 16 bytes"),
            ((x, t, 0, 9, 16, -100, 0.0, False), r"width must be from 0 to 8 for logits \(3, 8\)"),
            ((x, t, 9, 8, 16, -100, 0.0, False), "first must be from 0 to 8 for 8 of 16 classes"),
            ((x, t[:2], 0, 8, 8, -100, 0.0, False), r"target must have shape \(3,\) to match"),
            ((x, t, 0, 8, 2**30, -100, 0.0, False), r"classes must be from 1 to 2\^30 - 1"),
        ]:
            with pytest.raises(RuntimeError, match=f"^loss_shard_parts: {text}"):
                OPS.loss_shard_parts(*arguments)
        rest = (0, 8, 8, -100, 0.0, 0.0, 0.0)
        with pytest.raises(RuntimeError, match=r"^loss_shard_gradient_: lse must have shape \(3,"):
            OPS.loss_shard_gradient_(x, t, s[:2], s, *rest)
        with pytest.raises(RuntimeError, match=r"^loss_shard_gradient_: factor must have shape"):
            OPS.loss_shard_gradient_(x, t, s, s[:2], *rest)
        wide = torch.ones(3, 16).to(to)[:, ::2]
        with pytest.raises(RuntimeError, match=r"^loss_shard_gradient_: logits must be contiguous"):
            OPS.loss_shard_gradient_(wide, t, s, s, *rest)
