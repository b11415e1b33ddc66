"""Layers whose MLPs are not modules of their own, as model libraries write them."""

from __future__ import annotations

import functools
import math

import torch
import torch.nn.functional as F
from torch import nn

from .leaves import Conv1D


class NewGELU(nn.Module):
    """The tanh form, written out."""

    def forward(self, input):
        inner = math.sqrt(2.0 / math.pi) * (input + 0.044715 * torch.pow(input, 3.0))
        return 0.5 * input * (1.0 + torch.tanh(inner))


class QuickGELU(nn.Module):
    def forward(self, input):
        return input * torch.sigmoid(1.702 * input)


class Intermediate(nn.Module):
    def __init__(self, act=nn.GELU):
        super().__init__()
        self.dense = nn.Linear(12, 20)
        self.intermediate_act_fn = act()

    def forward(self, hidden_states):
        hidden_states = self.dense(hidden_states)
        hidden_states = self.intermediate_act_fn(hidden_states)
        return hidden_states  # noqa: RET504


class Output(nn.Module):
    def __init__(self, drop=0.0):
        super().__init__()
        self.dense = nn.Linear(20, 12)
        self.LayerNorm = nn.LayerNorm(12)
        self.dropout = nn.Dropout(drop)

    def forward(self, hidden_states, input_tensor):
        hidden_states = self.dense(hidden_states)
        hidden_states = self.dropout(hidden_states)
        return self.LayerNorm(hidden_states + input_tensor)


class Bert(nn.Module):
    """An MLP in two modules, called in a method that is no forward."""

    def __init__(self, act=nn.GELU, drop=0.0):
        super().__init__()
        self.attention = nn.Linear(12, 12)
        self.intermediate = Intermediate(act)
        self.output = Output(drop)

    def forward(self, hidden_states, attention_mask=None):
        attention_output = self.attention(hidden_states)
        return (lambda function, x: function(x))(self.feed_forward_chunk, attention_output)

    def feed_forward_chunk(self, attention_output):
        intermediate_output = self.intermediate(attention_output)
        layer_output = self.output(intermediate_output, attention_output)
        return layer_output  # noqa: RET504


def renames(old, new):
    """A decorator as transformers' deprecate_kwarg."""

    def wrapper(function):
        @functools.wraps(function)
        def wrapped(*args, **kwargs):
            if old in kwargs:
                kwargs[new] = kwargs.pop(old)
            return function(*args, **kwargs)

        return wrapped

    return wrapper


class Decoder(nn.Module):
    """fc1 and fc2 in the middle of a decorated forward, as OPT's and Whisper's."""

    def __init__(self, act=nn.ReLU, drop=0.0):
        super().__init__()
        self.activation_fn = act()
        self.activation_dropout = drop
        self.dropout = 0.0
        self.norm = nn.LayerNorm(12)
        self.fc1 = nn.Linear(12, 20)
        self.fc2 = nn.Linear(20, 12)

    @renames("past", "cache")
    def forward(self, hidden_states, cache=None, **kwargs):
        residual = hidden_states
        if cache is not None:
            hidden_states = hidden_states + cache
        hidden_states = self.norm(hidden_states)
        hidden_states = self.activation_fn(self.fc1(hidden_states))
        hidden_states = nn.functional.dropout(
            hidden_states, p=self.activation_dropout, training=self.training
        )
        hidden_states = self.fc2(hidden_states)
        hidden_states = nn.functional.dropout(hidden_states, p=self.dropout, training=self.training)
        hidden_states = residual + hidden_states
        outputs = (hidden_states,)
        return outputs[0]


class T5(nn.Module):
    """With a cast between the layers."""

    def __init__(self, act=nn.ReLU, drop=0.0):
        super().__init__()
        self.wi = nn.Linear(12, 20, bias=False)
        self.wo = nn.Linear(20, 12, bias=False)
        self.dropout = nn.Dropout(drop)
        self.act = act()

    def forward(self, hidden_states):
        hidden_states = self.wi(hidden_states)
        hidden_states = self.act(hidden_states)
        hidden_states = self.dropout(hidden_states)
        if (
            isinstance(self.wo.weight, torch.Tensor)
            and hidden_states.dtype != self.wo.weight.dtype
            and self.wo.weight.dtype != torch.int8
        ):
            hidden_states = hidden_states.to(self.wo.weight.dtype)
        hidden_states = self.wo(hidden_states)
        return hidden_states  # noqa: RET504


class GatedT5(nn.Module):
    def __init__(self, drop=0.0):
        super().__init__()
        self.wi_0 = nn.Linear(12, 20, bias=False)
        self.wi_1 = nn.Linear(12, 20, bias=False)
        self.wo = nn.Linear(20, 12, bias=False)
        self.dropout = nn.Dropout(drop)
        self.act = NewGELU()

    def forward(self, hidden_states):
        hidden_gelu = self.act(self.wi_0(hidden_states))
        hidden_linear = self.wi_1(hidden_states)
        hidden_states = hidden_gelu * hidden_linear
        hidden_states = self.dropout(hidden_states)
        if (
            isinstance(self.wo.weight, torch.Tensor)
            and hidden_states.dtype != self.wo.weight.dtype
            and self.wo.weight.dtype != torch.int8
        ):
            hidden_states = hidden_states.to(self.wo.weight.dtype)
        hidden_states = self.wo(hidden_states)
        return hidden_states  # noqa: RET504


class GPT2(nn.Module):
    """The layers are Conv1D."""

    def __init__(self, drop=0.0):
        super().__init__()
        self.c_fc = Conv1D(12, 20)
        self.c_proj = Conv1D(20, 12)
        self.act = NewGELU()
        self.dropout = nn.Dropout(drop)

    def forward(self, hidden_states):
        hidden_states = self.c_fc(hidden_states)
        hidden_states = self.act(hidden_states)
        hidden_states = self.c_proj(hidden_states)
        hidden_states = self.dropout(hidden_states)
        return hidden_states  # noqa: RET504


def erf_gelu(x):
    """As in ESM."""
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


def other_gelu(x):
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.1)))


def printed_gelu(x):
    print("gelu")
    return erf_gelu(x)


class OwnFunction(nn.Module):
    """With a function of the model's file as the activation."""

    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(12, 20)
        self.fc2 = nn.Linear(20, 12)

    def forward(self, x):
        x = self.fc1(x)
        x = erf_gelu(x)
        return self.fc2(x)


class OtherFunction(OwnFunction):
    def forward(self, x):
        x = self.fc1(x)
        x = other_gelu(x)
        return self.fc2(x)


class PrintedFunction(OwnFunction):
    def forward(self, x):
        return self.fc2(printed_gelu(self.fc1(x)))


class Functional(nn.Module):
    """In one expression with a functional activation, inside a branch."""

    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(12, 20)
        self.fc2 = nn.Linear(20, 12)
        self.scale = nn.Parameter(torch.ones(12))

    def forward(self, x, deep=True):
        if deep:
            return self.fc2(F.gelu(self.fc1(x * self.scale), approximate="tanh"))
        return super().__repr__() and x


# ---- what looks like one and is none ----


class KeepsHidden(T5):
    def forward(self, hidden_states):
        h = self.act(self.wi(hidden_states))
        y = self.wo(h)
        return y + h.mean()


class KeepsInLoop(T5):
    def forward(self, x):
        h = x
        total = 0.0
        for _ in range(2):
            total = total + h.sum()
            h = self.act(self.wi(x))
            x = self.wo(h)
        return x + total


class OtherInput(GatedT5):
    def forward(self, x):
        g = self.act(self.wi_0(x))
        x = x + 1
        u = self.wi_1(x)
        return self.wo(g * u)


class SumOfBoth(GatedT5):
    def forward(self, x):
        return self.wo(self.act(self.wi_0(x)) + self.wi_1(x))


class Normed(T5):
    def forward(self, x):
        x = self.act(self.wi(x))
        x = x / x.norm()
        return self.wo(x)


class LambdaReads(T5):
    def forward(self, x):
        read = lambda: h.sum()  # noqa: E731
        h = self.act(self.wi(x))
        y = self.wo(h)
        return y + read()
