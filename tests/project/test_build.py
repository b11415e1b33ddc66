"""The build itself: option parsing, what the binary needs, introspection, `python -m fusedops`."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

import fusedops
from fusedops import _C
from fusedops._core.info import build_info, chosen_as, kernels_for, table

if TYPE_CHECKING:
    from types import ModuleType

ROOT = Path(__file__).parents[2]
OPS = sorted(
    name.removeprefix("fusedops::")
    for name in torch._C._dispatch_get_all_op_names()
    if name.startswith("fusedops::")
)


def load(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


probe = load("probe", ROOT / "cmake" / "probe.py")


# ---- options ----


@pytest.mark.parametrize(
    ("text", "archs"),
    [
        ("", []),
        ("Ampere;Hopper", ["80", "90a"]),
        ("8.0;9.0a", ["80", "90a"]),
        ("8.0 9.0", ["80", "90a"]),
        ("80,90-real", ["80", "90a"]),
        ("sm_90a", ["90a"]),
        ("8.0+PTX", ["80", "80-virtual"]),
        ("8.6;8.6;8.9", ["86", "89"]),
        ("120a-real", ["120a"]),
    ],
)
def test_parse_archs(text: str, archs: list[str]) -> None:
    assert probe.parse_archs(text) == archs


@pytest.mark.parametrize("text", ["Hooper", "9", "9.0b", "7.0", "Volta"])
def test_parse_archs_names_the_culprit(text: str) -> None:
    with pytest.raises(ValueError, match=text.lower()):
        probe.parse_archs(text)


@pytest.mark.parametrize(
    ("use_cuda", "requested", "visible", "archs"),
    [
        ("auto", [], [], []),
        ("", [], [], []),
        ("auto", ["80"], [], ["80"]),
        ("auto", [], ["90a"], ["90a"]),
        ("1", [], [], ["80", "90a"]),
        ("ON", [], ["89"], ["89"]),
        ("1", ["80"], ["90a"], ["80"]),
        ("0", ["80"], ["90a"], []),
    ],
)
def test_cuda_archs(
    use_cuda: str, requested: list[str], visible: list[str], archs: list[str]
) -> None:
    assert probe.cuda_archs(use_cuda, requested, visible) == archs


def test_cuda_archs_refuses_other_words() -> None:
    with pytest.raises(ValueError, match="USE_CUDA must be auto, 1 or 0; got 'maybe'"):
        probe.cuda_archs("maybe", [], [])


def test_find_cutlass(tmp_path: Path) -> None:
    header = tmp_path / "include" / "cutlass" / "cutlass.h"
    header.parent.mkdir(parents=True)
    header.touch()
    assert probe.find_cutlass(str(tmp_path)) == tmp_path / "include"
    assert probe.find_cutlass(str(tmp_path / "include")) == tmp_path / "include"
    assert probe.find_cutlass(str(tmp_path / "nowhere")) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-DUSE_CUDA=1", "-DCUTLASS_DIR=/nowhere"], "pip install --no-deps nvidia-cutlass"),
        (["-DTORCH_CUDA_ARCH_LIST=Hooper"], "unknown GPU architecture 'hooper'"),
        (["-DUSE_CUDA=maybe"], "USE_CUDA must be auto, 1 or 0"),
    ],
)
def test_configure_fails_early(tmp_path: Path, options: list[str], message: str) -> None:
    cmake = shutil.which("cmake") or shutil.which("cmake", path=Path(sys.executable).parent)
    if cmake is None or probe.package_dir("pybind11") is None:
        pytest.skip("cmake or pybind11 is not installed")
    if "-DUSE_CUDA=1" in options and probe.find_nvcc() is None:
        pytest.skip("nvcc is not installed")
    command = [cmake, "-S", str(ROOT), "-B", str(tmp_path), f"-DPython_EXECUTABLE={sys.executable}"]
    result = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    assert result.returncode != 0
    assert message in " ".join(result.stderr.split())


def test_only_the_bindings_know_python(tmp_path: Path) -> None:
    cmake = shutil.which("cmake") or shutil.which("cmake", path=Path(sys.executable).parent)
    if cmake is None or probe.package_dir("pybind11") is None:
        pytest.skip("cmake or pybind11 is not installed")
    command = [cmake, "-S", str(ROOT), "-B", str(tmp_path), "-DUSE_CUDA=0"]
    command += [f"-DPython_EXECUTABLE={sys.executable}", "-DSKBUILD_PROJECT_NAME=fusedops"]
    subprocess.run(command, capture_output=True, check=True)
    include = sysconfig.get_paths()["include"]
    knows = {}
    for entry in json.loads((tmp_path / "compile_commands.json").read_text()):
        knows[Path(entry["file"]).relative_to(ROOT)] = include in entry["command"]
    assert len(knows) > 10
    for file, sees_python in knows.items():
        assert sees_python == file.is_relative_to("csrc/bindings"), file


def test_make_wheels_asks_old_pips_for_the_newest_torch_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wheels = load("wheels", ROOT / "scripts" / "wheels.py")
    venv = tmp_path / "venv"
    asked = []

    def install_torch(_: Path, requirement: str) -> str:
        venv.mkdir()
        asked.append(requirement)
        return "2.99"

    monkeypatch.setattr(wheels, "WORK", tmp_path)
    monkeypatch.setattr(wheels, "run", lambda *_: f"{venv}/fusedops\n")
    monkeypatch.setattr(wheels, "pip", lambda *_: None)
    monkeypatch.setattr(wheels, "install_torch", install_torch)
    for torch_version in ("2.11.*", "*"):
        wheels.try_out(Path("any.whl"), sys.executable, torch_version)
    assert asked == ["torch==2.11.*", "torch"]


def test_make_wheels_says_which_python_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    wheels = load("wheels", ROOT / "scripts" / "wheels.py")
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    monkeypatch.setattr(wheels, "WORK", tmp_path)
    monkeypatch.setattr(wheels, "build", lambda python: Path("raw.whl"))
    monkeypatch.setattr(wheels, "tag", lambda wheel: Path("done.whl"))
    monkeypatch.setattr(wheels, "find_python", lambda v: sys.executable if v == here else None)
    monkeypatch.setattr(wheels, "try_out", lambda wheel, python, torch: f"torch {torch}: passed")
    monkeypatch.setattr(sys, "argv", ["wheels.py", here, "3.99"])
    monkeypatch.setenv("FUSEDOPS_WHEEL_TORCH", "2.11.*")
    assert wheels.main() == 0
    said = capsys.readouterr().out
    assert f"Python {here}: wheels/done.whl\n  torch 2.11.*: passed\n" in said
    assert "Python 3.99: not on this machine, no wheel\n" in said
    monkeypatch.setattr(sys, "argv", ["wheels.py", "3.99"])
    assert wheels.main() == 1


def test_make_wheels_stops_where_kernels_are_compiled_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wheels = load("wheels", ROOT / "scripts" / "wheels.py")
    build = tmp_path / "cmake"
    monkeypatch.setattr(wheels, "WORK", tmp_path)
    monkeypatch.setattr(wheels, "BUILD", build)
    monkeypatch.setattr(wheels, "find_python", lambda version: sys.executable)
    monkeypatch.setattr(wheels, "tag", lambda wheel: wheel)
    monkeypatch.setattr(sys, "argv", ["wheels.py", "3.11", "3.12"])
    monkeypatch.setenv("FUSEDOPS_WHEEL_TORCH", "")

    def compile_kernels(folder: str) -> Path:
        (build / folder).mkdir(parents=True, exist_ok=True)
        (build / folder / "a.o").write_text("code")
        os.utime(build / folder / "a.o", ns=(0, next(clock)))
        return Path("done.whl")

    clock = iter(range(1000, 9000, 1000))
    monkeypatch.setattr(wheels, "build", lambda python: compile_kernels("_C.dir"))
    assert wheels.main() == 0
    monkeypatch.setattr(wheels, "build", lambda python: compile_kernels("kernels.dir"))
    with pytest.raises(SystemExit, match=r"Python 3\.12 compiled kernels again"):
        wheels.main()


@pytest.mark.smoke
def test_errors_cross_into_torchs_runtime() -> None:
    module = Path(str(_C.__file__)).read_bytes()
    assert b"\0libstdc++.so.6\0" in module, "the module must share torch's C++ runtime"


# ---- make ----


# What scikit-build-core leaves in a venv for an editable install: a finder before sys.path's.
EDITABLE = """
import importlib.util, sys
class ScikitBuildRedirectingFinder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "fusedops":
            return importlib.util.spec_from_file_location(name, {file!r})
sys.meta_path.insert(0, ScikitBuildRedirectingFinder)
"""


def test_gpu_test_takes_the_wheel(tmp_path: Path) -> None:
    if shutil.which("make") is None or importlib.util.find_spec("pip") is None:
        pytest.skip("make or pip is not installed")
    (tmp_path / "tree.py").write_text("print('the tree')")
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    (site,) = venv.glob("lib/python*/site-packages")
    packages = Path(str(importlib.util.find_spec("pip").origin)).parents[1]  # type: ignore[union-attr]
    (site / "here.pth").write_text(f"{packages}\nimport _editable\n")
    (site / "_editable.py").write_text(EDITABLE.format(file=str(tmp_path / "tree.py")))
    wheel = tmp_path / "fusedops-0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("fusedops/__init__.py", "")
        file.writestr("fusedops/__main__.py", "print('the wheel')")
        file.writestr(
            "fusedops-0.dist-info/METADATA", "Metadata-Version: 2.1\nName: fusedops\nVersion: 0\n"
        )
        file.writestr(
            "fusedops-0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        file.writestr("fusedops-0.dist-info/RECORD", "")
    command = ["make", "-f", ROOT / "Makefile", "gpu-test", f"WHEEL={wheel}"]
    command += [f"GPU_PYTHON={venv}/bin/python", "PYTEST_ARGS=--version"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "the wheel" in done.stdout
    assert "the tree" not in done.stdout


# ---- check_sass ----


def test_check_sass_wants_something_to_check(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    check_sass = load("check_sass", ROOT / "scripts" / "check_sass.py")
    for archs in ("", "86"):
        monkeypatch.setattr(_C, "build_info", lambda archs=archs: {"archs": archs})
        assert check_sass.main() == 1
        assert "has no code for sm_90a or sm_80" in capsys.readouterr().err


# ---- the binary ----


@pytest.mark.smoke
def test_build_info() -> None:
    info = build_info()
    assert info["torch_target"] == "2.11"
    assert info["version"]
    if info["cuda"]:
        assert info["archs"]
        assert info["nvcc"]
        assert str(info["cutlass"]).startswith("4.")
        assert int(str(info["kernels"])) > 0
    else:
        assert info["archs"] == ""
        assert info["kernels"] == 0


@pytest.mark.smoke
def test_version() -> None:
    assert fusedops.__version__ == build_info()["version"]
    with pytest.raises(AttributeError, match="'fusedops' has no attribute 'nothing'"):
        fusedops.nothing  # noqa: B018


@pytest.mark.smoke
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("key", ["CPU", "CUDA"])
def test_every_op_is_implemented(op: str, key: str) -> None:
    if key == "CPU" and op.startswith("edge_"):
        pytest.skip("passes of layers over edges: on a CPU the layers are composed of other ops")
    assert torch._C._dispatch_has_kernel_for_dispatch_key(f"fusedops::{op}", key)


@pytest.mark.smoke
def test_binary_needs_no_cuda_library() -> None:
    """One file serves torch with any CUDA and without: only libtorch.so and the C++ runtime."""
    readelf = shutil.which("readelf")
    if readelf is None:
        pytest.skip("readelf is not installed")
    dynamic = subprocess.run(
        [readelf, "-d", "-W", _C.__file__], capture_output=True, text=True, check=True
    ).stdout
    needed = {line.split("[")[1].split("]")[0] for line in dynamic.splitlines() if "NEEDED" in line}
    assert "libtorch.so" in needed
    assert not {name for name in needed if "cuda" in name or "python" in name}
    symbols = subprocess.run(
        [readelf, "--dyn-syms", "-W", _C.__file__], capture_output=True, text=True, check=True
    ).stdout
    cuda_only = "aoti_torch_get_current_cuda_stream"
    binding = [line.split()[4] for line in symbols.splitlines() if line.endswith(cuda_only)]
    assert binding == (["WEAK"] if build_info()["cuda"] else [])


@pytest.mark.smoke
def test_import_is_light() -> None:
    code = (
        "import sys, torch; before = set(sys.modules); import fusedops;"
        "heavy = {'matplotlib', 'sklearn', 'numpy', 'triton', 'fusedops.bench'};"
        "print(sorted(heavy & (set(sys.modules) - before)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


# ---- introspection ----


def test_gemm_configs() -> None:
    configs = _C.gemm_configs()
    names = [(config["family"], config["name"]) for config in configs]
    assert {family for family, _ in names} == {"sm80", "sm90", "skinny", "cluster"}
    assert all(config["tile"][0] % 8 == 0 for config in configs)
    skinny = [name for family, name in names if family == "skinny"]
    assert len(set(skinny)) == len(skinny)


def test_select_config_explains() -> None:
    chosen, candidates = _C.select_config(4096, 4096, 2048)
    assert chosen is not None
    assert chosen["family"] == "sm90"
    ranked = [c["expected_us"] for c in candidates if c["rejected"] is None]
    assert chosen["expected_us"] == min(ranked)
    _, candidates = _C.select_config(64, 63, 64)
    assert all(c["rejected"] for c in candidates if c["family"] == "sm90")
    chosen, _ = _C.select_config(4096, 4096, 4096, capability=80, sm_count=108)
    assert chosen is not None
    assert chosen["family"] == "sm80"


def test_select_config_refuses_unknown_words() -> None:
    with pytest.raises(ValueError, match=r"dtype must be one of float16.*; got int8"):
        _C.select_config(1, 1, 1, "int8")


def test_kernels_for() -> None:
    archs = ["80", "90a"]
    assert kernels_for((9, 0), archs).startswith("sm_90a")
    assert kernels_for((8, 0), archs) == "sm_80 family (mma.sync)"
    assert kernels_for((8, 9), archs) == "sm_80 family (mma.sync)"
    assert kernels_for((7, 5), archs).startswith("none")
    assert "TORCH_CUDA_ARCH_LIST=10.0" in kernels_for((10, 0), archs)
    assert "PTX" in kernels_for((10, 0), ["80", "80-virtual"])
    assert kernels_for((9, 0), ["80"]).startswith("none")
    # PTX of 90a is for 9.0 alone.
    assert kernels_for((10, 0), ["90a", "90a-virtual"]).startswith("none")
    assert kernels_for((9, 0), ["90a", "90a-virtual"]).startswith("sm_90a")


def test_kernels_are_chosen_for_what_the_build_has() -> None:
    ptx = ["80", "80-virtual"]
    assert "sm_80 family" in kernels_for((9, 0), ptx)
    assert chosen_as((9, 0), ptx) == 80
    assert chosen_as((9, 0), ["80", "90a"]) == 90
    assert chosen_as((9, 0), []) == 90  # a CPU build explains an H200
    assert chosen_as((8, 9), ptx) == 89


@pytest.mark.smoke
def test_info_command() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "fusedops", "info"], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == table()
    assert torch.__version__ in result.stdout


# ---- metadata ----


@pytest.mark.smoke
def test_an_installation_brings_its_licences() -> None:
    distribution = importlib.metadata.distribution("fusedops")
    assert distribution.metadata["License-Expression"] == "BSD-3-Clause"
    for name in distribution.metadata.get_all("License-File") or ():
        text = distribution.read_text(f"licenses/{name}")
        assert text == (ROOT / name).read_text(), name
    assert set(distribution.metadata.get_all("License-File")) == {
        "LICENSE",
        "THIRD_PARTY_NOTICES.txt",
    }
