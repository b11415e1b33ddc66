"""Rotary embeddings in methods: functions that rotate query and key, as one op.

A method that calls such a function (``apply_rotary_pos_emb`` of Hugging Face's models) is written
anew with the call through the module, which is handed the function itself: another one that the
name stands for by then is called as it is. A function counts as one by its source, which may do
nothing but compute, and by its values and gradients on probes, not by its name.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ...ops.rope import rope
from ..known import KnownFunctions, agrees
from .rules import are_fixed, outside_of
from .single import ARGUMENTS as SINGLE
from .single import SINGLE_ROTATIONS

if TYPE_CHECKING:
    from types import FunctionType

    from ..forward_code import Outside

_is_dynamo_compiling = torch.compiler.is_dynamo_compiling

_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_ARGUMENTS = 4  # q, k, cos, sin


class Form(NamedTuple):
    """How a function rotates."""

    heads_dim: int
    interleaved: bool
    first_half: bool  # it reads the first half of the tables' columns alone
    partial: bool = False  # it takes tables narrower than a row
    dtypes: tuple[torch.dtype, ...] = ()

    def of(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """What the function gives, by our op."""
        width = cos.shape[-1]
        if self.first_half:
            cos, sin = cos[..., : width // 2], sin[..., : width // 2]
        how: dict[str, Any] = {"interleaved": self.interleaved, "unsqueeze_dim": self.heads_dim}
        rotated: tuple[Tensor, Tensor] = rope(q, k, cos, sin, rotary_dim=width, **how)
        return rotated

    def takes(self, q: Any, k: Any, cos: Any, sin: Any) -> bool:
        """Whether the op stands for the function on these arguments."""
        dtype = q.dtype if type(q) is Tensor else None
        if dtype not in self.dtypes:
            return False
        for t in (k, cos, sin):
            if type(t) is not Tensor or t.dtype is not dtype or t.device != q.device:
                return False
        shape, other, table = q.shape, k.shape, cos.shape
        if len(shape) != 4 or len(other) != 4 or len(table) != 3 or sin.shape != table:
            return False
        time, d, width = shape[3 - self.heads_dim], shape[3], table[2]
        if other[0] != shape[0] or other[3 - self.heads_dim] != time or other[3] != d:
            return False
        if table[0] not in (1, shape[0]) or table[1] != time:
            return False
        if width % 2 or not (2 <= width < d if self.partial and width != d else width == d):
            return False
        return are_fixed(cos, sin)


# ---- which functions ----


def _read(function: FunctionType) -> tuple[Form, Outside] | None:
    outside = outside_of(function, _ARGUMENTS, 2)
    form = None if outside is None else _form(function)
    return None if outside is None or form is None else (form, outside)


def _form(function: FunctionType) -> Form | None:
    for heads_dim in (1, 2):
        for interleaved in (False, True):
            for first_half in (False, True):
                form = Form(heads_dim, interleaved, first_half)
                if not _agrees(function, form, torch.float32, 8):
                    continue
                dtypes = tuple(d for d in _DTYPES if _agrees(function, form, d, 8))
                partial = all(_agrees(function, form, d, 4) for d in dtypes)
                return form._replace(partial=partial, dtypes=dtypes)
    return None


def _probes(form: Form, dtype: torch.dtype, width: int, batch: int) -> list[Tensor]:
    """q, k of rows of 8, cos, sin: numbers without any symmetry."""
    random = torch.Generator().manual_seed(width + batch)
    shapes = [[3, 4, 5, 8], [3, 6, 5, 8], [batch, 5, width], [batch, 5, width]]
    if form.heads_dim == 2:
        shapes[:2] = [[3, 5, 4, 8], [3, 5, 6, 8]]
    return [
        torch.randn(s, generator=random, dtype=torch.float64, device="cpu").to(dtype)
        for s in shapes
    ]


def _agrees(function: FunctionType, form: Form, dtype: torch.dtype, width: int) -> bool:
    """Whether a function gives what the op does, and the gradients."""
    return all(agrees(function, form.of, _probes(form, dtype, width, batch), 2) for batch in (3, 1))


ROTATIONS = KnownFunctions(_read)


# ---- the class ----


class RotaryCalls:
    """Mixed into the class of a module whose methods rotate query and key by a function."""

    def _fused_rotate(self, function: Any, q: Any, k: Any, cos: Any, sin: Any) -> Any:
        """function(q, k, cos, sin), as one op where it is one."""
        if not _is_dynamo_compiling():
            form = ROTATIONS.get(function)
            if form is not None and form.takes(q, k, cos, sin):
                return form.of(q, k, cos, sin)
        return function(q, k, cos, sin)

    def _fused_rotate_one(self, function: Any, x: Any, cos: Any, sin: Any) -> Any:
        """function(x, cos, sin), as one op where it is one."""
        if not _is_dynamo_compiling():
            form = SINGLE_ROTATIONS.get(function)
            if form is not None and form.takes(x, cos, sin):
                return form.of(x, cos, sin)
        return function(x, cos, sin)


def rotary_method(function: Any, call: ast.Call) -> str | None:
    """The method that a call of a function by its name is written with; None where it stays."""
    plain = not call.keywords and not any(isinstance(a, ast.Starred) for a in call.args)
    if not plain or not isinstance(call.func, ast.Name):
        return None
    if len(call.args) == _ARGUMENTS:
        return "_fused_rotate" if ROTATIONS.find(function) is not None else None
    if len(call.args) == SINGLE:
        return "_fused_rotate_one" if SINGLE_ROTATIONS.find(function) is not None else None
    return None
