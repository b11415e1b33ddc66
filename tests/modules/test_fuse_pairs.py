"""fusedops.fuse on a sum and the norm of it: one op gives both."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

import fusedops
from modules import layers, leaves
from util import calls_of, make


class PreNorm(nn.Module):
    """Normalises first, as Llama's layer."""

    def __init__(self, norm=lambda: leaves.LlamaNorm(12)):
        super().__init__()
        self.first, self.second = norm(), norm()
        self.attention = nn.Linear(12, 12)
        self.mlp = nn.Linear(12, 12)

    def forward(self, hidden_states, scale=1.0):
        residual = hidden_states
        hidden_states = self.first(hidden_states)
        hidden_states = self.attention(hidden_states) * scale
        hidden_states = residual + hidden_states
        residual = hidden_states
        hidden_states = self.second(hidden_states)
        hidden_states = self.mlp(hidden_states)
        return residual + hidden_states


class Nested(PreNorm):
    """In expressions, as timm's and nanoGPT's blocks."""

    def forward(self, x):
        x = x + self.attention(self.first(x))
        x = x + self.mlp(self.second(x))
        return x  # noqa: RET504


class Annotated(PreNorm):
    """With the type of what it returns."""

    def forward(self, x):
        x = x + self.attention(self.first(x))
        y: torch.Tensor = x + self.mlp(self.second(x))
        return y


class InBranch(PreNorm):
    """Where other branches do more with a name, as GPT-NeoX's layer."""

    parallel = False

    def forward(self, x):
        y = self.attention(self.first(x))
        if self.parallel:
            x = self.mlp(y) + self.second(x)
        else:
            y = y + x
            z = self.mlp(self.second(y))
            x = z + y
        return x


class PostNorm(PreNorm):
    """The norm of a sum, as BERT's layer."""

    def forward(self, x):
        x = self.first(x + self.attention(x))
        return self.second(self.mlp(x) + x)


class Between(PreNorm):
    """Something else changes the sum before it is normalised."""

    def forward(self, x):
        x = x + self.attention(self.first(x))
        x.mul_(2.0)
        return x + self.mlp(self.second(x))


class Late(PreNorm):
    """Another module runs before the norm."""

    def forward(self, x):
        y = x + self.attention(self.first(x))
        return self.mlp(x) + self.second(y)


class Maybe(PreNorm):
    def forward(self, x, deep=False):
        y = x + self.attention(self.first(x))
        return self.second(y) if deep else y


class Returned(PreNorm):
    """Gives the sum as well, of which gradients may be asked."""

    def forward(self, x):
        y = x + self.attention(self.first(x))
        return self.second(y), y


class Stored(PreNorm):
    def forward(self, x):
        self.kept = None
        y = x + self.attention(self.first(x))
        z = self.second(y)
        self.kept = y
        return self.mlp(z) + y, self.kept


class HandedOn(PreNorm):
    """A function may do anything with the sum: hooks on it, a change in place."""

    def forward(self, x):
        y = x + self.attention(self.first(x))
        residual = y
        y = self.second(y)
        return self.mlp(y) + self.passed(residual), residual

    def passed(self, x):
        if x.requires_grad:
            x.register_hook(lambda grad: grad * 1.0)
        return x


class InLoop(PreNorm):
    def forward(self, x):
        sums = []
        for _ in range(2):
            y = x + self.attention(self.first(x))
            z = self.second(y)
            sums.append(self.mlp(z))
        return sums[0], y


class ChangedInPlace(PreNorm):
    def forward(self, x):
        y = x + self.attention(self.first(x))
        z = self.second(y)
        y += self.mlp(z)
        return y


class Transposed(PreNorm):
    """Rows come first; the sum has strides that its product shows."""

    def forward(self, x):
        x = x.transpose(0, 1)
        y = x + x * 2.0
        z = self.second(y)
        return (y * 2.0).transpose(0, 1).view(-1), z


KINDS = {
    "pre": (PreNorm, ("second",)),
    "layer": (lambda: PreNorm(lambda: nn.LayerNorm(12)), ("second",)),
    "gemma": (lambda: PreNorm(lambda: leaves.GemmaNorm(12)), ("second",)),
    "rms": (lambda: PreNorm(lambda: nn.RMSNorm(12, eps=1e-5)), ("second",)),
    "annotated": (Annotated, ("second",)),
    "nested": (Nested, ("second",)),
    "branch": (lambda: InBranch(lambda: nn.LayerNorm(12)), ("second",)),
    "post": (lambda: PostNorm(lambda: nn.LayerNorm(12)), ("first", "second")),
}


def sums(model, x):
    """The sums that torch forms in a forward."""
    return calls_of(model, x).names.count("aten.add.Tensor")


def fused(kind, device):
    torch.manual_seed(0)
    model = KINDS[kind][0]().to(device)
    original = copy.deepcopy(model)
    assert fusedops.fuse(model).pairs == [("", "forward", KINDS[kind][1])]
    return original, model


def assert_same(original, model, x):
    results = []
    for one in (original, model):
        one.zero_grad()
        leaf = x.clone().requires_grad_()
        y = one(leaf)
        y.square().sum().backward()
        results.append([y.detach(), leaf.grad, *(p.grad for p in one.parameters())])
    for theirs, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_one_op_gives_both(device, kind):
    original, model = fused(kind, device)
    x = make(3, 5, 12, dtype=torch.float32, device=device)
    mine = sums(model, x) - (2 if kind == "gemma" else 0)  # 1 + weight, twice
    assert mine == (0 if kind == "post" else 1)
    assert_same(original, model, x)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert sums(other, x) == sums(model, x)
        assert_same(original, other, x)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), original(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", [Returned, Stored, HandedOn, InLoop])
@pytest.mark.parametrize("norm", [lambda: nn.LayerNorm(12), lambda: leaves.LlamaNorm(12)])
def test_gradients_of_sums_that_are_seen(device, kind, norm):
    torch.manual_seed(0)
    model = kind(norm).to(device)
    original = copy.deepcopy(model)
    assert fusedops.fuse(model).pairs == []
    x = make(3, 5, 12, dtype=torch.float32, device=device).requires_grad_()
    grads = []
    for one in (original, model):
        y, total = one(x)
        grads.append(torch.autograd.grad(y.pow(3).sum(), total, allow_unused=True)[0])
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-4)


def test_strides_of_sums_are_torchs(device):
    model = Transposed(lambda: nn.LayerNorm(12)).to(device)
    original = copy.deepcopy(model)
    assert len(fusedops.fuse(model).pairs) == 1
    x = make(3, 5, 12, dtype=torch.float32, device=device)
    for mine, theirs in zip(model(x), original(x), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", [Between, Late, Maybe, ChangedInPlace])
def test_leaves_alone(device, kind):
    torch.manual_seed(0)
    model = kind().to(device)
    original = copy.deepcopy(model)
    assert fusedops.fuse(model).pairs == []
    x = make(3, 5, 12, dtype=torch.float32, device=device)
    with torch.no_grad():
        torch.testing.assert_close(model(x), original(x), rtol=1e-4, atol=1e-4)


def test_sums_of_other_things(device):
    """Broadcast, of two dtypes: the module runs on torch's sum."""
    original, model = fused("post", device)
    x = make(5, 12, dtype=torch.float32, device=device)
    for one in (original, model):
        one.attention.register_forward_hook(lambda *args: args[-1][:1])
    assert sums(model, x) == 1
    assert_same(original, model, x)
    original, model = fused("layer", device)
    with torch.autocast(device, torch.bfloat16):
        y, want = model(x), original(x)
    assert y.dtype is want.dtype
    torch.testing.assert_close(y, want, rtol=3e-2, atol=3e-2)


def test_hooks_and_replaced_norms_run(device):
    original, model = fused("pre", device)
    x = make(5, 12, dtype=torch.float32, device=device)
    handles = [one.second.register_forward_hook(lambda *args: args[-1] * 2)
               for one in (original, model)]  # fmt: skip
    assert_same(original, model, x)
    for handle in handles:
        handle.remove()
    for one in (original, model):
        one.second = nn.Identity()
    torch.testing.assert_close(model(x, scale=2.0), original(x, scale=2.0), rtol=1e-4, atol=1e-4)


def test_bert_has_both(device):
    torch.manual_seed(0)
    model = layers.Bert().to(device)
    original = copy.deepcopy(model)
    report = fusedops.fuse(model)
    assert report.pairs == [("output", "forward", ("LayerNorm",))]
    assert len(report.blocks) == 1
    x = make(5, 12, dtype=torch.float32, device=device)
    assert sums(model, x) == 0
    assert_same(original, model, x)
    text = str(report).splitlines()
    assert "sums with norms  norms      in" in text
    assert "output           LayerNorm  forward" in text
