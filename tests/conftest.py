"""Devices and markers. A test that takes `device` runs on the CPU and, marked `gpu`, on CUDA."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from filelock import FileLock

import fusedops
from fusedops._core.info import OLDEST_CAPABILITY, build_info

if TYPE_CHECKING:
    from collections.abc import Iterator


def missing_gpu() -> str | None:
    """Why `gpu` tests cannot run here; None where they can."""
    if not torch.cuda.is_available():
        return "no CUDA device is visible"
    if not build_info()["cuda"]:
        return "this is a CPU-only build"
    if torch.cuda.get_device_capability() < OLDEST_CAPABILITY:
        return "the GPU is older than compute capability 8.0"
    return None


def missing_sm90() -> str | None:
    if torch.cuda.get_device_capability() != (9, 0):
        return "the GPU is not of compute capability 9.0"
    if "90a" not in str(build_info()["archs"]).split(";"):
        return "this build has no code for 9.0a"
    return None


def pytest_configure(config: pytest.Config) -> None:
    # xdist: workers share the cores instead of each taking them all.
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    torch.set_num_threads(max(1, torch.get_num_threads() // workers))
    # No plans that this machine was tuned with.
    os.environ["FUSEDOPS_CACHE_DIR"] = tempfile.mkdtemp(prefix="fusedops-tests-")


def pytest_report_header(config: pytest.Config) -> str:
    gpu = missing_gpu() or torch.cuda.get_device_name()
    return f"fusedops: {fusedops.__file__}, archs {build_info()['archs'] or 'none'}; gpu: {gpu}"


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    no_gpu = missing_gpu()
    for item in items:
        markers = {marker.name for marker in item.iter_markers()}
        if not markers & {"gpu", "sm90", "multi_gpu"}:
            continue
        item.add_marker(pytest.mark.gpu)
        reason = no_gpu
        if reason is None and "sm90" in markers:
            reason = missing_sm90()
        if reason is None and "multi_gpu" in markers and torch.cuda.device_count() < 2:
            reason = "only one CUDA device is visible"
        if reason is not None:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def exact_convolutions():
    """Torch's convolutions of float32 run in TF32 on a GPU otherwise."""
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(autouse=True)
def _defaults() -> None:
    """Every test starts from the same seed and fp32 precision, whatever ran before it."""
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("highest")


@pytest.fixture(autouse=True)
def _large_tensors_one_at_a_time(request: pytest.FixtureRequest) -> Iterator[None]:
    """Slow tests on a GPU take much of its memory: xdist's workers run them in turn."""
    markers = {marker.name for marker in request.node.iter_markers()}
    if not {"gpu", "slow"} <= markers:
        yield
        return
    with FileLock(Path(tempfile.gettempdir()) / f"fusedops-tests-{os.getuid()}.lock"):
        yield
        torch.cuda.empty_cache()


@pytest.fixture
def forget_plans() -> Iterator[None]:
    """For tests that choose kernels by `_C.add_tuned_plan`."""
    yield
    fusedops._C.clear_tuned_plans()
