"""nn.Sequential in which a linear layer runs with what follows it: an activation, a second layer;
a convolution with its norm and activation, and a norm of rows with its activation.

Nothing in it is replaced, and each call looks at its modules anew: what has hooks or another
forward by now, and an adapter that wraps a layer, runs as it would in any nn.Sequential.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch import nn as torch_nn

from ..nn.activation import activation_name
from ..nn.linear import Linear, guard_forwards, plain, untouched
from ..ops.linear import linear
from ..ops.mlp import mlp
from .convs.rows import is_row_norm, run_norm
from .convs.unit import conv_step, run_unit
from .fused_class import Fused

if TYPE_CHECKING:
    from collections.abc import Iterator

_is_dynamo_compiling = torch.compiler.is_dynamo_compiling

_dropout_forward = torch_nn.Dropout.forward
_sequential_forward = torch_nn.Sequential.forward
_sequential_iter = torch_nn.Sequential.__iter__


def in_order(kind: type) -> bool:
    """Whether a class of nn.Sequential runs its modules in order and does nothing else."""
    return kind.forward is _sequential_forward and kind.__iter__ is _sequential_iter  # type: ignore[attr-defined]


class Step(NamedTuple):
    """A part of a Sequential that runs as one op: a linear layer, an activation, maybe a second."""

    activation: str
    second: int | None  # the index of the second linear layer
    end: int  # the index behind the last module


def _follower(layers: list[Any], index: int) -> str | None:
    """The activation that the module of an index computes, if it has no hooks."""
    if index == len(layers):
        return None
    name = activation_name(layers[index])
    return name if name is not None and untouched(layers[index]) else None


def _passes(module: Any) -> bool:
    """Whether a module gives its input: Identity, and Dropout that drops nothing."""
    kind = type(module)
    if kind is not torch_nn.Identity and kind is not torch_nn.Dropout:
        return False
    if kind is torch_nn.Dropout and (
        (module.training and module.p > 0) or kind.forward is not _dropout_forward
    ):
        return False
    return untouched(module)


def step_at(layers: list[Any], start: int) -> Step | None:
    """What runs as one op from an index on; None where that module runs by itself."""
    first = layers[start]
    if type(first) is not Linear or not untouched(first):
        return None
    end, activation = start + 1, first.activation
    if activation is None or activation == "none":
        activation = _follower(layers, end)
        if activation is None:
            return None
        end += 1
    i = end
    while i < len(layers) and _passes(layers[i]):
        i += 1
    last = layers[i] if i < len(layers) else None
    if plain(last, recipes=True) and _follower(layers, i + 1) is None:
        same = getattr(last, "recipe", None) == first.recipe
        if not same:
            return Step(activation, None, end)
        return Step(activation, i, i + 1)
    return Step(activation, None, end)


def steps(layers: list[Any]) -> Iterator[tuple[int, Step]]:
    """Where what runs as one op starts, and what it is."""
    i = 0
    while i < len(layers):
        step = step_at(layers, i)
        if step is not None:
            yield i, step
        i = i + 1 if step is None else step.end


def _norm_leads(layers: list[Any], index: int) -> bool:
    """Whether a norm of rows runs with the activation behind it."""
    if not is_row_norm(layers[index]) or _is_dynamo_compiling():
        return False
    return _follower(layers, index + 1) is not None


def norms_of_rows(layers: list[Any]) -> list[int]:
    """Where norms run with the activation behind them; not in front."""
    return [i for i in range(1, len(layers)) if _norm_leads(layers, i)]


class FusedSteps(Fused):
    """Mixed into the class of an nn.Sequential."""

    _base: Any
    _modules: dict[str, Any]

    def forward(self, input: Any) -> Any:
        """Run the layers in order."""
        if not isinstance(input, Tensor) or not in_order(self._base):
            return self._base.forward(self, input)
        layers = list(self._modules.values())
        if _is_dynamo_compiling():
            guard_forwards(layers)
        i = 0
        while i < len(layers):
            first, step = layers[i], step_at(layers, i)
            unit = None if step is not None else conv_step(layers, i)
            if unit is not None:
                norm, act, i = unit
                input = run_unit(input, None, first, norm, (), act)[0]
                continue
            if step is None and _norm_leads(layers, i):
                input = run_norm(input, first, layers[i + 1])
                i += 2
                continue
            if step is None:
                input = first(input)
                i += 1
                continue
            activation, second, i = step
            if second is None:
                input = linear(input, first.weight, first.bias, activation, first.recipe)
            else:
                last = layers[second]
                weights = first.weight, first.bias, last.weight, last.bias
                input = mlp(input, *weights, activation, recipe=first.recipe)
        return input
