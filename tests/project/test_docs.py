"""What the documents point at exists, what they show runs, and copies of one fact agree."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

ROOT = next(path for path in Path(__file__).resolve().parents if (path / "README.md").exists())
DOCS = sorted((ROOT / "docs").rglob("*.md"))
GUIDES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS]  # they describe the tree as it is
PAGES = [*GUIDES, ROOT / "CHANGELOG.md", ROOT / "SECURITY.md"]
FOLDERS = ("csrc", "python", "tests", "perf", "scripts", "docs", "cmake", "examples", ".github")
MOVED = (ROOT / "csrc/bindings").is_dir()


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def fences(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def code(page: Path) -> list[str]:
    """All that a page sets as code: fenced blocks, and spans in the rest."""
    text = page.read_text()
    blocks = re.findall(r"^```.*?^```", text, re.DOTALL | re.MULTILINE)
    rest = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    return blocks + re.findall(r"`([^`\n]+)`", rest)


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text()
    links = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'src="([^"]+)"', text)
    for link in links:
        path, _, anchor = link.partition("#")
        if "://" in link:
            continue
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.skipif(not MOVED, reason="the documents name the files where they will be")
@pytest.mark.parametrize("page", GUIDES, ids=name)
def test_paths_exist(page: Path) -> None:
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file()]
    files += [path for path in ROOT.iterdir() if path.is_file()]
    missing = []
    for text in code(page):
        for path in re.findall(rf"(?<![\w./-])(?:{'|'.join(FOLDERS)})/(?:[\w./*-]|<[^>]+>)*", text):
            pattern = re.sub(r"<[^>]+>", "*", path).rstrip("./-")
            if not any(ROOT.glob(pattern)):
                missing.append(path)
        is_file = re.fullmatch(r"[\w*]+\.(h|cuh|cu|cpp|py)", text)
        if is_file and not any(fnmatchcase(file.name, text) for file in files):
            missing.append(text)
    assert not missing, missing


@pytest.mark.parametrize("page", GUIDES, ids=name)
def test_make_targets_exist(page: Path) -> None:
    targets = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for text in code(page):
        for target in re.findall(r"(?:^|\s|`)make ([a-z][a-z-]*)", text):
            assert target in targets, target


@pytest.mark.parametrize("page", [page for page in DOCS if fences(page, "python")], ids=name)
def test_python_runs(page: Path) -> None:
    """On the CPU, block after block, as a reader would. The README's is run by test_readme.py."""
    namespace: dict[str, object] = {"__name__": "snippet"}
    for number, block in enumerate(fences(page, "python")):
        exec(compile(block, f"{name(page)}, block {number}", "exec"), namespace)


def test_no_comment_begins_with_of() -> None:
    """A comment is a sentence with a subject."""
    begins = re.compile(r'((//|^\s*#|^\s+\w+:) |"{3})Of ')
    assert all(begins.search(f"{mark}Of a") for mark in ("  // ", "# ", "  x: ", '"' * 3))
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for folder in ("csrc", "python", "tests", "perf", "scripts", "examples")
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in (".py", ".h", ".cuh", ".cu", ".cpp")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if begins.search(line)
    ]
    assert found == []


def test_hosted_ci_runs_what_ci_run_runs() -> None:
    script = (ROOT / ".ci/run").read_text()
    workflow = (ROOT / ".github/workflows/ci.yml").read_text()
    commands = re.findall(
        r"^(?:USE_CUDA=0 )?(make \w+|\.venv/bin/python .+)$", script, re.MULTILINE
    )
    assert len(commands) >= 5
    for command in commands:
        assert command in workflow, command
    assert set(re.findall(r'"3\.\d+"', workflow)) == {f'"3.{minor}"' for minor in range(10, 14)}


def test_the_citation_names_this_version() -> None:
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"version: {version[1]}\n" in citation
    assert f"## [{version[1]}] - " in (ROOT / "CHANGELOG.md").read_text()
