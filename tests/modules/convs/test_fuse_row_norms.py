"""Batch norms of rows in an nn.Sequential, with the activation behind them."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import fusedops
from fusedops._rewrite.convs import rows


@pytest.fixture
def ran(monkeypatch):
    """The activations of the norms that ran as one op."""
    found = []
    whole = rows.batch_norm_act

    def run(x, *args, **options):
        found.append(options["activation"])
        return whole(x, *args, **options)

    monkeypatch.setattr(rows, "batch_norm_act", run)
    for name in ("may_pay", "norm_pays"):  # on a CPU and for few rows, too
        monkeypatch.setattr(rows, name, lambda *_: True)
    return found


def both(device="cpu", **options):
    """A model before and after fuse, and the report."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(6, 16, bias=False), nn.BatchNorm1d(16, **options), nn.ReLU(),
        nn.Linear(16, 24), nn.BatchNorm1d(24, **options), nn.SiLU(), nn.Linear(24, 3),
    ).to(device)  # fmt: skip
    original = copy.deepcopy(model)
    return original, model, fusedops.fuse(model)


def results(model, x):
    """Output, gradients and buffers of a call."""
    model.zero_grad()
    x = x.clone().requires_grad_()
    y = model(x)
    (
        y * torch.linspace(-1, 1, y.numel(), device=y.device, dtype=y.dtype).view(y.shape)
    ).sum().backward()
    return [y, x.grad, *(p.grad for p in model.parameters()), *model.buffers()]


def check(model, original, x, **tolerances):
    ours, theirs = results(model, x), results(original, x)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, **tolerances)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "options", [{}, {"affine": False}, {"track_running_stats": False}], ids=str
)
def test_it_agrees_with_the_modules(training, options, ran):
    original, model, report = both(**options)
    x = torch.randn(33, 6)
    for one in (original, model):
        one.train(training)
    for _ in range(2):
        check(model, original, x)
    assert ran == ["relu", "silu"] * 2
    assert "1 runs with 2" in str(report)
    assert list(model.state_dict()) == list(original.state_dict())


def test_what_it_cannot_is_left_to_the_modules(ran):
    original, model, _ = both()
    seen = []
    model[1].register_forward_hook(lambda *_: seen.append(1))
    check(model, original, torch.randn(5, 6))
    assert seen
    assert ran == ["silu"]
    with pytest.raises(ValueError, match="Expected more than 1 value per channel"):
        model(torch.randn(1, 6))
    model[4].eval()
    model[1].eval()
    model(torch.randn(1, 6))
    own = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(4), nn.ReLU())
    fusedops.fuse(own)
    ran.clear()
    assert own(torch.randn(2, 4, 6)).shape == (2, 4, 6)  # (N, C, L)
    assert ran == []


def test_a_momentum_of_none_is_the_mean_of_all_batches(ran):
    original, model, _ = both(momentum=None)
    for seed in range(2):
        torch.manual_seed(seed)
        check(model, original, torch.randn(9, 6))
    assert ran == ["relu", "silu"] * 2


def test_a_copy_runs_alike(ran):
    _, model, _ = both()
    x = torch.randn(8, 6)
    torch.testing.assert_close(copy.deepcopy(model)(x), model(x))
    assert ran == ["relu", "silu"] * 2


def test_compiled_it_is_torchs(ran):
    original, model, _ = both()
    x = torch.randn(8, 6)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), original(x))
    assert ran == []


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_many_rows_on_a_gpu(dtype, monkeypatch):
    found = []
    whole = rows.batch_norm_act
    monkeypatch.setattr(rows, "batch_norm_act", lambda *a, **o: found.append(1) or whole(*a, **o))
    original, model, _ = both("cuda")
    x = torch.randn(1_200_000, 6, device="cuda", dtype=dtype)
    exact = copy.deepcopy(original).double()(x.double())
    ours, theirs = model.to(dtype)(x), original.to(dtype)(x)
    assert len(found) == 2
    error = [(y.double() - exact).norm() for y in (ours, theirs)]
    assert error[0] <= 1.1 * error[1]
