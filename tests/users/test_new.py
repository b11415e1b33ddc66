"""`fusedops new`: what it writes builds both ways and its tests pass; installed files suffice."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from fusedops.__main__ import main
from fusedops._cli import new

ROOT = Path(__file__).resolve().parents[2]


def run(*command: object, cwd: Path, **variables: str) -> str:
    environment = {**os.environ, **variables}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def tool(name: str) -> str:
    """A program of this environment, or a skip."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


@pytest.mark.slow
def test_from_nothing_to_an_op(tmp_path: Path) -> None:
    """As the first-time user does it: write, test, edit the formula, test again.

    The bars are of an idle machine with two cores: ten minutes for all, 15 s for the second build.
    """
    start = time.perf_counter()
    cache = {"FUSEDOPS_CACHE_DIR": str(tmp_path / "cache"), "TORCH_CUDA_ARCH_LIST": ""}
    said = run(sys.executable, "-m", "fusedops", "new", "gate_it", cwd=tmp_path)
    assert "cd gate_it\n  python -m pytest" in said
    project = tmp_path / "gate_it"
    pytest_command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    said = run(*pytest_command, cwd=project, **cache)
    assert re.search(r"\d\d passed", said), said
    assert time.perf_counter() - start < 600

    source = project / "kernels/gate_it.cpp"
    source.write_text(source.read_text().replace("* sigmoid(a * p) * q;", "* sigmoid(a * p) + q;"))
    start = time.perf_counter()
    code = (
        "import torch, gate_it; x = torch.ones(3, dtype=torch.float64);"
        "assert torch.equal(gate_it.my(x, x), torch.sigmoid(x) + x)"
    )
    run(sys.executable, "-c", code.replace(".my(", ".gate_it("), cwd=project, **cache)
    assert time.perf_counter() - start < 15


@pytest.mark.slow
@pytest.mark.gpu
def test_from_nothing_to_an_op_on_a_gpu(tmp_path: Path) -> None:
    """The same project compiles its kernels, and all of its tests run."""
    new.write("gate_it", tmp_path / "gate_it")
    said = run(sys.executable, "-m", "pytest", "-q", "-rs", cwd=tmp_path / "gate_it")
    assert "skipped" not in said, said


@pytest.mark.slow
def test_a_wheel(tmp_path: Path, device: str) -> None:
    """It needs torch alone: the sources are not beside it, and fusedops is not imported."""
    tool("cmake")
    for module in ("scikit_build_core", "pip", "ninja"):
        pytest.importorskip(module)
    project = tmp_path / "project"
    new.write("gate_it", project)
    build = ("-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", tmp_path, ".")
    use_cuda = "1" if device == "cuda" else "0"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    run(sys.executable, *build, cwd=project, USE_CUDA=use_cuda, PATH=path)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.startswith("gate_it-0.1.0-py3-none-")
    installed = tmp_path / "installed"
    install = ("-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", installed)
    run(sys.executable, *install, wheel, cwd=tmp_path)
    shutil.copytree(project / "tests", tmp_path / "elsewhere/tests")
    shutil.copy(project / "pyproject.toml", tmp_path / "elsewhere")
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", device)
    said = run(*command, cwd=tmp_path / "elsewhere", PYTHONPATH=str(installed))
    assert re.search(r"\d\d passed", said), said
    code = "import sys, gate_it; assert 'fusedops' not in sys.modules; print(gate_it.__file__)"
    said = run(sys.executable, "-c", code, cwd=tmp_path, PYTHONPATH=str(installed))
    assert str(installed) in said


def test_an_epilogue(tmp_path: Path) -> None:
    """An epilogue of one's own, too: nothing is compiled, and its tests pass."""
    said = run(sys.executable, "-m", "fusedops", "new", "--epilogue", "lift", cwd=tmp_path)
    assert "cd lift\n  python -m pytest" in said
    said = run(sys.executable, "-m", "pytest", "-q", "-k", "cpu", cwd=tmp_path / "lift")
    assert re.search(r"\d\d passed", said), said
    said = run(sys.executable, "bench.py", "8", "8", "8", cwd=tmp_path / "lift")
    assert "lift" in said


@pytest.mark.gpu
def test_an_epilogue_on_a_gpu(tmp_path: Path) -> None:
    new.write("lift", tmp_path, "epilogue")
    said = run(sys.executable, "-m", "pytest", "-q", "-rs", cwd=tmp_path)
    assert "passed" in said
    if torch.cuda.get_device_capability()[0] == 9:
        assert "skipped" not in said, said


@pytest.mark.parametrize("kind", ["op", "epilogue"])
def test_what_it_writes_is_formatted(tmp_path: Path, kind: str) -> None:
    files = new.write("my_op", tmp_path, kind)
    code = [str(file) for file in files if file.suffix in (".cpp", ".h", ".cu", ".cuh")]
    style = f"--style=file:{ROOT}/.clang-format"
    if kind == "op":
        run(tool("clang-format"), style, "-n", "-Werror", *code, cwd=ROOT)
    for command in (("check",), ("format", "--check")):
        options = ("--no-cache", "--config", ROOT / "pyproject.toml", tmp_path)
        run(tool("ruff"), *command, *options, cwd=ROOT)


@pytest.mark.parametrize(("kind", "least"), [("op", 10), ("epilogue", 6)])
def test_its_words_are_the_ops_own(tmp_path: Path, kind: str, least: int) -> None:
    files = new.write("gate_it", tmp_path, kind)
    assert len(files) == len({*files}) > least
    for file in files:
        assert "my_op" not in file.read_text() + file.as_posix(), file
    rows = (tmp_path / "README.md").read_text()
    for path in re.findall(r"^\| `([\w./]+)`", rows, re.MULTILINE):
        assert (tmp_path / path).exists(), path


@pytest.mark.parametrize("name", ["MyOp", "1st", "my-op", "class", "torch", "_op", "a__b", "ä"])
def test_names_are_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["new", name])
    assert stop.value.code == 2
    assert "NAME must be" in capsys.readouterr().err


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(SystemExit, match="exists and is not an empty folder; nothing was written"):
        main(["new", "my_op", "--folder", str(tmp_path)])
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    with pytest.raises(SystemExit, match=r"cannot write .*mine/below"):
        main(["new", "my_op", "--folder", str(tmp_path / "mine" / "below")])


def test_an_installation_brings_what_extensions_need(tmp_path: Path) -> None:
    """All that installed files include is installed with them, and jit names nothing else."""
    from fusedops.jit import toolchain

    cmake = tool("cmake")
    pytest.importorskip("pybind11")
    build = tmp_path / "build"
    options = ("-DUSE_CUDA=0", f"-DPython_EXECUTABLE={sys.executable}", "-DSKBUILD_STATE=wheel")
    run(cmake, "-S", ROOT, "-B", build, "-DSKBUILD_PROJECT_NAME=fusedops", *options, cwd=tmp_path)
    install = ("--install", build, "--component", "extensions", "--prefix", tmp_path / "prefix")
    run(cmake, *install, cwd=tmp_path)
    include = tmp_path / "prefix/fusedops/include"
    found = {path.relative_to(include).as_posix() for path in include.rglob("*.*")}
    assert len(found) > 60
    for name in found:
        for wanted in re.findall(r'#include "(csrc/[^"]+)"', (include / name).read_text()):
            assert wanted in found, (name, wanted)
    parts = (source for sources in toolchain.PARTS.values() for source in sources)
    assert {*toolchain.SUPPORT, *toolchain.CUDA_SUPPORT, *parts} <= found
    folder = tmp_path / "prefix/fusedops/cmake"
    for text in ((folder / "fusedopsConfig.cmake").read_text(),):
        for name in re.findall(r"include\(\$\{CMAKE_CURRENT_LIST_DIR\}/([\w.]+)\)", text):
            assert (folder / name).is_file(), name
    assert torch.__version__
