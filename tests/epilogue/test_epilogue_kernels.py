"""What a GPU runs for an epilogue of one's own: parameters, index maps and arithmetic of the
generated texts, thread by thread on a CPU against float64 (driver.py)."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest
import torch
import torch.nn.functional as F

from epilogue.driver import Driver, cuda_headers
from fusedops._epilogue import launch, run
from fusedops._epilogue.derive import derive
from fusedops._epilogue.graph import evaluate
from fusedops._epilogue.trace import trace

if TYPE_CHECKING:
    from pathlib import Path


def everything(acc, row, column, one, two, number):
    """All kinds of operands, and what needs a function of its own in the text."""
    return torch.tanh(acc * row + column) * one - F.gelu(acc) * number + torch.maximum(acc, two)


FUNCTIONS = {
    "relu": (
        lambda acc, scale, bias, res: torch.relu(acc * scale + bias) + res,
        {"scale": ("column", 2), "bias": ("column", 4), "res": ("full", 2)},
    ),
    "everything": (
        everything,
        {
            "row": ("row", 4),
            "column": ("column", 2),
            "one": ("full", 2),
            "two": ("full", 2),
            "number": ("number", 4),
        },
    ),
    "gate": (
        lambda acc, row, gate: F.silu(acc * row) / (1 + gate * gate),
        {"row": ("row", 2), "gate": ("full", 2)},
    ),
    "many": (
        lambda acc, a, b, c, d: F.silu(acc + a) * b + c * torch.cos(d),
        dict.fromkeys("abcd", ("full", 2)),
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where compiled texts lie."""
    return tmp_path_factory.mktemp("texts")


@pytest.fixture
def driver(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Driver:
    """Stands for libcuda, and texts for cubins."""
    if shutil.which("g++") is None or cuda_headers() is None:
        pytest.skip("no g++ or no CUDA headers")
    made = Driver(folder)
    monkeypatch.setattr(launch, "_driver", lambda: made)
    monkeypatch.setattr(run, "forward_cubin", lambda source, *others: source.encode())
    monkeypatch.setattr(run, "backward_cubin", lambda source: source.encode())
    monkeypatch.setattr(run, "multiprocessors", lambda device: 132)
    monkeypatch.setattr(run, "stream_of", lambda device: 0)
    monkeypatch.setattr(run, "on_device", lambda device: contextlib.nullcontext())
    return made


def made_for(kind: str, size: int, m: int, n: int, dtype: torch.dtype) -> torch.Tensor | float:
    if kind == "number":
        return 0.75
    shape = {"full": (m, n), "column": (n,), "row": (m, 1)}[kind]
    return torch.randn(shape).to(dtype if size == 2 else torch.float32)


@pytest.mark.parametrize(("m", "n"), [(150, 72), (1, 8), (64, 328)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_kernels(driver: Driver, name: str, dtype: torch.dtype, m: int, n: int) -> None:
    """Twice, so that parameters of the first launch serve the second with other tensors."""
    function, kinds = FUNCTIONS[name]
    builder, output, operands = trace(function)
    gradients = derive(builder, output, ("acc", *(o for o in operands if o != "number")))
    program = run.Program(output, gradients, tuple((o, *kinds[o]) for o in operands))
    unit = 2.0 ** (-11 if dtype is torch.float16 else -8)
    for _ in range(2):
        x, weight, dy = (torch.randn(s).to(dtype) for s in ((m, 16), (n, 16), (m, n)))
        values = [made_for(*kinds[o], m, n, dtype) for o in operands]
        y, kept = program.run(x, weight, values, keep=True)
        alone, none = program.run(x, weight, values, keep=False)
        assert none is None
        assert torch.equal(y, alone)
        acc = x.double() @ weight.double().t()
        torch.testing.assert_close(kept.double(), acc, rtol=unit, atol=1e-4)
        wide = dict(zip(operands, map(torch.as_tensor, values), strict=True))
        wide = {o: v.double() for o, v in wide.items()}
        (expected,) = evaluate([output], {"acc": acc, **wide})
        torch.testing.assert_close(y.double(), expected, rtol=unit, atol=unit)
        # NOTE: backward is that of the product as it was kept.
        wide |= {"acc": kept.double(), "dy": dy.double()}
        got = program.run_backward(dy, kept, values, list(gradients))
        for o, mine, whole in zip(
            gradients, got, evaluate([*gradients.values()], wide), strict=True
        ):
            kind = kinds[o][0] if o != "acc" else "full"
            sums = {"column": lambda t: t.sum(0), "row": lambda t: t.sum(1, keepdim=True)}
            theirs = sums.get(kind, lambda t: t)(whole.expand(m, n))
            torch.testing.assert_close(mine.double(), theirs, rtol=unit, atol=1e-4, msg=o)
    full = any(kind == "full" for kind, _ in kinds.values())
    assert driver.replaced == 14 + 4 * full


def test_divisors_of_any_size(driver: Driver) -> None:
    """The hardware's fast division is that of divisors near one."""
    builder, output, _ = trace(lambda acc, by: acc / by)
    operands = (("by", "column", 4),)
    program = run.Program(output, derive(builder, output, ("acc", "by")), operands)
    by = torch.tensor([3e38, -2e38, 1e38, 1e-38, 1e-39, -1e-40, 2.0, 0.0])
    x, weight = torch.zeros(4, 8).bfloat16(), torch.zeros(8, 8).bfloat16()
    x[:, 0], weight[:, 0] = torch.tensor([2e38, 1.0, -1e-38, 1e-39]), 1
    y, _ = program.run(x, weight, [by], keep=False)
    expected = (x[:, :1].double() / by.double()).bfloat16()
    torch.testing.assert_close(y, expected, rtol=2.0**-8, atol=1e-39)
    assert driver.replaced == 3


def test_a_thread_without_a_context(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward and backward enter the device's context, each thread once."""
    monkeypatch.setattr(torch.Tensor, "get_device", lambda tensor: 0)
    builder, output, _ = trace(lambda acc: acc * 2)
    program = run.Program(output, derive(builder, output, ("acc",)), ())
    x, weight, driver.threads = torch.ones(8, 8).half(), torch.ones(8, 8).half(), []

    def work() -> None:
        y, acc = program.run(x, weight, [], keep=True)
        (gradient,) = program.run_backward(y, acc, [], ["acc"])
        assert float(y[0, 0]) == 16
        assert float(gradient[0, 0]) == 32
        done.append(threading.get_ident())

    done: list[int] = []
    for _ in range(2):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    work()
    assert len(done) == 3
    assert set(driver.threads) == set(done)
    assert len(driver.threads) <= 3


# Backward first in a process: no other work of torch's has entered a context in that thread.
FIRST = """
import sys, threading
import torch
import fusedops
x, w = (torch.ones(64, 64, device="cuda", dtype=torch.half, requires_grad=True) for _ in "xw")
made, found = fusedops.epilogue(lambda acc: acc * 2), []
work = lambda: found.append(fusedops.linear(x, w, epilogue=made()))
thread = threading.Thread(target=work)
thread.start() if sys.argv[1] == "thread" else work()
thread.join() if sys.argv[1] == "thread" else None
dx, dw = torch.autograd.grad(found, [x, w], [torch.ones_like(x)])
assert found[0].eq(128).all() and dx.eq(128).all() and dw.eq(128).all()
"""


@pytest.mark.gpu
@pytest.mark.parametrize("where", ["main", "thread"])
def test_the_first_launch_of_a_thread(where: str) -> None:
    """Forward on the main thread or another, then backward on torch's own."""
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("the kernels are those of Hopper")
    command = [sys.executable, "-c", FIRST, where]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
