"""What the build needs to know about this machine, printed as CMake `set()` lines.

Nothing heavy is imported: torch, CUTLASS and nvcc are located as files. CMakeLists.txt runs this
once per configure; tests/project/test_build.py tests it.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import runpy
import shutil
import sys
from pathlib import Path

ARCH_NAMES = {
    "ampere": ["80"],
    "ada": ["89"],
    "hopper": ["90a"],
    "blackwell": ["100a", "120a"],
}
DEFAULT_ARCHS = ["80", "90a"]  # of USE_CUDA=1 where no GPU is visible
ARCH_PATTERN = re.compile(r"(sm_?|compute_?)?(\d+)\.?(\d)([af]?)(-real|-virtual)?(\+ptx)?")


def parse_archs(text: str) -> list[str]:
    """'Ampere;9.0', '8.0 9.0a', '80;90-real' -> ['80', '90a']; '8.0+PTX' -> ['80', '80-virtual'].

    Hopper always means 90a: without the `a` there is no WGMMA.
    """
    archs: list[str] = []
    for item in re.split(r"[;,\s]+", text.strip().lower()):
        if not item:
            continue
        names = ARCH_NAMES.get(item)
        if names is None:
            match = ARCH_PATTERN.fullmatch(item)
            if match is None:
                known = ", ".join(ARCH_NAMES)
                raise ValueError(
                    f"unknown GPU architecture {item!r}: expected like 9.0a or {known}"
                )
            _, major, minor, suffix, kind, ptx = match.groups()
            arch = major + minor + ("a" if major + minor == "90" else suffix)
            if int(major) < 8:
                raise ValueError(
                    f"GPU architecture {item!r} is too old: fusedops needs 8.0 or newer"
                )
            names = [f"{arch}-virtual"] if kind == "-virtual" else [arch]
            if ptx:
                names.append(f"{arch}-virtual")
        archs += [name for name in names if name not in archs]
    return archs


def visible_gpu_archs() -> list[str]:
    """Architectures of the GPUs that a CUDA program would see; asks the driver, not torch."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return []
    count = ctypes.c_int(0)
    if cuda.cuInit(0) != 0 or cuda.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return []
    archs: list[str] = []
    for device in range(count.value):
        capability = []
        for attribute in (75, 76):  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR
            value = ctypes.c_int(0)
            cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
            capability.append(value.value)
        if capability[0] >= 8:
            archs += [a for a in parse_archs("{}.{}".format(*capability)) if a not in archs]
    return archs


def package_dir(name: str) -> Path | None:
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


def find_cutlass(override: str | None) -> Path | None:
    """The folder that holds cutlass/cutlass.h: CUTLASS_DIR, else the nvidia-cutlass wheel."""
    if override:
        roots = [Path(override) / "include", Path(override)]
    else:
        # NOTE: importing cutlass_library runs its generator and needs numpy, scipy, ...
        package = package_dir("cutlass_library")
        roots = [package / "source" / "include"] if package else []
    return next((root for root in roots if (root / "cutlass" / "cutlass.h").is_file()), None)


def cutlass_version(include: Path) -> str:
    text = (include / "cutlass" / "version.h").read_text()
    parts = [re.search(rf"#define CUTLASS_{p}\s+(\d+)", text) for p in ("MAJOR", "MINOR", "PATCH")]
    return ".".join(part.group(1) for part in parts if part)


def find_nvcc() -> Path | None:
    """nvcc from CUDAToolkit_ROOT, CUDA_HOME, PATH, /usr/local/cuda or the PyPI wheels."""
    candidates = [
        Path(root) / "bin" / "nvcc"
        for root in (os.environ.get(n) for n in ("CUDAToolkit_ROOT", "CUDA_HOME", "CUDA_PATH"))
        if root
    ]
    on_path = shutil.which("nvcc")
    candidates += [Path(on_path)] if on_path else []
    candidates.append(Path("/usr/local/cuda/bin/nvcc"))
    nvidia = importlib.util.find_spec("nvidia")
    for location in (nvidia.submodule_search_locations or []) if nvidia else []:
        candidates += sorted(Path(location).glob("cu*/bin/nvcc"), reverse=True)
    return next((nvcc for nvcc in candidates if nvcc.is_file()), None)


def cuda_archs(use_cuda: str, requested: list[str], visible: list[str]) -> list[str]:
    """What to compile for; empty means a CPU build. `use_cuda` is auto, 1 or 0 (on, off, ...)."""
    choice = use_cuda.strip().lower() or "auto"
    if choice in ("0", "off", "false", "no"):
        return []
    if choice == "auto":
        return requested or visible
    if choice in ("1", "on", "true", "yes"):
        return requested or visible or DEFAULT_ARCHS
    raise ValueError(f"USE_CUDA must be auto, 1 or 0; got {use_cuda!r}")


def facts() -> dict[str, str]:
    found: dict[str, str] = {}
    if torch := package_dir("torch"):
        version = runpy.run_path(str(torch / "version.py"))
        found["TORCH_DIR"] = str(torch)
        found["TORCH_VERSION"] = str(version["__version__"])
    if pybind11 := package_dir("pybind11"):
        found["PYBIND11_INCLUDE"] = str(pybind11 / "include")
    if cutlass := find_cutlass(os.environ.get("CUTLASS_DIR")):
        found["CUTLASS_INCLUDE"] = str(cutlass)
        found["CUTLASS_VERSION"] = cutlass_version(cutlass)
    if nvcc := find_nvcc():
        found["NVCC"] = str(nvcc)
    requested = os.environ.get("CMAKE_CUDA_ARCHITECTURES") or os.environ.get("TORCH_CUDA_ARCH_LIST")
    archs = cuda_archs(
        os.environ.get("USE_CUDA", "auto"), parse_archs(requested or ""), visible_gpu_archs()
    )
    found["ARCHS"] = ";".join(archs)
    found["CUDA"] = "ON" if archs else "OFF"
    return found


if __name__ == "__main__":
    try:
        for name, value in facts().items():
            print(f'set(PROBE_{name} "{value}")')
    except ValueError as error:
        sys.exit(str(error))
