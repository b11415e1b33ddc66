"""Layers of convolutional networks: their sizes, inputs and what a layer computes by torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from fusedops.bench.suites.base import Call, Case, Work
from fusedops.bench.suites.linear import ACTIVATIONS

if TYPE_CHECKING:
    from torch import Tensor

EPS, MOMENTUM = 1e-5, 0.1


@dataclass(frozen=True)
class Layer:
    """``act(norm(conv(x)) + residual)`` of square images; of a model that is served, whose norm was
    folded into weight and bias, without the norm.
    """

    batch: int
    channels: int
    side: int
    out: int
    kernel: int
    stride: int = 1
    groups: int = 1
    activation: str = "relu"
    residual: bool = False
    folded: bool = False

    @property
    def padding(self) -> int:
        return self.kernel // 2

    @property
    def out_side(self) -> int:
        return (self.side + 2 * self.padding - self.kernel) // self.stride + 1

    @property
    def name(self) -> str:
        size = f"N{self.batch}_C{self.channels}_H{self.side}_O{self.out}_k{self.kernel}"
        groups = f"_g{self.groups}" if self.groups > 1 else ""
        what = f"{'folded_' if self.folded else ''}{'add_' if self.residual else ''}"
        return f"{size}_s{self.stride}{groups}/{what}{self.activation}"

    @property
    def residual_at(self) -> int:
        """The residual's place among the inputs."""
        return 3 if self.folded else 6

    @property
    def case(self) -> Case:
        return Case(self.name, {"kind": "layer", "layer": self})

    @property
    def macs(self) -> float:
        """Multiplications."""
        pixels = self.batch * self.out_side**2
        return float(pixels * self.out * self.channels // self.groups * self.kernel**2)

    def work(self, dtype: torch.dtype, pass_: str) -> Work:
        """x, weight and residual in and y out; in a step dy in and three gradients out, too."""
        x = self.batch * self.channels * self.side**2
        y = self.batch * self.out * self.out_side**2
        weight = self.out * self.channels // self.groups * self.kernel**2
        once = x + weight + y * (2 if self.residual else 1)
        size = dtype.itemsize * once * (1 if pass_ == "infer" else 2)
        return Work(size, self.macs * (2 if pass_ == "infer" else 6))


def resnet(batch: int) -> list[Layer]:
    """ResNet-50's stem, and each kind of layer in its four stages."""
    found = [Layer(batch, 3, 224, 64, 7, 2), Layer(batch, 64, 56, 64, 1)]
    for width, side in ((64, 56), (128, 28), (256, 14), (512, 7)):
        found += [
            Layer(batch, 4 * width, side, width, 1),
            Layer(batch, width, side, width, 3),
            Layer(batch, width, side, 4 * width, 1, residual=True),
        ]
    return [*found, Layer(batch, 128, 56, 128, 3, 2), Layer(batch, 256, 56, 512, 1, 2, 1, "none")]


def efficientnet(batch: int) -> list[Layer]:
    """EfficientNet-B0's expansions, depthwise convolutions and projections."""

    def depthwise(channels: int, side: int, kernel: int, stride: int) -> Layer:
        return Layer(batch, channels, side, channels, kernel, stride, channels, "silu")

    return [
        Layer(batch, 16, 112, 96, 1, activation="silu"),
        depthwise(96, 112, 3, 2),
        Layer(batch, 96, 56, 24, 1, activation="none"),
        Layer(batch, 24, 56, 144, 1, activation="silu"),
        depthwise(144, 56, 5, 2),
        Layer(batch, 80, 14, 480, 1, activation="silu"),
        depthwise(480, 14, 5, 1),
        Layer(batch, 480, 14, 80, 1, activation="none", residual=True),
        depthwise(1152, 7, 3, 1),
        Layer(batch, 320, 7, 1280, 1, activation="silu"),
    ]


def unet(batch: int) -> list[Layer]:
    """A U-Net's double convolutions down and up, on images of 256 x 256."""
    sizes = ((64, 256, 64), (128, 128, 128), (256, 64, 256), (512, 32, 512), (128, 256, 64))
    return [Layer(batch, a, side, b, 3) for a, side, b in sizes]


LAYERS = (*resnet(64), *efficientnet(64), *unet(8))
FOLDED = tuple(replace(layer, folded=True) for layer in LAYERS if layer.kernel == 1)


def make_inputs(
    layer: Layer, dtype: torch.dtype, pass_: str, device: torch.device
) -> tuple[Tensor, ...]:
    """x, weight, running mean and variance, the norm's weight and bias, residual (or none).

    Where the norm is folded x, weight, bias and residual. Behind them dy in a step, in inference
    the norm's scale and shift for who takes them so.
    """

    def image(channels: int, side: int) -> Tensor:
        shape = (layer.batch, side, side, channels)
        return torch.randn(shape, dtype=dtype, device=device).permute(0, 3, 1, 2)

    fan = layer.channels // layer.groups * layer.kernel**2
    shape = (layer.out, layer.kernel, layer.kernel, layer.channels // layer.groups)
    weight = torch.randn(shape, dtype=dtype, device=device).mul_(fan**-0.5).permute(0, 3, 1, 2)
    vectors = torch.rand(4, layer.out, device=device) + 0.5
    mean, var, scale, shift = (vectors[i].contiguous() for i in range(4))
    tensors = [image(layer.channels, layer.side), weight, mean - 1, var, scale, shift - 1]
    rate = scale * (var + EPS).rsqrt()
    behind = shift - 1 - (mean - 1) * rate
    if layer.folded:
        tensors = [tensors[0], (weight * rate[:, None, None, None]).to(dtype), behind.to(dtype)]
    if layer.residual:
        tensors.append(image(layer.out, layer.out_side))
    if pass_ == "infer":
        return (*tensors, rate, behind)
    learnt = (t if i in (2, 3) else t.requires_grad_() for i, t in enumerate(tensors))
    return (*learnt, image(layer.out, layer.out_side))


def by_torch(layer: Layer, training: bool, in_place: bool = True) -> Call:
    """The kernels of torch that a model runs; it adds and activates in place."""
    activation = ACTIVATIONS[layer.activation]
    if in_place and layer.activation == "relu":
        activation = F.relu_
    elif in_place and layer.activation == "silu":

        def activation(z: Tensor) -> Tensor:
            return F.silu(z, inplace=True)

    def behind(y: Tensor, residual: Tensor | None) -> Tensor:
        if residual is not None:
            y = y.add_(residual) if in_place else y + residual
        return activation(y)

    def convolved(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.conv2d(x, weight, bias, layer.stride, layer.padding, 1, layer.groups)

    def folded(x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None = None) -> Tensor:
        return behind(convolved(x, weight, bias), residual)

    def forward(
        x: Tensor, weight: Tensor, mean: Tensor, var: Tensor, scale: Tensor, shift: Tensor,
        residual: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        z = convolved(x, weight, None)
        return behind(F.batch_norm(z, mean, var, scale, shift, training, MOMENTUM, EPS), residual)

    return folded if layer.folded else forward
