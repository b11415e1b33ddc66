"""What this build is and what it finds here: the facts behind `python -m fusedops info`."""

from __future__ import annotations

import importlib.metadata
import json
import platform

import torch

from .. import _C

OLDEST_CAPABILITY = (8, 0)
NO_KERNELS = "none: CPU-only build"


def build_info() -> dict[str, object]:
    """Build-time facts: versions, architectures, number of compiled GEMM kernels."""
    info: dict[str, object] = dict(_C.build_info())
    info["version"] = info["version"] or importlib.metadata.version("fusedops")
    return info


def kernels_for(capability: tuple[int, int], archs: list[str]) -> str:
    """Which kernels of a build for `archs` a GPU of this compute capability runs."""
    if capability < OLDEST_CAPABILITY:
        return "none: fusedops needs compute capability 8.0 or newer"
    if capability == (9, 0) and "90a" in archs:
        return "sm_90a (TMA + WGMMA), sm_80 family for what TMA refuses"
    # Machine code runs on its own major version, from its minor upwards; PTX on anything newer;
    # what is for one architecture (90a), machine code or PTX, nowhere else.
    number = 10 * capability[0] + capability[1]
    portable = [arch for arch in archs if arch.removesuffix("-virtual").isdigit()]
    for arch in portable:
        digits = int(arch.removesuffix("-virtual"))
        if digits == number or (digits // 10 == capability[0] and digits <= number):
            return "sm_80 family (mma.sync)"
        if arch.endswith("-virtual") and digits <= number:
            return "sm_80 family (mma.sync), compiled from PTX at first use"
    wanted = f"{capability[0]}.{capability[1]}"
    return f"none: rebuild with TORCH_CUDA_ARCH_LIST={wanted} (this build: {' '.join(archs)})"


def chosen_as(capability: tuple[int, int], archs: list[str]) -> int:
    """10 * major + minor for which selection chooses kernels (device_model in gemm_launch.cpp)."""
    from_ptx = capability == (9, 0) and archs and "90a" not in archs
    return 80 if from_ptx else 10 * capability[0] + capability[1]


def built_archs() -> list[str]:
    """What this build has code for, as CMake names it; empty without CUDA."""
    return [arch for arch in str(_C.build_info()["archs"]).split(";") if arch]


def facts() -> list[tuple[str, str]]:
    """(what, value) rows, in the order in which they are shown."""
    info = build_info()
    archs = built_archs()
    cuda = f"CUDA for {', '.join(archs)}" if info["cuda"] else "CPU only"
    rows = [
        ("fusedops", f"{info['version']} ({cuda}, {info['build_type']})"),
        ("GEMM kernels", str(info["kernels"])),
        ("compiled with", f"{info['compiler']}, torch {info['torch_headers']} headers"),
        ("runs on", f"torch {info['torch_target']} and later (libtorch stable ABI)"),
    ]
    if info["cuda"]:
        rows.append(("CUDA compiler", f"nvcc {info['nvcc']}, CUTLASS {info['cutlass']}"))
    rows += [
        ("Python", platform.python_version()),
        ("torch", f"{torch.__version__} (CUDA {torch.version.cuda or 'none'})"),
    ]
    if not torch.cuda.is_available():
        rows.append(("GPU", "none visible; ops run on the CPU"))
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        capability = (properties.major, properties.minor)
        served = kernels_for(capability, archs) if info["cuda"] else NO_KERNELS
        size = f"{properties.total_memory / 2**30:.0f} GiB"
        rows.append(
            (
                f"cuda:{index}",
                f"{properties.name}, {capability[0]}.{capability[1]}, "
                f"{properties.multi_processor_count} SMs, {size}",
            )
        )
        rows.append(("  kernels", served))
    return rows


def as_json() -> str:
    """The same for programs: build facts as they are, versions, and a list of GPUs."""
    info = build_info()
    archs = built_archs()
    gpus = []
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        properties = torch.cuda.get_device_properties(index)
        capability = (properties.major, properties.minor)
        gpus.append(
            {
                "index": index,
                "name": properties.name,
                "capability": list(capability),
                "sm_count": properties.multi_processor_count,
                "memory_bytes": properties.total_memory,
                "kernels": kernels_for(capability, archs) if info["cuda"] else NO_KERNELS,
            }
        )
    found = {
        **info,
        "archs": archs,
        "module": str(_C.__file__),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "torch_cuda": torch.version.cuda,
        "gpus": gpus,
    }
    return json.dumps(found, indent=1)


def table() -> str:
    rows = facts()
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)
