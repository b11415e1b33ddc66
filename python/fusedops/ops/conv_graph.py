"""cuDNN's graphs: convolution, bias, residual and activation as one kernel.

They come with the optional package nvidia-cudnn-frontend (the extra "conv"). A plan is built once
for each shape, dtype and geometry, which takes cuDNN a fraction of a second; what it has no engine
for is remembered, too. Source: NVIDIA's cuDNN frontend, the graph API of cuDNN 9.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import threading
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from .._core.activation import ACTIVATIONS, LEAKY_RELU_SLOPE

if TYPE_CHECKING:
    from .conv_problem import ConvProblem

_HALVES = (torch.float16, torch.bfloat16)
_ALIGNED = 16  # bytes, what cuDNN's engines assume
_WORKSPACE = 256 << 20  # bytes, the most that a plan may take
SUPPORTED = frozenset(
    code
    for code, name in enumerate(ACTIVATIONS)
    if name in ("none", "relu", "relu6", "leaky_relu", "silu", "sigmoid", "tanh")
)


class _Plan(NamedTuple):
    graph: Any
    x: Any
    weight: Any
    bias: Any
    residual: Any
    y: Any
    workspace: int


_plans: dict[Any, _Plan | None] = {}
_handles = threading.local()


@functools.cache
def is_installed() -> bool:
    """Whether the package is there; it is not imported."""
    return importlib.util.find_spec("cudnn") is not None


@functools.cache
def _cudnn() -> Any:
    return importlib.import_module("cudnn")


def _handle(device: torch.device) -> Any:
    """This thread's handle on a device, on the current stream."""
    cudnn = _cudnn()
    handles: dict[Any, Any] = _handles.__dict__
    key = str(device.index)
    if key not in handles:
        handles[key] = cudnn.create_handle()
    stream = torch.cuda.current_stream(device).cuda_stream
    cudnn.set_stream(handle=handles[key], stream=stream)
    return handles[key]


def _activated(graph: Any, z: Any, code: int) -> Any:
    match ACTIVATIONS[code]:
        case "none":
            return z
        case "relu":
            return graph.relu(input=z)
        case "relu6":
            return graph.relu(input=z, lower_clip=0.0, upper_clip=6.0)
        case "leaky_relu":
            return graph.relu(input=z, negative_slope=LEAKY_RELU_SLOPE)
        case "silu":
            return graph.swish(input=z)
        case "sigmoid":
            return graph.sigmoid(input=z)
        case "tanh":
            return graph.tanh(input=z)
        case _:
            raise AssertionError(code)


def _build(
    x: Tensor, weight: Tensor, residual: Tensor | None, y: Tensor, problem: ConvProblem, code: int
) -> _Plan:
    cudnn = _cudnn()
    kind, wide = cudnn.data_type, cudnn.data_type.FLOAT
    half = kind.HALF if x.dtype is torch.float16 else kind.BFLOAT16
    graph = cudnn.pygraph(
        io_data_type=half,
        intermediate_data_type=wide,
        compute_data_type=wide,
        handle=_handle(x.device),
    )

    def operand(name: str, tensor: Tensor) -> Any:
        sizes, strides = list(tensor.shape), list(tensor.stride())
        return graph.tensor(name=name, dim=sizes, stride=strides, data_type=half)

    channels, ones = weight.shape[0], [1] * problem.spatial
    image, filters = operand("x", x), operand("weight", weight)
    bias = graph.tensor(
        name="bias",
        dim=[1, channels, *ones],
        stride=[channels, 1, *(channels for _ in ones)],
        data_type=half,
    )
    added = None if residual is None else operand("residual", residual)
    z = graph.conv_fprop(
        image=image,
        weight=filters,
        pre_padding=list(problem.padding),
        post_padding=[p + e for p, e in zip(problem.padding, problem.extra, strict=True)],
        stride=list(problem.stride),
        dilation=list(problem.dilation),
    )
    z = graph.add(a=z, b=bias)
    z = z if added is None else graph.add(a=z, b=added)
    out = _activated(graph, z, code)
    out.set_output(True).set_data_type(half).set_dim(list(y.shape)).set_stride(list(y.stride()))
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    graph.deselect_numeric_notes([cudnn.numerical_note.NONDETERMINISTIC])
    graph.deselect_workspace_greater_than(_WORKSPACE)
    graph.check_support()
    graph.build_plans()
    return _Plan(graph, image, filters, bias, added, out, int(graph.get_workspace_size()))


def _plan(
    x: Tensor, weight: Tensor, residual: Tensor | None, y: Tensor, problem: ConvProblem, code: int
) -> _Plan | None:
    with_residual = None if residual is None else residual.stride()
    key = (
        x.device, x.dtype, x.shape, x.stride(), weight.shape, weight.stride(), with_residual,
        problem, code, threading.get_ident(),
    )  # fmt: skip
    if key not in _plans:
        try:
            _plans[key] = _build(x, weight, residual, y, problem, code)
        except Exception as error:  # cuDNN names no one class for what it does not support
            _plans[key] = None
            if type(error).__name__ != "cudnnGraphNotSupportedError":
                text = f"conv_bn_act: cuDNN's graph could not be built ({error}); others run"
                warnings.warn(text, stacklevel=2)
    return _plans[key]


def is_for(dtype: torch.dtype, code: int) -> bool:
    """Whether graphs may take a call; each has yet to be built."""
    return dtype in _HALVES and code in SUPPORTED and is_installed()


def convolve_by_graph(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    residual: Tensor | None,
    problem: ConvProblem,
    code: int,
) -> Tensor | None:
    """act(conv(x, weight) + bias + residual) of `channels_last` tensors in half precision.

    Returns None where cuDNN has no engine for it, or an operand is not aligned to 16 bytes.
    """
    like = torch.channels_last if x.dim() == 4 else torch.channels_last_3d
    if residual is not None:
        residual = residual.contiguous(memory_format=like)
    operands = [x, weight, bias, *(() if residual is None else (residual,))]
    if any(t.data_ptr() % _ALIGNED for t in operands):
        return None
    with torch.cuda.device(x.device):
        y = torch.empty(problem.out_shape, dtype=x.dtype, device=x.device, memory_format=like)
        plan = _plan(x, weight, residual, y, problem, code)
        if plan is None:
            return None
        given = {plan.x: x.detach(), plan.weight: weight, plan.bias: bias, plan.y: y}
        if residual is not None:
            given[plan.residual] = residual.detach()
        workspace = torch.empty(max(plan.workspace, 1), dtype=torch.uint8, device=x.device)
        plan.graph.execute(given, workspace, handle=_handle(x.device))
    return y
