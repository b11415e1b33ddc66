"""State dicts of one model under two sets of names: a table of entries, read in both directions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Entry(NamedTuple):
    """A tensor of our model.

    Attributes:
        ours: Its key.
        theirs: Its keys there: the same tensor may stand under several.
        ones: How many dimensions of size 1 theirs has behind (convolutions of size 1).
        columns: ours[:, i] is theirs[:, columns[i]]; None where the order is the same.
    """

    ours: str
    theirs: tuple[str, ...]
    ones: int = 0
    columns: Tensor | None = None


def moved_columns(first: int, total: int) -> Tensor:
    """For ours [a, b] of theirs [b, a], where a has `first` of the columns."""
    return torch.arange(total).roll(first)


def linear_entries(
    layer: nn.Module, ours: str, *theirs: str, ones: int = 0, columns: Tensor | None = None
) -> Iterable[Entry]:
    """A linear layer by the prefix of its keys here and there."""
    yield Entry(f"{ours}weight", tuple(f"{one}weight" for one in theirs), ones, columns)
    if layer.bias is not None:
        yield Entry(f"{ours}bias", tuple(f"{one}bias" for one in theirs))


def norm_entries(norm: nn.Module, ours: str, *theirs: str) -> Iterable[Entry]:
    """A norm by the prefix of its keys here and there."""
    for key in norm.state_dict():
        yield Entry(f"{ours}{key}", tuple(f"{one}{key}" for one in theirs))


def loaded(op: str, model: nn.Module, state: dict[str, Any], tables: Sequence[list[Entry]]) -> None:
    """Copy a state dict into a model by the first table that has its names.

    Raises:
        ValueError: No table has them, or a shape is another.
    """
    state = without_wrapper(state)
    misfits = []
    for table in tables:
        names = {name for entry in table for name in entry.theirs}
        missing = [entry.theirs[0] for entry in table if _found(entry, state) is None]
        more = sorted(state.keys() - names)
        if not missing and not more:
            break
        misfits.append((len(missing) + len(more), missing, more))
    else:
        _, missing, more = min(misfits, key=lambda misfit: misfit[0])
        raise ValueError(
            f"{op}: state_dict must have the names of the model; missing {_some(missing)}, "
            f"unexpected {_some(more)}"
        )
    ours = model.state_dict()
    values = {}
    for entry in table:
        name = _found(entry, state)
        if name:
            values[entry.ours] = _ours(op, entry, name, state[name], ours[entry.ours])
    with torch.no_grad():
        for key, value in values.items():
            ours[key].copy_(value)


def _found(entry: Entry, state: dict[str, Any]) -> str | None:
    """The name under which a state dict has an entry; "" where it may lack it."""
    for name in entry.theirs:
        if name in state:
            return name
    # NOTE: torch's older checkpoints have no count of batches.
    return "" if entry.ours.endswith("num_batches_tracked") else None


def _ours(op: str, entry: Entry, name: str, value: Tensor, like: Tensor) -> Tensor:
    shape = (*like.shape, *(1,) * entry.ones)
    if tuple(value.shape) != shape:
        raise ValueError(f"{op}: {name} must have shape {shape}; got {tuple(value.shape)}")
    value = value.reshape(like.shape)
    return value if entry.columns is None else value[:, entry.columns.to(value.device)]


def _some(names: Sequence[str]) -> str:
    if not names:
        return "none"
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def without_wrapper(state: dict[str, Any]) -> dict[str, Any]:
    """A state dict without the prefix that DataParallel puts before every name."""
    if state and all(name.startswith("module.") for name in state):
        return {name.removeprefix("module."): value for name, value in state.items()}
    return state


def written(model: nn.Module, table: list[Entry]) -> dict[str, Tensor]:
    """A model's state dict under their names: new tensors, one for all names of an entry."""
    state = {}
    ours = model.state_dict()
    for entry in table:
        value = ours[entry.ours].detach().clone()
        if entry.columns is not None:
            value = value[:, entry.columns.argsort().to(value.device)]
        value = value.reshape((*value.shape, *(1,) * entry.ones))
        state.update(dict.fromkeys(entry.theirs, value))
    return state
