"""Linear layers of one input as one autograd.Function: their gradients of it are summed as formed.

Autograd sums the gradients that several layers give to one input in a kernel for each but the
first. Here each product behind the first adds to what is there: in half precision in its own
epilogue, by cuBLAS.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .. import _C  # noqa: F401  (registers torch.ops.fusedops)
from .autocast import cast_weight
from .compose import compose_linear_backward, no_autocast
from .shared import _eager_apply, is_batched

if TYPE_CHECKING:
    from collections.abc import Sequence

_linear = torch.ops.fusedops.linear.default
_linear_backward = torch.ops.fusedops.linear_backward.default
_HALF = (torch.bfloat16, torch.float16)
FIRST = 3  # the index of the first weight among the arguments; its bias is behind it


class ProjectionsFunction(torch.autograd.Function):
    """(x, allow_tf32, compute, weight, bias, weight, bias, ...) -> one y for each pair.

    compute is the autocast dtype or None, as in LinearFunction; x has it already.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        allow_tf32: bool,
        compute: torch.dtype | None,
        *layers: Tensor | None,
    ) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)  # an output may go without a gradient
        weights: list[Any] = list(layers[::2])
        biases: list[Any] = list(layers[1::2])
        used, masters = weights, [None] * len(weights)
        if compute is not None:
            used = [cast_weight(w, compute) for w in weights]
            biases = [None if b is None else cast_weight(b, compute) for b in biases]
            masters = [None if u is w else w for u, w in zip(used, weights, strict=True)]
        ctx.save_for_backward(x, *used, *masters)
        ctx.allow_tf32 = allow_tf32
        return tuple(_linear(x, w, b, 0, allow_tf32) for w, b in zip(used, biases, strict=True))

    @staticmethod
    def backward(ctx: Any, *dys: Tensor | None) -> Any:
        x, *saved = ctx.saved_tensors
        used, masters = saved[: len(dys)], saved[len(dys) :]
        needs = ctx.needs_input_grad
        dx = None
        grads: list[Tensor | None] = [None] * (2 * len(dys))
        # NOTE: differentiable functions, or of batches of gradients, which no op writes into.
        composed = torch.is_grad_enabled() or any(
            dy is not None and (type(dy) is not Tensor or is_batched(dy)) for dy in dys
        )
        for i, dy in enumerate(dys):
            if dy is None:
                continue
            wanted = needs[0], *needs[FIRST + 2 * i : FIRST + 2 * i + 2]
            weight, master = used[i], masters[i]
            if composed:
                with no_autocast(dy):
                    weight = weight if master is None else master
                    found = compose_linear_backward(dy, x, weight, *wanted)
                    dx = found[0] if dx is None else dx + found[0]
            else:
                fp32 = master is not None and master.dtype is torch.float32
                found = _gradients(dx, dy, x, weight, wanted, fp32, ctx.allow_tf32)
                dx = found[0]
            grads[2 * i : 2 * i + 2] = found[1:]
        return dx, None, None, *grads


def _gradients(
    dx: Tensor | None,
    dy: Tensor,
    x: Tensor,
    weight: Tensor,
    wanted: Sequence[bool],
    fp32: bool,
    allow_tf32: bool,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients of one layer; that of x is added to dx, in place, where there is one."""
    need_x, need_w, need_b = wanted
    dy = dy.contiguous()
    adds = dx is not None and dy.dtype in _HALF
    own = need_x and not adds
    new, dw, db = _linear_backward(dy, x, weight, None, 0, own, need_w, need_b, fp32, allow_tf32)
    if not need_x:
        new = None
    elif adds:
        assert dx is not None
        dx.flatten(0, -2).addmm_(dy.flatten(0, -2), weight)
        new = dx
    elif dx is not None:
        new = dx.add_(new)
    return new, dw if need_w else None, db if need_b else None


projections_eager = _eager_apply(ProjectionsFunction)
