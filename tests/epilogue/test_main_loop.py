"""The main loop of epilogues of one's own, which a module that is built in place leaves out."""

from __future__ import annotations

import os

import pytest

from fusedops._epilogue import launch, toolchain
from fusedops.jit.errors import BuildError


def test_a_main_loop_compiles():
    """Its assertions hold: what launch.py writes and asks for is what the kernel has."""
    try:
        toolchain.find_nvcc()
    except BuildError as error:
        pytest.skip(str(error))
    if toolchain.probe()["find_cutlass"](os.environ.get("CUTLASS_DIR")) is None:
        pytest.skip("no headers of CUTLASS")
    source = toolchain.include_dir() / toolchain._MAIN_LOOP
    assert len(toolchain._compile_main_loop(source, "bf16", launch.CONFIGS[0])) > 100_000
