"""Samples of the mlp and gated_mlp ops."""

from __future__ import annotations

import torch

from util import make

OPS = torch.ops.fusedops

# (leading dimensions, K, H, N): aligned, odd, vectors, several leading dimensions
SHAPES = [((6,), 16, 24, 8), ((2, 3), 7, 5, 3), ((), 8, 8, 8)]
HALVES = (torch.float16, torch.bfloat16)


def mlp_inputs(lead, k, hidden, n, dtype, device):
    """x, w1, b1, w2, b2, residual, dy."""
    return (
        make(*lead, k, dtype=dtype, device=device, seed=1),
        make(hidden, k, dtype=dtype, device=device, scale=k**-0.5, seed=2),
        make(hidden, dtype=dtype, device=device, scale=0.5, seed=3),
        make(n, hidden, dtype=dtype, device=device, scale=hidden**-0.5, seed=4),
        make(n, dtype=dtype, device=device, scale=0.5, seed=5),
        make(*lead, n, dtype=dtype, device=device, seed=6),
        make(*lead, n, dtype=dtype, device=device, seed=7),
    )


def gated_inputs(lead, k, hidden, n, dtype, device):
    """x, w_gate, w_up, b_gate, b_up, w_down, b_down, residual, dy."""
    x, w_gate, b_gate, w_down, b_down, residual, dy = mlp_inputs(lead, k, hidden, n, dtype, device)
    w_up = make(hidden, k, dtype=dtype, device=device, scale=k**-0.5, seed=8)
    b_up = make(hidden, dtype=dtype, device=device, scale=0.5, seed=9)
    return x, w_gate, w_up, b_gate, b_up, w_down, b_down, residual, dy


def mlp_forward_samples(device, dtype, codes):
    for shape in SHAPES:
        x, w1, b1, w2, b2, residual, _ = mlp_inputs(*shape, dtype, device)
        for code in codes:
            yield x, w1, b1, w2, b2, residual, code, True, False
            yield x, w1, None, w2, None, None, code, False, True


def mlp_backward_samples(device, dtype, codes):
    for shape in SHAPES:
        x, w1, b1, w2, _, _, dy = mlp_inputs(*shape, dtype, device)
        for code in codes:
            _, saved = OPS.mlp_forward(x, w1, b1, w2, None, None, code, True, False)
            yield dy, saved, w2, code, True, True, True, True, dtype in HALVES, False
            yield dy, saved, w2, code, True, False, False, False, False, True
            yield dy, saved, w2, code, False, False, True, False, False, False
            yield dy, saved, w2, code, False, True, False, True, False, False


def main_grads(weight):
    """(main_grad, accumulate) for the ops that take them."""
    whole = torch.ones(weight.shape, device=weight.device)
    wide = torch.ones(weight.shape[0], weight.shape[1] + 3, device=weight.device)
    return [(None, False), (whole, True), (whole, False), (wide[:, 1:-2], True)]


def mlp_backward_in_place_samples(device, dtype, codes):
    for dy, saved, w2, *rest in mlp_backward_samples(device, dtype, codes):
        for into in main_grads(w2) if rest[3] else [(None, False)]:
            yield dy, saved, w2, *into, *rest


def gated_forward_samples(device, dtype, codes):
    for shape in SHAPES:
        x, w_gate, w_up, b_gate, b_up, w_down, b_down, residual, _ = gated_inputs(
            *shape, dtype, device
        )
        weight, bias = torch.cat([w_gate, w_up]), torch.cat([b_gate, b_up])
        for code in codes:
            yield x, w_gate, w_up, b_gate, b_up, w_down, b_down, residual, code, True, False
            yield x, weight, None, bias, None, w_down, None, residual, code, True, True
            yield x, w_gate, w_up, None, None, w_down, None, None, code, False, False


def gated_linear_samples(device, dtype, codes):
    for shape in SHAPES:
        x, w_gate, w_up, b_gate, b_up, *_ = gated_inputs(*shape, dtype, device)
        yield x, w_gate, w_up, b_gate, b_up, False
        yield x, torch.cat([w_gate, w_up]), None, torch.cat([b_gate, b_up]), None, True
        yield x, w_gate, w_up, None, None, False


def gated_backward_samples(device, dtype, codes):
    for shape in SHAPES:
        *_, w_down, _, _, dy = gated_inputs(*shape, dtype, device)
        lead, _, hidden, _ = shape
        for code in codes:
            saved = make(2, *lead, hidden, dtype=dtype, device=device, seed=11)
            half = dtype in HALVES
            yield dy, saved, w_down, code, False, True, True, True, True, half, False
            yield dy, saved, w_down, code, False, False, False, True, False, False, False
            packed = saved.movedim(0, -2).contiguous()
            yield dy, packed, w_down, code, True, True, False, False, False, False, True
            yield dy, packed, w_down, code, True, False, True, False, True, False, False


def gated_backward_in_place_samples(device, dtype, codes):
    for dy, saved, w_down, code, packed, _, *rest in gated_backward_samples(device, dtype, codes):
        for into in main_grads(w_down) if rest[1] else [(None, False)]:
            yield dy, saved, w_down, *into, code, packed, *rest


def gated_input_samples(device, dtype, codes):
    for shape in SHAPES:
        x, w_gate, w_up, *_ = gated_inputs(*shape, dtype, device)
        lead, _, hidden, _ = shape
        dz = make(2, *lead, hidden, dtype=dtype, device=device, seed=12)
        weight = torch.cat([w_gate, w_up])
        half = dtype in HALVES
        yield dz, x, w_gate, w_up, True, True, True, half, False
        yield dz, x, w_gate, w_up, False, False, True, False, False
        packed = dz.movedim(0, -2).contiguous()
        yield packed, x, weight, None, True, True, False, half, True


SAMPLES = {
    "mlp_forward": mlp_forward_samples,
    "mlp_backward": mlp_backward_samples,
    "mlp_backward_": mlp_backward_in_place_samples,
    "gated_linear": gated_linear_samples,
    "gated_mlp_forward": gated_forward_samples,
    "gated_mlp_backward": gated_backward_samples,
    "gated_mlp_backward_": gated_backward_in_place_samples,
    "gated_input_backward": gated_input_samples,
}
