"""fusedops.fuse on nn.Transformer's layers: attention, the MLP, sums with norms, the fast path."""

from __future__ import annotations

import copy
import pickle
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fusedops
from util import Calls, make

ACTIVATIONS = {"relu": "relu", "gelu": F.gelu, "silu": nn.SiLU()}


def layer(kind, device, dropout=0.0, **options):
    """A layer of torch's, and the same one fused."""
    torch.manual_seed(0)
    made = {"encoder": nn.TransformerEncoderLayer, "decoder": nn.TransformerDecoderLayer}[kind]
    theirs = made(16, 4, 32, dropout=dropout, **options).to(device)
    with torch.no_grad():
        for p in theirs.parameters():
            p.add_(0.1 * torch.randn(p.shape).to(p))
    ours = copy.deepcopy(theirs)
    report = fusedops.fuse(ours)
    assert report.num_skipped == 0
    assert [(b.kind, b.layers) for b in report.blocks] == [("mlp", ("linear1", "linear2"))]
    assert len(report.pairs) == 1
    return theirs, ours


def inputs(kind, device):
    x = make(3, 5, 16, dtype=torch.float32, device=device, seed=1)
    memory = make(3, 5, 16, dtype=torch.float32, device=device, seed=2)
    return (x,) if kind == "encoder" else (x, memory)


def our_ops(call):
    """The names of our ops that a call runs."""
    with Calls() as calls:
        call()
    return calls.ours


def assert_same(theirs, ours, args, **keywords):
    """Outputs and gradients are torch's."""
    found = []
    for module in (theirs, ours):
        module.zero_grad()
        made = [x.detach().clone().requires_grad_() for x in args]
        torch.manual_seed(1)
        y = module(*made, **keywords)
        y.backward(make(*y.shape, dtype=y.dtype, device=y.device, seed=7))
        found.append([y, *(x.grad for x in made), *(p.grad for p in module.parameters())])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(b, a, rtol=5e-4, atol=5e-5)


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_is_torchs(device, kind, norm_first, activation):
    options = {"norm_first": norm_first, "activation": ACTIVATIONS[activation]}
    theirs, ours = layer(kind, device, **options)
    args = inputs(kind, device)
    assert_same(theirs, ours, args)
    assert_same(theirs.eval(), ours.eval(), args)
    with torch.no_grad():
        torch.testing.assert_close(ours(*args), theirs(*args), rtol=5e-4, atol=5e-5)


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_masks_and_dropout(device, batch_first, bias):
    causal = nn.Transformer.generate_square_subsequent_mask(3 if not batch_first else 5)
    causal = causal.to(device)
    options = {"batch_first": batch_first, "bias": bias}
    theirs, ours = layer("encoder", device, **options)
    assert_same(theirs, ours, inputs("encoder", device), src_mask=causal, is_causal=True)
    theirs, ours = layer("decoder", device, dropout=0.3, **options)
    assert_same(theirs, ours, inputs("decoder", device), tgt_mask=causal, tgt_is_causal=True)


def test_what_runs(device):
    _, ours = layer("encoder", device)
    ran = our_ops(lambda: ours(*inputs("encoder", device)))
    assert "linear1" not in ran
    assert len([name for name in ran if name.startswith("linear")]) == 2  # of the attention
    assert len([name for name in ran if "mlp" in name]) >= 1
    assert len([name for name in ran if "norm" in name]) == 2


def test_the_fast_path_stays(device):
    theirs, ours = layer("encoder", device, batch_first=True)
    x = inputs("encoder", device)[0]
    padded = torch.zeros(3, 5, dtype=torch.bool, device=device)
    padded[1, 3:] = True
    stacks = [nn.TransformerEncoder(m, 2).eval() for m in (theirs, ours)]
    native = mock.patch.object(
        torch, "_transformer_encoder_layer_fwd", wraps=torch._transformer_encoder_layer_fwd
    )
    with torch.no_grad(), native as called:
        torch.testing.assert_close(ours.eval()(x), theirs.eval()(x))
        assert called.call_count == 2
        found = [stack(x, src_key_padding_mask=padded) for stack in stacks]
        assert called.call_count == 6
    torch.testing.assert_close(found[1], found[0])


def test_another_activation_is_followed(device):
    theirs, ours = layer("encoder", device)
    for module in (theirs, ours):
        module.activation = F.silu
    assert_same(theirs, ours, inputs("encoder", device))
    again = copy.deepcopy(ours)
    for module in (theirs, again):
        module.activation = F.relu
    assert_same(theirs, again, inputs("encoder", device))


def test_copies_pickles_and_compiled_code(device):
    theirs, ours = layer("decoder", device)
    args = inputs("decoder", device)
    for again in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert isinstance(again, nn.TransformerDecoderLayer)
        assert_same(theirs, again, args)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    compiled = torch.compile(ours, backend="aot_eager")
    torch.testing.assert_close(compiled(*args), theirs(*args), rtol=5e-4, atol=5e-5)
    second = fusedops.fuse(ours)
    assert second.num_fused == 0


def test_the_whole_transformer(device):
    torch.manual_seed(0)
    theirs = nn.Transformer(16, 4, 2, 2, 32, dropout=0.0, batch_first=True).to(device)
    ours = copy.deepcopy(theirs)
    report = fusedops.fuse(ours)
    assert (report.num_skipped, len(report.blocks), len(report.pairs)) == (0, 4, 4)
    assert_same(theirs, ours, inputs("decoder", device))
    assert_same(theirs.eval(), ours.eval(), inputs("decoder", device))
