"""The kernels over edges on a CPU, thread by thread, against float64 (scripts/emulate)."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EMULATE = Path(__file__).resolve().parent.parent.parent / "scripts" / "emulate"


@pytest.mark.slow
def test_kernels_thread_by_thread(tmp_path):
    """In processes of their own: the library gives the ops of the kernels to CPU tensors."""
    if shutil.which("g++") is None:
        pytest.skip("no g++")
    library = tmp_path / "emulated.so"
    built = subprocess.run(
        [sys.executable, EMULATE, library], capture_output=True, text=True, check=False
    )
    if "no CUDA headers" in built.stderr:
        pytest.skip("no CUDA headers")
    assert built.returncode == 0, built.stderr[-3000:]
    for program, cases in (("try_edges.py", 28), ("try_rows.py", 11)):
        command = [sys.executable, EMULATE / program, library]
        tried = subprocess.run(command, capture_output=True, text=True, check=False)
        assert tried.returncode == 0, tried.stderr[-3000:]
        assert tried.stdout.count("right") == cases
