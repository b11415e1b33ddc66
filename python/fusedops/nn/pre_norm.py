"""PreNorm: a norm and the linear block behind it, which in FP8 is what the norm writes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._core.activation import activation_code
from .._core.precision import is_autocast_on
from ..fp8 import recipe as _region
from ..fp8.layers import fp8_gated_mlp, fp8_linear, fp8_mlp
from ..fp8.normed import Norm
from .linear import Linear, guard_forwards, plain, untouched
from .mlp import MLP, GatedMLP
from .norm import LayerNorm, RMSNorm


class PreNorm(torch.nn.Module):
    """``layer(norm(x))``, or with a residual ``(layer(norm(x + residual)), x + residual)``.

    Where the layer runs in FP8 with scales by blocks, the norm writes what the layer's products
    read, by rows and for the gradient of the weight transposed: its result in 16 bits is neither
    written nor read. The numbers are those of the two modules one after the other. Everywhere else
    (no recipe, other scalings, modules with hooks, "auto" where FP8 does not pay) the two run one
    after the other.

    Args:
        norm: A `LayerNorm` or `RMSNorm` of fusedops over the last dimension.
        layer: A `Linear`, `MLP` or `GatedMLP` of fusedops; its recipe, or `fp8.autocast`'s, counts.

    Raises:
        TypeError: norm or layer is another module.

    Shape:
        Input and residual (..., K), output (..., N).

    Example:
        >>> mlp = fusedops.nn.GatedMLP(4096, 14336, recipe=fusedops.fp8.Recipe())
        >>> block = fusedops.nn.PreNorm(fusedops.nn.RMSNorm(4096), mlp)
        >>> y, stream = block(attention, residual=stream)
    """

    __module__ = "fusedops.nn"  # what pickles name

    def __init__(self, norm: LayerNorm | RMSNorm, layer: Linear | MLP | GatedMLP) -> None:
        super().__init__()
        for name, module, kinds in (
            ("norm", norm, (LayerNorm, RMSNorm)),
            ("layer", layer, (Linear, MLP, GatedMLP)),
        ):
            if not isinstance(module, kinds):
                allowed = " or ".join(f"fusedops.nn.{kind.__name__}" for kind in kinds)
                raise TypeError(f"PreNorm: {name} must be a {allowed}; got {type(module).__name__}")
        self.norm = norm
        self.layer = layer

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Any:
        """Apply norm and layer to x (..., K), or to x + residual."""
        if self.layer.recipe is not None or _region.current is not None:
            found = self._in_fp8(x, residual)
            if found is not None:
                return found[0] if residual is None else found
        if residual is None:
            return self.layer(self.norm(x))
        y, total = self.norm(x, residual)
        return self.layer(y), total

    def _in_fp8(self, x: Tensor, residual: Tensor | None) -> Any:
        norm, layer = self.norm, self.layer
        guard_forwards((norm, layer))
        width = x.shape[-1] if x.dim() else 0
        if type(norm) not in (LayerNorm, RMSNorm) or tuple(norm.normalized_shape) != (width,):
            return None
        if not (untouched(norm) and untouched(layer)):
            return None
        rms = isinstance(norm, RMSNorm)
        eps = torch.finfo(torch.float32).eps if norm.eps is None else norm.eps
        bias = None if rms else norm.bias
        given = Norm(rms, norm.weight, bias, eps, residual)
        compute = None
        if is_autocast_on(x.device.type):
            compute = torch.get_autocast_dtype(x.device.type)
        return _layer_in_fp8(layer, x, compute, given)


def _layer_in_fp8(
    layer: Linear | MLP | GatedMLP, x: Tensor, compute: torch.dtype | None, norm: Norm
) -> Any:
    """(y, what was normalised) of the layer behind the norm; None where they run apart."""
    code = activation_code(layer.activation)
    if type(layer) is Linear:
        return fp8_linear(x, layer.weight, layer.bias, code, layer.recipe, compute, norm)
    if type(layer) is MLP:
        one, two = layer.fc1, layer.fc2
        if layer.recompute or not (plain(one) and plain(two)):
            return None
        weights = one.weight, one.bias, two.weight, two.bias
        return fp8_mlp(x, *weights, code, layer.recipe, compute, norm)
    if type(layer) is not GatedMLP or layer.recompute:
        return None
    gate = layer.gate_up_proj if layer.packed else layer.gate_proj
    up = None if layer.packed else layer.up_proj
    down = layer.down_proj
    if not (plain(gate) and plain(down) and (up is None or plain(up))):
        return None
    firsts = gate.weight, None if up is None else up.weight
    biases = gate.bias, None if up is None else up.bias
    return fp8_gated_mlp(
        x, *firsts, *biases, down.weight, down.bias, code, layer.recipe, compute, norm
    )
