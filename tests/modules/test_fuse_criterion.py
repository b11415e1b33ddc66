"""fuse_loss: which functions it takes, what they give, and what runs as it was."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fusedops
from util import DTYPES, name

SCALE = 1.5


def titan(pred, labels):
    return F.cross_entropy(pred.flatten(0, 1).float(), labels.flatten(0, 1))


def nano(logits, targets):
    return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)


def smooth_sum(x, y):
    return F.cross_entropy(x.float(), y, reduction="sum", label_smoothing=0.1)


def next_token(logits, labels):
    labels = F.pad(labels, (0, 1), value=-100)[..., 1:].contiguous()
    return F.cross_entropy(logits.float().view(-1, logits.size(-1)), labels.view(-1))


def scaled(logits, labels):
    return SCALE * F.cross_entropy(logits, labels)


def squared(logits, labels):
    return F.cross_entropy(logits, labels) + logits.square().mean()


def cut(logits, labels):
    return F.cross_entropy(logits[:64], labels[:64])


def printed(logits, labels):
    print(labels)
    return F.cross_entropy(logits, labels)


FUNCTIONS = [(titan, 3, -100), (nano, 3, -1), (smooth_sum, 2, -100), (next_token, 3, -100)]


def inputs(dims, ignored, dtype, device):
    shape = (5, 7, 33) if dims == 3 else (35, 33)
    logits = torch.randn(shape, dtype=torch.float64).to(device, dtype)
    target = torch.randint(33, shape[:-1]).to(device)
    target.view(-1)[::3] = ignored
    return logits, target


def called(monkeypatch):
    """Counts the calls of our op."""
    calls = []
    ours = torch.ops.fusedops.cross_entropy

    def count(*args):
        calls.append(args)
        return ours(*args)

    monkeypatch.setattr("fusedops.ops.cross_entropy._cross_entropy", count)
    return calls


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@pytest.mark.parametrize(("function", "dims", "ignored"), FUNCTIONS)
def test_values_and_gradients(device, monkeypatch, function, dims, ignored, dtype):
    logits, target = inputs(dims, ignored, dtype, device)
    ours = fusedops.fuse_loss(function)
    calls = called(monkeypatch)
    results = []
    for loss_fn in (ours, function):
        leaf = logits.clone().requires_grad_()
        loss = loss_fn(leaf, target)
        (3 * loss).backward()
        results.append((loss.detach(), leaf.grad))
    narrows = dtype is torch.float64 and function is not nano  # to float32
    assert len(calls) == (0 if narrows else 1)
    (loss, grad), (theirs, their_grad) = results
    assert loss.dtype is theirs.dtype
    torch.testing.assert_close(loss, theirs, rtol=4 * torch.finfo(loss.dtype).eps, atol=0)
    scale = float(their_grad.abs().max())
    limit = 2 * torch.finfo(dtype).eps * scale
    torch.testing.assert_close(grad, their_grad, rtol=0, atol=limit)


@pytest.mark.parametrize("function", [scaled, squared, cut, printed])
def test_refused(function):
    with pytest.raises(ValueError, match=r"^fuse_loss: expected a function that prepares logits"):
        fusedops.fuse_loss(function)


def test_errors():
    with pytest.raises(TypeError, match=r"must be a Python function; got int$"):
        fusedops.fuse_loss(3)
    with pytest.raises(TypeError, match=r"got CrossEntropyLoss; a module goes to fusedops\.fuse"):
        fusedops.fuse_loss(nn.CrossEntropyLoss())


def test_once():
    ours = fusedops.fuse_loss(titan)
    assert fusedops.fuse_loss(ours) is ours
    assert ours.__name__ == "titan"


def test_runs_as_it_was(device, monkeypatch):
    """Named arguments, layouts and shapes that the op does not take, a replaced name."""
    logits, target = inputs(3, -100, torch.float32, device)
    ours = fusedops.fuse_loss(titan)
    calls = called(monkeypatch)
    expected = titan(logits, target)
    torch.testing.assert_close(ours(logits, labels=target), expected)
    strided = logits.transpose(0, 1).contiguous().transpose(0, 1)
    torch.testing.assert_close(ours(strided, target), expected)
    with pytest.raises((RuntimeError, ValueError, IndexError)):
        ours(logits, target[0])
    assert not calls
    monkeypatch.setattr(F, "cross_entropy", lambda x, y: x.sum())
    torch.testing.assert_close(ours(logits, target), logits.sum())
    assert not calls


def test_autocast(device):
    logits, target = inputs(3, -100, torch.bfloat16, device)
    with torch.autocast(device, dtype=torch.bfloat16):
        loss, theirs = (f(logits, target) for f in (fusedops.fuse_loss(titan), titan))
    assert loss.dtype is theirs.dtype is torch.float32
    torch.testing.assert_close(loss, theirs)


def test_compile(device):
    logits, target = inputs(3, -100, torch.float32, device)
    compiled = torch.compile(fusedops.fuse_loss(titan), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(logits, target), titan(logits, target))
