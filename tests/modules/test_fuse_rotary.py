"""fuse on methods that rotate query and key by a function of theirs."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fusedops
from util import HALVES, calls_of, make, name

seen = []


def rotate_half(x):
    x1 = x[..., : x.shape[-1] // 2]
    x2 = x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)


def rotate_pairs(x):
    return torch.stack([-x[..., 1::2], x[..., ::2]], dim=-1).flatten(-2)


def halves(q, k, cos, sin, unsqueeze_dim=1):
    """As in Llama."""
    cos = cos.unsqueeze(unsqueeze_dim)
    sin = sin.unsqueeze(unsqueeze_dim)
    q_embed = (q * cos) + (rotate_half(q) * sin)
    k_embed = (k * cos) + (rotate_half(k) * sin)
    return q_embed, k_embed


def wide_pairs(q, k, cos, sin):
    """As in Cohere: in float32."""
    dtype = q.dtype
    q, k, cos, sin = q.float(), k.float(), cos.unsqueeze(1), sin.unsqueeze(1)
    q_embed = (q * cos) + (rotate_pairs(q) * sin)
    k_embed = (k * cos) + (rotate_pairs(k) * sin)
    return q_embed.to(dtype), k_embed.to(dtype)


def part_of_pairs(q, k, cos, sin):
    """As in GLM: the first elements of a row, by the first half of the tables."""
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    cos = cos[..., : cos.shape[-1] // 2].repeat_interleave(2, dim=-1)
    sin = sin[..., : sin.shape[-1] // 2].repeat_interleave(2, dim=-1)
    rotary = cos.shape[-1]
    q_rot, q_pass = q[..., :rotary], q[..., rotary:]
    k_rot, k_pass = k[..., :rotary], k[..., rotary:]
    q_embed = (q_rot * cos) + (rotate_pairs(q_rot) * sin)
    k_embed = (k_rot * cos) + (rotate_pairs(k_rot) * sin)
    return torch.cat([q_embed, q_pass], dim=-1), torch.cat([k_embed, k_pass], dim=-1)


def of_first_heads(q, k, cos, sin):
    return halves(q[:, :16], k[:, :16], cos, sin)


def of_clamped(q, k, cos, sin):
    return halves(q.clamp(-1000, 1000), k, cos, sin)


def other_sign(q, k, cos, sin):
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return q * cos + rotate_half(q) * sin, k * cos - rotate_half(k) * sin


def no_gradient(q, k, cos, sin):
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return q * cos + rotate_half(q) * sin, (k * cos + rotate_half(k) * sin).detach()


def writes(q, k, cos, sin):
    seen.append(q.shape)
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


def by_length(q, k, cos, sin):
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    if q.shape[2] > 1000:
        return q, k
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


rotate = halves


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(32, 64)
        self.out = nn.Linear(32, 32)

    def forward(self, x, tables):
        cos, sin = tables
        q, k, v = self.qkv(x).unflatten(-1, (-1, 8)).transpose(1, 2).split([4, 2, 2], 1)
        q, k = rotate(q, k, cos, sin)
        y = F.scaled_dot_product_attention(q, k.repeat(1, 2, 1, 1), v.repeat(1, 2, 1, 1))
        return self.out(y.transpose(1, 2).flatten(-2))


class ByKeyword(Attention):
    def forward(self, x, tables):
        q, k, _ = self.qkv(x).unflatten(-1, (-1, 8)).transpose(1, 2).split([4, 2, 2], 1)
        q, k = rotate(q, k, *tables)
        q, k = rotate(q=q, k=k, cos=tables[0], sin=tables[1])
        return self.out(q.transpose(1, 2).flatten(-2))


@pytest.fixture
def rotation(monkeypatch):
    """Make `rotate` another function."""
    return lambda function: monkeypatch.setitem(globals(), "rotate", function)


def inputs(device, dtype=torch.float32, width=8, time=6):
    x = make(2, time, 32, dtype=dtype, device=device)
    return x, [make(2, time, width, dtype=dtype, device=device, seed=s) for s in (1, 2)]


def pair(device, dtype=torch.float32, kind=Attention):
    """A module and the fused copy of it."""
    torch.manual_seed(0)
    original = kind().to(device, dtype)
    module = copy.deepcopy(original)
    return original, module, fusedops.fuse(module)


def check(original, module, x, tables, ours, tolerance=1e-5):
    """Values and gradients, and whether the op ran."""
    assert calls_of(module, x, tables).ours.count("rope") == ours
    results = []
    for one in (original, module):
        one.zero_grad()
        y = one(x, tables)
        y.float().square().sum().backward()
        results.append([y, *(p.grad for p in one.parameters())])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(b, a, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("function", [halves, wide_pairs, part_of_pairs], ids=lambda f: f.__name__)
def test_runs_as_one_op(device, rotation, function):
    rotation(function)
    original, module, report = pair(device)
    assert report.rotations == [("", "forward", ("rotate",))]
    assert "rotary embeddings" in str(report)
    assert module.state_dict().keys() == original.state_dict().keys()
    check(original, module, *inputs(device), ours=1)
    assert fusedops.fuse(module).rotations == []
    check(original, module, *inputs(device), ours=1)


def test_a_part_of_the_row(device, rotation):
    rotation(part_of_pairs)
    original, module, _ = pair(device)
    check(original, module, *inputs(device, width=4), ours=1)


@pytest.mark.parametrize("dtype", HALVES, ids=name)
def test_half_precision(device, dtype):
    original, module, _ = pair(device, dtype)
    check(original, module, *inputs(device, dtype), ours=1, tolerance=5e-2)


def test_float64_where_the_function_keeps_it(device, rotation):
    original, module, _ = pair(device, torch.float64)
    check(original, module, *inputs(device, torch.float64), ours=1)
    rotation(wide_pairs)  # in float32 always
    original, module, _ = pair(device, torch.float64)
    check(original, module, *inputs(device, torch.float64), ours=0)


@pytest.mark.parametrize(
    "function",
    [
        other_sign,
        no_gradient,
        writes,
        by_length,
        of_first_heads,
        of_clamped,
        lambda q, k, cos, sin: halves(q, k, cos, sin),
    ],
    ids=["other sign", "no gradient", "writes", "by length", "heads", "clamped", "lambda"],
)
def test_what_is_something_else_stays(device, rotation, function):
    rotation(function)
    original, module, report = pair(device)
    assert report.rotations == []
    seen.clear()
    check(original, module, *inputs(device), ours=0)


def test_other_forms_of_the_call_stay(device):
    original, module, report = pair(device, kind=ByKeyword)
    assert report.rotations == []
    check(original, module, *inputs(device), ours=0)


def test_other_arguments_run_the_function(device):
    original, module, _ = pair(device)
    x, tables = inputs(device)
    learned = [t.clone().requires_grad_() for t in tables]
    check(original, module, x, learned, ours=1)  # counted without gradients
    grads = [torch.autograd.grad(m(x, learned).sum(), learned) for m in (original, module)]
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b)
    one = [t[:, :1] for t in tables]  # broadcast over time
    check(original, module, x, one, ours=0)
    original, module, _ = pair(device, torch.bfloat16)
    q = make(2, 4, 6, 8, dtype=torch.bfloat16, device=device)
    got = module._fused_rotate(halves, q, q, *tables)
    assert got[0].dtype is torch.float32  # promoted, as the function does
    with pytest.raises(RuntimeError, match="must match the size"):
        module(x.bfloat16(), [t[:, :3].bfloat16() for t in tables])


def test_replaced_names_are_followed(device, rotation, monkeypatch):
    original, module, _ = pair(device)
    x, tables = inputs(device)
    check(original, module, x, tables, ours=1)
    with monkeypatch.context() as patch:
        patch.setitem(globals(), "rotate_half", lambda t: t)
        check(original, module, x, tables, ours=0)
    check(original, module, x, tables, ours=1)
    with monkeypatch.context() as patch:
        patch.setattr(halves, "__defaults__", (-3,))
        check(original, module, x, tables, ours=0)
    with monkeypatch.context() as patch:
        patch.setattr(Attention, "forward", lambda self, x, tables: self.out(x))
        check(original, module, x, tables, ours=0)
    rotation(other_sign)
    check(original, module, x, tables, ours=0)


def test_copies_and_pickles(device):
    original, module, _ = pair(device)
    x, tables = inputs(device)
    for again in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert type(again).__name__ == "Attention"
        check(original, again, x, tables, ours=1)


def test_hooks_on_the_module_run(device):
    original, module, _ = pair(device)
    calls = []
    module.register_forward_hook(lambda *a: calls.append("module"))
    module.qkv.register_forward_hook(lambda *a: calls.append("qkv"))
    check(original, module, *inputs(device), ours=1)
    assert calls.count("module") == calls.count("qkv") > 0


def test_compiled_code_is_torchs(device):
    torch.compiler.reset()
    original, module, _ = pair(device)
    targets = []

    def backend(graph, example):
        targets.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    x, tables = inputs(device)
    y = torch.compile(module, fullgraph=True, backend=backend)(x, tables)
    torch.testing.assert_close(y, original(x, tables))
    assert targets
    assert not any("fusedops" in target for target in targets)


@pytest.mark.parametrize("model", ["Llama", "Qwen3", "Mistral", "Phi3", "GPTNeoX", "Glm", "Cohere"])
def test_hugging_face(device, model):
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "hidden_size": 64}
    more = {} if model == "GPTNeoX" else {"num_key_value_heads": 2, "head_dim": 16}
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = getattr(transformers, f"{model}Config")(
        **sizes, **more, **tokens, intermediate_size=48
    )
    original = getattr(transformers, f"{model}ForCausalLM")(config).to(device).eval()
    fused = copy.deepcopy(original)
    assert len(fusedops.fuse(fused).rotations) == 1
    ids = torch.arange(24, device=device).view(2, 12)
    assert calls_of(fused, ids).ours.count("rope") == 1
    torch.testing.assert_close(fused(ids).logits, original(ids).logits, rtol=1e-4, atol=1e-5)
