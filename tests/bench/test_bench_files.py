"""What the measuring tools store and say: the CSV, the reports, the scripts of perf/."""

from __future__ import annotations

import csv
import importlib.util
import math
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import fusedops
from fusedops.bench import cli, machine
from fusedops.bench.report import memory_bars, plot, point_bars, results
from fusedops.bench.report import summary as report
from fusedops.bench.suites.base import Selection, load_suite

if TYPE_CHECKING:
    import torch

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def row(case: str = "8192x4096x1024/relu", **changes: str) -> results.Row:
    values = dict.fromkeys(results.COLUMNS, "1")
    values |= {"suite": "linear", "case": case, "dtype": "bf16", "pass": "fwd", "peer": "eager"}
    return values | {"gpu": "NVIDIA H200", "speedup": "1.5"} | changes


def load_script(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, next((ROOT / "perf").rglob(f"{name}.py")))
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


# ---- the CSV ----


def test_merge_replaces_by_key_and_keeps_the_rest() -> None:
    path = Path("x/linear.csv")
    results.merge_rows(path, [row(speedup="1.1"), row(peer="compile")])
    results.merge_rows(path, [row(speedup="1.7"), row(case="1x2x3/relu")])
    rows = results.read_rows(path)
    assert [(r["case"], r["peer"], r["speedup"]) for r in rows] == [
        ("8192x4096x1024/relu", "eager", "1.7"),
        ("8192x4096x1024/relu", "compile", "1.5"),
        ("1x2x3/relu", "eager", "1.5"),
    ]
    assert [p.name for p in path.parent.iterdir()] == ["linear.csv"]


def test_a_peer_replaces_the_row_without_one() -> None:
    path = Path("linear.csv")
    results.merge_rows(path, [row(peer=results.NO_PEER)])
    results.merge_rows(path, [row()])
    assert [r["peer"] for r in results.read_rows(path)] == ["eager"]


def test_merge_of_results_from_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    results.merge_rows(Path("back/anything.csv"), [row(), row(suite="host", case="linear/a")])
    Path("back/tune.csv").write_text("m,n\n1,2\n")
    assert cli.main(["--merge", "back"]) == 0
    assert len(results.read_rows(Path("perf/results/h200/linear.csv"))) == 1
    assert Path("perf/results/h200/host.csv").exists()


def test_what_holds_no_results_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty.csv").touch()
    Path("bad.csv").write_text("a,b\n1,2\n")
    for options, message in (
        (["--merge", "empty.csv"], "empty.csv holds no rows"),
        (["--merge", "bad.csv"], "bad.csv holds no rows"),
        (["--merge", "nowhere"], "nowhere does not exist"),
        (["--summary", "empty.csv"], r"empty.csv: expected the columns"),
        (
            ["linear", "--shapes", "8x8"],
            "--shapes do not fit suite linear: expected MxNxK; got 8x8",
        ),
        (["points", "--shapes", "8x8"], "--shapes do not fit suite points: expected BxNxM"),
        (["stencil", "--shapes", "8x8"], "--shapes do not fit suite stencil: expected CxHxW"),
        (["linear", "--activation", "swiglu"], "suite linear has no activation swiglu; it knows"),
        (["mlp", "--activation", "foo"], "suite mlp has no activation foo; it knows none, relu"),
        (["--summary"], "no results in perf/results/cpu; name others"),
        (["--plot"], "no results in perf/results/cpu"),
        (["--compare", "empty.csv"], "no results in perf/results/cpu"),
    ):
        with pytest.raises(SystemExit, match=f"^bench: {message}"):
            cli.main(options if options[0] == "--merge" else [*options, "--device", "cpu"])
    assert "merged" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["foo"], "no suite foo"),
        (["linear", "--device", "foo"], "foo is no torch device"),
        (["linear", "--device", "meta"], "expected cpu or cuda; got meta"),
        (["linear", "--device", "cuda:99"], "CUDA GPUs are visible"),
        (["linear", "--shapes", "8xx8"], "expected MxNxK"),
        (["linear", "--rounds", "0"], "expected a number from 1; got 0"),
        (["linear", "--rounds", "-1"], "expected a number from 1; got -1"),
        (["linear", "--pass", "fwd,back"], "no back; choose from fwd, bwd, wgrad, step"),
        (["linear", "--dtype", "bf17"], "no bf17; choose from bf16"),
    ],
)
def test_wrong_options_are_named(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.main(options)
    assert message in capsys.readouterr().err


def test_nothing_asked_prints_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    assert "--pass fwd,bwd,wgrad,step" in capsys.readouterr().out


def test_an_interrupt_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_run", interrupted)
    with pytest.raises(SystemExit, match="interrupted"):
        cli.main(["linear"])


def test_geomeans_are_of_one_op_each() -> None:
    rows = [
        row("softmax/64x64", suite="norm", speedup="2"),
        row("layer_norm/64x64", suite="norm", speedup="8"),
        row("linear/64x64x64/relu/grad", suite="host", speedup="3"),
        row("module/64x64x64/relu/grad", suite="host", speedup="5"),
    ]
    lines = report._geomeans(rows).splitlines()[1:]
    assert [line.split()[3] for line in lines] == [
        "softmax",
        "layer_norm",
        "linear/relu",
        "module/relu",
    ]
    assert [line.split()[6] for line in lines] == ["2.000", "8.000", "3.000", "5.000"]


def test_bars_leave_blank_and_zero_cells_out() -> None:
    more = {"suite": "points", "dtype": "bf16"}
    rows = [
        row(point_bars.FEATURES, ours_extra_mb="", **more),
        row(point_bars.FEATURES, ours_extra_mb="0", **more),
        row(point_bars.GROUP, floor_us="", **more),
        gemm_row("T1_d1_h1/relu", "eager", "1", "mlp", **{"pass": "step", "ours_extra_mb": "0"}),
        gemm_row("T1_d1_h1/relu", "eager", "1", "mlp", **{"pass": "step", "ours_extra_mb": ""}),
    ]
    text = "\n".join(report.bars(rows, []))
    assert f"no data  {point_bars.FEATURES} bf16, 64 MB / ours" in text
    assert f"no data  {point_bars.GROUP} bf16 fwd, share of copy" in text
    assert "no data  mlp step eager's memory / ours" in text


def test_read_rows_names_the_wrong_columns() -> None:
    Path("bad.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match=r"bad\.csv: expected the columns suite,case"):
        results.read_rows(Path("bad.csv"))


@pytest.mark.parametrize(
    ("value", "text"),
    [(12345.6, "12346"), (12.3456, "12.35"), (0.00001234, "0.000012"), (None, ""), (1000, "1000")],
)
def test_numbers_have_no_exponent(value: float | None, text: str) -> None:
    assert results.number(value) == text


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("cpu", "cpu"),
    ],
)
def test_folder_name(name: str, folder: str) -> None:
    assert machine.folder_name(name) == folder


def test_commit_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEDOPS_COMMIT", "abc123")
    assert machine.commit.__wrapped__() == "abc123"


# ---- what is read out of it ----


def test_summary_bars() -> None:
    lt = [
        row(peer="cublaslt", speedup=s, case=f"{m}x64x64/relu")
        for s, m in (("1.2", 4096), ("0.8", 64))
    ]
    step = [
        row(**{"pass": "step"}, peer=p, speedup=s)
        for p, s in (("eager", "1.3"), ("compile", "1.05"))
    ]
    gelu = [row(peer="ours_relu", case="64x64x1024/gelu_tanh", speedup="0.9")]
    text = "\n".join(report.bars([*lt, *step, *gelu], []))
    assert "pass     fwd relu bf16 over cublaslt, M >= 2048, geomean >= 1.06: 1.200 over 1" in text
    assert "FAIL     step bf16 over the better of eager and compile, geomean >= 1.10: 1.050" in text
    assert "FAIL     fwd bf16 relu time / gelu_tanh time, K >= 512" in text
    assert "no data  fp32_high over cuBLAS" in text


def gemm_row(case: str, peer: str, speedup: str, suite: str = "linear", **more: str) -> Any:
    return row(f"{case}", suite=suite, peer=peer, speedup=speedup, **more)


def test_gemm_bars_sort_the_shapes() -> None:
    rows = [
        gemm_row("8192x4096x1024/relu", "cublaslt", "1.30"),
        gemm_row("8192x4096x1024/gelu_tanh", "cublaslt", "1.25"),
        gemm_row("8192x4096x4096/relu", "cublaslt", "0.97"),
        gemm_row("512x512x512/relu", "cublaslt", "1.10"),
        gemm_row("512x512x512/silu", "cublaslt", "0.10"),  # not of the bar
        gemm_row("8192x4096x1024/relu", "quack", "1.02"),
        gemm_row("16x4096x4096/relu", "cublaslt", "1.30", "skinny"),
        gemm_row("256x4096x4096/relu", "cublaslt", "0.50", "skinny"),  # not of the bar
        gemm_row("8192x4096x1024/add", "ours_own", "0.96", "wgrad", **{"pass": "bwd"}),
        gemm_row("8192x4096x1024/add", "eager", "1.50", "wgrad", **{"pass": "bwd"}),
    ]
    text = "\n".join(report.bars(rows, []))
    for line in (
        "pass     fwd relu, gelu_tanh over cublaslt, M >= 2048, K <= 1536, geomean >= 1.25: 1.275 ",
        "pass     fwd relu, gelu_tanh over cublaslt, M >= 2048, K <= 1536, every case >= 1.00: 1.2",
        "FAIL     fwd relu, gelu_tanh over cublaslt, M >= 2048, K > 1536, geomean >= 1.04: 0.970",
        "pass     fwd relu, gelu_tanh over cublaslt, M < 2048, geomean >= 1.05: 1.100 over 1",
        "FAIL     fwd relu, gelu_tanh over QuACK, geomean >= 1.03: 1.020 over 1",
        "pass     skinny M <= 128 over cublaslt, geomean >= 1.20: 1.300 over 1",
        "FAIL     dW into bf16 / dW into main_grad, every case >= 0.97: 0.960 over 1",
        "no data  mlp step over the best peer, geomean >= 1.13",
    ):
        assert line in text


def test_step_bars_take_the_better_peer_and_the_memory() -> None:
    def step(peer: str, speedup: str, case: str) -> Any:
        memory = {"ours_extra_mb": "70", "peer_extra_mb": "100"}
        return gemm_row(case, peer, speedup, "mlp", **{"pass": "step"}, **memory)

    rows = [
        step("eager", "1.30", "T16384_d1024_h4096/gelu_tanh"),
        step("compile", "1.10", "T16384_d1024_h4096/gelu_tanh"),
        step("eager", "1.20", "T8192_d4096_h16384/gelu_tanh"),
        step("eager", "1.05", "T8192_d2048_h5632/swiglu"),
    ]
    text = "\n".join(report.bars(rows, []))
    assert "pass     mlp step over the best peer, geomean >= 1.13: 1.149 over 2" in text
    assert "pass     mlp step over the best peer, every case >= 1.03: 1.100 over 2" in text
    assert "FAIL     gated_mlp step over the best peer, geomean >= 1.10: 1.050 over 1" in text
    assert "pass     mlp step eager's memory / ours, every case >= 1.33: 1.429 over 2" in text


def test_summary_command(capsys: pytest.CaptureFixture[str]) -> None:
    results.merge_rows(Path("linear.csv"), [row(), row(case="64x64x64/relu", speedup="0.6")])
    assert cli.main(["--summary", "linear.csv"]) == 0
    out = capsys.readouterr().out
    assert "0.949" in out  # the geomean
    assert "0.600  linear 64x64x64/relu bf16 fwd" in out


def test_compare_lists_regressions(capsys: pytest.CaptureFixture[str]) -> None:
    results.merge_rows(Path("old.csv"), [row(speedup="1.5"), row(peer="compile")])
    new = [row(speedup="1.2"), row(peer="compile"), row(peer="quack")]
    results.merge_rows(Path("new.csv"), new)
    assert cli.main(["--compare", "old.csv", "--out", "new.csv"]) == 1
    out = capsys.readouterr().out
    assert "0 better, 1 worse; 0 rows only then, 1 only now" in out
    assert "speed-up 1.5 -> 1.2" in out


def test_plots() -> None:
    pytest.importorskip("matplotlib")
    rows = [
        row(),
        row(case="64x64x64/relu", tflops="2", floor_us="0.5"),
        row(peer="-", case="1x1x1/relu"),
    ]
    results.merge_rows(Path("r/linear.csv"), rows)
    names = {p.name for p in plot.plot([Path("r/linear.csv")])}
    assert names == {f"linear_fwd_{k}.{s}" for k in ("speedup", "roofline") for s in plot.FORMATS}


def test_a_heat_map_has_a_line_per_shape_and_a_panel_per_screenful(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(plot, "PANEL_LINES", 2)
    rows = [
        row(f"{m}x64x64/{act}", peer=peer)
        for m in (1, 2, 3)
        for act in ("relu", "gelu_tanh")
        for peer in ("eager", "cublaslt", "ours_relu")
    ]
    panels = plot._heat_map(rows).axes
    lines = [[tick.get_text() for tick in axes.get_yticklabels()] for axes in panels]
    assert lines == [["1x64x64", "2x64x64"], ["3x64x64"]]
    columns = [tick.get_text() for tick in panels[0].get_xticklabels()]
    assert columns == [
        "gelu_tanh bf16 cublaslt",
        "gelu_tanh bf16 eager",
        "relu bf16 cublaslt",
        "relu bf16 eager",
    ]
    assert plot._cell(row("linear/64x64x64/relu/grad", suite="host"))[1] == "bf16 eager"
    assert plot._cell(row("knn/B8_N1024", suite="points"))[0] == "knn/B8_N1024"


# ---- scripts ----


def test_run_script_is_the_same_command() -> None:
    script = [
        sys.executable,
        str(ROOT / "perf/run.py"),
        "linear",
        "--list",
        "--case",
        "1x4096x*/relu",
    ]
    done = subprocess.run(script, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0] == "linear 1x4096x4096/relu bf16 fwd eager,cublaslt"


def test_tune_gemm(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    tune = load_script("tune_gemm")
    names = (("sm90", "good"), ("sm90", "refuses"), ("sm80", "wrong"))
    plans = [
        {"family": family, "index": i, "name": name, "splits": splits, "swizzle": 32}
        | {"expected_us": 10.0, "rejected": "refused" if splits == 2 else None}
        for i, (family, name) in enumerate(names)
        for splits in (1, 2, 4, 8)
    ]
    monkeypatch.setattr(fusedops._C, "plan_gemm", lambda *_: {"candidates": plans})

    def our_call(problem: Any, plan: Any) -> Any:
        def call(*inputs: torch.Tensor) -> torch.Tensor:
            if plan["name"] == "refuses":
                raise RuntimeError("cannot implement")
            y = tune.measure.expected(problem, inputs)
            return y * 2 if plan["name"] == "wrong" else y

        return call

    monkeypatch.setattr(tune.measure, "our_call", our_call)
    monkeypatch.setattr(tune, "KEEP_WITHIN", math.inf)  # no clock decides what is left
    args = ["--shapes", "32x16x512", "--layouts", "TN,NN,NT", "--splits", "1,2,4", "--rounds", "1"]
    args += ["--swizzles", "4,8", "--device", "cpu", "--out", "t.csv"]
    assert tune.main(args) == 0
    with Path("t.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {r["layout"] for r in rows} == {"TN", "NN", "NT"}
    assert {r["name"] for r in rows} == {"good", "mm", "addmm", "addmm_activation"}
    assert {(r["splits"], r["swizzle"]) for r in rows if r["name"] == "good"} == {
        (s, w) for s in "14" for w in ("4", "8", "32")
    }
    out = capsys.readouterr().out
    assert "WRONG 32x16x512 TN" in out
    assert "cannot run" in out

    monkeypatch.setattr(tune, "LONG_US", 0.0)
    assert tune.main([*args, "--alone", "0.001"]) == 0
    with Path("t.csv").open() as file:
        alone = [r for r in csv.DictReader(file) if r["layout"] == "NT"]
    assert {(r["name"], r["splits"], r["swizzle"]) for r in alone} == {
        ("good", "1", "32"), ("good", "4", "32"), ("mm", "1", "8")
    }  # fmt: skip
    assert all(float(r["us"]) > 0 for r in alone)


@pytest.mark.gpu
def test_tune_gemm_on_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    tune = load_script("tune_gemm")
    args = ["--shapes", "256x128x512", "--layouts", "TN,NN,NT", "--swizzles", "1"]
    assert tune.main([*args, "--rounds", "1", "--out", "t.csv"]) == 0
    with Path("t.csv").open() as file:
        rows = list(csv.DictReader(file))
    for layout in ("TN", "NN", "NT"):
        families = {r["family"] for r in rows if r["layout"] == layout}
        assert families > {"cublas"}
    assert "WRONG" not in capsys.readouterr().out


def test_readme_table_renders_from_the_csv() -> None:
    script = load_script("readme_table")
    results.merge_rows(Path("h200/linear.csv"), [row(), row(peer="cublaslt", speedup="1.19")])
    table = script.render(Path("h200"))
    assert "8192 x 4096 x 1024" in table
    text = f"a\n{script.BEGIN}\nold\n{script.END}\nb\n"
    updated = script.replace(text, table)
    assert "old" not in updated
    assert updated.startswith("a\n")
    assert updated.endswith("b\n")
    with pytest.raises(ValueError, match="markers"):
        script.replace("nothing", table)


def test_readme_says_which_peers_had_runs_of_their_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = load_script("readme_table")
    file = Path("h200/linear.csv")
    results.merge_rows(file, [row(ours_us="90"), row(ours_us="90", peer="cublaslt")])
    assert "runs of its own" not in script.render(Path("h200"))
    results.merge_rows(file, [row(ours_us="99", peer="quack")])
    assert "QuACK was measured in runs of its own" in script.render(Path("h200"))
    monkeypatch.setattr(sys, "argv", ["readme_table.py", "--results", "h200", "--check"])
    assert script.main() == 1
    assert "README.md is out of date" in capsys.readouterr().err


def test_readme_shows_the_plots_that_are_there() -> None:
    script = load_script("readme_table")
    results.merge_rows(Path("h200/linear.csv"), [row()])
    assert "<img" not in script.render(Path("h200"))
    Path("h200/plots").mkdir()
    Path("h200/plots/linear_fwd_speedup.svg").write_text("<svg/>")
    table = script.render(Path("h200"))
    assert table.count("<img") == 1
    assert 'src="h200/plots/linear_fwd_speedup.svg"' in table


def test_committed_tables_are_up_to_date() -> None:
    script = load_script("readme_table")
    folder = ROOT / "perf/results/h200"
    if not (folder / "linear.csv").exists():
        pytest.skip("no committed results yet")
    for page, text in script.pages(folder).items():
        assert page.read_text() == text, f"{page}: the CSVs changed; run: make figures"


def test_memory_bars() -> None:
    def norm(size: str, share: float, **more: str) -> results.Row:
        times = {"floor_us": "100", "ours_us": str(100 / share)}
        return row(f"softmax/{size}", suite="norm", **(times | more))

    rows = [
        norm("131072x1024", 0.9),
        norm("131200x1023", 0.85, date="2026-11-21"),
        norm("131200x1023", 0.70, date="2026-11-20", peer="quack"),  # an older kernel
        norm("16x1000", 0.01, floor_us="0.02", speedup="0.9"),  # small: no share
        row("cumsum/9_dim0", suite="scan", floor_us="100", ours_us="150", speedup=""),
    ]
    lines = {line[11:].split(" >= ")[0]: line.split()[0] for line in memory_bars.memory_bars(rows)}
    assert lines["norm fwd, rows of 256 to 65536, share of copy, every case"] == "pass"
    assert lines["norm fwd, odd row over its even neighbour"] == "pass"
    assert lines["cumsum, share of copy, every case"] == "FAIL"
    assert lines["memory suites over eager, large, every case"] == "pass"
    assert lines["memory suites over eager, small, every case"] == "FAIL"
    assert lines["bincount, share of copy, every case"] == "no"


def test_point_bars() -> None:
    knn = "knn/B32_N4096_M1024_k16_uniform"
    more = {"suite": "points", "ours_extra_mb": "40"}
    rows = [
        row(knn, dtype="fp32", ours_us="88", peer="eager", **more),
        row(knn, dtype="fp32", ours_us="88", peer="pytorch3d", **more),
        row("fps/B8_N1024_M256_uniform", dtype="fp32", ours_us="200", peer="-", **more),
        row(point_bars.FEATURES, dtype="bf16", peer="eager", speedup="2.5", **more),
        row(point_bars.GROUP, dtype="bf16", floor_us="30", ours_us="40", **more),
    ]
    text = "\n".join(report.bars(rows, []))
    assert f"pass     {knn}, 110 us / ours >= 1.00: 1.250 over 2" in text
    assert "FAIL     fps/B8_N1024_M256_uniform, 160 us / ours >= 1.00: 0.800 over 1" in text
    assert f"FAIL     {point_bars.FEATURES} bf16 over cdist, topk >= 3.00: 2.500 over 1" in text
    assert f"pass     {point_bars.FEATURES} bf16, 64 MB / ours >= 1.00: 1.600 over 1" in text
    assert f"pass     {point_bars.GROUP} bf16 fwd, share of copy >= 0.70: 0.750 over 1" in text
    suite = load_suite("points")
    names = {case.name for case in suite.cases(Selection("fwd", (), ()))}
    assert {*point_bars.TIMES, point_bars.FEATURES, point_bars.GROUP} <= names
