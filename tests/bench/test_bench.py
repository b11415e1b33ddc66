"""The measuring tools: what they time, what they store and what they say, on small CPU shapes."""

from __future__ import annotations

import contextlib
import csv
import itertools
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import fusedops
from fusedops._timing import backlog, timing
from fusedops.bench import cli, machine, runner
from fusedops.bench.report import results
from fusedops.bench.suites import linear as linear_suite
from fusedops.bench.suites import quack_peer
from fusedops.bench.suites.base import ALL, Case, PeerUnavailableError, Selection, load_suite

ROOT = Path(__file__).resolve().parents[2]
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """One thread, short replays, no ceilings worth waiting for, and no file in the checkout."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(timing, "REPLAY_US", 50.0)
    monkeypatch.setattr(runner, "HOST_LOOPS", 3)
    monkeypatch.setattr(machine, "CPU_COPY_BYTES", 1 << 20)
    monkeypatch.setattr(machine, "CPU_MATMUL_SIZE", 64)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def bench(*args: str) -> int:
    return cli.main([*args, "--device", "cpu", "--rounds", "2"])


# ---- a run, end to end ----


def test_linear_run_writes_the_contract(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        bench("linear", "--shapes", "16x8x12", "--peers", "eager,ours_relu", "--out", "a.csv") == 0
    )
    header = (
        "suite,case,dtype,pass,ours_us,peer,peer_us,speedup,gbps,tflops,floor_us,"
        "ours_extra_mb,peer_extra_mb,gpu,torch,cuda,commit,date"
    )
    assert Path("a.csv").read_text().splitlines()[0] == header
    rows = results.read_rows(Path("a.csv"))
    keys = {tuple(r[k] for k in results.KEY) for r in rows}
    for dtype in ("bf16", "fp16"):
        assert ("linear", "16x8x12/relu", dtype, "fwd", "eager") in keys
        assert ("linear", "16x8x12/gelu_tanh", dtype, "fwd", "ours_relu") in keys
    assert ("linear", "16x8x12/relu", "bf16", "step", "eager") in keys
    for r in rows:
        assert float(r["speedup"]) == pytest.approx(
            float(r["peer_us"]) / float(r["ours_us"]), rel=1e-2
        )
        assert float(r["floor_us"]) > 0
    assert "eager" in capsys.readouterr().out
    assert [p.name for p in tmp_path.iterdir()] == ["a.csv"]


def test_all_suites_run_on_cpu() -> None:
    assert (
        bench("all", "--shapes", "16x8x12", "--peers", "eager", "--out", "out/", "--summary") == 0
    )
    assert sorted(p.stem for p in Path("out").iterdir()) == sorted(
        [*ALL, "fp32_error", "fp8_error"]
    )
    with Path("out/fp32_error.csv").open() as file:
        errors = list(csv.DictReader(file))
    assert {(e["dtype"], e["contender"]) for e in errors} == {
        (d, c) for d in ("fp32_highest", "fp32_high") for c in ("ours", "eager")
    }
    assert all(0 < float(e["rel_error"]) < 1e-5 for e in errors)
    cases = {r["case"] for r in results.read_rows(Path("out/host.csv"))}
    assert "linear/16x8x12/relu/grad" in cases
    assert "module/16x8x12/relu/nograd" in cases


def test_default_output_lies_under_the_gpu_name() -> None:
    assert bench("linear", "--shapes", "4x4x4", "--peers", "eager", "--pass", "fwd") == 0
    assert Path("perf/results/cpu/linear.csv").exists()


def test_ours_alone_gets_a_row() -> None:
    assert (
        bench("linear", "--shapes", "4x4x4", "--peers", "none", "--pass", "fwd", "--out", "a.csv")
        == 0
    )
    assert {r["peer"] for r in results.read_rows(Path("a.csv"))} == {results.NO_PEER}


def test_missing_skips_what_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    args = ("linear", "--shapes", "4x4x4", "--peers", "eager", "--dtype", "bf16", "--out", "a.csv")
    bench(*args)
    capsys.readouterr()
    bench(*args, "--missing")
    assert capsys.readouterr().out.startswith("0 cases")


def test_missing_counts_a_case_whose_peer_cannot_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    suite = type(load_suite("linear"))
    whole = suite.peer

    def peer(self: Any, name: str, *where: Any) -> Any:
        if name == "cublaslt":
            raise PeerUnavailableError("not on this machine")
        return whole(self, name, *where)

    monkeypatch.setattr(suite, "peer", peer)
    args = ("linear", "--shapes", "4x4x4", "--dtype", "bf16", "--pass", "fwd", "--out", "a.csv")
    for peers in ("eager,cublaslt", "cublaslt"):
        bench(*args, "--peers", peers)
        assert "cublaslt skipped" in capsys.readouterr().out
        bench(*args, "--peers", peers, "--missing")
        assert capsys.readouterr().out.startswith("0 cases")


def test_budget_stops_between_cases(capsys: pytest.CaptureFixture[str]) -> None:
    bench("linear", "--shapes", "4x4x4", "--peers", "eager", "--budget", "1e-9", "--out", "a.csv")
    assert "budget spent" in capsys.readouterr().out


@pytest.mark.slow
def test_compile_peer() -> None:
    args = ("--shapes", "8x8x8", "--activation", "relu", "--dtype", "bf16", "--peers", "compile")
    assert bench("linear", *args, "--out", "a.csv") == 0
    assert {r["pass"] for r in results.read_rows(Path("a.csv"))} == {"fwd", "step"}


def test_the_linear_suite_covers_real_models() -> None:
    suite = load_suite("linear")
    cases = suite.cases(Selection("fwd", ("relu",)))
    shapes = [case["shape"] for case in cases]
    assert len(shapes) == len(set(shapes)) >= len(linear_suite.FORWARD_SHAPES) + 40
    assert len({case.name for case in suite.cases(Selection("fwd"))}) == 2 * len(shapes)


def test_the_skinny_suite_holds_its_grid() -> None:
    suite = load_suite("skinny")
    names = [case.name for case in suite.cases(Selection("fwd"))]
    assert len(names) == 40
    assert {"1x4096x4096/relu", "96x11008x4096/relu", "256x4096x11008/relu"} <= set(names)
    assert suite.default_peers("fwd") == ("eager", "cublaslt")


def test_the_epilogue_suite_times_one_function() -> None:
    """Ours and eager agree in results and gradients; the built-in one is another function."""
    suite, device = load_suite("epilogue"), torch.device("cpu")
    cases = suite.cases(Selection("step", shapes=((64, 32, 16),)))
    assert len(cases) == 6
    for case in cases:
        inputs = suite.make_inputs(case, torch.float32, "step", device)
        ours, eager = (
            f(*inputs)
            for f in (suite.ours(case, "step"), suite.peer("eager", case, "step", device))
        )
        assert len(ours) == len(inputs)
        torch.testing.assert_close(ours, eager)
        y, *gradients = suite.peer("builtin", case, "step", device)(*inputs)
        bias = [] if case["expression"] == "softcap" else [(32,)]  # which has none
        assert [t.shape for t in (y, *gradients)] == [(64, 32), (64, 16), (32, 16), *bias]


def test_the_wgrad_suite_checks_each_target() -> None:
    assert bench("wgrad", "--shapes", "24x16x8", "--dtype", "bf16", "--out", "a.csv") == 0
    found = {(r["case"].split("/")[1], r["peer"]) for r in results.read_rows(Path("a.csv"))}
    main_grad = {(target, peer) for target in ("write", "add") for peer in ("eager", "ours_own")}
    assert found == {("own", "eager")} | main_grad


def test_a_wrong_main_grad_gets_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    suite = load_suite("wgrad")
    write = suite.ours(Case("write", {"target": "write"}), "bwd")
    monkeypatch.setattr(type(suite), "ours", lambda *_: write)
    args = ("--shapes", "24x16x8", "--dtype", "bf16", "--case", "*/add", "--out", "a.csv")
    assert bench("wgrad", *args) == 1


def test_quack_is_skipped_where_it_is_not_installed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "quack", None)
    quack_peer._modules.cache_clear()
    args = ("--shapes", "8x8x8", "--pass", "fwd", "--dtype", "bf16", "--activation", "relu")
    assert bench("linear", *args, "--peers", "eager,quack", "--out", "a.csv") == 0
    assert "QuACK is not installed" in capsys.readouterr().out
    assert {r["peer"] for r in results.read_rows(Path("a.csv"))} == {"eager"}


def test_the_best_configuration_of_a_peer_serves() -> None:
    calls: list[str] = []

    def candidate(name: str, loops: int) -> Any:
        def call(x: torch.Tensor, *_: Any) -> torch.Tensor:
            calls.append(name)
            if name == "refuses":
                raise RuntimeError("no such tile")
            for _ in range(loops):
                x = x + 0
            return x

        return lambda: call

    swapped = quack_peer.SWAPPED[0]
    makers = {(1,): candidate("slow", 300), (2,): candidate("fast", 1)}
    makers |= {(3,): candidate("refuses", 1), swapped: candidate("swapped", 0)}
    best = quack_peer.BestOf(makers)
    best(torch.ones(1000, 8))
    calls.clear()
    best(torch.ones(1000, 8))
    assert calls == ["fast"]
    narrow = quack_peer.BestOf({swapped: candidate("swapped", 0)})
    narrow(torch.ones(8, 8))
    with pytest.raises(PeerUnavailableError, match="refuses this case: RuntimeError: no such tile"):
        quack_peer.BestOf({(3,): candidate("refuses", 1)})(torch.ones(8, 8))


@pytest.mark.gpu
def test_gpu_run_fills_every_column() -> None:
    args = ("--shapes", "256x128x64", "--activation", "relu", "--dtype", "bf16", "--rounds", "3")
    assert cli.main(["linear", *args, "--peers", "eager,cublaslt", "--out", "a.csv"]) == 0
    rows = results.read_rows(Path("a.csv"))
    keys = {(r["pass"], r["peer"]) for r in rows}
    assert keys == {("fwd", "eager"), ("fwd", "cublaslt"), ("step", "eager")}
    assert all(value for r in rows for value in r.values())
    assert cli.main(["host", "--out", "b.csv"]) == 0


@pytest.mark.gpu
def test_a_peer_that_synchronises_is_timed() -> None:
    args = ("--case", "bincount/65536*", "--peers", "eager", "--rounds", "3")
    assert cli.main(["scan", *args, "--out", "c.csv"]) == 0
    assert [r["peer"] for r in results.read_rows(Path("c.csv"))] == ["eager"]


# ---- failures ----


def test_wrong_result_gets_no_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = fusedops.linear
    monkeypatch.setattr(fusedops, "linear", lambda *a, **k: right(*a, **k) * 1.05)
    args = ("--shapes", "8x8x8", "--pass", "fwd", "--dtype", "fp16", "--out", "a.csv")
    assert bench("linear", *args) == 1
    assert not Path("a.csv").exists()
    assert "relative error" in capsys.readouterr().out


def test_nan_never_passes() -> None:
    good = torch.ones(3)
    assert not runner.relative_error(good * math.nan, good) <= 1.0
    assert not runner.relative_error(good * math.inf, good) <= 1.0
    beyond = torch.tensor([1.0, math.inf, -math.inf])
    assert runner.relative_error(beyond, beyond) == 0
    assert not runner.relative_error(-beyond, beyond) <= 1.0
    with pytest.raises(runner.WrongResultError, match="expected"):
        runner.relative_error(torch.ones(2), good)


def test_failing_peer_keeps_our_result(monkeypatch: pytest.MonkeyPatch) -> None:
    suite = load_suite("linear")
    load = suite.peer
    calls = {"n": 0}

    def failing(*_: object) -> None:
        raise RuntimeError("no kernel\nand more")

    def peer(name: str, *args: Any) -> Any:
        calls["n"] += 1
        if name == "cublaslt":
            raise PeerUnavailableError("not here")
        return failing if name == "compile" else load(name, *args)

    monkeypatch.setattr(suite, "peer", peer)
    case = linear_suite.linear_case((4, 4, 4), "relu")
    names = ("eager", "cublaslt", "compile")
    result = runner.measure(suite, case, "bf16", "fwd", names, CPU, 2)
    assert set(result.timings) == {"ours", "eager"}
    assert "cublaslt skipped: not here" in result.notes
    assert "compile failed: no kernel" in result.notes


@pytest.mark.parametrize(
    ("args", "text"),
    [(("--case", "no*"), "no case matches"), (("--peers", "eagr"), "no peer eagr")],
)
def test_bad_selection_says_so(args: tuple[str, ...], text: str) -> None:
    with pytest.raises(SystemExit, match=text):
        bench("linear", *args)


def test_unknown_suite_names_the_known() -> None:
    with pytest.raises(ValueError, match="expected one of linear"):
        load_suite("lienar")


# ---- the suites ----


def test_linear_cases_cover_the_baselines() -> None:
    suite = load_suite("linear")
    forward = {case.name for case in suite.cases(Selection("fwd"))}
    assert {"8192x4096x1024/relu", "1x4096x4096/gelu_tanh", "3000x1000x520/relu"} <= forward
    assert len(forward) == 2 * len(linear_suite.forward_shapes())
    assert len(suite.cases(Selection("step"))) == 24


def test_eager_and_step_agree_with_autograd() -> None:
    suite = load_suite("linear")
    case = linear_suite.linear_case((5, 4, 3), "gelu_tanh")
    inputs = suite.make_inputs(case, torch.float64, "step", CPU)
    ours, eager = (
        call(*inputs) for call in (suite.ours(case, "step"), suite.peer("eager", case, "step", CPU))
    )
    assert len(ours) == 4
    for a, b in zip(ours, eager, strict=True):
        torch.testing.assert_close(a, b)


def test_cublaslt_call_is_the_same_function() -> None:
    x, weight, bias = torch.randn(6, 5), torch.randn(4, 5), torch.randn(4)
    got = linear_suite.cublaslt_linear("relu")(x, weight, bias)
    torch.testing.assert_close(got, linear_suite.eager_linear("relu")(x, weight, bias))


# ---- the clock ----


@pytest.mark.parametrize(
    ("us", "sets", "calls"), [(5.0, 100, 600), (1000.0, 2, 4), (5000.0, 2, 2), (20000.0, 2, 1)]
)
def test_calls_per_replay(us: float, sets: int, calls: int, monkeypatch: Any) -> None:
    monkeypatch.setattr(timing, "REPLAY_US", 3000.0)
    assert timing.num_calls(us, sets) == calls


def test_in_interleaved_rounds_everyone_follows_everyone() -> None:
    order: list[str] = []

    class Fake:
        calls = 4

        def __init__(self, name: str) -> None:
            self.name = name

        def run(self) -> None:
            order.append(self.name)

    found = timing.interleave({name: Fake(name) for name in "abc"}, 20, CPU)
    assert all(sorted(order[i : i + 3]) == ["a", "b", "c"] for i in range(0, 60, 3))
    assert len(set(itertools.pairwise(order))) >= 6
    assert all(t.calls == 4 and t.best <= t.us for t in found.values())


class FakeCuda:
    """Enough of torch.cuda to walk the capture, the rounds and the backlog without a GPU."""

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            self.at = 0.0

        def record(self) -> None:
            FakeCuda.now += 1.0
            self.at = FakeCuda.now

        def synchronize(self) -> None: ...

        def query(self) -> bool:
            return False

        def elapsed_time(self, end: Any) -> float:
            return float(end.at - self.at)

    class CUDAGraph:
        def replay(self) -> None:
            FakeCuda.replays += 1

    class Stream:
        def __init__(self, *_: object) -> None: ...
        def wait_stream(self, _: object) -> None: ...

    now = 0.0
    replays = 0
    sync_mode: Any = 0

    @staticmethod
    @contextlib.contextmanager
    def graph(_: object, stream: object) -> Any:
        yield

    @staticmethod
    def install(monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("Event", "CUDAGraph", "Stream", "graph"):
            monkeypatch.setattr(torch.cuda, name, getattr(FakeCuda, name))
        monkeypatch.setattr(torch.cuda, "stream", lambda _: contextlib.nullcontext())
        for name in ("synchronize", "_sleep", "set_stream"):
            monkeypatch.setattr(torch.cuda, name, lambda *_: None)
        monkeypatch.setattr(FakeCuda, "sync_mode", 0)
        monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: FakeCuda.sync_mode)
        monkeypatch.setattr(
            torch.cuda, "set_sync_debug_mode", lambda mode: setattr(FakeCuda, "sync_mode", mode)
        )
        monkeypatch.setattr(torch.cuda, "current_stream", FakeCuda.Stream)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(timing, "_STREAMS", {})


def test_device_clock_without_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeCuda.install(monkeypatch)
    device = torch.device("cuda")
    sets = [(torch.ones(1) * i,) for i in range(3)]
    seen: list[float] = []
    replays = {
        name: timing.prepare(lambda t: seen.append(float(t)), sets, device) for name in ("a", "b")
    }
    assert {int(s) for s in seen} == {0, 1, 2}  # the rotation touches every set
    monkeypatch.setattr(timing, "SETTLE_MS", 4.0)
    for long_us, settling in ((1e6, 0), (1.0, 4)):  # a round takes 1 ms
        monkeypatch.setattr(timing, "LONG_US", long_us)
        before = FakeCuda.replays
        found = timing.interleave(replays, 3, device)
        assert FakeCuda.replays - before == 2 * (1 + settling + 3)  # one warm-up, three timed
    assert found["a"].us == pytest.approx(1000.0 / replays["a"].calls)
    times = backlog.sample([(lambda t: None, 2), (lambda t: None, 1)], sets, device)
    assert times == [500.0, 1000.0]


def test_what_synchronises_is_not_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeCuda.install(monkeypatch)

    def bincount(_: torch.Tensor) -> None:
        if FakeCuda.sync_mode == "error":
            raise RuntimeError("called a synchronizing CUDA operation")

    def broken(_: torch.Tensor) -> None:
        raise RuntimeError("out of memory")

    device, sets = torch.device("cuda"), [(torch.ones(1),)]
    assert isinstance(timing.prepare(bincount, sets, device), timing.LoopReplay)
    assert FakeCuda.sync_mode == 0
    with pytest.raises(RuntimeError, match="out of memory"):
        timing.prepare(broken, sets, device)


@pytest.mark.parametrize("command", [["bench", "--list"], ["info"], ["--help"]])
def test_a_reader_that_stops_early_is_no_error(command):
    run = f"{sys.executable} -m fusedops {' '.join(command)} | true"
    done = subprocess.run(run, shell=True, capture_output=True, text=True, timeout=120, check=False)
    assert done.stderr == ""
