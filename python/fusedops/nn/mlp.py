"""MLP and GatedMLP: blocks whose layers stay ordinary linear layers, run as one op each way."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._autograd.compose import activate
from .._core.activation import activation_code
from ..fp8.recipe import Recipe, check_recipe
from ..ops.mlp import gated_mlp, mlp
from .linear import plain

# Other names of gate, up and down projections in checkpoints: Llama's own and torchtune's.
_ALIASES = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}


def _options_text(block: Any) -> str:
    text = f"activation={block.activation!r}" + (", recompute=True" if block.recompute else "")
    return text if block.recipe is None else f"{text}, recipe={block.recipe}"


class MLP(torch.nn.Module):
    """``fc2(act(fc1(x))) (+ residual)`` in one op: `fusedops.mlp`.

    Parameters live in two plain ``nn.Linear`` layers, ``fc1`` and ``fc2``, so that checkpoints of
    such a block load as they are. While a layer has hooks or was replaced (an adapter, pruning),
    the layers run one by one instead.

    Args:
        in_features: Size K of the last dimension of the input.
        hidden_features: Size H between the layers.
        out_features: Size N of the last dimension of the output; None: in_features.
        bias: Whether both layers have a bias.
        activation: As in `fusedops.mlp`.
        recompute: Keep nothing of the hidden size for backward; it forms fc1(x) again.
        device: Where the parameters are made.
        dtype: Dtype of the parameters.
        recipe: How to run in FP8, as in `fusedops.linear`.

    Raises:
        ValueError: The activation is unknown.
        TypeError: recipe is neither a `fusedops.fp8.Recipe` nor None.

    Shape:
        Input (..., K), residual and output (..., N).

    Example:
        >>> block = fusedops.nn.MLP(768, 3072, activation="gelu")
        >>> y = block(x, residual=x)
    """

    __module__ = "fusedops.nn"  # what pickles name
    recipe: Recipe | None = None  # what older pickles lack

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int | None = None,
        bias: bool = True,
        activation: str | None = "gelu",
        recompute: bool = False,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        recipe: Recipe | None = None,
    ) -> None:
        activation_code(activation, op="fusedops.nn.MLP")
        check_recipe("fusedops.nn.MLP", recipe)
        super().__init__()
        out_features = in_features if out_features is None else out_features
        options: dict[str, Any] = {"bias": bias, "device": device, "dtype": dtype}
        self.fc1 = torch.nn.Linear(in_features, hidden_features, **options)
        self.fc2 = torch.nn.Linear(hidden_features, out_features, **options)
        self.activation = activation
        self.recompute = recompute
        self.recipe = recipe

    def forward(self, input: Tensor, residual: Tensor | None = None) -> Tensor:
        """Apply the block to input (..., K)."""
        one, two = self.fc1, self.fc2
        if not (plain(one) and plain(two)):
            y = two(activate(one(input), activation_code(self.activation)))
            return y if residual is None else y + residual
        return mlp(
            input, one.weight, one.bias, two.weight, two.bias, self.activation, residual,
            self.recompute, self.recipe,
        )  # fmt: skip

    def extra_repr(self) -> str:
        """The activation, and recompute and recipe where they are on."""
        return _options_text(self)


class GatedMLP(torch.nn.Module):
    """``down(act(gate(x)) * up(x)) (+ residual)`` in one op: `fusedops.gated_mlp`.

    SwiGLU by default; GeGLU with "gelu" or "gelu_tanh", ReGLU with "relu", GLU with "sigmoid". The
    layers are named as in Hugging Face models: ``gate_proj``, ``up_proj`` and ``down_proj``, or
    with `packed` one ``gate_up_proj`` with the gate's rows first (one product instead of two).
    State dicts of either layout load into either, and so do Llama's and torchtune's ``w1``, ``w3``,
    ``w2``. While a layer has hooks or was replaced (an adapter, pruning), the layers run one by one
    instead.

    Args:
        in_features: Size K of the last dimension of the input.
        hidden_features: Size H of gate and up.
        out_features: Size N of the last dimension of the output; None: in_features.
        bias: Whether the layers have biases.
        activation: Activation of the gate, as in `fusedops.gated_mlp`.
        packed: Gate and up in one parameter.
        recompute: Keep neither gate nor up for backward; it forms them again.
        device: Where the parameters are made.
        dtype: Dtype of the parameters.
        recipe: How to run in FP8, as in `fusedops.linear`.

    Raises:
        ValueError: The activation is unknown.
        TypeError: recipe is neither a `fusedops.fp8.Recipe` nor None.

    Shape:
        Input (..., K), residual and output (..., N).

    Example:
        >>> block = fusedops.nn.GatedMLP(4096, 14336)
    """

    __module__ = "fusedops.nn"  # what pickles name
    recipe: Recipe | None = None  # what older pickles lack

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int | None = None,
        bias: bool = False,
        activation: str | None = "silu",
        packed: bool = False,
        recompute: bool = False,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        recipe: Recipe | None = None,
    ) -> None:
        activation_code(activation, op="fusedops.nn.GatedMLP")
        check_recipe("fusedops.nn.GatedMLP", recipe)
        super().__init__()
        out_features = in_features if out_features is None else out_features
        options: dict[str, Any] = {"bias": bias, "device": device, "dtype": dtype}
        if packed:
            self.gate_up_proj = torch.nn.Linear(in_features, 2 * hidden_features, **options)
        else:
            self.gate_proj = torch.nn.Linear(in_features, hidden_features, **options)
            self.up_proj = torch.nn.Linear(in_features, hidden_features, **options)
        self.down_proj = torch.nn.Linear(hidden_features, out_features, **options)
        self.activation = activation
        self.packed = packed
        self.recompute = recompute
        self.recipe = recipe

    def forward(self, input: Tensor, residual: Tensor | None = None) -> Tensor:
        """Apply the block to input (..., K)."""
        gate = self.gate_up_proj if self.packed else self.gate_proj
        up = None if self.packed else self.up_proj
        down = self.down_proj
        if not (plain(gate) and plain(down) and (up is None or plain(up))):
            return self._by_layers(input, residual)
        return gated_mlp(
            input,
            gate.weight,
            None if up is None else up.weight,
            down.weight,
            gate.bias,
            None if up is None else up.bias,
            down.bias,
            self.activation,
            residual,
            self.recompute,
            self.recipe,
        )

    def _by_layers(self, input: Tensor, residual: Tensor | None) -> Tensor:
        if self.packed:
            gate, up = self.gate_up_proj(input).chunk(2, dim=-1)
        else:
            gate, up = self.gate_proj(input), self.up_proj(input)
        y = self.down_proj(activate(gate, activation_code(self.activation)) * up)
        return y if residual is None else y + residual

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        for kind in ("weight", "bias"):
            for alias, name in _ALIASES.items():
                if f"{prefix}{alias}.{kind}" in state_dict:
                    key = f"{prefix}{name}.{kind}"
                    state_dict[key] = state_dict.pop(f"{prefix}{alias}.{kind}")
            one = f"{prefix}gate_up_proj.{kind}"
            two = [f"{prefix}gate_proj.{kind}", f"{prefix}up_proj.{kind}"]
            if self.packed and all(key in state_dict for key in two):
                state_dict[one] = torch.cat([state_dict.pop(key) for key in two])
            elif not self.packed and one in state_dict:
                state_dict.update(zip(two, state_dict.pop(one).chunk(2), strict=True))
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def extra_repr(self) -> str:
        """The activation, and recompute and recipe where they are on."""
        return _options_text(self)
