"""torch.nn's norms over the fused functions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .._core.checks import dtype_name
from .._core.dtensor import own_class, set_own_class
from ..ops.norm import layer_norm, rms_norm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class LayerNorm(torch.nn.LayerNorm):
    """``torch.nn.LayerNorm`` in one pass over memory, with an optional residual.

    A subclass: arguments, parameters, initialisation, state dict and repr are nn.LayerNorm's, so
    checkpoints load either way.

    Shape:
        Input (..., normalized_shape), output the same; ``(y, input + residual)`` where a residual
        is given.

    Example:
        >>> norm = fusedops.nn.LayerNorm(1024)
        >>> y, residual = norm(x, residual)
    """

    __module__ = "fusedops.nn"  # what pickles name

    def forward(self, input: Tensor, residual: Tensor | None = None) -> Any:
        """Normalise input (..., normalized_shape), or input + residual."""
        shape, eps = self.normalized_shape, self.eps
        return layer_norm(input, shape, self.weight, self.bias, eps, residual=residual)


class RMSNorm(torch.nn.RMSNorm):
    """``torch.nn.RMSNorm`` in one pass over memory, with an optional residual.

    A subclass, as `LayerNorm` is.

    Example:
        >>> norm = fusedops.nn.RMSNorm(4096)
        >>> y, residual = norm(x, residual)
    """

    __module__ = "fusedops.nn"  # what pickles name

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Any:
        """Normalise x (..., normalized_shape), or x + residual."""
        return rms_norm(x, self.normalized_shape, self.weight, self.eps, residual=residual)


# ---- fusedops.fuse ----

_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_FUSED: dict[type[torch.nn.Module], type[torch.nn.Module]] = {
    torch.nn.LayerNorm: LayerNorm,
    torch.nn.RMSNorm: RMSNorm,
}


@dataclass(frozen=True)
class NormSite:
    """A norm of a model: replaced, already ours, or left alone with the reason."""

    name: str  # its path in the model
    kind: str
    shape: str
    replaced: bool = False
    reason: str = ""


def fuse_norms(
    model: torch.nn.Module, hooked: Callable[[torch.nn.Module], bool]
) -> Iterator[NormSite]:
    """Turn the norms of a model into ours, in place: the class changes, the object stays."""
    for name, module in list(model.named_modules()):
        if not isinstance(module, (torch.nn.LayerNorm, torch.nn.RMSNorm)):
            continue
        site = NormSite(name, type(module).__name__, str(tuple(module.normalized_shape)))
        reason = _reason_to_skip(module, hooked)
        if reason is not None:
            yield replace(site, reason=reason)
        elif own_class(module) in _FUSED:
            set_own_class(module, _FUSED[own_class(module)])
            yield replace(site, replaced=True)
        else:
            yield site


def _reason_to_skip(
    module: torch.nn.Module, hooked: Callable[[torch.nn.Module], bool]
) -> str | None:
    if own_class(module) not in (*_FUSED, *_FUSED.values()):
        return f"a subclass of nn.{type(module).__mro__[1].__name__} may compute something else"
    if hooked(module):
        return "has hooks"
    if "forward" in vars(module):
        return "its forward was replaced on the instance"
    for key, tensor in module._parameters.items():
        if tensor is not None and tensor.dtype not in _DTYPES:
            return f"{key} has dtype {dtype_name(tensor.dtype)}"
    return None
