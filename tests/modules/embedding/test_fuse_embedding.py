"""fuse on nn.Embedding: values and gradients, and when torch's own gradient stays."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

import fusedops
from util import DTYPES, Calls, make, name

ROWS, D = 11, 8


class Scaled(nn.Embedding):
    def forward(self, input):
        return super().forward(input) * 2


class Named(nn.Embedding):
    """Has nothing of its own."""


def pair(device, dtype=torch.float32, kind=nn.Embedding, **options):
    torch.manual_seed(0)
    original = kind(ROWS, D, **options).to(device, dtype)
    module = copy.deepcopy(original)
    return original, module, fusedops.fuse(module)


def ids(device, dtype=torch.int64, shape=(3, 7)):
    return torch.randint(ROWS, shape, dtype=dtype).to(device)


def step(module, indices):
    module.zero_grad()
    y = module(indices)
    y.backward(make(*y.shape, dtype=y.dtype, device=str(y.device.type)))
    return y.detach(), module.weight.grad


def ours(module, indices):
    """How often the gradient was our op's."""
    y = module(indices)
    with Calls() as calls:
        y.sum().backward()
    module.zero_grad()
    return calls.ours.count("embedding_backward")


def check(original, module, indices, tolerance=1e-5):
    for a, b in zip(step(original, indices), step(module, indices), strict=True):
        torch.testing.assert_close(b, a, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@pytest.mark.parametrize("padding", [None, 3, -1])
def test_gradients(device, dtype, padding):
    original, module, report = pair(device, dtype, padding_idx=padding)
    assert report.embeddings == [""]
    assert "embeddings in one pass: (model)" in str(report)
    tolerance = 2e-2 if dtype in (torch.float16, torch.bfloat16) else 1e-5
    for kind in (torch.int64, torch.int32):
        for shape in ((3, 7), (), (0,), (40,)):
            check(original, module, ids(device, kind, shape), tolerance)
    assert ours(module, ids(device)) == 1
    assert fusedops.fuse(module).embeddings == []
    assert module.state_dict().keys() == original.state_dict().keys()


def test_classes(device):
    original, module, report = pair(device, kind=Named)
    assert report.embeddings == [""]
    assert isinstance(module, Named)
    check(original, module, ids(device))
    original, module, report = pair(device, kind=Scaled)
    assert report.embeddings == []
    check(original, module, ids(device))


@pytest.mark.parametrize(
    "options", [{"sparse": True}, {"scale_grad_by_freq": True}, {"max_norm": 0.5}], ids=str
)
def test_other_gradients_stay_torchs(device, options):
    original, module, _ = pair(device, **options)
    indices = ids(device)
    assert ours(module, indices) == 0
    (y, dw), (our_y, our_dw) = step(original, indices), step(module, indices)
    torch.testing.assert_close(our_y, y)
    torch.testing.assert_close(our_dw.to_dense(), dw.to_dense())


def test_a_tied_last_layer(device):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(ROWS, D), nn.Tanh(), nn.Linear(D, ROWS, bias=False))
    model = model.to(device)
    model[2].weight = model[0].weight
    fused = copy.deepcopy(model)
    assert fusedops.fuse(fused).embeddings == ["0"]
    assert fused[2].weight is fused[0].weight
    grads = []
    for one in (model, fused):
        one(ids(device, shape=(21,)) * 0 + 4).square().sum().backward()
        grads.append(one[0].weight.grad)
    torch.testing.assert_close(grads[1], grads[0])


def test_later_changes_and_modes(device, monkeypatch):
    original, module, _ = pair(device)
    indices = ids(device)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        check(original, other, indices)
        assert ours(other, indices) == 1
    with torch.no_grad():
        torch.testing.assert_close(module(indices), original(indices))
    calls = []
    handle = module.register_forward_hook(lambda *_: calls.append(1))
    check(original, module, indices)
    handle.remove()
    assert calls == [1]
    dys = make(4, *indices.shape, D, dtype=torch.float32, device=device)
    grads = [
        torch.autograd.grad(one(indices), one.weight, dys, is_grads_batched=True)[0]
        for one in (original, module)
    ]
    torch.testing.assert_close(grads[1], grads[0])
    monkeypatch.setattr(nn.Embedding, "forward", lambda self, x: self.weight[x] + 1)
    torch.testing.assert_close(module(indices), original(indices))


def test_second_derivatives(device):
    _, module, _ = pair(device, torch.float64, padding_idx=2)
    indices = ids(device)
    y = module(indices)
    (grad,) = torch.autograd.grad(y.square().sum(), module.weight, create_graph=True)
    grad.square().sum().backward()
    counts = torch.bincount(indices.flatten(), minlength=ROWS).double()[:, None]
    counts[2] = 0
    torch.testing.assert_close(module.weight.grad, 8 * counts.square() * module.weight.detach())


def test_compiled_code_has_torchs(device):
    original, module, _ = pair(device)
    targets = []

    def backend(graph, _):
        targets.extend(str(n.target) for n in graph.graph.nodes if n.op == "call_function")
        return graph.forward

    y = torch.compile(module, fullgraph=True, backend=backend)(ids(device))
    assert y.shape == original(ids(device)).shape
    assert not any("fusedops" in target for target in targets)


def test_an_index_that_is_no_row():
    _, module, _ = pair("cpu")
    with pytest.raises(IndexError, match="out of range"):
        module(torch.tensor([ROWS]))
