"""Which modules of a model are layers of point clouds or graphs, and their change of class."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..fused_class import Fused, fused_class
from .dgcnn import FusedDGCNN, dgcnn_calls, is_dgcnn, run_dgcnn
from .geometric import geometric_mixin
from .messages import Message, messages_mixin
from .pointnet import MIXINS, Form, pointnet_form
from .probe import agrees

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch


_LAYERS = "unfused under torch.compile, and where its layers compute more"
_EDGES = "many messages in half precision on a GPU; unfused under torch.compile"


class CloudSite(NamedTuple):
    """A module that runs as one of `fusedops.points`' layers now, or sums in the order of edges."""

    name: str
    op: str
    layers: tuple[str, ...]
    note: str  # when its own forward runs


def fuse_clouds(model: torch.nn.Module) -> Iterator[CloudSite]:
    """Make such layers run as ours, in place: the class changes, the object stays."""
    for name, module in list(model.named_modules()):
        if isinstance(module, Fused) or "forward" in vars(module):
            continue
        op = _fuse(module)
        if op is not None:
            weights = (key for key, value in module.named_parameters() if value.dim() > 1)
            layers = tuple(key.removesuffix(".weight") for key in weights)
            yield CloudSite(name, op, layers, _EDGES if op == "edge_sum" else _LAYERS)


def _fuse(module: torch.nn.Module) -> str | None:
    """The op that a module runs as now; None where it stays what it is."""
    try:
        found = _found(module)
    except Exception:  # a class of these attributes may hold and raise anything
        return None
    if found is None:
        return None
    mixin, op, form = found
    if form is not None:
        vars(module)["_fused"] = form
    module.__class__ = fused_class(mixin, type(module))
    return op


def _found(module: torch.nn.Module) -> tuple[type, str, Form | Message | None] | None:
    geometric = geometric_mixin(module)
    if geometric is not None:
        return *geometric, None
    messages = messages_mixin(module)
    if messages is not None:
        return messages
    if is_dgcnn(module) and agrees(module, run_dgcnn, dgcnn_calls):
        return FusedDGCNN, "edge_conv", None
    pointnet = pointnet_form(module)
    return None if pointnet is None else (MIXINS[pointnet[0].kind], pointnet[1], pointnet[0])
