"""Where a contender's time goes: shares of GEMMs, attention, norms and the rest."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from fusedops._timing.timing import synchronize

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    for event in seen.key_averages():
        spent[kind(event.key)] += _own_time(event, on_gpu)
    busy = sum(spent.values())
    return {"busy_us": busy} | {k: spent[k] / busy if busy else 0.0 for k in KINDS}


def _own_time(event: Any, on_gpu: bool) -> float:
    if not on_gpu:
        return float(event.self_cpu_time_total)
    is_kernel = event.device_type == DeviceType.CUDA
    return float(event.self_device_time_total) if is_kernel else 0.0
