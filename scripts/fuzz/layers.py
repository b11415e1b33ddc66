"""Calls of whole layers: MLPs, losses, rotary embeddings, dropout, layers over edges."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from draw import FLOATING, Case, Draw
from torch import Tensor

import fusedops
from fusedops import reference as ref

SMOOTH = ("gelu", "gelu_tanh", "silu", "sigmoid", "tanh", "quick_gelu", "mish", "softplus")


def _weights(draw: Draw, dtype: torch.dtype, *shapes: tuple[int, ...]) -> list[Tensor]:
    """About 1 / sqrt(K) large, so that layers behind each other stay about 1."""
    found = []
    for shape in shapes:
        factor = max(shape[-1], 1) ** -0.5 if len(shape) > 1 else 0.5
        found.append((draw.floats(shape, torch.float64, "normal") * factor).to(dtype))
    return found


def _of_mlp(name: str, activation: str, tensors: list[Any]) -> Case:
    """A case of the op `name`, which takes an activation."""
    return Case(
        f"{name}/{activation}",
        partial(getattr(fusedops, name), activation=activation),
        partial(getattr(ref, name), activation=activation),
        tensors,
        differentiable=True,
        scale=lambda *_: torch.tensor(10.0),
    )


def mlp(draw: Draw) -> Case:
    dtype, activation = draw.dtype(), draw.pick(SMOOTH)
    t, d, h = draw.size(), draw.size(1, 65), draw.size(1, 129)
    x = draw.floats((t, d), dtype, "normal")
    weights = _weights(draw, dtype, (h, d), (h,), (d, h), (d,))
    return _of_mlp("mlp", activation, [x, *weights])


def gated_mlp(draw: Draw) -> Case:
    dtype, activation = draw.dtype(), draw.pick(SMOOTH)
    t, d, h = draw.size(), draw.size(1, 65), draw.size(1, 129)
    tensors = [draw.floats((t, d), dtype, "normal"), *_weights(draw, dtype, (h, d), (h, d), (d, h))]
    return _of_mlp("gated_mlp", activation, tensors)


def linear_cross_entropy(draw: Draw) -> Case:
    dtype = draw.dtype()
    m, k, v = draw.size(1, 65), draw.size(1, 65), draw.size(1)
    x, weight = draw.floats((m, k), dtype, "normal"), *_weights(draw, dtype, (v, k))
    kind = draw.pick(("none", "sum", "mean"))
    options: dict[str, Any] = {"reduction": kind, "label_smoothing": draw.pick((0.0, 0.1))}
    options |= {"softcap": draw.pick((None, 5.0)), "z_loss": draw.pick((0.0, 1e-3))}
    return Case(
        f"linear_cross_entropy/{kind}",
        partial(fusedops.linear_cross_entropy, **options),
        partial(ref.linear_cross_entropy, **options),
        [x, weight, draw.integers((m,), 0, v)],
        scale=lambda *_: torch.tensor(10.0 * m),
    )


def rope(draw: Draw) -> Case:
    dtype, interleaved = draw.dtype(), draw.chance(0.5)
    batch, heads, tokens, half = (
        draw.size(1, 3),
        draw.size(1, 5),
        draw.size(0, 33),
        draw.size(1, 33),
    )
    x = draw.floats((batch, heads, tokens, 2 * half), dtype, "normal")
    angle = torch.rand(batch, tokens, half, generator=draw.generator) * 6
    angle = angle.repeat_interleave(2, -1) if interleaved else torch.cat([angle, angle], -1)
    tables = [function(angle).to(dtype).to(draw.device) for function in (torch.cos, torch.sin)]

    def ours(x: Tensor, cos: Tensor, sin: Tensor) -> Any:
        return fusedops.rope(x, None, cos, sin, interleaved=interleaved)

    def exact(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return ref.rope(x, cos, sin, interleaved=interleaved)

    return Case("rope", ours, exact, [x, *tables], scale=lambda x, *_: x.abs() + 1)


def dropout(draw: Draw) -> Case:
    dtype, shape, p = draw.dtype(), draw.shape(1, 3), draw.pick((0.0, 0.25, 0.5))
    tensors = [
        draw.floats(shape, dtype, "normal"),
        draw.floats(shape[-1:], dtype, "normal"),
        draw.floats(shape, dtype, "normal"),
    ]
    seed = torch.tensor([draw.random.getrandbits(40)], device=draw.device)

    def ours(x: Tensor, bias: Tensor, residual: Tensor) -> Tensor:
        return fusedops.bias_dropout_residual(x, bias, residual, p, seed=seed)

    def exact(x: Tensor, bias: Tensor, residual: Tensor) -> Tensor:
        return ref.bias_dropout_residual(x, bias, residual, seed, p)

    return Case(
        "bias_dropout_residual",
        ours,
        exact,
        tensors,
        True,
        lambda x, b, r: 2 * (x + b).abs() + r.abs(),
    )


def interpolate(draw: Draw) -> Case:
    batch, rows, columns = draw.random.randint(1, 3), draw.size(1, 65), draw.size(1, 33)
    dtype, m, k = draw.dtype(), draw.size(0, 33), draw.random.randint(1, 5)
    features = draw.floats((batch, rows, columns), dtype, "normal")
    idx = draw.integers((batch, m, k), -1, rows)
    weights = draw.floats(
        (batch, m, k), dtype if dtype is torch.float64 else torch.float32, "normal"
    )
    return Case(
        "interpolate",
        fusedops.points.interpolate,
        ref.interpolate,
        [features, idx, weights],
        scale=lambda f, i, w: f.abs().max() * w.abs().max() * k if w.numel() else f,
    )


def edge_conv(draw: Draw) -> Case:
    dtype = draw.pick(FLOATING[2:])
    batch, rows, c, width = (
        draw.random.randint(1, 2),
        draw.size(1, 33),
        draw.size(1, 9),
        draw.size(1, 17),
    )
    features = draw.floats((batch, rows, c), dtype, "normal")
    idx = draw.integers((batch, rows, draw.random.randint(1, 5)), 0, rows)
    weights = _weights(draw, dtype, (width, 2 * c), (width, width))

    def call(function: Any) -> Any:
        return lambda f, i, *w: function(f, i, list(w), activation="silu")

    return Case(
        "edge_conv",
        call(fusedops.points.edge_conv),
        call(ref.edge_conv),
        [features, idx, *weights],
        scale=lambda *_: torch.tensor(10.0),
    )


FAMILIES = {
    "mlp": (mlp, gated_mlp),
    "losses": (linear_cross_entropy,),
    "rope": (rope,),
    "dropout": (dropout,),
    "edges": (edge_conv, interpolate),
}
