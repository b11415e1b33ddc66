"""fusedops.fuse on query, key and value that are parts of one permuted product."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fusedops
from util import Calls, make

B, N, H, D = 2, 5, 3, 8
C = H * D


class Attention(nn.Module):
    """As timm's."""

    def __init__(self):
        super().__init__()
        self.qkv, self.proj = nn.Linear(C, 3 * C), nn.Linear(C, C)

    def forward(self, x):
        qkv = self.qkv(x).reshape(B, N, 3, H, D).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        return self.out(q, k, v)

    def out(self, q, k, v):
        y = F.scaled_dot_product_attention(q, k, v)
        return self.proj(y.transpose(1, 2).flatten(2))


class Indexed(Attention):
    """As DINO's and Swin's."""

    def forward(self, x):
        qkv = self.qkv(x).reshape(B, N, 3, H, D).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        q = q * 0.5
        y = F.scaled_dot_product_attention(q, k, value=v)
        return self.proj(y.transpose(1, 2).flatten(2))


class ChangedElsewhere(Attention):
    """Hands parts to code that changes one."""

    def forward(self, x):
        qkv = self.qkv(x).reshape(B, N, 3, H, D).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        self.halve(q)
        return self.out(q, k, v)

    def halve(self, q):
        q.mul_(0.5)


class InOne(Attention):
    def forward(self, x):
        q, k, v = self.qkv(x).view(B, N, 3, H, D).permute((2, 0, 3, 1, -1)).unbind(dim=0)
        return self.out(q, k, v)


class Chunked(Attention):
    """As GPT-NeoX's."""

    def forward(self, x):
        qkv = self.qkv(x).view(B, N, -1, 3 * D).transpose(1, 2)
        q, k, v = qkv.chunk(3, dim=-1)
        return self.out(q, k, v)


class OneName(Attention):
    """As BEiT's: the product, and the permuted one, by one name."""

    def forward(self, x):
        qkv = self.qkv(x)
        if self.training:
            qkv = qkv * 1.0
        qkv = qkv.reshape(B, N, 3, H, D).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        return self.out(q, k, v)


class InLoop(Attention):
    """Reads the permuted tensor in the next round."""

    def forward(self, x):
        qkv = y = None
        for _ in range(2):
            y = 0 if qkv is None else qkv.sum()
            qkv = self.qkv(x).reshape(B, N, 3, H, D).permute(2, 0, 3, 1, 4)
            q, k, v = qkv.unbind(0)
        return self.out(q, k, v) + y


class Whole(Attention):
    """Reads the permuted tensor again."""

    def forward(self, x):
        qkv = self.qkv(x).reshape(B, N, 3, H, D).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        return self.out(q, k, v) + qkv.sum()


class InPlace(Attention):
    """Changes a part, which torch lets it."""

    def forward(self, x):
        qkv = self.qkv(x).reshape(B, N, 3, H, D).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        q *= 0.5
        return self.out(q, k, v)


class Two(Attention):
    """Two of three parts."""

    def forward(self, x):
        qkv = self.qkv(x).reshape(B, N, 3, H, D).permute(2, 0, 3, 1, 4)
        q, k = qkv[0], qkv[1]
        y = F.scaled_dot_product_attention(q, k, k)
        return self.proj(y.transpose(1, 2).flatten(2))


class Along(Attention):
    """Parts along a dim that was transposed."""

    def forward(self, x):
        qkv = self.qkv(x).view(B, N, H, 3 * D).transpose(-1, 1)
        q, k, v = qkv.chunk(3, 1)
        return self.out(*(t.transpose(-1, 1).transpose(1, 2) for t in (q, k, v)))


def pair(kind, device):
    torch.manual_seed(0)
    original = kind().to(device)
    model = copy.deepcopy(original)
    return original, model, fusedops.fuse(model).splits


def step(model, x):
    leaf = x.clone().requires_grad_()
    model.zero_grad()
    with Calls() as calls:
        y = model(leaf)
        y.square().sum().backward()
    return [y, leaf.grad, *(p.grad for p in model.parameters())], calls.names


def assert_same(original, model, x):
    """Values and gradients; what was called."""
    (want, theirs), (got, ours) = step(original, x), step(model, x)
    for a, b in zip(want, got, strict=True):
        torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-4)
    return theirs, ours


def an_input(device):
    return make(B, N, C, dtype=torch.float32, device=device)


def copies(names):
    return sum(name in ("aten.clone", "aten.select_backward", "aten.add.Tensor") for name in names)


@pytest.mark.parametrize("kind", [Attention, Indexed, InOne, Chunked, OneName])
def test_gradients_are_put_together_once(device, kind):
    original, model, splits = pair(kind, device)
    assert splits == [("", "forward", ("q+k+v",))]
    theirs, ours = assert_same(original, model, an_input(device))
    assert copies(ours) == 0
    assert copies(theirs) > 0
    assert sum(name in ("aten.stack", "aten.cat") for name in ours) == 1
    assert fusedops.fuse(model).splits == []


@pytest.mark.parametrize("kind", [Whole, InPlace, InLoop, ChangedElsewhere])
def test_leaves_alone(device, kind):
    original, model, splits = pair(kind, device)
    assert splits == []
    assert_same(original, model, an_input(device))


@pytest.mark.parametrize("kind", [Two, Along])
def test_other_parts_are_torchs(device, kind):
    original, model, splits = pair(kind, device)
    assert len(splits) == 1
    assert_same(original, model, an_input(device))


@pytest.mark.parametrize("kind", [Indexed, Chunked])
def test_copies_pickles_and_compiles(device, kind):
    original, model, _ = pair(kind, device)
    x = an_input(device)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert copies(assert_same(original, other, x)[1]) == 0
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), original(x), rtol=1e-4, atol=1e-4)


def test_strides_are_torchs(device):
    x = make(B, N, 3, H, D, dtype=torch.float32, device=device)
    parts = fusedops._rewrite.splits.SplitCalls
    for ours, theirs in (
        (parts._fused_unbound(x, (2, 0, 3, 1, 4), 3), x.permute(2, 0, 3, 1, 4).unbind(0)),
        (parts._fused_unbound(x, (-3, 4, 0, 1, 3), 3), x.permute(-3, 4, 0, 1, 3).unbind(0)),
        (parts._fused_chunked(x, 1, -1, 3, 2), x.transpose(1, -1).chunk(3, 2)),
        (parts._fused_chunked(x, 1, 3, 2, 1), x.transpose(1, 3).chunk(2, 1)),
    ):
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            assert a.stride() == b.stride()
            assert torch.equal(a, b)
