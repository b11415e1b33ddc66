"""Calls of every op family, drawn at random."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from draw import Case, Draw
from torch import Tensor

import fusedops
from fusedops import reference as ref
from fusedops._core.activation import ACTIVATIONS

if TYPE_CHECKING:
    from collections.abc import Callable

SMOOTH = ("none", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh", "quick_gelu", "mish", "softplus")
# NOTE: a rounding of a pre-activation moves it across a kink: gradients there are another's.
REDUCTIONS = ("sum", "mean", "prod", "amax", "amin", "argmax", "argmin", "any", "all")
REDUCTIONS = (*REDUCTIONS, "count_nonzero", "logsumexp", "var", "std")
TAME = ("normal", "small", "zeros", "ties")  # values whose products do not overflow


def linear(draw: Draw) -> Case:
    dtype, activation = draw.dtype(), draw.pick(tuple(ACTIVATIONS))
    k, n = draw.size(), draw.size()
    values = draw.pick(TAME)
    x = draw.floats((*draw.shape(0, 2, 130), k), dtype, values)
    tensors = [x, draw.floats((n, k), dtype, draw.pick(TAME))]
    if draw.chance(0.6):
        tensors.append(draw.floats((n,), dtype, "normal"))
    return Case(
        f"linear/{activation}",
        partial(fusedops.linear, activation=activation),
        partial(ref.linear, activation=activation),
        tensors,
        differentiable=activation in SMOOTH,
        scale=lambda x, w, *b: x.abs() @ w.abs().t() + 1,
    )


def matmul(draw: Draw) -> Case:
    dtype, activation = draw.dtype(), draw.pick(tuple(ACTIVATIONS))
    m, n, k = draw.size(), draw.size(), draw.size()
    tensors = [draw.floats((m, k), dtype, "normal"), draw.floats((k, n), dtype, "normal")]
    return Case(
        f"matmul/{activation}",
        partial(fusedops.matmul, activation=activation),
        partial(ref.matmul, activation=activation),
        tensors,
        differentiable=activation in SMOOTH,
        scale=lambda a, b: a.abs() @ b.abs() + 1,
    )


def scale_bias_act(draw: Draw) -> Case:
    dtype, activation = draw.dtype(), draw.pick(tuple(ACTIVATIONS))
    shape = draw.shape(1, 3)
    tensors = [draw.floats(shape, dtype), *(draw.floats(shape[-1:], dtype) for _ in range(2))]
    return Case(
        f"scale_bias_act/{activation}",
        partial(fusedops.scale_bias_act, activation=activation),
        partial(ref.scale_bias_act, activation=activation),
        tensors,
        differentiable=activation in SMOOTH,
        scale=lambda x, s, b: (x * s).abs() + b.abs(),
    )


def batch_norm(draw: Draw) -> Case:
    dtype, activation = draw.dtype(), draw.pick(tuple(ACTIVATIONS))
    shape = (draw.size(2, 9), draw.size(1, 65), *(draw.size(1, 9) for _ in range(2)))
    x = draw.floats(shape, dtype, draw.pick(TAME))
    vectors = [draw.floats(shape[1:2], dtype, draw.pick(TAME)) for _ in range(2)]
    residual = [draw.floats(shape, dtype, draw.pick(TAME))] if draw.chance(0.5) else []
    mean, var = (torch.rand(shape[1], device=x.device, dtype=torch.float64) + 0.5 for _ in "mv")

    def call(function: Any) -> Any:
        def act(x: Any, weight: Any, bias: Any, added: Any = None) -> Any:
            kind = x.dtype if isinstance(x, Tensor) else dtype
            running = (t.to(dtype).to(kind) for t in (mean, var))
            return function(x, *running, weight, bias, activation=activation, residual=added)

        return act

    def scale(x: Any, weight: Any, bias: Any, added: Any = None) -> Any:
        columns = (1, -1, 1, 1)
        z = (x.abs() + 2) * 2 * weight.abs().view(columns)
        return z + bias.abs().view(columns) + (0 if added is None else added.abs())

    return Case(
        f"batch_norm_act/{activation}",
        call(fusedops.batch_norm_act),
        call(ref.batch_norm_act),
        [x, *vectors, *residual],
        differentiable=activation in SMOOTH,
        scale=scale,
    )


def fma(draw: Draw) -> Case:
    dtype, shape = draw.dtype(), draw.shape(0, 3)
    tensors = [draw.floats(shape, dtype) for _ in range(3)]
    return Case(
        "fma", fusedops.fma, ref.fma, tensors, True, lambda a, x, b: (a * x).abs() + b.abs()
    )


def _dims(draw: Draw, rank: int) -> Any:
    if rank == 0 or draw.chance(0.3):
        return None
    if draw.chance(0.3):
        return tuple(sorted(draw.random.sample(range(rank), draw.random.randint(1, rank))))
    return draw.random.randrange(-rank, rank)


def _as_dims(dim: Any, rank: int) -> tuple[int, ...]:
    if dim is None:
        return tuple(range(rank))
    return tuple(sorted(d % rank for d in ((dim,) if isinstance(dim, int) else dim)))


def reduction(draw: Draw) -> Case:
    name = draw.pick(REDUCTIONS)
    shape = draw.shape(0, 3)
    dim = _dims(draw, len(shape))
    if isinstance(dim, tuple) and name in ("prod", "argmax", "argmin"):
        dim = dim[0]
    dims = _as_dims(dim, len(shape))
    needs = name in ("amax", "amin", "argmax", "argmin", "logsumexp")
    if needs and any(shape[d] == 0 for d in dims):
        shape = tuple(max(n, 1) for n in shape)
    keep = draw.chance(0.3) and dim is not None
    values = draw.pick(TAME) if name in ("prod", "var", "std", "logsumexp") else None
    x = draw.floats(shape, draw.dtype(), values)
    exact: Callable[..., Tensor] = (
        partial(getattr(ref.reduce, name), dims=dims, keepdim=keep)
        if name in ("var", "std")
        else partial(ref.reduce.reduce, name=name, dims=dims, keepdim=keep)
    )
    return Case(
        f"{name}/{dim}",
        partial(getattr(fusedops, name), dim=dim, keepdim=keep),
        exact,
        [x],
        scale=(lambda x: x.abs().sum()) if name in ("sum", "mean", "var", "std") else None,
    )


def rows(draw: Draw) -> Case:
    name = draw.pick(("softmax", "log_softmax", "layer_norm", "rms_norm"))
    dtype, shape = draw.dtype(), draw.shape(1, 3)
    values = draw.pick(TAME)
    tensors = [draw.floats(shape, dtype, values)]
    if name in ("softmax", "log_softmax"):
        dim = draw.random.randrange(len(shape))
        return Case(
            f"{name}/{dim}",
            partial(getattr(fusedops, name), dim=dim),
            partial(getattr(ref, name), dim=dim),
            tensors,
            differentiable=True,
            scale=lambda x: x.abs() + 1,
        )
    n = shape[-1:]
    count = 2 if name == "layer_norm" else 1
    tensors += [draw.floats(n, dtype, "normal") for _ in range(count)]
    # NOTE: rows of one value and another divide a rounding by the square root of eps.
    spread = 1e3 if values in ("zeros", "small") or n[0] < 4 else 10.0

    def ours(x: Tensor, *rest: Tensor) -> Tensor:
        return getattr(fusedops, name)(x, n, *rest, eps=1e-5)

    def exact(x: Tensor, *rest: Tensor) -> Tensor:
        return getattr(ref, name)(x, n, *rest, eps=1e-5)

    return Case(name, ours, exact, tensors, scale=lambda x, *rest: (rest[0].abs() + 1) * spread)


def cross_entropy(draw: Draw) -> Case:
    m, n = draw.size(1), draw.size(1)
    logits = draw.floats((m, n), draw.dtype(), draw.pick(TAME))
    target = draw.integers((m,), 0, n)
    smoothing, kind = draw.pick((0.0, 0.1)), draw.pick(("none", "sum", "mean"))
    options = {"label_smoothing": smoothing, "reduction": kind}
    return Case(
        f"cross_entropy/{kind}",
        partial(fusedops.cross_entropy, **options),
        partial(ref.cross_entropy, **options),
        [logits, target],
        scale=lambda x, t: x.abs().sum() + m,
    )


def scan(draw: Draw) -> Case:
    name = draw.pick(("cumsum", "cumprod", "cummax", "cummin"))
    shape = draw.shape(1, 3)
    dim = draw.random.randrange(len(shape))
    x = draw.floats(shape, draw.dtype(), draw.pick(TAME))
    options: dict[str, Any] = {"dim": dim}
    if name in ("cumsum", "cumprod"):
        options |= {"exclusive": draw.chance(0.3), "reverse": draw.chance(0.3)}
    return Case(
        f"{name}/{options}",
        partial(getattr(fusedops, name), **options),
        partial(getattr(ref, name), **options),
        [x],
        scale=(lambda x: x.abs().sum()) if name == "cumsum" else None,
    )


def topk(draw: Draw) -> Case:
    shape = tuple(max(n, 1) for n in draw.shape(1, 3))
    dim = draw.random.randrange(len(shape))
    x = draw.floats(shape, draw.dtype(), draw.pick(("normal", "ties", "zeros")))
    k, largest = draw.random.randint(1, min(shape[dim], 128)), draw.chance(0.5)
    options = {"k": k, "dim": dim, "largest": largest}
    return Case("topk", partial(fusedops.topk, **options), partial(ref.topk, **options), [x])


def histogram(draw: Draw) -> Case:
    x = draw.floats(draw.shape(1, 2), draw.pick((torch.float32, torch.float64)), "ties")
    options = {"bins": draw.size(1), "low": -2.0, "high": 2.0}
    ours, exact = partial(fusedops.histogram, **options), partial(ref.histogram, **options)
    return Case("histogram", ours, exact, [x])


def bincount(draw: Draw) -> Case:
    bins = draw.size(1)
    x = draw.integers(draw.shape(1, 2), -2, bins + 3)
    return Case(
        "bincount", partial(fusedops.bincount, bins=bins), partial(ref.bincount, bins=bins), [x]
    )


def segments(draw: Draw) -> Case:
    rows, columns = draw.size(), draw.size(1, 65)
    cuts = sorted(draw.random.randint(0, rows) for _ in range(draw.random.randint(0, 9)))
    offsets = torch.tensor([0, *cuts, rows], device=draw.device)
    kind = draw.pick(("sum", "mean", "max", "min"))
    return Case(
        f"segment_reduce/{kind}",
        partial(fusedops.segment_reduce, reduce=kind),
        partial(ref.segment_reduce, reduce=kind),
        [draw.floats((rows, columns), draw.dtype(), draw.pick(TAME)), offsets],
        scale=lambda x, o: x.abs().sum(),
    )


def stencil(draw: Draw) -> Case:
    dims = draw.random.randint(1, 3)
    shape = (*draw.shape(0, 1, 8), *(draw.size(3, 17) for _ in range(dims)))
    taps = draw.pick((1, 3)) if dims == 3 else draw.pick((1, 3, 5))
    dtype, padding = draw.dtype(), draw.pick(("zeros", "reflect", "replicate"))
    tensors = [
        draw.floats(shape, dtype, draw.pick(TAME)),
        draw.floats((taps,) * dims, dtype, "normal"),
    ]
    return Case(
        f"stencil{dims}d/{padding}",
        partial(getattr(fusedops, f"stencil{dims}d"), padding_mode=padding),
        partial(ref.stencil, dims=dims, padding_mode=padding),
        tensors,
        scale=lambda x, w: x.abs().max() * w.abs().sum() if x.numel() else w.abs().sum(),
    )


def _cloud(draw: Draw, batch: int, least: int = 0) -> Tensor:
    """Coordinates on a lattice: distances are exact in every dtype, and ties are common."""
    shape = (batch, draw.size(least, 65), 3)
    x = draw.integers(shape, -4, 5).to(draw.pick((torch.float16, torch.float32, torch.float64)))
    draw.facts.append(f"cloud {shape} {x.dtype}")
    return x


def knn(draw: Draw) -> Case:
    batch = draw.random.randint(1, 3)
    points = _cloud(draw, batch)
    queries = _cloud(draw, batch).to(points.dtype)
    k = draw.random.randint(1, 20)
    options = {"k": k, "norm": draw.pick((1, 2))}
    return Case(
        "knn", partial(fusedops.points.knn, **options), partial(_knn, **options), [points, queries]
    )


def _knn(points: Tensor, queries: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    from fusedops.reference import neighbours

    return neighbours.knn(points, queries, **options)


def ball(draw: Draw) -> Case:
    from fusedops.reference import neighbours

    batch = draw.random.randint(1, 3)
    points = _cloud(draw, batch)
    queries = _cloud(draw, batch).to(points.dtype)
    options = {"radius": draw.pick((0.5, 1.0, 2.0, 3.0)), "k": draw.random.randint(1, 20)}
    options |= {"select": draw.pick(("first", "nearest")), "closed": draw.chance(0.5)}

    def ours(p: Tensor, q: Tensor) -> list[Tensor]:
        found = fusedops.points.ball_query(p, q, **options)
        return [found.idx, found.counts]

    def exact(p: Tensor, q: Tensor) -> list[Tensor]:
        return list(neighbours.ball_query(p, q, **options)[:2])

    return Case(f"ball_query/{options['select']}", ours, exact, [points, queries])


def ball_scales(draw: Draw) -> Case:
    from fusedops.reference import neighbours

    batch = draw.random.randint(1, 3)
    points = _cloud(draw, batch)
    queries = _cloud(draw, batch).to(points.dtype)
    scales = draw.random.randint(1, 4)
    options: dict[str, Any] = {
        "radii": [draw.pick((0.5, 1.0, 2.0, 3.0)) for _ in range(scales)],
        "ks": [draw.random.randint(1, 20) for _ in range(scales)],
        "closed": draw.chance(0.5),
    }

    def ours(p: Tensor, q: Tensor) -> list[Tensor]:
        found = fusedops.points.ball_query_scales(p, q, **options)
        return [tensor for ball in found for tensor in ball[:2]]

    def exact(p: Tensor, q: Tensor) -> list[Tensor]:
        found = neighbours.ball_query_scales(p, q, **options)
        return [tensor for ball in found for tensor in ball]

    return Case("ball_query_scales", ours, exact, [points, queries])


def sampling(draw: Draw) -> Case:
    points = _cloud(draw, 1, 1)
    n = draw.random.randint(1, points.shape[1])
    return Case(
        "farthest_point_sample",
        lambda p: fusedops.points.farthest_point_sample(p, n),
        lambda p: ref.farthest_point_sample(p[0], n)[None],
        [points],
    )


def grouping(draw: Draw) -> Case:
    batch, rows, columns = draw.random.randint(1, 3), draw.size(), draw.size(1, 65)
    features = draw.floats((batch, rows, columns), draw.dtype(), draw.pick(TAME))
    idx = draw.integers((batch, draw.size(0, 33), draw.random.randint(1, 9)), -1, max(rows, 1))
    return Case("group", fusedops.points.group, ref.group, [features, idx], True)


FAMILIES: dict[str, tuple[Callable[[Draw], Case], ...]] = {
    "gemm": (linear, matmul),
    "elementwise": (scale_bias_act, fma),
    "batch_norm": (batch_norm,),
    "reduce": (reduction,),
    "rows": (rows, cross_entropy),
    "scan": (scan, topk, histogram, bincount, segments),
    "stencil": (stencil,),
    "points": (knn, ball, ball_scales, sampling, grouping),
}
