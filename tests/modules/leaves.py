"""Norms and products as model libraries write them, for the tests of fuse."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class LlamaNorm(nn.Module):
    """Rounds before the weight, as Llama, Mistral and Qwen."""

    def __init__(self, size=24, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size))
        self.variance_epsilon = eps

    def forward(self, hidden_states):
        input_dtype = hidden_states.dtype
        hidden_states = hidden_states.to(torch.float32)
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
        return self.weight * hidden_states.to(input_dtype)


class GemmaNorm(nn.Module):
    """Scales by 1 + weight in fp32."""

    def __init__(self, size=24, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.randn(size))

    def _norm(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    def forward(self, x):
        output = self._norm(x.float())
        output = output * (1.0 + self.weight.float())
        return output.type_as(x)


class T5Norm(nn.Module):
    """Rounds where the weight is of half precision."""

    def __init__(self, size=24, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size))
        self.variance_epsilon = eps

    def forward(self, hidden_states):
        variance = hidden_states.to(torch.float32).pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
        if self.weight.dtype in [torch.float16, torch.bfloat16]:
            hidden_states = hidden_states.to(self.weight.dtype)
        return self.weight * hidden_states


class SizedNorm(LlamaNorm):
    """Raises for inputs of another size."""

    def __init__(self, size=24, eps=1e-6):
        super().__init__(size, eps)
        self.size = size

    def forward(self, hidden_states):
        if hidden_states.size(-1) != self.size:
            raise AssertionError(f"{hidden_states.size(-1)} is not {self.size}")
        return super().forward(hidden_states)


class CohereNorm(nn.Module):
    """A layer norm without a bias, by hand."""

    def __init__(self, size=24, eps=1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size))
        self.variance_epsilon = eps

    def forward(self, hidden_states):
        input_dtype = hidden_states.dtype
        hidden_states = hidden_states.to(torch.float32)
        mean = hidden_states.mean(-1, keepdim=True)
        variance = (hidden_states - mean).pow(2).mean(-1, keepdim=True)
        hidden_states = (hidden_states - mean) * torch.rsqrt(variance + self.variance_epsilon)
        hidden_states = self.weight.to(torch.float32) * hidden_states
        return hidden_states.to(input_dtype)


class OlmoNorm(nn.Module):
    """A layer norm without parameters."""

    def __init__(self, size=24):
        super().__init__()
        self.normalized_shape = (size,)

    def forward(self, hidden_states):
        dtype = hidden_states.dtype
        wide = hidden_states.to(dtype=torch.float32)
        return F.layer_norm(wide, self.normalized_shape, None, None, eps=1e-5).to(dtype)


def slow_norm(x, shape, weight, bias, eps):
    with torch.autocast("cuda", enabled=False):
        return F.layer_norm(x, shape, weight, bias, eps)


class FlaggedNorm(nn.LayerNorm):
    """With a branch that a flag keeps out, as timm's."""

    def __init__(self, size=24):
        super().__init__(size, eps=1e-6)
        self._fast = False

    def forward(self, x):
        if self._fast:
            x = slow_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
        else:
            x = F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
        return x


class ChannelsNorm(FlaggedNorm):
    """Over the channels of images."""

    def forward(self, x):
        x = x.permute(0, 2, 3, 1)
        x = F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
        return x.permute(0, 3, 1, 2)


class Conv1D(nn.Module):
    """GPT-2's linear layer: its weight is (in, out)."""

    def __init__(self, nx=24, nf=10):
        super().__init__()
        self.nf = nf
        self.weight = nn.Parameter(torch.randn(nx, nf) / nx**0.5)
        self.bias = nn.Parameter(torch.randn(nf))

    def forward(self, x):
        size_out = x.size()[:-1] + (self.nf,)  # noqa: RUF005
        x = torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight)
        return x.view(size_out)


class GraphLinear(nn.Module):
    """A linear layer of another base class."""

    def __init__(self, size=24, out=10, bias=True):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(out, size) / size**0.5)
        self.bias = nn.Parameter(torch.randn(out)) if bias else None

    def forward(self, x):
        return F.linear(x, self.weight, self.bias)


# ---- what looks like one and is none ----


class Clipped(LlamaNorm):
    def forward(self, x):
        return super().forward(x).clamp(-1e6, 1e6)


class Capped(LlamaNorm):
    def forward(self, x):
        y = super().forward(x)
        return y if x.sum() < 1e9 else x


class ByLength(LlamaNorm):
    def forward(self, x):
        return super().forward(x) if x.shape[0] < 1000 else x


class OnDevice(LlamaNorm):
    def forward(self, x):
        return super().forward(x) if x.device.type != "meta" else x


class Detached(LlamaNorm):
    def forward(self, x):
        v = x.pow(2).mean(-1, keepdim=True).data
        return self.weight * x * torch.rsqrt(v + self.variance_epsilon)


class Counting(LlamaNorm):
    calls = 0

    def forward(self, x):
        Counting.calls += 1
        return super().forward(x)


class NoGradNorm(LlamaNorm):
    @torch.no_grad()
    def forward(self, x):
        return super().forward(x)


class InPlaceNorm(LlamaNorm):
    def forward(self, x):
        x *= torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * x


class InTraining(LlamaNorm):
    def forward(self, x):
        return super().forward(x) if self.training else x


class Rounded(LlamaNorm):
    """It divides by another value: no square root."""

    def forward(self, x):
        return self.weight * x / (x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)


class ScaledConv1D(Conv1D):
    def forward(self, x):
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight) * 1.5
