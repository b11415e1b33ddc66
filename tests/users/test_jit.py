"""`fusedops.jit`: ops from sources, kept by content, with many processes and wrong input."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from fusedops import jit
from fusedops.jit import errors, toolchain
from fusedops.jit import library as jit_library

SOURCES = Path(__file__).parent / "axpy"
LOAD = """
import sys, torch
from fusedops import jit
ops = jit.load(sys.argv[1], sys.argv[2:])
x = torch.arange(5.0)
assert torch.equal(getattr(ops, sys.argv[1])(x, x, 2.0), 3 * x)
"""


def copy(to: Path, name: str) -> list[Path]:
    """The sources of axpy in the namespace `name`."""
    to.mkdir(exist_ok=True)
    files = []
    for path in sorted(SOURCES.iterdir()):
        file = to / path.name.replace("axpy", name)
        file.write_text(path.read_text().replace("axpy", name))
        files.append(file)
    return [file for file in files if file.suffix in (".cpp", ".cu")]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Objects of ours are shared among the tests; libraries are not."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("FUSEDOPS_CACHE_DIR", str(folder))
    return folder


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that are run instead of compilers: what they write is made up."""
    commands: list[list[str]] = []

    def run(command: list[str], verbose: bool) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        Path(command[command.index("-o") + 1]).write_bytes(b"\x7fELF" + bytes(60))
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(jit_library, "_run", run)
    return commands


def sources_of(commands: list[list[str]]) -> list[str]:
    return sorted(Path(c[c.index("-c") + 1]).name for c in commands if "-c" in c)


# ---- compiled for real ----


@pytest.mark.slow
def test_an_op_from_sources(tmp_path: Path, device: str) -> None:
    name = f"axpy_on_{device}"
    files = copy(tmp_path / "sources", name)
    ops = jit.load(name, files)
    axpy = getattr(ops, name)
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        x, y = torch.randn(2, 3, 1000, dtype=dtype, device=device)
        wide = 0.5 * x.double() + y.double()
        torch.testing.assert_close(axpy(x, y, 0.5), wide.to(dtype))
        torch.testing.assert_close(axpy(x.t(), y.t(), 0.5), wide.to(dtype).t())
        assert axpy(x[:0], y[:0], 0.5).shape == (0, 1000)
    x = torch.ones(3, device=device)
    with pytest.raises(RuntimeError, match=r"axpy_on_\w+: y must have dtype float32 like x; got"):
        axpy(x, x.double(), 1.0)
    assert jit.load(name, files) is ops
    files[0].write_text(files[0].read_text() + "// edited\n")
    with pytest.raises(RuntimeError, match=f"{name} is loaded already, from other sources"):
        jit.load(name, files)


@pytest.mark.slow
def test_many_processes_compile_once(tmp_path: Path, cache: Path) -> None:
    """Eight start together, and one compiles; the next ones only load."""
    files = [str(file) for file in copy(tmp_path / "sources", "axpy_of_many")]
    command = [sys.executable, "-c", LOAD, "axpy_of_many", *files]
    running = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(8)]
    said = [child.communicate()[1] for child in running]
    assert [child.returncode for child in running] == [0] * 8, said
    (folder,) = (cache / "jit" / "axpy_of_many").iterdir()
    assert [path.name for path in folder.iterdir()] == ["axpy_of_many.so"]
    library = folder / "axpy_of_many.so"
    written = library.stat().st_mtime_ns
    start = time.perf_counter()
    assert jit.build("axpy_of_many", files) == library
    assert time.perf_counter() - start < 1
    assert library.stat().st_mtime_ns == written


@pytest.mark.slow
def test_a_compilers_error_shows_the_line(tmp_path: Path) -> None:
    file = tmp_path / "wrong.cpp"
    file.write_text(
        '#include "csrc/common/dispatch.h"\n\n'
        "int here() { return missing; }\n\n"
        "void there() {\n"
        "  fusedops::dispatch_bool(true, [](int wrong) { return wrong; });\n"
        "}\n"
    )
    with pytest.raises(jit.BuildError, match=r"wrong: wrong.cpp does not compile") as caught:
        jit.build("wrong", [file])
    text = str(caught.value)
    assert f"{file}:3: " in text
    assert "     3 | int here() { return missing; }" in text
    assert "     6 |   fusedops::dispatch_bool(true" in text
    assert "        in " in text
    assert "dispatch.h:" in text
    log = Path(text.splitlines()[-1].removeprefix("all that the compiler said is in "))
    assert log.read_text() == caught.value.log


@pytest.mark.slow
def test_inline_text() -> None:
    text = (SOURCES / "axpy.cpp").read_text().replace("axpy", "axpy_inline")
    header = (SOURCES / "axpy.h").read_text().replace("axpy", "axpy_inline")
    ops = jit.load_inline(
        "axpy_inline", text.replace('#include "axpy_inline.h"', header), with_cuda=False
    )
    x = torch.randn(4)
    assert torch.equal(ops.axpy_inline(x, x, 1.0), 2 * x)


@pytest.mark.slow
def test_a_library_that_was_cut_short_is_built_again(tmp_path: Path) -> None:
    files = copy(tmp_path / "sources", "axpy_cut")
    library = jit.build("axpy_cut", files, with_cuda=False)
    whole = library.read_bytes()
    for content in (b"", b"nonsense", whole[:9000]):
        library.write_bytes(content)
        with pytest.warns(UserWarning, match="is no library, building it anew"):
            assert jit.build("axpy_cut", files, with_cuda=False) == library
        assert len(library.read_bytes()) == len(whole)


# ---- keys ----


def test_what_changes_is_compiled(tmp_path: Path, compiled: list[list[str]]) -> None:
    files = [file for file in copy(tmp_path / "sources", "axpy") if file.suffix == ".cpp"]
    first = jit.build("axpy", files)
    assert sources_of(compiled) == ["axpy.cpp", "op_boundary.cpp"]
    first.write_bytes((SOURCES / "axpy.cpp").read_bytes())  # no library: keys alone count here

    def built(**options: object) -> tuple[Path, list[str]]:
        compiled.clear()
        library = jit.build("axpy", files, **options)  # type: ignore[arg-type]
        return library, sources_of(compiled)

    header = tmp_path / "sources" / "axpy.h"
    header.write_text(header.read_text() + "// edited\n")
    second, done = built()
    assert second != first
    assert done == ["axpy.cpp"]
    assert built(cxx_flags=["-DX"])[1] == ["axpy.cpp", "op_boundary.cpp"]
    assert built(debug=True)[1] == ["axpy.cpp", "op_boundary.cpp"]
    third, done = built(link_flags=["-lm"])
    assert third not in (first, second)
    assert done == []


def test_a_header_elsewhere_counts(tmp_path: Path) -> None:
    (tmp_path / "include" / "deep").mkdir(parents=True)
    (tmp_path / "include" / "deep" / "one.h").write_text('#include "two.h"\n')
    (tmp_path / "include" / "deep" / "two.h").write_text("#include <deep/one.h>\n#include <x.h>\n")
    source = tmp_path / "source.cpp"
    source.write_text("#include <deep/one.h>\n#include <vector>\n")
    seen = jit_library.included(source, [tmp_path / "include"])
    assert [path.name for path in seen] == ["source.cpp", "one.h", "two.h"]


def test_cuda_is_asked_for(
    tmp_path: Path, compiled: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """nvcc gets the architectures of TORCH_CUDA_ARCH_LIST, and ours are linked."""
    nvcc = tmp_path / "cuda" / "bin" / "nvcc"
    for file in ("bin/nvcc", "include/cuda_runtime.h", "lib64/libcudart_static.a"):
        (tmp_path / "cuda" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "cuda" / file).touch()
    monkeypatch.setattr(toolchain, "find_nvcc", lambda: str(nvcc))
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "8.0+PTX;9.0")
    jit.build("axpy", copy(tmp_path / "sources", "axpy"), parts=["rows"])
    assert sources_of(compiled) == [
        *("axpy.cpp", "axpy.cu", "code_version.cu", "launch.cpp"),
        *("op_boundary.cpp", "row_plan.cu"),
    ]
    (command,) = (c for c in compiled if c[0] == str(nvcc) and "axpy.cu" in " ".join(c))
    assert "-gencode=arch=compute_80,code=sm_80" in command
    assert "-gencode=arch=compute_80,code=compute_80" in command
    assert "-gencode=arch=compute_90a,code=sm_90a" in command
    assert "-DUSE_CUDA" in command
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "Hooper")
    with pytest.raises(jit.BuildError, match="unknown GPU architecture 'hooper'"):
        jit.build("axpy", copy(tmp_path / "sources", "axpy"))


# ---- errors ----


@pytest.mark.parametrize("name", ["", "two words", "1st", "fusedops", None])
def test_names_are_identifiers(name: str) -> None:
    with pytest.raises(ValueError, match=r"fusedops.jit: name must be an identifier.*; got"):
        jit.build(name, [__file__])


def test_sources_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"x: sources must be a list of files; got 'x.cpp'"):
        jit.build("x", "x.cpp")
    with pytest.raises(ValueError, match=r"sources must be a list of files; got \[\]"):
        jit.build("x", [])
    with pytest.raises(ValueError, match=r"sources must be \.cpp, .*\.cu; got test_jit.py"):
        jit.build("x", [__file__])
    with pytest.raises(FileNotFoundError, match=r"x: no file .*missing.cpp"):
        jit.build("x", [tmp_path / "missing.cpp"])
    source = SOURCES / "axpy.cpp"
    with pytest.raises(ValueError, match="parts must be of rows; got 'columns'"):
        jit.build("x", [source], parts=["columns"])
    with pytest.raises(ValueError, match=r"every source is CUDA, and no GPU is visible"):
        jit.build("x", [SOURCES / "axpy.cu"], with_cuda=False)


def test_missing_compilers_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(jit.BuildError, match=r"CXX=no-such-compiler is not on PATH; install g"):
        jit.build("x", [SOURCES / "axpy.cpp"])
    monkeypatch.delenv("CXX")
    monkeypatch.setitem(toolchain.probe(), "find_nvcc", lambda: None)
    with pytest.raises(jit.BuildError, match=r"needs nvcc, and there is none in .*requirements"):
        jit.build("x", [SOURCES / "axpy.cu"], with_cuda=True)


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("FUSEDOPS_CACHE_DIR", str(file / "below"))
    with pytest.raises(jit.BuildError, match=r"cannot write to .*; set FUSEDOPS_CACHE_DIR"):
        jit.build("x", [SOURCES / "axpy.cpp"])


def test_a_library_that_does_not_load(
    tmp_path: Path, compiled: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RuntimeError, match=r"nothing: .* does not load .*; remove .* built again"):
        jit.load("nothing", [SOURCES / "axpy.cpp"])


def test_old_libraries_go(
    tmp_path: Path, compiled: list[list[str]], monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    monkeypatch.setattr(jit_library, "MOST_LIBRARIES", 2)
    monkeypatch.setattr(jit_library, "MOST_OBJECTS", 3)
    built = [jit.build("x", [SOURCES / "axpy.cpp"], cxx_flags=[f"-DX={i}"]) for i in range(5)]
    assert sorted((cache / "jit" / "x").iterdir()) == sorted(path.parent for path in built[-2:])
    assert len(list((cache / "jit" / "objects").iterdir())) == 3


# ---- the messages of compilers ----


def test_what_nvcc_says(tmp_path: Path) -> None:
    mine = tmp_path / "mine.cu"
    mine.write_text("\n".join(f"line {i}" for i in range(1, 41)))
    log = (
        f'{mine}(12): error: identifier "missing" is undefined\n    line\n    ^\n\n'
        "/kit/csrc/common/device/vec.cuh(30): error: no suitable conversion\n"
        "          detected during:\n"
        f'            instantiation of "..." at line 25 of /kit/other.cuh\n'
        f'            instantiation of "void run()" at line 33 of {mine}\n\n'
        "2 errors detected in the compilation.\n"
    )
    found = errors.findings(log, [mine])
    assert [(f.line, f.inner) for f in found] == [
        (12, ""),
        (33, "/kit/csrc/common/device/vec.cuh:30"),
    ]
    error = errors.compile_error("x", mine, log, [mine], tmp_path / "log")
    assert "    33 | line 33" in str(error)


def test_a_log_without_errors_is_shown(tmp_path: Path) -> None:
    error = errors.compile_error("x", tmp_path / "a.cpp", "Killed\n", [], tmp_path / "log")
    assert "\nKilled\n" in str(error)
    assert shutil.which("c++") is None or "does not compile" in str(error)
