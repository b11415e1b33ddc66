"""fuse: replace nn.Linear, nn.Linear + activation, MLP blocks and norms in an existing model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import nn as torch_nn

from ._blocks import (
    FusedSequential,
    activation_name,
    fuse_block,
    hooked,
    pair_end,
)
from ._norm_modules import fuse_norms
from ._text import table
from .nn import Linear

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["FuseReport", "FusedLayer", "FusedMLP", "SkippedLayer", "fuse"]

_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True)
class FusedLayer:
    """One linear layer or norm that runs fused now."""

    name: str  # its path in the model; every path, joined by ", ", when it is shared
    shape: str  # "in -> out"; of a norm its normalized_shape
    activation: str | None
    absorbed: tuple[str, ...]  # the paths of the activation modules that became nn.Identity
    note: str = ""  # why a following activation was not absorbed


@dataclass(frozen=True)
class FusedMLP:
    """One block of linear layers that runs as one op now; its layers are listed as well."""

    name: str  # its path in the model
    kind: str  # "mlp" or "gated_mlp"
    layers: tuple[str, ...]  # the names of its layers in it
    activation: str
    note: str = ""  # when the module's own forward runs instead


@dataclass(frozen=True)
class SkippedLayer:
    """One linear layer or norm that was left alone."""

    name: str
    kind: str
    reason: str


@dataclass
class FuseReport:
    """What `fuse` did: print it for a table.

    Attributes:
        fused: The linear layers and norms that run fused now.
        skipped: The linear layers and norms that were left alone, with the reason.
        unchanged: How many fused layers and norms were there before.
        blocks: The MLP blocks that run as one op now.
    """

    fused: list[FusedLayer] = field(default_factory=list)
    skipped: list[SkippedLayer] = field(default_factory=list)
    unchanged: int = 0
    blocks: list[FusedMLP] = field(default_factory=list)

    @property
    def num_fused(self) -> int:
        """How many layers and norms were replaced."""
        return len(self.fused)

    @property
    def num_absorbed(self) -> int:
        """How many activation modules became part of a linear layer."""
        return sum(len(layer.absorbed) for layer in self.fused)

    @property
    def num_skipped(self) -> int:
        """How many linear layers and norms were left alone."""
        return len(self.skipped)

    def __str__(self) -> str:
        lines = [
            f"fused {self.num_fused} layer(s), absorbed {self.num_absorbed} activation(s), "
            f"skipped {self.num_skipped}, fused before {self.unchanged}"
        ]
        rows = [
            (
                layer.name or "(model)",
                layer.shape,
                layer.activation or "none",
                _absorbed_text(layer),
            )
            for layer in self.fused
        ]
        if rows:
            lines += ["", *table(("fused layer", "shape", "activation", "notes"), rows)]
        blocks = [(b.name or "(model)", b.kind, ", ".join(b.layers), b.activation, b.note)
                  for b in self.blocks]  # fmt: skip
        if blocks:
            header = ("fused block", "op", "layers", "activation", "notes")
            lines += ["", *table(header, blocks)]
        left = [(s.name or "(model)", s.kind, s.reason) for s in self.skipped]
        if left:
            lines += ["", *table(("skipped layer", "type", "reason"), left)]
        return "\n".join(lines)

    __repr__ = __str__


def _absorbed_text(layer: FusedLayer) -> str:
    absorbed = f"absorbed {', '.join(layer.absorbed)}" if layer.absorbed else ""
    return "; ".join(text for text in (absorbed, layer.note) if text)


def _reason_to_skip(module: torch_nn.Linear) -> str | None:
    """Why a linear layer must stay what it is, None where it may be replaced."""
    if type(module) not in (torch_nn.Linear, Linear):
        # NOTE: parametrize and weight_norm make subclasses too.
        if hasattr(module, "parametrizations"):
            return "has parametrizations"
        return "a subclass of nn.Linear may compute something else"
    if hooked(module):
        return "has hooks (weight_norm, spectral_norm and pruning are hooks too)"
    if "forward" in vars(module):
        return "its forward was replaced on the instance"
    extra = [*module._modules, *module._buffers, *(set(module._parameters) - {"weight", "bias"})]
    if extra:
        return f"has more than weight and bias: {', '.join(sorted(extra))}"
    for name in ("weight", "bias"):
        tensor = module._parameters.get(name)
        if tensor is None:
            if name == "weight":
                return "weight is not a parameter"
            continue
        if type(tensor) is not torch_nn.Parameter:
            return f"{name} is a {type(tensor).__name__}"
        if tensor.dtype not in _DTYPES:
            return f"{name} has dtype {str(tensor.dtype).removeprefix('torch.')}"
        if tensor.layout is not torch.strided:
            return f"{name} has layout {str(tensor.layout).removeprefix('torch.')}"
    return None


@dataclass
class _Site:
    """One place in the tree where a linear layer sits, and the activation that follows it there."""

    path: str
    parent: torch_nn.Module | None = None
    follower_key: str = ""
    follower: torch_nn.Module | None = None


def _sites(model: torch_nn.Module) -> dict[torch_nn.Linear, list[_Site]]:
    """Every linear layer with the places it sits in."""
    found: dict[torch_nn.Linear, list[_Site]] = {}
    if isinstance(model, torch_nn.Linear):
        found[model] = [_Site("")]
    for prefix, parent in model.named_modules():
        # A plain Sequential runs its children in order and nothing else
        in_order = (
            isinstance(parent, torch_nn.Sequential)
            and type(parent).forward is torch_nn.Sequential.forward
            and type(parent).__iter__ is torch_nn.Sequential.__iter__
            and "forward" not in vars(parent)
        )
        children = list(parent._modules.items())
        for i, (key, child) in enumerate(children):
            if not isinstance(child, torch_nn.Linear):
                continue
            site = _Site(f"{prefix}.{key}" if prefix else key, parent)
            if in_order and i + 1 < len(children):
                site.follower_key, follower = children[i + 1]
                site.follower = follower
            found.setdefault(child, []).append(site)
    return found


def _follower_path(site: _Site) -> str:
    return ".".join([*site.path.split(".")[:-1], site.follower_key])


def _common_activation(module: torch_nn.Linear, sites: list[_Site]) -> tuple[str | None, str]:
    """(activation to absorb, note): the one that follows at every place, or None and why not."""
    names = [None if s.follower is None else activation_name(s.follower) for s in sites]
    if not any(names):
        return None, ""
    if isinstance(module, Linear) and module.activation not in (None, "none"):
        return None, f"has activation {module.activation!r}; {_follower_path(sites[0])} stays"
    if len(set(names)) != 1:
        return None, "shared, and not followed by the same activation everywhere"
    with_hooks = [s for s in sites if s.follower is not None and hooked(s.follower)]
    if with_hooks:
        return None, f"{_follower_path(with_hooks[0])} has hooks and stays"
    return names[0], ""


def _absorb(sites: list[_Site]) -> Iterator[str]:
    for site in sites:
        assert site.parent is not None
        assert site.follower is not None
        identity = torch_nn.Identity()
        identity.train(site.follower.training)
        site.parent._modules[site.follower_key] = identity
        yield _follower_path(site)


def _fuse_blocks(model: torch_nn.Module, report: FuseReport) -> None:
    """Turn MLP blocks into one op; their layers are fused layers already."""
    for name, module in model.named_modules():
        if type(module) in (torch_nn.Sequential, FusedSequential):
            _fuse_sequential(name, module, report)
            continue
        block = fuse_block(module)
        if block is None:
            continue
        note = f"unfused while {', '.join(block.dropouts)} drops" if block.dropouts else ""
        layers = (*block.first, block.down)
        report.blocks.append(FusedMLP(name, block.kind, layers, block.activation, note))


def _fuse_sequential(name: str, module: torch_nn.Module, report: FuseReport) -> None:
    if "forward" in vars(module):
        return
    keys, layers = list(module._modules), list(module._modules.values())
    ends = ((i, pair_end(layers, i)) for i in range(len(layers)))
    pairs = [(i, end) for i, end in ends if end is not None]
    if not pairs or type(module) is FusedSequential:
        return
    module.__class__ = FusedSequential
    for i, end in pairs:
        activation = str(layers[i].activation)
        report.blocks.append(FusedMLP(name, "mlp", (keys[i], keys[end]), activation))


def fuse(model: torch_nn.Module) -> FuseReport:
    """Replace the linear layers and norms of a model by fused ones, in place.

    Every ``torch.nn.LayerNorm``, ``RMSNorm`` and ``Linear`` becomes that of `fusedops.nn`. Where a
    plain ``nn.Sequential`` runs an activation module behind a linear layer (ReLU, GELU of either
    form, SiLU, Sigmoid, Tanh), the activation is absorbed and an ``nn.Identity`` keeps its place,
    so that indices stay.

    Whole MLP blocks become one op each way, `fusedops.mlp` or `fusedops.gated_mlp`: pairs of linear
    layers with an absorbed activation between them in an ``nn.Sequential``, and modules whose
    forward, as torch.fx traces it, is ``down(act(up(x)))`` or ``down(act(gate(x)) * up(x))`` of
    their linear layers, whatever the names (Llama's, Hugging Face's, torchtune's; gate and up
    packed in one layer too). A module stays what it is where its code might do more: store anything
    but local variables, enter a ``with`` (no_grad, autocast), call other functions (checkpoint) or
    refer to other objects than modules, numbers and strings. A fused one's own forward still runs
    while its dropout is active or a module in it has hooks, and after one of those modules, or an
    attribute that the forward reads, was replaced.

    A layer changes its class and stays the same object. So its parameters (what the optimizer
    holds, tied weights), state dict keys, device, training flag and everything that refers to it
    stay valid, and a model which is itself one ``nn.Linear`` is replaced as well. A second call
    changes nothing.

    Left alone, and reported with the reason: subclasses of nn.Linear (LoRA layers,
    parametrizations, the output projection of nn.MultiheadAttention) and of the norms, layers and
    norms with hooks (weight_norm, pruning), with an own forward or with a dtype that the kernels do
    not have, and linear layers with further parameters.

    Adapt, hook, prune and quantise first, and fuse last: an absorbed activation is part of its
    layer. An adapter around that layer or a hook on it then sees the activated output, another
    module in the nn.Identity's place runs behind the activation, and code that calls the layer past
    its Sequential gets the activation too. torch.fx, torch.jit.script and quantize_dynamic do not
    see into fused modules.

    Args:
        model: Any module.

    Returns:
        The report; print it for a table.

    Raises:
        TypeError: model is not an nn.Module.

    Example:
        >>> model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
        >>> print(fusedops.fuse(model))
    """
    if not isinstance(model, torch_nn.Module):
        raise TypeError(f"fuse: model must be a torch.nn.Module; got {type(model).__name__}")
    report = FuseReport()
    for module, sites in _sites(model).items():
        name = ", ".join(site.path for site in sites)
        reason = _reason_to_skip(module)
        if reason is not None:
            report.skipped.append(SkippedLayer(name, type(module).__name__, reason))
            continue
        activation, note = _common_activation(module, sites)
        if isinstance(module, Linear):
            if activation is None:
                report.unchanged += 1
                continue
        else:
            module.__class__ = Linear
            module.activation = None
        absorbed: tuple[str, ...] = ()
        if activation is not None:
            absorbed = tuple(_absorb(sites))
            module.activation = activation
        shape = f"{module.in_features} -> {module.out_features}"
        report.fused.append(FusedLayer(name, shape, activation, absorbed, note))
    _fuse_blocks(model, report)
    for norm in fuse_norms(model, hooked):
        if norm.reason:
            report.skipped.append(SkippedLayer(norm.name, norm.kind, norm.reason))
        elif norm.replaced:
            report.fused.append(FusedLayer(norm.name, norm.shape, None, ()))
        else:
            report.unchanged += 1
    return report
