"""Language models in plain torch: a torchtitan-style Llama, and nanoGPT under autocast."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .spec import Data, Model, tokens


def rope_table(length: int, head: int, base: float = 500000.0) -> tuple[Tensor, Tensor]:
    """cos and sin of (position, pair), fp32."""
    rates = base ** (-torch.arange(0, head, 2).float() / head)
    angles = torch.outer(torch.arange(length).float(), rates)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE over neighbouring pairs; x is (batch, length, heads, head)."""
    length = x.shape[1]
    even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = cos[:length, None], sin[:length, None]
    turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1)
    return turned.flatten(-2).type_as(x)


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.head = dim // heads
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wk = nn.Linear(dim, kv_heads * self.head, bias=False)
        self.wv = nn.Linear(dim, kv_heads * self.head, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        shape = (*x.shape[:2], -1, self.head)
        q, k, v = self.wq(x), self.wk(x), self.wv(x)
        q, k, v = q.view(shape), k.view(shape), v.view(shape)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        out: Tensor = self.wo(y.transpose(1, 2).flatten(2))
        return out


class FeedForward(nn.Module):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, dim, bias=False)
        self.w3 = nn.Linear(dim, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.w2(F.silu(self.w1(x)) * self.w3(x))
        return y


class LlamaBlock(nn.Module):
    def __init__(self, dim: int, hidden: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.attention = Attention(dim, heads, kv_heads)
        self.feed_forward = FeedForward(dim, hidden)
        self.attention_norm = nn.RMSNorm(dim, eps=1e-5)
        self.ffn_norm = nn.RMSNorm(dim, eps=1e-5)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        y: Tensor = x + self.feed_forward(self.ffn_norm(x))
        return y


class Llama(nn.Module):
    """As torchtitan writes it: no biases, RMSNorm before each half, nothing tied."""

    cos: Tensor
    sin: Tensor

    def __init__(
        self,
        vocabulary: int,
        dim: int,
        hidden: int,
        heads: int,
        kv_heads: int,
        depth: int,
        length: int,
    ) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(vocabulary, dim)
        blocks = (LlamaBlock(dim, hidden, heads, kv_heads) for _ in range(depth))
        self.layers = nn.ModuleList(blocks)
        self.norm = nn.RMSNorm(dim, eps=1e-5)
        self.output = nn.Linear(dim, vocabulary, bias=False)
        for name, table in zip(("cos", "sin"), rope_table(length, dim // heads), strict=True):
            self.register_buffer(name, table, persistent=False)
        self.apply(small_weights)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embeddings(x)
        for layer in self.layers:
            h = layer(h, self.cos, self.sin)
        logits: Tensor = self.output(self.norm(h))
        return logits


class GPTBlock(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1 = nn.LayerNorm(dim)
        self.c_attn = nn.Linear(dim, 3 * dim)
        self.c_proj = nn.Linear(dim, dim)
        self.ln_2 = nn.LayerNorm(dim)
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(dim, 4 * dim), "gelu": nn.GELU(),
                                  "c_proj": nn.Linear(4 * dim, dim)})  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.c_attn(self.ln_1(x)).chunk(3, dim=2)
        q, k, v = (t.unflatten(2, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).flatten(2))
        hidden = self.mlp["gelu"](self.mlp["c_fc"](self.ln_2(x)))
        out: Tensor = x + self.mlp["c_proj"](hidden)
        return out


class NanoGPT(nn.Module):
    """Karpathy's, with biases and without dropout; the embedding is tied to the last layer."""

    def __init__(self, vocabulary: int, dim: int, heads: int, depth: int, length: int) -> None:
        super().__init__()
        self.wte = nn.Embedding(vocabulary, dim)
        self.wpe = nn.Embedding(length, dim)
        self.h = nn.ModuleList(GPTBlock(dim, heads) for _ in range(depth))
        self.ln_f = nn.LayerNorm(dim)
        self.lm_head = nn.Linear(dim, vocabulary, bias=False)
        self.lm_head.weight = self.wte.weight
        self.apply(small_weights)

    def forward(self, x: Tensor) -> Tensor:
        h = self.wte(x) + self.wpe(torch.arange(x.shape[1], device=x.device))
        for block in self.h:
            h = block(h)
        logits: Tensor = self.lm_head(self.ln_f(h))
        return logits


def small_weights(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1).float(), target.flatten())


def language_loss(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    return cross_entropy(model(x), target)


def language_output(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    logits: Tensor = model(x)
    return logits


def build_llama(tiny: bool) -> nn.Module:
    if tiny:
        return Llama(96, 64, 96, 4, 2, 2, 32)
    return Llama(32000, 2048, 8192, 16, 8, 4, 2048)


def build_nanogpt(tiny: bool) -> nn.Module:
    return NanoGPT(96, 64, 4, 2, 32) if tiny else NanoGPT(50304, 768, 12, 6, 1024)


def llama_data(_: nn.Module, tiny: bool) -> Data:
    size = (2, 32, 96) if tiny else (4, 2048, 32000)
    return tokens(*size), tokens(*size)


def nanogpt_data(_: nn.Module, tiny: bool) -> Data:
    size = (2, 32, 96) if tiny else (12, 1024, 50304)
    return tokens(*size), tokens(*size)


MODELS = (
    Model(
        "titan_llama",
        build_llama,
        llama_data,
        language_loss,
        language_output,
        criterion=cross_entropy,
    ),
    Model(
        "nanogpt_autocast",
        build_nanogpt,
        nanogpt_data,
        language_loss,
        language_output,
        autocast=True,
        fp32=False,
        criterion=cross_entropy,
    ),
)
