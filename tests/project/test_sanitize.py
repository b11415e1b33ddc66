"""The program for compute-sanitizer runs on the CPU: GPU time is too dear for its mistakes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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
    assert "no family foo; choose from gemm, gradients, narrow, kernels" in done.stderr
