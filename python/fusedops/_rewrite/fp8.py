"""A recipe for the linear layers of a model: which of them take it, and from when on it pays."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import torch

from ..fp8.decide import estimate, rows_to_pay
from ..nn import MLP, GatedMLP, Linear

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..fp8.recipe import Recipe

ROWS = 16384  # of the estimate that a report shows


@dataclass(frozen=True)
class Fp8Layer:
    """One linear layer of a model that `fuse` gave a recipe."""

    name: str
    shape: str  # "in -> out"
    runs: bool  # whether it has the recipe now
    note: str  # from how many rows on FP8 pays, or why it has none


def _layers(model: torch.nn.Module) -> list[tuple[str, Any, Any]]:
    """(path, layer, who keeps its recipe): a layer of ours itself, or the MLP of ours it is in."""
    keepers: dict[Any, Any] = {}
    for module in model.modules():
        if isinstance(module, (MLP, GatedMLP)):
            keepers.update(dict.fromkeys(module.children(), module))
    found = []
    for path, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            own = module if type(module) is Linear else None
            found.append((path, module, keepers.get(module, own)))
    return found


def _gpu() -> str:
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "H200"
    return "H100" if "H100" in name else "H200"


def _gain(layer: Any, recipe: Recipe) -> str:
    n, k = layer.out_features, layer.in_features
    rows = rows_to_pay(n, k, _gpu())
    if rows is None:
        text = "slower than bf16 for any number of rows"
        return text + (": runs in bf16" if recipe.when == "auto" else "")
    at = max(rows, ROWS)
    gain = estimate(at, n, k, gpu=_gpu()).speedup
    below = "bf16" if recipe.when == "auto" else "slower"
    return f"{gain:.2f} x bf16 expected at {at} rows in training; {below} under about {rows}"


def set_recipe(
    model: torch.nn.Module, recipe: Recipe, skip: Sequence[str] | None
) -> list[Fp8Layer]:
    """Give a recipe to the layers that are not skipped, by name or as the first and the last."""
    layers = _layers(model)
    ends = {path for path, *_ in (layers[:1] + layers[-1:])} if skip is None else set()
    report = []
    left: set[Any] = set()  # keepers one of whose layers is skipped
    for path, _, keeper in layers:
        if path in ends or any(fnmatchcase(path, pattern) for pattern in skip or ()):
            left.add(keeper)
    for path, layer, keeper in layers:
        shape = f"{layer.in_features} -> {layer.out_features}"
        if keeper is None:
            report.append(Fp8Layer(path, shape, False, "no layer of fusedops.nn"))
        elif keeper in left:
            why = "the first or last linear layer" if skip is None else "skipped"
            report.append(Fp8Layer(path, shape, False, why))
        else:
            keeper.recipe = recipe
            report.append(Fp8Layer(path, shape, True, _gain(layer, recipe)))
    return report
