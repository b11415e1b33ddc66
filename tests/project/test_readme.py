"""What the README shows runs as it stands, and its figures are ten rows of the committed CSVs."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

import fusedops

ROOT = next(path for path in Path(__file__).resolve().parents if (path / "README.md").exists())
README = ROOT / "README.md"


def load_readme_table():
    spec = importlib.util.spec_from_file_location("readme_table", ROOT / "perf/readme_table.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_has_ten_rows_of_figures(tmp_path):
    script = load_readme_table()
    folder = ROOT / "perf/results/h200"
    if not folder.exists():
        pytest.skip("a source distribution holds no results")
    table = script.render_headlines(folder)
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    assert len(rows) == 10
    assert all("**" in line for line in rows)
    assert table in README.read_text()
    assert script.render_headlines(tmp_path) == "*No results yet.*"


def test_the_first_snippet_runs(monkeypatch, capsys):
    """On the CPU, with fewer rows; tune needs a GPU."""
    monkeypatch.setattr(fusedops, "tune", lambda model, x: model(x).shape)
    code = re.search(r"```python\n(.*?)```", README.read_text(), re.DOTALL)[1]
    assert '"cuda"' in code
    names = {}
    exec(code.replace('"cuda"', '"cpu"').replace("8192", "16"), names)
    assert names["y"].shape == names["c"].shape == (16, 4096)
    assert names["report"].num_fused == 3
    assert names["report"].blocks
    assert names["n"].shape == (8, 1024)
    assert names["idx"].shape == names["d2"].shape == (8, 4096, 16)
    assert "torch.Size([16, 1024])" in capsys.readouterr().out
