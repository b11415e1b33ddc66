"""The gradient of an embedding against torch's and what Inductor makes of it."""

from __future__ import annotations

import torch
from torch import Tensor

from fusedops.bench.suites.base import Call, Case, PeerUnavailableError, Selection, Suite, Work
from fusedops.bench.suites.linear import compiled

# Tokens, rows, D: Llama 3.2 1B, Qwen 3 0.6B, GPT-2 medium.
SHAPES = ((4096, 128256, 2048), (4096, 151936, 1024), (8192, 50257, 1024))


class EmbeddingSuite(Suite):
    name = "embedding"
    passes: tuple[str, ...] = ("bwd",)
    shape = "MxVxD"

    def cases(self, selection: Selection) -> list[Case]:
        shapes = selection.shapes or SHAPES
        return [Case(f"embedding/{'x'.join(map(str, s))}", {"shape": s}) for s in shapes]

    def make_inputs(
        self, case: Case, dtype: torch.dtype, pass_: str, device: torch.device
    ) -> tuple[Tensor, ...]:
        tokens, rows, d = case["shape"]
        grad = torch.randn(tokens, d, dtype=dtype, device=device)
        # As in a language, by Zipf's law: row r about as often as 1 / (r + 1).
        drawn = (rows + 1) ** torch.rand(tokens, dtype=torch.float64, device=device)
        return grad, (drawn.long() - 1).clamp(0, rows - 1)

    def ours(self, case: Case, pass_: str) -> Call:
        rows = case["shape"][1]
        return lambda grad, indices: torch.ops.fusedops.embedding_backward(grad, indices, rows, -1)

    def peers(self, case: Case, pass_: str) -> tuple[str, ...]:
        return ("eager", "compile")

    def default_peers(self, pass_: str) -> tuple[str, ...]:
        return ("eager", "compile")

    def peer(self, name: str, case: Case, pass_: str, device: torch.device) -> Call:
        rows = case["shape"][1]

        def by_torch(grad: Tensor, indices: Tensor) -> Tensor:
            return torch.ops.aten.embedding_dense_backward(grad, indices, rows, -1, False)

        if name == "eager":
            return by_torch
        if name == "compile":
            return compiled(by_torch)
        raise PeerUnavailableError(f"the suite has no peer {name!r}")

    def work(self, case: Case, dtype: torch.dtype, pass_: str) -> Work:
        tokens, rows, d = case["shape"]
        return Work((tokens + rows) * d * dtype.itemsize + 8 * tokens, tokens * d)


SUITE = EmbeddingSuite
