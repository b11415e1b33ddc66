"""The last layer of a language model with its loss: the loss alone, and a step with gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from fusedops.bench.suites.base import Call, Case, PeerUnavailableError, Selection, Suite, Work
from fusedops.bench.suites.linear import compiled

if TYPE_CHECKING:
    from torch import Tensor

# Rows, hidden size, vocabulary: Llama 3 8B and 1B, Qwen 3, Mistral, Gemma, GPT-2.
SHAPES = (
    (4096, 4096, 128256),
    (8192, 2048, 128256),
    (8192, 1024, 151936),
    (8192, 4096, 32000),
    (4096, 2048, 256000),
    (8192, 1024, 50257),
    (16384, 768, 50304),
)


class LossSuite(Suite):
    name = "loss"
    shape = "MxKxV"
    passes: tuple[str, ...] = ("fwd", "step")

    def cases(self, selection: Selection) -> list[Case]:
        shapes = selection.shapes or SHAPES
        return [Case(f"linear_cross_entropy/{m}x{k}x{v}", {"shape": (m, k, v)})
                for m, k, v in shapes]  # fmt: skip

    def make_inputs(
        self, case: Case, dtype: torch.dtype, pass_: str, device: torch.device
    ) -> tuple[Tensor, ...]:
        m, k, v = case["shape"]
        x = torch.randn(m, k, dtype=dtype, device=device)
        weight = torch.randn(v, k, dtype=dtype, device=device).mul_(k**-0.5)
        target = torch.randint(v, (m,), device=device)
        needs = pass_ == "step"
        return x.requires_grad_(needs), weight.requires_grad_(needs), target

    def ours(self, case: Case, pass_: str) -> Call:
        import fusedops

        return as_pass(fusedops.linear_cross_entropy, pass_)

    def peers(self, case: Case, pass_: str) -> tuple[str, ...]:
        return ("eager", "compile", "liger")

    def default_peers(self, pass_: str) -> tuple[str, ...]:
        return ("eager", "compile", "liger")

    def peer(self, name: str, case: Case, pass_: str, device: torch.device) -> Call:
        if name == "eager":
            return as_pass(eager, pass_)
        if name == "compile":
            return as_pass(compiled(eager), pass_)
        if name == "liger":
            return as_pass(liger(), pass_)
        raise PeerUnavailableError(f"the suite has no peer {name!r}")

    def work(self, case: Case, dtype: torch.dtype, pass_: str) -> Work:
        m, k, v = case["shape"]
        read, flops = (m * k + v * k) * dtype.itemsize, 2.0 * m * k * v
        return Work(read, flops) if pass_ == "fwd" else Work(2 * read, 3 * flops)


def eager(x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(x, weight), target)


def liger() -> Call:
    try:
        from liger_kernel.transformers import functional
    except ImportError as error:
        raise PeerUnavailableError(f"Liger is not installed ({error})") from error
    call: Call = functional.liger_fused_linear_cross_entropy
    return call


def as_pass(forward: Call, pass_: str) -> Call:
    """`step` returns (loss, dx, dweight)."""
    if pass_ == "fwd":
        return forward

    def step(x: Tensor, weight: Tensor, target: Tensor) -> tuple[Any, ...]:
        loss = forward(x, weight, target)
        return (loss.detach(), *torch.autograd.grad(loss, (x, weight)))

    return step


SUITE = LossSuite
