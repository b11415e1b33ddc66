"""fusedops.inductor: the last product of a language model and its loss, as linear_cross_entropy."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fusedops
from integration.test_inductor import K, assert_close, compiled

V, B, T = 50, 2, 8


def rows(z, target):
    return z.reshape(-1, V), target.reshape(-1)


def shifted(z, target, **options):
    """Hugging Face's until 4.45: the last row has no target."""
    z, target = z.float()[..., :-1, :].contiguous(), target[..., 1:].contiguous()
    return F.cross_entropy(*rows(z, target), **options)


def padded(z, target):
    """Hugging Face's since: a target that is ignored is put behind the others."""
    target = F.pad(target, (0, 1), value=-100)[..., 1:].contiguous()
    return F.cross_entropy(*rows(z.float(), target), reduction="sum") / 7


def by_hand(z, target):
    """nanoGPT's and others': log_softmax and nll_loss."""
    return F.nll_loss(F.log_softmax(z, -1).view(-1, V), target.view(-1), ignore_index=3)


def with_z_loss(z, target):
    z, target = rows(z.float(), target)
    counts = target != -100
    squares = torch.where(counts, z.logsumexp(1).square(), 0.0).sum()
    return F.cross_entropy(z, target, reduction="sum") + 0.01 * squares


def gemma(z, target):
    return F.cross_entropy(*rows((torch.tanh(z / 30.0) * 30.0).float(), target))


LOSSES = {
    "mean": lambda z, t: F.cross_entropy(*rows(z, t)),
    "sum": lambda z, t: F.cross_entropy(*rows(z, t), reduction="sum"),
    "upcast": lambda z, t: F.cross_entropy(*rows(z.float(), t)),
    "ignore_index": lambda z, t: F.cross_entropy(*rows(z, t), ignore_index=3),
    "label_smoothing": lambda z, t: F.cross_entropy(*rows(z.float(), t), label_smoothing=0.1),
    "softcap": gemma,
    "shifted": shifted,
    "shifted, smooth": lambda z, t: shifted(z, t, label_smoothing=0.2, reduction="sum"),
    "padded": padded,
    "scaled": lambda z, t: 3 * F.cross_entropy(*rows(z, t)),
    "nll_loss": by_hand,
    "z_loss": with_z_loss,
}

UPCAST = ("upcast", "label_smoothing", "softcap", "shifted", "shifted, smooth", "padded", "z_loss")


def make(device, dtype, bias=False):
    torch.manual_seed(0)
    head = nn.Linear(K, V, bias=bias).to(device, dtype)
    x = torch.randn(B, T, K, device=device, dtype=dtype)
    target = torch.randint(V, (B, T), device=device)
    target[0, 2] = -100
    target[1, 3] = 3
    return head, x, target


def step(function, head, x, target):
    x = x.clone().requires_grad_()
    loss = function(x, target)
    inputs = [t for t in (x, *head.parameters()) if t.requires_grad]
    return [loss.detach(), *torch.autograd.grad(loss, inputs, torch.full_like(loss, 1.5))]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("name", LOSSES)
def test_losses_are_found_and_values_stay(device, name, bias, dtype):
    head, x, target = make(device, dtype, bias)
    if name in ("nll_loss", "ignore_index"):
        target[0, 2] = 3

    def function(x, target):
        return LOSSES[name](head(x), target)

    ours = fusedops.inductor(force=True)
    got = step(compiled(function, ours), head, x, target)
    rounds = dtype is torch.float64 and name in UPCAST
    assert ours.report.kinds() == ([] if rounds else ["linear_cross_entropy"])
    tolerance = {
        torch.float64: 1e-6 if rounds else 1e-9,
        torch.float32: 1e-5,
        torch.bfloat16: 3e-2,
    }[dtype]
    assert_close(got, step(function, head, x, target), tolerance)


@pytest.mark.parametrize("name", ["mean", "shifted", "padded", "softcap"])
def test_dynamic_shapes_compile_once(device, name):
    head, _, _ = make(device, torch.float32)
    function = lambda x, t: LOSSES[name](head(x), t)  # noqa: E731
    ours = fusedops.inductor(force=True)
    run = compiled(function, ours, dynamic=True)
    for batch, length in ((3, 9), (2, 12), (5, 6)):
        x = torch.randn(batch, length, K, device=device)
        target = torch.randint(V, (batch, length), device=device)
        assert_close(step(run, head, x, target), step(function, head, x, target), 2e-5)
    assert ours.report.graphs == 1
    assert ours.report.kinds() == ["linear_cross_entropy"]


@pytest.mark.parametrize("name", ["mean", "upcast", "shifted"])
def test_autocast(device, name):
    head, x, target = make(device, torch.float32, bias=True)

    def function(x, target):
        with torch.autocast(device, dtype=torch.bfloat16):
            return LOSSES[name](head(x), target)

    ours = fusedops.inductor(force=True)
    got = step(compiled(function, ours), head, x, target)
    assert ours.report.kinds()[0] == "linear_cross_entropy"
    assert_close(got, step(function, head, x, target), 3e-2)


@pytest.mark.parametrize("frozen", ["weight", "bias", "x"])
def test_frozen_parameters(device, frozen):
    head, x, target = make(device, torch.float32, bias=True)
    for name, parameter in head.named_parameters():
        parameter.requires_grad_(name != frozen)
    leaf = x.clone().requires_grad_(frozen != "x")
    function = lambda x, t: LOSSES["mean"](head(x), t)  # noqa: E731
    ours = fusedops.inductor(force=True)
    leaves = [t for t in (leaf, *head.parameters()) if t.requires_grad]
    got = torch.autograd.grad(compiled(function, ours)(leaf, target), leaves)
    assert ours.report.kinds() == ["linear_cross_entropy"]
    assert_close(got, torch.autograd.grad(function(leaf, target), leaves), 1e-5)


def test_inference(device):
    head, x, target = make(device, torch.float32)
    function = lambda x, t: LOSSES["shifted"](head(x), t)  # noqa: E731
    ours = fusedops.inductor(force=True)
    with torch.no_grad():
        got = compiled(function, ours)(x, target)
        assert ours.report.kinds() == ["linear_cross_entropy"]
        assert not ours.report.replaced[0].training
        assert_close([got], [function(x, target)], 1e-5)


def test_weights_that_the_embedding_shares(device):
    """GPT-2's."""
    head, _, target = make(device, torch.float32)

    def function(x, target):
        x = x + F.embedding(target.clamp(min=0), head.weight)
        return LOSSES["shifted"](F.linear(x, head.weight), target)

    _, x, target = make(device, torch.float32)
    ours = fusedops.inductor(force=True)
    got = step(compiled(function, ours), head, x, target)
    assert ours.report.kinds() == ["linear_cross_entropy", "embedding_grad"]
    assert_close(got, step(function, head, x, target), 1e-5)


def test_no_tensor_of_the_logits_size_is_saved(device):
    head, x, target = make(device, torch.float32)
    function = lambda x, t: LOSSES["shifted"](head(x), t)  # noqa: E731
    sizes = []

    def pack(tensor):
        sizes.append(tensor.numel())
        return tensor

    run = compiled(function, fusedops.inductor(force=True))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        run(x.clone().requires_grad_(), target)
    assert sizes
    assert max(sizes) <= max(V * K, x.numel())


class _Doubled(torch.autograd.Function):
    """The identity, with twice its gradient."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, dy):
        return 2 * dy


def classes_weighed(z, target):
    weight = torch.linspace(0.5, 1, V, device=z.device, dtype=z.dtype)
    return F.cross_entropy(*rows(z, target), weight=weight)


def rows_weighed(z, target):
    losses = F.cross_entropy(*rows(z, target), reduction="none")
    return (losses * torch.linspace(0, 1, B * T, device=z.device)).sum()


def two_cuts(z, target):
    """The logits of one row less for the loss, those of all rows for the squares."""
    return shifted(z, target) + z.float().logsumexp(-1).square().sum()


def each(z, target):
    return F.cross_entropy(*rows(z, target), reduction="none")


class _Clipped(torch.autograd.Function):
    """The identity, with a gradient that is clipped far away."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, dy):
        return dy.clamp(-1.4, 1.4)


def with_epsilon(z, target):
    z, target = rows(z, target)
    return F.nll_loss((z.softmax(1) + 1e-20).log(), target)


OTHERS = {
    "logits returned": lambda z, t: (F.cross_entropy(*rows(z, t)), z)[0] + z.sum(),
    "weights of classes": classes_weighed,
    "weights of rows": rows_weighed,
    "two cuts": two_cuts,
    "gradient of its own": lambda z, t: F.cross_entropy(*rows(_Doubled.apply(z), t)),
    "clipped gradient": lambda z, t: 1.5 * each(_Clipped.apply(z), t).sum(),
    "temperature": lambda z, t: F.cross_entropy(*rows(z / 2, t)),
    "soft targets": lambda z, t: F.cross_entropy(rows(z, t)[0], rows(z, t)[0].softmax(1)),
    "one class does not count": lambda z, t: (each(z, t) * (t.flatten() != 42)).sum(),
    "two classes do not count": lambda z, t: (each(z, t) * (t.flatten() != 3)).sum(),
    "high classes do not count": lambda z, t: (each(z, t) * (t.flatten() < 40)).sum(),
    "clamped logits": lambda z, t: F.cross_entropy(*rows(z.clamp(-20, 20), t)),
    "branch": lambda z, t: F.cross_entropy(*rows(torch.where(z > 25, 2 * z, z), t)),
    "clamped losses": lambda z, t: each(z, t).clamp(max=30).sum(),
    "no nan": lambda z, t: F.cross_entropy(*rows(z.nan_to_num(), t)),
    "probabilities with an epsilon": with_epsilon,
    "float8": lambda z, t: F.cross_entropy(*rows(z.to(torch.float8_e4m3fn).float(), t)),
    "every other row": lambda z, t: F.cross_entropy(*rows(z[:, ::2], t[:, ::2])),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_losses_are_left_alone(device, name):
    head, x, target = make(device, torch.float32)
    target[0, 4:6] = torch.tensor([42, 49])
    x = 20 * x  # beyond what ends or branches at 20
    function = lambda x, t: OTHERS[name](head(x), t)  # noqa: E731
    ours = fusedops.inductor(force=True)
    got = step(compiled(function, ours), head, x, target)
    assert ours.report.kinds() == []
    assert not any("cannot read" in left.reason for left in ours.report.left)
    assert_close(got, step(function, head, x, target), 1e-5)


MEANS = {
    "torch's": lambda z, t: F.cross_entropy(*rows(z, t)),
    "of one at least": lambda z, t: each(z, t).sum() / (t != -100).sum().clamp(min=1),
    "of five at least": lambda z, t: each(z, t).sum() / (t != -100).sum().clamp(min=5),
    "of some more": lambda z, t: each(z, t).sum() / ((t != -100).sum() + 1e-8),
    "of ten at most": lambda z, t: each(z, t).sum() / (t != -100).sum().clamp(max=10),
}


@pytest.mark.parametrize("counted", [0, 1, 16])
@pytest.mark.parametrize("name", MEANS)
def test_means_over_few_rows(device, name, counted):
    head, x, target = make(device, torch.float64)
    target = torch.arange(B * T, device=device).reshape(B, T)
    target.flatten()[counted:] = -100
    function = lambda x, t: MEANS[name](head(x), t)  # noqa: E731
    ours = fusedops.inductor(force=True)
    got, want = step(compiled(function, ours), head, x, target), step(function, head, x, target)
    assert ours.report.kinds() == ["linear_cross_entropy"]
    if counted or "most" not in name:
        for one, other in zip(got, want, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12, equal_nan=True)


EXACT = {
    "a third": lambda z, t: F.cross_entropy(*rows(z, t), label_smoothing=1 / 3),
    "little": lambda z, t: each(z, t).sum() * (1 + 1e-7),
    "little of the square": lambda z, t: (
        each(z, t) + 1.2345e-7 * torch.where(t != -100, z.logsumexp(-1) ** 2, 0.0).flatten()
    ).sum(),
}


@pytest.mark.parametrize("name", EXACT)
def test_options_are_not_rounded(device, name):
    head, x, target = make(device, torch.float64)
    function = lambda x, t: EXACT[name](head(x), t)  # noqa: E731
    ours = fusedops.inductor(force=True)
    got = step(compiled(function, ours), head, x, target)
    assert ours.report.kinds() == ["linear_cross_entropy"]
    assert_close(got, step(function, head, x, target), 1e-12)


def test_code_that_inductor_makes(device):
    head, x, target = make(device, torch.float32, bias=True)
    function = lambda x, t: LOSSES["shifted"](head(x), t)  # noqa: E731
    ours = fusedops.inductor(force=True)
    torch._dynamo.reset()
    got = step(torch.compile(function, fullgraph=True, **ours), head, x, target)
    assert_close(got, step(function, head, x, target), 1e-5)
