"""The checks that C++ cannot make: what an op never gets to see."""

from __future__ import annotations

from typing import NoReturn

import torch
from torch import Tensor


def dtype_name(dtype: torch.dtype) -> str:
    """As messages have it: "float32"."""
    return str(dtype).removeprefix("torch.")


def check_tensors(op: str, optional: tuple[str, ...] = ("bias",), /, **arguments: object) -> None:
    """Raise the TypeError for the first argument that is no tensor; the optional may be None."""
    for name, value in arguments.items():
        if not isinstance(value, Tensor) and not (value is None and name in optional):
            kind = "a Tensor or None" if name in optional else "a Tensor"
            raise TypeError(f"{op}: {name} must be {kind}; got {type(value).__name__}")


def are_tensors(needed: tuple[object, ...], optional: tuple[object, ...]) -> bool:
    """Whether `check_tensors` has nothing to say: asked first, since it names its arguments."""
    for value in needed:
        if not isinstance(value, Tensor):
            return False
    for value in optional:  # noqa: SIM110  (written out: each call asks)
        if value is not None and not isinstance(value, Tensor):
            return False
    return True


def raise_not_tensor(op: str, /, **arguments: object) -> NoReturn:
    """`check_tensors` for a caller that has seen something else."""
    check_tensors(op, **arguments)
    raise AssertionError(f"{op}: every argument is a tensor")


def refuse_grad(op: str, **tensors: Tensor) -> None:
    """Raise where a forward-only op would cut a tensor out of the graph."""
    # NOTE: a raw op returns a tensor with requires_grad=True whose backward leaves grad None.
    if not torch.is_grad_enabled():
        return
    for name, tensor in tensors.items():
        if tensor.requires_grad:
            raise RuntimeError(
                f"{op}: {name} must not require grad, since {op} has no backward (detach it or use "
                f"torch.no_grad()); got a tensor that requires grad"
            )
