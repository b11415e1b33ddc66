"""Times the kernels that have an epilogue: perf/results/GPU/gemm_epilogue.csv.

    python perf/gemm/epilogue_gemm.py perf/results/h100/gemm_epilogue.csv --budget 60

Which tile is the fastest where z is stored beside act(z) (preact), and where dz = dh * act'(z) and
its column sums are formed (grad): on the products of MLPs, 8 ms of each kernel in a row in three
shuffled rounds beside torch.mm, which has no epilogue. The sweeps of tune_gemm.py know the first
alone. Each kernel is made the measured plan of its product while its op runs.
"""

from __future__ import annotations

import argparse
import csv
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from sustained_gemm import in_turns
from torch import Tensor

from fusedops import _C
from fusedops._core.activation import CODES
from fusedops._tuning.names import plan_text
from fusedops._tuning.plan_store import GpuKey, gpu_key

if TYPE_CHECKING:
    from collections.abc import Iterator

# Tokens, width and hidden width of MLPs; the activation of each.
BLOCKS = [
    (12608, 1024, 4096, "gelu"),
    (16384, 1024, 4096, "gelu"),
    (8192, 1024, 4096, "gelu_tanh"),
    (4096, 2048, 8192, "relu"),
    (12288, 768, 3072, "gelu_tanh"),
    (4096, 4096, 16384, "silu"),
]
EPILOGUES = ("preact", "grad")
COLUMNS = ["epilogue", "activation", "m", "n", "k", "plan", "chosen", "expected_us", "us"]
RUN_MS = 8.0
KEPT = 1.3  # of the best of a first try
F = torch.ops.fusedops


def call_of(epilogue: str, sizes: tuple[int, int, int], act: int) -> tuple[Any, Any]:
    """(our call, torch.mm of the same product)."""
    tokens, width, hidden = sizes

    def made(*shape: int) -> Tensor:
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

    x, z, bias = made(tokens, width), made(tokens, hidden), made(hidden)
    if epilogue == "preact":
        weight = made(hidden, width) / width**0.5
        return lambda: F.linear_preact(x, weight, bias, act, False), lambda: torch.mm(x, weight.t())
    weight = made(width, hidden) / width**0.5
    flags = (True, True, False, False, False, False)  # dz and its sums
    return lambda: F.mlp_backward(x, z, weight, act, *flags), lambda: torch.mm(x, weight)


def candidates(problem: dict[str, Any], key: GpuKey) -> Iterator[tuple[dict[str, Any], bool]]:
    answer = _C.plan_gemm(problem, key.capability, key.sm_count)
    for plan in answer["candidates"]:
        if plan["rejected"] is None and plan["family"] == "sm90":
            yield plan, plan_text(plan) == plan_text(answer["selected"])


def timed(problem: dict[str, Any], key: GpuKey, ours: Any, theirs: Any) -> dict[str, list[Any]]:
    """By the text of a kernel: whether it is chosen, its expected and its measured time."""
    plans = {plan_text(plan): (plan, chosen) for plan, chosen in candidates(problem, key)}

    def choose(name: str) -> None:
        _C.clear_tuned_plans()
        if name in plans:
            plan = plans[name][0] | {"us": 1.0}
            if not _C.add_tuned_plan(problem, plan, key.capability, key.sm_count):
                raise RuntimeError(f"{name} is no plan of this build")

    times = in_turns(dict.fromkeys(plans, ours) | {"torch.mm": theirs}, KEPT, RUN_MS, choose)
    _C.clear_tuned_plans()
    found = {}
    for name, us in times.items():
        plan, chosen = plans.get(name, ({"expected_us": ""}, ""))
        found[name] = [chosen, plan["expected_us"], us]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("out", type=Path)
    parser.add_argument("--budget", type=float, default=120, help="seconds")
    options = parser.parse_args()
    key = gpu_key(torch.device("cuda", torch.cuda.current_device()))
    start, rows = time.time(), []
    for (*sizes, act), epilogue in ((b, e) for b in BLOCKS for e in EPILOGUES):
        if time.time() - start > options.budget:
            print("budget spent before", epilogue, sizes)
            break
        m, k, n = sizes
        problem = _C.prepare_gemm(
            m, n, k, a=(k, 1, 0), b=(1, k, 0) if epilogue == "preact" else (n, 1, 0),
            dtype="bfloat16", epilogue=epilogue, activation=CODES[act], allow_tf32=False,
            capability=key.capability, sm_count=key.sm_count,
        )["problem"]  # fmt: skip
        found = timed(problem, key, *call_of(epilogue, (m, k, n), CODES[act]))
        for plan, values in sorted(found.items(), key=lambda item: item[1][-1]):
            rows.append([epilogue, act, m, n, k, plan, *values])
            print(*rows[-1])
        with options.out.open("w", newline="") as file:
            csv.writer(file).writerows([COLUMNS, *rows])


if __name__ == "__main__":
    main()
