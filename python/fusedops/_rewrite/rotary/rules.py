"""What functions that rotate two tensors or one have to be, and their tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn as torch_nn

from ..._core.precision import is_autocast_on
from ..source import Reader

if TYPE_CHECKING:
    from types import FunctionType

    from torch import Tensor

    from ..forward_code import Outside

_is_grad_enabled = torch.is_grad_enabled
_any_autocast = torch._C._is_any_autocast_enabled
_LIMITS = {"clamp", torch.clamp, torch.clip}


def outside_of(function: FunctionType, arguments: int, largest: int) -> Outside | None:
    """What a function of so many arguments refers to, where its source may be a rotation's.

    Integers up to `largest` name dims and halves, and one that cut rows would do so on the probes,
    too. A larger number might cut rows or values that are larger than those of the probes.

    Raises:
        RefusedError: It may do more than to compute.
    """
    code = function.__code__
    required = code.co_argcount - len(function.__defaults__ or ())
    if required > arguments or code.co_argcount < arguments or code.co_kwonlyargcount:
        return None
    reader = Reader(torch_nn.Module())
    reader.read_function(function)
    few = all(number <= largest for number in reader.integers)
    if not few or reader.numbers or not _LIMITS.isdisjoint(reader.calls):
        return None
    return reader.outside


def are_fixed(cos: Tensor, sin: Tensor) -> bool:
    """Whether tables are numbers that a function uses as they are."""
    if _is_grad_enabled() and (cos.requires_grad or sin.requires_grad):
        return False
    # NOTE: what autocast makes of the function's own code is not on the probes.
    return not (_any_autocast() and is_autocast_on(cos.device.type))
