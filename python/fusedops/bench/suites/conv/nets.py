"""Whole ResNet-50 of torchvision: a training step's loss and gradients, and inference."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

import fusedops
from fusedops.bench.suites.base import Call, Case, PeerUnavailableError

if TYPE_CHECKING:
    from torch import Tensor, nn

BATCHES = {"step": 256, "infer": 64}
CLASSES = 1000
GFLOPS = 8.18  # of one image of 224 x 224, forward


def case(batch: int) -> Case:
    """resnet50/B256."""
    return Case(f"resnet50/B{batch}", {"kind": "net", "batch": batch})


def build(dtype: torch.dtype, device: torch.device) -> nn.Module:
    """The model, channels last: its norms in float32, all else in the dtype.

    Raises:
        PeerUnavailableError: torchvision is not installed.
    """
    try:
        from torchvision.models import resnet50
    except ImportError as error:
        raise PeerUnavailableError(f"torchvision is not installed ({error})") from None
    torch.manual_seed(0)
    with torch.device(device):
        model: nn.Module = resnet50(num_classes=CLASSES)
    for module in model.modules():
        norm = isinstance(module, torch.nn.BatchNorm2d)
        for tensor in (*module.parameters(recurse=False),):
            tensor.data = tensor.data.to(torch.float32 if norm else dtype)
    return model.to(memory_format=torch.channels_last)


def make_inputs(
    batch: int, side: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, ...]:
    """Images (N, 3, side, side), channels last, and classes (N,)."""
    shape = (batch, side, side, 3)
    images = torch.randn(shape, dtype=dtype, device=device).permute(0, 3, 1, 2)
    return images, torch.randint(CLASSES, (batch,), device=device)


def net_call(model: Any, name: str, pass_: str) -> Call:
    """One step or inference: name is "ours", "eager" or "compile"."""
    model = copy.deepcopy(model).train(pass_ == "step")
    if name == "ours":
        fusedops.fuse(model)
    run = torch.compile(model, dynamic=False) if name == "compile" else model
    parameters = list(model.parameters())

    def infer(images: Tensor, _: Tensor) -> Tensor:
        with torch.no_grad():
            y: Tensor = run(images)
        return y

    def step(images: Tensor, classes: Tensor) -> tuple[Tensor, ...]:
        loss = F.cross_entropy(run(images).float(), classes)
        grads = torch.autograd.grad(loss, parameters)
        # NOTE: all are formed; those before the last layer differ by their roundings in half.
        return loss.detach(), grads[-2]

    return step if pass_ == "step" else infer
