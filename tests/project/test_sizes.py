"""No function is over 60 lines: of Python without docstrings, of C++ and CUDA those of the host."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
MOST = 60
DEVICE = ("__global__", "__device__", "FUSEDOPS_DEVICE", "CUTLASS_DEVICE")
SCOPES = re.compile(r"^(?:template.*>\s*)?(?:namespace|struct|class|union|enum|extern)\b")


def python_functions(text: str) -> Iterator[tuple[str, int]]:
    """(name, lines but those of its docstring) of every function and method."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = node.body[0] if ast.get_docstring(node) is not None else None
            words = docstring.end_lineno - docstring.lineno + 1 if docstring else 0
            yield node.name, node.end_lineno - node.lineno + 1 - words


def cxx_functions(text: str) -> Iterator[tuple[str, int]]:
    """(head, lines) of every function, as clang-format lays them out: the brace that closes one has
    the indentation of the head's first line, and only scopes are around it.
    """
    lines = text.splitlines()
    head, at = "", 0
    while at < len(lines):
        line = lines[at]
        if re.match(r"\s*(#|//|$|(public|private|protected):)", line):
            at += 1
            continue
        if not head:
            first = at
        head += line.split("//")[0].strip() + " "
        at += 1
        if head.rstrip().endswith((";", "}")):
            head = ""
        elif head.rstrip().endswith("{"):
            if not SCOPES.match(head) and not head.endswith("= { "):
                indent = lines[first][: len(lines[first]) - len(lines[first].lstrip())]
                while not lines[at - 1].startswith(indent + "}"):
                    at += 1
                yield head.strip(), at - first
            head = ""


def test_what_it_finds() -> None:
    text = """
template <int N>
struct Pair {
  int first() const {
    if (N) {
      return 1;
    }
    return 0;
  }
  int second;
};
constexpr int kTable[] = {
    1,
};
namespace {
int long_one(int a,
             int b) {
  return a;
}  // end
}
"""
    assert [(name.split("(")[0], n) for name, n in cxx_functions(text)] == [
        ("int first", 6),
        ("int long_one", 4),
    ]
    assert list(
        python_functions('def f():\n    """A\n    b."""\n    def g():\n        pass\n')
    ) == [
        ("f", 3),
        ("g", 2),
    ]


@pytest.mark.parametrize("folder", ["python", "perf", "scripts", "examples"])
def test_python_functions_are_short(folder: str) -> None:
    long = [
        f"{path.relative_to(ROOT)}: {name} has {count} lines"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for name, count in python_functions(path.read_text())
        if count > MOST
    ]
    assert not long, "\n".join(long)


def test_host_functions_are_short() -> None:
    found, long = 0, []
    for path in sorted((ROOT / "csrc").rglob("*")):
        if path.suffix not in (".h", ".cpp", ".cu", ".cuh"):
            continue
        for head, count in cxx_functions(path.read_text()):
            found += 1
            if count > MOST and not any(word in head for word in DEVICE):
                long.append(f"{path.relative_to(ROOT)}: {head[:70]} has {count} lines")
    assert found > 1000
    assert not long, "\n".join(long)
