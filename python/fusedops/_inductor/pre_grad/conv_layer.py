"""What stands in a graph for a convolution with a norm behind it: `conv_bn_act`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ...ops.batch_norm import options_of
from ...ops.conv import Norm, conv_bn_act_and_input
from ...ops.conv_problem import (
    DEPTHWISE,
    FIRST,
    GEMM,
    IMAGE,
    POINTWISE,
    conv_problem,
    inference_path,
)

if TYPE_CHECKING:
    from torch import Tensor

    from ..._autograd.batch_norm import BatchNormOptions


class ConvLayer(NamedTuple):
    """The arguments of `conv_layer`: of the graph's nodes, or of their values."""

    x: Any
    weight: Any
    bias: Any
    norm: tuple[Any, ...]  # running mean and variance, weight and bias
    residual: Any
    window: tuple[Any, ...]  # stride, padding, dilation, groups
    activation: str
    training: bool
    momentum: float
    eps: float
    hands_on: bool  # whether something else reads x as it is handed on

    @property
    def options(self) -> BatchNormOptions:
        """Those of the norm."""
        words = (self.activation, self.training, self.momentum, self.eps)
        return options_of("conv_bn_act", *words, None)

    def is_one_kernel(self) -> bool:
        """Whether a kernel of our own is all of it in evaluation, which torch.compile can trace."""
        x, weight = self.x, self.weight
        problem = conv_problem("conv_bn_act", x, weight, *self.window)
        path, _ = inference_path(
            x.device.type, x.dtype, x.shape, weight.shape, problem, self.options.code,
            self.residual is not None,
        )  # fmt: skip
        return path in (POINTWISE, GEMM, DEPTHWISE, FIRST, IMAGE)

    def run(self) -> tuple[Tensor, Tensor]:
        """act(batch_norm(conv(x)) + residual), and x for what else reads it."""
        return conv_bn_act_and_input(
            self.x, self.weight, self.bias, Norm(*self.norm), self.residual, self.window,
            self.options, self.hands_on,
        )  # fmt: skip


def conv_layer(*arguments: Any) -> tuple[Tensor, Tensor]:
    """`ConvLayer.run` of its fields."""
    return ConvLayer(*arguments).run()
