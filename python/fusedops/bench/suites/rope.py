"""Rotary position embeddings of query and key against eager torch, torch.compile and Liger."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

import fusedops
from fusedops.bench.suites.base import Call, Case, PeerUnavailableError, Selection, Suite, Work
from fusedops.bench.suites.linear import compiled

if TYPE_CHECKING:
    from collections.abc import Callable

BATCH = 8
GROUP = 4  # heads of q to one of k
# (tokens, heads of q, D)
SHAPES = ((4096, 32, 128), (2048, 64, 128), (4096, 16, 64), (4096, 32, 96), (1, 32, 128))


def rotate_half(x: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)


def by_torch(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """As Hugging Face's models write it."""
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


def in_float64(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rounded once, as ours."""
    y, z = by_torch(q.double(), k.double(), cos.double(), sin.double())
    return y.to(q.dtype), z.to(q.dtype)


def liger() -> Callable[..., Any]:
    try:
        from liger_kernel.transformers.rope import liger_rotary_pos_emb
    except ImportError as error:
        raise PeerUnavailableError(f"liger_kernel is not installed ({error})") from None
    # NOTE: it rotates contiguous tensors in place, and other ones as copies.
    rotate: Callable[..., Any] = liger_rotary_pos_emb
    return lambda q, k, cos, sin: rotate(q.clone(), k.clone(), cos, sin)


def as_pass(forward: Call, pass_: str) -> Call:
    """`step` takes dq and dk behind the operands and returns results and gradients."""
    if pass_ == "fwd":
        return forward

    def step(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, dq: Tensor, dk: Tensor) -> Any:
        results = forward(q, k, cos, sin)
        grads = torch.autograd.grad(results, (q, k), (dq, dk))
        return (*(t.detach() for t in results), *grads)

    return step


class RopeSuite(Suite):
    name = "rope"
    passes: tuple[str, ...] = ("fwd", "step")
    shape = "TxHxD"
    reference_peer = "reference"

    def cases(self, selection: Selection) -> list[Case]:
        shapes = selection.shapes or SHAPES
        return [Case(f"rope/{'x'.join(map(str, s))}", {"shape": s}) for s in shapes]

    def make_inputs(
        self, case: Case, dtype: torch.dtype, pass_: str, device: torch.device
    ) -> tuple[Tensor, ...]:
        (time, heads, d), batch = case["shape"], BATCH
        step = pass_ != "fwd"

        def rows(count: int) -> Tensor:  # as a projection gives them
            x = torch.randn(batch, time, count, d, dtype=dtype, device=device)
            return x.transpose(1, 2)

        positions = torch.arange(time, device=device, dtype=torch.float32)
        angles = positions[:, None] * 10000.0 ** -torch.linspace(0, 1, d // 2, device=device)
        angles = torch.cat((angles, angles), -1).expand(batch, -1, -1)
        k_heads = -(-heads // GROUP)
        q, k = rows(heads).requires_grad_(step), rows(k_heads).requires_grad_(step)
        inputs = (q, k, angles.cos().to(dtype), angles.sin().to(dtype))
        return (*inputs, rows(heads), rows(k_heads)) if step else inputs

    def ours(self, case: Case, pass_: str) -> Call:
        return as_pass(fusedops.rope, pass_)

    def peers(self, case: Case, pass_: str) -> tuple[str, ...]:
        return ("eager", "compile", "liger")

    def default_peers(self, pass_: str) -> tuple[str, ...]:
        return ("eager", "compile")

    def peer(self, name: str, case: Case, pass_: str, device: torch.device) -> Call:
        if name == "reference":
            return as_pass(in_float64, pass_)
        if name == "eager":
            return as_pass(by_torch, pass_)
        if name == "compile":
            return as_pass(compiled(by_torch), pass_)
        if name == "liger":
            return as_pass(liger(), pass_)
        raise PeerUnavailableError(f"the suite has no peer {name!r}")

    def work(self, case: Case, dtype: torch.dtype, pass_: str) -> Work:
        (time, heads, d), batch = case["shape"], BATCH
        tables = 2 * batch * time * d
        numbers = 2 * batch * time * (heads + -(-heads // GROUP)) * d + tables
        return Work(numbers * dtype.itemsize * (1 if pass_ == "fwd" else 2), 0)


SUITE = RopeSuite
