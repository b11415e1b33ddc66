"""Builds the kernels over edges for a CPU: every thread of a block is a fiber.

    python scripts/emulate build/emulated.so
    python scripts/emulate/try_edges.py build/emulated.so
    python scripts/emulate/try_rows.py build/emulated.so

The library has the ops of csrc/cuda/points/edges, edge_rows and edge_wgmma for CPU tensors, made of
the same sources: host code, indices, barriers, shuffles, shared memory, Tensor Core fragments and
descriptors, and cp.async run as they are written, one thread after the other. Races between
threads, timing and memory models do not show; shared memory begins as NaN, copies arrive as late
as they may, and a misaligned ldmatrix or operand of WGMMA aborts.
Needs g++ and the headers of CUDA (CUDA_HOME, nvcc on PATH, or /usr/local/cuda).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SOURCES = (
    "csrc/cuda/points/edges",
    "csrc/cuda/points/edge_rows",
    "csrc/cuda/points/edge_wgmma",
)
SHARED = "csrc/cuda/points/block_sums.cuh"  # by the sources
# What of PTX and CUDA has another form on a CPU.
WORDS = (
    (
        "extern __shared__ __align__(16) unsigned char memory[];",
        "unsigned char* memory = emulated::shared_memory();",
    ),
    (
        'asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));',
        "result = emulated::max_or_nan(a, b);",
    ),
    ("STABLE_TORCH_LIBRARY_IMPL(fusedops, CUDA, m)", "STABLE_TORCH_LIBRARY_IMPL(fusedops, CPU, m)"),
)


def cuda_headers() -> Path | None:
    """The folder that holds cuda_bf16.h, or None."""
    nvcc = shutil.which("nvcc")
    homes = [
        os.environ.get("CUDA_HOME", ""),
        str(Path(nvcc).resolve().parent.parent) if nvcc else "",
    ]
    for home in (*homes, "/usr/local/cuda"):
        if home and (Path(home) / "include" / "cuda_bf16.h").is_file():
            return Path(home) / "include"
    return None


def arguments_of(text: str) -> list[str]:
    """Splits at the commas outside of brackets."""
    found, depth = [""], 0
    for letter in text:
        depth += (letter in "(<{") - (letter in ")>}")
        if letter == "," and depth == 0:
            found.append("")
        else:
            found[-1] += letter
    return found


def closing(text: str, start: int) -> int:
    """Where the parenthesis at start closes."""
    depth = 0
    for at in range(start, len(text)):
        depth += (text[at] == "(") - (text[at] == ")")
        if depth == 0:
            return at
    raise ValueError(f"a parenthesis is never closed: {text[start : start + 60]}")


def without_launches(text: str) -> str:
    """kernel<<<grid, block, bytes, stream>>>(...) as a call of emulated::run."""
    while "<<<" in text:
        opening = text.index("<<<")
        ending = text.index(">>>", opening)
        name = re.search(r"\w+(<[\w, ]*>)?\s*$", text[:opening])
        assert name is not None
        grid, block, size, *_ = arguments_of(text[opening + 3 : ending])
        end = closing(text, ending + 3) + 1
        call = f"[&] {{ {name.group()}{text[ending + 3 : end]}; }}"
        run = f"emulated::run(dim3({grid}), dim3({block}), {size}, {call})"
        text = text[: name.start()] + run + text[end:]
    return text


def translate(to: Path) -> None:
    """The sources as g++ takes them."""
    shutil.copytree(ROOT / "csrc/common", to / "csrc/common")
    for folder in SOURCES:
        shutil.copytree(ROOT / folder, to / folder)
    shutil.copy(ROOT / SHARED, to / SHARED)
    for name in ("mma.cuh", "async_copy.cuh"):
        shutil.copy(HERE / name, to / "csrc/common/device" / name)
    for name in ("wgmma.cuh", "wgmma_columns.cuh"):
        shutil.copy(HERE / name, to / "csrc/cuda/points/edge_wgmma" / name)
    shutil.copy(HERE / "launch.h", to / "csrc/common/host/launch.h")
    for path in (path for folder in SOURCES for path in (to / folder).iterdir()):
        text = path.read_text()
        for word, other in WORDS:
            text = text.replace(word, other)
        path.write_text(without_launches(text))


def build(to: Path) -> None:
    """Compiles, two files at a time, and links."""
    headers = cuda_headers()
    if headers is None:
        raise SystemExit("emulate: no CUDA headers found; set CUDA_HOME")
    torch_home = Path(torch.__file__).parent
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder)
        translate(source)
        # NOTE: -fpermissive: CUDA's runtime has templates for kernels where g++ sees const void*.
        flags = ["-std=c++20", "-O2", "-fPIC", "-w", "-fpermissive"]
        flags += ["-DTORCH_TARGET_VERSION=0x020b000000000000"]
        flags += [f"-I{source}", f"-I{HERE}", "-isystem", str(headers)]
        flags += ["-isystem", str(torch_home / "include"), "-include", "emulated.h", "-x", "c++"]
        files = sorted(path for folder in SOURCES for path in (source / folder).glob("*.cu"))
        files.append(HERE / "emulated.cpp")
        files.append(source / "csrc/common/checks/op_boundary.cpp")
        objects = [source / f"{file.stem}.o" for file in files]
        for start in range(0, len(files), 2):
            pairs = zip(files[start : start + 2], objects[start : start + 2], strict=True)
            running = [
                subprocess.Popen(["g++", *flags, "-c", str(file), "-o", str(made)])
                for file, made in pairs
            ]
            if sum(job.wait() for job in running):
                raise SystemExit("emulate: g++ failed")
        # NOTE: -Bsymbolic, or libcudart's functions would stand for those of emulated.cpp.
        link = ["g++", "-shared", "-Wl,-Bsymbolic", "-o", str(to), *map(str, objects)]
        link += [f"-L{torch_home / 'lib'}", "-ltorch_cpu", "-ltorch", "-lc10"]
        subprocess.run(link, check=True)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    build(Path(sys.argv[1]))
