"""Which kernels a convolution with a norm behind it runs, by its sizes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from .._core.activation import CODES
from .._core.precision import fp32_precision
from . import conv_graph

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .conv_problem import ConvProblem

HALVES = (torch.float16, torch.bfloat16)
_RELU = CODES["relu"]

# Channels of x from which on a product of rows is no faster than cuDNN's, and its weight takes a
# part of the time to fold (measured on an H100, layers of ResNet-50).
_LONG = 512
# Outputs up to which cuDNN's kernel is faster than the product and the fold before it.
_FEW = 32

# What a call without a gradient runs; see `inference_path`.
GEMM, DEPTHWISE, FIRST, GRAPH, CUDNN, PASS = (
    "gemm", "depthwise", "first", "graph", "cudnn", "pass",
)  # fmt: skip
# What our kernels have: sides of the kernel, and strides.
_DEPTHWISE_KERNELS, _DEPTHWISE_STRIDES = (3, 5), (1, 2)
_FIRST_KERNELS, _FIRST_STRIDE, _FIRST_CHANNELS = (3, 7), 2, 3


# The largest results, and convolutions, of graphs with the norm inside: from the layers of suite
# conv on an H100, each measured both ways.
_INSIDE_ELEMENTS, _INSIDE_WITH_RESIDUAL, _INSIDE_FLOPS = 13_000_000, 2_000_000, 2e10


def is_pointwise(weight_shape: Sequence[int], problem: ConvProblem) -> bool:
    """Whether the convolution is a product of its rows with a matrix."""
    one = all(n == 1 for n in (*weight_shape[2:], *problem.stride))
    return one and problem.groups == 1 and not any(problem.padding)


def uses_product(
    device_type: str, dtype: torch.dtype, weight_shape: Sequence[int], problem: ConvProblem
) -> bool:
    """Whether the convolution in front of a pass is our product, backward too, and not torch's."""
    return device_type == "cuda" and dtype in HALVES and is_pointwise(weight_shape, problem)


def _is_plain(
    device_type: str, dtype: torch.dtype, weight_shape: Sequence[int], problem: ConvProblem
) -> bool:
    """Whether it is square, in two dimensions and half precision on a GPU."""
    if device_type != "cuda" or dtype not in HALVES or problem.spatial != 2:
        return False
    (kh, kw), (stride_h, stride_w) = weight_shape[2:], problem.stride
    return (
        kh == kw and stride_h == stride_w and problem.dilation == (1, 1) and not problem.is_uneven
    )


def uses_depthwise(
    device_type: str, dtype: torch.dtype, weight_shape: Sequence[int], problem: ConvProblem
) -> bool:
    """Whether the convolution is our depthwise kernel, backward too, and not torch's."""
    channels, each, kernel = weight_shape[:3]
    return (
        problem.groups == channels > 1 == each
        and channels % 2 == 0
        and kernel in _DEPTHWISE_KERNELS
        and problem.stride[0] in _DEPTHWISE_STRIDES
        and _is_plain(device_type, dtype, weight_shape, problem)
    )


def uses_first(
    device_type: str, dtype: torch.dtype, weight_shape: Sequence[int], problem: ConvProblem
) -> bool:
    """Whether the convolution is our kernel for first layers, forward alone, and not torch's."""
    outputs, channels, kernel = weight_shape[:3]
    return (
        problem.groups == 1
        and channels == _FIRST_CHANNELS
        and outputs % 8 == 0
        and kernel in _FIRST_KERNELS
        and problem.stride[0] == _FIRST_STRIDE
        and _is_plain(device_type, dtype, weight_shape, problem)
    )


def inference_path(
    device_type: str,
    dtype: torch.dtype,
    x_shape: Sequence[int],
    weight_shape: Sequence[int],
    problem: ConvProblem,
    code: int,
    with_residual: bool,
) -> tuple[str, str]:
    """(path, why) of a call without a gradient."""
    if device_type != "cuda":
        return PASS, "on a CPU it is oneDNN's convolution, then one pass"
    if dtype is torch.float64 or (
        dtype is torch.float32 and fp32_precision("conv", "cuda") != "tf32"
    ):
        return PASS, "at full precision it is cuDNN's convolution, then one pass"
    if max(math.prod(x_shape), math.prod(problem.out_shape)) >= 2**31:
        return PASS, "of 2^31 elements or more torch cuts the convolution; then one pass"
    if uses_depthwise(device_type, dtype, weight_shape, problem):
        return DEPTHWISE, "depthwise: our kernel, with all the rest behind its sums"
    if uses_first(device_type, dtype, weight_shape, problem) and not with_residual:
        return FIRST, "three channels: our kernel, with all the rest behind its sums"
    graph = conv_graph.is_for(dtype, code)
    if is_pointwise(weight_shape, problem) and not with_residual:
        outputs, inner = weight_shape[:2]
        if graph and code in (0, _RELU) and (inner >= _LONG or outputs <= _FEW):
            return (
                GRAPH,
                "1x1 of many channels, or to few: cuDNN's graph leaves its weight as it is",
            )
        return GEMM, "1x1 with stride 1: a product of rows, with all the rest in its epilogue"
    if graph:
        return GRAPH, "cuDNN's graph has bias, residual and activation in its epilogue"
    return without_graph(x_shape[1], problem, code, with_residual)


def without_graph(
    channels: int, problem: ConvProblem, code: int, with_residual: bool
) -> tuple[str, str]:
    """(path, why) where there is no graph; channels: of x."""
    with_cudnn = torch.backends.cudnn.is_available()
    # NOTE: it raises for what it has no kernel for; one group of whole vectors is what it is for.
    plain = problem.groups == 1 and not problem.is_uneven
    plain = plain and all(n % 8 == 0 for n in (channels, problem.out_shape[1]))
    if with_cudnn and code == _RELU and with_residual and plain:
        return CUDNN, "cuDNN's fused kernel has bias, residual and ReLU in its epilogue"
    why = "torch has no fused kernel for it; nvidia-cudnn-frontend (the extra conv) may have one"
    return PASS, f"cuDNN's convolution, then one pass: {why}"


def pays_inside(weight_shape: Sequence[int], problem: ConvProblem, with_residual: bool) -> bool:
    """Whether a graph with the norm in it beats one with the norm folded into the weight.

    The norm slows the convolution's kernel by a tenth, and far more where it writes much beside a
    residual; folding is a kernel of a few microseconds before it.
    """
    elements = math.prod(problem.out_shape)
    flops = 2 * elements * math.prod(weight_shape[1:])
    most = _INSIDE_WITH_RESIDUAL if with_residual else _INSIDE_ELEMENTS
    return elements <= most and flops <= _INSIDE_FLOPS
