"""Ops that write an argument, on lazily negated and conjugated tensors (`is_neg()`, `is_conj()`).

Torch's own fallback materialises such tensors and expects that the op returns what it wrote; ours
return nothing, or something else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

KEYS = ("Negative", "Conjugate")
_library = torch.library.Library("fusedops", "IMPL")


def mutating_ops() -> list[str]:
    """Names of the ops of ours that write an argument."""
    names = (
        name for name in torch._C._dispatch_get_all_op_names() if name.startswith("fusedops::")
    )
    return [name for name in names if torch._C._get_schema(name, "").is_mutable]


def _on_plain_tensors(name: str) -> Callable[..., object]:
    op = getattr(torch.ops.fusedops, name.removeprefix("fusedops::")).default
    written = [a.alias_info is not None and a.alias_info.is_write for a in op._schema.arguments]

    def kernel(*arguments: object) -> object:
        plain = [a.resolve_conj().resolve_neg() if isinstance(a, Tensor) else a for a in arguments]
        result = op(*plain)
        for given, worked_on, is_written in zip(arguments, plain, written, strict=True):
            if is_written and worked_on is not given and isinstance(given, Tensor):
                given.copy_(worked_on)
        return result

    return kernel


for _name in mutating_ops():
    for _key in KEYS:
        _library.impl(_name.removeprefix("fusedops::"), _on_plain_tensors(_name), _key)
