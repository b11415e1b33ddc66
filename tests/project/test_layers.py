"""Who may include whom: the table of layers, for C++ and CUDA includes and for Python imports."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MOST_LINES = 500
MOST_SOURCES = 22  # about 20, without __init__.py
CXX = (".h", ".cuh", ".cu", ".cpp")
GENERATED = ("build_facts.h",)  # by CMake

# What a folder of csrc may include besides itself; the first pattern that fits a folder counts.
# `*` is any path.
CXX_LAYERS = {
    "common": (),
    "common/checks": ("common",),
    "common/device": ("common",),
    "common/host": ("common", "common/checks"),
    "schema": ("common/checks",),
    "cpu*": ("common*", "cpu"),
    "cuda/rows/team": ("common*",),
    "cuda/rows/embedding": ("common*", "cuda/inverted_index"),
    "cuda/rows/*": ("common*", "cuda/rows/team"),
    "cuda/conv": ("common*", "cuda/batch_norm"),
    "cuda/fp8/norm": ("common*", "cuda/fp8"),
    "cuda/scan/segment": ("common*", "cuda/scan"),
    "cuda/points/neighbours": ("common*", "cuda/points", "cuda/points/index"),
    "cuda/points/grouping": ("common*", "cuda/points", "cuda/inverted_index"),
    "cuda/points/edge_rows": ("common*", "cuda/points", "cuda/points/edges"),
    "cuda/points/edge_wgmma": ("common*", "cuda/points", "cuda/points/edges"),
    "cuda/points/*": ("common*", "cuda/points"),
    "cuda/*": ("common*",),
    "cutlass": ("common",),
    "cutlass/configs": ("common", "cutlass"),
    "cutlass/select": ("common", "cutlass", "cutlass/configs"),
    "cutlass/select/families": ("common", "cutlass", "cutlass/configs", "cutlass/select"),
    "cutlass/kernels/hopper": ("common*", "cutlass"),
    "cutlass/kernels/gated": (
        "common*",
        "cutlass",
        "cutlass/configs",
        "cutlass/kernels/hopper",
        "cutlass/kernels/sm90",
    ),
    "cutlass/kernels/fp8": (
        "common*",
        "cutlass",
        "cutlass/configs",
        "cutlass/kernels/hopper",
        "cutlass/kernels/sm90",
    ),
    "cutlass/kernels/visitor": (
        "common*",
        "cutlass",
        "cutlass/configs",
        "cutlass/kernels/hopper",
        "cutlass/kernels/sm90",
    ),
    "cutlass/kernels/simt": ("common*", "cutlass", "cutlass/configs", "cutlass/kernels/sm80"),
    "cutlass/kernels/parts": (
        *("common*", "cutlass", "cutlass/configs"),
        *("cutlass/kernels/sm80", "cutlass/kernels/hopper"),
    ),
    "cutlass/kernels/unaligned": (
        *("common*", "cutlass", "cutlass/configs"),
        *("cutlass/kernels/sm80", "cutlass/kernels/hopper"),
    ),
    "cutlass/kernels/sm80": ("common*", "cutlass", "cutlass/configs"),
    "cutlass/kernels/*": ("common*", "cutlass", "cutlass/configs", "cutlass/kernels/hopper"),
    "cutlass/passes": ("common*", "cutlass", "cutlass/configs"),
    "cutlass/instances": ("cutlass/kernels/*",),
    "cutlass/launch": (
        "common*",
        "cutlass",
        "cutlass/configs",
        "cutlass/select",
        "cutlass/passes",
        "cutlass/kernels/parts/parts.h",
        "cutlass/kernels/thin/thin.h",
        "cutlass/kernels/unaligned/unaligned.h",
    ),
    "cutlass/ops": (
        "common*",
        "cutlass",
        "cutlass/configs",
        "cutlass/select",
        "cutlass/passes",
        "cutlass/launch",
        "cutlass/kernels/narrow/sm90_narrow.h",
        "cutlass/kernels/conv/sm90_image_conv.h",
        "cutlass/kernels/conv/sm90_pointwise_conv.h",
        "cutlass/kernels/fp8/sm90_fp8.h",
    ),
    "cutlass/visitor": ("cutlass/kernels/visitor",),
    "bindings": ("cutlass/configs", "cutlass/select", "cuda/reduce/reduce_plan.h"),
}

# What a folder of python/fusedops may import besides itself and the extension.
_REFERENCE = ("_core",)
_AUTOGRAD = ("_core", "reference", "_fakes")
_FP8 = (*_AUTOGRAD, "_autograd")
_OPS = (*_FP8, "fp8", "_epilogue")
_NN = (*_OPS, "ops", "points")
_ABOVE = (*_NN, "nn", "compat")
PYTHON_LAYERS = {
    "_core": (),
    "_timing": (),
    "jit": ("_core",),
    "_epilogue": (*_AUTOGRAD, "_autograd", "jit"),
    "_distributed": ("_core",),
    "reference": _REFERENCE,
    "_fakes": _REFERENCE,
    "_autograd": _AUTOGRAD,
    "fp8": _FP8,
    "ops": _OPS,
    "points": (*_OPS, "ops"),
    "nn": _NN,
    "compat": _NN,
    "models": (*_NN, "nn"),
    "_rewrite": _ABOVE,
    "_tuning": (*_ABOVE, "_timing"),
    "_inductor": (*_ABOVE, "_timing", "_tuning"),
    "integrations": ("", *_ABOVE, "_rewrite"),
    "bench/suites": ("", *_ABOVE, "models", "_timing"),
    "bench/report": ("_core", "bench/suites"),
    "bench": ("", *_ABOVE, "_timing", "bench/suites", "bench/report"),
    "_cli": ("*",),
    "": ("*",),
}


def cxx_sources() -> list[Path]:
    return sorted(p for p in (ROOT / "csrc").rglob("*") if p.suffix in CXX)


def python_sources() -> list[Path]:
    return sorted((ROOT / "python/fusedops").rglob("*.py"))


def folder_of(path: str) -> str:
    return path.rpartition("/")[0]


def cxx_includes() -> list[tuple[str, str]]:
    """(file, included file), both relative to csrc."""
    found = []
    for path in cxx_sources():
        name = path.relative_to(ROOT / "csrc").as_posix()
        names = re.findall(r'^\s*#\s*include\s+"([^"]+)"', path.read_text(), re.M)
        found += [(name, included) for included in names if included not in GENERATED]
    return found


def python_imports() -> list[tuple[str, str]]:
    """(file, imported file), both relative to python/fusedops; `_C` and functions left out."""
    package = ROOT / "python/fusedops"
    found = []
    for path in python_sources():
        name = path.relative_to(package).as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                wanted = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                here = ["fusedops", *Path(name).parts[:-1]]
                above = here[: len(here) - node.level + 1] if node.level else []
                base = ".".join([*above, *([node.module] if node.module else [])])
                wanted = [f"{base}.{alias.name}" for alias in node.names]
            else:
                continue
            for module in wanted:
                parts = module.split(".")
                if parts[0] != "fusedops" or module == "fusedops._C":
                    continue
                while parts:  # a function is of the module that has it
                    at = package.joinpath(*parts[1:])
                    file = at / "__init__.py" if at.is_dir() else at.with_suffix(".py")
                    if file.is_file():
                        found.append((name, file.relative_to(package).as_posix()))
                        break
                    parts.pop()
    return found


def allowed(file: str, included: str, layers: dict[str, tuple[str, ...]]) -> bool:
    folder, other = folder_of(file), folder_of(included)
    if folder == other:
        return True
    for pattern, others in layers.items():
        if fnmatchcase(folder, pattern):
            return any(fnmatchcase(other, o) or included == o for o in others)
    return False


def python_folder(name: str) -> str:
    """The layer of a Python file: subpackages of compat are compat's."""
    folder = folder_of(name)
    while folder and folder not in PYTHON_LAYERS:
        folder = folder_of(folder)
    return folder


def as_layers(edges: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [
        (f"{python_folder(a)}/x".lstrip("/"), f"{python_folder(b)}/x".lstrip("/")) for a, b in edges
    ]


def circle(edges: set[tuple[str, str]]) -> list[str]:
    """The folders of one circle, or nothing."""
    following: dict[str, set[str]] = defaultdict(set)
    for a, b in edges:
        if a != b:
            following[a].add(b)
    done: set[str] = set()

    def walk(folder: str, path: list[str]) -> list[str]:
        if folder in path:
            return [*path[path.index(folder) :], folder]
        if folder not in done:
            for other in sorted(following[folder]):
                if found := walk(other, [*path, folder]):
                    return found
            done.add(folder)
        return []

    return next((found for folder in sorted(following) if (found := walk(folder, []))), [])


def test_includes_are_written_from_the_root() -> None:
    wrong = [
        (file, included)
        for file, included in cxx_includes()
        if not included.startswith("csrc/") or not (ROOT / included).is_file()
    ]
    assert wrong == []


def test_a_folder_of_csrc_includes_its_layers_only() -> None:
    edges = [(file, included.removeprefix("csrc/")) for file, included in cxx_includes()]
    assert len(edges) > 500
    assert [edge for edge in edges if not allowed(*edge, CXX_LAYERS)] == []


def test_a_package_imports_its_layers_only() -> None:
    edges = python_imports()
    assert len(edges) > 200
    layers = as_layers(edges)
    wrong = [e for e, of in zip(edges, layers, strict=True) if not allowed(*of, PYTHON_LAYERS)]
    assert wrong == []


def test_folders_are_in_no_circle() -> None:
    includes = {(folder_of(a), folder_of(b.removeprefix("csrc/"))) for a, b in cxx_includes()}
    assert circle(includes) == []
    imports = {(python_folder(a), python_folder(b)) for a, b in python_imports()}
    # The package itself imports all; that suites and bench call its public functions is no circle.
    assert circle({(a, b) for a, b in imports if a and b}) == []


@pytest.mark.parametrize(
    ("edge", "holds"),
    [
        (("common/vec.h", "common/host/launch.h"), False),
        (("common/host/launch.cpp", "common/checks/tensor_check.h"), True),
        (("cuda/reduce/reduce.cpp", "cuda/scan/scan.h"), False),
        (("cuda/rows/norm/norm.cuh", "cuda/rows/team/row_team.cuh"), True),
        (("cuda/rows/team/row_team.cuh", "cuda/rows/norm/norm.cuh"), False),
        (("cuda/reduce/reduce.cpp", "cutlass/problem.h"), False),
        (("cutlass/launch/unaligned_gemm.cpp", "cutlass/kernels/parts/parts.h"), True),
        (("cutlass/launch/unaligned_gemm.cpp", "cutlass/kernels/parts/sm90_parts.cuh"), False),
        (("cutlass/select/select.cpp", "cutlass/launch/gemm_launch.h"), False),
        (("cutlass/passes/loss_rows.cuh", "cuda/rows/softmax/cross_entropy.cuh"), False),
        (("cutlass/select/families/sm90.cpp", "cutlass/select/time_model.h"), True),
        (("cutlass/select/select.cpp", "cutlass/select/families/x.h"), False),
        (("elsewhere/file.h", "common/dtype.h"), False),
    ],
)
def test_the_table_says(edge: tuple[str, str], holds: bool) -> None:
    assert allowed(*edge, CXX_LAYERS) is holds


def test_a_circle_is_found() -> None:
    assert circle({("a", "b"), ("b", "c"), ("c", "b")}) == ["b", "c", "b"]
    assert circle({("a", "b"), ("b", "c"), ("a", "c"), ("a", "a")}) == []


def test_files_and_folders_stay_small() -> None:
    sources = [*cxx_sources(), *python_sources()]
    for folder in ("tests", "perf", "scripts", "examples"):
        sources += sorted((ROOT / folder).rglob("*.py"))
    long = {p.as_posix(): n for p in sources if (n := p.read_text().count("\n")) > MOST_LINES}
    assert long == {}
    counts: dict[str, int] = defaultdict(int)
    for path in (p for p in sources if p.name != "__init__.py"):
        counts[path.parent.relative_to(ROOT).as_posix()] += 1
    instances = "csrc/cutlass/instances"
    assert {f: n for f, n in counts.items() if n > MOST_SOURCES and f != instances} == {}
