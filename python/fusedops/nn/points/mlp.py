"""SharedMLP: the linear layers, norms and activations that every point or edge runs through."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..._autograd.compose import activate
from ..._core.activation import activation_code
from ..._core.calls import as_int, shown
from ...ops.linear import linear
from ...points._edge_mlp import shared_mlp
from ..linear import plain, untouched
from .arguments import LayerArguments, layer_arguments, readable

if TYPE_CHECKING:
    from collections.abc import Sequence

_NORMS = {"batch": nn.BatchNorm1d, "layer": nn.LayerNorm}


def activated(x: Tensor, activation: str | None, negative_slope: float = 0.01) -> Tensor:
    """x through an activation by its name."""
    if activation == "leaky_relu":
        return F.leaky_relu(x, negative_slope)
    return activate(x, activation_code(activation))


def widths_of(op: str, name: str, widths: Any) -> list[int]:
    """Widths of layers as a list of ints; raises what is wrong with them."""
    expected = "a sequence of ints"
    try:
        given = list(widths)
    except TypeError:
        raise TypeError(f"{op}: {name} must be {expected}; got {shown(widths)}") from None
    return [as_int(op, name, width, expected) for width in given]


def is_readable(mlp: object) -> bool:
    """Whether a function may run what stands in the place of a layer's `SharedMLP`."""
    return isinstance(mlp, SharedMLP) and mlp.readable


class SharedMLP(torch.nn.Module):
    """``act(norm(linear(x)))`` per layer, the same for every point or edge.

    Parameters live in ordinary modules, ``linears.0``, ``linears.1``, ... and ``norms.0``, ...:
    their train and eval modes, momenta and counts are torch's, and
    ``nn.SyncBatchNorm.convert_sync_batchnorm`` converts them. The layers of `fusedops.nn` over
    point clouds hold one of these and run it inside of one function; called by itself it runs on
    rows.

    Args:
        channels: Widths, from the input's on: L + 1 of them for L layers.
        norm: "batch" (nn.BatchNorm1d over all rows), "layer" (nn.LayerNorm over the channels) or
            None.
        bias: Whether the linear layers have biases; None: where there is no norm.
        activation: As in `fusedops.linear`; "none" for none.
        negative_slope: Slope of "leaky_relu".
        last_norm: Whether the last layer has a norm.
        last_activation: Whether the last layer has an activation.
        device: Where the parameters are made.
        dtype: Dtype of the parameters.

    Raises:
        TypeError: A width is no int.
        ValueError: The activation or norm is unknown, or there are fewer than two widths.

    Shape:
        Input (..., channels[0]), output (..., channels[-1]).
    """

    __module__ = "fusedops.nn"  # what pickles name

    def __init__(
        self,
        channels: Sequence[int],
        *,
        norm: str | None = "batch",
        bias: bool | None = None,
        activation: str | None = "relu",
        negative_slope: float = 0.01,
        last_norm: bool = True,
        last_activation: bool = True,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        activation_code(activation, op="fusedops.nn.SharedMLP")
        if norm is not None and norm not in _NORMS:
            raise ValueError(f"SharedMLP: norm must be 'batch', 'layer' or None; got {norm!r}")
        channels = widths_of("SharedMLP", "channels", channels)
        if len(channels) < 2:
            raise ValueError(f"SharedMLP: channels must have two widths or more; got {channels}")
        super().__init__()
        options: dict[str, Any] = {"device": device, "dtype": dtype}
        normed = 0 if norm is None else len(channels) - (1 if last_norm else 2)
        self.linears = nn.ModuleList(
            nn.Linear(a, b, bias=i >= normed if bias is None else bias, **options)
            for i, (a, b) in enumerate(pairwise(channels))
        )
        widths = channels[1 : 1 + normed]
        self.norms = nn.ModuleList(_NORMS[norm](width, **options) for width in widths if norm)
        self.activation = activation
        self.negative_slope = negative_slope
        self.last_activation = last_activation

    @property
    def readable(self) -> bool:
        """Whether a function may run the layers from their parameters: neither this module nor one
        in it has hooks, a forward of its own or was replaced.
        """
        own = type(self).forward is SharedMLP.forward and untouched(self)
        return own and readable(self.linears, self.norms)

    def arguments(self) -> LayerArguments:
        """The layers as arguments of a function, a call of which norms count in training."""
        return layer_arguments(self.linears, self.norms)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layers to rows (..., C); batch norms take their statistics over all of them."""
        if self._runs_whole(x):
            whole = shared_mlp(
                x, *self.arguments(), self.activation or "none", self.negative_slope,
                self.last_activation,
            )  # fmt: skip
            if whole is not None:
                return whole
        for i, layer in enumerate(self.linears):
            last = i == len(self.linears) - 1
            activation = "none" if last and not self.last_activation else self.activation
            if i < len(self.norms):
                x = self._activate(self._normalise(self.norms[i], layer(x)), activation)
            elif plain(layer) and not self._own_slope(activation):
                x = linear(x, layer.weight, layer.bias, activation)
            else:
                x = self._activate(layer(x), activation)
        return x

    def _runs_whole(self, x: Tensor) -> bool:
        """Whether the kernels over rows may have the layers: on CUDA, with norms, as they are."""
        if not x.is_cuda or torch.compiler.is_compiling() or x.dim() < 2 or x.numel() == 0:
            return False
        norms = (nn.BatchNorm1d, nn.BatchNorm2d, nn.SyncBatchNorm)
        if not len(self.norms) or type(self.norms[0]) not in norms:
            return False
        dtype = self.linears[0].weight.dtype
        casts = torch.is_autocast_enabled("cuda")
        halves = (torch.float16, torch.bfloat16)
        return (casts or (x.dtype == dtype and dtype in halves)) and self.readable

    def _normalise(self, norm: nn.Module, x: Tensor) -> Tensor:
        if x.dim() == 2 or isinstance(norm, nn.LayerNorm):
            y: Tensor = norm(x)
            return y
        return norm(x.flatten(0, -2)).view(x.shape)

    def _own_slope(self, activation: str | None) -> bool:
        return activation == "leaky_relu" and self.negative_slope != 0.01

    def _activate(self, x: Tensor, activation: str | None) -> Tensor:
        return activated(x, activation, self.negative_slope)

    def extra_repr(self) -> str:
        """The activation, and where the last layer has none."""
        slope = f", negative_slope={self.negative_slope}" if self.activation == "leaky_relu" else ""
        last = "" if self.last_activation else ", last_activation=False"
        return f"activation={self.activation!r}{slope}{last}"
