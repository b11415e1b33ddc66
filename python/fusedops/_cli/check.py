"""`fusedops check`: is this installation right, and about as fast as it should be, in a minute."""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import torch

from .errors_arrive import errors_arrive

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fusedops.bench.suites.base import Case, Suite

Shape = tuple[int, ...]
ROUNDS = 3


@dataclass(frozen=True)
class Family:
    """One case of a suite of bench stands for an op family."""

    name: str
    suite: str
    pass_: str
    dtypes: tuple[str, str]  # on a CPU, on a GPU
    shapes: tuple[Shape, Shape]
    case: str = "*"


# name, suite, pass, (dtype on a CPU, on a GPU), (shape on a CPU, on a GPU), case
_FLOATS, _POINTS = ("fp32", "bf16"), ((2, 512, 128), (8, 4096, 1024))
FAMILIES = (
    Family("gemm", "linear", "step", _FLOATS, ((256, 256, 256), (4096, 4096, 1024)), "*/gelu_tanh"),
    Family("mlp", "mlp", "step", _FLOATS, ((128, 128, 256), (8192, 768, 3072))),
    Family("loss", "loss", "step", _FLOATS, ((128, 128, 512), (4096, 1024, 32000))),
    Family("elementwise", "elementwise", "fwd", _FLOATS, ((256, 512), (65536, 4096)), "bias_act/*"),
    Family("reduce", "reduce", "fwd", _FLOATS, ((256, 512), (32768, 4096)), "sum/*_dim1"),
    Family("norm", "norm", "bwd", _FLOATS, ((128, 768), (16384, 4096)), "rms_norm/*"),
    Family("rope", "rope", "fwd", _FLOATS, ((256, 8, 64), (4096, 16, 64))),
    Family("embedding", "embedding", "bwd", _FLOATS, ((512, 1000, 128), (8192, 50257, 1024))),
    Family("scan", "scan", "fwd", _FLOATS, ((256, 512), (16384, 4096))),
    Family("stencil", "stencil", "fwd", _FLOATS, ((8, 64, 64), (32, 256, 56, 56))),
    Family("knn", "points", "fwd", ("fp32", "fp32"), _POINTS, "knn/*_k16_*"),
    Family("ball", "points", "fwd", ("fp32", "fp32"), _POINTS, "ball/*"),
    Family("sampling", "points", "fwd", ("fp32", "fp32"), _POINTS, "fps/*"),
    Family("grouping", "points", "fwd", _FLOATS, _POINTS, "group/*"),
    Family("edges", "pointnet", "fwd", _FLOATS, ((2, 512, 128), (16, 1024, 512)), "sa*"),
)  # fmt: skip
NAMES = tuple(family.name for family in FAMILIES)


@dataclass
class Line:
    """What was found about a family."""

    family: str
    case: str = ""
    dtype: str = ""
    ok: bool = False
    error: float | None = None  # relative, against torch's own result
    allowed: float | None = None
    us: float | None = None
    eager_us: float | None = None
    problem: str = ""

    def text(self) -> list[str]:
        """The correctness line and the speed line."""
        name = f"{self.family:<12}"
        if not self.ok:
            return [f"{name} FAILED   {self.case} {self.dtype}: {self.problem}".replace(" :", ":")]
        what = f"{self.case} {self.dtype}"
        # NOTE: edges have no allowance of their own: another neighbour may win a maximum in bf16.
        bound = "" if self.allowed is None else f" <= {self.allowed:.0e}"
        lines = [f"{name} correct  {what}: error {self.error:.1e}{bound}"]
        if self.us is not None:
            beside = f"; eager torch {self.eager_us:.1f} us" if self.eager_us else ""
            times = f" ({self.eager_us / self.us:.2f}x)" if self.eager_us else ""
            lines.append(f"{'':<12} speed    {self.us:.1f} us{beside}{times}")
        return lines


def main(argv: Sequence[str], prog: str) -> int:
    """Runs the command; 0 where all is right, 1 where something is not."""
    parser = _parser(prog)
    options = parser.parse_args(argv)
    unknown = [name for name in options.families if name not in NAMES]
    if unknown:
        parser.error(f"no family {', '.join(unknown)}; choose from {', '.join(NAMES)}")
    start = time.perf_counter()
    device = _device(options.device)
    said = _Said(options.json, options.quiet)
    said.header(device)
    problem = errors_arrive(device.type)
    case = "a wrong dtype raises RuntimeError"
    said.line(Line("errors", case, ok=problem is None, problem=problem or ""))
    for family in FAMILIES:
        if family.name in (options.families or NAMES):
            said.line(check_family(family, device))
    return said.footer(time.perf_counter() - start)


class _Said:
    """Prints as asked: text as it comes, or JSON at the end."""

    def __init__(self, as_json: bool, quiet: bool) -> None:
        self.as_json, self.quiet = as_json, quiet
        self.lines: list[Line] = []
        self.device = ""

    def header(self, device: torch.device) -> None:
        from fusedops._core.info import build_info
        from fusedops.bench.machine import gpu_name

        self.device = gpu_name(device)
        if not (self.as_json or self.quiet):
            kind = "CUDA" if build_info()["cuda"] else "CPU only"
            version = f"fusedops {build_info()['version']} ({kind})"
            print(f"{version}, torch {torch.__version__}, {self.device}")

    def line(self, line: Line) -> None:
        self.lines.append(line)
        if self.as_json or (self.quiet and line.ok):
            return
        if line.family == "errors" and line.ok:
            print(f"{line.family:<12} correct  {line.case} (tried in a child process)", flush=True)
            return
        print("\n".join(line.text()), flush=True)

    def footer(self, seconds: float) -> int:
        failed = [line.family for line in self.lines if not line.ok]
        if self.as_json:
            rows = [asdict(line) for line in self.lines]
            found = {
                "ok": not failed,
                "device": self.device,
                "seconds": round(seconds, 1),
                "families": rows,
            }
            print(json.dumps(found, indent=1))
        elif failed:
            print(f"FAILED: {', '.join(failed)} ({seconds:.0f} s)", file=sys.stderr)
        elif not self.quiet:
            print(f"all {len(self.lines)} right ({seconds:.0f} s)")
        return 1 if failed else 0


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"{prog} check",
        description=(
            "Test this installation, in under a minute: errors of ops arrive in Python, and for "
            "each family of ops that results agree with torch's, and how long both take."
        ),
        epilog="exit code: 0 all right, 1 something is wrong, 2 the command line is",
    )
    parser.add_argument(
        "families", nargs="*", metavar="FAMILY", help=f"of {', '.join(NAMES)}; default: all"
    )
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), help="default: the GPU where this build serves it"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quiet", action="store_true", help="print what is wrong and nothing else")
    return parser


def _device(asked: str | None) -> torch.device:
    from fusedops._core.info import build_info
    from fusedops.bench.machine import default_device

    if asked == "cuda" and not torch.cuda.is_available():
        raise SystemExit("check: --device cuda: no CUDA GPU is visible")
    if asked == "cuda" and not build_info()["cuda"]:
        raise SystemExit("check: --device cuda: this is a CPU-only build")
    if asked is None:
        return default_device() if build_info()["cuda"] else torch.device("cpu")
    return torch.device(asked)


def check_family(family: Family, device: torch.device) -> Line:
    """Measures the family's case on a device beside eager torch."""
    from fusedops.bench.runner import OURS, measure
    from fusedops.bench.suites.base import load_suite

    on_gpu = device.type == "cuda"
    line = Line(family.name, dtype=family.dtypes[on_gpu])
    try:
        suite = load_suite(family.suite)
        case = _case(suite, family, family.shapes[on_gpu])
        line.case = f"{case.name} {family.pass_}"
        found = measure(suite, case, line.dtype, family.pass_, ("eager",), device, ROUNDS)
    except Exception as error:  # whatever is wrong with one family is said of it
        line.problem = f"{type(error).__name__}: {error}"
        return line
    line.ok = True
    line.error = found.errors.get(OURS, found.error)
    allowed = suite.tolerance(case, line.dtype)
    line.allowed = allowed if allowed < 1 else None
    line.us = found.timings[OURS].us
    line.eager_us = found.timings["eager"].us if "eager" in found.timings else None
    return line


def _case(suite: Suite, family: Family, shape: Shape) -> Case:
    from fusedops.bench.suites.base import Selection

    cases = suite.cases(Selection(family.pass_, (), (shape,)))
    return next(case for case in cases if fnmatchcase(case.name, family.case))
