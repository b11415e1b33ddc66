"""Row ops: softmax, layer_norm, rms_norm and cross_entropy, forward and backward alone.

A `fwd` case runs without gradients: ours writes no statistics of rows then, as compiled and QuACK
kernels do. A `bwd` case gets what the forward saved as inputs, so it times the gradient kernels and
nothing else; peers get the same tensors.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from fusedops.bench.suites.base import Call, Case, PeerUnavailableError, Selection, Suite, Work
from fusedops.bench.suites.linear import compiled
from fusedops.bench.suites.quack_rows import quack_rows

if TYPE_CHECKING:
    from torch import Tensor

LARGE_BYTES = 1 << 28
LENGTHS = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
NEIGHBOURS = {1023: 1024, 4097: 4096, 50257: 50256}  # odd lengths and even ones beside them
VOCABULARIES = (32000, 50257, 128256)
# At most 64 KB of bf16: the time of a kernel more than that of memory.
SMALL = ((8, 4096), (32, 1024), (128, 256), (16, 1000), (1, 32768))
EPS = 1e-5
IGNORE = -100

# What an op reads and writes of x's size, forward and backward.
STREAMS = {
    "softmax": (2, 3),
    "log_softmax": (2, 3),
    "layer_norm": (2, 3),
    "rms_norm": (2, 3),
    "rms_norm_residual": (4, 4),
    "cross_entropy": (1, 2),
}


class NormSuite(Suite):
    name = "norm"
    passes: tuple[str, ...] = ("fwd", "bwd")

    def cases(self, selection: Selection) -> list[Case]:
        cases = []
        for op in STREAMS:
            rows = (*LENGTHS, *NEIGHBOURS.values(), *NEIGHBOURS)
            lengths = dict.fromkeys(VOCABULARIES if op == "cross_entropy" else rows)
            shapes = [(LARGE_BYTES // 2 // n, n) for n in lengths]
            for shape in selection.shapes or (*shapes, *SMALL):
                m, n = math.prod(shape[:-1]), shape[-1]
                cases.append(Case(f"{op}/{m}x{n}", {"op": op, "shape": (m, n)}))
        return cases

    def make_inputs(
        self, case: Case, dtype: torch.dtype, pass_: str, device: torch.device
    ) -> tuple[Tensor, ...]:
        m, n = case["shape"]
        x, other = (torch.randn(m, n, dtype=dtype, device=device) for _ in range(2))
        weight, bias = (torch.randn(n, dtype=dtype, device=device) for _ in range(2))
        op = case["op"]
        if op == "cross_entropy":
            target = torch.randint(n, (m,), device=device)
            if pass_ == "fwd":
                return x, target
            lse, count = x.float().logsumexp(1), torch.full((), m, dtype=dtype, device=device)
            return torch.ones_like(count), x, target, lse, count, lse.new_full((1,), 1 / m)
        if op.endswith("softmax"):
            if pass_ == "fwd":
                return (x,)
            return other, torch.softmax(x, 1) if op == "softmax" else torch.log_softmax(x, 1)
        if pass_ == "fwd":
            return {"layer_norm": (x, weight, bias), "rms_norm": (x, weight)}.get(
                op, (x, weight, other)
            )
        mean, rstd = row_statistics(x, op)
        if op == "rms_norm_residual":
            return other, torch.randn_like(x), x, weight, rstd
        return (other, x, weight, rstd) if op == "rms_norm" else (other, x, weight, mean, rstd)

    def ours(self, case: Case, pass_: str) -> Call:
        return (OURS_FORWARD if pass_ == "fwd" else OURS_BACKWARD)[case["op"]]

    def peers(self, case: Case, pass_: str) -> tuple[str, ...]:
        return ("eager", "compile", "quack")

    def default_peers(self, pass_: str) -> tuple[str, ...]:
        return ("eager", "compile", "quack")

    def peer(self, name: str, case: Case, pass_: str, device: torch.device) -> Call:
        eager = (EAGER_FORWARD if pass_ == "fwd" else EAGER_BACKWARD)[case["op"]]
        if pass_ == "bwd" and device.type != "cuda" and case["op"] in FORMULAS:
            eager = FORMULAS[case["op"]]
        if name == "eager":
            return eager
        if name == "compile":
            return compiled(eager)
        if name == "quack":
            return quack_rows(case["op"], pass_)
        raise PeerUnavailableError(f"the suite has no peer {name!r}")

    def work(self, case: Case, dtype: torch.dtype, pass_: str) -> Work:
        m, n = case["shape"]
        return Work(STREAMS[case["op"]][pass_ != "fwd"] * m * n * dtype.itemsize, 0)


def row_statistics(x: Tensor, op: str) -> tuple[Tensor, Tensor]:
    """(mean, rstd) of the rows in float32."""
    wide = x.float()
    if op == "layer_norm":
        var, mean = torch.var_mean(wide, 1, correction=0)
        return mean, (var + EPS).rsqrt()
    return wide.new_zeros(0), (wide.square().mean(1) + EPS).rsqrt()


def _ops() -> Any:
    import fusedops  # noqa: F401  (registers the ops)

    return torch.ops.fusedops


def _last(x: Tensor) -> tuple[int, ...]:
    return (x.shape[-1],)


OURS_FORWARD: dict[str, Call] = {
    "softmax": lambda x: _ops().softmax(x, 1, False, False),
    "log_softmax": lambda x: _ops().softmax(x, 1, True, False),
    "layer_norm": lambda x, w, b: _ops().layer_norm(x, None, w, b, 1, EPS, False, False)[0],
    "rms_norm": lambda x, w: _ops().rms_norm(x, None, w, 1, EPS, False, False)[0],
    "rms_norm_residual": lambda x, w, r: _ops().rms_norm(x, r, w, 1, EPS, False, False)[:2],
    "cross_entropy": lambda x, t: _ops().cross_entropy(x, t, IGNORE, 0.0, 1, False)[0],
}
OURS_BACKWARD: dict[str, Call] = {
    "softmax": lambda dy, y: _ops().softmax_backward(dy, y, 1, False, 0),
    "log_softmax": lambda dy, y: _ops().softmax_backward(dy, y, 1, True, 0),
    "layer_norm": lambda dy, x, w, mean, rstd: _ops().layer_norm_backward(
        dy, None, x, w, mean, rstd, 1, True, True, True
    ),
    "rms_norm": lambda dy, x, w, rstd: _ops().rms_norm_backward(
        dy, None, x, w, rstd, 1, True, True
    ),
    "rms_norm_residual": lambda dy, dr, x, w, rstd: _ops().rms_norm_backward(
        dy, dr, x, w, rstd, 1, True, True
    ),
    "cross_entropy": lambda dloss, x, t, lse, _, inverse: _ops().cross_entropy_backward(
        dloss, x, t, lse, inverse, IGNORE, 0.0, 1
    ),
}


def _eager_rms_residual(x: Tensor, w: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
    total = x + r
    return F.rms_norm(total, _last(x), w, EPS), total


def _eager_rms_backward(dy: Tensor, x: Tensor, w: Tensor, rstd: Tensor) -> tuple[Tensor, Tensor]:
    dx, dw = torch.ops.aten._fused_rms_norm_backward(
        dy, x, _last(x), rstd.unsqueeze(1), w, [True, True]
    )
    return dx, dw


def _eager_rms_residual_backward(
    dy: Tensor, dr: Tensor, x: Tensor, w: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor]:
    dx, dw = _eager_rms_backward(dy, x, w, rstd)
    return dx + dr, dw


def _eager_cross_entropy_backward(
    dloss: Tensor, x: Tensor, t: Tensor, lse: Tensor, count: Tensor, _: Tensor
) -> Tensor:
    """From what autograd saves: the log-probabilities in x's dtype."""
    log_p = (x.float() - lse.unsqueeze(1)).to(x.dtype)
    grad = torch.ops.aten.nll_loss_backward(dloss, log_p, t, None, 1, IGNORE, count)
    return torch.ops.aten._log_softmax_backward_data(grad, log_p, 1, x.dtype)


EAGER_FORWARD: dict[str, Call] = {
    "softmax": lambda x: torch.softmax(x, 1),
    "log_softmax": lambda x: torch.log_softmax(x, 1),
    "layer_norm": lambda x, w, b: F.layer_norm(x, _last(x), w, b, EPS),
    "rms_norm": lambda x, w: F.rms_norm(x, _last(x), w, EPS),
    "rms_norm_residual": _eager_rms_residual,
    "cross_entropy": F.cross_entropy,
}
EAGER_BACKWARD: dict[str, Call] = {
    "softmax": lambda dy, y: torch.ops.aten._softmax_backward_data(dy, y, 1, y.dtype),
    "log_softmax": lambda dy, y: torch.ops.aten._log_softmax_backward_data(dy, y, 1, y.dtype),
    "layer_norm": lambda dy, x, w, mean, rstd: torch.ops.aten.native_layer_norm_backward(
        dy, x, _last(x), mean.unsqueeze(1), rstd.unsqueeze(1), w, w, [True, True, True]
    ),
    "rms_norm": _eager_rms_backward,
    "rms_norm_residual": _eager_rms_residual_backward,
    "cross_entropy": _eager_cross_entropy_backward,
}


def _formula(
    dy: Tensor, x: Tensor, w: Tensor, mean: Tensor | None, rstd: Tensor
) -> tuple[Tensor, ...]:
    """The gradients of a norm in torch functions: its gradient kernels that we call are CUDA's."""
    d, scale = dy.float(), rstd.unsqueeze(1)
    xhat = (x.float() if mean is None else x.float() - mean.unsqueeze(1)) * scale
    g = d * w.float()
    dx = g - xhat * (g * xhat).mean(1, keepdim=True)
    dw = (d * xhat).sum(0).to(w.dtype)
    if mean is None:
        return (dx * scale).to(x.dtype), dw
    return ((dx - g.mean(1, keepdim=True)) * scale).to(x.dtype), dw, d.sum(0).to(w.dtype)


def _formula_residual(
    dy: Tensor, dr: Tensor, x: Tensor, w: Tensor, rstd: Tensor
) -> tuple[Tensor, ...]:
    dx, dw = _formula(dy, x, w, None, rstd)
    return dx + dr, dw


FORMULAS: dict[str, Call] = {
    "layer_norm": _formula,
    "rms_norm": lambda dy, x, w, rstd: _formula(dy, x, w, None, rstd),
    "rms_norm_residual": _formula_residual,
}


SUITE = NormSuite
