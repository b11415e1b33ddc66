"""linear on operands that are FP8 already: layouts of torch._scaled_mm and of checkpoints."""

from __future__ import annotations

import functools
import warnings

import torch
from torch import Tensor

from .._core.activation import CODES, raise_unknown
from .._core.calls import public_with
from .._core.checks import check_tensors
from .._core.fp8 import BLOCK, FORMATS, OUT_CODES, ceil_div
from .quantizer import as_rows

_matmul = torch.ops.fusedops._fp8_matmul.default
_warned: set[str] = set()
HAS_FP8 = (9, 0)  # the compute capability that has WGMMA of FP8


def has_fp8(device: torch.device) -> bool:
    """Whether a device's Tensor Cores multiply FP8 with our kernels."""
    if device.type != "cuda":
        return False
    return _capability(device) == HAS_FP8


@functools.cache
def _capability(device: torch.device) -> tuple[int, int]:
    major, minor = torch.cuda.get_device_capability(device)
    return int(major), int(minor)


# NOTE: as in ops/linear.py, torch.compiler.assume_constant_result without its import.
has_fp8._dynamo_marked_constant = True  # type: ignore[attr-defined]


def warn_of_emulation(device: torch.device) -> None:
    """Say once for a kind of device that products are emulated there."""
    if torch.compiler.is_compiling() or device.type in _warned or has_fp8(device):
        return
    _warned.add(device.type)
    warnings.warn(
        f"fusedops.fp8: {device.type} has no FP8 products of ours (they need compute capability "
        "9.0): operands are quantised as there, and multiplied in float32, which is slower",
        stacklevel=4,
    )


def fp8_product(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Tensor | None,
    code: int,
    dtype: torch.dtype,
) -> Tensor:
    """_fp8_matmul with the dtype of its result."""
    warn_of_emulation(a.device)
    y: Tensor = _matmul(a, b, scale_a, scale_b, bias, code, OUT_CODES[dtype])
    return y


def _as_scale(name: str, scale: Tensor, of: Tensor) -> Tensor:
    """The scale of a matrix in the op's shape: one number may have any, a vector of rows lie."""
    if not isinstance(scale, Tensor) or scale.dtype is not torch.float32:
        found = scale.dtype if isinstance(scale, Tensor) else type(scale).__name__
        raise TypeError(f"fp8.linear: {name} must be a float32 Tensor; got {found}")
    if scale.numel() == 1:
        return scale.reshape(1, 1)
    rows = of.shape[0]
    if scale.shape not in ((rows,), (1, rows)):  # NOTE: first, so that it asks nothing of a symbol
        return scale
    is_tiles = scale.shape == (ceil_div(rows, BLOCK), ceil_div(of.shape[1], BLOCK))
    return scale if is_tiles else scale.reshape(rows, 1)


@public_with("fp8.linear", a="x8", b="w8", scale_a="scale_x", scale_b="scale_w")
def linear(
    x8: Tensor,
    w8: Tensor,
    scale_x: Tensor,
    scale_w: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    dtype: torch.dtype = torch.bfloat16,
) -> Tensor:
    """Compute ``act((x8 * scale_x) @ (w8 * scale_w).T + bias)`` of FP8 operands, for inference.

    The scales' shapes say how they are meant, and the layouts are those of ``torch._scaled_mm`` and
    of block-scaled checkpoints (DeepSeek-V3's ``weight_scale_inv``, which is multiplied in spite of
    its name):

    - one number for an operand, of any shape;
    - a number for each row: (M, 1), (N, 1), (M,), (N,), or a transpose that is no shape below;
    - 1x128: (M, ceil(K/128)); with strides (1, M') no copy is made;
    - 128x128: (ceil(M/128), ceil(K/128)).

    Args:
        x8: Input (..., K), torch.float8_e4m3fn or torch.float8_e5m2.
        w8: Weight (N, K), likewise; for ``torch._scaled_mm``'s column-major operand pass its
            transpose.
        scale_x: float32, as above; rows are those of x8 with its leading dimensions flattened.
        scale_w: float32, as above.
        bias: (N,) in `dtype`, or None.
        activation: As in `fusedops.linear`.
        dtype: Dtype of the result: torch.float16, torch.bfloat16 or torch.float32.

    Returns:
        A new contiguous tensor (..., N). No gradient flows through it.

    Raises:
        ValueError: The activation or dtype is unknown.
        TypeError: An argument is no tensor, or a scale is not float32.
        RuntimeError: Shapes, dtypes or devices do not fit; the message names op, argument, what was
            expected and what came.

    Sums are promoted to fp32 every 128 of K. Where the GPU has no FP8 Tensor Cores of compute
    capability 9.0, and on the CPU, the operands are multiplied in fp32.

    Example:
        >>> x8, scale_x, *_ = fusedops.fp8.quantize(x)
        >>> y = fusedops.fp8.linear(x8, w8, scale_x, weight_scale_inv)
    """
    try:
        code = CODES[activation]
    except (KeyError, TypeError):
        raise_unknown("fp8.linear", activation)
    check_tensors("fp8.linear", ("bias",), x8=x8, w8=w8, bias=bias)
    if dtype not in OUT_CODES:
        raise ValueError(
            f"fp8.linear: dtype must be torch.float16, torch.bfloat16 or torch.float32; got {dtype}"
        )
    if x8.dtype not in FORMATS or x8.dim() == 0 or w8.dim() != 2:
        fp8_product(x8, w8, scale_x, scale_w, bias, code, dtype)  # raises
    rows = as_rows(x8)
    y = fp8_product(
        rows.detach(),
        w8.detach(),
        _as_scale("scale_x", scale_x, rows),
        _as_scale("scale_w", scale_w, w8),
        None if bias is None else bias.detach(),
        code,
        dtype,
    )
    return y if x8.dim() == 2 else y.view(*x8.shape[:-1], w8.shape[0])
