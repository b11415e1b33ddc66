"""Whether an error of an op arrives in Python: tried in a child process, which may die of it.

A module whose C++ runtime is linked statically loads, computes, and ends the process at its first
error: torch cannot catch what another runtime throws.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

SHARED_RUNTIME = b"\0libstdc++.so.6\0"  # among the libraries that a module names

CHILD = """
import sys
import torch
{prepare}
try:
    {call}
except RuntimeError as error:
    sys.exit(0 if {expected!r} in str(error) else f"another error came: {{error}}")
sys.exit("no error came")
"""


def errors_arrive(device: str = "cpu") -> str | None:
    """Tries the module's own ops.

    Returns:
        What is wrong, or None.
    """
    from fusedops import _C

    integers = f"torch.ones(2, dtype=torch.int64, device='{device}')"
    call = f"torch.ops.fusedops.template_scale({integers}, 2.0)"
    expected = "template_scale: x must be float16, bfloat16, float32 or float64; got int64"
    return error_of(str(_C.__file__), "import fusedops", call, expected)


def error_of(library: str, prepare: str, call: str, expected: str) -> str | None:
    """What is wrong with the error that `call` of an op of a library raises, or None.

    Args:
        library: The file that the op is in.
        prepare: Python that loads it.
        call: Python that ends in an error.
        expected: Part of its message.
    """
    code = CHILD.format(prepare=prepare, call=call, expected=expected)
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False
        )
    except subprocess.TimeoutExpired:
        return f"an op of {library} that has to fail has not come back in 300 s"
    if done.returncode == 0:
        return None
    if done.returncode > 0:
        last = done.stderr.strip().splitlines()[-1:] or ["no word"]
        return f"an op of {library} that has to raise RuntimeError did not: {last[0]}"
    name = signal.Signals(-done.returncode).name
    return f"an error of an op ends the process ({name}): {_why(Path(library))}"


def _why(library: Path) -> str:
    if SHARED_RUNTIME not in library.read_bytes():
        return (
            f"{library} has a C++ runtime of its own, linked statically, and torch cannot catch "
            "its errors; build again with a compiler that has libstdc++.so, and without "
            "-static-libstdc++"
        )
    return f"{library} names libstdc++.so.6 as it should; please report this"
