"""What the test files of mlp and gated_mlp share: inputs, our call, torch's, the definition."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import fusedops
from fusedops import reference
from samples.mlp import gated_inputs, mlp_inputs
from util import TORCH_ACTIVATION

SHAPES = [((96,), 64, 128, 72), ((3, 11), 33, 47, 29)]
KINDS = ["mlp", "gated", "packed"]
every_kind = pytest.mark.parametrize("kind", KINDS)


def inputs(kind, dtype, device, shape=SHAPES[0], bias=True, residual=True):
    """(arguments of the function up to its biases, residual, dy); None where left out."""
    if kind == "mlp":
        x, w1, b1, w2, b2, res, dy = mlp_inputs(*shape, dtype, device)
        arguments = [x, w1, b1 if bias else None, w2, b2 if bias else None]
    else:
        x, w_gate, w_up, b_gate, b_up, w_down, b_down, res, dy = gated_inputs(*shape, dtype, device)
        biases = [b_gate, b_up]
        if kind == "packed":
            w_gate, w_up, biases = torch.cat([w_gate, w_up]), None, [torch.cat(biases), None]
        arguments = [x, w_gate, w_up, w_down, *(biases if bias else (None, None))]
        arguments.append(b_down if bias else None)
    return arguments, res if residual else None, dy


def ours(kind, arguments, activation, residual=None, recompute=False):
    function = fusedops.mlp if kind == "mlp" else fusedops.gated_mlp
    return function(*arguments, activation, residual, recompute)


def exact(kind, arguments, activation, residual=None):
    function = reference.mlp if kind == "mlp" else reference.gated_mlp
    return function(*arguments, activation, residual)


def torchs(kind, arguments, activation, residual=None):
    """By torch's kernels, one by one."""
    act = TORCH_ACTIVATION[activation]
    if kind == "mlp":
        x, w1, b1, w2, b2 = arguments
        y = F.linear(act(F.linear(x, w1, b1)), w2, b2)
    else:
        x, w_gate, w_up, w_down, b_gate, b_up, b_down = arguments
        gate = F.linear(x, w_gate, b_gate)
        gate, up = gate.chunk(2, -1) if w_up is None else (gate, F.linear(x, w_up, b_up))
        y = F.linear(act(gate) * up, w_down, b_down)
    return y if residual is None else y + residual


def leaves_of(tensors, dtype=None):
    return [
        None if t is None else t.detach().to(dtype or t.dtype).requires_grad_() for t in tensors
    ]


def present(tensors):
    return [t for t in tensors if t is not None]


def step(function, kind, arguments, activation, residual, dy, dtype=None, **options):
    """y and the gradients of everything that is there."""
    *args, res = leaves_of([*arguments, residual], dtype)
    y = function(kind, args, activation, res, **options)
    return [y.detach(), *torch.autograd.grad(y, present([*args, res]), dy.to(y.dtype))]
