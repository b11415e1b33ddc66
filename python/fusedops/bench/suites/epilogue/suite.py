"""Epilogues of one's own beside built-in ones and plain torch: forward, and a step with every
gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fusedops.bench.suites.base import (
    TOLERANCES,
    Call,
    Case,
    PeerUnavailableError,
    Selection,
    Suite,
    Work,
)
from fusedops.bench.suites.linear import COMPILE_MODES, compiled

if TYPE_CHECKING:
    from collections.abc import Callable

SHAPES = ((8192, 4096, 4096), (8192, 4096, 1024), (16384, 2048, 2048))  # M, N, K


def _tanh(acc: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    return torch.tanh(acc * scale + bias)


def _relu(acc: Tensor, scale: Tensor, bias: Tensor, res: Tensor) -> Tensor:
    return torch.relu(acc * scale + bias) + res


# Expressions, and the activation of `linear` that is nearest: of the last two it does less, as it
# has no scale and no operand of the result's size, whose bytes alone take time.
EXPRESSIONS: dict[str, tuple[Callable[..., Tensor], str]] = {
    "gelu": (lambda acc, bias: F.gelu(acc + bias), "gelu"),
    "gelu_tanh": (lambda acc, bias: F.gelu(acc + bias, approximate="tanh"), "gelu_tanh"),
    "silu": (lambda acc, bias: F.silu(acc + bias), "silu"),
    "softcap": (lambda acc: 30.0 * torch.tanh(acc / 30.0), "tanh"),
    "tanh_scaled": (_tanh, "tanh"),
    "relu_scaled_residual": (_relu, "relu"),
}


class EpilogueSuite(Suite):
    name = "epilogue"
    shape = "MxNxK"
    passes: tuple[str, ...] = ("fwd", "step")
    dtypes: tuple[str, ...] = ("bf16", "fp16")
    activations: tuple[str, ...] = ()

    def cases(self, selection: Selection) -> list[Case]:
        shapes = selection.shapes or SHAPES
        return [
            Case(f"{m}x{n}x{k}/{name}", {"shape": (m, n, k), "expression": name})
            for m, n, k in shapes
            for name in EXPRESSIONS
        ]

    def make_inputs(
        self, case: Case, dtype: torch.dtype, pass_: str, device: torch.device
    ) -> tuple[Tensor, ...]:
        """x, weight, the operands of the expression and, for a step, dy."""
        m, n, k = case["shape"]
        shapes = {"x": (m, k), "weight": (n, k), **dict.fromkeys(operands(case), (n,))}
        if "res" in shapes:
            shapes["res"] = (m, n)
        made = {s: torch.randn(shapes[s], dtype=dtype, device=device) for s in shapes}
        made["weight"].mul_(k**-0.5)
        if pass_ == "fwd":
            return tuple(made.values())
        dy = torch.randn(m, n, dtype=dtype, device=device)
        return (*(tensor.requires_grad_() for tensor in made.values()), dy)

    def ours(self, case: Case, pass_: str) -> Call:
        import fusedops

        made, names = fusedops.epilogue(function(case)), operands(case)

        def call(x: Tensor, weight: Tensor, *values: Tensor) -> Tensor:
            return fusedops.linear(
                x, weight, epilogue=made(**dict(zip(names, values, strict=True)))
            )

        return as_pass(call, pass_)

    def peers(self, case: Case, pass_: str) -> tuple[str, ...]:
        return ("eager", "builtin", *COMPILE_MODES)

    def default_peers(self, pass_: str) -> tuple[str, ...]:
        return ("eager", "builtin")

    def peer(self, name: str, case: Case, pass_: str, device: torch.device) -> Call:
        if name == "builtin":
            return self._builtin(case, pass_)
        if name != "eager" and name not in COMPILE_MODES:
            raise PeerUnavailableError(f"the suite has no peer {name!r}")
        formula = function(case)

        def eager(x: Tensor, weight: Tensor, *values: Tensor) -> Tensor:
            return formula(F.linear(x, weight), *values)

        call = eager if name == "eager" else compiled(eager, COMPILE_MODES[name])
        return as_pass(call, pass_)

    def _builtin(self, case: Case, pass_: str) -> Call:
        """`linear` with the activation that is nearest, of x, weight and bias alone."""
        import fusedops

        activation, names = EXPRESSIONS[case["expression"]][1], operands(case)
        places = [0, 1, *(2 + names.index(name) for name in ("bias",) if name in names)]
        places += [2 + len(names)] * (pass_ == "step")

        def call(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
            return fusedops.linear(x, weight, bias, activation=activation)

        forward = as_pass(call, pass_)
        return lambda *inputs: forward(*(inputs[place] for place in places))

    def tolerance(self, case: Case, dtype: str) -> float:
        """NOTE: both sides take relu's mask from a rounded product, and not from the same one."""
        return TOLERANCES[dtype] * (10 if case["expression"].startswith("relu") else 1)

    def work(self, case: Case, dtype: torch.dtype, pass_: str) -> Work:
        m, n, k = case["shape"]
        full = m * n * ("res" in operands(case))
        columns = n * (len(operands(case)) - bool(full))
        forward = m * k + n * k + m * n + full + columns
        if pass_ == "fwd":
            return Work(forward * dtype.itemsize, 2 * m * n * k)
        # The product is kept; backward reads it and dy, x, w and operands, and writes gradients.
        backward = 2 * m * n + 2 * (m * k + n * k + full + columns)
        return Work((forward + backward + m * n) * dtype.itemsize, 6 * m * n * k)


def function(case: Case) -> Callable[..., Tensor]:
    return EXPRESSIONS[case["expression"]][0]


def operands(case: Case) -> tuple[str, ...]:
    """The names behind the accumulator's."""
    code: Any = function(case).__code__
    return tuple(code.co_varnames[1 : code.co_argcount])


def as_pass(forward: Call, pass_: str) -> Call:
    """`step` runs the forward and returns the result and the gradients of all but dy."""
    if pass_ == "fwd":
        return forward

    def step(*inputs: Tensor) -> tuple[Any, ...]:
        *leaves, dy = inputs
        y = forward(*leaves)
        return (y.detach(), *torch.autograd.grad(y, leaves, dy))

    return step


SUITE = EpilogueSuite
