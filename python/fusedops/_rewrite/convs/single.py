"""Convolutions that run as an op of ours, each by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch import nn as torch_nn

from ..._core.dtensor import own_class, set_own_class
from ..fused_class import Fused, fused_class

if TYPE_CHECKING:
    from collections.abc import Callable

_is_dynamo_compiling = torch.compiler.is_dynamo_compiling

PLAIN = (Tensor, torch_nn.Parameter)
# The classes with what their forwards call, as they came.
CONVOLUTIONS: dict[type, tuple[Any, Any, str, Any]] = {
    kind: (kind.forward, kind._conv_forward, name, getattr(F, name))
    for kind, name in (
        (torch_nn.Conv1d, "conv1d"),
        (torch_nn.Conv2d, "conv2d"),
        (torch_nn.Conv3d, "conv3d"),
    )
}


def why_replaced(module: Any) -> str | None:
    """Why a convolution may compute something else than its class does; None where it does not."""
    kind = next(kind for kind in CONVOLUTIONS if isinstance(module, kind))
    forward, inner, name, function = CONVOLUTIONS[kind]
    base = getattr(type(module), "_base", None) or own_class(module)
    if base.forward is not forward or base._conv_forward is not inner:
        return f"a subclass of nn.{kind.__name__} may compute something else"
    if "forward" in vars(module) or "_conv_forward" in vars(module):
        return "its forward was replaced on the instance"
    if getattr(F, name) is not function:
        return f"torch.nn.functional.{name} was replaced"
    return None


class FusedSingle(Fused):
    """Mixed into a convolution's class: the same object, its forward an op of ours.

    Its own forward runs under torch.compile (whose graph pass finds it), after its settings or
    torch's function for it were changed, and where the op does not take the tensors.
    """

    _base: Any
    weight: Any
    bias: Any
    _fused_kind: Single

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the convolution gives."""
        x = args[0] if len(args) == 1 and not kwargs else None
        if _is_dynamo_compiling() or type(x) not in PLAIN:
            return self._base.forward(self, *args, **kwargs)
        kind = self._fused_kind
        if kind.why_module_left(self) is not None:
            return self._base.forward(self, *args, **kwargs)
        weight, bias = self.weight, self.bias  # once: a parametrization computes them
        plain = type(weight) in PLAIN and type(bias) in (*PLAIN, type(None))
        y = kind.op(self, x, weight, bias) if plain else None
        return self._conv_forward(x, weight, bias) if y is None else y  # type: ignore[attr-defined]


class Single(NamedTuple):
    """One kind of them."""

    note: str  # for reports, with the kernel
    fused: type[FusedSingle]  # what is mixed in
    has: Callable[[torch_nn.Module], bool]
    why_left: Callable[[Any], str | None]  # by its settings
    why_weight_left: Callable[[Any], str | None]
    op: Callable[[Any, Any, Any, Any], Tensor | None]  # of module, x, weight, bias; None: not taken

    def why_module_left(self, module: Any) -> str | None:
        """Why a module stays what it is, by all but its weight; else None."""
        return why_replaced(module) or self.why_left(module)

    def fuse(self, module: torch_nn.Module) -> str | None:
        """Make a module run as our op, in place.

        Returns:
            None where it does now, else the reason why it stays what it is.
        """
        if torch_nn.parameter.is_lazy(module._parameters.get("weight")):
            return "its weight is not made yet"
        if hasattr(module, "parametrizations"):  # torch takes the class away when they are removed
            return "has parametrizations"
        why = self.why_module_left(module) or self.why_weight_left(module)
        if why is None:
            set_own_class(module, fused_class(self.fused, own_class(module)))
        return why

    def described(self, module: Any) -> tuple[str, str | None, tuple[str, ...], str]:
        """Shape, activation, what was absorbed and a note, as FusedLayer has them."""
        kernel = " x ".join(map(str, module.kernel_size))
        return f"{module.in_channels} -> {module.out_channels}", None, (), self.note.format(kernel)
