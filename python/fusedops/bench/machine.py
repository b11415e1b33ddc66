"""What a result was measured on: names, versions and the two ceilings of that run."""

from __future__ import annotations

import functools
import os
import re
import statistics
import subprocess
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from fusedops._timing.timing import synchronize
from fusedops.bench.suites.base import torch_dtype

if TYPE_CHECKING:
    from collections.abc import Callable

GPU_COPY_BYTES, CPU_COPY_BYTES = 2 << 30, 64 << 20
GPU_MATMUL_SIZE, CPU_MATMUL_SIZE = 8192, 1024
CEILING_REPEATS = 7


def default_device() -> torch.device:
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def gpu_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def folder_name(gpu: str) -> str:
    """`NVIDIA H100 80GB HBM3` -> `h100`: the folder of perf/results, whatever the memory."""
    words = re.sub(r"(?i)^nvidia\s+(geforce\s+)?", "", gpu)
    words = re.sub(r"(?i)\s+\d+\s*GB\b.*", "", words)
    return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")


def today() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%d")


@functools.cache
def commit() -> str:
    """The commit measured: FUSEDOPS_COMMIT, or git's; `+` marks uncommitted sources."""
    if os.environ.get("FUSEDOPS_COMMIT"):
        return os.environ["FUSEDOPS_COMMIT"][:10]
    here = Path(__file__).resolve().parent
    for folder in (here, Path.cwd()):
        head = _git(folder, "rev-parse", "--short=10", "HEAD")
        if head:
            changed = _git(folder, "status", "--porcelain", "-uno", "--", ":/csrc", ":/python")
            return head + ("+" if changed else "")
    return "unknown"


def _git(folder: Path, *args: str) -> str:
    command = ["git", "-C", str(folder), *args]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


@dataclass(frozen=True)
class Ceilings:
    bytes_per_s: float
    flops_per_s: float

    def floor_us(self, num_bytes: float, flops: float) -> float:
        return 1e6 * max(num_bytes / self.bytes_per_s, flops / self.flops_per_s)


@functools.cache
def ceilings(device: torch.device, dtype_label: str) -> Ceilings:
    """Copy bandwidth (read + written) and the matmul rate of the dtype's fastest unit.

    NOTE: fp32 is held against the TF32 rate at both precisions: a bound from below for every
    algorithm that makes fp32 products out of TF32 or bf16 ones.
    """
    return Ceilings(_copy_rate(device), _matmul_rate(device, torch_dtype(dtype_label)))


@functools.cache
def _copy_rate(device: torch.device) -> float:
    num_bytes = GPU_COPY_BYTES if device.type == "cuda" else CPU_COPY_BYTES
    source = torch.randn(num_bytes // 2, device=device, dtype=torch.bfloat16)
    target = torch.empty_like(source)
    return 2 * num_bytes / _median_seconds(lambda: target.copy_(source), device)


@functools.cache
def _matmul_rate(device: torch.device, dtype: torch.dtype) -> float:
    if dtype == torch.float16 or not dtype.is_floating_point:
        dtype = torch.bfloat16  # the same unit and rate; integers are not multiplied
    size = GPU_MATMUL_SIZE if device.type == "cuda" else CPU_MATMUL_SIZE
    if dtype == torch.float64:
        size //= 2
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    out = torch.empty_like(a)
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        return 2 * size**3 / _median_seconds(lambda: torch.mm(a, b, out=out), device)
    finally:
        torch.set_float32_matmul_precision(precision)


def _median_seconds(fn: Callable[[], object], device: torch.device) -> float:
    for _ in range(3):
        fn()
    seconds: list[float] = []
    for _ in range(CEILING_REPEATS):
        if device.type == "cuda":
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            fn()
            end.record()
            synchronize(device)
            seconds.append(start.elapsed_time(end) * 1e-3)
        else:
            begin = time.perf_counter()
            fn()
            seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)
