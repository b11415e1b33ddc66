"""docs/fp8.md states what its CSV holds, and the script computes it."""

from __future__ import annotations

import csv
import importlib.util
from pathlib import Path

import pytest

ROOT = next(path for path in Path(__file__).resolve().parents if (path / "README.md").exists())
pytestmark = pytest.mark.filterwarnings("ignore:fusedops.fp8")


@pytest.fixture(scope="module")
def script():
    path = ROOT / "perf/fp8/error_tables.py"
    if not path.exists():
        pytest.skip("needs the sources")
    spec = importlib.util.spec_from_file_location("error_tables", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_has_the_tables_of_the_csv(script):
    with script.CSV.open() as file:
        rows = list(csv.DictReader(file))
    page = script.PAGE.read_text()
    assert script.with_tables(page, script.tables(rows)) == page
    assert len(rows) == 7 * (9 + 8)


def test_the_csv_holds_what_layers_do(script):
    """One row of each kind again: the figures move by the order of sums alone."""
    with script.CSV.open() as file:
        value = {
            (r["layer"], r["inputs"], r["recipe"], r["result"]): float(r["error_percent"])
            for r in csv.DictReader(file)
        }
    kind = "norm, outlier channels"
    found = script.linear_errors(kind, script.RECIPES["block"])
    for result, error in zip(("y", "dx", "dweight"), found, strict=True):
        assert error == pytest.approx(value["linear", kind, "block", result], abs=0.03)
    found = script.block_errors(True, script.RECIPES["row"])
    results = ("y", "dx", "dweight first", "dweight last")
    for result, error in zip(results, found, strict=True):
        assert error == pytest.approx(value["SwiGLU", kind, "row", result], abs=0.05)
