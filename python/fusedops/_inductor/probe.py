"""What a pointwise part of a graph computes, found by evaluating it on probe values.

The nodes between a product and a candidate are run in float64 on a few hundred numbers, and the
result is compared with the table of activations: `act(z)`, `act(g) * u`, `dh * act'(z)`. It does
not matter how a decomposition writes them. Roundings between the nodes are left out, as our kernels
leave them out. A branch at some number may lie between or beyond all probes, so that a node counts
only if it is smooth or branches at 0 or where one of our activations does (`KINKS`).
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.fx.node import map_arg

from .._autograd.compose import activation_table
from .graph import (
    CONSTANTS,
    CONVERT,
    SAME_ORDER,
    SAME_VALUES,
    aten,
    dtype_of,
    is_constant,
    is_pointwise,
)

if TYPE_CHECKING:
    from torch.fx import Node

# Far from zero, where caps show; 0 itself, where clamp(min=0) and relu differ in their derivatives;
# small numbers, which tell relu2 from what is linear there.
FAR = (12.0, 25.0, 60.0, 250.0, 1e3)
SMALL = (0.0, 1e-6, 1e-3, 0.02)
NONE = (float("nan"),)  # which a function that branches may lose
DROPPED = ("dtype", "device", "layout", "pin_memory", "memory_format")  # of kwargs
RTOL, ATOL = 5e-8, 1e-10  # some models write their numbers in eight digits: Bloom's gelu
_SMOOTH = """
    add sub rsub mul div neg reciprocal square pow sqrt rsqrt exp exp2 expm1 log log2 log1p abs
    tanh sigmoid erf erfc silu gelu relu tanh_backward sigmoid_backward silu_backward gelu_backward
    where bitwise_not bitwise_and bitwise_or logical_not logical_and logical_or
"""
SMOOTH = {getattr(aten, name) for name in _SMOOTH.split()}
_BRANCHES = "eq ne lt le gt ge clamp_min clamp_max maximum threshold_backward"
BRANCHES = {getattr(aten, name) for name in _BRANCHES.split()}
KINKS = (0, 3, -3, 6, 20)  # those of relu, hardswish, relu6, softplus: probes lie around them


def real() -> ExitStack:
    """Tensors are real, and nothing is traced: the pass runs under a FakeTensorMode."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily
    from torch.utils._python_dispatch import _disable_current_modes

    stack = ExitStack()
    stack.enter_context(unset_fake_temporarily())
    stack.enter_context(_disable_current_modes())
    stack.enter_context(torch.no_grad())
    return stack


def numbers_of(node: Node) -> list[Any]:
    """The numbers among a node's arguments."""
    args = [a.args[CONSTANTS[a.target]] if is_constant(a) else a for a in node.args]
    return [a for a in args if isinstance(a, (int, float))]


def is_probed(node: Node, kinks: tuple[int, ...] = (0,)) -> bool:
    """Whether values at some numbers, below and above the kinks, tell what a node computes."""
    packet = getattr(node.target, "overloadpacket", None)
    if packet in SMOOTH:
        return "rounding_mode" not in node.kwargs
    numbers = numbers_of(node)
    return packet in BRANCHES and len(numbers) == 1 and numbers[0] in kinks


def keeps(dtype: torch.dtype, own: torch.dtype) -> bool:
    """Whether a cast of values of the product's dtype takes nothing from them."""
    return dtype is own or (
        dtype in (torch.float32, torch.float64) and own.itemsize < dtype.itemsize
    )


class Probes(NamedTuple):
    """Values of z (or a gate), of an up projection and of a gradient, and the activations of z."""

    z: Tensor
    up: Tensor
    dh: Tensor
    acts: tuple[tuple[Tensor, Tensor], ...]  # by code: act(z), act'(z)


@functools.cache
def probes() -> Probes:
    with real():
        generator = torch.Generator().manual_seed(0)
        random = torch.randn(3, 256, generator=generator, dtype=torch.float64)
        ends = torch.tensor([*FAR, *SMALL], dtype=torch.float64)
        z = torch.cat([ends, -ends, torch.linspace(-9, 9, 181, dtype=torch.float64)])
        z = torch.cat([z, random[0], torch.tensor(NONE, dtype=torch.float64)])
        up, dh = (torch.cat([r, r.flip(0)])[: z.numel()].clone() for r in random[1:])
        return Probes(z, up, dh, activation_table(z))


class NodeValues(ABC):
    """Values of nodes where the leaves have the given ones; None where a node has no number."""

    def __init__(self, leaves: dict[Node, Tensor]) -> None:
        self.known: dict[Node, Tensor | None] = dict(leaves)

    @abstractmethod
    def inputs(self, node: Node) -> list[Node]:
        """What a node's value depends on; not the sizes of a view."""

    @abstractmethod
    def run(self, node: Node) -> Tensor | None:
        """A node's value, those of its inputs being known."""

    def __call__(self, node: Node) -> Tensor | None:
        with real():
            return self._of(node)

    def _of(self, node: Node) -> Tensor | None:
        stack = [node]
        while stack:
            at = stack[-1]
            waiting = [i for i in self.inputs(at) if i not in self.known]
            if at in self.known or not waiting:
                stack.pop()
                if at not in self.known:
                    self.known[at] = self.run(at)
            else:
                stack += waiting
        return self.known[node]


class Evaluator(NodeValues):
    """Values of pointwise nodes in float64."""

    def __init__(self, leaves: dict[Node, Tensor]) -> None:
        super().__init__(leaves)
        self.dtypes = {dtype_of(leaf) for leaf in leaves}

    def inputs(self, node: Node) -> list[Node]:
        """All that is read."""
        if is_constant(node):
            return []
        return [node.args[0]] if node.target in SAME_VALUES else node.all_input_nodes

    def run(self, node: Node) -> Tensor | None:
        """None for what is not pointwise, or not told by values."""
        if is_constant(node):
            return torch.tensor(float(node.args[CONSTANTS[node.target]]), dtype=torch.float64)
        if not is_pointwise(node) or any(self.known[i] is None for i in self.inputs(node)):
            return None
        if node.target in SAME_ORDER:
            return self.known[node.args[0]]
        if node.target is CONVERT:
            kept = all(keeps(node.args[1], own) for own in self.dtypes)
            return self.known[node.args[0]] if kept else None
        if not is_probed(node, KINKS):
            return None
        args = map_arg(node.args, self.known.__getitem__)
        kwargs = {k: v for k, v in node.kwargs.items() if k not in DROPPED}
        try:
            result = node.target(*args, **map_arg(kwargs, self.known.__getitem__))
        except (RuntimeError, TypeError):  # a node that float64 numbers are no input of
            return None
        return result if isinstance(result, Tensor) else None


def _close(got: Tensor | None, want: Tensor) -> Tensor:
    """Whether got has the values of the last dimension of want, for each index before it."""
    if got is None or not got.is_floating_point() or got.shape != want.shape[-1:]:
        return torch.zeros(want.shape[:-1], dtype=torch.bool)
    got = got.expand_as(want)  # NOTE: with equal_nan, isclose broadcasts its second argument only.
    return torch.isclose(got, want, rtol=RTOL, atol=ATOL, equal_nan=True).all(-1)


def activation_of(got: Tensor | None, factor: Tensor | None = None) -> int | None:
    """The code of the activation whose values (times a factor) these are."""
    with real():
        close = _close(got, _table() if factor is None else _table() * factor)
        return next((code for code in close.nonzero().flatten().tolist() if code), None)


@functools.cache
def _table() -> Tensor:
    """The values of all activations, a row for each code."""
    return torch.stack([y for y, _ in probes().acts])


def equals(got: Tensor | None, *factors: Tensor) -> bool:
    """Whether these are the values of a product of known ones."""
    with real():
        want: Any = factors[0]
        for factor in factors[1:]:
            want = want * factor
        return bool(_close(got, want))
