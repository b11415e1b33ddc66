"""What is said of whole models: bars, the README's table and its picture, from made-up rows."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from fusedops.bench.report import model_bars, model_plot, plot, results, summary

ROOT = next(path for path in Path(__file__).resolve().parents if (path / "README.md").exists())
ALL = [("fuse", 30.0), ("inductor", 20.0), ("fuse_compile", 25.0), ("inductor_graphs", 21.0)]
PEERS = {
    "eager": 45.0,
    "compile": 24.0,
    "compile_whole": 22.0,
    "compile_graphs": 23.0,
    "liger": 30.0,
}


@pytest.fixture(autouse=True)
def _in_an_empty_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def rows(
    model: str = "llama",
    ours: Any = ALL,
    peers: dict[str, float] = PEERS,
    memory: tuple[float, float] = (80, 100),
    pass_: str = "step",
) -> list[results.Row]:
    """Times in ms."""
    found = []
    for variant, ms in ours:
        for peer, peer_ms in peers.items():
            row = dict.fromkeys(results.COLUMNS, "")
            row |= {"suite": "models", "case": f"{model}/{variant}", "dtype": "bf16"}
            row |= {"pass": pass_, "peer": peer, "ours_us": f"{ms * 1e3:.0f}"}
            row |= {"peer_us": f"{peer_ms * 1e3:.0f}", "speedup": f"{peer_ms / ms:.4g}"}
            row |= {"ours_extra_mb": str(memory[0]), "peer_extra_mb": str(memory[1])}
            row |= {"gpu": "NVIDIA H200", "torch": "2.11.0", "commit": "abc", "date": "2026-11-26"}
            found.append(row)
    return found


def script() -> Any:
    spec = importlib.util.spec_from_file_location("readme_table", ROOT / "perf/readme_table.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["readme_table"] = module
    spec.loader.exec_module(module)
    return module


def test_the_best_of_ours_meets_the_best_of_theirs() -> None:
    text = "\n".join(summary.bars([*rows(), *rows("bert", [("fuse", 44.0)], memory=(9, 9))], []))
    for line in (
        # 22 / 20, and 22 / 44
        "FAIL     models step best of ours over best of theirs, geomean >= 1.12: 0.742 over 2",
        "FAIL     models step best of ours over best of theirs, every model >= 1.02: 0.500 over 2",
        "pass     models step graph pass or fuse + compile over compile, every model >= 1.00: 1.10",
        "FAIL     models step fuse over eager, geomean >= 1.35: 1.239 over 2",
        "pass     models step fuse over eager, llama >= 1.40: 1.500 over 1",
        "FAIL     models step fuse over eager, bert >= 1.45: 1.023 over 1",
        "no data  models step fuse over eager, gpt2_medium >= 2.10",
        "pass     models step compile's memory / ours, every model >= 1.00: 1.000 over 2",
    ):
        assert line in text


def test_inference_and_other_dtypes_have_no_bars() -> None:
    other = [row | {"dtype": "fp16"} for row in rows()]
    lines = model_bars.model_bars([*rows(pass_="infer"), *other])
    assert all(line.startswith("  no data") for line in lines)


def test_ratios_are_of_one_run() -> None:
    """The variant measured later, on a slower day, is held against that day's peers."""
    slow = rows(ours=[("fuse_compile", 38.0)], peers={k: 2 * v for k, v in PEERS.items()})
    (found,) = model_bars.models([*rows(ours=ALL[:2]), *slow], "step")
    assert found.fastest() == "fuse_compile"
    assert found.over(model_bars.VARIANTS) == pytest.approx(44 / 38, rel=1e-3)
    assert model_plot.times(found)["fusedops"] == pytest.approx(90 / 38)


def test_summaries_group_by_variant() -> None:
    lines = summary._geomeans(rows()).splitlines()[1:]
    assert {line.split()[3] for line in lines} == set(model_bars.VARIANTS)


def test_nothing_is_rendered_where_nothing_was_measured(tmp_path: Path) -> None:
    table = script()
    assert table.render_models(tmp_path / "none") == ""
    results.merge_rows(tmp_path / "norm.csv", [rows()[0] | {"suite": "norm", "case": "sum/1x1"}])
    assert table.render_models(tmp_path) == ""
    begin, end = table.MODELS
    page = f"# Title\n\n{begin}\n{end}\n\nText\n"
    assert table.replace(page, "", table.MODELS) == page
    filled = table.replace(page, "| a |", table.MODELS)
    assert filled == f"# Title\n\n{begin}\n| a |\n{end}\n\nText\n"
    assert table.replace(filled, "", table.MODELS) == page


def test_the_table_has_a_line_per_model(tmp_path: Path) -> None:
    table = script()
    results.merge_rows(tmp_path / "models.csv", [*rows(), *rows("dlrm", peers={"eager": 40.0})])
    text = table.render_models(tmp_path)
    assert "| llama | 45 | 30 | 24 | 22 | 23 | 30 | 25 | 20 | 21 | **1.10** |" in text
    assert "| dlrm | 40 |  |  |  |  | 30 | 25 | 20 | 21 | **2.00** |" in text
    assert "over 2 models the best of ours is 1.48 times as fast" in text
    assert "takes 0.80 of compile's memory" in text
    assert "<img" not in text


def test_the_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    results.merge_rows(tmp_path / "models.csv", [*rows(), *rows("dlrm", peers={"eager": 40.0})])
    files = plot.plot([tmp_path / "models.csv"])
    assert {file.name for file in files} == {"models_step.svg", "models_step.png"}
    assert "models_step.svg" in script().render_models(tmp_path)
    figure = model_plot.speed_chart(rows(), "step")
    assert {t.get_text() for t in figure.axes[0].get_legend().get_texts()} == {
        "fusedops",
        "torch.compile",
        "Liger",
    }
    assert [bar.get_width() for bar in figure.axes[0].containers[2]] == [45 / 20]
    assert model_plot.speed_chart(rows(peers={"compile": 3.0}), "step") is None
