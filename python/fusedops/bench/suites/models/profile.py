"""Where a contender's time goes: shares of GEMMs, attention, norms and the rest."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from fusedops._timing.timing import synchronize

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch
    from torch import Tensor

    from fusedops.bench.suites.base import Call

KINDS = ("gemm", "attention", "norm", "other")
# The first that a kernel's name holds decides; on a CPU the names are those of ops.
PATTERNS = (
    ("attention", re.compile(r"fmha|flash|sdpa|attention|attn", re.I)),
    ("norm", re.compile(r"norm|rsqrt|welford", re.I)),
    (
        "gemm",
        re.compile(
            r"gemm|nvjet|cutlass|wgmma|xmma|splitk|cluster_kernel|skinny_kernel|narrow_(pair_)?kernel"
            r"|::(b?mm|addmm|baddbmm|linear|convolution)|fusedops::\w*(linear|mlp)|conv\d?d|triton_tem",
            re.I,
        ),
    ),
)


def kind(name: str) -> str:
    return next((kind for kind, pattern in PATTERNS if pattern.search(name)), "other")


def shares(call: Call, data: Sequence[Tensor], device: torch.device) -> dict[str, float]:
    """`busy_us`, the time of all kernels of one call, and the share of each kind in it."""
    on_gpu = device.type == "cuda"
    activity = ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU
    synchronize(device)
    with profile(activities=[activity]) as seen:
        call(*data)
        synchronize(device)
    spent: dict[str, float] = defaultdict(float)
    for name, us in _own_times(seen, on_gpu):
        spent[kind(name)] += us
    busy = sum(spent.values())
    return {"busy_us": busy} | {k: spent[k] / busy if busy else 0.0 for k in KINDS}


def _own_times(seen: Any, on_gpu: bool) -> Iterator[tuple[str, float]]:
    """(name, us) of kernels, or of ops on a CPU.

    A kernel that begins before its predecessor's end (programmatic dependent launch) waits for it:
    its time counts from there.
    """
    if not on_gpu:
        for event in seen.key_averages():
            yield event.key, float(event.self_cpu_time_total)
        return
    kernels = [e for e in seen.events() if e.device_type == DeviceType.CUDA]
    done = 0.0
    for event in sorted(kernels, key=lambda e: e.time_range.start):
        yield event.name, max(event.time_range.end - max(event.time_range.start, done), 0.0)
        done = max(done, event.time_range.end)
