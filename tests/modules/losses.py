"""Models with a cross entropy as libraries write them, for the tests of fuse."""

from __future__ import annotations

import copy
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn import CrossEntropyLoss

import fusedops
from util import calls_of, make

CLASSES = 11


# ---- functions of logits and labels ----


def fixed_cross_entropy(source, target, num_items_in_batch=None, ignore_index=-100, **kwargs):
    reduction = "sum" if num_items_in_batch is not None else "mean"
    loss = nn.functional.cross_entropy(
        source, target, ignore_index=ignore_index, reduction=reduction
    )
    if reduction == "sum":
        if torch.is_tensor(num_items_in_batch):
            num_items_in_batch = num_items_in_batch.to(loss.device)
        loss = loss / num_items_in_batch
    return loss


def causal(
    logits,
    labels,
    vocab_size: int,
    num_items_in_batch=None,
    ignore_index: int = -100,
    shift_labels=None,
    **kwargs,
):
    """As ForCausalLMLoss."""
    logits = logits.float()
    if shift_labels is None:
        labels = nn.functional.pad(labels, (0, 1), value=ignore_index)
        shift_labels = labels[..., 1:].contiguous()
    logits = logits.view(-1, vocab_size)
    shift_labels = shift_labels.view(-1)
    shift_labels = shift_labels.to(logits.device)
    return fixed_cross_entropy(logits, shift_labels, num_items_in_batch, ignore_index, **kwargs)


def masked(logits, labels, vocab_size, num_items_in_batch=None, ignore_index=-100, **kwargs):
    """As ForMaskedLMLoss."""
    logits = logits.float().view(-1, vocab_size)
    labels = labels.view(-1).to(logits.device)
    return fixed_cross_entropy(logits, labels, num_items_in_batch, ignore_index, **kwargs)


def narrow(logits, labels, vocab_size):
    """In the logits' dtype."""
    return F.cross_entropy(logits.view(-1, vocab_size), labels.view(-1))


def handing_on(logits, labels, vocab_size, **kwargs):
    return F.cross_entropy(logits.float().view(-1, vocab_size), labels.view(-1), **kwargs)


def smoothed(logits, labels, vocab_size):
    rows = logits.float().view(-1, vocab_size)
    return F.cross_entropy(rows, labels.view(-1), label_smoothing=0.1)


def of_clamped(logits, labels, vocab_size):
    rows = logits.float().clamp(-1000, 1000).view(-1, vocab_size)
    return F.cross_entropy(rows, labels.view(-1))


def detached(logits, labels, vocab_size):
    return F.cross_entropy(logits.detach().float().view(-1, vocab_size), labels.view(-1))


def two_ahead(logits, labels, vocab_size):
    labels = F.pad(labels, (0, 2), value=-100)[..., 2:]
    return F.cross_entropy(logits.float().view(-1, vocab_size), labels.reshape(-1))


LONGEST = 64


def cut(logits, labels, vocab_size):
    logits, labels = logits[:, :32], labels[:, :32]
    return F.cross_entropy(logits.float().reshape(-1, vocab_size), labels.reshape(-1))


def cut_by_name(logits, labels, vocab_size):
    logits, labels = logits[:, :LONGEST], labels[:, :LONGEST]
    return F.cross_entropy(logits.float().reshape(-1, vocab_size), labels.reshape(-1))


def cut_by_default(logits, labels, vocab_size, longest=64):
    logits, labels = logits[:, :longest], labels[:, :longest]
    return F.cross_entropy(logits.float().reshape(-1, vocab_size), labels.reshape(-1))


def last_hundred(logits, labels, vocab_size):
    logits, labels = logits[:, -100:], labels[:, -100:]
    return F.cross_entropy(logits.float().reshape(-1, vocab_size), labels.reshape(-1))


def first_two(logits, labels, vocab_size):
    logits, labels = logits[:2], labels[:2]
    return F.cross_entropy(logits.float().reshape(-1, vocab_size), labels.reshape(-1))


def by_batch(logits, labels, vocab_size):
    loss = F.cross_entropy(logits.float().view(-1, vocab_size), labels.view(-1))
    return loss * (logits.size(0) // 2)


counts = []


def counting(logits, labels, vocab_size):
    counts.append(vocab_size)
    return F.cross_entropy(logits.float().view(-1, vocab_size), labels.view(-1))


# ---- models ----


class LanguageModel(nn.Module):
    """As the models of Hugging Face: what a class's property gives."""

    function = staticmethod(causal)

    def __init__(self):
        super().__init__()
        self.lm_head = nn.Linear(16, CLASSES)

    @property
    def loss_function(self):
        return self._loss_function if hasattr(self, "_loss_function") else self.function

    @loss_function.setter
    def loss_function(self, value):
        self._loss_function = value

    def forward(self, x, labels, **kwargs):
        logits = self.lm_head(x)
        return self.loss_function(logits=logits, labels=labels, vocab_size=CLASSES, **kwargs)


class ByPosition(LanguageModel):
    def forward(self, x, labels, *args, **kwargs):
        return self.loss_function(self.lm_head(x), labels, CLASSES, *args, **kwargs)


class NanoGPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.lm_head = nn.Linear(16, CLASSES)

    def forward(self, x, labels):
        logits = self.lm_head(x)
        rows = logits.view(-1, logits.size(-1))
        return F.cross_entropy(rows, labels.view(-1), ignore_index=-100)


class Bert(NanoGPT):
    def forward(self, x, labels):
        logits = self.lm_head(x)
        loss = None
        if labels is not None:
            loss_fct = CrossEntropyLoss()
            loss = loss_fct(logits.view(-1, CLASSES), labels.view(-1))
        return loss


class Classes(NanoGPT):
    """Classes in the second dim, from a transposed view."""

    def forward(self, x, labels):
        return nn.functional.cross_entropy(
            self.lm_head(x).transpose(1, 2), labels, reduction="none", label_smoothing=0.1
        ).mean()


class Criterion(NanoGPT):
    def __init__(self):
        super().__init__()
        self.criterion = CrossEntropyLoss(reduction="sum", label_smoothing=0.2)

    def forward(self, x, labels):
        return self.criterion(self.lm_head(x).flatten(0, 1), labels.flatten())


class WithoutSelf(NanoGPT):
    """A function of its class that is no method."""

    def loss(logits, labels):  # noqa: N805
        return F.cross_entropy(logits, labels)

    def forward(self, x, labels):
        return type(self).loss(self.lm_head(x).flatten(0, 1), labels=labels.flatten())


class Options(NanoGPT):
    options: ClassVar = {}

    def forward(self, x, labels):
        logits = self.lm_head(x)
        rows = logits.flatten(0, -2) if logits.dim() > 2 else logits
        return F.cross_entropy(rows, labels, **self.options).sum()


MODELS = {
    LanguageModel: [("", "forward", ("loss_function",))],
    ByPosition: [("", "forward", ("loss_function",))],
    NanoGPT: [("", "forward", ("F.cross_entropy",))],
    Bert: [("", "forward", ("CrossEntropyLoss",))],
    Classes: [("", "forward", ("nn.functional.cross_entropy",))],
    Criterion: [("criterion", "forward", ("cross_entropy",))],
}


def pair(device, dtype=torch.float32, kind=LanguageModel):
    """A model and the fused copy of it."""
    torch.manual_seed(0)
    original = kind().to(device, dtype)
    model = copy.deepcopy(original)
    return original, model, fusedops.fuse(model)


def inputs(device, dtype=torch.float32):
    x = make(2, 6, 16, dtype=dtype, device=device)
    labels = torch.randint(CLASSES, (2, 6), generator=torch.Generator().manual_seed(1))
    labels[0, 1:3] = -100
    return x, labels.to(device)


def check(original, model, x, labels, *args, ours=1, tolerance=1e-5, **kwargs):
    """Loss and gradients, and how often the op ran."""
    ran = calls_of(lambda: model(x, labels, *args, **kwargs)).ours
    assert ran.count("cross_entropy") == ours
    results = []
    for one in (original, model):
        one.zero_grad()
        loss = one(x, labels, *args, **kwargs)
        if loss.requires_grad:
            loss.backward()
        results.append([loss, *(p.grad for p in one.parameters() if p.grad is not None)])
    for theirs, got in zip(*results, strict=True):
        assert got.dtype is theirs.dtype
        torch.testing.assert_close(got, theirs, rtol=tolerance, atol=tolerance, equal_nan=True)
