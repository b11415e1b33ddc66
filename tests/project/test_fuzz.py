"""The fuzzer finds nothing in a few seconds of the CPU, and finds what it should."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

import fusedops
from fusedops import reference

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

PROGRAM = Path(__file__).resolve().parents[2] / "scripts/fuzz"
SECONDS = 12


def fuzz(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROGRAM), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)


def test_a_few_seconds_of_the_cpu() -> None:
    """CI's share of the time."""
    done = fuzz("--seed", 32, "--cases", 4000, "--seconds", SECONDS)
    assert done.returncode == 0, done.stdout
    assert ", 0 failed, " in done.stdout.splitlines()[-1]


@pytest.mark.gpu
@pytest.mark.slow
def test_a_few_seconds_of_a_gpu() -> None:
    done = fuzz("--seed", 32, "--cases", 2000, "--seconds", 60, "--device", "cuda")
    assert done.returncode == 0, done.stdout


def test_refused_command_lines() -> None:
    done = fuzz("--ops", "reduce,redux")
    assert done.returncode == 2
    assert "no family redux; choose from gemm, elementwise" in done.stderr


# ---- it can fail ----


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    monkeypatch.syspath_prepend(str(PROGRAM))
    names = ("draw", "families", "layers", "judge")
    yield {name: importlib.import_module(name) for name in names}
    for name in names:
        sys.modules.pop(name, None)


def verdicts(
    modules: dict[str, ModuleType], ours: Callable[..., Any], hostile: bool = False
) -> set[str]:
    """What is said of a wrong softmax over many cases: the words before the figures."""
    said = set()
    for number in range(40):
        draw = modules["draw"].Draw(0, number, "cpu")
        x = draw.floats((5, 9), draw.dtype(), "normal")
        case = modules["draw"].Case("softmax", ours, reference.softmax, [x], True)
        judge = modules["judge"].judge_hostile if hostile else modules["judge"].judge
        try:
            judge(case, draw)
        except modules["judge"].Wrong as error:
            said.add(str(error).split(" 1")[0])
    return said


def test_it_sees_nothing_where_nothing_is(modules: dict[str, ModuleType]) -> None:
    assert verdicts(modules, fusedops.softmax) == set()
    assert verdicts(modules, fusedops.softmax, hostile=True) == set()


def wrong_values(x: torch.Tensor) -> torch.Tensor:
    return fusedops.softmax(x) * (1.03 if x.element_size() == 2 else 1 + 2e-5)


def wrong_at_one_place(x: torch.Tensor) -> torch.Tensor:
    y = fusedops.softmax(x).clone()
    y[-1, -1] = 0
    return y


def changes_its_operand(x: torch.Tensor) -> torch.Tensor:
    y = fusedops.softmax(x.clone())
    with torch.no_grad():
        x[0, 0] += 1
    return y


def differs_between_runs(x: torch.Tensor) -> torch.Tensor:
    eps = torch.finfo(x.dtype).eps
    return fusedops.softmax(x) * (1 + eps * int(torch.randint(0, 2, ())))


def loses_nan(x: torch.Tensor) -> torch.Tensor:
    y = fusedops.softmax(x).clone()
    y[0, 0] = float("nan")
    return y


def wrong_gradient(x: torch.Tensor) -> torch.Tensor:
    y = fusedops.softmax(x)
    return y + (x - x.detach()) * 0.2 if x.requires_grad else y


@pytest.mark.parametrize(
    ("ours", "words"),
    [
        (wrong_values, "result 0: error"),
        (wrong_at_one_place, "result 0: error"),
        (changes_its_operand, "tensor 0 was changed"),
        (differs_between_runs, "result 0: two runs differ"),
        (loses_nan, "result 0:"),
        (wrong_gradient, "gradient 0: error"),
        (lambda x: fusedops.softmax(x)[:4], "result 0: shape (4, 9), expected (5, 9)"),
        (lambda x: [fusedops.softmax(x)] * 2, "2 results, the definition has"),
    ],
)
def test_it_sees(modules: dict[str, ModuleType], ours: Callable[..., Any], words: str) -> None:
    assert any(said.startswith(words) for said in verdicts(modules, ours))


def test_it_sees_bad_messages(modules: dict[str, ModuleType]) -> None:
    def ours(x: torch.Tensor) -> torch.Tensor:
        if not torch.is_tensor(x) or x.shape != (5, 9):
            raise RuntimeError("")
        return fusedops.softmax(x)

    assert "a bad message: RuntimeError: ''" in verdicts(modules, ours, hostile=True)


def test_every_maker_makes(modules: dict[str, ModuleType]) -> None:
    families = modules["families"].FAMILIES | modules["layers"].FAMILIES
    makers = [maker for found in families.values() for maker in found]
    assert len(makers) > 20
    for maker in makers:
        draw = modules["draw"].Draw(3, 0, "cpu")
        modules["judge"].judge(maker(draw), draw)


def test_a_case_repeats(modules: dict[str, ModuleType]) -> None:
    first, second = (modules["families"].linear(modules["draw"].Draw(5, 6, "cpu")) for _ in "ab")
    assert first.name == second.name
    for a, b in zip(first.tensors, second.tensors, strict=True):
        assert torch.equal(a, b)
        assert a.stride() == b.stride()
