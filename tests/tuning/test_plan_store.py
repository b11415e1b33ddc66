"""Measured plans: the file that many processes share, and the table that selection asks."""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

from fusedops import _C
from fusedops._tuning.plan_store import (
    CHOICE,
    GpuKey,
    cache_dir,
    install,
    merge_plans,
    problem_of,
    read_plans,
)

# No such GPU: nothing here reaches the choices for a real one.
KEY = GpuKey("NVIDIA H200", capability=90, sm_count=101, driver=13000, build="test")
WRITERS, WRITES = 4, 12


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("FUSEDOPS_CACHE_DIR", str(tmp_path / "cache"))
    yield
    _C.clear_tuned_plans()


def problem(m=8192, n=4096, k=1024, **changes):
    fields = {"m": m, "n": n, "k": k, "dtype": "bfloat16", "math": "native", "epilogue": "fused"}
    layout = {"a_major": "k", "b_major": "k", "activation": 0}
    return fields | layout | changes


def plans_of(fields, key=KEY):
    return _C.plan_gemm(fields, key.capability, key.sm_count)


def plan(fields, pick=-1, us=50.0, **changes):
    """A stored plan: the `pick`th of the candidates that can run."""
    usable = [c for c in plans_of(fields)["candidates"] if c["rejected"] is None]
    choice = usable[pick] | {"us": us, "default_us": 60.0, "swizzle": 2}
    return fields | {name: choice[name] for name in CHOICE} | changes


# ---- the file ----


def test_plans_come_back_as_they_were_stored():
    stored = plan(problem())
    path = merge_plans(KEY, [stored])
    assert path.parent == cache_dir()
    assert read_plans(path) == [stored]


def test_a_later_plan_replaces_the_one_of_the_same_problem():
    merge_plans(KEY, [plan(problem(), us=50.0), plan(problem(m=64), us=4.0)])
    path = merge_plans(KEY, [plan(problem(), us=40.0)])
    assert {p["m"]: p["us"] for p in read_plans(path)} == {8192: 40.0, 64: 4.0}


def test_every_gpu_driver_and_build_has_its_own_file():
    keys = [
        KEY,
        replace(KEY, gpu="NVIDIA H100"),
        replace(KEY, driver=13010),
        replace(KEY, build="other"),
        replace(KEY, sm_count=114),
    ]
    assert len({key.path for key in keys}) == len(keys)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"format": 99, "plans": []}',
        '{"format": 1, "plans": [{"m": 1}]}',
        '{"format": 1, "plans": 3}',
        '{"format": 1, "plans": [7]}',
        '{"format": 1, "plans": {}}',
        "[" * 200_000,
        "\xff\xfe",
    ],
)
def test_a_corrupt_file_is_ignored_with_a_warning_and_written_anew(text):
    KEY.path.parent.mkdir(parents=True)
    KEY.path.write_text(text, encoding="latin-1")
    with pytest.warns(UserWarning, match="ignoring .*tuned plans in"):
        assert read_plans(KEY.path) == []
    with pytest.warns(UserWarning, match="ignoring .*tuned plans in"):
        merge_plans(KEY, [plan(problem())])
    assert len(read_plans(KEY.path)) == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"m": [1]},
        {"m": True},
        {"k": 1 << 70},
        {"us": "x"},
        {"us": float("nan")},
        {"name": None},
        {"swizzle": 8.0},
    ],
)
def test_an_entry_that_makes_no_sense_does_not_cost_the_others(fields):
    good = plan(problem())
    merge_plans(KEY, [good])
    content = json.loads(KEY.path.read_text())
    content["plans"] = [plan(problem(m=64)) | fields, good]
    KEY.path.write_text(json.dumps(content))
    with pytest.warns(UserWarning, match="ignoring 1 of the 2 tuned plans in"):
        assert read_plans(KEY.path) == [good]
    with pytest.warns(UserWarning, match="ignoring 1 of the 2"):
        merge_plans(KEY, [plan(problem(m=32))])
    assert [p["m"] for p in read_plans(KEY.path)] == [8192, 32]


def test_a_cache_of_an_unknown_user_is_a_folder_of_that_name(monkeypatch):
    monkeypatch.setenv("FUSEDOPS_CACHE_DIR", "~nosuchuser/x")
    assert cache_dir() == Path("~nosuchuser/x")
    assert read_plans(KEY.path) == []


def test_no_file_is_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_plans(KEY.path) == []


def test_a_failed_write_leaves_the_old_file(monkeypatch):
    path = merge_plans(KEY, [plan(problem())])
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        merge_plans(KEY, [plan(problem(m=64))])
    assert [p["m"] for p in read_plans(path)] == [8192]
    assert {p.suffix for p in path.parent.iterdir()} == {".json", ".lock"}


def _write_some(writer):
    for i in range(WRITES):
        merge_plans(KEY, [{**_TEMPLATE, "m": writer * WRITES + i + 1}])


_TEMPLATE = plan(problem())


@pytest.mark.slow
def test_many_processes_at_once_lose_nothing():
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write_some, args=(i,)) for i in range(WRITERS)]
    for process in writers:
        process.start()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a reader never sees half a file
        while any(process.is_alive() for process in writers):
            read_plans(KEY.path)
    for process in writers:
        process.join()
        assert process.exitcode == 0
    assert {p["m"] for p in read_plans(KEY.path)} == set(range(1, WRITERS * WRITES + 1))


def test_the_cache_directory(monkeypatch, tmp_path):
    monkeypatch.delenv("FUSEDOPS_CACHE_DIR")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_dir() == tmp_path / "fusedops"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_dir() == Path.home() / ".cache/fusedops"


# ---- the table in the process ----


def test_a_tuned_plan_is_chosen_before_the_compiled_table():
    fields = problem()
    before = plans_of(fields)
    assert before["tuned"] is None
    assert before["chosen"] == before["selected"]
    stored = plan(fields)
    assert install(KEY, [stored]) == 1
    after = plans_of(fields)
    assert after["selected"] == before["selected"]
    for name in ("family", "name", "index", "splits", "swizzle"):
        assert after["chosen"][name] == after["tuned"][name] == stored[name]
    assert after["tuned"]["expected_us"] == stored["us"]
    _C.clear_tuned_plans()
    assert plans_of(fields)["tuned"] is None


def test_a_plan_is_for_its_problem_and_gpu_only():
    install(KEY, [plan(problem(activation=1))])
    assert plans_of(problem(activation=1))["tuned"]
    for change in (
        {"m": 8193},
        {"dtype": "float16"},
        {"epilogue": "preact"},
        {"b_major": "mn"},
        {"activation": 3},
    ):
        assert plans_of(problem(**{"activation": 1} | change))["tuned"] is None
    assert plans_of(problem(activation=1), replace(KEY, sm_count=102))["tuned"] is None


def test_a_plan_without_activation_serves_those_that_have_none():
    plain, own = plan(problem(), us=50.0), plan(problem(activation=3), pick=0, us=70.0)
    install(KEY, [plain, own])
    assert plans_of(problem(activation=1))["tuned"]["expected_us"] == 50.0
    assert plans_of(problem(activation=3))["tuned"]["expected_us"] == 70.0


def test_a_plan_that_the_operands_do_not_allow_is_passed_over():
    install(KEY, [plan(problem())])
    assert plans_of(problem())["tuned"]
    misaligned = plans_of(problem(a_offset=4))
    assert misaligned["tuned"] is None
    assert misaligned["chosen"]["family"] == "sm80"


def test_a_kernel_that_this_build_lacks_is_not_installed():
    stored = plan(problem())
    assert install(KEY, [stored | {"name": "sm90 1x1 pingpong 1x1"}]) == 0
    assert install(KEY, [stored | {"index": 63}]) == 0
    assert plans_of(problem())["tuned"] is None
    for field in ({"family": "sm70"}, {"splits": 1 << 40}):
        with pytest.warns(UserWarning, match="ignoring a tuned plan for NVIDIA H200"):
            assert install(KEY, [stored | field, plan(problem(m=64))]) == 1
    assert plans_of(problem())["tuned"] is None


@pytest.mark.parametrize("swizzle", [0, -5, 65, 2**31 - 1])
def test_a_tile_order_that_no_kernel_has_is_not_installed(swizzle):
    assert install(KEY, [plan(problem(), swizzle=swizzle)]) == 0
    assert plans_of(problem())["tuned"] is None


def test_a_cluster_kernel_takes_the_tiles_of_its_candidate_only():
    fields = problem(m=904, n=904, k=3600)
    ranked = [c for c in plans_of(fields)["candidates"] if c["rejected"] is None]
    cluster = [c for c in ranked if c["family"] == "cluster"]
    alone = next(c for c in cluster if not c["name"].endswith("1x1"))
    for choice, swizzle, served in (
        (cluster[0], cluster[0]["swizzle"], True),
        (cluster[0], 3, False),
        (alone, 4, False),
    ):
        _C.clear_tuned_plans()
        install(KEY, [fields | choice | {"us": 1.0, "default_us": 1.0, "swizzle": swizzle}])
        assert bool(plans_of(fields)["tuned"]) == served


@pytest.mark.parametrize(
    ("shape", "has"),
    [
        ((768, 3072, 16384), ("sm90", 0, 8)),  # a stream-K tail
        ((256, 256, 65536), ("sm90", 8, 8)),  # slices of K
        ((904, 904, 3600), ("cluster", 1, 8)),  # tiles that share operands
    ],
)
def test_the_numbers_of_a_stored_plan_mean_what_they_meant(shape, has):
    fields = problem(*shape)
    names = ("family", "splits", "swizzle")
    usable = [c for c in plans_of(fields)["candidates"] if c["rejected"] is None]
    by_numbers = {tuple(c[name] for name in names): c for c in usable}
    assert has in by_numbers
    for numbers, choice in by_numbers.items():
        assert install(KEY, [fields | choice | {"us": 1.0, "default_us": 1.0}]) == 1
        tuned = plans_of(fields)["tuned"]
        assert tuple(tuned[name] for name in names) == numbers
        assert tuned["name"] == choice["name"]


def test_the_recorder_notes_every_problem():
    _C.start_recording()
    plans_of(problem())
    plans_of(problem(m=64, b_major="mn"))
    recorded = _C.stop_recording()
    assert [problem_of(p) for p, *_ in recorded] == [
        problem_of(problem()),
        problem_of(problem(m=64, b_major="mn")),
    ]
    assert [where for _, *where in recorded] == [[90, 101]] * 2
    plans_of(problem())
    assert _C.stop_recording() == []


def test_the_table_is_loaded_once_when_first_needed():
    script = """
import fusedops
from fusedops import _C
calls = []
_C.set_tuned_loader(lambda: calls.append(1))
assert not calls
_C.plan_gemm(FIELDS, 90, 101)
_C.plan_gemm(FIELDS, 90, 101)
assert calls == [1], calls
def fails():
    raise RuntimeError("no such table")
_C.set_tuned_loader(fails)
assert _C.plan_gemm(FIELDS, 90, 101)["chosen"]
"""
    command = [sys.executable, "-c", script.replace("FIELDS", repr(problem()))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "no such table" in done.stderr  # said, and survived
