"""How linear layers run in FP8, and the recipe of a region of code."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

from .._core.fp8 import FORMAT_NAMES

_CHOICES = {
    "scaling": ("block", "row", "tensor"),
    "forward": ("e4m3",),
    "backward": tuple(FORMAT_NAMES),
    "weight_gradient": ("tile", "block"),
    "when": ("auto", "always"),
}


@dataclass(frozen=True)
class Recipe:
    """How linear layers run in FP8.

    Inputs, weights and gradients of outputs are quantised; products accumulate in fp32; what enters
    and leaves a layer keeps its dtype, and so do parameters, gradients and state dicts.

    Args:
        scaling: "block": inputs and gradients have a scale for 1x128 elements along the contracted
            dimension, weights for 128x128. "row": a scale for each row of an operand. "tensor": one
            scale. Scales are made of the values at hand; nothing is delayed.
        forward: Format of inputs and weights: "e4m3" (3 bits of mantissa, to 448).
        backward: Format of gradients: "e4m3" or "e5m2" (2 bits of mantissa, to 57344).
        power_of_two_scales: Round scales up to powers of two.
        weight_gradient: Scales of the transposed inputs under "block": "tile" for 128x128, "block"
            for 1x128 along the tokens.
        when: "auto": a layer runs in FP8 only where the time model says that it is faster than in
            bf16 (see `fusedops.explain`); where FP8 is emulated, as asked. "always": everywhere.

    Raises:
        ValueError: A value is none of those named.
        TypeError: power_of_two_scales is no bool.

    Example:
        >>> layer = fusedops.nn.Linear(4096, 4096, recipe=fusedops.fp8.Recipe())
    """

    scaling: str = "block"
    forward: str = "e4m3"
    backward: str = "e4m3"
    power_of_two_scales: bool = False
    weight_gradient: str = "tile"
    when: str = "auto"

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if value not in choices:
                allowed = ", ".join(repr(c) for c in choices)
                raise ValueError(f"Recipe: {name} must be one of {allowed}; got {value!r}")
        if not isinstance(self.power_of_two_scales, bool):
            kind = type(self.power_of_two_scales).__name__
            raise TypeError(f"Recipe: power_of_two_scales must be a bool; got {kind}")


current: Recipe | None = None  # of the region; read by every call of a layer


def check_recipe(op: str, recipe: object) -> None:
    """Raise TypeError for what is neither a Recipe nor None."""
    if recipe is not None and not isinstance(recipe, Recipe):
        raise TypeError(
            f"{op}: recipe must be a fusedops.fp8.Recipe or None; got {type(recipe).__name__}"
        )


class autocast:  # noqa: N801  (as torch.autocast)
    """Run the layers of a region by a recipe: `fusedops.linear`, `mlp`, `gated_mlp` and modules.

    A recipe of a layer's own wins; ``autocast(None)`` switches FP8 off inside. The setting is the
    process's, not a thread's. It is read in forward and holds for that call's backward; for
    activation checkpointing see `checkpoint_contexts`.

    Args:
        recipe: The recipe, or None.

    Raises:
        TypeError: recipe is neither.

    Example:
        >>> with fusedops.fp8.autocast(fusedops.fp8.Recipe()):
        ...     loss = model(x)
    """

    def __init__(self, recipe: Recipe | None) -> None:
        check_recipe("autocast", recipe)
        self.recipe = recipe
        self._before: list[Recipe | None] = []

    def __enter__(self) -> None:
        global current
        self._before.append(current)
        current = self.recipe

    def __exit__(self, *error: object) -> None:
        global current
        current = self._before.pop()


def checkpoint_contexts() -> tuple[Any, Any]:
    """The ``context_fn`` of ``torch.utils.checkpoint.checkpoint(..., use_reentrant=False)``.

    A checkpointed function runs again in backward, where the region of `autocast` has ended: this
    gives it the recipe of its first run. Layers that have recipes of their own do not need it.

    Example:
        >>> y = checkpoint(block, x, use_reentrant=False, context_fn=fp8.checkpoint_contexts)
    """
    return contextlib.nullcontext(), autocast(current)
