"""Blocks of convolutions as model libraries and users write them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class Basic(nn.Module):
    """As torchvision's, a residual block whose shortcut may be a convolution."""

    def __init__(self, inside=8, outside=8, stride=1, norm=nn.BatchNorm2d):
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = norm(outside)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = norm(outside)
        self.downsample = None
        if stride > 1 or inside != outside:
            shortcut = nn.Conv2d(inside, outside, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, norm(outside))

    def forward(self, x):
        identity = x
        out = self.conv1(x)
        out = self.bn1(out)
        out = self.relu(out)
        out = self.conv2(out)
        out = self.bn2(out)
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class Bottleneck(nn.Module):
    """As torchvision's: two convolutions or one and a sum read the input."""

    def __init__(self, inside=16, width=8, stride=1):
        super().__init__()
        outside = 2 * width
        self.conv1 = nn.Conv2d(inside, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outside, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outside)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride > 1 or inside != outside:
            shortcut = nn.Conv2d(inside, outside, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(outside))

    def forward(self, x):
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class Nested(nn.Module):
    """In expressions, as the ResNets for CIFAR that many copy."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(8)
        self.shortcut = nn.Sequential()

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.shortcut(x)
        return F.relu(out)


class StochasticDepth(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.p = p

    def forward(self, x):
        if not self.training or self.p == 0.0:
            return x
        return x * (torch.rand(x.shape[0], 1, 1, 1, device=x.device) > self.p)


class Inverted(nn.Module):
    """As torchvision's MBConv: Sequentials, and a sum with what the last of them gives."""

    def __init__(self, p=0.0, use_res_connect=True):
        super().__init__()
        self.use_res_connect = use_res_connect
        self.block = nn.Sequential(
            nn.Sequential(nn.Conv2d(8, 16, 1, bias=False), nn.BatchNorm2d(16), nn.SiLU()),
            nn.Sequential(
                nn.Conv2d(16, 16, 3, padding=1, groups=16, bias=False),
                nn.BatchNorm2d(16), nn.Hardswish(),
            ),
            nn.Sequential(nn.Conv2d(16, 8, 1, bias=False), nn.BatchNorm2d(8)),
        )  # fmt: skip
        self.stochastic_depth = StochasticDepth(p)

    def forward(self, input):
        result = self.block(input)
        if self.use_res_connect:
            result = self.stochastic_depth(result)
            result += input
        return result


class UNet(nn.Module):
    """Two levels, with the double convolutions that its implementations have."""

    def __init__(self, channels=8):
        super().__init__()
        self.inside = self.double(3, channels)
        self.down = nn.Sequential(nn.MaxPool2d(2), self.double(channels, 2 * channels))
        self.up = nn.ConvTranspose2d(2 * channels, channels, 2, 2)
        self.outside = self.double(2 * channels, channels)
        self.last = nn.Conv2d(channels, 2, 1)

    @staticmethod
    def double(a, b):
        layers = []
        for inside in (a, b):
            conv = nn.Conv2d(inside, b, 3, padding=1, bias=False)
            layers += [conv, nn.BatchNorm2d(b), nn.ReLU(inplace=True)]
        return nn.Sequential(*layers)

    def forward(self, x):
        first = self.inside(x)
        second = self.down(first)
        return self.last(self.outside(torch.cat([first, self.up(second)], dim=1)))


class BatchNormAct(nn.BatchNorm2d):
    """As timm's: the activation inside."""

    def __init__(self, channels, act=nn.ReLU):
        super().__init__(channels)
        self.drop = nn.Identity()
        self.act = act()

    def forward(self, x):
        return self.act(self.drop(super().forward(x)))


class ScaledBatchNorm(nn.BatchNorm2d):
    """Computes something else."""

    def forward(self, x):
        return super().forward(x) * 1.5


class FrozenBatchNorm(nn.Module):
    """As torchvision's and detectron2's."""

    def __init__(self, channels, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.register_buffer("weight", torch.rand(channels) + 0.5)
        self.register_buffer("bias", torch.randn(channels))
        self.register_buffer("running_mean", torch.randn(channels))
        self.register_buffer("running_var", torch.rand(channels) + 0.5)

    def forward(self, x):
        scale = self.weight * (self.running_var + self.eps).rsqrt()
        bias = self.bias - self.running_mean * scale
        return x * scale.reshape(1, -1, 1, 1) + bias.reshape(1, -1, 1, 1)


class SharedValue(nn.Module):
    """Reads the convolution's result twice."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 1)
        self.bn = nn.BatchNorm2d(8)

    def forward(self, x):
        y = self.conv(x)
        return self.bn(y) + y


class ReturnsBoth(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 1)
        self.bn = nn.BatchNorm2d(8)

    def forward(self, x):
        y = self.conv(x)
        z = self.bn(y)
        return y, z


class ChangesInput(nn.Module):
    """Its shortcut writes into what the convolution has read."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 1)
        self.bn = nn.BatchNorm2d(8)
        self.shortcut = nn.ReLU(inplace=True)

    def forward(self, x):
        x = x * 1
        y = self.bn(self.conv(x))
        y += self.shortcut(x)
        return y


class Loop(nn.Module):
    """Several steps, names that are used again, and a value that a later statement reads."""

    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(8, 8, 1) for _ in range(2))
        self.conv, self.bn = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.act = nn.LeakyReLU()

    def forward(self, x, scale=None):
        first = x
        for conv in self.convs:
            x = conv(x)
            y = self.conv(x)
            y = self.bn(y)
            y = self.act(y)
            x = y + first if scale is None else y * scale
        return x, first
