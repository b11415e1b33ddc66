"""What torch's own tools see of our ops: flop counts, selective activation checkpointing."""

from __future__ import annotations

import functools
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts
from torch.utils.flop_counter import FlopCounterMode, flop_registry

import fusedops
from fusedops.ops import conv
from gemm.mlp_util import every_kind, inputs, leaves_of, ours, present, torchs
from util import ACTIVATIONS, Calls, linear_inputs, torch_linear


def flops(function, wanted):
    """The FLOPs of a forward and the gradients of the wanted tensors."""
    with FlopCounterMode(display=False) as counter:
        torch.autograd.grad(function().sum(), wanted)
    return counter.get_total_flops()


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_flops_of_linear_and_matmul(device, activation):
    x, weight, bias, _ = linear_inputs(6, 5, 4, torch.float32, device)
    leaves = [t.requires_grad_() for t in (x, weight, bias)]
    for wanted in ([x], [weight], [bias], leaves):
        for t in leaves:
            t.requires_grad_(any(t is w for w in wanted))
        want = flops(lambda: torch_linear(*leaves, activation), wanted)
        assert flops(lambda: fusedops.linear(*leaves, activation), wanted) == want
        a, b = leaves[0], leaves[1].t()
        assert flops(lambda a=a, b=b: fusedops.matmul(a, b, bias, activation), wanted) == want
    assert want == 3 * 2 * 6 * 5 * 4


@every_kind
def test_flops_of_mlp(device, kind):
    arguments, residual, _ = inputs(kind, torch.float32, device)
    tensors = leaves_of([*arguments, residual])
    for index, kept in enumerate([tensors, *([t] for t in tensors)]):
        if kept[0] is None:
            continue
        wanted = present(kept)
        for t in present(tensors):
            t.requires_grad_(any(t is w for w in wanted))
        *args, res = tensors
        want = flops(lambda: torchs(kind, args, "silu", res), wanted)  # noqa: B023
        got = flops(lambda: ours(kind, args, "silu", res), wanted)  # noqa: B023
        again = flops(lambda: ours(kind, args, "silu", res, recompute=True), wanted)  # noqa: B023
        # A gated block forms both halves of dz where one is needed, and dw of both.
        assert got == want or (kind == "gated" and got > want)
        assert again >= got
        if index == 0:
            assert got == want
            first = 2 * args[0].numel() * (args[1].shape[0] + (kind == "gated") * 128)
            assert again == got + first


@every_kind
def test_flops_of_gradients_in_main_grad_and_of_a_kept_graph(device, kind):
    arguments, residual, _ = inputs(kind, torch.float32, device)
    *args, res = leaves_of([*arguments, residual])
    with FlopCounterMode(display=False) as counter:
        torchs(kind, args, "relu", res).sum().backward()
    want = counter.get_total_flops()
    with FlopCounterMode(display=False) as counter:
        ours(kind, args, "relu", res).sum().backward(retain_graph=True)
    assert counter.get_total_flops() == want
    for weight in present(args):
        if weight.dim() == 2 and weight is not args[0]:
            weight.main_grad = torch.zeros_like(weight)
    with FlopCounterMode(display=False) as counter:
        ours(kind, args, "relu", res).sum().backward()
    assert counter.get_total_flops() == want


@pytest.mark.parametrize(
    ("kind", "outputs", "groups"), [("uses_first", 8, 1), ("uses_depthwise", 4, 4)]
)
def test_flops_of_convolutions(device, monkeypatch, kind, outputs, groups):
    """As torch counts those of torch's convolution, but for a depthwise one's weight: it counts all
    pairs of channels.
    """
    x = torch.randn(2, 4, 9, 8, dtype=torch.float64, device=device, requires_grad=True)
    weight = torch.randn(outputs, 4 // groups, 3, 3, dtype=x.dtype, device=device)
    once = 2 * 2 * outputs * 5 * 4 * 9 * (4 // groups)

    def run():
        return fusedops.conv_bn_act(x, weight, stride=2, padding=1, groups=groups, training=True)

    for wanted in ([x], [weight], [x, weight]):
        for t in (x, weight):
            t.requires_grad_(any(t is w for w in wanted))
        found = []
        for own in (False, True):
            monkeypatch.setattr(conv, kind, lambda *_, own=own: own)
            found.append(flops(run, wanted))
        assert found[1] == (1 + len(wanted)) * once
        assert found[0] == found[1] or groups > 1


def test_every_product_has_a_formula():
    for op in fusedops.compute_intensive_ops:
        assert op.overloadpacket in flop_registry
    names = {str(op) for op in flop_registry if str(op).startswith("fusedops.")}
    for name in ("linear_backward", "linear_input_backward", "linear_wgrad_", "mlp_backward",
                 "mlp_backward_", "gated_mlp_backward", "gated_mlp_backward_",
                 "gated_input_backward", "first_conv_image", "first_conv_weight",
                 "image_conv_backward", "depthwise_conv_backward"):  # fmt: skip
        assert f"fusedops.{name}" in names


@pytest.mark.parametrize("order", ["fusedops, {}", "{}, fusedops"])
def test_formulas_come_with_the_counter_and_not_before(order):
    counter = "torch.utils.flop_counter"
    late = f"assert {counter!r} not in sys.modules\n" if order.startswith("fusedops") else ""
    code = (
        f"import sys, torch\nimport {order.format('sys')}\n{late}import {order.format(counter)}\n"
        f"assert torch.ops.fusedops.linear in {counter}.flop_registry\n"
        f"assert not any(getattr(f, 'module', '') == {counter!r} for f in sys.meta_path)\n"
    )
    if order.startswith("{}"):
        code = code.replace("import sys, fusedops\n", "")
    subprocess.run([sys.executable, "-c", code], check=True)


PRODUCTS = {
    "linear": lambda x, w, b: fusedops.linear(x, w, b, "relu"),
    "linear_preact": lambda x, w, b: fusedops.linear(x, w, b, "gelu"),
    "matmul": lambda x, w, b: fusedops.matmul(x, w, b),
    "matmul_preact": lambda x, w, b: fusedops.matmul(x, w, b, "silu"),
    "mlp_forward": lambda x, w, b: fusedops.mlp(x, w, b, w, b, "gelu"),
    "gated_mlp_forward": lambda x, w, b: fusedops.gated_mlp(x, w, w, w, b),
}


@pytest.mark.parametrize("op", PRODUCTS)
@pytest.mark.parametrize("autocast", [False, True])
def test_selective_checkpointing_saves_products(device, op, autocast):
    x, weight, bias, _ = linear_inputs(6, 12, 12, torch.float32, device)
    parameters = [weight.requires_grad_(), bias.requires_grad_()]
    contexts = functools.partial(
        create_selective_checkpoint_contexts, fusedops.compute_intensive_ops
    )

    def step(around):
        leaf = x.clone().requires_grad_()
        with torch.autocast(device, torch.bfloat16, enabled=autocast):
            y = around(lambda t: F.silu(PRODUCTS[op](torch.sin(t), *parameters)), leaf)
        with Calls() as backward:
            grads = torch.autograd.grad(y.float().square().sum(), [leaf, *parameters])
        return [y, *grads], backward.ours

    plain, without = step(lambda f, t: f(t))
    saved, ran = step(lambda f, t: checkpoint(f, t, use_reentrant=False, context_fn=contexts))
    every, again = step(lambda f, t: checkpoint(f, t, use_reentrant=False))
    assert again.count(op) == without.count(op) + 1
    assert ran.count(op) == without.count(op)
    for results in (saved, every):
        for a, b in zip(results, plain, strict=True):
            assert torch.equal(a, b)
