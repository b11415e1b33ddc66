"""One convolution with what runs behind it: modules in, `fusedops.conv_bn_act` or the modules run.

Everything is asked at each call: hooks, modes, replaced modules and parameters, and what pays.
"""

from __future__ import annotations

import copy
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch import nn as torch_nn

from ..._autograd.compose import activate
from ..._core.activation import CODES
from ...nn.activation import activation_name
from ...nn.conv_call import NormArguments, dims_of, output_shape, run, takes
from ...nn.linear import untouched
from .decide import Call, may_pay, pays
from .norms import is_known_norm, norm_now

if TYPE_CHECKING:
    from collections.abc import Sequence

_is_dynamo_compiling = torch.compiler.is_dynamo_compiling

_DROPOUTS = (torch_nn.Dropout, torch_nn.Dropout1d, torch_nn.Dropout2d, torch_nn.Dropout3d)
_DROP_PATHS = ("DropPath", "StochasticDepth")
_forwards = {kind: kind.forward for kind in (torch_nn.Identity, *_DROPOUTS)}
# Classes that give their input in evaluation, and in training with a rate of 0: their forward.
_passing: weakref.WeakKeyDictionary[type, Any] = weakref.WeakKeyDictionary()


def know_passing(module: Any) -> bool:
    """Whether a module is of a class that gives its input where it does not drop."""
    kind: Any = type(module)
    if kind in _forwards:
        return True
    if kind.__name__ not in _DROP_PATHS or module._modules or list(module.parameters()):
        return False
    if _passing.get(kind) is kind.forward:
        return True
    x = torch.ones(2, 3)
    try:
        with torch.random.fork_rng(devices=[]):
            if copy.deepcopy(module).eval()(x) is not x:
                return False
            still = copy.deepcopy(module).train()
            still.__dict__["p" if "p" in vars(module) else "drop_prob"] = 0.0
            if still(x) is not x:
                return False
    except Exception:  # a class of this name may hold and raise anything
        return False
    _passing[kind] = kind.forward
    return True


def passes(module: Any) -> bool:
    """Whether a call of a module gives its input now."""
    kind: Any = type(module)
    if not isinstance(module, torch_nn.Module) or not untouched(module):
        return False
    known = _forwards.get(kind, _passing.get(kind))
    if known is None or kind.forward is not known:
        return False
    if not module.training or kind is torch_nn.Identity:
        return True
    held = vars(module)
    return bool(held.get("p", held.get("drop_prob", 1.0)) == 0)


def _name_of(act: Any) -> str | None:
    """The activation of a name or a module; None where it is another one."""
    if act is None:
        return "none"
    if isinstance(act, str):
        return act
    if type(act) is torch_nn.Identity:
        return "none" if untouched(act) else None
    name = activation_name(act)
    return name if name is not None and untouched(act) else None


class ConvStep(NamedTuple):
    """What runs with a convolution in an nn.Sequential, and the index behind it."""

    norm: Any
    act: Any
    end: int


def conv_step(layers: list[Any], start: int) -> ConvStep | None:
    """What runs with the convolution of an index; None where that module runs by itself."""
    if dims_of(layers[start]) is None or _is_dynamo_compiling():
        return None
    end, norm, act = start + 1, None, None
    if end < len(layers) and is_known_norm(layers[end]):
        norm, end = layers[end], end + 1
    if end < len(layers) and activation_name(layers[end]) and untouched(layers[end]):
        act, end = layers[end], end + 1
    return None if norm is None and act is None else ConvStep(norm, act, end)


def run_unit(
    x: Any,
    residual: Any,
    conv: Any,
    norm: Any,
    between: Sequence[Any] = (),
    act: Any = None,
    in_place: bool = False,
    hands_on: bool = False,
) -> tuple[Any, Any]:
    """``act(between(norm(conv(x))) + residual)``, and x for what else reads it.

    Args:
        x: The input.
        residual: What is added, or None.
        conv: A convolution.
        norm: A batch norm, or None.
        between: Modules that may give their input, as dropout does in evaluation.
        act: An activation's name or module, or None.
        in_place: Whether the sum is taken in place.
        hands_on: Whether something reads x behind; see `conv_bn_act_and_input`.
    """
    y, handed, name = None, x, _name_of(act)
    dims = dims_of(conv) if may_pay(x) else None
    now = norm_now(norm, dims) if dims is not None and norm is not None else None
    if dims is not None and (norm is None or (now is not None and now.takes(x))):
        found = None if now is None else now.arguments
        inner = "none" if now is None else now.activation
        behind = residual is not None or name != "none"
        whole = name is not None and all(passes(m) for m in between)
        if whole and (inner == "none" or not behind):
            activation = inner if name == "none" else name
            assert activation is not None
            if _may(x, conv, found, activation, residual, dims):
                return run(x, conv, found, activation, residual, hands_on)
        elif _may(x, conv, found, inner, None, dims):
            y, handed = run(x, conv, found, inner, None, hands_on)
    if y is None:
        y = conv(x)
        y = y if norm is None else norm(y)
    for module in between:
        y = module(y)
    if residual is not None:
        y = _sum(y, residual, in_place)
    if act is not None:
        y = activate(y, CODES[act]) if isinstance(act, str) else act(y)
    return y, handed


def _may(
    x: Any, conv: Any, norm: NormArguments | None, activation: str, residual: Any, dims: int
) -> bool:
    """Whether the op stands for modules, and pays."""
    if not takes(x, conv, norm, residual, dims):
        return False
    passes = (norm is not None) + (activation != "none") + (residual is not None)
    shape = output_shape(x, conv)
    training = torch.is_grad_enabled() or (norm is not None and norm.training)
    return passes > 0 and pays(Call(x, conv.weight, residual, shape, passes, training))


def _sum(y: Any, residual: Any, in_place: bool) -> Any:
    if in_place and isinstance(y, Tensor):
        y += residual
        return y
    return y + residual
