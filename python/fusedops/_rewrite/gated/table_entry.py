"""Activations that code looks up in a table of classes, as transformers' ``ACT2FN[name](x)``."""

from __future__ import annotations

import ast
from typing import Any

from torch import nn as torch_nn

from ..forward_code import RefusedError

_UNSET = object()


class Entry:
    """What a table has under a key, as an attribute, `value`: code may put another there."""

    def __init__(self, table: dict[Any, Any], key: str) -> None:
        self._table, self._key = table, key

    @property
    def value(self) -> Any:
        return dict.get(self._table, self._key, _UNSET)


def class_in(table: Any, key: Any) -> tuple[Entry, type] | None:
    """The class of modules that a table makes anew whenever it is read, None for other tables."""
    if not isinstance(table, dict) or not isinstance(key, str):
        return None
    entry = Entry(table, key)
    kind = entry.value[0] if isinstance(entry.value, tuple) else entry.value
    if not isinstance(kind, type) or not issubclass(kind, torch_nn.Module):
        return None
    made: Any = table[key]
    same = type(made) is kind and made is not table[key]
    if not same or made._modules or made._parameters:
        return None
    return entry, kind


def read_entry(scope: Any, node: ast.Subscript) -> None:
    """Read the forward of what a global table makes under a plain attribute of the module.

    Raises:
        RefusedError: The table, the key or the forward is not known.
    """
    key = node.slice.value if isinstance(node.slice, ast.Constant) else scope.constant(node.slice)
    found = class_in(scope.global_of(node.value), key)
    if found is None:
        raise RefusedError(f"calls {ast.unparse(node)}")
    entry: Any = found[0]
    kind: Any = found[1]
    reader: Any = scope.reader
    reader.outside.add(entry, "value", entry.value)
    reader.outside.add_method(kind, "forward")
    # NOTE: whatever the forward reads of itself is refused, but in torch's own classes.
    reader._function(kind.forward, None, None, scope.depth + 1)
