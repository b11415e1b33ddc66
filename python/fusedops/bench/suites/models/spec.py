"""What a model of the suite is: how it is built, its data, its loss and its output."""

from __future__ import annotations

import contextlib
import copy
import importlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fusedops.bench.suites.base import PeerUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

Data = tuple[Tensor, ...]
# What stands in a row in a transformer or a convolutional network, whoever wrote it.
LAYER = re.compile(r"(Layer|Block)$")


@dataclass(frozen=True)
class Model:
    """`tiny` builds the same structure in widths that a test can afford."""

    name: str
    build: Callable[[bool], nn.Module]  # (tiny)
    data: Callable[[nn.Module, bool], Data]  # (model, tiny), on the default device
    loss: Callable[..., Tensor]  # (model, *data)
    output: Callable[..., Tensor]  # (model, *data), what inference returns
    package: str = "torch"
    autocast: bool = False  # fp32 weights, the dtype by autocast
    fp32: bool = True  # whether it runs in fp32, and in fp64 for the comparison
    # (output, last of the data), where the loss stands beside the model: `fuse` sees none in it
    criterion: Callable[[Tensor, Tensor], Tensor] | None = None

    def load(self, tiny: bool, dtype: torch.dtype, device: torch.device) -> Loaded:
        """Builds the model and its data; raises PeerUnavailableError without its package."""
        try:
            importlib.import_module(self.package)
        except ImportError as error:
            raise PeerUnavailableError(f"{self.package} is not installed ({error})") from error
        with torch.device(device):
            module = self.build(tiny)
            wake(module)
            if not self.autocast:
                cast_parameters(module, dtype)
            data = self.data(module, tiny)
        return Loaded(self, module, data, dtype if self.autocast else None, device)


@dataclass
class Loaded:
    """A model on its device, whose parameters all contenders share."""

    spec: Model
    module: nn.Module
    data: Data
    autocast: torch.dtype | None
    device: torch.device

    def twin(self) -> nn.Module:
        """A copy of the modules around the same parameters and buffers."""
        shared = {id(t): t for t in (*self.module.parameters(), *self.module.buffers())}
        return copy.deepcopy(self.module, shared)

    def exact(self, dtype: torch.dtype) -> Loaded:
        """The same model and data in a wider dtype, without autocast."""
        module = copy.deepcopy(self.module).to(dtype)
        data = tuple(t.to(dtype) if t.is_floating_point() else t for t in self.data)
        return Loaded(self.spec, module, data, None, self.device)

    def precision(self) -> contextlib.AbstractContextManager[Any]:
        enabled = self.autocast is not None
        found: contextlib.AbstractContextManager[Any] = torch.autocast(
            self.device.type, dtype=self.autocast, enabled=enabled
        )
        return found if enabled else contextlib.nullcontext()


def wake(module: nn.Module) -> None:
    """Layers of zeros, the heads of some models, would make every gradient before them zero."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear) and not layer.weight.any():
            nn.init.normal_(layer.weight, std=0.02)


def cast_parameters(module: nn.Module, dtype: torch.dtype) -> None:
    """Buffers of transformers (RoPE's rates) are fp32 by intent; others follow the weights."""
    if type(module).__module__.startswith("transformers."):
        for parameter in module.parameters():
            parameter.data = parameter.data.to(dtype)
    else:
        module.to(dtype)


def layers(module: nn.Module) -> list[nn.Module]:
    """The layers that are compiled one by one: the outermost modules that are named so."""
    found = []
    for child in module.children():
        is_layer = LAYER.search(type(child).__name__) and next(child.parameters(), None) is not None
        found += [child] if is_layer else layers(child)
    return found


def tokens(batch: int, length: int, vocabulary: int) -> Tensor:
    return torch.randint(vocabulary, (batch, length))


def dtype_of(module: nn.Module) -> torch.dtype:
    return next(module.parameters()).dtype
