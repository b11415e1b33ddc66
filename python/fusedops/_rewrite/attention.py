"""nn.MultiheadAttention with its projections as our linear, everything else as torch runs it.

torch computes the projections inside `F.multi_head_attention_forward`, with `F.linear` on slices
of the packed weight: no module is called there. So the same code objects run again over the same
names, of which one, `linear`, is ours. Masks, weights, bias_k, zero_attn, the choice of the
inference fast path and what a later torch adds to them stay torch's own lines.
"""

from __future__ import annotations

from operator import itemgetter
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn as torch_nn

from .._core.dtensor import own_class, set_own_class
from ..ops.linear import linear
from .fused_class import Fused, fused_class

_is_dynamo_compiling = torch.compiler.is_dynamo_compiling

_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_WEIGHTS = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")
_forward = torch_nn.MultiheadAttention.forward


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


class FusedAttention(Fused):
    """Mixed into nn.MultiheadAttention's class: the same object, its projections our linear.

    torch's forward runs under torch.compile (whose graph pass finds the products), beside a
    main_grad (which the slices of a packed weight have not) and after one of torch's functions that
    the projections stand in was replaced.
    """

    _base: Any
    _parameters: dict[str, Any]
    out_proj: Any

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What nn.MultiheadAttention gives."""
        if _is_dynamo_compiling() or not self._is_same():
            return self._base.forward(self, *args, **kwargs)
        return _ours.forward(self, *args, **kwargs)  # type: ignore[union-attr]

    def _is_same(self) -> bool:
        """Whether torch's own forward is what was rewritten, and may run so."""
        if _ours is None or self._base.forward is not _forward or not _ours.is_same():
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
