"""Times every compiled GEMM configuration on given shapes: the data behind kernel selection.

    python perf/gemm/tune_gemm.py --shapes fwd --dtype bf16 --out tune.csv
    python tune_gemm.py --shapes 8192x4096x1024,64x4096x4096 --layouts TN,NT --splits 1,2,4,8

Layouts name what is contiguous: TN = x @ w.T (both along K), NN = dz @ w, NT = dz.T @ x. A first
round drops what is far behind, three more time the rest, then the best few try every swizzle.

Long products run at the power limit, which answers after tens of milliseconds: in short windows a
hungry kernel lives on what the one before it saved. `--alone` times the best few once more, each
for a while by itself, as in training; rows of long products then hold these times alone.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import math
import re
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from fusedops._core.activation import CODES
from fusedops._timing.backlog import sample
from fusedops._timing.progress import Progress
from fusedops._timing.timing import LONG_US, num_bytes, num_sets, synchronize
from fusedops._tuning.names import EPILOGUES, FAMILIES, STREAM_K_TAIL
from fusedops._tuning.tune import cluster_tiles
from fusedops.bench import machine
from fusedops.bench.runner import relative_error
from fusedops.bench.suites.base import DTYPES, TOLERANCES
from fusedops.bench.suites.linear import FORWARD_SHAPES, STEP_CASES, forward_shapes
from fusedops.bench.suites.wgrad import SHAPES as WGRADS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

OUTPUTS = {"": "fused", "preact": "preact", "main_grad": "accumulator"}  # epilogues of names.py
KEEP_WITHIN = 2.0  # of the best time of the first round
FINALISTS = 6  # configurations that try every swizzle
ALONE_FINALISTS = 8  # that are timed alone
ALONE_TURNS = 2  # of each, the first third of a turn not timed
SAMPLE_US = 150.0  # device time of one sample: that many calls in a row
GUESS_RATE = 5e14  # FLOP/s for the number of calls of the first round


@dataclass(frozen=True)
class Candidate:
    family: str
    config: int
    name: str
    splits: int = 1
    swizzle: int = 8


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


def operands(problem: Problem, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """a (m, k), b (k, n) in the layout's strides, bias (n,)."""
    m, n, k, dtype = problem.m, problem.n, problem.k, DTYPES[problem.dtype]

    def normal(rows: int, columns: int) -> Tensor:
        return torch.randn(rows, columns, dtype=dtype, device=device)

    a = normal(k, m).t() if problem.layout == "NT" else normal(m, k)
    b = normal(n, k).mul_(k**-0.5).t() if problem.layout == "TN" else normal(k, n).mul_(k**-0.5)
    return a, b, torch.randn(n, dtype=dtype, device=device)


def our_call(candidate: Candidate, problem: Problem) -> Callable[..., Any]:
    op = torch.ops.fusedops_tuning.gemm_with_config.default
    family = FAMILIES[candidate.family]
    activation = CODES[problem.activation]
    with_bias = problem.layout == "TN"
    tail = (candidate.splits, candidate.swizzle, EPILOGUES[OUTPUTS[problem.output]])

    def call(a: Tensor, b: Tensor, bias: Tensor) -> Any:
        return op(a, b, bias if with_bias else None, activation, family, candidate.config, *tail)

    return call


def library_calls(problem: Problem) -> dict[str, Callable[..., Any]]:
    """cuBLAS on the same operands: mm, and the fused epilogue where there is one."""
    calls: dict[str, Callable[..., Any]] = {"mm": lambda a, b, bias: product(problem, a, b)}
    if problem.layout == "TN":
        calls["addmm"] = lambda a, b, bias: torch.addmm(bias, a, b)
        gelu = problem.activation == "gelu_tanh"
        if problem.activation in ("relu", "gelu_tanh"):
            calls["addmm_activation"] = lambda a, b, bias: torch._addmm_activation(
                bias, a, b, use_gelu=gelu
            )
    return calls


def product(problem: Problem, a: Tensor, b: Tensor) -> Tensor:
    """cuBLAS's a @ b."""
    if problem.output == "main_grad":
        return torch.mm(a, b, out_dtype=torch.float32)
    return torch.mm(a, b)


def expected(problem: Problem, a: Tensor, b: Tensor, bias: Tensor) -> Tensor:
    z = torch.addmm(bias, a, b) if problem.layout == "TN" else product(problem, a, b)
    functions: dict[str, Callable[[Tensor], Tensor]] = {
        "none": lambda t: t,
        "relu": F.relu,
        "gelu": F.gelu,
        "gelu_tanh": lambda t: F.gelu(t, approximate="tanh"),
        "silu": F.silu,
    }
    return functions[problem.activation](z)


def tile_of(config: dict[str, Any]) -> tuple[int, int, int]:
    """(M, N, K) of a config's tile."""
    m, n, k = config["tile"]
    return m, n, k


def candidates(problem: Problem, splits: Sequence[int], sm_count: int) -> list[Candidate]:
    """Every configuration with the splits that can help (few tiles, enough K for each slice), and
    the band of tiles that selection takes.
    """
    import fusedops

    found = []
    _, ranked = fusedops._C.select_config(problem.m, problem.n, problem.k)
    band = next(int(c["swizzle"]) for c in ranked if c["family"] == "sm90")
    for config in fusedops._C.gemm_configs():
        tile_m, tile_n, tile_k = tile_of(config)
        tiles = math.ceil(problem.m / tile_m) * math.ceil(problem.n / tile_n)
        name = str(config["name"])
        family = str(config["family"])
        for split in splits:
            helps = tiles * split <= 2 * sm_count and problem.k >= 2 * tile_k * split
            if split == STREAM_K_TAIL:
                wanted = family == "sm90" and shares_wave(problem, config, sm_count)
            else:
                wanted = split == 1 or (helps and problem.output != "preact")
            if wanted:
                kernel = (family, int(config["index"]), name, split)
                swizzles = cluster_tiles(name) if family == "cluster" else (band,)
                found += [Candidate(*kernel, swizzle) for swizzle in swizzles]
    return found


def shares_wave(problem: Problem, config: dict[str, Any], sm_count: int) -> bool:
    """Whether a last wave of tiles is shared out (csrc/cutlass/configs/stream_k_tail.h)."""
    import fusedops

    if problem.dtype not in ("bf16", "fp16"):
        return False
    (tile_m, tile_n, tile_k), (cluster_m, cluster_n) = tile_of(config), config["cluster"]
    slots = sm_count // (cluster_m * cluster_n)
    clusters = math.ceil(problem.m / tile_m / cluster_m) * math.ceil(problem.n / tile_n / cluster_n)
    helpers, _, _ = fusedops._C.stream_k_tail(
        clusters % slots, slots, math.ceil(problem.k / tile_k)
    )
    return helpers > 0


def tune(
    problem: Problem, options: argparse.Namespace, device: torch.device, note: Callable[[str], None]
) -> list[dict[str, Any]]:
    """CSV rows of every candidate that runs and is right, best first, and of cuBLAS."""
    torch.manual_seed(0)
    first = operands(problem, device)
    reference = expected(problem, *first)
    count = num_sets(num_bytes(first) + num_bytes(reference), device)
    sets = [first, *(operands(problem, device) for _ in range(count - 1))]
    sms = torch.cuda.get_device_properties(device).multi_processor_count if _cuda(device) else 132
    everything = [
        (c, our_call(c, problem))
        for c in candidates(problem, options.splits, sms)
        if re.search(options.configs, f"{c.family}:{c.name}")
    ]
    pool = _runnable(everything, problem, first, reference, note)
    for name, call in library_calls(problem).items():
        call(*first)
        pool.append((Candidate("cublas", -1, name), call))
    guess = 1e6 * 2 * problem.m * problem.n * problem.k / GUESS_RATE
    repeats = max(1, min(4, round(SAMPLE_US / max(guess, 4.0))))
    once = sample([(call, repeats) for _, call in pool], sets, device)
    limit = KEEP_WITHIN * min(once)
    timed = [(*entry, us) for entry, us in zip(pool, once, strict=True)]
    alive = [t for t in timed if t[2] <= limit or t[0].family == "cublas"]
    results = {candidate: us for candidate, _, us in timed if us > limit}
    results |= _rounds(alive, sets, device, options.rounds)
    finalists = sorted((c for c in results if c.family != "cublas"), key=results.__getitem__)
    variants = [
        Candidate(c.family, c.config, c.name, c.splits, swizzle)
        for c in finalists[:FINALISTS]
        if c.family != "cluster"
        for swizzle in options.swizzles
    ]
    fresh = [(c, our_call(c, problem)) for c in variants if c not in results]
    fresh = _runnable(fresh, problem, first, reference, note)
    if fresh:  # beside the best so far and cuBLAS, so that all of them saw the same clocks
        best = [entry for entry in alive if entry[0] in finalists[:FINALISTS]]
        library = [entry for entry in alive if entry[0].family == "cublas"]
        again = [(*entry, results[finalists[0]]) for entry in fresh]
        results |= _rounds([*again, *best, *library], sets, device, options.rounds)
    if options.alone and results[finalists[0]] > LONG_US:
        best = [e for e in alive if e[0] in finalists[:ALONE_FINALISTS] or e[0].family == "cublas"]
        results = _alone(best, sets, device, options.alone)
    base = {name: getattr(problem, name) for name in ("m", "n", "k", "layout", "dtype")}
    base["epilogue"] = problem.epilogue
    ranked = sorted(results.items(), key=lambda item: item[1])
    return [base | asdict(candidate) | {"us": f"{us:.2f}"} for candidate, us in ranked]


def _cuda(device: torch.device) -> bool:
    return str(device.type) == "cuda"


def _runnable(
    entries: Sequence[tuple[Candidate, Callable[..., Any]]],
    problem: Problem,
    inputs: tuple[Tensor, Tensor, Tensor],
    reference: Tensor,
    note: Callable[[str], None],
) -> list[tuple[Candidate, Callable[..., Any]]]:
    """Those that run and are right; one call each, which is also the warm-up."""
    good = []
    refused = 0
    for candidate, call in entries:
        try:
            got = call(*inputs)
        except RuntimeError:
            synchronize(reference.device)  # raises where the context is gone
            refused += 1
            continue
        error = relative_error(got, reference)
        if error <= TOLERANCES["fp32_high" if problem.dtype == "fp32" else problem.dtype]:
            good.append((candidate, call))
        else:
            note(f"WRONG {problem} {candidate}: relative error {error:.2e}")
    if refused:
        note(f"{problem}: {refused} of {len(entries)} candidates cannot run")
    return good


def _rounds(
    entries: Sequence[tuple[Candidate, Callable[..., Any], float]],
    sets: Sequence[Any],
    device: torch.device,
    rounds: int,
) -> dict[Candidate, float]:
    calls = [(call, max(1, min(16, round(SAMPLE_US / us)))) for _, call, us in entries]
    samples: list[list[float]] = [[] for _ in entries]
    for round_ in range(rounds):
        shift = round_ * len(entries) // max(rounds, 1)
        order = [*range(shift, len(entries)), *range(shift)]
        for index, us in zip(order, sample([calls[i] for i in order], sets, device), strict=True):
            samples[index].append(us)
    return {entries[i][0]: statistics.median(values) for i, values in enumerate(samples)}


def _alone(
    entries: Sequence[tuple[Candidate, Callable[..., Any], float]],
    sets: Sequence[Any],
    device: torch.device,
    seconds: float,
) -> dict[Candidate, float]:
    """us per call, each called for `seconds` before the next one's turn comes."""
    times: dict[Candidate, list[float]] = {candidate: [] for candidate, _, _ in entries}
    for turn in range(ALONE_TURNS):
        for candidate, call, us in entries if turn % 2 == 0 else reversed(entries):
            repeats = max(3, round(seconds * 1e6 / us))
            untimed = repeats // 3
            for i in range(repeats):
                if i == untimed:
                    synchronize(device)
                    start = time.perf_counter()
                call(*sets[i % len(sets)])
            synchronize(device)
            elapsed = time.perf_counter() - start
            times[candidate].append(elapsed * 1e6 / (repeats - untimed))
    return {candidate: statistics.mean(values) for candidate, values in times.items()}


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
