"""The suite `wild`: the same shapes everywhere, runs that survive bad cases, what it reports."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from fusedops._timing import timing
from fusedops.bench import cli, machine
from fusedops.bench.report import results, wild
from fusedops.bench.suites import wild as wild_suite
from fusedops.bench.suites.base import PASSES, WILD_FAMILIES, Selection
from fusedops.bench.suites.wild.draw import Draw, laid_out
from fusedops.bench.suites.wild.families import ELEMENTS, FAMILIES, MANY_ROWS, TINY


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(wild_suite.WildSuite, "pace", timing.Pace(20.0, 0.0, 1e4))
    monkeypatch.setattr(machine, "CPU_COPY_BYTES", 1 << 20)
    monkeypatch.setattr(machine, "CPU_MATMUL_SIZE", 64)
    monkeypatch.setattr(cli, "CPU_FLOPS_LIMIT", 1e6)
    monkeypatch.setattr(cli, "CPU_BYTES_LIMIT", 1 << 20)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def bench(*args: str) -> int:
    return cli.main(["wild", *args, "--device", "cpu", "--rounds", "2", "--out", "out/"])


# ---- what is drawn ----

# Shapes of seed 0: a change of a distribution, or of Draw, gives others to everybody.
PINNED = {
    "linear": [
        "linear/0/seed0_transposed_plain/2733x12209x13440/none",
        "linear/1/seed0_plain_plain/2136x408x4736/none",
        "linear/2/seed0_transposed_plain/1419917x15x8/gelu_tanh",
    ],
    "reduce": [
        "reduce/0/seed0_plain/var/29x1993x2111_dim1",
        "reduce/1/seed0_plain/count_nonzero/24x280x37x64_dim1_2",
        "reduce/2/seed0_transposed/count_nonzero/183x64x7x8_dim2",
    ],
    "knn": [
        "knn/0/seed0_plain/knn/B12_N341_M341_D4_k18_normal",
        "knn/1/seed0_plain/knn/B3_N56245_M224_k13_sphere",
        "knn/2/seed0_plain/knn/B3_N336_M336_D16_k27_normal",
    ],
}


@pytest.mark.parametrize("family", PINNED)
def test_shapes_are_pinned(family: str) -> None:
    names = [wild_suite.wild_case(family, 0, index).name for index in range(3)]
    assert names == PINNED[family]


def test_families_are_those_of_the_command_line() -> None:
    assert tuple(FAMILIES) == WILD_FAMILIES


def test_a_case_depends_on_family_seed_and_index_alone() -> None:
    suite = wild_suite.SUITE()
    few = {c.name for p in PASSES for c in suite.cases(Selection(p, (), (), ("scan",), 5, 3))}
    more = {c.name for p in PASSES for c in suite.cases(Selection(p, count=9, seed=3))}
    other = {c.name for p in PASSES for c in suite.cases(Selection(p, (), (), ("scan",), 5, 4))}
    assert len(few) == 5
    assert few < more
    assert len(more) == 9 * len(FAMILIES)
    assert not few & other


@pytest.mark.parametrize("family", FAMILIES)
def test_draws_stay_within_their_limits(family: str) -> None:
    for index in range(300):
        case = wild_suite.wild_case(family, 11, index)
        assert case["pass"] in FAMILIES[family].suite.passes
        assert all(size >= 1 for size in case.args.get("shape", (1,)))
        work = wild_suite.SUITE().work(case, torch.float32, case["pass"])
        assert work is not None
        assert work.flops < 1e13, case.name
        assert work.bytes < 64 * ELEMENTS, case.name


def test_the_classes_that_were_slow_are_drawn() -> None:
    linear = [wild_suite.wild_case("linear", 5, i)["shape"] for i in range(300)]
    assert sum(min(n, k) <= TINY and m >= MANY_ROWS // 2 for m, n, k in linear) > 30
    reductions = [wild_suite.wild_case("reduce", 5, i) for i in range(300)]
    few = [c for c in reductions if c["dim"] in (0, (0,)) and c["shape"][0] <= 32]
    assert sum(c["shape"][-1] % 2 == 1 for c in few) > 5
    assert sum(c["dim"] in (1, (1,)) and len(c["shape"]) == 3 for c in reductions) > 30
    layouts = {c["layouts"][0] for c in reductions}
    assert layouts == {"plain", "sliced", "transposed"}


def test_sizes_are_log_uniform_and_half_aligned() -> None:
    draw = Draw("any", 0, 0)
    sizes = [draw.size(64, 1 << 16) for _ in range(4000)]
    assert min(sizes) >= 64
    assert max(sizes) <= 1 << 16
    middle = sum(math.log2(size) for size in sizes) / len(sizes)
    assert middle == pytest.approx(11, abs=0.3)
    assert 0.4 < sum(size % 8 == 0 for size in sizes) / len(sizes) < 0.7
    assert 0.2 < sum(size % 2 == 1 for size in sizes) / len(sizes) < 0.5


def test_within_keeps_odd_sizes_odd() -> None:
    found = Draw("any", 0, 0).within(1000, 1023, 7, 2)
    assert math.prod(found) <= 1000
    assert found[0] % 2 == 1
    assert found[1:] == (7, 2)


@pytest.mark.parametrize("layout", ["plain", "sliced", "transposed"])
@pytest.mark.parametrize("shape", [(), (5,), (3, 5), (2, 3, 5)])
def test_layouts_keep_values_and_leaves(layout: str, shape: tuple[int, ...]) -> None:
    tensor = torch.randn(shape, requires_grad=True)
    got = laid_out(tensor, layout)
    assert torch.equal(got, tensor)
    assert got.requires_grad
    assert got.is_leaf
    strides = {"plain": (5, 1), "sliced": (13, 1), "transposed": (1, 3)}
    if len(shape) == 2:
        assert got.stride() == strides[layout]


# ---- a run ----


def test_a_run_stores_reports_and_draws(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("--family", "reduce,skinny", "--count", "60", "--seed", "1", "--plot") == 0
    text = capsys.readouterr().out
    rows = results.read_rows(Path("out/wild.csv"))
    assert {r["case"].split("/")[0] for r in rows} == {"reduce", "skinny"}
    assert all("/seed1_" in r["case"] and r["peer"] == "eager" for r in rows)
    assert "reduce, seed 1: worst cases" in text
    assert "wild: over the best peer" in text
    kernels = wild.read_kernels([Path("out/wild.csv")])
    assert kernels.keys() <= {(r["case"], r["dtype"], r["pass"]) for r in rows}
    for family in ("reduce", "skinny"):
        cases = {r["case"] for r in rows if r["case"].startswith(family)}
        named = [key for key in kernels if key[0].startswith(family)]
        assert len(named) == min(len(cases), wild.WORST)
    assert all(kernels.values())
    assert Path("out/plots/wild.svg").stat().st_size > 1000
    assert cli.main(["--summary", "out/wild.csv"]) == 0
    text = capsys.readouterr().out
    assert "reduce, seed 1" in text
    assert "wild reduce, seed 1, 5th percentile" in text


def test_one_case_again(capsys: pytest.CaptureFixture[str]) -> None:
    index = next(
        i
        for i in range(400, 600)
        if math.prod(wild_suite.wild_case("reduce", 2, i)["shape"]) < 10_000
    )
    assert bench("--case", f"reduce/{index}", "--seed", "2") == 0
    (row,) = results.read_rows(Path("out/wild.csv"))
    assert row["case"] == wild_suite.wild_case("reduce", 2, index).name
    assert row["case"] in capsys.readouterr().out


def test_a_bad_case_does_not_end_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = wild_suite.WildSuite.ours
    broken: list[str] = []

    def fails_once(self: Any, case: Any, pass_: str) -> Any:
        call = ours(self, case, pass_)
        if broken:
            return call
        broken.append(case.name)

        def fail(*_: Any) -> None:
            raise RuntimeError("no such kernel")

        return fail

    monkeypatch.setattr(wild_suite.WildSuite, "ours", fails_once)
    assert bench("--family", "reduce", "--count", "30") == 1
    text = capsys.readouterr().out
    assert f"FAILED wild {broken[0]}" in text
    assert "no such kernel" in text
    rows = results.read_rows(Path("out/wild.csv"))
    assert rows
    assert broken[0] not in {r["case"] for r in rows}


def test_unknown_families_are_refused() -> None:
    with pytest.raises(SystemExit, match="no family soup; choose from linear"):
        bench("--family", "soup")


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_runs_on_the_smallest_of_its_cases(family: str) -> None:
    suite = wild_suite.SUITE()

    def cost(index: int) -> float:
        case = wild_suite.wild_case(family, 0, index)
        work = suite.work(case, torch.float32, case["pass"])
        return math.inf if work is None else work.bytes + work.flops

    index = min(range(300), key=cost)
    assert bench("--case", f"{family}/{index}") == 0
    assert results.read_rows(Path("out/wild.csv"))


# ---- the report ----


def row(case: str, speedup: float, peer: str = "eager") -> results.Row:
    blank = dict.fromkeys(results.COLUMNS, "")
    named = {"suite": "wild", "case": case, "dtype": "bf16", "pass": "fwd", "peer": peer}
    times = {"ours_us": "10", "peer_us": str(10 * speedup), "speedup": str(speedup), "gpu": "G"}
    return blank | named | times


def test_the_fastest_peer_counts() -> None:
    rows = [
        row("linear/0/seed0_plain/8x8x8/relu", 2.0),
        row("linear/0/seed0_plain/8x8x8/relu", 0.8, "cublaslt"),
        row("linear/1/seed0_plain/9x8x8/relu", 1.5),
        row("linear/0/seed7_plain/7x8x8/relu", 1.1),
    ]
    groups = wild.best_peers(rows)
    assert [value for _, value in groups["linear", "0"]] == [0.8, 1.5]
    assert [value for _, value in groups["linear", "7"]] == [1.1]


def test_percentiles() -> None:
    values = [float(i) for i in range(101)]
    assert wild.percentile(values, 5) == 5
    assert wild.percentile(values, 1) == 1
    assert wild.percentile([3.0], 1) == 3
    assert wild.percentile([1.0, 2.0], 5) == pytest.approx(1.05)


def test_bars_of_a_family_that_copies_are_lower() -> None:
    rows = [row(f"reduce/{i}/seed0_plain/sum/{i}_dim0", 1.05) for i in range(20)]
    rows += [row(f"norm/{i}/seed0_plain/layer_norm/{i}x8", 1.05) for i in range(20)]
    lines = wild.wild_bars(rows)
    assert next(line for line in lines if "reduce, seed 0, geomean" in line).startswith("  pass")
    assert next(line for line in lines if "norm, seed 0, geomean" in line).startswith("  FAIL")
