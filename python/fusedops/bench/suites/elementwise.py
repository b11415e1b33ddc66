"""Elementwise fusions against eager torch and torch.compile, held to the copy bandwidth."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

import fusedops
from fusedops import reference
from fusedops.bench.suites.base import Call, Case, PeerUnavailableError, Selection, Suite, Work
from fusedops.bench.suites.linear import ACTIVATIONS, COMPILE_MODES, compiled

if TYPE_CHECKING:
    from collections.abc import Callable

DROP = 0.1
# Per op: shapes and how many of the operands have the shape (the others are rows of it).
FLAT_SHAPES = ((1 << 28,), ((1 << 28) + 1,), (1 << 15,))
MATRIX_SHAPES = ((65536, 4096), (65536, 4097), (1 << 20, 256), (64, 512))
STEP_SHAPES = ((65536, 4096), (1 << 20, 256))

OURS: dict[str, Callable[..., Tensor]] = {
    "add": fusedops.add,
    "fma": fusedops.fma,
    "square": fusedops.square,
    "relu": fusedops.relu,
    "add_row": fusedops.add,
    "scale_bias_act": fusedops.scale_bias_act,
    "bias_act": fusedops.bias_act,
    "bias_dropout_residual": lambda x, bias, residual, seed: fusedops.bias_dropout_residual(
        x, bias, residual, DROP, seed=seed
    ),
}
# The shapes of the operands: m is (..., N), n is (N,), s the seed.
OPERANDS = {
    "add": "mm",
    "fma": "mmm",
    "square": "m",
    "relu": "m",
    "add_row": "mn",
    "scale_bias_act": "mnn",
    "bias_act": "mn",
    "bias_dropout_residual": "mnms",
}


def eager(op: str, activation: str) -> Call:
    act = ACTIVATIONS[activation]
    calls: dict[str, Call] = {
        "add": torch.add,
        "fma": lambda a, x, b: a * x + b,
        "square": torch.square,
        "relu": torch.relu,
        "add_row": torch.add,
        "scale_bias_act": lambda x, scale, bias: act(x * scale + bias),
        "bias_act": lambda x, bias: act(x + bias),
        "bias_dropout_residual": lambda x, bias, residual, seed: (
            F.dropout(x + bias, DROP) + residual
        ),
    }
    return calls[op]


def same_dropout(x: Tensor, bias: Tensor, residual: Tensor, seed: Tensor) -> Tensor:
    """With the mask of our own kernel."""
    return reference.bias_dropout_residual(x, bias, residual, seed, DROP)


def in_float64(call: Call) -> Call:
    """The call in float64, its result in the inputs' dtype: one rounding, as ours."""

    def wide(*inputs: Tensor) -> Tensor:
        y: Tensor = call(*(t.double() if t.is_floating_point() else t for t in inputs))
        return y.to(inputs[0].dtype)

    return wide


def as_pass(forward: Call, operands: str, pass_: str) -> Call:
    """`step` takes dy behind the operands and returns y and all gradients."""
    if pass_ == "fwd":
        return forward
    count = len(operands)

    def step(*inputs: Tensor) -> tuple[Any, ...]:
        y = forward(*inputs[:count])
        leaves = [t for t in inputs[:count] if t.requires_grad]
        return (y.detach(), *torch.autograd.grad(y, leaves, inputs[count]))

    return step


class ElementwiseSuite(Suite):
    name = "elementwise"
    passes: tuple[str, ...] = ("fwd", "step")
    dtypes: tuple[str, ...] = ("bf16", "fp16", "fp32", "fp64")
    reference_peer = "reference"

    def cases(self, selection: Selection) -> list[Case]:
        wanted = selection.activations or ("relu", "gelu_tanh")
        cases = []
        for op in OURS:
            if selection.pass_ == "step" and OPERANDS[op] in ("m", "mm", "mmm"):
                continue
            flat = set(OPERANDS[op]) == {"m"}
            shapes: tuple[tuple[int, ...], ...] = FLAT_SHAPES if flat else MATRIX_SHAPES
            if selection.pass_ == "step":
                shapes = STEP_SHAPES
            for shape in selection.shapes or shapes:
                for activation in wanted if op.endswith("act") else ("none",):
                    suffix = f"/{activation}" if op.endswith("act") else ""
                    case = f"{op}/{'x'.join(map(str, shape))}{suffix}"
                    arguments = {"op": op, "shape": shape, "activation": activation}
                    cases.append(Case(case, arguments))
        return cases

    def make_inputs(
        self, case: Case, dtype: torch.dtype, pass_: str, device: torch.device
    ) -> tuple[Tensor, ...]:
        shape = case["shape"]

        def operand(kind: str) -> Tensor:
            if kind == "s":
                return torch.randint(2**62, (1,), device=device)
            size = shape if kind == "m" else shape[-1:]
            tensor = torch.randn(size, dtype=dtype, device=device)
            return tensor.requires_grad_(pass_ != "fwd")

        inputs = tuple(operand(kind) for kind in OPERANDS[case["op"]])
        return inputs if pass_ == "fwd" else (*inputs, operand("m").detach())

    def ours(self, case: Case, pass_: str) -> Call:
        op, activation = case["op"], case["activation"]
        call: Call = OURS[op]
        if op.endswith("act"):
            call = lambda *inputs: OURS[op](*inputs, activation)  # noqa: E731
        return as_pass(call, OPERANDS[op], pass_)

    def peers(self, case: Case, pass_: str) -> tuple[str, ...]:
        return ("eager", *COMPILE_MODES)

    def default_peers(self, pass_: str) -> tuple[str, ...]:
        return ("eager", "compile")

    def peer(self, name: str, case: Case, pass_: str, device: torch.device) -> Call:
        op = case["op"]
        call = eager(op, case["activation"])
        if name == "reference":
            call = in_float64(call if op != "bias_dropout_residual" else same_dropout)
        elif name in COMPILE_MODES:
            call = compiled(call, COMPILE_MODES[name])
        elif name != "eager":
            raise PeerUnavailableError(f"the suite has no peer {name!r}")
        return as_pass(call, OPERANDS[op], pass_)

    def work(self, case: Case, dtype: torch.dtype, pass_: str) -> Work:
        operands = OPERANDS[case["op"]]
        count = torch.Size(case["shape"]).numel()
        rows = count // case["shape"][-1]
        numbers = operands.count("m") * count + operands.count("n") * (count // rows) + count
        if pass_ == "step":
            # Backward reads dy and, where it recomputes, x; it writes row gradients and dx, which
            # is dy itself for a sum.
            numbers += count if case["op"] == "add_row" else 2 * count
            numbers += operands.count("n") * (count // rows)
            numbers += count if case["op"].endswith("act") else 0
        return Work(numbers * dtype.itemsize, 0)


SUITE = ElementwiseSuite
