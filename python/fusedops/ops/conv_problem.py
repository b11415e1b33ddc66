"""What a convolution with norm and activation is: its sizes, and the errors of its arguments."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from .._core.activation import activation_code
from .._core.calls import as_int, shown

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
        dtype = str(x.dtype).removeprefix("torch.")
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
            want, got = (str(t.dtype).removeprefix("torch.") for t in (x, tensor))
            raise RuntimeError(f"{op}: {name} must have dtype {want} like x; got {got}")


def check_vectors(op: str, x: Tensor, channels: int, **vectors: Tensor | None) -> None:
    """Raise where a vector is not (channels,), or neither of x's dtype nor float32."""
    for name, vector in vectors.items():
        if vector is None:
            continue
        if vector.device != x.device:
            raise RuntimeError(f"{op}: {name} must be on {x.device} like x; got {vector.device}")
        half = x.dtype.itemsize == 2
        if vector.dtype is not x.dtype and not (half and vector.dtype is torch.float32):
            want, got = (str(t).removeprefix("torch.") for t in (x.dtype, vector.dtype))
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
