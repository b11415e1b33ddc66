"""The course of docs/tutorials: its cells run (on a CPU in test_docs.py), its CUDA compiles."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import fusedops.jit.library
from fusedops import jit
from fusedops._cli import new
from fusedops.jit import toolchain

ROOT = Path(__file__).resolve().parents[2]
INDEX = (ROOT / "docs/index.md").read_text()
COURSE = [
    ROOT / f"docs/{name}.md"
    for name in re.findall(r"tutorials/[\w-]+", INDEX.split("A course")[1].split("```\n")[0])
]


def cells(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def name(page: Path) -> str:
    return page.stem


def has_nvcc() -> bool:
    try:
        toolchain.find_nvcc()
    except jit.BuildError:
        return False
    return True


def test_the_pages_follow_each_other() -> None:
    """In the order in which people learn: each names the next, and its number."""
    assert len(COURSE) == 13
    for number, page in enumerate(COURSE, 1):
        text = page.read_text()
        assert text.startswith(f"# {number}. "), page
        if number < len(COURSE):
            assert f"({COURSE[number].name})" in text.strip().splitlines()[-1], page
        assert cells(page), page
        assert text.count("\n") < 160, page


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("page", COURSE, ids=name)
def test_cells_run_on_a_gpu(page: Path) -> None:
    """They choose CUDA where there is one."""
    namespace: dict[str, object] = {"__name__": "snippet"}
    for number, cell in enumerate(cells(page)):
        exec(compile(cell, f"{page.name}, cell {number}", "exec"), namespace)
    assert namespace.get("device", "cuda") == "cuda"


@pytest.mark.slow
@pytest.mark.skipif(not has_nvcc(), reason="nvcc is not installed")
@pytest.mark.parametrize(
    "page", [p for p in COURSE if "CUDA = r" in p.read_text() and "cutlass" not in p.stem], ids=name
)
def test_cuda_compiles(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU, for what a user with one compiles."""
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0a")
    built = []

    def only_build(name: str, files: list[Path], **options: Any) -> None:
        built.append(jit.build(name, files, **options))

    monkeypatch.setattr(fusedops.jit.library, "load", only_build)
    text = "\n".join(cells(page))
    cuda, cxx = (re.search(rf'{n} = r"""(.*?)"""', text, re.DOTALL)[1] for n in ("CUDA", "CXX"))  # type: ignore[index]
    op = re.search(r'load_inline\("(\w+)"', text)[1]  # type: ignore[index]
    jit.load_inline(op, cxx, cuda, with_cuda=True)
    assert built[0].is_file()


@pytest.mark.slow
@pytest.mark.skipif(not has_nvcc(), reason="nvcc is not installed")
def test_what_new_writes_compiles_for_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0a")
    new.write("gate_it", tmp_path)
    sources = sorted((tmp_path / "kernels").glob("*.c[pu]*"))
    files = [file for file in sources if file.suffix in (".cpp", ".cu")]
    assert len(files) == 2
    assert jit.build("gate_it", files, parts=["rows"]).is_file()
