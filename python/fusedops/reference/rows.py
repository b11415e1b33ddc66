"""Operations on rows, written out: what a kernel must compute."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


def softmax(x: Tensor, dim: int = -1) -> Tensor:
    """exp(x) / sum(exp(x)) over dim."""
    return log_softmax(x, dim).exp()


def log_softmax(x: Tensor, dim: int = -1) -> Tensor:
    """x - log(sum(exp(x))) over dim."""
    if x.numel() == 0:  # nothing has no maximum
        return x.clone()
    shifted = x - x.detach().amax(dim, keepdim=True)
    return shifted - shifted.exp().sum(dim, keepdim=True).log()


def cross_entropy(
    logits: Tensor,
    target: Tensor,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """-(1 - s) log p[target] - s mean(log p) for p = softmax(logits (M, V)), target (M,)."""
    counted = target != ignore_index
    log_p = log_softmax(logits)
    chosen = log_p.gather(1, torch.where(counted, target, 0).unsqueeze(1)).squeeze(1)
    loss = -(1 - label_smoothing) * chosen - label_smoothing * log_p.mean(1)
    loss = torch.where(counted, loss, 0)
    if reduction == "none":
        return loss
    return loss.sum() if reduction == "sum" else loss.sum() / counted.sum()


def linear_cross_entropy(
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    softcap: float | None = None,
    z_loss: float = 0.0,
) -> Tensor:
    """cross_entropy of y = softcap tanh(z / softcap), z = x w^T + b, plus z_loss logsumexp(y)^2."""
    logits = x @ weight.t()
    if bias is not None:
        logits = logits + bias
    if softcap is not None:
        logits = softcap * (logits / softcap).tanh()
    counted = target != ignore_index
    loss = cross_entropy(logits, target, ignore_index, "none", label_smoothing)
    lse = logits[:, 0] - log_softmax(logits)[:, 0]
    loss = loss + torch.where(counted, z_loss * lse.square(), 0)
    if reduction == "none":
        return loss
    return loss.sum() if reduction == "sum" else loss.sum() / counted.sum()


def layer_norm(
    x: Tensor,
    normalized_shape: tuple[int, ...],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """(x - mean) / sqrt(var + eps) * weight + bias over the last dims, with the biased variance."""
    dims = tuple(range(-len(normalized_shape), 0))
    centered = x - x.mean(dims, keepdim=True)
    y = centered / (centered.square().mean(dims, keepdim=True) + eps).sqrt()
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def rms_norm(
    x: Tensor,
    normalized_shape: tuple[int, ...],
    weight: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dims."""
    dims = tuple(range(-len(normalized_shape), 0))
    y = x / (x.square().mean(dims, keepdim=True) + eps).sqrt()
    return y if weight is None else y * weight


def rope(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    interleaved: bool = False,
    rotary_dim: int | None = None,
    unsqueeze_dim: int = 1,
) -> Tensor:
    """(a cos_a - b sin_a, b cos_b + a sin_b) of the pairs (a, b) of the first rotary_dim elements.

    A table as wide as rotary_dim has a column for each element, one half as wide for each pair.
    """
    rotary = x.shape[-1] if rotary_dim is None else rotary_dim

    def of_pairs(t: Tensor) -> tuple[Tensor, Tensor]:
        if interleaved:
            return t[..., ::2], t[..., 1::2]
        return t[..., : rotary // 2], t[..., rotary // 2 :]

    def of_table(t: Tensor) -> tuple[Tensor, Tensor]:
        t = t.unsqueeze(unsqueeze_dim - 4)
        return of_pairs(t) if t.shape[-1] == rotary else (t, t)

    rotated, rest = x[..., :rotary], x[..., rotary:]
    a, b = of_pairs(rotated)
    (cos_a, cos_b), (sin_a, sin_b) = of_table(cos), of_table(sin)
    parts = a * cos_a - b * sin_a, b * cos_b + a * sin_b
    y = torch.stack(parts, -1).flatten(-2) if interleaved else torch.cat(parts, -1)
    return torch.cat((y, rest), -1) if rotary < x.shape[-1] else y


def embedding_backward(
    grad: Tensor, indices: Tensor, num_rows: int, padding_idx: int | None = None
) -> Tensor:
    """(num_rows, D): row v sums grad (..., D) where indices (...) are v; zeros for padding_idx."""
    rows, where = grad.flatten(0, -2), indices.flatten()
    if padding_idx is not None:
        rows, where = rows[where != padding_idx], where[where != padding_idx]
    return grad.new_zeros(num_rows, grad.shape[-1]).index_add(0, where, rows)
