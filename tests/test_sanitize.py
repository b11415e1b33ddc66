"""The program for compute-sanitizer runs on the CPU: GPU time is too dear for its mistakes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parents[1] / "scripts/sanitize"


@pytest.mark.parametrize(
    "family", ["gemm", "reduce", "rows", "scan", "elementwise", "sampling", "neighbours"]
)
def test_family(family):
    command = [sys.executable, PROGRAM, family, "--no-clusters", "--device", "cpu"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "no error" in done.stdout.splitlines()[-1]
