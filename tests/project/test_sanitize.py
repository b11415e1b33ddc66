"""The program for compute-sanitizer runs on the CPU: GPU time is too dear for its mistakes."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import fusedops  # noqa: F401  registers the ops

PROGRAM = Path(__file__).resolve().parents[2] / "scripts/sanitize"


def sanitize(*arguments):
    command = [sys.executable, PROGRAM, *arguments, "--no-clusters", "--device", "cpu"]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize(
    "family", ["gemm", "reduce", "rows", "scan", "elementwise", "sampling", "neighbours"]
)
def test_family(family):
    done = sanitize(family)
    assert done.returncode == 0, done.stderr
    assert "no error" in done.stdout.splitlines()[-1]


def test_kernels_need_a_gpu():
    done = sanitize("kernels")
    assert done.returncode == 0, done.stderr
    assert "kernels: skipped, it needs a GPU" in done.stdout


def test_unknown_families_are_named():
    done = sanitize("rows", "foo")
    assert done.returncode == 2
    assert "no family foo; choose from gemm, gradients, narrow, thin" in done.stderr


# Ops of layers over edges that keep their activations on the chip: they exist on a GPU only.
GPU_OPS = (
    *("edge_close", "edge_conv_backward", "edge_conv_forward_", "edge_counts"),
    *("edge_feature_grads", "edge_first_grads", "edge_group_sums", "edge_list"),
    *("edge_lists", "edge_message_sums", "edge_mlp_backward_", "edge_mlp_forward", "edge_moments"),
    *("edge_parameters", "edge_point_moments", "edge_point_sums", "edge_pool_backward"),
    *("edge_pool_forward", "edge_products", "edge_rows_apply", "edge_rows_backward"),
    *("edge_rows_first", "edge_rows_fold", "edge_rows_offsets", "edge_rows_statistics_"),
    *("edge_rows_sums", "edge_rows_used", "edge_winners"),
)


def load(name):
    """A file of the program as a module of its own."""
    spec = importlib.util.spec_from_file_location(f"sanitize_{name}", PROGRAM / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def load_program(monkeypatch):
    """The program, whose files have names that other modules have as well (gemm, reduce)."""
    monkeypatch.syspath_prepend(str(PROGRAM))
    for file in PROGRAM.glob("*.py"):
        monkeypatch.delitem(sys.modules, file.stem, raising=False)
    return load("__main__")


def test_every_op_is_called(monkeypatch):
    """A new op without a line here would never meet the sanitizer."""
    program, options = load_program(monkeypatch), load("options")
    called = set()

    class Record(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            called.add(str(func).rpartition(".")[0])
            return func(*args, **(kwargs or {}))

    with Record():
        for name, run in program.FAMILIES.items():
            if name not in program.GPU_ONLY:
                run(options.Options("cpu", False), Counter())
    schemas = [s.name for s in torch._C._jit_get_all_schemas() if s.name.startswith("fusedops::")]
    ops = {name.replace("::", ".") for name in schemas}
    assert len(ops) > 60
    assert ops - called == {f"fusedops.{name}" for name in GPU_OPS}


def test_parts_make_the_whole():
    options = load("options")
    whole = list(range(11))
    parts = [options.Options(part=(i, 4)).mine(whole) for i in range(4)]
    assert sorted(i for part in parts for i in part) == whole
    done = sanitize("reduce", "--part", "5/4")
    assert done.returncode == 2
    assert "expected I/N with I from 1 to N; got 5/4" in done.stderr


# What stands in for compute-sanitizer: it runs the program and prints a tool's last line.
FAKE = """#!/bin/sh
tool=$2
while [ "$1" != {python} ]; do shift; done
"$@" || exit $?
[ "$tool" = racecheck ] && echo "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors)"
[ "$tool" = memcheck ] && echo "========= Invalid __global__ read of size 4 bytes"
[ "$tool" = memcheck ] && echo "=========     at void fusedops::scan_kernel<float>(long)+0x120"
[ "$tool" = memcheck ] && echo "========= ERROR SUMMARY: 3 errors" && exit 97
[ "$tool" = synccheck ] && sleep 60
[ "$tool" = initcheck ] && echo "========= ERROR SUMMARY: 0 errors"
exit 0
"""


def run_tools(tmp_path, *arguments):
    fake = tmp_path / "compute-sanitizer"
    fake.write_text(FAKE.format(python=sys.executable))
    fake.chmod(0o755)
    command = [sys.executable, PROGRAM / "tools.py", "--sanitizer", fake, "--device", "cpu"]
    command += ["--out", tmp_path / "log.txt", "--commit", "abc", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_tools_judge_and_resume(tmp_path):
    ending = "memcheck,racecheck,initcheck"
    done = run_tools(
        tmp_path, "--family", "scan", "--tool", ending, "--limit", "250", "--jobs", "3"
    )
    assert done.returncode == 1, done.stderr
    assert "2 of 3 entries clean" in done.stdout
    done = run_tools(tmp_path, "--family", "scan", "--tool", "synccheck", "--limit", "2")
    assert done.returncode == 1, done.stderr
    assert "0 of 1 entries clean" in done.stdout
    log = (tmp_path / "log.txt").read_text()
    for tool in ("racecheck", "initcheck"):
        assert f"{tool} scan 1/1: clean, " in log
    assert "memcheck scan 1/1: 3 errors, " in log
    assert "    1 x Invalid __global__ read of size 4 bytes\n" in log
    assert "    1 x at void fusedops::scan_kernel<float>(long)\n" in log
    assert "synccheck scan 1/1: stopped by the time limit" in log
    again = run_tools(tmp_path, "--family", "scan", "--tool", "racecheck,initcheck", "--missing")
    assert again.returncode == 0, again.stderr
    assert "0 of 0 entries clean" in again.stdout
    assert (tmp_path / "log.txt").read_text() == log


def test_errors_of_the_tool_itself_are_named(monkeypatch):
    """Beside many others it runs out of memory: it counts such launches as errors, of no kind."""
    monkeypatch.syspath_prepend(str(PROGRAM))
    tools = load("tools")
    failed = (
        "========= Internal Sanitizer Error: The Sanitizer encountered an error while launching "
        "gemm_kernel(KernelParams) and didn't track the launch. Errors might go undetected. "
        "(Unable to allocate enough memory to perform the requested operation)\n"
    )
    text = failed * 2 + "========= ERROR SUMMARY: 2 errors\n"
    result = tools.judge(tools.Entry("synccheck", "gemm"), 97, text, 1.0)
    assert result.verdict == "2 errors"
    assert result.details == [
        "2 x Internal Sanitizer Error",
        "(Unable to allocate enough memory to perform the requested operation)",
    ]


def test_a_spent_budget_is_no_pass(tmp_path):
    done = run_tools(tmp_path, "--family", "scan", "--tool", "racecheck", "--budget", "0")
    assert done.returncode == 1
    assert "not started: the budget was spent" in (tmp_path / "log.txt").read_text()


def test_tools_cover_every_family(monkeypatch):
    monkeypatch.syspath_prepend(str(PROGRAM))
    assert {*load("tools").PARTS} == {*load_program(monkeypatch).FAMILIES}
