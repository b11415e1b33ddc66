"""MLPs with dropouts that drop: layer by layer, with the activation in the first product.

The dropouts themselves are torch's, on tensors of the shapes that they had, and draw the same
numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..ops.linear import linear

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from ..fp8.recipe import Recipe

    Layer = tuple[Tensor, Tensor | None]  # weight and bias
    Drops = Sequence[Callable[[Tensor], Tensor]]


@dataclass(frozen=True)
class Dropped:
    """A dropout: a module's path, or the sources of p and training, and the kind of its input."""

    path: tuple[str, ...] = ()
    p: str = ""
    training: str = ""
    of: str = ""

    @property
    def is_last(self) -> bool:
        """Whether it stands behind the last layer."""
        return self.of.endswith("mlp")


def dropped(x: Tensor, drops: Drops) -> Tensor:
    """What some dropouts leave of a tensor."""
    for drop in drops:
        x = drop(x)
    return x


def drops(module: Any) -> bool:
    """Whether a dropout does anything now."""
    return bool(module.training and module.p > 0)


def drops_note(may_drop: bool, names: Sequence[str]) -> str:
    """What a report says of an MLP with dropouts, nothing of one without."""
    how = "by layers" if may_drop else "unfused"
    return f"{how} while {', '.join(names)} drops" if names else ""


def dropping_mlp(
    x: Tensor,
    first: Sequence[Layer],
    down: Layer,
    activation: str,
    between: Drops,
    recipe: Recipe | None,
) -> Tensor:
    """An MLP with dropouts before its last layer; first is one layer, or gate and up."""
    hidden = linear(x, *first[0], activation, recipe)
    if len(first) == 2:
        hidden = hidden * linear(x, *first[1], None, recipe)
    return linear(dropped(hidden, between), *down, None, recipe)
