"""Weight gradients that accumulate into an fp32 ``weight.main_grad``.

Transformer Engine's contract, which Megatron-LM and others build on. A weight with a ``main_grad``
gets its gradient added there (written there while ``weight.overwrite_main_grad`` is true: the first
micro-batch), and none in ``weight.grad``. Where the weight also has ``grad_added_to_main_grad``,
it is set to True, and autograd gets zeros, so that hooks on the gradient still fire.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .. import _C  # noqa: F401  (registers torch.ops.fusedops)
from .._core.checks import dtype_name

if TYPE_CHECKING:
    from torch import Tensor


_linear_wgrad = torch.ops.fusedops.linear_wgrad_.default


def main_grad_owner(op: str, weight: Tensor) -> Tensor | None:
    """The weight, where its gradient goes to its main_grad; None where it goes to autograd."""
    if getattr(weight, "main_grad", None) is None or not weight.requires_grad:
        return None
    if torch.compiler.is_compiling():
        raise RuntimeError(f"{op}: main_grad must not be used under torch.compile(fullgraph=True)")
    return weight


def target(owner: Tensor) -> tuple[Tensor, bool]:
    """(main_grad, whether the gradient is added to what it holds)."""
    return owner.main_grad, not getattr(owner, "overwrite_main_grad", False)


def delivered(owner: Tensor) -> Tensor | None:
    """What autograd gets for a gradient that is in main_grad now."""
    if not hasattr(owner, "grad_added_to_main_grad"):
        return None
    owner.grad_added_to_main_grad = True
    return owner.new_zeros(()).expand(owner.shape)


def accumulate(
    owner: Tensor, dz: Tensor, x: Tensor, allow_tf32: bool, again: bool = False
) -> Tensor | None:
    """Form dz.T @ x in owner.main_grad; returns what autograd gets instead.

    again: a weight used twice already has the other use's gradient there.
    """
    main_grad, add = target(owner)
    _linear_wgrad(dz, x, main_grad, add or again, allow_tf32)
    return delivered(owner)


def deliver(op: str, owner: Tensor, dweight: Tensor) -> Tensor | None:
    """Put an fp32 gradient that is there already into owner.main_grad, in one more pass."""
    main_grad, add = target(owner)
    if main_grad.dtype is not torch.float32 or main_grad.shape != owner.shape:
        raise RuntimeError(
            f"{op}: main_grad must be a float32 tensor of shape {tuple(owner.shape)}; got "
            f"{dtype_name(main_grad.dtype)} {tuple(main_grad.shape)}"
        )
    if add:
        main_grad.add_(dweight)
    else:
        main_grad.copy_(dweight)
    return delivered(owner)
