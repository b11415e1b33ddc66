"""`make wheels`: one compile of the kernels, a wheel for every Python, each tried in a clean venv.

Only `csrc/bindings` depends on Python's version, so that all wheels are built in one folder: after
the first, a wheel compiles the bindings alone, which is checked. auditwheel then names the oldest
glibc that the wheel runs on. A Python that this machine lacks is reported. Arguments are versions
of Python ("3.10 3.13"); FUSEDOPS_WHEEL_TORCH lists what the wheels are tried with ("2.11.* *").
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
TORCHES = "2.11.* *"  # the oldest that the wheels support and the newest that the registry gives
ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "wheels"
WORK = ROOT / "build" / "wheels"
BUILD = WORK / "cmake"
# What a wheel leaves to the user's machine.
OUTSIDE = ("libtorch*.so", "libc10*.so", "libcuda.so.*", "libcudart.so.*")
USABLE = """
import os, sys, sysconfig, venv, ensurepip
header = os.path.join(sysconfig.get_paths()["include"], "Python.h")
sys.exit("%d.%d" % sys.version_info[:2] != sys.argv[1] or not os.path.exists(header))
"""
BUILD_WHEEL = """
import sys
from scikit_build_core.build import build_wheel
print(build_wheel(sys.argv[1], dict(argument.split("=", 1) for argument in sys.argv[2:])))
"""
TORCH_REQUIRES = "import importlib.metadata as m, json; print(json.dumps(m.requires('torch')))"


def run(*command: str | Path, **environment: str) -> str:
    """The command's output; where it fails, all that it said and the end of this script."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{done.stdout}\nwheels: this failed: {' '.join(map(str, command))}")
    return done.stdout


def pip(python: str | Path, *arguments: str | Path) -> None:
    run(python, "-m", "pip", "--disable-pip-version-check", "install", "-q", *arguments)


def find_python(version: str) -> str | None:
    """An interpreter of this version with headers and venv, from PATH or pyenv."""
    pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    for candidate in (f"python{version}", *pyenv, f"/usr/bin/python{version}"):
        found = shutil.which(candidate)
        command = [found or "false", "-c", USABLE, version]
        if found and not subprocess.run(command, capture_output=True, check=False).returncode:
            return found
    return None


# ---- build ----


def install_tools() -> Path:
    """The build backend as the oldest Python wants it: pure Python, so that all can share it."""
    tools = WORK / "tools"
    if not tools.exists():
        wants = ["--python-version", PYTHONS[0], "--only-binary", ":all:", "--target", tools]
        # NOTE: pip reads the markers of the Python that it runs in, hence 3.10's needs by name.
        pip(sys.executable, *wants, "scikit-build-core>=0.11", "exceptiongroup", "tomli")
    return tools


def compiled() -> dict[str, int]:
    """When each object that knows no Python was compiled."""
    objects = [path for path in BUILD.rglob("*.o") if "_C.dir" not in path.parts]
    return {str(path.relative_to(BUILD)): path.stat().st_mtime_ns for path in objects}


def build(python: str) -> Path:
    raw = WORK / "raw"
    shutil.rmtree(raw, ignore_errors=True)
    raw.mkdir(parents=True)
    settings = (
        f"build-dir={BUILD}",
        f"cmake.define.FUSEDOPS_PROBE_PYTHON={sys.executable}",
    )
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    run(python, "-c", BUILD_WHEEL, raw, *settings, PYTHONPATH=str(install_tools()), PATH=path)
    (wheel,) = raw.glob("*.whl")
    return wheel


def tag(wheel: Path) -> Path:
    """The wheel with the platform that auditwheel finds it to need, in wheels/."""
    done = WORK / "tagged"
    shutil.rmtree(done, ignore_errors=True)
    excluded = [argument for name in OUTSIDE for argument in ("--exclude", name)]
    auditwheel = [sys.executable, "-m", "auditwheel", "repair", "-w", done, *excluded, wheel]
    run(*auditwheel, PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    (tagged,) = done.glob("*.whl")
    binaries = [name for name in zipfile.ZipFile(tagged).namelist() if ".so" in Path(name).name]
    if len(binaries) != 1 or not binaries[0].startswith("fusedops/_C."):
        sys.exit(f"wheels: {tagged.name} must hold one module and no library; it holds {binaries}")
    OUT.mkdir(exist_ok=True)
    return Path(shutil.copy(tagged, OUT))


# ---- try ----


def install_torch(python: Path, requirement: str) -> str:
    """Installs a torch; the CUDA libraries that it brings are shared by all Pythons."""
    pip(python, "--no-deps", requirement)
    requires = json.loads(run(python, "-c", TORCH_REQUIRES).splitlines()[-1])
    version = run(python, "-c", "import importlib.metadata as m; print(m.version('torch'))").strip()
    pip(python, *(r for r in requires if "platform_system" not in r and "extra ==" not in r))
    libraries = WORK / f"cuda-of-torch-{version}"
    if not libraries.exists():
        cuda = [r for r in requires if r.startswith(("nvidia-", "cuda-toolkit"))]
        if cuda:
            pip(sys.executable, "--target", libraries, *cuda)
    (site,) = python.parents[1].glob("lib/python*/site-packages")
    (site / "cuda_of_torch.pth").write_text(f"{libraries}\n")
    return version


def try_out(wheel: Path, python: str, torch: str) -> str:
    """Runs the smoke tests with the wheel in a clean venv: which torch it was, and pytest's sum."""
    venv = WORK / "venv"
    shutil.rmtree(venv, ignore_errors=True)
    run(python, "-m", "venv", venv)
    inside = venv / "bin" / "python"
    # NOTE: pip of Python 3.12.1 knows no `==*`.
    version = install_torch(inside, "torch" if torch == "*" else f"torch=={torch}")
    pip(inside, "numpy", "pytest")
    pip(inside, "--no-deps", wheel)
    where = run(inside, "-c", "import fusedops; print(fusedops.__file__)")
    if not where.strip().startswith(str(venv)):
        sys.exit(f"wheels: another fusedops is in the way: {where}")
    summary = run(inside, "-m", "pytest", "-q", "-m", "smoke and not gpu").strip().splitlines()[-1]
    shutil.rmtree(venv)
    return f"torch {version}: {summary}"


def main() -> int:
    WORK.mkdir(parents=True, exist_ok=True)
    wanted = sys.argv[1:] or PYTHONS
    torches = os.environ.get("FUSEDOPS_WHEEL_TORCH", TORCHES).split()
    pythons = {version: find_python(version) for version in wanted}
    report = []
    kernels: dict[str, int] = {}
    for version, python in pythons.items():
        if python is None:
            report.append(f"Python {version}: not on this machine, no wheel")
            continue
        print(f"wheels: Python {version}, {python}", flush=True)
        wheel = tag(build(python))
        if kernels and compiled() != kernels:
            sys.exit(f"wheels: the build for Python {version} compiled kernels again")
        kernels = compiled()
        report.append(f"Python {version}: {OUT.name}/{wheel.name}")
        for torch in torches:
            report.append(f"  {try_out(wheel, python, torch)}")
            print(report[-1], flush=True)
    print("\n".join(["wheels:", *report]))
    return 0 if any(pythons.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
