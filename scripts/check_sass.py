"""Checks the machine code of the installed extension: WGMMA and TMA for sm_90a, mma.sync for sm_80,
no copy that nvcc encoded wrongly, no accumulators in local memory. A build for neither fails.

Needs cuobjdump and nvdisasm: from PATH, the CUDA toolkit, or Triton's package, which torch brings.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from fusedops import _C

# Per architecture, the instructions that at least one kernel must use.
EXPECTED = {"sm_90a": ("HGMMA", "QGMMA", "UTMALDG", "HMMA"), "sm_80": ("HMMA", "LDGSTS")}
# A copy whose 64-bit descriptor would begin in an odd register: see cache_hint.cuh.
BROKEN = re.compile(r"LDGSTS.*desc\[UR\d*[13579]\]")
# Stores to local memory of an sm_90a GEMM kernel: a few are spilled constants, thousands the
# accumulators, which nvcc 13.0 moves there for some branches around them (40 times slower).
MOST_LOCAL_STORES = 64


def find_tools() -> str | None:
    """The folder that holds cuobjdump and nvdisasm."""
    folders = [os.environ.get("PATH", ""), "/usr/local/cuda/bin"]
    triton = importlib.util.find_spec("triton")
    locations = (triton.submodule_search_locations or []) if triton else []
    folders += [str(Path(location) / "backends" / "nvidia" / "bin") for location in locations]
    for folder in folders:
        tool = shutil.which("cuobjdump", path=folder)
        if tool and shutil.which("nvdisasm", path=folder):
            return str(Path(tool).parent)
    return None


def inspect(arch: str, instructions: tuple[str, ...], tools: str) -> tuple[set[str], int]:
    """Which of `instructions` no kernel for `arch` uses, and the number of broken places."""
    environment = {**os.environ, "PATH": f"{tools}:{os.environ.get('PATH', '')}"}
    command = [f"{tools}/cuobjdump", "--dump-sass", "--gpu-architecture", arch, _C.__file__]
    wanted, broken, local_stores = set(instructions), 0, 0
    own_gemm = False
    # NOTE: the listing is gigabytes, minutes for an architecture; that of sm_80 has no descriptors.
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as dump:
        assert dump.stdout is not None
        for line in dump.stdout:
            wanted -= {name for name in wanted if f" {name}" in line}
            broken += bool(BROKEN.search(line))
            if "Function :" in line:
                own_gemm = ("sm90" in line and "gemm_kernel" in line) or "fp8_kernel" in line
                local_stores = 0
            elif own_gemm and " STL" in line:
                local_stores += 1
                broken += local_stores == MOST_LOCAL_STORES
            if not wanted and arch == "sm_80":
                break
        dump.kill()
    return wanted, broken


def main() -> int:
    built_for = {f"sm_{arch}" for arch in str(_C.build_info()["archs"]).split(";")}
    if not built_for & EXPECTED.keys():
        wanted = " or ".join(EXPECTED)
        print(f"check_sass: {_C.__file__} has no code for {wanted}", file=sys.stderr)
        return 1
    tools = find_tools()
    if tools is None:
        print("check_sass: no cuobjdump found; run: pip install triton", file=sys.stderr)
        return 1
    failed = False
    for arch, instructions in EXPECTED.items():
        if arch not in built_for:
            print(f"{arch}: not built")
            continue
        absent, broken = inspect(arch, instructions, tools)
        failed |= bool(absent or broken)
        state = f"missing {', '.join(sorted(absent))}" if absent else "ok"
        state += f", {broken} broken copies or spilled tiles" if broken else ""
        print(f"{arch}: {', '.join(instructions)}: {state}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
