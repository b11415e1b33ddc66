"""What point cloud layers check of their arguments before anything runs; their dtypes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from .._autograd.autocast import cast, cast_weight, is_cast_ahead, keeps_casts
from .._autograd.shared import is_batched, needs_grad, sees_torch_functions_only
from .._core.activation import CODES, raise_unknown
from .._core.checks import dtype_name
from .._core.dtensor import is_dtensor
from ._edge_batch_norm import wide_dtype
from .norms import BatchNorm, LayerNorm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .norms import Norm

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
# Elements from which on a launch of its own is faster: a block of a list takes 65536.
_LARGE = 1 << 15
POOLS = ("max", "mean", "sum")


class Layers(NamedTuple):
    """Checked parameters; weights are in dtype."""

    weights: list[Tensor]
    biases: list[Tensor | None]
    norms: list[Norm | None]
    dtype: torch.dtype


def check_tensor(op: str, name: str, value: object, like: Tensor | None = None) -> None:
    """Raise unless value is a tensor of floats (on the device of like)."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{op}: {name} must be a Tensor; got {type(value).__name__}")
    if value.dtype not in _FLOATS:
        raise RuntimeError(
            f"{op}: {name} must be float16, bfloat16, float32 or float64; got "
            f"{dtype_name(value.dtype)}"
        )
    if like is not None and value.device != like.device:
        raise RuntimeError(f"{op}: {name} must be on {like.device}; got {value.device}")


def check_shape(op: str, name: str, value: Tensor, expected: Sequence[int | str]) -> None:
    """Raise unless value has the shape; a str stands for any size."""
    fits = value.dim() == len(expected) and all(
        isinstance(want, str) or have == want
        for have, want in zip(value.shape, expected, strict=True)
    )
    if not fits:
        words = ", ".join(str(size) for size in expected) + "," * (len(expected) == 1)
        raise RuntimeError(f"{op}: {name} must be ({words}); got {tuple(value.shape)}")


def check_idx(op: str, idx: object, like: Tensor) -> None:
    """Raise unless idx is (B, M, K), or (Q, K) where like is (P, C), int64, on like's device."""
    if not isinstance(idx, Tensor):
        raise TypeError(f"{op}: idx must be a Tensor; got {type(idx).__name__}")
    if idx.dtype != torch.int64 or idx.device != like.device:
        raise RuntimeError(
            f"{op}: idx must be int64 on {like.device}; got {dtype_name(idx.dtype)} on {idx.device}"
        )
    shape = (like.shape[0], "M", "K") if like.dim() == 3 else ("Q", "K")
    check_shape(op, "idx", idx, shape)


def check_cloud(op: str, name: str, value: object, like: Tensor | None = None) -> None:
    """Raise unless value is (B, N, C) or (P, C); like another tensor but for its last size."""
    check_tensor(op, name, value, like)
    assert isinstance(value, Tensor)
    if like is not None:
        check_shape(op, name, value, (*like.shape[:-1], "C"))
    elif value.dim() not in (2, 3):
        raise RuntimeError(f"{op}: {name} must be (B, N, C) or (P, C); got {tuple(value.shape)}")


def check_words(op: str, activation: str | None, pool: str) -> str:
    """The activation's name; raises the ValueErrors."""
    if activation is None:
        activation = "none"
    if not isinstance(activation, str) or activation not in CODES:
        raise_unknown(op, activation)
    if pool not in POOLS:
        names = ", ".join(repr(name) for name in POOLS)
        raise ValueError(f"{op}: pool must be one of {names}; got {pool!r}")
    return activation


def _per_layer(op: str, name: str, values: object, count: int) -> list[object]:
    if values is None:
        return [None] * count
    if isinstance(values, Tensor | BatchNorm | LayerNorm | str) or not hasattr(values, "__iter__"):
        raise TypeError(f"{op}: {name} must be a sequence; got {type(values).__name__}")
    found = list(values)
    if len(found) != count:
        raise ValueError(f"{op}: {name} must have one entry a weight, {count}; got {len(found)}")
    return found


def _check_norm(op: str, name: str, norm: object, weight: Tensor) -> None:
    if norm is None:
        return
    if not isinstance(norm, BatchNorm | LayerNorm):
        raise TypeError(
            f"{op}: {name} must be a BatchNorm, a LayerNorm or None; got {type(norm).__name__}"
        )
    parts = {"weight": norm.weight, "bias": norm.bias}
    if isinstance(norm, LayerNorm):
        _check_number(op, f"{name}.eps", norm.eps)
    else:
        _check_settings(op, name, norm, weight)
        parts |= {"running_mean": norm.running_mean, "running_var": norm.running_var}
        missing = norm.running_mean is None or norm.running_var is None
        if missing and not (norm.training and norm.running_mean is norm.running_var):
            raise ValueError(
                f"{op}: {name} must have running_mean and running_var, or neither of them in "
                f"training; got running_mean {_word(norm.running_mean)}, running_var "
                f"{_word(norm.running_var)}, training {norm.training}"
            )
    for part, value in parts.items():
        if value is not None:
            check_tensor(op, f"{name}.{part}", value, weight)
            check_shape(op, f"{name}.{part}", value, (weight.shape[0],))


def _check_number(op: str, name: str, value: object, more: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{op}: {name} must be a number{more}; got {type(value).__name__}")


def _check_settings(op: str, name: str, norm: BatchNorm, weight: Tensor) -> None:
    """The errors of what is no parameter and no statistic."""
    _check_number(op, f"{name}.eps", norm.eps)
    if not norm.eps > 0:  # as torch
        raise ValueError(f"{op}: {name}.eps must be positive; got {norm.eps}")
    count = norm.num_batches_tracked
    if count is not None:
        if not isinstance(count, Tensor):
            raise TypeError(
                f"{op}: {name}.num_batches_tracked must be a Tensor or None; got "
                f"{type(count).__name__}"
            )
        if count.dtype != torch.int64 or count.device != weight.device or count.numel() != 1:
            raise RuntimeError(
                f"{op}: {name}.num_batches_tracked must be () int64 on {weight.device}; got "
                f"{tuple(count.shape)} {dtype_name(count.dtype)} on {count.device}"
            )
    if isinstance(norm.momentum, Tensor):
        if norm.momentum.numel() != 1:
            shape = tuple(norm.momentum.shape)
            raise RuntimeError(f"{op}: {name}.momentum must be (); got {shape}")
    elif norm.momentum is not None:
        _check_number(op, f"{name}.momentum", norm.momentum, ", a Tensor or None")
    elif norm.training and norm.running_mean is not None and count is None:
        raise ValueError(
            f"{op}: {name} must have num_batches_tracked where momentum is None in training; got "
            "None"
        )


def _word(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def check_edge_count(op: str, norms: Sequence[Norm | None], count: int) -> None:
    """Raise torch's ValueError for the statistics of one value."""
    # NOTE: what idx leaves out is on the device, and is not asked for.
    for norm in norms:
        if isinstance(norm, BatchNorm) and norm.training and norm.group is None and count == 1:
            raise ValueError(
                f"{op}: norms must see more than 1 value a channel in training; got 1 edge"
            )


def _compute_dtype(op: str, weight: Tensor) -> tuple[torch.dtype, bool]:
    """The dtype of products, and whether autocast casts to it."""
    device = weight.device.type
    if weight.dtype == torch.float64 or device == "meta" or not torch.is_autocast_enabled(device):
        return weight.dtype, False
    return torch.get_autocast_dtype(device), True


def check_layers(
    op: str, weights: object, biases: object, norms: object, columns: int, like: Tensor
) -> Layers:
    """The layers' parameters, with weights in the dtype of products (that of autocast)."""
    if isinstance(weights, Tensor) or not hasattr(weights, "__iter__"):
        raise TypeError(f"{op}: weights must be a sequence; got {type(weights).__name__}")
    matrices = list(weights)
    if not matrices:
        raise ValueError(f"{op}: weights must have at least one entry; got none")
    vectors = _per_layer(op, "biases", biases, len(matrices))
    kinds = _per_layer(op, "norms", norms, len(matrices))
    for i, (weight, bias, norm) in enumerate(zip(matrices, vectors, kinds, strict=True)):
        check_tensor(op, f"weights[{i}]", weight, like)
        check_shape(op, f"weights[{i}]", weight, ("C", columns))
        if weight.dtype != matrices[0].dtype and not _compute_dtype(op, matrices[0])[1]:
            raise RuntimeError(
                f"{op}: weights[{i}] must be {dtype_name(matrices[0].dtype)} like weights[0]; got "
                f"{dtype_name(weight.dtype)}"
            )
        columns = weight.shape[0]
        if bias is not None:
            check_tensor(op, f"biases[{i}]", bias, like)
            assert isinstance(bias, Tensor)
            check_shape(op, f"biases[{i}]", bias, (columns,))
        _check_norm(op, f"norms[{i}]", norm, weight)
    dtype, casts = _compute_dtype(op, matrices[0])
    if casts:
        matrices = cast_weights(matrices, dtype)
    return Layers(matrices, vectors, kinds, dtype)  # type: ignore[arg-type]


def cast_weights(weights: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """The weights under autocast; by one launch each way where their casts are not kept anyway."""
    apart = len(weights) == 1 or torch.compiler.is_compiling() or keeps_casts(weights[0])
    apart = apart or is_cast_ahead(weights[0], dtype)
    if apart or not all(w.is_cuda and w.dtype is torch.float32 for w in weights):
        return [cast_weight(weight, dtype) for weight in weights]
    if sees_torch_functions_only(*weights) or any(map(is_dtensor, weights)):
        return [cast_weight(weight, dtype) for weight in weights]
    if needs_grad(*weights):
        return list(CastTogether.apply(dtype, *weights))
    return cast_together(weights, dtype)


def cast_together(tensors: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Tensors of one device and dtype in another dtype."""
    made = [torch.empty_like(tensor, dtype=dtype) for tensor in tensors]
    pairs: list[tuple[Tensor, Tensor]] = []
    for to, tensor in zip(made, tensors, strict=True):
        if tensor.numel() < _LARGE:
            pairs.append((to, tensor))
        else:
            to.copy_(tensor)
    if pairs:
        torch._foreach_copy_(*map(list, zip(*pairs, strict=True)))
    return made


class CastTogether(torch.autograd.Function):
    """(dtype, tensors of one dtype) -> the tensors in dtype."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.dtype = tensors[0].dtype
        ctx.set_materialize_grads(False)
        return tuple(cast_together(tensors, dtype))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        given = [grad for grad in grads if grad is not None]
        # NOTE: differentiable functions, or of batches of gradients, which no list is written from.
        apart = torch.is_grad_enabled() or any(map(is_batched, given))
        if apart or sees_torch_functions_only(*given) or not given:
            return (None, *(grad if grad is None else grad.to(ctx.dtype) for grad in grads))
        made = iter(cast_together(given, ctx.dtype))
        return (None, *(grad if grad is None else next(made) for grad in grads))


def in_dtype(op: str, name: str, value: Tensor, layers: Layers) -> Tensor:
    """Features in the dtype of products: cast under autocast, else they have to be in it."""
    if torch.is_autocast_enabled(value.device.type) if value.device.type != "meta" else False:
        value = cast(value, layers.dtype)
    if value.dtype != layers.dtype:
        raise RuntimeError(
            f"{op}: {name} must be {dtype_name(layers.dtype)} like the weights; got "
            f"{dtype_name(value.dtype)}"
        )
    return value


def coordinates(op: str, name: str, value: Tensor, layers: Layers) -> Tensor:
    """Coordinates in float32 (float64 where layers are): they are never rounded to halves."""
    wide = wide_dtype(layers.dtype)
    if value.dtype not in (wide, layers.dtype):
        also = "" if wide == layers.dtype else f" or {dtype_name(layers.dtype)}"
        raise RuntimeError(
            f"{op}: {name} must be {dtype_name(wide)}{also}; got {dtype_name(value.dtype)}"
        )
    return value.to(wide)
