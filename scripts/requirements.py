"""Prints the requirements of pyproject.toml's build system and of the extras named as arguments."""

from __future__ import annotations

import re
import sys
from pathlib import Path

# NOTE: Python 3.10 has no tomllib; the lists read here are plain arrays of strings.
TEXT = (Path(__file__).parent.parent / "pyproject.toml").read_text()


def array(name: str) -> list[str]:
    match = re.search(rf"^{re.escape(name)} = \[(.*?)\]$", TEXT, re.MULTILINE | re.DOTALL)
    if match is None:
        raise SystemExit(f"pyproject.toml has no list {name!r}")
    return re.findall(r'"([^"]+)"', match.group(1))


def expand(extra: str) -> set[str]:
    found: set[str] = set()
    for requirement in array(extra):
        nested = re.fullmatch(r"fusedops\[(\w+)\]", requirement)
        found |= expand(nested.group(1)) if nested else {requirement}
    return found


if __name__ == "__main__":
    requirements = set(array("requires"))
    for extra in sys.argv[1:]:
        requirements |= expand(extra)
    print("\n".join(sorted(requirements)))
