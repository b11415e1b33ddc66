"""The command line: `check`, `info`, help and exit codes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import torch

import fusedops
from fusedops import jit
from fusedops.__main__ import COMMANDS, main
from fusedops._cli import check
from fusedops._cli.errors_arrive import error_of, errors_arrive
from fusedops.jit import toolchain

if TYPE_CHECKING:
    from pathlib import Path

    from fusedops.bench.suites.base import Suite

FAILING_OP = """
#include "csrc/common/checks/tensor_check.h"

#include <torch/csrc/stable/library.h>

namespace {
using fusedops::Tensor;
Tensor refuse(const Tensor& x) { fusedops::fail("refuse: never right"); }
STABLE_TORCH_LIBRARY_FRAGMENT(NAME, m) { m.def("refuse(Tensor x) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(NAME, CPU, m) { m.impl("refuse", TORCH_BOX(&refuse)); }
}  // namespace
"""


def command(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fusedops", *arguments],
        capture_output=True,
        text=True,
        check=False,
        **options,  # type: ignore[call-overload]
    )


# ---- errors that arrive ----


def test_errors_of_the_module_arrive(device: str) -> None:
    assert errors_arrive(device) is None


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["shared", "static"])
def test_a_static_runtime_is_named(tmp_path: Path, runtime: str) -> None:
    """The library loads, and its first error ends the process: of a child, which is told of."""
    name = f"refusing_{runtime}"
    source = tmp_path / "refuse.cpp"
    source.write_text(FAILING_OP.replace("NAME", name))
    chain = toolchain.toolchain(False, (), (), (), (), False)
    subprocess.run(chain.command(source, tmp_path / "refuse.o"), check=True)
    library = tmp_path / "refuse.so"
    command = chain.link([tmp_path / "refuse.o"], library)
    if runtime == "static":  # as by an image's compiler that has libstdc++.a alone
        command.remove("-l:libstdc++.so.6")
        command += ["-static-libstdc++", "-static-libgcc", "-Wl,--exclude-libs,ALL"]
    subprocess.run(command, check=True)
    prepare = f"torch.ops.load_library({str(library)!r})"
    call = f"torch.ops.{name}.refuse(torch.ones(1))"
    problem = error_of(str(library), prepare, call, "refuse: never right")
    if runtime == "shared":
        assert problem is None
    else:
        assert problem is not None
        assert re.search(r"ends the process \(SIG(ABRT|SEGV)\)", problem)
        assert "linked statically" in problem


def test_another_error_or_none_is_told() -> None:
    ours = str(fusedops._C.__file__)
    wrong = error_of(ours, "", "raise RuntimeError('something else')", "refuse")
    assert wrong is not None
    assert wrong.endswith("did not: another error came: something else")
    silent = error_of(ours, "", "pass", "refuse")
    assert silent is not None
    assert silent.endswith("did not: no error came")


# ---- check ----


def test_a_family_is_checked(device: str) -> None:
    (family,) = (family for family in check.FAMILIES if family.name == "reduce")
    line = check.check_family(family, torch.device(device))
    assert line.ok, line.problem
    assert line.us is not None
    assert line.us > 0
    correct, speed = line.text()
    assert correct.startswith("reduce       correct  sum/")
    assert "eager torch" in speed


def test_a_wrong_family_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    from fusedops.bench.suites import reduce as suite

    monkeypatch.setattr(suite.ReduceSuite, "ours", lambda *_: lambda x: x.sum(1) + 1)
    (family,) = (family for family in check.FAMILIES if family.name == "reduce")
    line = check.check_family(family, torch.device("cpu"))
    assert not line.ok
    assert "WrongResultError: relative error" in line.text()[0]


def test_a_wrong_family_is_an_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(name: str) -> Suite:
        raise ValueError("no suite today")

    monkeypatch.setattr("fusedops.bench.suites.base.load_suite", broken)
    monkeypatch.setattr(check, "errors_arrive", lambda device: None)
    assert check.main(["scan", "--device", "cpu"], "fusedops") == 1
    said = capsys.readouterr()
    assert "scan         FAILED    fp32: ValueError: no suite today" in said.out
    assert said.err.startswith("FAILED: scan")


@pytest.mark.slow
def test_every_family_in_a_child(device: str) -> None:
    """As a user runs it; JSON and no other word, and less than a minute on an idle machine."""
    done = command("check", "--json", "--device", device)
    found = json.loads(done.stdout)
    assert done.returncode == 0, found
    assert done.stderr == ""
    assert found["ok"]
    assert [line["family"] for line in found["families"]] == ["errors", *check.NAMES]
    assert all(line["us"] > 0 for line in found["families"][1:])


def test_quiet_says_nothing() -> None:
    done = command("check", "reduce", "--device", "cpu", "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_refused_command_lines() -> None:
    done = command("check", "redux")
    assert done.returncode == 2
    assert "no family redux; choose from gemm, mlp" in done.stderr
    if not torch.cuda.is_available():
        done = command("check", "--device", "cuda")
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == "check: --device cuda: no CUDA GPU is visible\n"


# ---- help, info ----


def test_help_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    helped = capsys.readouterr().out
    assert all(f"\n  {name} " in helped for name in COMMANDS)
    assert "exit codes: 0 done" in helped
    assert main([]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", helped)
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"fusedops {fusedops.__version__}\n"
    with pytest.raises(SystemExit) as stop:
        main(["chek"])
    assert stop.value.code == 2
    assert "no command chek; did you mean check?" in capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([name, "--help"])
    assert stop.value.code == 0
    assert f" {name} " in capsys.readouterr().out


def test_an_interrupted_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(argv: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setitem(COMMANDS, "info", (stop, ""))
    assert main(["info"]) == 130
    assert capsys.readouterr().err == "info: interrupted\n"


def test_info_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["version"] == fusedops.__version__
    assert found["torch"] == str(torch.__version__)
    assert len(found["gpus"]) == torch.cuda.device_count()
    assert isinstance(found["archs"], list)
    assert main(["info", "--include-dir"]) == 0
    assert capsys.readouterr().out == f"{jit.include_dir()}\n"
    assert main(["info", "--cmake-dir"]) == 0
    assert capsys.readouterr().out == f"{jit.cmake_dir()}\n"
