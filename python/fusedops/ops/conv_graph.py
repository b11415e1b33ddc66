"""cuDNN's graphs: convolution, bias, norm, residual and activation as one kernel.

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


class Behind(NamedTuple):
    """Vectors (O,) that a graph has behind the convolution, in this order; None: left out.

    z = (conv + bias - mean) * scale / sqrt(var + eps) + shift. Each has x's dtype or float32.
    """

    bias: Tensor | None = None
    mean: Tensor | None = None
    var: Tensor | None = None
    scale: Tensor | None = None
    shift: Tensor | None = None
    eps: float = 0.0

    @property
    def vectors(self) -> tuple[Tensor | None, ...]:
        """All but eps."""
        return (self.bias, self.mean, self.var, self.scale, self.shift)


class _Plan(NamedTuple):
    graph: Any
    x: Any
    weight: Any
    vectors: tuple[Any, ...]  # as in Behind
    eps: Any  # (of the graph, on the host), or None
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
    x: Tensor,
    weight: Tensor,
    behind: Behind,
    residual: Tensor | None,
    y: Tensor,
    problem: ConvProblem,
    code: int,
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

    def vector(name: str, tensor: Tensor | None) -> Any:
        if tensor is None:
            return None
        return graph.tensor(
            name=name,
            dim=[1, channels, *ones],
            stride=[channels, 1, *(channels for _ in ones)],
            data_type=wide if tensor.dtype is torch.float32 else half,
        )

    image, filters = operand("x", x), operand("weight", weight)
    vectors = tuple(
        vector(name, tensor) for name, tensor in zip(Behind._fields, behind.vectors, strict=False)
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
    eps = None if behind.var is None else _number(graph, x.dim(), behind.eps)
    z = _normalised(graph, z, vectors, None if eps is None else eps[0])
    z = z if added is None else graph.add(a=z, b=added)
    out = _activated(graph, z, code)
    out.set_output(True).set_data_type(half).set_dim(list(y.shape)).set_stride(list(y.stride()))
    _finish(graph)
    workspace = int(graph.get_workspace_size())
    return _Plan(graph, image, filters, vectors, eps, added, out, workspace)


def _number(graph: Any, dims: int, value: float) -> tuple[Any, Tensor]:
    """A number of a graph, and what is given for it."""
    one, wide = [1] * dims, _cudnn().data_type.FLOAT
    node = graph.tensor(name="eps", dim=one, stride=one, data_type=wide, is_pass_by_value=True)
    return node, torch.full(one, value, dtype=torch.float32, device="cpu")


def _finish(graph: Any) -> None:
    """Choose an engine and compile it; raise where there is none."""
    cudnn = _cudnn()
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    graph.deselect_numeric_notes([cudnn.numerical_note.NONDETERMINISTIC])
    graph.deselect_workspace_greater_than(_WORKSPACE)
    graph.check_support()
    graph.build_plans()


def _normalised(graph: Any, z: Any, vectors: tuple[Any, ...], eps: Any) -> Any:
    """The nodes of `Behind`."""
    bias, mean, var, scale, shift = vectors
    z = z if bias is None else graph.add(a=z, b=bias)
    z = z if mean is None else graph.sub(a=z, b=mean)
    z = z if var is None else graph.mul(a=z, b=graph.rsqrt(input=graph.add(a=var, b=eps)))
    z = z if scale is None else graph.mul(a=z, b=scale)
    return z if shift is None else graph.add(a=z, b=shift)


def _plan(
    x: Tensor,
    weight: Tensor,
    behind: Behind,
    residual: Tensor | None,
    y: Tensor,
    problem: ConvProblem,
    code: int,
) -> _Plan | None:
    with_residual = None if residual is None else residual.stride()
    vectors = tuple(None if t is None else t.dtype for t in behind.vectors)
    key = (
        x.device, x.dtype, x.shape, x.stride(), weight.shape, weight.stride(), with_residual,
        problem, code, vectors, behind.eps, threading.get_ident(),
    )  # fmt: skip
    if key not in _plans:
        try:
            _plans[key] = _build(x, weight, behind, residual, y, problem, code)
        except Exception as error:  # cuDNN names no one class for what it does not support
            _plans[key] = None
            # NOTE: a norm inside is a wish that cuDNN may refuse in more than one way.
            if behind.var is None and type(error).__name__ != "cudnnGraphNotSupportedError":
                text = f"conv_bn_act: cuDNN's graph could not be built ({error}); others run"
                warnings.warn(text, stacklevel=2)
    return _plans[key]


def is_for(dtype: torch.dtype, code: int) -> bool:
    """Whether graphs may take a call; each has yet to be built."""
    return dtype in _HALVES and code in SUPPORTED and is_installed()


def convolve_by_graph(
    x: Tensor,
    weight: Tensor,
    behind: Behind,
    residual: Tensor | None,
    problem: ConvProblem,
    code: int,
) -> Tensor | None:
    """act(z + residual) with z of `Behind`, of `channels_last` tensors in half precision.

    Returns None where cuDNN has no engine for it, or an operand is not aligned to 16 bytes.
    """
    like = torch.channels_last if x.dim() == 4 else torch.channels_last_3d
    if residual is not None:
        residual = residual.contiguous(memory_format=like)
    vectors = [None if t is None else t.detach().contiguous() for t in behind.vectors]
    operands = [t for t in (x, weight, residual, *vectors) if t is not None]
    if any(t.data_ptr() % _ALIGNED for t in operands):
        return None
    with torch.cuda.device(x.device):
        y = torch.empty(problem.out_shape, dtype=x.dtype, device=x.device, memory_format=like)
        plan = _plan(x, weight, behind, residual, y, problem, code)
        if plan is None:
            return None
        given = {plan.x: x.detach(), plan.weight: weight.detach(), plan.y: y}
        pairs = zip(plan.vectors, vectors, strict=True)
        given |= {node: vector for node, vector in pairs if vector is not None}
        if plan.eps is not None:
            given[plan.eps[0]] = plan.eps[1]
        if residual is not None:
            given[plan.residual] = residual.detach()
        workspace = torch.empty(max(plan.workspace, 1), dtype=torch.uint8, device=x.device)
        plan.graph.execute(given, workspace, handle=_handle(x.device))
    return y
