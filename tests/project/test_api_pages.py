"""docs/api/ names every public name once, and nothing else."""

from __future__ import annotations

import importlib
import inspect
import re
from collections import Counter
from pathlib import Path

import pytest

import fusedops.compat  # noqa: F401  (fusedops itself does not import it)

ROOT = next(path for path in Path(__file__).resolve().parents if (path / "README.md").exists())
PAGES = sorted((ROOT / "docs/api").glob("*.md"))
PACKAGES = [
    "fusedops",
    "fusedops.compat",
    "fusedops.compat.pointnet2_ops",
    "fusedops.compat.pytorch3d",
    "fusedops.compat.torch_cluster",
    "fusedops.fp8",
    "fusedops.jit",
    "fusedops.models",
    "fusedops.nn",
    "fusedops.points",
    "fusedops.reference",
]


def exported(package: str) -> set[str]:
    names = importlib.import_module(package).__all__
    return {f"{package}.{name}" for name in names if not name.startswith("_")}


def find(name: str) -> object:
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def named(page: Path) -> list[str]:
    """The dotted names that a page's directives stand for."""
    names, module = [], ""
    for line in page.read_text().splitlines():
        directive = re.fullmatch(r"\.\. (currentmodule|auto\w+):: (\S+)", line)
        if directive is None:
            if line == "   :members:" and names[-1] in PACKAGES:
                names += [name for name in exported(names[-1]) if not inspect.ismodule(find(name))]
            continue
        kind, name = directive.groups()
        if kind == "currentmodule":
            module = name
        else:
            names.append(name if kind == "automodule" else f"{module}.{name}")
    return names


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_names_of_a_page_exist_and_have_docstrings(page: Path) -> None:
    for name in named(page):
        assert inspect.getdoc(find(name)), name


def test_every_public_name_is_on_one_page() -> None:
    counts = Counter(name for page in PAGES for name in named(page))
    public = {"fusedops.compat", *(name for package in PACKAGES for name in exported(package))}
    assert counts.keys() == public
    assert [name for name, count in counts.items() if count > 1] == []


def test_every_package_is_walked() -> None:
    modules = [name for package in PACKAGES for name in exported(package)]
    modules = {name for name in modules if hasattr(find(name), "__all__")}
    same_names = {"fusedops.compat.pointnet2_ops.pointnet2_utils"}  # as its package
    assert modules - same_names == set(PACKAGES) - {"fusedops", "fusedops.compat"}


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs/index.md").read_text()
    documents = {
        path.relative_to(ROOT / "docs").with_suffix("").as_posix()
        for path in (ROOT / "docs").rglob("*.md")
    } - {"index"}
    assert set(re.findall(r"^[a-z][\w/-]*$", index, re.MULTILINE)) == documents
