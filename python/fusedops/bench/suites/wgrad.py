"""Weight gradients dz^T x: into a new bf16 tensor, and into an fp32 main_grad."""

from __future__ import annotations

import torch
from torch import Tensor

from fusedops.bench.suites.base import Call, Case, PeerUnavailableError, Selection, Suite, Work

# M (rows that are summed over), N, K: layers of models of 100M to 8B parameters.
SHAPES = (
    (8192, 4096, 1024),
    (8192, 1024, 4096),
    (8192, 4096, 4096),
    (16384, 3072, 768),
    (16384, 768, 3072),
    (8192, 8192, 2048),
    (8192, 14336, 4096),
    (8192, 4096, 14336),
)
# Where the gradient goes: its own tensor, over what main_grad holds, added to what it holds.
TARGETS = ("own", "write", "add")


class WgradSuite(Suite):
    name = "wgrad"
    shape = "MxNxK"
    passes: tuple[str, ...] = ("bwd",)
    dtypes: tuple[str, ...] = ("bf16", "fp16")
    reference_peer = "float32"  # the eager peer changes main_grad, too

    def cases(self, selection: Selection) -> list[Case]:
        return [
            Case(f"{m}x{n}x{k}/{target}", {"shape": (m, n, k), "target": target})
            for m, n, k in selection.shapes or SHAPES
            for target in TARGETS
        ]

    def make_inputs(
        self, case: Case, dtype: torch.dtype, pass_: str, device: torch.device
    ) -> tuple[Tensor, ...]:
        m, n, k = case["shape"]
        dz = torch.randn(m, n, dtype=dtype, device=device)
        x = torch.randn(m, k, dtype=dtype, device=device)
        if case["target"] == "own":
            return dz, x
        return dz, x, torch.randn(n, k, dtype=torch.float32, device=device)

    def ours(self, case: Case, pass_: str) -> Call:
        if case["target"] == "own":
            return _own
        add = case["target"] == "add"

        def into_main_grad(dz: Tensor, x: Tensor, main_grad: Tensor) -> Tensor:
            torch.ops.fusedops.linear_wgrad_(dz, x, main_grad, add, False)  # no TF32
            return main_grad

        return into_main_grad

    def peers(self, case: Case, pass_: str) -> tuple[str, ...]:
        # ours_own: the same product into its own tensor, what main_grad costs.
        return ("eager",) if case["target"] == "own" else ("eager", "ours_own")

    def default_peers(self, pass_: str) -> tuple[str, ...]:
        return ("eager", "ours_own")

    def peer(self, name: str, case: Case, pass_: str, device: torch.device) -> Call:
        target = case["target"]
        if name == "ours_own":
            return _own
        if name == "eager":
            if target == "own":
                return lambda dz, x: dz.t() @ x
            if device.type != "cuda":
                return lambda dz, x, main_grad: _add(main_grad, dz.t() @ x, target)
            return lambda dz, x, main_grad: _cublas(main_grad, dz, x, target)
        if name == self.reference_peer:
            return lambda *inputs: _exact(*inputs, target=target)
        raise PeerUnavailableError(f"the suite has no peer {name!r}")

    def work(self, case: Case, dtype: torch.dtype, pass_: str) -> Work:
        m, n, k = case["shape"]
        touched = {"own": dtype.itemsize, "write": 4, "add": 8}[case["target"]]
        return Work((m * n + m * k) * dtype.itemsize + n * k * touched, 2 * m * n * k)


def _own(dz: Tensor, x: Tensor, *_: Tensor) -> Tensor:
    import fusedops

    return fusedops.matmul(dz.t(), x)


def _add(main_grad: Tensor, dw: Tensor, target: str) -> Tensor:
    return main_grad.add_(dw) if target == "add" else main_grad.copy_(dw)


def _cublas(main_grad: Tensor, dz: Tensor, x: Tensor, target: str) -> Tensor:
    """cuBLAS with fp32 output, beta 1 or 0: what APEX's gradient accumulation fusion calls."""
    beta = 1.0 if target == "add" else 0.0
    return torch.addmm(main_grad, dz.t(), x, torch.float32, beta=beta, out=main_grad)


def _exact(dz: Tensor, x: Tensor, main_grad: Tensor | None = None, *, target: str) -> Tensor:
    dw = dz.float().t() @ x.float()
    if target == "own":
        return dw.to(dz.dtype)
    return main_grad + dw if target == "add" and main_grad is not None else dw


SUITE = WgradSuite
