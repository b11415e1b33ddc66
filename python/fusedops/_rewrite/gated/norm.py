"""RMS norms with a gate, by what they compute: ``norm(x * act(gate))`` or ``norm(x) * act(gate)``.

Mamba2's norm (its rows may be normalised in groups) and those of linear attention (Qwen3-Next,
Kimi Linear, OLMo Hybrid). The source of the forward is read and its values and gradients are
probed, as a `leaf`'s. The norm runs as our op, the gate stays a product of torch's in fp32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch import nn as torch_nn

from ...ops.norm import rms_norm
from ..forward_code import RefusedError
from ..leaf import (
    _HALF,
    _SMOOTH,
    FusedLeaf,
    Leaf,
    _close,
    _in_autocast,
    _Probe,
    _rows,
    fuse_leaf,
    held,
)
from ..source import Reader

if TYPE_CHECKING:
    from collections.abc import Iterator

_is_dynamo_compiling = torch.compiler.is_dynamo_compiling

_ACTS = {"silu": F.silu, "sigmoid": torch.sigmoid}
_GATES = {F.silu, F.sigmoid, torch.sigmoid, "sigmoid", torch_nn.SiLU.forward,
          torch_nn.Sigmoid.forward}  # fmt: skip
_PAIRS = (
    (torch.float32, torch.float32),
    *((dtype, dtype) for dtype in _HALF),
    *((dtype, torch.float32) for dtype in _HALF),
)
_ERRORS = (RuntimeError, TypeError, ValueError, IndexError, AttributeError)


class GatedForm(NamedTuple):
    """What a gated norm computes."""

    weight: str  # the name of its parameter
    eps: float
    act: str  # of the gate
    gate_first: bool  # norm(x * act(gate)), else norm(x) * act(gate)
    group: int  # how many elements are normalised together
    kind: str = "gated_rms"
    bias: None = None
    plus_one: bool = False
    rounds_once: bool = False  # its norm is not rounded to half before the gate

    def of(self, module: Any, x: Tensor, gate: Tensor) -> Tensor:
        """The result, its norm by our op."""
        weight = getattr(module, self.weight)
        dtype, act = x.dtype, _ACTS[self.act]
        if self.gate_first:
            x = x * act(gate.float())
        elif self.rounds_once:
            x = x.float()
        if self.group == x.shape[-1]:
            y = rms_norm(x, x.shape[-1:], weight, self.eps)
        else:
            rows = x.view(*x.shape[:-1], -1, self.group)
            y = rms_norm(rows, rows.shape[-1:], None, self.eps).view_as(x) * weight
        return (y if self.gate_first else y * act(gate.float())).to(dtype)

    def reference(self, x: Tensor, gate: Tensor, weight: Tensor) -> Tensor:
        """The same in torch's functions, for float64."""
        gate = _ACTS[self.act](gate)
        x = x * gate if self.gate_first else x
        rows = x.view(*x.shape[:-1], -1, self.group)
        rows = rows * (rows.square().mean(-1, keepdim=True) + self.eps).rsqrt()
        y = rows.view_as(x) * weight
        return y if self.gate_first else y * gate


@dataclass(frozen=True)
class GatedNorm(Leaf):
    """What a module was found to compute, and what that holds for; x and gate have one dtype."""

    form: Any  # a GatedForm
    gate: str  # the name of the second input

    def takes(self, module: Any, x: Any, gate: Any) -> bool:
        """Whether the form stands for the module on its inputs."""
        if type(x) is not Tensor or type(gate) is not Tensor or x.shape != gate.shape:
            return False
        weight = held(module, self.form.weight)
        if not isinstance(weight, Tensor) or x.dtype is not gate.dtype:
            return False
        if (x.dtype, weight.dtype) not in self.pairs or x.dim() not in self.dims:
            return False
        # NOTE: of other strides, torch's pointwise functions make tensors of other strides.
        if x.shape[-1] != self.size or not x.is_contiguous():
            return False
        return x.dtype not in _HALF or not _in_autocast(x)


def _run(probe: _Probe, x: Tensor, gate: Tensor, wide: torch.dtype) -> tuple[Tensor, Any]:
    """The module's result and its weight, of a dtype."""
    made = {name: torch_nn.Parameter(value.to(wide)) for name, value in probe.values.items()}
    vars(probe.copy)["_parameters"] = made
    before = x.detach().clone(), gate.detach().clone()
    y = probe.forward(probe.copy, x, gate)
    if not isinstance(y, Tensor) or y.data_ptr() in (x.data_ptr(), gate.data_ptr()):
        raise RefusedError("returns no new tensor")
    if not (torch.equal(before[0], x.detach()) and torch.equal(before[1], gate.detach())):
        raise RefusedError("changes its input")
    return y, next(iter(made.values()))


def _agrees(
    probe: _Probe, form: GatedForm, x: Tensor, gate: Tensor, dtype: torch.dtype, wide: torch.dtype
) -> bool:
    """Whether the module gives the form's values in a dtype, with a weight of another."""
    x, gate = x.to(dtype), gate.to(dtype)
    try:
        y, weight = _run(probe, x, gate, wide)
    except _ERRORS:
        return False
    want = form.reference(x.double(), gate.double(), weight.detach().double())
    return y.dtype is dtype and y.is_contiguous() and _close(y, want, dtype)


def _forms(name: str, size: int, reader: Reader) -> Iterator[GatedForm]:
    groups = {size, *(n for n in reader.integers if 1 < n < size and size % n == 0)}
    for eps in sorted(n for n in reader.numbers if 0.0 <= n < 0.1):
        for group in sorted(groups, reverse=True):
            for act in _ACTS:
                for gate_first in (False, True):
                    yield GatedForm(name, eps, act, gate_first, group)


def _same_gradients(probe: _Probe, form: GatedForm, x: Tensor, gate: Tensor) -> bool:
    leaves = [x.float().requires_grad_(), gate.float().requires_grad_()]
    y, weight = _run(probe, leaves[0], leaves[1], torch.float32)
    dy = probe.random(*y.shape).float()
    inputs = [*leaves, weight]
    theirs = torch.autograd.grad(y, inputs, dy, allow_unused=True)
    mine = torch.autograd.grad(form.of(probe.copy, leaves[0], leaves[1]), inputs, dy)
    pairs = zip(theirs, mine, strict=True)
    return all(
        a is not None and torch.allclose(a, b, rtol=1e-3, atol=1e-4 * float(a.abs().max()))
        for a, b in pairs
    )


def _rounds_once(probe: _Probe, form: GatedForm, x: Tensor, gate: Tensor) -> bool:
    """Whether all of the module's bf16 values are those of the exact result, rounded."""
    x, gate = x.to(torch.bfloat16), gate.to(torch.bfloat16)
    y, weight = _run(probe, x, gate, torch.bfloat16)
    want = form.reference(x.double(), gate.double(), weight.detach().double())
    ulp = 2.0 ** (want.abs().log2().floor() - 7)
    return bool(((y.double() - want).abs() <= 0.51 * ulp).all())


def _recognise(module: torch_nn.Module) -> GatedNorm:
    """What a module with one vector and a gate computes.

    Raises:
        RefusedError: Nothing of this kind, or not surely.
    """
    code = type(module).forward.__code__
    names = code.co_varnames[1 : code.co_argcount]
    if len(names) != 2 or [p is None or p.dim() for p in module._parameters.values()] != [1]:
        raise RefusedError("has no gate and one weight")
    reader = Reader(module)
    reader.read()
    if not reader.calls <= _SMOOTH | _GATES or not reader.calls & _GATES:
        raise RefusedError("calls more than a gated norm does")
    probe = _Probe(module)
    ((name, value),) = probe.values.items()
    size = value.shape[0]
    shapes = {dims: (4, *[2] * (dims - 2), size) for dims in (2, 3, 4)}
    inputs = {n: (_rows(probe, *s), probe.random(*s)) for n, s in shapes.items()}
    narrow = torch.float32, torch.float32
    for form in _forms(name, size, reader):
        dims = frozenset(n for n, xg in inputs.items() if _agrees(probe, form, *xg, *narrow))
        if dims:
            break
    else:
        raise RefusedError("computes something else, as probe values show")
    shape = shapes[min(dims)]
    x, gate = _rows(probe, *shape, small=0.1), probe.random(*shape)
    if not _same_gradients(probe, form, x, gate):
        raise RefusedError("has other gradients, as probe values show")
    pairs = frozenset(pair for pair in _PAIRS if _agrees(probe, form, x, gate, *pair))
    if (torch.bfloat16, torch.bfloat16) in pairs:
        form = form._replace(rounds_once=_rounds_once(probe, form, x, gate))
    return GatedNorm(
        form, pairs, dims, names[0], size, False, (), tuple(reader.flags.items()),
        tuple(reader.methods), reader.outside, names[1],
    )  # fmt: skip


class FusedGatedNorm(FusedLeaf):
    """Mixed into the class of a gated norm; its own forward runs where a `FusedLeaf`'s does."""

    _fused: GatedNorm | None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The original forward's result."""
        leaf = self._fused
        if leaf is None or _is_dynamo_compiling() or len(args) + len(kwargs) != 2:
            return self._base.forward(self, *args, **kwargs)
        x = args[0] if args else kwargs.get(leaf.input)
        gate = args[1] if len(args) == 2 else kwargs.get(leaf.gate)
        if not leaf.takes(self, x, gate) or not leaf.is_same(self):
            return self._base.forward(self, *args, **kwargs)
        return leaf.form.of(self, x, gate)

    def _fuse_again(self) -> bool:
        return fuse_gated_norm(self) is None


def fuse_gated_norm(module: torch_nn.Module) -> str | None:
    """Make a gated RMS norm run as our op, in place.

    Returns:
        None where it does now, else the reason why it stays what it is.
    """
    return fuse_leaf(module, _recognise, FusedGatedNorm)


def has_gate(module: torch_nn.Module) -> bool:
    """Whether a module's forward has two inputs, the second of which is called a gate."""
    code = getattr(type(module).forward, "__code__", None)
    return code is not None and code.co_argcount == 3 and "gate" in code.co_varnames[2]
