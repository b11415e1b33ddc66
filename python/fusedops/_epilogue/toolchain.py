"""NVRTC and nvJitLink, which torch's own packages bring, and on disk what they made."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import subprocess
import tempfile
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .._core.files import cache_dir, folder_for_one
from ..jit.errors import BuildError
from ..jit.kit import PACKAGE, include_dir, probe
from ..jit.toolchain import find_nvcc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from .launch import Config

_LTO_IR = 3  # nvJitLinkInputType
_FORMAT = "1"  # of the keys
_MAIN_LOOP = "csrc/cutlass/visitor/sm90_visitor_ir.cu"
_ELEMENTS = {"bf16": "cutlass::bfloat16_t", "fp16": "cutlass::half_t"}


# ---- libraries ----


def _candidates(distribution: str, stem: str) -> Iterator[str]:
    """Files of a package that torch depends on, then what the loader finds."""
    with contextlib.suppress(PackageNotFoundError):
        for file in files(distribution) or ():
            if file.name.startswith(stem) and ".alt." not in file.name:
                yield str(file.locate())
    major = (torch.version.cuda or "13").split(".")[0]
    yield f"{stem}.{major}"


def _opened(path: str) -> ctypes.CDLL | str:
    try:
        return ctypes.CDLL(path)
    except OSError as error:
        return str(error)


def _library(what: str, distributions: Sequence[str], stem: str) -> ctypes.CDLL:
    tried = []
    for distribution in distributions:
        for path in _candidates(distribution, stem):
            found = _opened(path)
            if isinstance(found, ctypes.CDLL):
                return found
            tried.append(found)
    raise BuildError(
        f"fusedops.epilogue: no {what} on this machine ({tried[-1]}); run: pip install "
        f"{distributions[0]}, or pass unfused=True"
    )


@functools.cache
def _nvrtc() -> ctypes.CDLL:
    names = ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12")
    _library("NVRTC", names, "libnvrtc-builtins.so")  # NVRTC looks for it by name
    return _library("NVRTC", names, "libnvrtc.so")


@functools.cache
def _nvjitlink() -> ctypes.CDLL:
    names = ("nvidia-nvjitlink", "nvidia-nvjitlink-cu12")
    return _library("nvJitLink", names, "libnvJitLink.so")


def _strings(values: Sequence[str]) -> Any:
    return (ctypes.c_char_p * len(values))(*(value.encode() for value in values))


def _text(size: Any, get: Any, handle: ctypes.c_void_p) -> bytes:
    """What a pair of functions gives: the number of bytes, the bytes."""
    count = ctypes.c_size_t()
    if size(handle, ctypes.byref(count)) != 0:
        return b""
    buffer = ctypes.create_string_buffer(count.value + 1)
    get(handle, buffer)
    return buffer.raw[: count.value]


def compile_text(source: str, arch: str, *, ir: bool) -> bytes:
    """The LTO-IR, or the cubin, of a text in CUDA C++."""
    nvrtc, program = _nvrtc(), ctypes.c_void_p()
    options = [f"-arch={arch}", "-std=c++17", *(("-dlto", "-rdc=true") if ir else ())]
    made = nvrtc.nvrtcCreateProgram(
        ctypes.byref(program), source.encode(), b"epilogue.cu", 0, None, None
    )
    if made == 0:
        made = nvrtc.nvrtcCompileProgram(program, len(options), _strings(options))
    try:
        if made != 0:
            log = _text(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
            said = log.decode(errors="replace").strip("\0")
            raise BuildError(f"fusedops.epilogue: NVRTC refuses the visitor\n{said}", said)
        if ir:
            return _text(nvrtc.nvrtcGetLTOIRSize, nvrtc.nvrtcGetLTOIR, program)
        return _text(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def link(parts: Sequence[bytes], arch: str) -> bytes:
    """The cubin of programs in LTO-IR."""
    linker, handle = _nvjitlink(), ctypes.c_void_p()
    options = [f"-arch={arch}", "-lto"]
    status = linker.nvJitLinkCreate(ctypes.byref(handle), len(options), _strings(options))
    try:
        for number, part in enumerate(parts):
            if status == 0:
                status = linker.nvJitLinkAddData(
                    handle, _LTO_IR, part, ctypes.c_size_t(len(part)), f"part{number}".encode()
                )
        if status == 0:
            status = linker.nvJitLinkComplete(handle)
        if status != 0:
            log = _text(linker.nvJitLinkGetErrorLogSize, linker.nvJitLinkGetErrorLog, handle)
            said = log.decode(errors="replace").strip("\0")
            raise BuildError(f"fusedops.epilogue: nvJitLink fails ({status})\n{said}", said)
        return _text(linker.nvJitLinkGetLinkedCubinSize, linker.nvJitLinkGetLinkedCubin, handle)
    finally:
        linker.nvJitLinkDestroy(ctypes.byref(handle))


# ---- on disk ----


def cached(text: str, suffix: str, make: Callable[[], bytes]) -> bytes:
    """What `make` gives, kept under a digest of `text`; one process makes it, others wait."""
    digest = hashlib.sha256(f"{_FORMAT}\0{torch.version.cuda}\0{text}".encode()).hexdigest()
    folder = cache_dir() / "epilogue" / digest[:2]
    path = folder / f"{digest[2:34]}{suffix}"
    if (kept := _read(path)) is not None:
        return kept
    with contextlib.ExitStack() as held:
        with _writing_to(folder):
            folder.mkdir(parents=True, exist_ok=True)
            held.enter_context(folder_for_one(folder))
        if (kept := _read(path)) is not None:
            return kept
        made = make()
        with _writing_to(folder):
            _publish(path, made)
        return made


@contextlib.contextmanager
def _writing_to(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BuildError(
            f"fusedops.epilogue: cannot write to {folder} ({error}); set FUSEDOPS_CACHE_DIR to a "
            "folder that can be written"
        ) from error


def _read(path: Path) -> bytes | None:
    """The content of a whole file: its own digest stands in front of it."""
    try:
        data = path.read_bytes() if path.is_file() else b""
    except OSError:
        return None
    return data[32:] if hashlib.sha256(data[32:]).digest() == data[:32] else None


def _publish(path: Path, content: bytes) -> None:
    handle, partial = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=path.suffix)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(hashlib.sha256(content).digest() + content)
        os.replace(partial, path)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise


# ---- main loops ----


def _shipped(element: str, config: Config) -> Path:
    return PACKAGE / "_epilogue" / "ir" / f"{element}_{config.name}.ltoir"


@functools.cache
def main_loop_digest(element: str, config: Config) -> str:
    """The digest of what main_loop gives: of the file of the package, else of all sources."""
    digest = hashlib.sha256(f"{element} {config.name}".encode())
    if (shipped := _shipped(element, config)).is_file():
        digest.update(shipped.read_bytes())
        return digest.hexdigest()
    root = include_dir()
    source = root / _MAIN_LOOP
    if not source.is_file():
        raise BuildError(
            f"fusedops.epilogue: this installation has neither {shipped} nor {source}; install a "
            "build of fusedops for CUDA, or pass unfused=True"
        )
    for folder in ("csrc/common", "csrc/cutlass/kernels", "csrc/cutlass/configs"):
        for path in sorted((root / folder).rglob("*.*h")):
            digest.update(path.read_bytes())
    digest.update(source.read_bytes())
    return digest.hexdigest()


def main_loop(element: str, config: Config) -> bytes:
    """The LTO-IR of a main loop: as it came with the package, else compiled once by nvcc."""
    if (shipped := _shipped(element, config)).is_file():
        return shipped.read_bytes()
    source = include_dir() / _MAIN_LOOP
    digest = main_loop_digest(element, config)
    return cached(digest, ".ltoir", lambda: _compile_main_loop(source, element, config))


def _compile_main_loop(source: Path, element: str, config: Config) -> bytes:
    cutlass = probe()["find_cutlass"](os.environ.get("CUTLASS_DIR"))
    if cutlass is None:
        raise BuildError(
            "fusedops.epilogue: CUTLASS headers not found; run: pip install --no-deps "
            "nvidia-cutlass==4.2.0.0, or pass unfused=True"
        )
    with tempfile.TemporaryDirectory() as folder:
        to = Path(folder) / "main_loop.ltoir"
        command = [find_nvcc(), "-ltoir", "-rdc=true", "-gencode=arch=compute_90a,code=lto_90a"]
        command += ["-O3", "-DNDEBUG", "-std=c++20", "--expt-relaxed-constexpr"]
        command += ["--expt-extended-lambda", "-DCUTLASS_ENABLE_GDC_FOR_SM90"]
        command += ["-diag-suppress=177,1427,20012,20013,20015"]
        command += [f"-DFUSEDOPS_VISITOR_ELEMENT={_ELEMENTS[element]}"]
        command += [f"-DFUSEDOPS_VISITOR_CONFIG={config.number}", f"-I{include_dir()}"]
        command += ["-isystem", str(cutlass), str(source), "-o", str(to)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BuildError(
                f"fusedops.epilogue: nvcc fails on {source}\n{done.stderr[-2000:]}", done.stderr
            )
        return to.read_bytes()
