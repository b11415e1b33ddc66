"""A kernel that cannot be launched is an error: without it the op returns memory nobody wrote."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# They ask the runtime for what it may refuse, or report what it says themselves.
READERS = {
    "csrc/common/host/launch.cpp",
    "csrc/common/host/code_version.cu",
    "csrc/cuda/points/sampling/fps_plan.cuh",
    "csrc/cutlass/kernels/sm80/sm80_tile.cuh",
}
# Every launch fails on a stream whose capture into a graph has become invalid.
CODE = """
import json, os
import torch, fusedops

x = torch.randn(64, 32, device="cuda")
indices = torch.randint(40, (64,), device="cuda")
many = torch.randint(40, (300_000,), device="cuda")  # so many are sorted
cloud = torch.randint(40, (2, 16, 4), device="cuda")
dout = torch.randn(2, 16, 4, 8, device="cuda")
op = torch.ops.fusedops
CALLS = {
    "embedding_backward": lambda: op.embedding_backward(x, indices, 40, -1),
    "embedding_backward of many": lambda: op.embedding_backward(
        x[:1].expand(many.numel(), -1), many, 40, -1
    ),
    "group_backward": lambda: op.group_backward(dout, cloud, 40, 0, 8, False),
    "softmax": lambda: fusedops.softmax(x),
    "rms_norm": lambda: fusedops.rms_norm(x, (32,)),
    "square": lambda: fusedops.square(x),
    "cumsum": lambda: fusedops.cumsum(x, 1),
}
stream, found = torch.cuda.Stream(), {}
stream.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(stream):
    for call in CALLS.values():
        call()  # loads kernels, and leaves memory to the next call
    stream.synchronize()
    torch.cuda.CUDAGraph().capture_begin()
    try:
        stream.synchronize()
    except RuntimeError:
        pass  # the capture is invalid from here on
    for name, call in CALLS.items():
        try:
            call()
            found[name] = ""
        except RuntimeError as error:
            found[name] = str(error)
print(json.dumps(found), flush=True)
os._exit(0)  # nothing can be freed in order
"""


@pytest.mark.gpu
def test_a_launch_that_fails_raises() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found) > 5
    lost = [name for name, text in found.items() if "CUDA error" not in text]
    assert not lost, found


def test_only_these_take_an_error_from_the_runtime() -> None:
    """cudaGetLastError clears what it returns: where a launcher calls it, check_launch finds none.

    That once made zeros of an embedding's gradient, on a GPU without memory for the kernel's code.
    """
    sources = ROOT / "csrc"
    if not sources.is_dir():
        pytest.skip("needs the sources")
    found = {
        str(path.relative_to(ROOT))
        for path in sources.rglob("*")
        if path.suffix in (".cu", ".cuh", ".h", ".cpp")
        and re.search(r"\bcudaGetLastError\(", path.read_text())
    }
    assert found == READERS
