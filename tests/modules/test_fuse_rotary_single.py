"""fuse on methods that rotate one tensor at a time by a function of theirs."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

import fusedops
from fusedops._rewrite.rotary.single import SINGLE_ROTATIONS
from util import calls_of

seen = []


def neighbours(x, cos, sin):
    """As in many a Llama: the first rows of long tables, pairs beside each other, in float32."""
    length = x.shape[1]
    even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = cos[:length, None], sin[:length, None]
    turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1)
    return turned.flatten(-2).type_as(x)


def halves(x, cos, sin):
    """As in LitGPT: tables of each batch, halves."""
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cos.unsqueeze(1) + turned * sin.unsqueeze(1)


def gptj(x, sin, cos):
    """As in GPT-J: sines first, made wider, pairs beside each other."""
    sin = torch.repeat_interleave(sin[:, :, None, :], 2, 3)
    cos = torch.repeat_interleave(cos[:, :, None, :], 2, 3)
    turned = torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
    return (x * cos) + (turned * sin)


def other_sign(x, cos, sin):
    half = x.shape[-1] // 2
    turned = torch.cat((x[..., half:], x[..., :half]), dim=-1)
    return x * cos.unsqueeze(1) + turned * sin.unsqueeze(1)


def no_gradient(x, cos, sin):
    return halves(x, cos, sin).detach()


def writes(x, cos, sin):
    seen.append(x.shape)
    return halves(x, cos, sin)


def by_heads(x, cos, sin):
    """Tables cut by the number of heads: a rotation of each batch only by accident."""
    return halves(x, cos[: x.shape[1]], sin[: x.shape[1]])


def cuts_rows(x, cos, sin):
    return halves(x[:, :, :3000], cos, sin)


def cuts_batches(x, cos, sin):
    return torch.cat((halves(x[:3], cos[:3], sin[:3]), x[3:]))


def cuts_values(x, cos, sin):
    return halves(x.clamp(-1000, 1000), cos, sin)


class Attention(nn.Module):
    def __init__(self, layout, dim=16, heads=4):
        super().__init__()
        self.heads, self.layout = heads, layout
        self.q, self.k = nn.Linear(dim, dim), nn.Linear(dim, dim // 2)

    def rows(self, x):
        x = x.unflatten(-1, (-1, 4))
        return x if self.layout == "time" else x.transpose(1, 2)


class Neighbours(Attention):
    def forward(self, x, cos, sin):
        q, k = self.rows(self.q(x)), self.rows(self.k(x))
        return (
            neighbours(q, cos, sin).flatten()
            @ neighbours(k, cos, sin).repeat(2, 1, 1, 1).flatten()[: q.numel()]
        )


class Halves(Attention):
    def forward(self, x, cos, sin):
        q, k = halves(self.rows(self.q(x)), cos, sin), halves(self.rows(self.k(x)), cos, sin)
        return q.square().sum() + k.sin().sum()


class GptJ(Attention):
    def forward(self, x, cos, sin):
        q, k = gptj(self.rows(self.q(x)), sin, cos), gptj(self.rows(self.k(x)), sin, cos)
        return q.square().sum() + k.sin().sum()


def tables(rows, width, device, dtype=torch.float32, batch=None):
    angles = torch.rand(*(() if batch is None else (batch,)), rows, width, device=device) * 6
    return angles.cos().to(dtype), angles.sin().to(dtype)


CASES = {
    "neighbours": (Neighbours, "time", lambda d: tables(9, 2, d)),
    "halves": (Halves, "heads", lambda d: tables(5, 4, d, batch=3)),
    "gptj": (GptJ, "time", lambda d: tables(5, 2, d, batch=3)),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_rotations_run_as_rope(device, name, dtype):
    kind, layout, of_tables = CASES[name]
    torch.manual_seed(0)
    model = kind(layout).to(device, dtype)
    x = torch.randn(3, 5, 16, device=device, dtype=dtype)
    table = dtype if dtype is torch.float64 or name != "neighbours" else torch.float32
    cos, sin = (t.to(table) for t in of_tables(device))
    taken = name != "neighbours" or dtype is not torch.float64  # the other one computes in float32
    fused = copy.deepcopy(model)
    report = fusedops.fuse(fused)
    assert [names for _, _, names in report.rotations] == [(name,)]
    results = []
    for one in (model, fused):
        y = one(x, cos, sin)
        results.append([y.detach(), *torch.autograd.grad(y, list(one.parameters()))])
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5}.get(dtype, 5e-2)
    for got, want in zip(*results[::-1], strict=True):
        torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance * want.abs().max())
    assert calls_of(fused, x, cos, sin).ours.count("rope") == 2 * taken
    again = pickle.loads(pickle.dumps(fused))
    assert calls_of(again, x, cos, sin).ours.count("rope") == 2 * taken


@pytest.mark.parametrize(
    "function", [other_sign, no_gradient, writes, cuts_rows, cuts_batches, cuts_values]
)
def test_other_functions_are_none(function):
    assert SINGLE_ROTATIONS.find(function) is None
    assert not seen


def test_what_a_function_cuts_tables_by_is_found(device):
    """Only where the cut is by the length is it a rotation, for every size."""
    form = SINGLE_ROTATIONS.find(by_heads)
    assert (form.heads_dim, form.table_dims, form.cuts) == (2, 2, True)
    cos, sin = tables(5, 4, device, batch=3)
    assert not form.takes(torch.randn(3, 1, 5, 4, device=device), cos, sin)


def test_what_the_op_cannot_take_is_the_functions(device):
    form = SINGLE_ROTATIONS.find(neighbours)
    x, (cos, sin) = torch.randn(3, 5, 4, 4, device=device), tables(9, 2, device)
    assert form.takes(x, cos, sin)
    assert form.cuts
    for args in (
        (x[0], cos, sin),
        (x, cos[:4], sin[:4]),  # fewer rows than positions
        (x, cos[:, :1], sin[:, :1]),
        (x, cos[None], sin[None]),
        (x, cos, sin.double()),
        (x.double(), cos, sin),  # torch's result is in float64, by tables in float32
        (x, cos.clone().requires_grad_(), sin),
    ):
        assert not form.takes(*args)


def test_another_function_of_the_name_is_called_as_it_is(device, monkeypatch):
    model = Neighbours("time").to(device)
    fusedops.fuse(model)
    x, (cos, sin) = torch.randn(3, 5, 16, device=device), tables(9, 2, device)
    monkeypatch.setitem(globals(), "neighbours", lambda x, cos, sin: x)
    q, k = (model.rows(layer(x)) for layer in (model.q, model.k))
    want = q.flatten() @ k.repeat(2, 1, 1, 1).flatten()[: q.numel()]
    torch.testing.assert_close(model(x, cos, sin), want)
