"""Times every compiled GEMM configuration on given shapes: the data behind kernel selection.

    python perf/gemm/tune_gemm.py --shapes fwd --dtype bf16 --out tune.csv
    python tune_gemm.py --shapes 8192x4096x1024,64x4096x4096 --layouts TN,NT --splits 1,2,4,8

Layouts name what is contiguous: TN = x @ w.T (both along K), NN = dz @ w, NT = dz.T @ x. A first
round drops what is far behind, three more time the rest, then the best few try every swizzle: all
by the engine of `fusedops.tune`, fusedops._tuning.measure.

Long products run at the power limit, which answers after tens of milliseconds: in short windows a
hungry kernel lives on what the one before it saved. `--alone` times the best few once more, each
for a while by itself, as in training; rows of long products then hold these times alone.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import re
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fusedops._core.activation import CODES
from fusedops._timing.progress import Progress
from fusedops._timing.timing import LONG_US, synchronize
from fusedops._tuning import measure
from fusedops._tuning.names import DTYPES, LAYOUTS, STREAM_K_TAIL
from fusedops._tuning.plan_store import GpuKey, gpu_key
from fusedops.bench import machine
from fusedops.bench.suites import base
from fusedops.bench.suites.linear import FORWARD_SHAPES, STEP_CASES, forward_shapes
from fusedops.bench.suites.wgrad import SHAPES as WGRADS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

OUTPUTS = {"": "fused", "preact": "preact", "main_grad": "accumulator"}  # main_grad: fp32
MAJORS = {layout: majors for majors, layout in LAYOUTS.items()}
KEEP_WITHIN = 2.0  # of the best time of the first round
FINALISTS = 6  # configurations that try every swizzle
ALONE_FINALISTS = 8  # that are timed alone
ALONE_TURNS = 2  # of each, the first third of a turn not timed
FIRST_CALLS = 4  # in a row, at most, in the first round
GUESS_RATE = 5e14  # FLOP/s for the number of calls of the first round


@dataclass(frozen=True)
class Problem:
    m: int
    n: int
    k: int
    layout: str
    dtype: str
    activation: str
    output: str = ""  # more than y in the dtype of the operands: a key of OUTPUTS

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k} {self.layout} {self.dtype} {self.epilogue}"

    @property
    def epilogue(self) -> str:
        return f"{self.activation}+{self.output}" if self.output else self.activation

    @property
    def with_bias(self) -> bool:
        return self.layout == "TN"

    def fields(self) -> measure.Problem:
        """As selection and the measuring engine know it."""
        a, b = MAJORS[self.layout]
        sizes = {"m": self.m, "n": self.n, "k": self.k}
        strides = {"lda": self.k if a == "k" else self.m, "ldb": self.k if b == "k" else self.n}
        return {
            **sizes,
            **strides,
            "a_major": a,
            "b_major": b,
            "dtype": DTYPES[base.DTYPES[self.dtype]],
            "math": "tf32" if self.dtype == "fp32" else "native",
            "epilogue": OUTPUTS[self.output],
            "activation": CODES[self.activation],
            "split_parts": False,
        }


@dataclass(eq=False)
class Entry:
    """A kernel of ours, or of cuBLAS, and the time of its last rounds."""

    plan: measure.Candidate
    call: Callable[..., Any]
    us: float

    @property
    def ours(self) -> bool:
        return bool(self.plan["family"] != "cublas")


def library_calls(problem: Problem) -> dict[str, Callable[..., Any]]:
    """cuBLAS on the same operands: mm, and the fused epilogue where there is one."""
    dtype = {"out_dtype": torch.float32} if problem.output == "main_grad" else {}
    calls: dict[str, Callable[..., Any]] = {"mm": lambda a, b, bias: torch.mm(a, b, **dtype)}
    if problem.layout == "TN":
        calls["addmm"] = lambda a, b, bias: torch.addmm(bias, a, b)
        gelu = problem.activation == "gelu_tanh"
        if problem.activation in ("relu", "gelu_tanh"):
            calls["addmm_activation"] = lambda a, b, bias: torch._addmm_activation(
                bias, a, b, use_gelu=gelu
            )
    return calls


def library_entries(problem: Problem, inputs: measure.Inputs) -> list[Entry]:
    entries = []
    for name, call in library_calls(problem).items():
        call(*inputs)
        plan = {"family": "cublas", "index": -1, "name": name, "splits": 1, "swizzle": 8}
        entries.append(Entry(plan, call, 0.0))
    return entries


def gpu(device: torch.device) -> GpuKey:
    """Without a GPU, that of the committed sweeps."""
    return gpu_key(device) if _cuda(device) else GpuKey("", 90, 132, 0, "")


def _cuda(device: torch.device) -> bool:
    return str(device.type) == "cuda"


def tune(
    problem: Problem, options: argparse.Namespace, device: torch.device, note: Callable[[str], None]
) -> list[dict[str, Any]]:
    """CSV rows of every candidate that runs and is right, best first, and of cuBLAS."""
    torch.manual_seed(0)
    sets, reference = measure.make_sets(problem.fields(), device, with_bias=problem.with_bias)
    plans = [
        plan
        for plan in measure.candidates(problem.fields(), gpu(device))
        if plan["splits"] in options.splits and (plan["splits"] <= 1 or problem.output != "preact")
        if re.search(options.configs, f"{plan['family']}:{plan['name']}")
    ]
    pool = _runnable(plans, problem, sets[0], reference, note)
    library = library_entries(problem, sets[0])
    everything = [*pool, *library]
    guess = 1e6 * 2 * problem.m * problem.n * problem.k / GUESS_RATE
    for entry in everything:
        entry.us = max(guess, measure.SAMPLE_US / FIRST_CALLS)
    _time(everything, sets, 1, device)
    limit = KEEP_WITHIN * min(entry.us for entry in everything)
    alive = [entry for entry in everything if entry.us <= limit or not entry.ours]
    _time(alive, sets, options.rounds, device)
    finalists = _best(everything, FINALISTS)
    plans = [e.plan for e in finalists if e.plan["family"] != "cluster"]
    known = [_key(entry.plan) for entry in everything]
    orders = [p for p in measure.orders(plans, options.swizzles) if _key(p) not in known]
    fresh = _runnable(orders, problem, sets[0], reference, note)
    if fresh:  # beside the best so far and cuBLAS, so that all of them saw the same clocks
        for entry in fresh:
            entry.us = finalists[0].us
        everything += fresh
        best = [entry for entry in finalists if entry in alive]
        _time([*fresh, *best, *library], sets, options.rounds, device)
    finalists = _best(alive, ALONE_FINALISTS)
    if options.alone and finalists and finalists[0].us > LONG_US:
        everything = [*finalists, *library]
        _time_alone(everything, sets, device, options.alone)
    return [_row(problem, entry) for entry in sorted(everything, key=lambda e: e.us)]


def _key(plan: measure.Candidate) -> tuple[Any, ...]:
    return *measure.kernel_of(plan), plan["swizzle"]


def _best(entries: Sequence[Entry], count: int) -> list[Entry]:
    """The fastest of ours."""
    return sorted((e for e in entries if e.ours), key=lambda e: e.us)[:count]


def _row(problem: Problem, entry: Entry) -> dict[str, Any]:
    row = {name: getattr(problem, name) for name in ("m", "n", "k", "layout", "dtype", "epilogue")}
    row |= {"family": entry.plan["family"], "config": entry.plan["index"]}
    row |= {name: entry.plan[name] for name in ("name", "splits", "swizzle")}
    return row | {"us": f"{entry.us:.2f}"}


def _runnable(
    plans: Sequence[measure.Candidate],
    problem: Problem,
    inputs: measure.Inputs,
    reference: Tensor,
    note: Callable[[str], None],
) -> list[Entry]:
    """Those that run and are right."""
    good = []
    refused = 0
    fields = problem.fields()
    for plan in plans:
        error = measure.error_of(fields, plan, inputs, reference)
        if error is None:
            refused += 1
        elif measure.is_right(fields, error):
            good.append(Entry(plan, measure.our_call(fields, plan), plan["expected_us"]))
        else:
            note(f"WRONG {problem} {plan['family']} {plan['name']}: relative error {error:.2e}")
    if refused:
        note(f"{problem}: {refused} of {len(plans)} candidates cannot run")
    return good


def _time(
    entries: Sequence[Entry], sets: Sequence[measure.Inputs], rounds: int, device: torch.device
) -> None:
    """Sets the time of each: medians of rounds in which all take turns."""
    times = measure.median_us([(e.call, e.us) for e in entries], sets, rounds, device)
    for entry, us in zip(entries, times, strict=True):
        entry.us = us


def _time_alone(
    entries: Sequence[Entry], sets: Sequence[Any], device: torch.device, seconds: float
) -> None:
    """Sets the time of each, called for `seconds` before the next one's turn comes."""
    times: list[list[float]] = [[] for _ in entries]
    turns = [*zip(entries, times, strict=True)]
    for turn in range(ALONE_TURNS):
        for entry, found in turns if turn % 2 == 0 else reversed(turns):
            repeats = max(3, round(seconds * 1e6 / entry.us))
            untimed = repeats // 3
            for i in range(repeats):
                if i == untimed:
                    synchronize(device)
                    start = time.perf_counter()
                entry.call(*sets[i % len(sets)])
            synchronize(device)
            found.append((time.perf_counter() - start) * 1e6 / (repeats - untimed))
    for entry, found in turns:
        entry.us = statistics.mean(found)


def problems(options: argparse.Namespace) -> list[Problem]:
    """`fwd`, `models`: the linear suite; `step`: TN with pre-activation, dx (NN) and dw (NT);
    `wgrad`: dw into main_grad.
    """
    made: list[Problem] = []
    for dtype, activation in itertools.product(options.dtype, options.activation):
        for word in options.shapes:
            if word == "fwd":
                made += [Problem(*s, "TN", dtype, activation) for s in FORWARD_SHAPES]
            elif word == "models":
                models = forward_shapes()[len(FORWARD_SHAPES) :]
                made += [Problem(*s, "TN", dtype, activation) for s in models]
            elif word == "step":
                for m, n, k in dict.fromkeys(shape for shape, _ in STEP_CASES):
                    made.append(Problem(m, n, k, "TN", dtype, "gelu_tanh", "preact"))
                    made.append(Problem(m, k, n, "NN", dtype, "none"))
                    made.append(Problem(n, k, m, "NT", dtype, "none"))
            elif word == "wgrad":
                made += [Problem(n, k, m, "NT", dtype, "none", "main_grad") for m, n, k in WGRADS]
            else:
                m, n, k = (int(size) for size in word.split("x"))
                for layout in options.layouts:
                    act = activation if layout == "TN" else "none"
                    made.append(Problem(m, n, k, layout, dtype, act, options.output))
    return list(dict.fromkeys(made))


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    device = options.device or machine.default_device()
    torch.set_float32_matmul_precision("high")  # the op runs fp32 as TF32
    todo = problems(options)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    failures = 0
    with options.out.open("a" if options.append else "w", newline="") as file:
        writer: csv.DictWriter[str] | None = None
        with Progress(len(todo), "tune") as progress:
            for problem in todo:
                start = time.perf_counter()
                try:
                    rows = tune(problem, options, device, progress.line)
                except Exception as error:  # the other shapes keep their numbers
                    failures += 1
                    progress.step(f"{problem}: FAILED {type(error).__name__}: {error}")
                    continue
                if writer is None:
                    writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
                    if file.tell() == 0:
                        writer.writeheader()
                writer.writerows(rows)
                file.flush()
                progress.step(f"{describe(problem, rows)}; {time.perf_counter() - start:.1f} s")
                if _cuda(device):
                    torch.cuda.empty_cache()
    print(f"wrote {options.out}")
    return 1 if failures else 0


def describe(problem: Problem, rows: Sequence[dict[str, Any]]) -> str:
    library = [r for r in rows if r["family"] == "cublas"]
    ours = [r for r in rows if r["family"] != "cublas"]
    if not ours:
        return f"{problem}: no candidate runs"
    fused = next((r for r in library if r["name"] == "addmm_activation"), library[0])
    best = ", ".join(f"{r['name']} s{r['splits']} w{r['swizzle']} {r['us']}" for r in ours[:3])
    ratio = float(fused["us"]) / float(ours[0]["us"])
    return f"{problem}: {best}; cublas {fused['name']} {fused['us']} ({ratio:.2f}x)"


def _parser() -> argparse.ArgumentParser:
    def words(text: str) -> list[str]:
        return text.split(",")

    def integers(text: str) -> list[int]:
        return [int(word) for word in text.split(",")]

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    add("--shapes", type=words, default=["fwd"], help="fwd, models, step, wgrad, MxNxK of a @ b")
    add("--layouts", type=words, default=["TN"], help="of explicit shapes: TN, NN, NT")
    add("--output", choices=OUTPUTS, default="", help="of explicit shapes")
    add("--dtype", type=words, default=["bf16"])
    add("--activation", type=words, default=["relu"], help="of TN problems")
    add("--splits", type=integers, default=[STREAM_K_TAIL, 1, 2, 4, 8, 16, 32])
    add("--swizzles", type=integers, default=[4, 8, 16])
    add("--configs", default="", metavar="REGEX", help="of `family:name`, e.g. ^sm90")
    add("--rounds", type=int, default=3)
    add("--alone", type=float, default=0.0, metavar="SECONDS", help="of each of the best few")
    add("--device", type=torch.device)
    add("--out", type=Path, default=Path("tune_gemm.csv"))
    add("--append", action="store_true")
    return parser


if __name__ == "__main__":
    sys.exit(main())
