"""Inputs of the layer tests, their definitions' answers, and the comparison of both."""

from __future__ import annotations

import math
import statistics

import torch

from fusedops.points import BatchNorm, LayerNorm
from util import RATIO, assert_accurate, generator, make

NORMS = ("none", "batch_eval", "batch_train", "layer")


def indices(clouds, rows, groups, k, device, empty=True):
    """With repeats, -1 in any place, entries beyond the cloud, and an empty group."""
    idx = torch.randint(-1, rows + 1, (clouds, groups, k), generator=generator("cpu", 5))
    if empty:
        idx[0, 0] = -1
    return idx.to(device)


def make_norm(kind, channels, dtype, device, seed=0):
    """One with weights of both signs, and a 0."""
    if kind == "none":
        return None
    weight = make(channels, dtype=dtype, device=device, seed=seed)
    weight[channels // 2] = 0
    bias = make(channels, dtype=dtype, device=device, seed=seed + 1) + 0.5
    if kind == "layer":
        return LayerNorm(weight, bias)
    mean = make(channels, dtype=dtype, device=device, seed=seed + 2)
    var = make(channels, dtype=dtype, device=device, seed=seed + 3).square() + 0.5
    return BatchNorm(weight, bias, mean, var, kind == "batch_train")


def make_layers(columns, widths, kind, dtype, device, norm_dtype=None, seed=10):
    """(weights, biases, norms); every second bias is None."""
    weights, biases, norms = [], [], []
    for i, width in enumerate(widths):
        scale = 1 / math.sqrt(max(columns, 1))
        weights.append(make(width, columns, dtype=dtype, device=device, scale=scale, seed=seed + i))
        bias = make(width, dtype=dtype, device=device, seed=seed + 10 + i)
        biases.append(None if i % 2 else bias)
        norms.append(make_norm(kind, width, norm_dtype or dtype, device, seed + 20 + 10 * i))
        columns = width
    return weights, biases, norms


def leaf(tensor, dtype=None):
    """A copy that wants a gradient; None stays None."""
    if tensor is None:
        return None
    copy = tensor.detach().clone() if dtype is None else tensor.detach().to(dtype, copy=True)
    return copy.requires_grad_()


def leaf_norm(norm, dtype=None):
    """A copy with leaves, and running statistics of its own."""
    if norm is None:
        return None
    norm = norm._replace(weight=leaf(norm.weight, dtype), bias=leaf(norm.bias, dtype))
    if isinstance(norm, LayerNorm) or norm.running_mean is None:
        return norm
    mean, var = (leaf(t, dtype).detach() for t in (norm.running_mean, norm.running_var))
    return norm._replace(running_mean=mean, running_var=var)


class Call:
    """A layer's arguments as leaves: `tensors`, in front of `rest`, and the parameters."""

    def __init__(self, tensors, idx, layers, dtype=None):
        self.tensors = [leaf(t, dtype) for t in tensors]
        self.idx = idx
        weights, biases, norms = layers
        self.weights = [leaf(t, dtype) for t in weights]
        self.biases = [leaf(t, dtype) for t in biases]
        self.norms = [leaf_norm(norm, dtype) for norm in norms]

    def named_leaves(self):
        leaves = {f"tensor {i}": t for i, t in enumerate(self.tensors)}
        for i in range(len(self.weights)):
            leaves |= {f"weight {i}": self.weights[i], f"bias {i}": self.biases[i]}
            if self.norms[i] is not None:
                leaves[f"norm {i} weight"] = self.norms[i].weight
                leaves[f"norm {i} bias"] = self.norms[i].bias
        return {name: t for name, t in leaves.items() if t is not None}

    def running(self):
        """The running statistics."""
        norms = [norm for norm in self.norms if isinstance(norm, BatchNorm)]
        return [t for norm in norms for t in (norm.running_mean, norm.running_var)]

    def __call__(self, function, **options):
        arguments = [*self.tensors] if self.idx is None else [*self.tensors, self.idx]
        return function(*arguments, self.weights, self.biases, self.norms, **options)

    def gradients(self, out, dout):
        """By name; zeros where out does not depend on a leaf."""
        leaves = self.named_leaves()
        grads = torch.autograd.grad(out, list(leaves.values()), dout, allow_unused=True)
        return {
            name: torch.zeros_like(t) if grad is None else grad
            for (name, t), grad in zip(leaves.items(), grads, strict=True)
        }


def is_noise(name, norms):
    """Whether a gradient is 0 in exact arithmetic: of a bias before statistics of the batch."""
    kind, _, i = name.partition(" ")
    norm = norms[int(i)] if kind == "bias" else None
    return isinstance(norm, BatchNorm) and norm.training


def compare(ours, reference, call, exact, rtol=1e-9, **options):
    """Values, gradients and running statistics in float64; the outputs."""
    out, expected = call(ours, **options), exact(reference, **options)
    torch.testing.assert_close(out, expected, rtol=rtol, atol=rtol)
    dout = make(*out.shape, dtype=out.dtype, device=out.device.type, seed=99)
    got, want = call.gradients(out, dout), exact.gradients(expected, dout)
    for name, grad in got.items():
        torch.testing.assert_close(
            grad, want[name], rtol=rtol, atol=rtol, msg=lambda m, n=name: n + m
        )
        if is_noise(name, call.norms):
            assert not grad.any()
    for mine, torchs in zip(call.running(), exact.running(), strict=True):
        torch.testing.assert_close(mine, torchs, rtol=rtol, atol=rtol)
    return out, expected


def errors(ours, reference, tensors, idx, layers, dout_seed, **options):
    """{name: (our error's norm, torch's, the exact norm)} of gradients; the number of outputs."""
    call, torchs = Call(tensors, idx, layers), Call(tensors, idx, layers)
    exact = Call(tensors, idx, layers, torch.float64)
    out, eager, truth = (
        f(function, **options)
        for f, function in ((call, ours), (torchs, reference), (exact, reference))
    )
    assert out.dtype is eager.dtype
    assert out.is_contiguous()
    assert_accurate(out, eager, truth, "out")
    dout = make(*out.shape, dtype=out.dtype, device=out.device.type, seed=dout_seed)
    got, theirs = call.gradients(out, dout), torchs.gradients(eager, dout)
    want = exact.gradients(truth, dout.double())
    for mine, of_torch, true in zip(call.running(), torchs.running(), exact.running(), strict=True):
        assert_accurate(mine, of_torch, true, "running statistics")
    found = {}
    for name, grad in got.items():
        assert grad.dtype is theirs[name].dtype
        if is_noise(name, call.norms):
            assert not grad.any()
            continue
        norms = (grad.double() - want[name], theirs[name].double() - want[name], want[name])
        found[name] = tuple(t.norm().item() for t in norms)
    return found, out.numel()


def assert_as_accurate_as_torch(ours, reference, draws, jumps=True, **options):
    """Outputs and every gradient: errors against float64 within the rule of those of torch.

    draws: (tensors, idx, layers) each. Errors of gradients are relative to the exact norm, and the
    medians over the draws are compared.
    jumps: whether the derivative does, at a maximum or a relu. A rounding that changes a winner or
    a sign moves a whole entry; the share of those is of the order of eps, what they do to the norm
    of that of its root, and of that of one entry. They are few, so that the medians scatter; those
    of 60 draws keep the rule.
    """
    results = [errors(ours, reference, *d, 90 + i, **options) for i, d in enumerate(draws)]
    found, outputs = [result[0] for result in results], results[0][1]
    eps = torch.finfo(draws[0][2][0][0].dtype).eps
    ratio = RATIO + (2 / math.sqrt(len(draws)) if jumps else 0)
    floor = max(math.sqrt(eps) / 2, math.sqrt(2 / outputs)) if jumps else eps / 4
    for name in found[0]:
        error, theirs = (
            statistics.median(f[name][of] / max(f[name][2], 1e-30) for f in found) for of in (0, 1)
        )
        allowed = ratio * theirs + floor
        assert error <= allowed, f"{name}: relative error {error:.3e}, allowed {allowed:.3e}"
