"""Measures one case: check ours, then time ours and its peers in interleaved rounds."""

from __future__ import annotations

import time
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fusedops._timing import timing
from fusedops._timing.timing import num_bytes, tensors
from fusedops.bench import machine
from fusedops.bench.report.results import NO_PEER, Row, number
from fusedops.bench.suites.base import (
    Call,
    Case,
    PeerUnavailableError,
    Suite,
    torch_dtype,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

OURS = "ours"
HOST_LOOPS = 200  # calls queued before a synchronisation; well under the launch queue's depth
HOST_REPEATS = 15


class WrongResultError(Exception):
    """Ours differs from the reference peer: no time is reported."""


@dataclass
class Measurement:
    case: Case
    dtype: str
    pass_: str
    timings: dict[str, timing.Timing] = field(default_factory=dict)
    extra_mb: dict[str, float] = field(default_factory=dict)
    error: float | None = None  # relative norm of ours - reference peer
    errors: dict[str, float] = field(default_factory=dict)  # against float64, where asked
    shares: dict[str, dict[str, float]] = field(default_factory=dict)  # of a profile, where asked
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0


def measure(
    suite: Suite,
    case: Case,
    dtype: str,
    pass_: str,
    peers: Sequence[str],
    device: torch.device,
    rounds: int,
) -> Measurement:
    """Raises WrongResultError, or what ours raises; a failing peer becomes a note."""
    start = time.perf_counter()
    result = Measurement(case, dtype, pass_)
    torch.manual_seed(zlib.crc32(f"{suite.name} {case.name}".encode()))
    grad = torch.enable_grad() if pass_ != "fwd" or suite.clock == "host" else torch.no_grad()
    with suite.context(dtype), grad:
        inputs = suite.make_inputs(case, torch_dtype(dtype), pass_, device)
        calls = {OURS: suite.ours(case, pass_)}
        calls.update(_load_peers(suite, case, pass_, peers, device, result))
        sample = _check(suite, result, calls, inputs, device)
        output_bytes = num_bytes(sample)
        del sample
        if suite.clock == "host":
            result.timings = timing.host_us(
                {name: _bind(call, inputs) for name, call in calls.items()},
                HOST_REPEATS if rounds > 1 else 2,
                HOST_LOOPS,
                device,
            )
        else:
            _time(suite, result, calls, inputs, output_bytes, device, rounds)
    if device.type == "cuda":
        torch.cuda.empty_cache()
    result.seconds = time.perf_counter() - start
    return result


def rows(suite: Suite, result: Measurement, device: torch.device) -> list[Row]:
    """CSV rows, one per peer; one row without a peer where none was measured."""
    ours_us = result.timings[OURS].us
    work = suite.work(result.case, torch_dtype(result.dtype), result.pass_)
    base = {
        "suite": suite.name,
        "case": result.case.name,
        "dtype": result.dtype,
        "pass": result.pass_,
        "ours_us": number(ours_us),
        "gbps": number(work.bytes / ours_us * 1e-3) if work else "",
        "tflops": number(work.flops / ours_us * 1e-6) if work else "",
        "floor_us": "",
        "ours_extra_mb": number(result.extra_mb.get(OURS)),
        "gpu": machine.gpu_name(device),
        "torch": torch.__version__,
        "cuda": torch.version.cuda or "",
        "commit": machine.commit(),
        "date": machine.today(),
    }
    if work:
        ceilings = machine.ceilings(device, result.dtype)
        base["floor_us"] = number(ceilings.floor_us(work.bytes, work.flops))
    out = []
    for peer in [name for name in result.timings if name != OURS] or [NO_PEER]:
        peer_us = result.timings[peer].us if peer != NO_PEER else None
        out.append(
            base
            | {
                "peer": peer,
                "peer_us": number(peer_us),
                "speedup": number(peer_us / ours_us if peer_us else None),
                "peer_extra_mb": number(result.extra_mb.get(peer)),
            }
        )
    return out


def _load_peers(
    suite: Suite,
    case: Case,
    pass_: str,
    peers: Sequence[str],
    device: torch.device,
    result: Measurement,
) -> dict[str, Call]:
    calls = {}
    for name in peers:
        if name not in suite.peers(case, pass_):
            continue
        try:
            calls[name] = suite.peer(name, case, pass_, device)
        except (PeerUnavailableError, ImportError) as error:
            result.notes.append(f"{name} skipped: {first_line(error)}")
    return calls


def _check(
    suite: Suite,
    result: Measurement,
    calls: dict[str, Call],
    inputs: Sequence[Tensor],
    device: torch.device,
) -> Any:
    """Compares ours with the reference peer on fresh inputs; returns our result."""
    name = suite.reference(result.case)
    reference = calls.get(name) or suite.peer(name, result.case, result.pass_, device)
    expected = reference(*inputs)
    poison(expected)
    got = calls[OURS](*inputs)
    timing.synchronize(device)
    result.error = max(
        relative_error(a, b) for a, b in zip(tensors(got), tensors(expected), strict=True)
    )
    tolerance = suite.tolerance(result.case, result.dtype)
    if not result.error <= tolerance:
        raise WrongResultError(
            f"relative error {result.error:.2e} against {name} > {tolerance:.0e}"
        )
    named = {OURS: got, name: expected}
    result.errors = suite.errors(result.case, result.pass_, inputs, named)
    return got


def _time(
    suite: Suite,
    result: Measurement,
    calls: dict[str, Call],
    inputs: Sequence[Tensor],
    output_bytes: int,
    device: torch.device,
    rounds: int,
) -> None:
    count = timing.num_sets(num_bytes(inputs) + output_bytes, device)
    dtype = torch_dtype(result.dtype)
    sets = [inputs] + [
        suite.make_inputs(result.case, dtype, result.pass_, device) for _ in range(count - 1)
    ]
    replays: dict[str, timing.Replay] = {}
    for name, call in calls.items():
        try:
            begin = time.perf_counter()
            call(*inputs)
            timing.synchronize(device)
            first = time.perf_counter() - begin
            if first > 0.5:
                result.notes.append(f"{name}: first call {first:.1f} s")
            extra = extra_mb(call, inputs, device)
            replays[name] = timing.prepare(call, sets, device, suite.pace)
            if device.type == "cuda" and isinstance(replays[name], timing.LoopReplay):
                result.notes.append(f"{name} synchronises or is slow: timed without a CUDA graph")
        except Exception as error:  # whatever a peer raises must not hide our result
            if name == OURS:
                raise
            result.notes.append(f"{name} failed: {first_line(error)}")
            continue
        if extra is not None:
            result.extra_mb[name] = extra
    result.timings = timing.interleave(replays, rounds, device, suite.pace.settle_ms)


def extra_mb(call: Call, inputs: Sequence[Tensor], device: torch.device) -> float | None:
    """Peak memory of one call above what was allocated before it, in 10^6 bytes; GPU only."""
    if device.type != "cuda":
        return None
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before: int = torch.cuda.memory_allocated(device)
    call(*inputs)
    torch.cuda.synchronize(device)
    peak: int = torch.cuda.max_memory_allocated(device)
    return (peak - before) * 1e-6


def relative_error(got: Tensor, expected: Tensor) -> float:
    """Norm of the difference over the norm of `expected`; NaN and a wrong shape never pass.

    Infinities that both have, as sums beyond fp16's range, count in neither.
    """
    if got.shape != expected.shape or got.dtype != expected.dtype:
        raise WrongResultError(
            f"expected {expected.dtype} {tuple(expected.shape)}; got {got.dtype} {tuple(got.shape)}"
        )
    wide = torch.float32 if expected.element_size() <= 2 else torch.float64
    have, want = got.detach().to(wide), expected.detach().to(wide)
    beyond = want.isinf() & (have == want)
    difference, norm = (
        torch.linalg.vector_norm(t.masked_fill(beyond, 0)) for t in (have - want, want)
    )
    return float(difference / norm) if float(norm) > 0 else float(difference)


def poison(like: Any) -> None:
    """Leaves NaN, or 77, in freed blocks of the sizes of `like`: what is not written shows."""
    garbage = [
        torch.full_like(t, float("nan") if t.is_floating_point() else 77) for t in tensors(like)
    ]
    del garbage


def _bind(call: Call, inputs: Sequence[Tensor]) -> Callable[[], Any]:
    return lambda: call(*inputs)


def first_line(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:160]
