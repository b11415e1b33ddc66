"""explain of convolutions with batch norm: which kernels a call runs, and why."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import torch

from .._autograd.conv import IMAGE_CHANNELS, MOST_FIRST_OUTPUTS
from .._core.activation import SAVES_OUTPUT, SAVES_PREACT
from .._core.checks import dtype_name
from ..ops.conv_problem import (
    DEPTHWISE,
    FIRST,
    HALVES,
    IMAGE,
    PASS,
    POINTWISE,
    ConvProblem,
    code_of,
    conv_problem,
    fits_chip,
    forms_moments,
    inference_path,
    uses_depthwise,
    uses_first,
    uses_image,
    uses_product,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ConvExplanation", "explain_conv_bn_act"]

_KERNELS = {
    "pointwise": "our kernels for 1x1: norm, residual and activation in their epilogue",
    "depthwise": "our depthwise kernel: norm, residual and activation in its epilogue",
    "image": "our kernel for 3x3: norm and activation in its epilogue",
    "first": "our kernel for three channels: norm and activation in its epilogue",
    "gemm": "fusedops.linear of the rows: bias and activation in its epilogue",
    "graph": "cuDNN's graph: bias, residual and activation in its epilogue",
    "cudnn": "torch.cudnn_convolution_add_relu: bias, residual and ReLU in its epilogue",
}


_TORCH = "torch's convolution (cuDNN, on a CPU oneDNN)"
_BOTH = "gradients of x and weight"


class ConvPass(NamedTuple):
    """One read and write of activations."""

    kernel: str
    tensors: int  # of the result's size that move
    with_input: bool  # and x


@dataclass(frozen=True)
class ConvExplanation:
    """What a call of `fusedops.conv_bn_act` runs: print it for a report.

    Attributes:
        call: The call and its sizes.
        path: "gemm", "depthwise", "first", "graph", "cudnn" or "pass"; "train" where
            statistics are those of the batch.
        why: Why it is that one.
        passes: The kernels in their order, those of backward behind.
        moved_bytes: Traffic of activations, by all of them.
        notes: What else runs.
    """

    call: str
    path: str
    why: str
    passes: list[ConvPass]
    moved_bytes: int
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"{self.call}: {self.path}", f"  why   {self.why}"]
        lines += [f"  runs  {p.kernel}" for p in self.passes]
        lines += [f"  moves {self.moved_bytes / 1e6:.1f} MB of activations"]
        return "\n".join([*lines, *(f"  note  {note}" for note in self.notes)])

    __repr__ = __str__


class _Owner(NamedTuple):
    """Whose kernels a convolution in front of a pass is, and its gradients."""

    forward: str
    backward: str
    statistics: bool = False  # whether its kernel has those of the batch beside its result


def _owner(device: str, dtype: torch.dtype, weight: Sequence[int], problem: ConvProblem) -> _Owner:
    if uses_product(device, dtype, weight, problem):
        forms = forms_moments(problem.out_shape, weight[:2])
        return _Owner("fusedops.linear of the rows", f"fusedops.linear's {_BOTH}", forms)
    if uses_depthwise(device, dtype, weight, problem):
        own = "our depthwise kernel"
        if problem.stride[0] == 1 and weight[0] % 8:
            own = _TORCH
        return _Owner(own, f"our depthwise {_BOTH}")
    if uses_first(device, dtype, weight, problem):
        gradients = "our gradients of weight and x"
        if weight[0] > MOST_FIRST_OUTPUTS:
            gradients = "our gradient of weight, cuDNN's of x"
        return _Owner("our kernel for three channels", gradients)
    if uses_image(device, dtype, weight, problem):
        gradients = "our gradient of x, cuDNN's of weight"
        if weight[0] not in IMAGE_CHANNELS:
            gradients = f"cuDNN's {_BOTH}"
        return _Owner("our kernel for 3x3", gradients)
    return _Owner(_TORCH, f"cuDNN's {_BOTH}")


def _keeps(code: int, with_residual: bool) -> bool:
    """Whether backward reads what is kept beside x: y or the residual."""
    return with_residual and (SAVES_OUTPUT[code] or SAVES_PREACT[code])


def _backward(
    code: int, with_residual: bool, training: bool, owner: _Owner, together: bool
) -> list[ConvPass]:
    kept = _keeps(code, with_residual)
    writes = 1 if with_residual and code else 0
    if together:
        one = "the norm's gradients and that of the convolution's result in one kernel"
        return [ConvPass(one, 3 + kept + writes, False), ConvPass(owner.backward, 2, True)]
    first = "sums of the norm's gradients" + (", and the residual's gradient" if writes else "")
    found = [ConvPass(first, 2 + kept + writes, False)]
    reads = 2 if writes else 2 + kept
    found.append(ConvPass("gradient of the convolution's result", reads + 1, False))
    found.append(ConvPass(owner.backward, 2, True))
    return found if training else [found[1], found[2]]


def explain_conv_bn_act(
    x: Sequence[int],
    weight: Sequence[int],
    *,
    dtype: torch.dtype = torch.bfloat16,
    device: str = "cuda",
    activation: str | None = "relu",
    residual: bool = False,
    stride: int | Sequence[int] = 1,
    padding: int | str | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    training: bool = False,
    backward: bool | None = None,
) -> ConvExplanation:
    """Say what `fusedops.conv_bn_act` runs at these sizes.

    Args:
        x: (N, C, ...), the sizes of x.
        weight: (O, C / groups, ...), those of the weight.
        dtype: Dtype of both.
        device: "cuda" or "cpu".
        activation: As in the call.
        residual: Whether there is one.
        stride: As in the call.
        padding: Likewise.
        dilation: Likewise.
        groups: Likewise.
        training: Whether batch norm takes the statistics of the batch.
        backward: Whether to include backward; None: as `training`.

    Returns:
        The report; ``print`` it.

    Raises:
        ValueError: The activation is unknown.
        RuntimeError: The sizes do not fit, as in the call.

    Example:
        >>> print(fusedops.explain_conv_bn_act((64, 64, 56, 56), (64, 64, 3, 3), padding=1))
    """
    op = "explain_conv_bn_act"
    code = code_of(op, activation)
    own, filters = (torch.empty(tuple(s), dtype=dtype, device="meta") for s in (x, weight))
    problem = conv_problem(op, own, filters, stride, padding, dilation, groups)
    backward = training if backward is None else backward
    path, why = inference_path(device, dtype, x, weight, problem, code, residual)
    if training or backward:
        path = "train" if training else PASS
        why = "statistics of the batch come before the norm" if training else (
            "with a gradient the convolution's result is kept: one pass behind it"
        )  # fmt: skip
    owner = _owner(device, dtype, weight, problem)
    half = device == "cuda" and dtype in HALVES
    together = training and half and fits_chip(problem.out_shape)
    passes = _forward(path, residual, training, owner, together)
    if backward:
        together = together and fits_chip(problem.out_shape, _keeps(code, residual))
        passes += _backward(code, residual, training, owner, together)
    size = math.prod(problem.out_shape)
    moved = sum(p.tensors * size + (own.numel() if p.with_input else 0) for p in passes)
    call = _call(x, weight, problem, activation, residual, dtype)
    return ConvExplanation(call, path, why, passes, moved * dtype.itemsize, _notes(path, device))


def _forward(
    path: str, residual: bool, training: bool, owner: _Owner, together: bool
) -> list[ConvPass]:
    if path in _KERNELS:
        return [ConvPass(_KERNELS[path], 1 + residual, True)]
    beside = training and owner.statistics
    found = [ConvPass(f"{owner.forward}{', statistics beside it' if beside else ''}", 1, True)]
    if together:
        one = "statistics, norm, residual and activation in one kernel"
        return [*found, ConvPass(one, 2 + residual, False)]
    if training and not beside:
        found.append(ConvPass("statistics in one read", 1, False))
    found.append(ConvPass("norm, residual and activation in one pass", 2 + residual, False))
    return found


def _notes(path: str, device: str) -> list[str]:
    notes = []
    if path in _KERNELS and path not in (POINTWISE, DEPTHWISE, FIRST, IMAGE):
        notes.append("one small kernel folds the norm into weight and bias")
    if device == "cuda":
        notes.append("x that is not channels_last is copied first, and the result back")
    return notes


def _call(
    x: Sequence[int],
    weight: Sequence[int],
    problem: ConvProblem,
    activation: str | None,
    residual: bool,
    dtype: torch.dtype,
) -> str:
    geometry = f"stride {problem.stride}, padding {problem.padding}"
    geometry += f", groups {problem.groups}" if problem.groups > 1 else ""
    added = " + residual" if residual else ""
    geometry += f", {dtype_name(dtype)}"
    return f"conv_bn_act{added} {activation} of {tuple(x)} by {tuple(weight)}, {geometry}"
