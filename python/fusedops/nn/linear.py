"""Linear, and whether a linear layer computes what its parameters say and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .._core.activation import activation_code
from ..fp8.recipe import Recipe, check_recipe
from ..ops.linear import linear

if TYPE_CHECKING:
    from collections.abc import Iterable


_is_dynamo_compiling = torch.compiler.is_dynamo_compiling


class Linear(torch.nn.Linear):
    """``torch.nn.Linear`` with an activation applied in the same kernel.

    A subclass: parameters, initialisation, state dict and device moves are nn.Linear's, so
    checkpoints load either way.

    Args:
        in_features: Size K of the last dimension of the input.
        out_features: Size N of the last dimension of the output.
        bias: Whether to learn an additive bias.
        device: Where the parameters are made.
        dtype: Dtype of the parameters.
        activation: As in `fusedops.linear`; part of the module's configuration, not of its state
            dict.
        recipe: How to run in FP8, as in `fusedops.linear`; likewise.

    Raises:
        ValueError: The activation is unknown.
        TypeError: recipe is neither a `fusedops.fp8.Recipe` nor None.

    Shape:
        Input (..., K), output (..., N).

    Example:
        >>> layer = fusedops.nn.Linear(784, 256, activation="relu")
    """

    __module__ = "fusedops.nn"  # what pickles name

    activation: str | None
    recipe: Recipe | None = None  # what older pickles lack

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        activation: str | None = None,
        recipe: Recipe | None = None,
    ) -> None:
        activation_code(activation, op="fusedops.nn.Linear")
        check_recipe("fusedops.nn.Linear", recipe)
        super().__init__(in_features, out_features, bias=bias, device=device, dtype=dtype)
        self.activation = activation
        self.recipe = recipe

    def forward(self, input: Tensor) -> Tensor:
        """Apply the layer to input (..., K)."""
        return linear(input, self.weight, self.bias, self.activation, self.recipe)

    def extra_repr(self) -> str:
        """nn.Linear's line, with the activation where there is one."""
        base = super().extra_repr()
        if self.activation is not None:
            base += f", activation={self.activation!r}"
        return base if self.recipe is None else f"{base}, recipe={self.recipe}"


def parameters_of(layer: Any) -> tuple[Any, Any]:
    """(weight, bias) of a linear layer, which nn.Module looks for in Python at each attribute."""
    own = layer._parameters
    if "weight" in own and "bias" in own and not _is_dynamo_compiling():
        return own["weight"], own["bias"]
    return layer.weight, layer.bias  # FSDP and the like keep other tensors there


def guard_forwards(modules: Iterable[Any]) -> None:
    """Have compiled code look again at whether the modules have forwards of their own."""
    # NOTE: Dynamo guards on attributes that are looked up, not on keys of __dict__.
    for module in modules:
        if module is not None:
            module.forward  # noqa: B018


def untouched(module: torch.nn.Module) -> bool:
    """Whether a call of the module runs its class's forward alone: no hooks, no replacement."""
    # NOTE: written out; every call of a fused block asks this for each of its modules.
    return not (
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or "forward" in module.__dict__
    )


def plain(layer: Any, recipes: bool = False) -> bool:
    """Whether a layer computes x @ weight.T + bias and nothing else; recipes: in FP8, too."""
    kind = type(layer)
    if kind is Linear and layer.recipe is not None and not recipes:
        return False
    bare = kind is torch.nn.Linear or (kind is Linear and layer.activation in (None, "none"))
    return bare and untouched(layer)
