"""Pages for users: each message of the page on troubleshooting comes as it is quoted there, and the
pictures of all pages are those of the committed CSVs.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
TROUBLES = (ROOT / "docs/troubleshooting.md").read_text()
RAISED = re.findall(r"^```py\n(.*?)^```\n\n```text\n(.*?)^```", TROUBLES, re.DOTALL | re.MULTILINE)
SHOWN = re.findall(r"^```text\n(.*?)^```", TROUBLES, re.DOTALL | re.MULTILINE)
QUOTED = [text for text in SHOWN if text not in {shown for _, shown in RAISED}]
# What differs from call to call
FREE = r";|perf/results|\d+(?:\.\d+)?|linear|my_op|plans\.json|built before|h100|epilogue: "


def outcome(block: str, namespace: dict[str, Any]) -> str:
    """What a block prints and raises, as a reader sees it."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(block, "troubleshooting", "exec"), namespace)
    except Exception as error:
        return f"{printed.getvalue()}{type(error).__name__}: {error}"
    return printed.getvalue()


def test_messages_come_as_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FUSEDOPS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {}
    assert len(RAISED) >= 12
    for block, text in RAISED:
        if "fusedops.tune" in block and torch.cuda.is_available():
            continue  # there is nothing to complain of
        came = outcome(block, namespace).replace(f"{tmp_path}/", "")
        assert text.strip() in came.splitlines(), (block, came)


def sources() -> str:
    """All code as one text, with strings that follow each other joined."""
    files = [*(ROOT / "python").rglob("*.py")]
    files += [p for p in (ROOT / "csrc/common").rglob("*") if p.suffix in (".h", ".cpp")]
    text = "\n".join(path.read_text() for path in files)
    return re.sub(r'"\s*\n\s*f?"', "", text)


def test_other_messages_are_in_the_sources() -> None:
    code = sources()
    assert len(QUOTED) >= 7
    for text in QUOTED:
        for part in re.split(FREE, text.strip()):
            words = part.strip(" ;:,.()/")
            assert words in code, (text, words)


def texts(file: Path) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", file.read_text())


def load_draw_plots() -> Any:
    pytest.importorskip("matplotlib", reason="the pictures need matplotlib")
    spec = importlib.util.spec_from_file_location("draw_plots", ROOT / "perf/draw_plots.py")
    assert spec
    assert spec.loader
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    return program


STALE = "the CSVs changed; run: make figures (without make: python perf/draw_plots.py)"


def test_pictures_show_the_committed_rows(tmp_path: Path) -> None:
    drawn = load_draw_plots().main(tmp_path)
    shown = re.findall(r"\]\(plots/([\w.]+)\)", (ROOT / "docs/performance.md").read_text())
    assert sorted(shown) == sorted(path.name for path in drawn)
    committed = sorted(path.name for path in (ROOT / "docs/plots").iterdir())
    assert committed == sorted(shown)
    for path in drawn:
        assert texts(path) == texts(ROOT / "docs/plots" / path.name), f"{path.name}: {STALE}"


def test_charts_show_the_committed_rows(tmp_path: Path) -> None:
    drawn = load_draw_plots().charts(tmp_path)
    names = sorted(path.relative_to(tmp_path).as_posix() for path in drawn)
    results = ROOT / "perf/results"
    committed = sorted(p.relative_to(results).as_posix() for p in results.glob("*/plots/*.svg"))
    assert names == committed
    pages = "".join((ROOT / p).read_text() for p in ("README.md", "docs/benchmarks.md"))
    for name in names:
        assert f"perf/results/{name}" in pages, f"{name}: no page shows it"
        assert texts(tmp_path / name) == texts(results / name), f"{name}: {STALE}"
