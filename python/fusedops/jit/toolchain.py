"""Compilers and their flags: those of the module's own build (CMakeLists.txt, cmake/)."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from .errors import BuildError
from .kit import cmake_dir, include_dir, probe

if TYPE_CHECKING:
    from collections.abc import Iterator

CUDA = (".cu",)
CXX = (".cpp", ".cc", ".cxx")
SUPPORT = ("csrc/common/checks/op_boundary.cpp",)
CUDA_SUPPORT = ("csrc/common/host/launch.cpp", "csrc/common/host/code_version.cu")
# What `parts` of a call of load may name: sources of ours beside those that every library has.
PARTS = {"rows": ("csrc/cuda/rows/team/row_plan.cu",)}

_STABLE = "-DTORCH_TARGET_VERSION=0x020b000000000000"
_CXX_FLAGS = ("-fPIC", "-fvisibility=hidden", "-fvisibility-inlines-hidden", "-fno-gnu-unique")
_MATH_FLAGS = ("-fno-trapping-math", "-fno-math-errno")  # comparisons vectorise, no value changes
_NVCC_FLAGS = ("--expt-relaxed-constexpr", "--expt-extended-lambda", "--compress-mode=size")


@dataclass(frozen=True)
class Toolchain:
    """What turns sources into a library; every field is part of the library's key."""

    cxx: str
    nvcc: str  # "" for a library without CUDA
    archs: tuple[str, ...]
    cxx_flags: tuple[str, ...]
    cuda_flags: tuple[str, ...]
    link_flags: tuple[str, ...]
    identity: tuple[str, ...]  # of the compilers: an upgrade in place changes it

    def command(self, source: Path, to: Path) -> list[str]:
        """Compiles one source to an object file."""
        if source.suffix not in CUDA:
            return [self.cxx, *self.cxx_flags, "-c", str(source), "-o", str(to)]
        return [self.nvcc, *self.cuda_flags, "-c", str(source), "-o", str(to)]

    def link(self, objects: list[Path], to: Path) -> list[str]:
        """Links object files to a shared library."""
        return [self.cxx, "-shared", *map(str, objects), "-o", str(to), *self.link_flags]


def wants_cuda(asked: bool | None) -> bool:
    """Whether .cu files are compiled: as asked, else where a GPU is visible or named."""
    if asked is not None:
        return asked
    return torch.cuda.is_available() or bool(os.environ.get("TORCH_CUDA_ARCH_LIST"))


def toolchain(
    cuda: bool,
    include_dirs: tuple[str, ...],
    extra_cxx: tuple[str, ...],
    extra_cuda: tuple[str, ...],
    extra_link: tuple[str, ...],
    debug: bool,
) -> Toolchain:
    """The compilers of this machine with all their flags; a BuildError says what is missing."""
    cxx = find_cxx()
    home = Path(torch.__file__).parent
    includes = [f"-I{path}" for path in (*include_dirs, str(include_dir()))]
    shared = [_STABLE, *(["-DUSE_CUDA"] if cuda else []), *includes]
    optimise = ["-O0", "-g"] if debug else ["-O3", "-DNDEBUG"]
    system = ["-isystem", str(home / "include")]
    # NOTE: libtorch.so holds no symbol itself, and the C++ runtime must be torch's
    # (cmake/TorchStable.cmake).
    link = ["-Wl,--no-as-needed", "-l:libstdc++.so.6", str(home / "lib" / "libtorch.so")]
    nvcc, archs, cuda_flags = "", tuple[str, ...](), list[str]()
    if cuda:
        nvcc = find_nvcc()
        archs = target_archs()
        found = _cuda_folders(Path(nvcc))
        system += ["-isystem", str(found[0])]
        link += [
            str(found[1]),
            "-Wl,--exclude-libs,libcudart_static.a",
            "-lpthread",
            "-lrt",
            "-ldl",
        ]
        generate = [f"-gencode={_code_of(arch)}" for arch in archs]
        host = [f"-Xcompiler={flag}" for flag in _CXX_FLAGS]
        cuda_flags = ["-std=c++20", *optimise, *host, *_NVCC_FLAGS, "-cudart=none", "-ccbin", cxx]
        cuda_flags += [*generate, *shared, *system, *extra_cuda]
        cuda_flags += ["-lineinfo"] if debug else []
    flags = ["-std=c++20", *optimise, *_CXX_FLAGS, *_MATH_FLAGS, *shared, *system, *extra_cxx]
    return Toolchain(
        cxx=cxx,
        nvcc=nvcc,
        archs=archs,
        cxx_flags=tuple(flags),
        cuda_flags=tuple(cuda_flags),
        link_flags=(*link, *extra_link),
        identity=tuple(_identity(tool) for tool in (cxx, nvcc) if tool),
    )


def find_cxx() -> str:
    """$CXX, else c++, g++ or clang++ of PATH."""
    named = os.environ.get("CXX")
    for name in [named] if named else ["c++", "g++", "clang++"]:
        if found := shutil.which(name):
            return found
    what = f"CXX={named} is not on PATH" if named else "no C++ compiler is on PATH"
    raise BuildError(f"fusedops.jit: {what}; install g++ 11 or newer (apt install g++), or set CXX")


def find_nvcc() -> str:
    """As the module's build finds it."""
    found = probe()["find_nvcc"]()
    if found is None:
        raise BuildError(
            "fusedops.jit: a CUDA source needs nvcc, and there is none in CUDAToolkit_ROOT, "
            f"CUDA_HOME, PATH or /usr/local/cuda; {_remedy()}, or pass with_cuda=False"
        )
    return str(found)


def target_archs() -> tuple[str, ...]:
    """TORCH_CUDA_ARCH_LIST, else the visible GPUs', else 8.0 and 9.0a; as CMake names them."""
    parse = probe()["parse_archs"]
    try:
        if given := os.environ.get("TORCH_CUDA_ARCH_LIST"):
            return tuple(parse(given))
        archs: list[str] = []
        for index in range(torch.cuda.device_count()):
            major, minor = torch.cuda.get_device_capability(index)
            archs += [arch for arch in parse(f"{major}.{minor}") if arch not in archs]
    except ValueError as error:
        raise BuildError(f"fusedops.jit: {error}") from None
    return tuple(archs or probe()["DEFAULT_ARCHS"])


def _code_of(arch: str) -> str:
    number = arch.removesuffix("-virtual")
    code = f"compute_{number}" if arch.endswith("-virtual") else f"sm_{number}"
    return f"arch=compute_{number},code={code}"


def _cuda_folders(nvcc: Path) -> tuple[Path, Path]:
    """The folder of cuda_runtime.h and the file libcudart_static.a beside an nvcc."""
    for root in _roots(nvcc):
        targets = root / "targets" / "x86_64-linux"
        headers = [p for p in (root / "include", targets / "include") if p.is_dir()]
        headers = [p for p in headers if (p / "cuda_runtime.h").is_file()]
        folders = [root / "lib64", root / "lib", targets / "lib"]
        runtime = [p for f in folders if (p := f / "libcudart_static.a").is_file()]
        if headers and runtime:
            return headers[0], runtime[0]
    raise BuildError(
        f"fusedops.jit: {nvcc} has no cuda_runtime.h or libcudart_static.a beside it; set "
        f"CUDA_HOME to a whole toolkit, or {_remedy()}"
    )


def _roots(nvcc: Path) -> Iterator[Path]:
    """Where a toolkit may be: around nvcc, or where a wrapper of it says."""
    yield nvcc.parent.parent
    yield nvcc.resolve().parent.parent
    asked = subprocess.run(
        [str(nvcc), "--dryrun", "-x", "cu", os.devnull], capture_output=True, text=True, check=False
    )
    if match := re.search(r"^#\$ TOP=(.+)$", asked.stderr + asked.stdout, re.MULTILINE):
        yield Path(match[1].strip())


def _remedy() -> str:
    return f"run: pip install -r {cmake_dir() / 'nvcc-requirements.txt'}"


@functools.cache
def _identity(tool: str) -> str:
    path = Path(tool).resolve()
    facts = path.stat()
    return f"{path} {facts.st_size} {facts.st_mtime_ns}"
