"""Whole models: inference, and a step of loss and gradients, with fp32 weights under autocast.

Dropout is off in both, so that results can be compared. On a CPU every model is tiny: that checks,
its times say nothing.
"""

from __future__ import annotations

import contextlib
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fusedops.bench.suites.base import Call, Case, PeerUnavailableError, Selection

from .clouds import surfaces
from .search import OURS, TORCH, Search

if TYPE_CHECKING:
    from collections.abc import Sequence

CLASSES, PARTS, CATEGORIES = 40, 50, 16  # of ModelNet, and of ShapeNet's parts
TINY = (2, 64)  # clouds, points
PEERS = ("eager", "compile", "torch")


@dataclass(frozen=True)
class Net:
    name: str
    b: int
    n: int

    @property
    def segments(self) -> bool:
        return self.name.endswith("seg")


NETS = (Net("ssg_cls", 32, 1024), Net("msg_seg", 16, 2048), Net("dgcnn_cls", 32, 1024))


def net_cases(selection: Selection) -> list[Case]:
    if selection.shapes:  # they have the sizes that they have
        return []
    return [Case(f"{net.name}/B{net.b}_N{net.n}", {"kind": "net", "of": net}) for net in NETS]


def build(name: str, tiny: bool) -> nn.Module:
    """The published widths; without dropout."""
    from fusedops import models

    model: nn.Module
    if name == "dgcnn_cls":
        small: dict[str, Any] = {"mlps": ((8,), (16,)), "k": 4, "embedding": 16, "head": (16, 8)}
        model = models.DGCNN(CLASSES, **(small if tiny else {}))
    elif name == "ssg_cls":
        small = {"stages": _tiny_stages(1), "all_points": (16, 32), "head": (16, 8)}
        model = models.PointNet2Classifier(CLASSES, variant="ssg", **(small if tiny else {}))
    else:
        from fusedops.models.stages import Segmentation

        widths = ((16, 16), (16, 16), (16, 16))
        config = Segmentation(_tiny_stages(2), (16, 32), widths, "skip_first", 2, True)
        small = {"config": config, "head": (16,)}
        model = models.PointNet2Segmenter(
            PARTS, 3, "msg", num_categories=CATEGORIES, **(small if tiny else {})
        )
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model


def _tiny_stages(scales: int) -> tuple[Any, ...]:
    from fusedops.models.stages import Stage

    return (
        Stage(16, (0.3, 0.6)[:scales], (4, 8)[:scales], ((8, 16), (8, 16))[:scales]),
        Stage(8, (0.6, 0.9)[:scales], (4, 8)[:scales], ((16, 16), (16, 24))[:scales]),
    )


@functools.lru_cache(maxsize=1)  # the case that is measured
def loaded(net: Net, device: torch.device) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build(net.name, device.type == "cpu").to(device)


def make_inputs(
    case: Case, dtype: torch.dtype, pass_: str, device: torch.device
) -> tuple[Tensor, ...]:
    """xyz; normals and category of a segmenter; the target of a step; a tensor of the dtype."""
    net: Net = case["of"]
    b, n = TINY if device.type == "cpu" else (net.b, net.n)
    data = [surfaces(b, n, device)]
    if net.segments:
        data += [F.normalize(data[0], dim=-1), torch.randint(CATEGORIES, (b,), device=device)]
    if pass_ == "step":
        shape = (b, n) if net.segments else (b,)
        data.append(torch.randint(PARTS if net.segments else CLASSES, shape, device=device))
    return (*data, torch.empty(0, dtype=dtype, device=device))


def ours(case: Case, pass_: str) -> Call:
    return lambda *data: run(loaded(case["of"], data[0].device), pass_, data)


def peers(case: Case) -> tuple[str, ...]:
    return PEERS


def peer(name: str, case: Case, pass_: str) -> Call:
    if name not in PEERS:
        raise PeerUnavailableError(f"{case.name} has no peer {name!r}")
    search = TORCH if name == "torch" else OURS
    made: list[nn.Module] = []  # at the first call, which knows the device

    def call(*data: Tensor) -> Any:
        if not made:
            made.append(_plain(case["of"], data[0].device, search))
            if name == "compile":
                torch._dynamo.reset()
                made[0].compile(dynamic=False)
        return run(made[0], pass_, data)

    return call


def _plain(net: Net, device: torch.device, search: Search) -> nn.Module:
    from .plain import as_plain

    return as_plain(loaded(net, device), search)


def exact(case: Case, pass_: str, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """In float64, over the neighbours that float32 coordinates have."""
    model = _plain(case["of"], inputs[0].device, NarrowSearch()).double()
    wide = [t.double() if t.is_floating_point() else t for t in inputs]
    found = run(model, pass_, wide)
    return (found,) if isinstance(found, Tensor) else tuple(found)


class NarrowSearch:
    """Ours, of coordinates and features in float32."""

    def sample(self, xyz: Tensor, count: int) -> Tensor:
        return OURS.sample(xyz.float(), count)

    def ball(self, xyz: Tensor, centers: Tensor, radius: float, k: int) -> Tensor:
        return OURS.ball(xyz.float(), centers.float(), radius, k)

    def knn(self, x: Tensor, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
        narrow = x.float()
        idx, dist2 = OURS.knn(narrow, narrow if queries is x else queries.float(), k)
        return idx, dist2.to(x.dtype)


def run(model: nn.Module, pass_: str, data: Sequence[Tensor]) -> Tensor | tuple[Tensor, ...]:
    """The logits, or the loss and the gradients of all parameters."""
    *given, of_dtype = data
    model.train(pass_ == "step")
    half = of_dtype.dtype in (torch.bfloat16, torch.float16)
    precision: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    if half:
        precision = torch.autocast(of_dtype.device.type, dtype=of_dtype.dtype)
    if pass_ == "infer":
        with torch.no_grad(), precision:
            logits: Tensor = model(*given)
        return logits
    *inputs, target = given
    with precision:
        logits = model(*inputs)
    wide = logits if logits.dtype is torch.float64 else logits.float()
    loss = F.cross_entropy(wide.flatten(0, -2), target.flatten())
    return (loss.detach(), *torch.autograd.grad(loss, list(model.parameters())))


def work(case: Case, dtype: torch.dtype, pass_: str) -> None:
    return None
