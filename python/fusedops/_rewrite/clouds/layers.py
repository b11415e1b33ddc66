"""Linear layers, convolutions of size 1, norms and activations in modules, read at each call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch import nn as torch_nn

from ..._core.precision import is_autocast_on
from ...nn.activation import activation_name
from ...nn.linear import plain, untouched
from ...nn.points.arguments import norm_arguments, readable
from ..fused_class import Fused
from ..sequential import in_order

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_any_autocast = torch._C._is_any_autocast_enabled
_CONVOLUTIONS = (torch_nn.Conv1d, torch_nn.Conv2d)
_DEFAULT_SLOPE = 0.01
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class Layers(NamedTuple):
    """``act(norm(linear(x)))`` per layer, the activation behind all but perhaps the last."""

    linears: tuple[Any, ...]
    norms: tuple[Any, ...]  # None for a layer without one
    activation: str
    negative_slope: float
    last_activation: bool

    def weights(self) -> list[Tensor]:
        """(C_l, C_{l-1}) each; convolutions of size 1 are that."""
        return [layer.weight.flatten(1) for layer in self.linears]

    def arguments(self) -> tuple[list[Any], list[Any], dict[str, Any]]:
        """Biases, norms, and the keywords of a function; norms count its call in training."""
        biases = [layer.bias for layer in self.linears]
        norms = [None if norm is None else norm_arguments(norm) for norm in self.norms]
        return (
            biases,
            norms,
            {
                "activation": self.activation,
                "negative_slope": self.negative_slope,
                "last_activation": self.last_activation,
            },
        )

    def takes(self, *inputs: Tensor | None) -> bool:
        """Whether the functions stand for the layers on inputs of these dtypes."""
        dtype = self.linears[0].weight.dtype
        device = self.linears[0].weight.device
        given = [x for x in inputs if x is not None]
        if any(type(x) not in (Tensor, torch_nn.Parameter) or x.device != device for x in given):
            return False
        if dtype not in _FLOATS or any(layer.weight.dtype is not dtype for layer in self.linears):
            return False
        if _any_autocast() and is_autocast_on(device.type):
            return dtype is torch.float32 and all(x.is_floating_point() for x in given)
        return all(x.dtype is dtype for x in given)


def original_class(module: Any) -> type:
    """The class of a module before fuse."""
    kind: Any = type(module)
    original: type = kind._base if issubclass(kind, Fused) else kind
    return original


def comes_from(module: Any, name: str, *packages: str) -> bool:
    """Whether a module's class, before fuse, has a name in one of these Python modules."""
    kind = original_class(module)
    return kind.__name__ == name and kind.__module__ in packages


def _is_linear(module: Any) -> bool:
    """Whether a module is x @ weight.T + bias over channels and nothing else."""
    if plain(module):
        return True
    if type(module) in _CONVOLUTIONS:
        one = (1,) * len(module.kernel_size)
        return bool(
            untouched(module)
            and module.kernel_size == module.stride == module.dilation == one
            and module.groups == 1
            and (module.padding == "valid" or not any(map(int, module.padding)))
        )
    return comes_from(module, "Linear", "torch_geometric.nn.dense.linear") and untouched(module)


def _norm_of(module: Any) -> Any:
    """The norm of torch.nn that a module is or holds; None where it is another module."""
    if readable((), (module,)):
        return module
    if comes_from(module, "BatchNorm", "torch_geometric.nn.norm.batch_norm"):
        inner = module.module
        if untouched(module) and not module.allow_single_element and readable((), (inner,)):
            return inner
    return None


def activation_of(module: Any) -> tuple[str, float] | None:
    """The activation and slope of a module that is one and has no hooks."""
    if module is None:
        return "none", _DEFAULT_SLOPE
    if not isinstance(module, torch_nn.Module) or not untouched(module):
        return None
    if type(module) is torch_nn.LeakyReLU:
        return "leaky_relu", float(module.negative_slope)
    if type(module) is torch_nn.Identity:
        return "none", _DEFAULT_SLOPE
    name = activation_name(module)
    return None if name is None else (name, _DEFAULT_SLOPE)


def layers_of(
    linears: Iterable[Any], norms: Iterable[Any], activation: Any, last_activation: bool
) -> Layers | None:
    """Layers by their modules; None where one of them computes more."""
    linears, norms = tuple(linears), tuple(norms)
    found = activation if isinstance(activation, tuple) else activation_of(activation)
    if not linears or len(norms) > len(linears) or found is None:
        return None
    if not all(_is_linear(layer) for layer in linears):
        return None
    inner = [None if norm is None else _norm_of(norm) for norm in norms]
    if any(norm is not None and one is None for norm, one in zip(norms, inner, strict=True)):
        return None
    inner += [None] * (len(linears) - len(norms))
    name, slope = found
    return Layers(linears, tuple(inner), name, slope, last_activation)


def read_layers(module: Any) -> Layers | None:
    """The layers of an nn.Sequential, or of torch_geometric's MLP; None for what is more."""
    if comes_from(module, "MLP", "torch_geometric.nn.models.mlp"):
        return _read_geometric(module) if untouched(module) else None
    if isinstance(module, torch_nn.Sequential):
        return _read_sequential(list(_flat(module)))
    return layers_of([module], [], None, False) if _is_linear(module) else None


def _read_geometric(mlp: Any) -> Layers | None:
    if mlp.training and any(p > 0 for p in mlp.dropout):
        return None
    bare = all(type(norm).__name__ == "Identity" for norm in mlp.norms)
    if mlp.act_first and not bare:
        return None
    norms = [None if type(norm).__name__ == "Identity" else norm for norm in mlp.norms]
    return layers_of(mlp.lins, norms, mlp.act, not mlp.plain_last)


def _flat(module: Any) -> Iterator[Any]:
    """The modules of nested Sequentials in order; another one stands for itself."""
    base = original_class(module)
    if issubclass(base, torch_nn.Sequential) and in_order(base) and untouched(module):
        for inner in module._modules.values():
            yield from _flat(inner)
    else:
        yield module


def _read_sequential(modules: list[Any]) -> Layers | None:
    """[linear, norm?, activation?] again and again, each activation but the last one the same."""
    linears: list[Any] = []
    norms: list[Any] = []
    activations: list[Any] = []
    for module in modules:
        if _is_linear(module):
            linears.append(module)
            norms.append(None)
            activations.append(None)
        elif type(module) is torch_nn.Identity and untouched(module):
            continue
        elif _norm_of(module) is not None:
            if not linears or norms[-1] is not None or activations[-1] is not None:
                return None
            norms[-1] = module
        else:
            found = activation_of(module)
            if found is None or not linears or activations[-1] is not None:
                return None
            activations[-1] = found
    if not linears:
        return None
    *inner, last = activations
    if len(linears) == 1:
        return layers_of(linears, norms, last or ("none", _DEFAULT_SLOPE), True)
    if None in inner or any(one != inner[0] for one in inner) or last not in (None, inner[0]):
        return None
    return layers_of(linears, norms, inner[0], last is not None)
