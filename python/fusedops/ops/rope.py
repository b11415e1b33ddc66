"""rope: rotary position embeddings of query and key in one kernel."""

from __future__ import annotations

from typing import Any, overload

import torch
from torch import Tensor

from .. import _fakes  # noqa: F401  (registers the fakes)
from .._autograd.shared import _eager_apply, distinct, sees_torch_functions_only
from .._core.calls import public
from .._core.checks import are_tensors, check_tensors
from .._core.traced import is_traced
from ..reference import rope as _by_torch
from .softmax import HALF_CODES

__all__ = ["rope"]

_rope = torch.ops.fusedops.rope.default
_is_grad_enabled = torch.is_grad_enabled
_is_dynamo_compiling = torch.compiler.is_dynamo_compiling


class RopeFunction(torch.autograd.Function):
    """(q, k, cos, sin, heads_dim, rotary_dim, interleaved, inverse) -> q, or (q, k)."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor | None, cos: Tensor, sin: Tensor, *how: Any) -> Any:
        ctx.save_for_backward(cos, sin)
        ctx.how = how
        rotated = _rope(q, k, cos, sin, *how)
        return rotated[0] if k is None else rotated

    @staticmethod
    def backward(ctx: Any, dq: Tensor, dk: Tensor | None = None) -> Any:
        cos, sin = ctx.saved_tensors
        heads_dim, rotary_dim, interleaved, inverse = ctx.how
        back = (cos, sin, heads_dim, rotary_dim, interleaved, not inverse)
        need_q, need_k = ctx.needs_input_grad[:2]
        turned, turned_k = (dq if need_q else dk), (dk if need_q and need_k else None)
        call = _differentiable if torch.is_grad_enabled() else _rope
        grads = call(turned, turned_k, *back)
        if not need_q:
            return None, grads[0], None, None, None, None, None, None
        return grads[0], grads[1] if need_k else None, None, None, None, None, None, None


_eager = _eager_apply(RopeFunction)


def _differentiable(q: Tensor, k: Tensor | None, *others: Any) -> tuple[Tensor, ...]:
    out: Any = RopeFunction.apply(q, k, *others)
    return (out,) if k is None else out


def _composed(
    x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, rotary_dim: int, unsqueeze_dim: int
) -> Tensor:
    """The rotation by torch's functions, in float32 and rounded once, as the op."""
    compute = torch.float64 if x.dtype is torch.float64 else torch.float32
    tables = (cos.to(compute), sin.to(compute))
    return _by_torch(x.to(compute), *tables, interleaved, rotary_dim, unsqueeze_dim).to(x.dtype)


def _has_tables(q: Tensor, cos: Tensor, sin: Tensor, time: int, rotary: int) -> bool:
    if sin.shape != cos.shape or sin.dtype is not cos.dtype:
        return False
    if any(t.device != q.device for t in (cos, sin)):
        return False
    if cos.dtype is not q.dtype and not (cos.dtype is torch.float32 and q.dtype in HALF_CODES):
        return False
    if cos.dim() == 3 and cos.shape[0] not in (1, q.shape[0]):
        return False
    return cos.shape[-2] == time and cos.shape[-1] in (rotary, rotary // 2)


def _is_torchs(q: Tensor, k: Tensor | None, cos: Tensor, sin: Tensor, how: tuple[Any, ...]) -> bool:
    """Whether the op would take the arguments of a call that torch.compile traces."""
    heads_dim, rotary = how[0], how[1]
    if not is_traced() or heads_dim not in (1, 2) or q.dim() != 4 or cos.dim() not in (2, 3):
        return False
    if not q.is_floating_point() or rotary % 2 or not 2 <= rotary <= q.shape[3]:
        return False
    if not _has_tables(q, cos, sin, q.shape[3 - heads_dim], rotary):
        return False
    if k is None:
        return True
    fits = k.dim() == 4 and k.dtype is q.dtype and k.device == q.device
    return fits and all(i == heads_dim or k.shape[i] == q.shape[i] for i in range(4))


@overload
def rope(
    q: Tensor,
    k: None,
    cos: Tensor,
    sin: Tensor,
    *,
    interleaved: bool = ...,
    rotary_dim: int | None = ...,
    unsqueeze_dim: int = ...,
) -> Tensor: ...
@overload
def rope(
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    *,
    interleaved: bool = ...,
    rotary_dim: int | None = ...,
    unsqueeze_dim: int = ...,
) -> tuple[Tensor, Tensor]: ...
@public
def rope(
    q: Tensor,
    k: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    *,
    interleaved: bool = False,
    rotary_dim: int | None = None,
    unsqueeze_dim: int = 1,
) -> Tensor | tuple[Tensor, Tensor]:
    """Rotate the pairs of elements of query and key by the angles of their positions.

    A pair (a, b) becomes ``(a cos - b sin, b cos + a sin)``: Su et al., "RoFormer: Enhanced
    Transformer with Rotary Position Embedding" (2021), where each element of the result takes the
    columns of its own place in the tables. One kernel reads q and k once, computes in
    float32 (float64 for float64) and rounds once; the backward is the same kernel, transposed, and
    saves the tables alone.

    Args:
        q: (B, H, T, D); float16, bfloat16, float32 or float64. Rows of D elements may lie anywhere
            (a transposed slice of a projection's output, say); others are copied first.
        k: Like q with a number of heads of its own (grouped-query attention), or None.
        cos: (T, W), (1, T, W) or (B, T, W); q's dtype, or float32 beside a half q. W is rotary_dim
            / 2, a column for each pair, or rotary_dim, one for each element in its place, as in
            Hugging Face's tables, where the columns of a pair are equal.
        sin: Like cos.
        interleaved: False: element i is paired with i + rotary_dim / 2 (``rotate_half``: Llama,
            GPT-NeoX); True: pairs are neighbours (GPT-J, torchtune, complex products).
        rotary_dim: How many elements of a row are rotated, the first ones; the others stay as they
            are. None for D.
        unsqueeze_dim: Where the heads are, as in Hugging Face: 1, or 2 for q (B, T, H, D).

    Returns:
        New tensors (q, k) in the dtype of q, or q alone where k is None. In memory a result has its
        heads inside of T if its input has, so that attention's output and the gradients of a
        transposed projection need no copy.

    Raises:
        TypeError: An argument is not a tensor.
        RuntimeError: Shapes, dtypes or devices do not fit; the message names op, argument, what was
            expected and what came.

    Autocast leaves it alone. Gradients of q and k of any order, torch.func transforms and
    forward-mode AD are supported (the latter two by torch's kernels); tables that require a
    gradient get it by torch's kernels, too.

    Example:
        >>> q, k = fusedops.rope(q, k, cos, sin)
    """
    if not are_tensors((q, cos, sin), (k,)):
        check_tensors("rope", ("k",), q=q, k=k, cos=cos, sin=sin)
    if rotary_dim is None:
        rotary_dim = q.shape[-1] if q.dim() else 0
    how = (unsqueeze_dim, rotary_dim, interleaved, False)
    traced = _is_dynamo_compiling()
    grads = _is_grad_enabled()
    if (
        sees_torch_functions_only(q, k, cos, sin)
        or (traced and _is_torchs(q, k, cos, sin, how))
        or (grads and (cos.requires_grad or sin.requires_grad))
    ):
        tables = (cos, sin, interleaved, rotary_dim, unsqueeze_dim)
        rotated = _composed(q, *tables)
        return rotated if k is None else (rotated, _composed(k, *tables))
    if grads and (q.requires_grad or (k is not None and k.requires_grad)):
        if traced:
            q, k = distinct(q, k)
        out: Any = (RopeFunction.apply if traced else _eager)(q, k, cos, sin, *how)
        return out
    rotated, rotated_k = _rope(q, k, cos, sin, *how)
    return rotated if k is None else (rotated, rotated_k)
