"""Measuring GEMM kernels: what `tune` and perf/gemm/tune_gemm.py time, on what, and how.

A problem is a dict as ``_C.plan_gemm`` takes it, a candidate one as it returns it.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from .. import _C
from .._autograd.compose import activate
from .names import EPILOGUES, FAMILIES

if TYPE_CHECKING:
    from .plan_store import GpuKey

Problem = dict[str, Any]
Candidate = dict[str, Any]
Inputs = tuple[Tensor, Tensor, Tensor | None]
Call = Callable[..., Tensor]

TUNABLE = ("fused", "preact", "accumulator")  # epilogues that gemm_with_config runs
SWIZZLES = (4, 8, 16, 32)
CLUSTER_TILES = (1, 4, 8)  # the swizzles of family cluster (csrc/cutlass/configs/plan.h)

SAMPLE_US = 150.0  # device time of one sample: that many calls in a row
MOST_CALLS = 16
TOLERANCES = {"float16": 2e-3, "bfloat16": 1e-2, "float32": 2e-3}  # relative norms; float32 is TF32


# ---- candidates ----


def candidates(problem: Problem, key: GpuKey) -> list[Candidate]:
    """The kernels, splits and tile clusters that can run a problem, by expected time."""
    found = _C.plan_gemm(problem, key.capability, key.sm_count)["candidates"]
    usable = [c for c in found if c["rejected"] is None]
    return sorted(usable, key=lambda c: cast("float", c["expected_us"]))


def kernel_of(candidate: Candidate) -> tuple[Any, ...]:
    """What is the same for every swizzle."""
    return tuple(candidate[name] for name in ("family", "index", "splits"))


def orders(plans: Sequence[Candidate], swizzles: Sequence[int] = SWIZZLES) -> list[Candidate]:
    """Every swizzle of the plans."""
    return [plan | {"swizzle": swizzle} for plan in plans for swizzle in _orders(plan, swizzles)]


def _orders(plan: Candidate, swizzles: Sequence[int]) -> Sequence[int]:
    return cluster_tiles(plan["name"]) if plan["family"] == "cluster" else swizzles


def cluster_tiles(name: str) -> tuple[int, ...]:
    """Numbers of tiles whose blocks may share operands: several where each block has its own."""
    return CLUSTER_TILES if name.endswith(" 1x1") else (1,)


# ---- products ----


def make_inputs(problem: Problem, device: torch.device, *, with_bias: bool = True) -> Inputs:
    """a (m, k), b (k, n) in the problem's layout and padding, bias (n,) or None; random."""
    dtype = getattr(torch, problem["dtype"])

    def operand(rows: int, k: int, major: str, ld: int, scale: float) -> Tensor:
        lines, extent = (rows, k) if major == "k" else (k, rows)
        padded = min(ld, -(-extent // 64) * 64 + ld % 64)  # the same alignment, less memory
        whole = torch.randn(lines, max(padded, extent), dtype=dtype, device=device)
        view = whole.mul_(scale)[:, :extent]
        return view if major == "k" else view.t()

    m, n, k = problem["m"], problem["n"], problem["k"]
    a = operand(m, k, problem["a_major"], problem["lda"], 1.0)
    b = operand(n, k, problem["b_major"], problem["ldb"], k**-0.5).t()
    if problem["epilogue"] == "accumulator" or not with_bias:
        return a, b, None
    return a, b, torch.randn(n, dtype=dtype, device=device)


def make_sets(
    problem: Problem, device: torch.device, *, with_bias: bool = True
) -> tuple[list[Inputs], Tensor]:
    """As many inputs as do not stay in L2, and the product of the first."""
    from .._timing.timing import num_bytes, num_sets

    first = make_inputs(problem, device, with_bias=with_bias)
    reference = expected(problem, first)
    bytes_each = num_bytes([t for t in first if t is not None]) + num_bytes([reference])
    more = range(num_sets(bytes_each, device) - 1)
    return [first, *(make_inputs(problem, device, with_bias=with_bias) for _ in more)], reference


def expected(problem: Problem, inputs: Inputs) -> Tensor:
    """The product by torch."""
    a, b, bias = inputs
    z = torch.mm(a, b) if bias is None else torch.addmm(bias, a, b)
    return activate(z, problem["activation"])


def our_call(problem: Problem, plan: Candidate) -> Call:
    """The product through a plan."""
    op = torch.ops.fusedops_tuning.gemm_with_config.default
    fixed = (problem["activation"], FAMILIES[plan["family"]], plan["index"], plan["splits"])
    order = (plan["swizzle"], EPILOGUES[problem["epilogue"]])
    return lambda a, b, bias: cast("Tensor", op(a, b, bias, *fixed, *order))


def error_of(problem: Problem, plan: Candidate, inputs: Inputs, reference: Tensor) -> float | None:
    """A plan's relative error, None where it cannot run; the call is also the warm-up."""
    from .._timing.timing import synchronize

    try:
        got = our_call(problem, plan)(*inputs)
    except torch.cuda.OutOfMemoryError:
        raise
    except RuntimeError:
        synchronize(reference.device)  # raises where the context is gone
        return None
    want = reference.float()
    return float(torch.linalg.vector_norm(got.float() - want) / torch.linalg.vector_norm(want))


def is_right(problem: Problem, error: float | None) -> bool:
    """Whether a plan ran and computed the product; NaN did not."""
    return error is not None and error <= TOLERANCES[problem["dtype"]]


# ---- time ----


def median_us(
    calls: Sequence[tuple[Call, float]],
    sets: Sequence[Inputs],
    rounds: int,
    device: torch.device,
) -> list[float]:
    """Median us of each (call, us that it is thought to take), in interleaved rounds.

    NOTE: each round has an order of its own, shuffled, not rotated: a call that always follows the
    same one inherits its cache and clocks, which was worth 2 % between two runs of one kernel.
    """
    from .._timing.backlog import sample

    queued = [
        (call, max(1, min(MOST_CALLS, round(SAMPLE_US / max(us, 1.0))))) for call, us in calls
    ]
    samples: list[list[float]] = [[] for _ in queued]
    for round_ in range(rounds):
        order = random.Random(round_).sample(range(len(queued)), len(queued))
        for i, us in zip(order, sample([queued[i] for i in order], sets, device), strict=True):
            samples[i].append(us)
    return [statistics.median(values) for values in samples]
