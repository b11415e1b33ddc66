"""A model of norms, MLPs and a head, and its step on one process."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

D, H, V = 16, 32, 24


class FeedForward(nn.Module):
    """Llama's block."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(D, H)
        self.up = nn.Linear(D, H)
        self.down = nn.Linear(H, D)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(D)
        self.mlp = nn.Sequential(nn.Linear(D, H), nn.GELU(), nn.Linear(H, D))
        self.norm2 = nn.RMSNorm(D)
        self.ff = FeedForward()

    def forward(self, x):
        x = x + self.mlp(self.norm1(x))
        return x + self.ff(self.norm2(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(2)])
        self.head = nn.Linear(D, V, bias=False)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def make_model(device):
    """The same on every rank; no parameter is what it is initialised to."""
    torch.manual_seed(1)
    model = Model()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.05 * torch.randn_like(p))
    return model.to(device)


def make_batch(device):
    """(x, target) of all ranks."""
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(4, 6, D, generator=generator)
    return x.to(device), torch.randint(V, (4, 6), generator=generator).to(device)


def loss_of(logits, target):
    return F.cross_entropy(logits.flatten(0, -2), target.flatten())


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def named_gradients(model):
    """Whole gradients, by names without those of wrappers."""
    found = {}
    for name, p in model.named_parameters():
        for wrapper in ("_checkpoint_wrapped_module.", "_fsdp_wrapped_module."):
            name = name.replace(wrapper, "")
        found[name.removeprefix("module.")] = whole(p.grad)
    return found


def expected(device, steps=1):
    """Loss and gradients of the unfused model on all of the batch, gradients summed over steps."""
    model = make_model(device)
    x, target = make_batch(device)
    for _ in range(steps):
        loss = loss_of(model(x), target)
        loss.backward()
    return loss.detach(), named_gradients(model)


def check(loss, gradients, want, tolerance=1e-5):
    """Compare a step with the expected one."""
    torch.testing.assert_close(whole(loss.detach()), want[0], rtol=tolerance, atol=tolerance)
    assert gradients.keys() == want[1].keys()
    for name, grad in gradients.items():
        torch.testing.assert_close(
            grad, want[1][name], rtol=tolerance, atol=tolerance, msg=lambda t, n=name: f"{n}: {t}"
        )
