"""Functions that rotate one tensor, ``rotate(x, cos, sin)``, as one op: see rotary.py."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ...ops.rope import rope
from ..known import KnownFunctions, agrees
from .rules import are_fixed, outside_of

if TYPE_CHECKING:
    from types import FunctionType

    from ..forward_code import Outside

ARGUMENTS = 3  # x, cos, sin
_HALVES = (torch.bfloat16, torch.float16)
# (of x, of the tables): what the op takes.
_DTYPES = (
    *((d, d) for d in (torch.float32, torch.float64, *_HALVES)),
    *((half, torch.float32) for half in _HALVES),
)
# The sizes of probes: what a function reads (rows of a table, say) must be what the op reads.
_SIZES = ((2, 4, 5, 8), (3, 1, 2, 12), (1, 2, 7, 4), (5, 6, 3, 8))  # batch, heads, time, D
_MORE = 2


class SingleForm(NamedTuple):
    """How a function rotates one tensor."""

    heads_dim: int
    interleaved: bool
    half_width: bool  # tables have a column for each pair, not for each element
    table_dims: int  # 2, or 3 with a batch
    sin_first: bool  # (x, sin, cos), as in GPT-J
    cuts: bool = False  # it takes the first rows of longer tables
    dtypes: tuple[tuple[torch.dtype, torch.dtype], ...] = ()

    def of(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """What the function gives, by our op."""
        if self.sin_first:
            cos, sin = sin, cos
        time = x.shape[3 - self.heads_dim]
        cos, sin = (t if t.shape[-2] == time else t.narrow(-2, 0, time) for t in (cos, sin))
        how: dict[str, Any] = {"interleaved": self.interleaved, "unsqueeze_dim": self.heads_dim}
        rotated: Tensor = rope(x, None, cos, sin, **how)
        return rotated

    def takes(self, x: Any, cos: Any, sin: Any) -> bool:
        """Whether the op stands for the function on these arguments."""
        if any(type(t) is not Tensor for t in (x, cos, sin)):
            return False
        if (x.dtype, cos.dtype) not in self.dtypes or sin.dtype is not cos.dtype:
            return False
        if cos.device != x.device or sin.device != x.device or x.dim() != 4:
            return False
        table = cos.shape
        if len(table) != self.table_dims or sin.shape != table:
            return False
        time, d = x.shape[3 - self.heads_dim], x.shape[3]
        rows = table[-2] == time or (self.cuts and table[-2] > time)
        if not rows or d % 2 or d < 2 or table[-1] != (d // 2 if self.half_width else d):
            return False
        if self.table_dims == 3 and table[0] not in (1, x.shape[0]):
            return False
        return are_fixed(cos, sin)


def _read(function: FunctionType) -> tuple[SingleForm, Outside] | None:
    outside = outside_of(function, ARGUMENTS, 3)  # GPT-J's repeats along dim 3
    form = None if outside is None else _form(function)
    return None if outside is None or form is None else (form, outside)


def _form(function: FunctionType) -> SingleForm | None:
    flags = (False, True)
    for choice in itertools.product((1, 2), flags, flags, (2, 3), flags):
        form = SingleForm(*choice)
        if not _agrees(function, form, _DTYPES[0]):
            continue
        dtypes = tuple(d for d in _DTYPES if _agrees(function, form, d))
        cuts = all(_agrees(function, form, d, _MORE) for d in dtypes)
        return form._replace(dtypes=dtypes, cuts=cuts)
    return None


def _probes(
    form: SingleForm,
    dtypes: tuple[torch.dtype, torch.dtype],
    sizes: tuple[int, ...],
    repeats: bool,
    more: int,
) -> list[Tensor]:
    """x, cos, sin: numbers without any symmetry."""
    batch, heads, time, d = sizes
    random = torch.Generator().manual_seed(time + more)
    shape = [batch, heads, time, d] if form.heads_dim == 1 else [batch, time, heads, d]
    table = [time + more, d // 2 if form.half_width else d]
    if form.table_dims == 3:
        table.insert(0, 1 if repeats else batch)
    return [
        torch.randn(s, generator=random, dtype=torch.float64, device="cpu").to(dtype)
        for s, dtype in zip((shape, table, table), (dtypes[0], *dtypes[1:] * 2), strict=True)
    ]


def _agrees(
    function: FunctionType,
    form: SingleForm,
    dtypes: tuple[torch.dtype, torch.dtype],
    more: int = 0,
) -> bool:
    """Whether a function gives what the op does, and the gradient, for tables with `more` rows."""
    return all(
        agrees(function, form.of, _probes(form, dtypes, sizes, repeats, more), 1)
        for sizes, repeats in itertools.product(_SIZES, (False, True))
    )


SINGLE_ROTATIONS = KnownFunctions(_read)
