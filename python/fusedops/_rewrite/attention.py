"""nn.MultiheadAttention with its projections as our linear, everything else as torch runs it.

torch computes the projections inside `F.multi_head_attention_forward`, with `F.linear` on slices
of the packed weight: no module is called there. So the same code objects run again over the same
names, of which two are ours: `linear`, and how a packed product becomes query, key and value.
Masks, weights, bias_k, zero_attn, the choice of the inference fast path and what a later torch adds
to them stay torch's own lines.

What models train with, batches without weights returned, takes fewer copies (`_attended`): query,
key and value are read where the product wrote them, batch first stays so, and the gradients of the
three are put together once. torch copies all three, and in backward fills and adds up a tensor of
their size for each.
"""

from __future__ import annotations

from operator import itemgetter
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch import nn as torch_nn

from .._core.dtensor import own_class, set_own_class
from ..ops.linear import linear
from .fused_class import Fused, fused_class

_is_dynamo_compiling = torch.compiler.is_dynamo_compiling

_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_WEIGHTS = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")
_forward = torch_nn.MultiheadAttention.forward


def _packed(q: Tensor, k: Tensor, v: Tensor, w: Tensor, b: Tensor | None = None) -> list[Tensor]:
    """What F._in_projection_packed gives, in memory too; its gradients are put together once."""
    if k is not v:
        biases = (None, None, None) if b is None else b.chunk(3)
        return [linear(*one) for one in zip((q, k, v), w.chunk(3), biases, strict=True)]
    if q is k:
        return [part.contiguous() for part in linear(q, w, b).chunk(3, -1)]
    query, key, value = _memory(q, k, w, b)
    return [query, key.contiguous(), value.contiguous()]


def _memory(
    query: Tensor, memory: Tensor, w: Tensor, b: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The projections of a query and of the memory that it attends to."""
    width = w.shape[1]
    w_q, w_kv = w.split([width, 2 * width])
    b_q, b_kv = (None, None) if b is None else b.split([width, 2 * width])
    return (linear(query, w_q, b_q), *linear(memory, w_kv, b_kv).chunk(2, -1))


def _takes_mask(mask: Any, shape: tuple[int, int]) -> bool:
    return mask is None or (type(mask) is Tensor and mask.shape == shape)


def _merged(
    module: Any, query: Tensor, key_padding_mask: Tensor | None, attn_mask: Tensor | None
) -> Tensor | None:
    """The masks as one that is added to the scores, as torch merges them."""
    options = {"target_type": query.dtype, "other_name": "attn_mask"}
    padding = F._canonical_mask(
        key_padding_mask, "key_padding_mask", F._none_or_dtype(attn_mask), **options
    )
    mask = F._canonical_mask(attn_mask, "attn_mask", None, "", query.dtype, check_other=False)
    if padding is None:
        return None if mask is None else mask[None, None]
    padding = padding[:, None, None]
    mask = padding if mask is None else mask + padding
    return mask.expand(-1, module.num_heads, -1, -1)


def _attended(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None,
    need_weights: bool,
    attn_mask: Tensor | None,
    is_causal: bool,
) -> Tensor | None:
    """The output, contiguous; None where torch's lines are to run."""
    if need_weights or key is not value or not (torch.is_grad_enabled() or module.training):
        return None
    if not module._qkv_same_embed_dim or module.bias_k is not None or module.add_zero_attn:
        return None
    width, heads = module.embed_dim, module.num_heads
    for x in (query, key):
        if type(x) is not Tensor or x.dim() != 3 or x.is_nested or x.shape[-1] != width:
            return None
    batch, length = (0, 1) if module.batch_first else (1, 0)
    size = width // heads
    if query.shape[batch] != key.shape[batch] or size % 8 or size * heads != width:
        return None
    if is_causal and attn_mask is None:  # torch's error
        return None
    source = key.shape[length]
    if not _takes_mask(attn_mask, (query.shape[length], source)):
        return None
    if not _takes_mask(key_padding_mask, (query.shape[batch], source)):
        return None
    is_causal = is_causal and key_padding_mask is None
    mask = None if is_causal else _merged(module, query, key_padding_mask, attn_mask)
    weight, bias, out = module.in_proj_weight, module.in_proj_bias, module.out_proj
    parts = (
        linear(query, weight, bias).chunk(3, -1)
        if query is key
        else _memory(query, key, weight, bias)
    )
    order = (0, 2, 1, 3) if module.batch_first else (1, 2, 0, 3)
    back = (0, 2, 1, 3) if module.batch_first else (2, 0, 1, 3)
    q, k, v = (part.view(*part.shape[:2], heads, size).permute(order) for part in parts)
    rate = module.dropout if module.training else 0.0
    y = F.scaled_dot_product_attention(q, k, v, mask, rate, is_causal)
    return linear(y.permute(back).flatten(-2), out.weight, out.bias)


class _Functional:
    """torch.nn.functional with another multi_head_attention_forward."""

    def __init__(self, attention: Any) -> None:
        self.multi_head_attention_forward = attention

    def __getattr__(self, name: str) -> Any:
        return getattr(F, name)


class _Rewritten:
    """torch's attention with our linear, and whether torch's own is still the one it was made of.

    Raises:
        LookupError: This torch's code is another one.
    """

    def __init__(self) -> None:
        self.watched: list[tuple[dict[str, Any], Any, Any]] = []  # (names, how to read them, were)
        parts = {
            name: getattr(F, name, None) for name in ("_in_projection_packed", "_in_projection")
        }
        inner = {name: self.over(part, linear=linear) for name, part in parts.items()}
        inner["_in_projection_packed"] = _packed
        attention = self.over(F.multi_head_attention_forward, linear=linear, **inner)
        self.forward = self.over(_forward, F=_Functional(attention))

    def over(self, function: Any, **own: Any) -> Any:
        """A function's code over the same names, with others in the place of some."""
        if type(function) is not FunctionType or not set(own) <= set(function.__code__.co_names):
            raise LookupError
        names = function.__globals__
        # NOTE: exact dicts, in which the interpreter finds names ten times as fast as in others;
        # so names that change are seen by comparing them, in one call.
        used = [name for name in function.__code__.co_names if name in names]
        used += ["__name__", "multi_head_attention_forward"] if names is vars(F) else ["__name__"]
        read = itemgetter(*used)
        self.watched.append((names, read, read(names)))
        made = FunctionType(
            function.__code__.replace(), {**names, **own}, function.__name__,
            function.__defaults__, function.__closure__,
        )  # fmt: skip
        made.__kwdefaults__ = function.__kwdefaults__
        return made

    def is_same(self) -> bool:
        """Whether all names that torch's code refers to still have their values."""
        for names, read, were in self.watched:  # noqa: SIM110  (written out: each call asks)
            if read(names) != were:
                return False
        return True


def _rewritten() -> _Rewritten | None:
    try:
        return _Rewritten()
    except LookupError:
        return None


_ours = _rewritten()


def _is_known() -> bool:
    """Whether torch's functions for attention are those that were rewritten."""
    return _ours is not None and _ours.is_same()


# NOTE: torch.compiler.assume_constant_result without its import of torch._dynamo.
_is_known._dynamo_marked_constant = True  # type: ignore[attr-defined]


class FusedAttention(Fused):
    """Mixed into nn.MultiheadAttention's class: the same object, its projections our linear.

    torch's forward runs under torch.compile where `_attended` does not (the graph pass finds the
    products), beside a main_grad (which the slices of a packed weight have not) and after one of
    torch's functions that the projections stand in was replaced.
    """

    _base: Any
    _parameters: dict[str, Any]
    out_proj: Any

    def forward(
        self,
        query: Any,
        key: Any,
        value: Any,
        key_padding_mask: Any = None,
        need_weights: bool = True,
        attn_mask: Any = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
        **later: Any,
    ) -> Any:
        """What nn.MultiheadAttention gives; `later` is what a later torch may add."""
        options = {
            "key_padding_mask": key_padding_mask,
            "need_weights": need_weights,
            "attn_mask": attn_mask,
            "is_causal": is_causal,
        }
        compiling = _is_dynamo_compiling()
        same = self._base.forward is _forward and _is_known() if compiling else self._is_same()
        if same and not later:
            y = _attended(self, query, key, value, **options)
            if y is not None:
                return y, None
        options |= {"average_attn_weights": average_attn_weights, **later}
        theirs = compiling or not same
        forward = self._base.forward if theirs else _ours.forward  # type: ignore[union-attr]
        return forward(self, query, key, value, **options)

    def _is_same(self) -> bool:
        """Whether torch's own forward is what was rewritten, and may run so."""
        if self._base.forward is not _forward or not _is_known():
            return False
        for name in _WEIGHTS:
            if hasattr(self._parameters.get(name), "main_grad"):
                return False
        return not hasattr(self.out_proj.weight, "main_grad")


def fuse_attention(module: torch_nn.Module) -> str | None:
    """Make torch's attention run its projections as our linear, in place.

    Returns:
        None where it does now, else the reason why it stays what it is.
    """
    kind = own_class(module)
    if kind.forward is not _forward or "forward" in vars(module):
        return "has a forward of its own"
    if hasattr(module, "parametrizations"):
        return "has parametrizations"
    if _ours is None or not _ours.is_same():
        return "torch's functions for it were replaced"
    weights = [p for p in module.parameters() if p is not None]
    if any(p.dtype not in _DTYPES or p.layout is not torch.strided for p in weights):
        return "has a dtype or layout that the kernels do not have"
    set_own_class(module, fused_class(FusedAttention, kind))
    return None
