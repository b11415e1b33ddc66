"""`python -m fusedops bench`: runs suites, prints and draws what the CSV holds."""

from __future__ import annotations

import fnmatch
import itertools
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from fusedops._timing.progress import Progress
from fusedops._timing.timing import synchronize
from fusedops.bench import machine
from fusedops.bench.options import ALL_SECONDS, RESULTS, make_parser
from fusedops.bench.report import results
from fusedops.bench.report.wild import wild_report
from fusedops.bench.runner import OURS, Measurement, measure, rows
from fusedops.bench.shapes import ShapesError, from_file
from fusedops.bench.suites.base import (
    ALL,
    SUITES,
    WILD_FAMILIES,
    Case,
    GroupedSuite,
    PeerUnavailableError,
    Selection,
    Suite,
    load_suite,
)
from fusedops.bench.together import measure_together
from fusedops.bench.turns import Turns
from fusedops.bench.wild_kernels import store_kernels

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

CPU_FLOPS_LIMIT = 3e9  # of a case that runs on a CPU without being asked for
CPU_BYTES_LIMIT = 1 << 28
CASE_SECONDS, PEER_SECONDS, COMPILE_SECONDS = 0.3, 0.1, 5.0  # the estimate before a run
GROUPED_SECONDS = 40.0  # of a case that compiles whole models, as its peers do


@dataclass(frozen=True)
class Job:
    suite: Suite
    case: Case
    dtype: str
    pass_: str
    peers: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.suite.name} {self.case.name} {self.dtype} {self.pass_}"

    @property
    def seconds(self) -> float:
        if isinstance(self.suite, GroupedSuite):
            return GROUPED_SECONDS
        compiles = sum(peer.startswith("compile") for peer in self.peers)
        return CASE_SECONDS + PEER_SECONDS * (1 + len(self.peers)) + COMPILE_SECONDS * compiles


def main(argv: Sequence[str] | None = None) -> int:
    parser = make_parser()
    options = parser.parse_args(argv)
    unknown = sorted({*options.suite} - {*SUITES, "all"})
    if unknown:
        parser.error(f"no suite {', '.join(unknown)}; choose from {', '.join(SUITES)}, all")
    readings = options.merge, options.summary, options.compare, options.html
    if not (options.suite or options.list or options.plot or any(p is not None for p in readings)):
        parser.print_help()
        return 2
    if options.budget is None and "all" in options.suite:
        options.budget = ALL_SECONDS
    try:
        if isinstance(options.shapes, Path):
            options.shapes = from_file(options.shapes, options.tokens)
        return _main(options)
    except (results.ResultsError, ShapesError) as error:
        raise SystemExit(f"bench: {error}") from None
    except KeyboardInterrupt:
        raise SystemExit("bench: interrupted; what was measured is stored") from None


def _main(options: argparse.Namespace) -> int:
    if options.list:
        return _list_cases(options)
    failures = 0
    outputs: list[Path] = []
    if options.merge:
        outputs = results.merge_into(RESULTS, options.merge, machine.folder_name)
        print("merged into " + ", ".join(str(path) for path in outputs))
        print("tables and pictures of the documents are written from them: make figures")
    if options.suite:
        failures, outputs = _run(options)
    worse = _read_out(options, [options.out] if options.out and not outputs else outputs)
    return 1 if failures or worse else 0


def _run(options: argparse.Namespace) -> tuple[int, list[Path]]:
    device = options.device or machine.default_device()
    jobs = _jobs(options, device)
    if not jobs:
        raise SystemExit("bench: no case matches; --list prints the cases")
    outputs = {name: _out_path(options.out, name, device) for name in {j.suite.name for j in jobs}}
    if options.missing:
        jobs = _unmeasured(jobs, outputs)
    estimate = min(sum(job.seconds for job in jobs), options.budget or float("inf"))
    print(
        f"{len(jobs)} cases on {machine.gpu_name(device)}, about {estimate:.0f} s; "
        f"torch {torch.__version__}, commit {machine.commit()}",
        flush=True,
    )
    for label in sorted({job.dtype for job in jobs if job.suite.clock == "device"}):
        found = machine.ceilings(device, label)
        print(f"{label} ceilings: copy {found.bytes_per_s * 1e-12:.2f} TB/s, ", end="")
        print(f"matmul {found.flops_per_s * 1e-12:.1f} TFLOP/s", flush=True)
    failures: list[str] = []
    stop = time.perf_counter() + options.budget if options.budget else float("inf")
    with Progress(len(jobs), "bench") as progress:
        for batch in _batches(jobs):
            if time.perf_counter() > stop:
                left = len(jobs) - progress.done
                progress.line(f"budget spent: {left} cases left (see --missing)")
                break
            turns = Turns(options.turns)
            rounds = options.rounds or batch[0].suite.default_rounds
            failures += _run_batch(batch, outputs, device, rounds, turns, progress)
            if failures and not _alive(device):
                progress.line("the CUDA context is lost: what was stored is kept, start again")
                break
    if "wild" in outputs and _alive(device):
        drawn = {j.case.name: j.case for j in jobs if j.suite.name == "wild"}
        store_kernels(outputs["wild"], load_suite("wild"), drawn, device)
        print(wild_report([outputs["wild"]], {*drawn}))
    for name in failures:
        print(f"FAILED {name}")
    return len(failures), sorted(set(outputs.values()))


def _batches(jobs: list[Job]) -> list[list[Job]]:
    """What is measured together stands together."""

    def together(job: Job) -> tuple[object, ...]:
        return job.suite.name, job.suite.group(job.case), job.dtype, job.pass_, job.peers

    return [list(batch) for _, batch in itertools.groupby(jobs, together)]


def _run_batch(
    batch: list[Job],
    outputs: dict[str, Path],
    device: torch.device,
    rounds: int,
    turns: Turns,
    progress: Progress,
) -> list[str]:
    """Measures, stores and prints; returns the names of the jobs that failed."""
    suite = batch[0].suite
    how = (batch[0].dtype, batch[0].pass_, batch[0].peers, device, rounds)
    found: list[Measurement] = []
    wrong: dict[str, str] = {}
    try:
        if isinstance(suite, GroupedSuite):
            found, wrong = measure_together(suite, [job.case for job in batch], *how, turns)
        else:
            found = [measure(suite, batch[0].case, *how)]
        for result in found:
            _store(outputs[suite.name], suite, result, device)
    except PeerUnavailableError as error:
        for job in batch:
            progress.step(f"{job.name}: skipped: {error}")
        return []
    except Exception as error:  # one bad case must not cost the others
        wrong = {job.case.name: f"{type(error).__name__}: {error}" for job in batch}
    lines = {result.case.name: _line(result) for result in found}
    for job in batch:
        failed = job.case.name in wrong
        text = f"FAILED {wrong[job.case.name]}" if failed else lines[job.case.name]
        progress.step(f"{job.name}: {text}")
    return [job.name for job in batch if job.case.name in wrong]


def _alive(device: torch.device) -> bool:
    try:
        synchronize(device)
    except RuntimeError:
        return False
    return True


def _jobs(options: argparse.Namespace, device: torch.device) -> list[Job]:
    jobs: list[Job] = []
    asked = [n for name in options.suite for n in (ALL if name == "all" else (name,))]
    if "all" in options.suite and options.shapes:
        asked = [name for name in asked if options.shapes.knows(name)]
    for name in dict.fromkeys(asked):
        suite = load_suite(name)
        for pass_ in suite.passes:
            if pass_ in (options.pass_ or suite.passes):
                jobs += _suite_jobs(options, suite, pass_, device)
    # NOTE: a budget that ends early leaves as many cases of every family of `wild`, and the same
    # share of every suite of `all`.
    jobs.sort(key=lambda job: int(job.case.args.get("index", 0)))
    if "all" in options.suite:
        jobs = _in_turns(jobs)
    known = {peer for job in jobs for peer in job.suite.peers(job.case, job.pass_)}
    unknown = sorted(set(options.peers or ()) - known)
    if jobs and unknown:
        raise SystemExit(f"bench: no peer {', '.join(unknown)}; these cases know {sorted(known)}")
    return jobs


def _in_turns(jobs: list[Job]) -> list[Job]:
    """The suites by turns, each spread evenly over all; what is measured together stays so."""
    of_suite: dict[str, list[list[Job]]] = {}
    for batch in _batches(jobs):
        of_suite.setdefault(batch[0].suite.name, []).append(batch)
    placed = [(i / len(b), batch) for b in of_suite.values() for i, batch in enumerate(b)]
    return [job for _, batch in sorted(placed, key=lambda p: p[0]) for job in batch]


def _suite_jobs(
    options: argparse.Namespace, suite: Suite, pass_: str, device: torch.device
) -> list[Job]:
    unknown = [name for name in options.activation if name not in suite.activations]
    if unknown:
        known = ", ".join(suite.activations)
        raise SystemExit(
            f"bench: suite {suite.name} has no activation {', '.join(unknown)}; it knows {known}"
        )
    sizes = suite.shape.count("x") + 1 if suite.shape else 0
    for shape in options.shapes.of(suite.name):
        if sizes not in (0, len(shape)):
            got = "x".join(map(str, shape))
            raise SystemExit(
                f"bench: --shapes do not fit suite {suite.name}: expected {suite.shape}; got {got}"
            )
    try:
        cases = suite.cases(_selection(options, suite.name, pass_))
    except ValueError as error:
        if not options.shapes:
            raise
        raise SystemExit(f"bench: --shapes do not fit suite {suite.name}: {error}") from None
    if options.case:
        cases = [case for case in cases if _matches(case.name, options.case)]
    if device.type == "cpu" and not options.case and not options.shapes:
        cases = _small_cases(suite, cases, pass_)
    dtypes = [d for d in suite.dtypes if d in (options.dtype or suite.default_dtypes_of(pass_))]
    peers = suite.default_peers(pass_) if options.peers is None else options.peers
    return [
        Job(suite, case, dtype, pass_, tuple(p for p in peers if p in suite.peers(case, pass_)))
        for dtype in dtypes
        for case in cases
        if suite.runs(case, dtype)
    ]


def _selection(options: argparse.Namespace, suite: str, pass_: str) -> Selection:
    unknown = sorted({*options.family} - {*WILD_FAMILIES})
    if unknown:
        known = ", ".join(WILD_FAMILIES)
        raise SystemExit(f"bench: no family {', '.join(unknown)}; choose from {known}")
    named = re.fullmatch(r"(\w+)/(\d+)", options.case or "")  # of wild: FAMILY/INDEX
    count = max(options.count, int(named[2]) + 1) if named else options.count
    activations = options.activation or options.shapes.activations.get(suite, ())
    shapes = options.shapes.of(suite)
    return Selection(pass_, activations, shapes, options.family, count, options.seed)


def _matches(name: str, pattern: str) -> bool:
    """Whether the pattern matches the whole name, or what stands before one of its slashes."""
    parts = name.split("/")
    heads = ("/".join(parts[:count]) for count in range(1, len(parts) + 1))
    return any(fnmatch.fnmatchcase(head, pattern) for head in heads)


def _small_cases(suite: Suite, cases: list[Case], pass_: str) -> list[Case]:
    def is_small(case: Case) -> bool:
        work = suite.work(case, torch.float32, pass_)
        return not work or (work.flops <= CPU_FLOPS_LIMIT and work.bytes <= CPU_BYTES_LIMIT)

    small = [case for case in cases if is_small(case)]
    if len(small) < len(cases):
        print(f"{suite.name} {pass_}: {len(cases) - len(small)} large cases need a GPU or --case")
    return small


def _unmeasured(jobs: list[Job], outputs: dict[str, Path]) -> list[Job]:
    found = [row for path in outputs.values() if path.exists() for row in results.read_rows(path)]
    done = results.measured(row for row in found if row["commit"] == machine.commit())

    # A case is stored at once, and a peer that could not run has no row: one is enough.
    def is_done(job: Job) -> bool:
        key = (job.suite.name, job.case.name, job.dtype, job.pass_)
        return any((*key, peer) in done for peer in (*job.peers, results.NO_PEER))

    return [job for job in jobs if not is_done(job)]


def _store(path: Path, suite: Suite, result: Measurement, device: torch.device) -> None:
    new = rows(suite, result, device)
    results.merge_rows(path, new)
    common = {name: new[0][name] for name in ("case", *results.MACHINE)}
    if result.shares:
        common |= {"case": suite.group(result.case), "dtype": result.dtype, "pass": result.pass_}
        shares = [
            common | {"contender": name} | {k: results.number(v) for k, v in parts.items()}
            for name, parts in result.shares.items()
        ]
        file = path.with_name(f"{suite.name}_shares.csv")
        results.merge_rows(file, shares, results.SHARES_COLUMNS, results.SHARES_KEY)
    if result.errors:
        sidecar = [
            common | {"dtype": result.dtype, "contender": name, "rel_error": f"{error:.3e}"}
            for name, error in result.errors.items()
        ]
        results.merge_rows(
            path.with_name(f"{suite.name}_error.csv"),
            sidecar,
            results.ERROR_COLUMNS,
            results.ERROR_KEY,
        )


def _line(result: Measurement) -> str:
    ours = result.timings[OURS]
    parts = [f"ours {results.number(ours.us)} us"]
    for name, timing in result.timings.items():
        if name != OURS:
            parts.append(f"{name} {results.number(timing.us)} ({timing.us / ours.us:.2f}x)")
    spread = max(timing.spread for timing in result.timings.values())
    error = f"error {result.error:.1e}, spread {spread:.0%}, {result.seconds:.1f} s"
    exact = [f"{name} {value:.2e}" for name, value in result.errors.items()]
    if exact:
        error += "; against float64: " + ", ".join(exact)
    return "; ".join([", ".join(parts), error, *result.notes])


def _read_out(options: argparse.Namespace, outputs: list[Path]) -> int:
    """Prints and draws what is asked; returns the number of regressions."""
    given = options.summary is not None and options.summary != Path()
    for path in (options.summary if given else None, options.compare):
        if path is not None and not path.exists():
            raise SystemExit(f"bench: {path} does not exist")
    paths = [path for path in ([options.summary] if given else outputs) if path.exists()]
    if not paths and (
        options.summary is not None or options.plot or options.compare or options.html
    ):
        folder = _out_path(None, "", options.device or machine.default_device()).parent
        if not any(folder.glob("*.csv")):
            raise SystemExit(
                f"bench: no results in {folder}; name others, e.g. --summary {RESULTS}/h200"
            )
        paths = [folder]
    if options.summary is not None:
        from fusedops.bench.report.summary import summary

        print(summary(paths))
    worse = 0
    if options.compare:
        from fusedops.bench.report.summary import compare

        text, worse = compare(options.compare, paths, options.allow)
        print(text)
    if options.plot:
        from fusedops.bench.report.plot import plot

        for file in plot(paths):
            print(f"wrote {file}")
    if options.html:
        from fusedops.bench.report.html import write_html

        print(f"wrote {write_html(paths, options.html)}")
    return worse


def _out_path(out: Path | None, suite: str, device: torch.device) -> Path:
    folder = RESULTS / machine.folder_name(machine.gpu_name(device))
    if out is not None:
        if out.suffix == ".csv":
            return out
        folder = out
    return folder / f"{suite}.csv"


def _list_cases(options: argparse.Namespace) -> int:
    options.suite = options.suite or ["all"]
    for job in _jobs(options, torch.device("meta")):
        print(job.suite.name, job.case.name, job.dtype, job.pass_, ",".join(job.peers))
    return 0


if __name__ == "__main__":
    sys.exit(main())
