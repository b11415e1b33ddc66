"""What a convolution with norm and activation is: its sizes, the errors of its arguments, and which
kernels it runs.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from .._autograd.conv import IMAGE_CHANNELS, LARGE_DEPTHWISE
from .._core.activation import CODES, activation_code
from .._core.calls import as_int, shown
from .._core.checks import dtype_name
from .._core.precision import fp32_precision
from . import conv_graph

if TYPE_CHECKING:
    from collections.abc import Sequence

_FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
Sizes: TypeAlias = tuple[int, ...]
CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


class ConvProblem(NamedTuple):
    """The geometry of a convolution, one number for each spatial dimension."""

    stride: Sizes
    padding: Sizes
    dilation: Sizes
    groups: int
    extra: Sizes  # what padding="same" pads behind the end where it is uneven
    out_shape: Sizes

    @property
    def spatial(self) -> int:
        """How many spatial dimensions there are."""
        return len(self.stride)

    @property
    def is_uneven(self) -> bool:
        """Whether one end is padded more than the other."""
        return any(self.extra)


def shape_text(tensor: Tensor) -> str:
    """'(2, 3)'."""
    return str(tuple(tensor.shape))


def code_of(op: str, activation: str | None) -> int:
    """The activation's code; "identity" is none."""
    return 0 if activation == "identity" else activation_code(activation, op)


def check_floating(op: str, x: Tensor) -> None:
    """Raise where x is not of a dtype that is computed with."""
    if x.dtype not in _FLOATING:
        dtype = dtype_name(x.dtype)
        raise RuntimeError(f"{op}: x must be float16, bfloat16, float32 or float64; got {dtype}")


def _integers(op: str, name: str, value: Any) -> Any:
    """An int or a tuple of them; padding's words are left.

    NOTE: what is kept by arguments is found by equal ones, and True and 1.0 equal 1.
    """
    if type(value) is int or (name == "padding" and isinstance(value, str)):
        return value
    if isinstance(value, (tuple, list)):
        if all(type(n) is int for n in value):
            return tuple(value)
        return tuple(_integer(op, name, n, value) for n in value)
    return _integer(op, name, value, value)


def _integer(op: str, name: str, number: Any, value: Any) -> Any:
    if isinstance(number, torch.SymInt):
        return number
    try:
        return as_int(op, name, number)
    except TypeError:
        expected = "an int, a str" if name == "padding" else "an int"
        raise TypeError(
            f"{op}: {name} must be {expected} or a sequence of ints; got {shown(value)}"
        ) from None


def _numbers(op: str, name: str, value: Any, spatial: int, least: int) -> Sizes:
    numbers = value if isinstance(value, tuple) else (value,) * spatial
    if len(numbers) == 1:
        numbers *= spatial
    if len(numbers) != spatial or any(n < least for n in numbers):
        raise RuntimeError(
            f"{op}: {name} must be one number or {spatial}, each at least {least}; got {value}"
        )
    return numbers


def _padding(
    op: str, padding: Any, kernel: Sizes, stride: Sizes, dilation: Sizes
) -> tuple[Sizes, Sizes]:
    """(padding, what is padded behind the end beside it)."""
    spatial, none = len(kernel), (0,) * len(kernel)
    if padding == "valid":
        return none, none
    if padding == "same":
        if any(s != 1 for s in stride):
            raise RuntimeError(f"{op}: stride must be 1 where padding is 'same'; got {stride}")
        total = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        return tuple(t // 2 for t in total), tuple(t % 2 for t in total)
    if isinstance(padding, str):
        raise ValueError(f"{op}: padding must be 'valid', 'same' or numbers; got {padding!r}")
    return _numbers(op, "padding", padding, spatial, 0), none


def conv_problem(
    op: str,
    x: Tensor,
    weight: Tensor,
    stride: int | Sequence[int],
    padding: int | Sequence[int] | str,
    dilation: int | Sequence[int],
    groups: int,
) -> ConvProblem:
    """Check x (N, C, ...), weight (O, C / groups, ...) and the numbers; raise what is wrong."""
    check_floating(op, x)
    given = {"stride": stride, "padding": padding, "dilation": dilation}
    numbers = [_integers(op, name, value) for name, value in given.items()]
    groups = groups if type(groups) is int else as_int(op, "groups", groups)
    arguments: tuple[Any, ...] = (op, tuple(x.shape), tuple(weight.shape), *numbers, groups)
    # NOTE: what torch.compile traces may have sizes that are no numbers.
    traced = torch.compiler.is_compiling() or any(type(n) is not int for n in x.shape)
    problem: ConvProblem = (_geometry if traced else _known_geometry)(*arguments)
    return problem


def _geometry(
    op: str, x: Sizes, weight: Sizes, stride: Any, padding: Any, dilation: Any, groups: int
) -> ConvProblem:
    """`conv_problem` of shapes."""
    if len(weight) not in (3, 4, 5):
        raise RuntimeError(
            f"{op}: weight must be (O, C / groups, ...) with one to three spatial dimensions; got "
            f"shape {weight}"
        )
    if len(x) != len(weight):
        raise RuntimeError(
            f"{op}: x must be {len(weight)}-dimensional, (N, C, ...), to match weight {weight}; "
            f"got shape {x}"
        )
    if groups < 1 or weight[0] % groups:
        raise RuntimeError(
            f"{op}: groups must divide the {weight[0]} channels of weight {weight}; got {groups}"
        )
    if x[1] != weight[1] * groups:
        raise RuntimeError(
            f"{op}: x must have {weight[1] * groups} channels to match weight {weight} in {groups} "
            f"group(s); got shape {x}"
        )
    if x[1] == 0:  # torch's result has no channels then, whatever the weight has
        raise RuntimeError(f"{op}: x must have at least 1 channel; got shape {x}")
    kernel = weight[2:]
    stride = _numbers(op, "stride", stride, len(kernel), 1)
    dilation = _numbers(op, "dilation", dilation, len(kernel), 1)
    padding, extra = _padding(op, padding, kernel, stride, dilation)
    sizes = zip(x[2:], kernel, stride, padding, dilation, extra, strict=True)
    out = tuple((n + 2 * p + e - d * (k - 1) - 1) // s + 1 for n, k, s, p, d, e in sizes)
    if any(n < 1 for n in out):
        raise RuntimeError(
            f"{op}: x must be as large as the kernel {kernel} with its dilation after padding; got "
            f"shape {x}"
        )
    return ConvProblem(stride, padding, dilation, groups, extra, (x[0], weight[0], *out))


_known_geometry = functools.lru_cache(maxsize=4096)(_geometry)


def check_alike(op: str, x: Tensor, **others: Tensor | None) -> None:
    """Raise where a tensor has another device or dtype than x."""
    for name, tensor in others.items():
        if tensor is None:
            continue
        if tensor.device != x.device:
            raise RuntimeError(f"{op}: {name} must be on {x.device} like x; got {tensor.device}")
        if tensor.dtype is not x.dtype:
            want, got = (dtype_name(t.dtype) for t in (x, tensor))
            raise RuntimeError(f"{op}: {name} must have dtype {want} like x; got {got}")


def check_vectors(op: str, x: Tensor, channels: int, **vectors: Tensor | None) -> None:
    """Raise where a vector is not (channels,), or neither of x's dtype nor float32."""
    device, dtype = x.device, x.dtype
    for name, vector in vectors.items():
        if vector is None:
            continue
        if vector.device != device:
            raise RuntimeError(f"{op}: {name} must be on {device} like x; got {vector.device}")
        half = dtype.itemsize == 2
        if vector.dtype is not dtype and not (half and vector.dtype is torch.float32):
            want, got = (dtype_name(t) for t in (dtype, vector.dtype))
            also = " or float32" if half else ""
            raise RuntimeError(f"{op}: {name} must have dtype {want} like x{also}; got {got}")
        if vector.dim() != 1 or vector.shape[0] != channels:
            raise RuntimeError(
                f"{op}: {name} must have shape ({channels},); got {shape_text(vector)}"
            )


def check_residual(op: str, residual: Tensor | None, shape: Sizes) -> None:
    """Raise where the residual has another shape than the result."""
    if residual is not None and tuple(residual.shape) != tuple(shape):
        raise RuntimeError(
            f"{op}: residual must have the result's shape {tuple(shape)}; got "
            f"{shape_text(residual)}"
        )


def check_statistics(
    op: str, running_mean: Tensor | None, running_var: Tensor | None, training: bool
) -> None:
    """Raise where a norm has one running statistic, or none to take."""
    if (running_mean is None) != (running_var is None):
        name = "running_var" if running_var is None else "running_mean"
        raise RuntimeError(
            f"{op}: running_mean and running_var must both be given or neither; {name} is None"
        )
    for name, running in (("running_mean", running_mean), ("running_var", running_var)):
        if running is not None and running.requires_grad and torch.is_grad_enabled():
            raise RuntimeError(
                f"{op}: {name} must not require grad, since it has no gradient; got a tensor that "
                "requires grad"
            )
    if running_mean is None and not training:
        raise RuntimeError(
            f"{op}: running_mean and running_var must be given where training is False and a "
            "norm has a weight or bias; got None"
        )


def check_values(op: str, shape: Sizes) -> None:
    """Raise, as torch does, where the statistics would be those of a single value."""
    if math.prod((shape[0], *shape[2:])) == 1:
        raise ValueError(
            f"{op}: x must give more than 1 value per channel when training; got input size "
            f"{tuple(shape)}"
        )


# ---- which kernels ----

HALVES = (torch.float16, torch.bfloat16)
_RELU = CODES["relu"]

# Outputs up to which a fold and cuDNN's kernel are faster than a fold and the product (H200: 27 us
# against 31, for 96 to 24 channels on 56x56).
_FEW = 32
# Channels below which products are of few features, which have kernels of their own.
_THIN = 40
# Elements of a weight that takes longer to fold than the scale in a graph costs.
LONG_FOLD = 1 << 20

# What a call without a gradient runs; see `inference_path`.
GEMM, POINTWISE, DEPTHWISE, FIRST, IMAGE, GRAPH, CUDNN, PASS = (
    "gemm", "pointwise", "depthwise", "first", "image", "graph", "cudnn", "pass",
)  # fmt: skip
# What our kernels have: sides of the kernel, and strides.
_DEPTHWISE_KERNELS = ((3, 1), (3, 2), (5, 1), (5, 2))  # and strides
_FIRST_KERNELS, _FIRST_STRIDE, _FIRST_CHANNELS = (3, 7), 2, 3

# 3x3 convolutions of IMAGE_CHANNELS, whose weight of 64 outputs lies in shared memory (H100: 33 us
# for 64 to 64 on 56x56 of 64 images, and for the gradient of the image; cuDNN 60 and 55).
_LEAST_WINDOWS = 264  # two for each of an H100's multiprocessors
_IMAGE_OUTPUTS = 128  # more, and the image is read too often

# The largest results, and convolutions, of graphs with the norm inside: from the layers of suite
# conv on an H100, each measured both ways.
_INSIDE_ELEMENTS, _INSIDE_WITH_RESIDUAL, _INSIDE_FLOPS = 13_000_000, 2_000_000, 2e10


def is_pointwise(weight_shape: Sequence[int], problem: ConvProblem) -> bool:
    """Whether the convolution is a product of its rows with a matrix."""
    one = all(n == 1 for n in (*weight_shape[2:], *problem.stride))
    return one and problem.groups == 1 and not any(problem.padding)


@functools.cache
def _is_hopper() -> bool:
    """Whether calls are for a GPU of compute capability 9.0, as they are where no GPU is there."""
    return not torch.cuda.is_available() or torch.cuda.get_device_capability() == (9, 0)


def uses_pointwise(
    device_type: str,
    dtype: torch.dtype,
    weight_shape: Sequence[int],
    problem: ConvProblem,
    code: int,
    with_residual: bool,
) -> bool:
    """Whether our kernels for 1x1 ones have all of it, in evaluation, behind their sums."""
    outputs, channels = weight_shape[:2]
    # NOTE: what waits for its activation is faster as a product of few features and a folded norm
    # (H200: 75 us against 100 for 16 to 96 channels on 112x112 with SiLU).
    if channels < _THIN and not with_residual and code not in (0, _RELU):
        return False
    return (
        device_type == "cuda"
        and dtype in HALVES
        and is_pointwise(weight_shape, problem)
        and channels % 8 == outputs % 8 == 0
        and _is_hopper()
    )


def has_few_outputs(weight_shape: Sequence[int]) -> bool:
    """Whether cuDNN's kernel is faster for a pointwise convolution than our product."""
    return weight_shape[0] <= _FEW


def uses_product(
    device_type: str, dtype: torch.dtype, weight_shape: Sequence[int], problem: ConvProblem
) -> bool:
    """Whether the convolution in front of a pass is our product, backward too, and not torch's."""
    return device_type == "cuda" and dtype in HALVES and is_pointwise(weight_shape, problem)


def forms_moments(out_shape: Sequence[int], weight_shape: Sequence[int]) -> bool:
    """Whether our product, with weight (O, C), has its columns' statistics beside it: on Hopper.

    NOTE: for few channels there are other kernels, and short passes take as long as what joins the
    statistics (H200: 13.8 us for 12544 pixels of 80 channels, 15.7 with them beside the product).
    """
    outputs, channels = weight_shape
    few = min(outputs, channels) < 64 or math.prod(out_shape) < 1 << 21
    wanted = not few and not fits_chip(out_shape)
    return wanted and outputs % 8 == channels % 8 == 0 and _is_hopper()


def fits_chip(out_shape: Sequence[int], beside: bool = False) -> bool:
    """Whether batch norm in training of (N, O, ...), in half precision, is one kernel each way: on
    Hopper. About, as which clusters a device holds decides; beside: backward, where a third tensor
    tells what the activation did.
    """
    channels, pixels = out_shape[1], math.prod(out_shape) // max(out_shape[1], 1)
    most = 5 << 19 if beside else 13 << 19 if pixels <= 1 << 12 else 6 << 20
    fits = channels % 8 == 0 and pixels <= 1 << 14 and pixels * channels <= most
    return fits and _is_hopper()


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


def is_large_depthwise(weight_shape: Sequence[int], stride: Sequence[int], groups: int) -> bool:
    """Whether it is one in two dimensions that torch has no fast kernel for."""
    channels, each, *kernel = weight_shape
    large = tuple(kernel) == (LARGE_DEPTHWISE, LARGE_DEPTHWISE) and tuple(stride) == (1, 1)
    return groups == channels > 1 == each and channels % 8 == 0 and large


def uses_depthwise(
    device_type: str, dtype: torch.dtype, weight_shape: Sequence[int], problem: ConvProblem
) -> bool:
    """Whether the convolution is our depthwise kernel, backward too, and not torch's."""
    channels, each, kernel = weight_shape[:3]
    if not problem.groups == channels > 1 == each:
        return False
    small = (kernel, problem.stride[0]) in _DEPTHWISE_KERNELS and channels % 2 == 0
    large = is_large_depthwise(weight_shape, problem.stride, problem.groups)
    return (small or large) and _is_plain(device_type, dtype, weight_shape, problem)


def uses_first(
    device_type: str, dtype: torch.dtype, weight_shape: Sequence[int], problem: ConvProblem
) -> bool:
    """Whether the convolution is our kernel for first layers, and its gradients."""
    outputs, channels, kernel = weight_shape[:3]
    return (
        problem.groups == 1
        and channels == _FIRST_CHANNELS
        and outputs % 8 == 0
        and kernel in _FIRST_KERNELS
        and problem.stride[0] == _FIRST_STRIDE
        and _is_plain(device_type, dtype, weight_shape, problem)
    )


def uses_image(
    device_type: str, dtype: torch.dtype, weight_shape: Sequence[int], problem: ConvProblem
) -> bool:
    """Whether the convolution, and the gradient of its image, is our kernel for 3x3 ones."""
    outputs, channels, kernel = weight_shape[:3]
    return (
        problem.groups == 1
        and channels in IMAGE_CHANNELS
        and outputs % 8 == 0
        and outputs <= _IMAGE_OUTPUTS
        and kernel == 3
        and problem.stride[0] == 1
        and problem.padding == (1, 1)
        and fits_windows(problem.out_shape)
        and _is_plain(device_type, dtype, weight_shape, problem)
        and _is_hopper()
    )


def fits_windows(out_shape: Sequence[int]) -> bool:
    """Whether tiles of 8 x 8 pixels waste little of an image (N, O, H, W), and fill a GPU."""
    images, _, h, w = out_shape
    tiles_h, tiles_w = -(-h // 8), -(-w // 8)
    tiles = images * tiles_h * tiles_w
    return tiles >= _LEAST_WINDOWS and 64 * tiles_h * tiles_w <= 1.15 * h * w


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
    alone = is_large_depthwise(weight_shape, problem.stride, problem.groups)  # adds nothing
    if uses_depthwise(device_type, dtype, weight_shape, problem) and not (alone and with_residual):
        return DEPTHWISE, "depthwise: our kernel, with all the rest behind its sums"
    if uses_first(device_type, dtype, weight_shape, problem) and not with_residual:
        return FIRST, "three channels: our kernel, with all the rest behind its sums"
    if uses_image(device_type, dtype, weight_shape, problem) and not with_residual:
        return IMAGE, "3x3 of few channels: our kernel, with all the rest behind its sums"
    if uses_pointwise(device_type, dtype, weight_shape, problem, code, with_residual):
        return POINTWISE, "1x1 with stride 1: our kernels, with all the rest behind their sums"
    graph = conv_graph.is_for(dtype, code)
    if is_pointwise(weight_shape, problem) and not with_residual:
        if graph and code in (0, _RELU) and has_few_outputs(weight_shape):
            return GRAPH, "1x1 to few channels: cuDNN's graph, with the norm folded into the weight"
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
    is_product = is_pointwise(weight_shape, problem) and not with_residual
    if is_product and has_few_outputs(weight_shape):
        return False  # (H200: 31 us, folded 27)
    elements = math.prod(problem.out_shape)
    flops = 2 * elements * math.prod(weight_shape[1:])
    most = _INSIDE_WITH_RESIDUAL if with_residual else _INSIDE_ELEMENTS
    return elements <= most and flops <= _INSIDE_FLOPS
