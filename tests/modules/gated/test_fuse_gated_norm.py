"""fusedops.fuse on RMS norms with a gate, as Mamba2 and linear attention have them."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fusedops
from util import calls_of, make


class Table(dict):
    """Makes a module whenever it is read, as transformers' ACT2FN."""

    def __getitem__(self, key):
        return super().__getitem__(key)()


class PlainSiLU(nn.Module):
    def forward(self, x):
        return F.silu(x)


ACTS = Table(silu=PlainSiLU, sigmoid=nn.Sigmoid)


class MambaNorm(nn.Module):
    """The gate first, rows in groups, as Mamba2."""

    def __init__(self, group=24, size=24):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size))
        self.variance_epsilon = 1e-6
        self.group_size = group

    def forward(self, hidden_states, gate=None):
        dtype = hidden_states.dtype
        hidden_states = hidden_states.to(torch.float32)
        if gate is not None:
            hidden_states = hidden_states * F.silu(gate.to(torch.float32))
        *before, last = hidden_states.shape
        groups = last // self.group_size
        rows = hidden_states.view(*before, groups, self.group_size)
        rows = rows * torch.rsqrt(rows.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * rows.view(*before, groups * self.group_size).to(dtype)


class QwenNorm(nn.Module):
    """The norm first, rounded before its weight, as Qwen3-Next."""

    def __init__(self, act="silu", size=24):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size))
        self.eps = 1e-6
        self.activation = act

    def forward(self, x, gate):
        dtype = x.dtype
        x = x.to(torch.float32)
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        x = self.weight * x.to(dtype)
        return (x * ACTS[self.activation](gate.to(torch.float32))).to(dtype)


class KimiNorm(QwenNorm):
    """Rounded once, at its end, as Kimi Linear."""

    def forward(self, x, gate):
        dtype = x.dtype
        x = x.to(torch.float32)
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        x = self.weight.to(torch.float32) * x
        return (x * ACTS[self.activation](gate.to(torch.float32))).to(dtype)


class Twice(QwenNorm):
    def forward(self, x, gate):
        return super().forward(x, gate) * ACTS[self.activation](gate)


class ByTable(QwenNorm):
    """Its table hands on what it holds: another may have changed it."""

    table = {"silu": nn.SiLU()}  # noqa: RUF012

    def forward(self, x, gate):
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * x * HELD[self.activation](gate)


HELD = {"silu": nn.SiLU()}
ALL = {
    "mamba": MambaNorm,
    "groups": lambda: MambaNorm(8),
    "qwen": QwenNorm,
    "qwen_sigmoid": lambda: QwenNorm("sigmoid"),
    "kimi": lambda: KimiNorm("sigmoid"),
}


class Model(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.norm = ALL[kind]() if kind in ALL else kind()

    def forward(self, x, gate):
        return self.norm(x, gate)


def fused(kind, device, dtype=torch.float32):
    torch.manual_seed(0)
    model = Model(kind).to(device, dtype)
    original = copy.deepcopy(model)
    report = fusedops.fuse(model)
    return original, model, report


def inputs(device, dtype=torch.float32, shape=(3, 5, 24)):
    made = [make(*shape, dtype=dtype, device=device, seed=s) for s in (1, 2)]
    return [t.requires_grad_() for t in made]


def gradients(model, args, dy):
    y = model(*args)
    return y, torch.autograd.grad(y, [*args, *model.parameters()], dy.to(y.dtype))


def ops(model, *args, **kwargs):
    return calls_of(lambda: model(*args, **kwargs)).ours


@pytest.mark.parametrize("kind", ALL)
def test_runs_our_norm(device, kind):
    original, model, report = fused(kind, device)
    assert report.fused[0].note.endswith("is gated_rms")
    args = inputs(device)
    assert ops(model, *args) == ops(model, args[0], gate=args[1]) == ["rms_norm"]
    assert isinstance(model.norm, type(original.norm))
    dy = make(3, 5, 24, dtype=torch.float32, device=device, seed=3)
    torch.testing.assert_close(
        gradients(model, args, dy), gradients(original, args, dy), rtol=1e-4, atol=1e-5
    )
    again = fusedops.fuse(model)
    assert (again.num_fused, again.unchanged) == (0, 1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ALL)
def test_is_as_exact_in_half_precision(device, kind, dtype):
    original, model, _ = fused(kind, device, dtype)
    args = inputs(device, dtype, (64, 50, 24))
    assert ops(model, *args) == ["rms_norm"]
    dy = make(64, 50, 24, dtype=dtype, device=device, seed=3)
    mine, other = gradients(model, args, dy), gradients(original, args, dy)
    form = model.norm._fused.form
    wide = [t.detach().double().requires_grad_() for t in (*args, original.norm.weight)]
    exact = form.reference(*wide)
    want = (exact, torch.autograd.grad(exact, wide, dy.double()))
    assert mine[0].dtype is other[0].dtype is dtype
    error, limit = (mine[0] - exact).abs().max(), (other[0] - exact).abs().max()
    assert error <= 1.05 * limit + 1e-6
    for a, b, true in zip(mine[1], other[1], want[1], strict=True):
        assert a.dtype is b.dtype
        error, limit = (a - true).abs().max(), (b - true).abs().max()
        assert error <= 1.5 * limit + 4 * torch.finfo(dtype).eps * true.abs().max()


def test_rounds_as_often_as_the_module(device):
    assert [fused(k, device)[1].norm._fused.form.rounds_once for k in ("qwen", "kimi")] == [
        False,
        True,
    ]


def test_what_was_not_probed_is_its_own(device):
    original, model, _ = fused("mamba", device)
    x, gate = (t.detach() for t in inputs(device))
    turned = x.transpose(0, 1), gate.transpose(0, 1)
    assert torch.equal(model.norm(x), original.norm(x))
    for args in ((x, None), (x.double(), gate.double()), (x, gate[:1]), turned):
        assert ops(model, *args) == []
        assert torch.equal(model(*args), original(*args))
    with pytest.raises(RuntimeError, match="must match"):
        model(x, gate[..., :7])
    half = x.bfloat16(), gate.bfloat16()
    with torch.autocast(device, torch.bfloat16):
        assert ops(model, *half) == []
    # A weight of fp32 beside half rows gives fp32.
    assert model(*half).dtype is original(*half).dtype is torch.float32


def test_another_table_entry_is_respected(device, monkeypatch):
    original, model, _ = fused("qwen", device)
    args = inputs(device)
    monkeypatch.setitem(ACTS, "silu", nn.Tanh)
    assert ops(model, *args) == []
    torch.testing.assert_close(model(*args), original(*args))
    monkeypatch.undo()
    assert ops(model, *args) == ["rms_norm"]
    monkeypatch.setattr(PlainSiLU, "forward", lambda self, x: x)
    assert ops(model, *args) == []
    torch.testing.assert_close(model(*args), original(*args))


@pytest.mark.parametrize("kind", [Twice, ByTable])
def test_leaves_alone(device, kind):
    original, model, report = fused(kind, device)
    assert report.num_fused == 0
    assert report.skipped == [] or report.skipped[0].reason
    args = inputs(device)
    assert ops(model, *args) == []
    assert torch.equal(model(*args), original(*args))


@pytest.mark.parametrize("kind", ALL)
def test_copies_pickles_and_compiles(device, kind):
    original, model, _ = fused(kind, device)
    args = inputs(device)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert ops(other, *args) == ["rms_norm"]
        torch.testing.assert_close(other(*args), original(*args), rtol=1e-4, atol=1e-5)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*args), original(*args), rtol=1e-4, atol=1e-5)
