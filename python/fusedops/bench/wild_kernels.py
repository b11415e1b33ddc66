"""Names the kernels of the worst cases of `wild`: what its report shows beside their times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

import fusedops
from fusedops import _C
from fusedops.bench.report import results
from fusedops.bench.report.wild import WORST, best_peers
from fusedops.bench.runner import first_line
from fusedops.bench.suites.base import Case, Suite, torch_dtype

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

NAMES = 4  # of a profile that are kept, the longest kernels first
NAME_LENGTH = 60


def store_kernels(
    path: Path, suite: Suite, cases: Mapping[str, Case], device: torch.device
) -> None:
    """Beside the results: the kernels of every family's worst cases among `cases`."""
    if not path.exists():
        return
    rows = [row for row in results.read_rows(path) if row["case"] in cases]
    found = []
    for family in best_peers(rows).values():
        for row, _ in family[:WORST]:
            case = cases[row["case"]]
            try:
                kernels = planned(suite, case, device) or profiled(suite, case, device)
            except Exception as error:  # a name must not cost the results
                kernels = f"unknown: {first_line(error)}"
            common = {name: row[name] for name in ("case", "dtype", "pass", *results.MACHINE)}
            found.append(common | {"kernels": kernels})
    file = path.with_name(f"{path.stem}_kernels.csv")
    results.merge_rows(file, found, results.KERNELS_COLUMNS, results.KERNELS_KEY)


def planned(suite: Suite, case: Case, device: torch.device) -> str:
    """What the planners say, as `explain` prints it; empty: they plan no such op.

    On a machine without a GPU an H200 is assumed.
    """
    dtype, paper = torch_dtype(case["dtype"]), torch.device("meta")
    if case["family"] in ("linear", "skinny"):
        x, weight, bias, *_ = suite.make_inputs(case, dtype, case["pass"], paper)
        report: Any = fusedops.explain(x, weight, bias, case["activation"])
        return "; ".join(product.kernel for product in report.products)
    if case["family"] != "reduce":
        return ""
    (x,) = suite.make_inputs(case, dtype, case["pass"], paper)
    dim = case["dim"]
    dims = range(x.dim()) if dim is None else (dim,) if isinstance(dim, int) else dim
    reduced = [i in dims for i in range(x.dim())]
    options = {"element_bytes": x.element_size(), "indexed": case["kind"] == "argmax"}
    if device.type == "cuda":
        options["sm_count"] = torch.cuda.get_device_properties(device).multi_processor_count
    plan = _C.reduce_plan(list(x.shape), list(x.stride()), reduced, **options)
    threads = "x".join(map(str, plan["threads"]))
    parts = f", {plan['parts']} parts" if plan["parts"] > 1 else ""
    return f"{plan['kernel']} {threads}{parts}{', copied first' if plan['copy'] else ''}"


def profiled(suite: Suite, case: Case, device: torch.device) -> str:
    """The kernels that a call launches, the longest first; empty without a GPU."""
    if device.type != "cuda":
        return ""
    pass_ = case["pass"]
    with suite.context(case["dtype"]), torch.set_grad_enabled(pass_ != "fwd"):
        inputs = suite.make_inputs(case, torch_dtype(case["dtype"]), pass_, device)
        call = suite.ours(case, pass_)
        call(*inputs)
        torch.cuda.synchronize(device)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            call(*inputs)
            torch.cuda.synchronize(device)
    kernels = [event for event in profile.key_averages() if event.device_time_total > 0]
    kernels.sort(key=lambda event: -event.device_time_total)
    return "; ".join(_short(event.key) for event in kernels[:NAMES])


def _short(name: str) -> str:
    """A kernel's name without its return type, namespaces and arguments."""
    name = name.removeprefix("void ").split("(")[0].replace("fusedops::", "")
    return name if len(name) <= NAME_LENGTH else name[: NAME_LENGTH - 3] + "..."
