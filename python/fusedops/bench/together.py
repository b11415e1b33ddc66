"""Measures several of our variants of one thing beside the same peers, in the same rounds."""

from __future__ import annotations

import math
import time
import zlib
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from fusedops._timing import timing
from fusedops.bench.runner import OURS, Measurement, extra_mb, first_line
from fusedops.bench.suites.base import Call, Case, PeerUnavailableError, torch_dtype

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from fusedops.bench.suites.base import GroupedSuite
    from fusedops.bench.turns import Turns

ROUND_US = 60000.0  # a contender's turn lasts at least about this long
MAX_LOOPS = 30


@dataclass
class Contenders:
    """What is timed, and what is known of it before it is."""

    calls: dict[str, Call] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    extra_mb: dict[str, float] = field(default_factory=dict)
    shares: dict[str, dict[str, float]] = field(default_factory=dict)
    notes: list[tuple[str, str]] = field(default_factory=list)  # contender, text
    failures: dict[str, str] = field(default_factory=dict)  # of our cases, by name


def measure_together(
    suite: GroupedSuite,
    cases: Sequence[Case],
    dtype: str,
    pass_: str,
    peers: Sequence[str],
    device: torch.device,
    rounds: int,
    turns: Turns,
) -> tuple[list[Measurement], dict[str, str]]:
    """The measurements of the cases, and why others have none.

    Raises PeerUnavailableError where the model cannot run here at all.
    """
    start = time.perf_counter()
    torch.manual_seed(zlib.crc32(f"{suite.name} {suite.group(cases[0])}".encode()))
    found = Contenders()
    with suite.context(dtype):
        with turns.beside_others():
            data = suite.make_inputs(cases[0], torch_dtype(dtype), pass_, device)
            _prepare(found, suite, cases, data, dtype, pass_, peers)
        with turns.alone():
            timings = _time(found, data, device, rounds)
            _profile(found, suite, data, device)
        found.calls.clear()  # nothing holds the model when the context frees its memory
    seconds = time.perf_counter() - start
    names = [case.name for case in cases]
    results = [
        _measurement(case, dtype, pass_, found, timings, names, seconds)
        for case in cases
        if case.name in timings
    ]
    return results, {name: why for name, why in found.failures.items() if name in names}


def _prepare(
    found: Contenders,
    suite: GroupedSuite,
    cases: Sequence[Case],
    data: Sequence[Tensor],
    dtype: str,
    pass_: str,
    peers: Sequence[str],
) -> None:
    """Compiles and checks; leaves the GPU's memory to processes beside this one.

    And to the driver, which loads the code of a contender's kernels: torch's cache is emptied
    before each.
    """
    suite.expect(pass_, dtype)  # what cannot run here fails before minutes of compiling
    for case in cases:
        _admit(found, case.name, partial(suite.ours, case, pass_), suite, data, dtype, pass_)
    if any(case.name in found.calls for case in cases):
        for name in peers:
            make = partial(suite.peer, name, cases[0], pass_, data[0].device)
            _admit(found, name, make, suite, data, dtype, pass_)
    _empty_cache(data[0].device)


def _empty_cache(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _admit(
    found: Contenders,
    name: str,
    make: Callable[[], Call],
    suite: GroupedSuite,
    data: Sequence[Tensor],
    dtype: str,
    pass_: str,
) -> None:
    """Compiles and checks a contender. One that is wrong or raises gets no time, but a word."""
    device = data[0].device
    _empty_cache(device)
    begin = time.perf_counter()
    try:
        call = make()
        results = call(*data)
        timing.synchronize(device)
        seconds = time.perf_counter() - begin
        found.errors[name] = suite.check(results, pass_, dtype)
        del results
        call(*data)  # what compiled lazily has done so
        extra = extra_mb(call, data, device)
    except PeerUnavailableError as error:
        found.notes.append((name, f"skipped: {first_line(error)}"))
        return
    except Exception as error:  # a contender's; the others run on
        _drop(found, name, error)
        return
    found.calls[name] = call
    if seconds > 1:
        found.notes.append((name, f"first call {seconds:.0f} s"))
    if extra is not None:
        found.extra_mb[name] = extra


def _drop(found: Contenders, name: str, error: Exception) -> None:
    found.calls.pop(name, None)
    found.failures[name] = f"{type(error).__name__}: {first_line(error)}"
    found.notes.append((name, f"FAILED {found.failures[name]}"))


def _time(
    found: Contenders, data: Sequence[Tensor], device: torch.device, rounds: int
) -> dict[str, timing.Timing]:
    """Wall time of steps that follow each other, as a training loop sees them.

    A contender that raises, say for memory, is dropped, and the others start again.
    """
    running = ""

    def turn(name: str, call: Call) -> None:
        nonlocal running
        running = name
        call(*data)

    while found.calls:
        running = ""
        bound = {name: partial(turn, name, call) for name, call in found.calls.items()}
        try:
            once = timing.host_us(bound, 1, 1, device)
            fastest = min(t.us for t in once.values())
            loops = max(1, min(math.ceil(ROUND_US / fastest), MAX_LOOPS))
            return timing.host_us(bound, rounds, loops, device)
        except Exception as error:
            if not running:  # before anybody's turn: the GPU itself is gone
                raise
            _drop(found, running, error)
    return {}


def _profile(
    found: Contenders, suite: GroupedSuite, data: Sequence[Tensor], device: torch.device
) -> None:
    try:
        for name, call in found.calls.items():
            found.shares[name] = suite.shares(call, data, device)
    except Exception as error:  # where no profile is allowed the times still count
        found.notes.append((name, f"no profile: {first_line(error)}"))


def _measurement(
    case: Case,
    dtype: str,
    pass_: str,
    found: Contenders,
    timings: dict[str, timing.Timing],
    ours: Sequence[str],
    seconds: float,
) -> Measurement:
    """The case's own row beside the peers of the run."""
    keep = [n for n in timings if n == case.name or n not in ours]

    def named(values: dict[str, Any]) -> dict[str, Any]:
        picked = {OURS if n == case.name else n: values[n] for n in keep if n in values}
        return dict(sorted(picked.items(), key=lambda item: item[0] != OURS))

    result = Measurement(case, dtype, pass_, named(timings), named(found.extra_mb))
    result.error = found.errors[case.name]
    result.shares = {n.split("/")[-1]: found.shares[n] for n in keep if n in found.shares}
    known = {case.name, *(name for name, _ in found.notes if name not in ours)}
    result.notes = [f"{name}: {text}" for name, text in found.notes if name in known]
    result.seconds = seconds
    return result
