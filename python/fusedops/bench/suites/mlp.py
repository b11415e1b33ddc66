"""MLP blocks with biases and gated MLPs without: forward, and a step with every gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from fusedops.bench.suites.base import Call, Case, PeerUnavailableError, Selection, Suite, Work

from .linear import ACTIVATIONS, COMPILE_MODES, compiled

if TYPE_CHECKING:
    from torch import Tensor

# T (rows), d, hidden, activation: transformer blocks of GPT, ViT, Llama and Gemma sizes.
CASES = (
    (16384, 768, 3072, "gelu_tanh"),
    (16384, 1024, 4096, "gelu_tanh"),
    (8192, 2048, 8192, "gelu_tanh"),
    (8192, 4096, 16384, "gelu_tanh"),
    (16384, 768, 3072, "relu"),
    (12544, 1024, 4096, "gelu"),
    (8192, 1280, 5120, "relu2"),
    (65536, 256, 1024, "relu"),
    (4096, 1536, 6144, "silu"),
)
GATED_CASES = (
    (8192, 2048, 5632, "swiglu"),
    (8192, 4096, 14336, "swiglu"),
    (16384, 1024, 2816, "swiglu"),
    (4096, 3072, 8192, "swiglu"),
    (8192, 2304, 9216, "geglu_tanh"),
    (16384, 1024, 2816, "reglu"),
    (8192, 2048, 5632, "swiglu_packed"),
    (8192, 4096, 14336, "swiglu_packed"),
)
GATES = {"swiglu": "silu", "geglu": "gelu", "geglu_tanh": "gelu_tanh", "reglu": "relu",
         "glu": "sigmoid"}  # fmt: skip


class MLPSuite(Suite):
    name = "mlp"
    shape = "TxDxH"
    activations = (*Suite.activations, *GATES, *(f"{gate}_packed" for gate in GATES))
    passes: tuple[str, ...] = ("fwd", "step")

    def cases(self, selection: Selection) -> list[Case]:
        both = (*CASES, *GATED_CASES)
        wanted = selection.activations
        if not selection.shapes:
            return [mlp_case(*c) for c in both if not wanted or c[3] in wanted]
        names = wanted or ("gelu_tanh",)
        return [mlp_case(t, d, h, name) for t, d, h in selection.shapes for name in names]

    def make_inputs(
        self, case: Case, dtype: torch.dtype, pass_: str, device: torch.device
    ) -> tuple[Tensor, ...]:
        t, d, h = case["shape"]

        def weight(rows: int, columns: int) -> Tensor:
            return torch.randn(rows, columns, dtype=dtype, device=device).mul_(columns**-0.5)

        x = torch.randn(t, d, dtype=dtype, device=device)
        if case["packed"]:
            tensors = [x, weight(2 * h, d), weight(d, h)]
        elif case["gated"]:
            tensors = [x, weight(h, d), weight(h, d), weight(d, h)]
        else:
            bias1, bias2 = (torch.randn(n, dtype=dtype, device=device) for n in (h, d))
            tensors = [x, weight(h, d), bias1, weight(d, h), bias2]
        if pass_ == "fwd":
            return tuple(tensors)
        dy = torch.randn(t, d, dtype=dtype, device=device)
        return (*(tensor.requires_grad_() for tensor in tensors), dy)

    def ours(self, case: Case, pass_: str) -> Call:
        return as_pass(fused(case), pass_)

    def peers(self, case: Case, pass_: str) -> tuple[str, ...]:
        return ("eager", *COMPILE_MODES)

    def default_peers(self, pass_: str) -> tuple[str, ...]:
        return ("eager", "compile")

    def peer(self, name: str, case: Case, pass_: str, device: torch.device) -> Call:
        if name == "eager":
            return as_pass(eager(case), pass_)
        if name in COMPILE_MODES:
            return as_pass(compiled(eager(case), COMPILE_MODES[name]), pass_)
        raise PeerUnavailableError(f"the suite has no peer {name!r}")

    def work(self, case: Case, dtype: torch.dtype, pass_: str) -> Work:
        t, d, h = case["shape"]
        products = 3 if case["gated"] else 2
        weights = products * d * h
        size = dtype.itemsize
        forward = (2 * t * d + weights) * size
        flops = 2.0 * t * weights
        if pass_ == "fwd":
            return Work(forward, flops)
        # Backward reads dy, x and the weights and writes dx and their gradients; what is saved is
        # written and read once.
        saved = (products - 1) * t * h * size
        return Work(forward + (3 * t * d + 2 * weights) * size + 2 * saved, 3 * flops)


def mlp_case(t: int, d: int, h: int, name: str) -> Case:
    gate = name.removesuffix("_packed")  # gate and up in one weight
    args = {
        "shape": (t, d, h),
        "activation": GATES.get(gate, gate),
        "gated": gate in GATES,
        "packed": gate != name,
    }
    return Case(f"T{t}_d{d}_h{h}/{name}", args)


def fused(case: Case) -> Call:
    import fusedops

    activation = case["activation"]
    if case["packed"]:
        return lambda x, both, down, *_: fusedops.gated_mlp(
            x, both, None, down, activation=activation
        )
    if case["gated"]:
        return lambda x, gate, up, down, *_: fusedops.gated_mlp(
            x, gate, up, down, activation=activation
        )
    return lambda x, w1, b1, w2, b2, *_: fusedops.mlp(x, w1, b1, w2, b2, activation)


def eager(case: Case) -> Call:
    act = ACTIVATIONS[case["activation"]]
    if case["packed"]:
        return lambda x, both, down, *_: eager_packed(act, x, both, down)
    if case["gated"]:
        return lambda x, gate, up, down, *_: F.linear(
            act(F.linear(x, gate)) * F.linear(x, up), down
        )
    return lambda x, w1, b1, w2, b2, *_: F.linear(act(F.linear(x, w1, b1)), w2, b2)


def eager_packed(act: Call, x: Tensor, both: Tensor, down: Tensor) -> Tensor:
    gate, up = F.linear(x, both).chunk(2, dim=-1)
    return F.linear(act(gate) * up, down)


def as_pass(forward: Call, pass_: str) -> Call:
    """`step` runs the forward and returns y and the gradient of every input."""
    if pass_ == "fwd":
        return forward

    def step(*inputs: Tensor) -> tuple[Any, ...]:
        y = forward(*inputs)
        return (y.detach(), *torch.autograd.grad(y, inputs[:-1], inputs[-1]))

    return step


SUITE = MLPSuite
