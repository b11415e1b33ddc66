"""Checks of fake implementations; their texts are those of csrc/common/checks/*_check.h."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from .. import _C  # noqa: F401  (registers torch.ops.fusedops)
from .._core.activation import ACTIVATIONS
from .._core.checks import dtype_name

_FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

_F = TypeVar("_F", bound=Callable[..., Any])


def fake(name: str) -> Callable[[_F], _F]:
    def register(function: _F) -> _F:
        torch.library.register_fake(f"fusedops::{name}", function)
        return function

    return register


def shape_of(tensor: Tensor) -> str:
    return str(tuple(tensor.shape))


def check_activation(op: str, activation: int) -> None:
    torch._check(
        0 <= activation < len(ACTIVATIONS),
        lambda: (
            f"{op}: activation must be a code from 0 to {len(ACTIVATIONS) - 1}; got {activation}"
        ),
    )


def check_floating(op: str, name: str, tensor: Tensor) -> None:
    torch._check(
        tensor.dtype in _FLOATING,
        lambda: (
            f"{op}: {name} must be float16, bfloat16, float32 or float64; got "
            f"{dtype_name(tensor.dtype)}"
        ),
    )


def check_like(op: str, name: str, tensor: Tensor, like_name: str, like: Tensor) -> None:
    torch._check(
        tensor.device == like.device,
        lambda: f"{op}: {name} must be on {like.device} like {like_name}; got {tensor.device}",
    )
    torch._check(
        tensor.dtype == like.dtype,
        lambda: (
            f"{op}: {name} must have dtype {dtype_name(like.dtype)} like {like_name}; got "
            f"{dtype_name(tensor.dtype)}"
        ),
    )


def check_min_dim(op: str, name: str, tensor: Tensor, dim: int) -> None:
    torch._check(
        tensor.dim() >= dim,
        lambda: f"{op}: {name} must have at least {dim} dimension(s); got shape {shape_of(tensor)}",
    )


def check_matrix(op: str, name: str, tensor: Tensor, layout: str) -> None:
    torch._check(
        tensor.dim() == 2,
        lambda: f"{op}: {name} must be 2-dimensional, {layout}; got shape {shape_of(tensor)}",
    )


def check_exactly(
    op: str, name: str, tensor: Tensor, dtype: torch.dtype, shape: Sequence[int],
    device: torch.device,
) -> None:  # fmt: skip
    """Raise where a tensor has another device, dtype or shape."""

    def text() -> str:
        return (
            f"{op}: {name} must be a {dtype_name(dtype)} tensor of shape {tuple(shape)}; got "
            f"{dtype_name(tensor.dtype)} {shape_of(tensor)}"
        )

    torch._check(
        tensor.device == device, lambda: f"{op}: {name} must be on {device}; got {tensor.device}"
    )
    torch._check(tensor.dtype is dtype, text)
    torch._check(tensor.dim() == len(shape), text)
    for size, want in zip(tensor.shape, shape, strict=True):
        torch._check(size == want, text)


def check_same_shape(
    op: str, name: str, tensor: Tensor, shape: tuple[int, ...], expected: str
) -> None:
    def text() -> str:
        return f"{op}: {name} must have {expected}; got {shape_of(tensor)}"

    torch._check(tensor.dim() == len(shape), text)
    for size, want in zip(tensor.shape, shape, strict=True):
        torch._check(size == want, text)
