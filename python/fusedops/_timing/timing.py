"""The clock: interleaved rounds of CUDA-graph replays over rotated buffers, wall time on a CPU."""

from __future__ import annotations

import contextlib
import gc
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

Inputs = Sequence[Tensor]

COLD_FACTOR = 2.5  # the rotation covers this many L2 caches
MAX_SETS = 128
MEMORY_SHARE = 0.3  # of the free memory, for the rotated buffers
REPLAY_US = 3000.0  # a replay lasts at least about this long: launch and event costs vanish
MAX_REPLAY_US = 30000.0
MAX_CALLS = 2048  # graph nodes cost capture time
WARMUP_CALLS = 3
LONG_US = 50.0  # calls from here on may bring the GPU to its power limit
SETTLE_MS = 200.0  # of them before the first timed one, for the clock to come to rest
HEAD_START_CYCLES = 2_000_000  # about 1 ms: the queue fills before the first timed replay starts


@dataclass(frozen=True)
class Timing:
    us: float  # median over the rounds, per call
    best: float
    spread: float  # (largest - smallest) / median
    calls: int  # per replay


@dataclass(frozen=True)
class Pace:
    """How long a contender is timed; None: as long as for a committed row."""

    replay_us: float | None = None
    settle_ms: float | None = None
    captured_us: float = math.inf  # a call that takes longer is timed without a CUDA graph


class Replay(Protocol):
    calls: int

    def run(self) -> None: ...


def tensors(value: Any) -> list[Tensor]:
    return [value] if isinstance(value, Tensor) else list(value)


def num_bytes(value: Any) -> int:
    return sum(t.numel() * t.element_size() for t in tensors(value))


def num_sets(set_bytes: int, device: torch.device) -> int:
    """How many copies of a case's buffers a rotation needs so that no call finds its data in L2."""
    if device.type != "cuda":
        return 2
    l2: int = torch.cuda.get_device_properties(device).L2_cache_size
    free, _ = torch.cuda.mem_get_info(device)
    wanted = math.ceil(COLD_FACTOR * l2 / max(set_bytes, 1))
    affordable = int(MEMORY_SHARE * free / max(set_bytes, 1))
    return max(2, min(wanted, affordable, MAX_SETS))


def num_calls(us_per_call: float, sets: int, replay_us: float | None = None) -> int:
    """Calls per replay: about `replay_us` in all, whole rotations where they stay under the cap."""
    replay_us = REPLAY_US if replay_us is None else replay_us
    calls = max(1, min(math.ceil(replay_us / max(us_per_call, 0.1)), MAX_CALLS))
    rotations = math.ceil(calls / sets) * sets
    return rotations if rotations * us_per_call <= MAX_REPLAY_US else calls


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    """No collection of garbage meanwhile."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


class GraphReplay:
    """`calls` calls captured into one CUDA graph."""

    def __init__(
        self,
        fn: Callable[..., Any],
        sets: Sequence[Inputs],
        stream: Any,
        replay_us: float | None = None,
    ) -> None:
        self._fn, self._sets, self._stream = fn, sets, stream
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for i in range(WARMUP_CALLS):
                fn(*sets[i % len(sets)])
        torch.cuda.synchronize()
        self.calls = min(len(sets), 16)
        self._capture()
        pilot_us = self._replay_us() / self.calls
        calls = num_calls(pilot_us, len(sets), replay_us)
        if calls != self.calls:
            self.calls = calls
            self._capture()

    def run(self) -> None:
        self._graph.replay()

    def _capture(self) -> None:
        self._graph = torch.cuda.CUDAGraph()
        # NOTE: results live for one rotation, so outputs rotate through memory as inputs do.
        ring: list[Any] = [None] * len(self._sets)
        current = torch.cuda.current_stream()
        try:
            # NOTE: what a collection frees may be of CUDA (cuDNN's graphs that failed, kept by the
            # traceback of an earlier case), and unloading a module ends a capture.
            with _without_collection(), torch.cuda.graph(self._graph, stream=self._stream):
                for i in range(self.calls):
                    slot = i % len(self._sets)
                    ring[slot] = None
                    ring[slot] = self._fn(*self._sets[slot])
        finally:
            torch.cuda.set_stream(current)  # a failed capture leaves its own stream behind
        del ring
        self._graph.replay()
        torch.cuda.synchronize()

    def _replay_us(self) -> float:
        torch.cuda._sleep(HEAD_START_CYCLES // 8)
        return _wait_us(_queue(self._graph.replay))


class LoopReplay:
    """`calls` plain calls: for the CPU, and for what no CUDA graph can hold."""

    def __init__(
        self, fn: Callable[..., Any], sets: Sequence[Inputs], replay_us: float | None = None
    ) -> None:
        self._fn, self._sets = fn, sets
        for i in range(WARMUP_CALLS):
            fn(*sets[i % len(sets)])
        self.calls = len(sets)
        start = time.perf_counter()
        self.run()
        us = (time.perf_counter() - start) * 1e6 / self.calls
        self.calls = num_calls(us, len(sets), replay_us)

    def run(self) -> None:
        fn, sets = self._fn, self._sets
        for i in range(self.calls):
            fn(*sets[i % len(sets)])


def prepare(
    fn: Callable[..., Any], sets: Sequence[Inputs], device: torch.device, pace: Pace | None = None
) -> Replay:
    """Warm-up and capture; raises what `fn` raises."""
    pace = pace or Pace()
    if device.type == "cuda" and not synchronises(fn, sets[0]):
        if not math.isinf(pace.captured_us) and _wall_us(fn, sets[0], device) > pace.captured_us:
            return LoopReplay(fn, sets, pace.replay_us)
        return GraphReplay(fn, sets, _side_stream(device), pace.replay_us)
    return LoopReplay(fn, sets, pace.replay_us)


def _wall_us(fn: Callable[..., Any], inputs: Inputs, device: torch.device) -> float:
    """The time of one call from an idle GPU to an idle GPU."""
    synchronize(device)
    start = time.perf_counter()
    fn(*inputs)
    synchronize(device)
    return (time.perf_counter() - start) * 1e6


def synchronises(fn: Callable[..., Any], inputs: Inputs) -> bool:
    """Whether a call waits for the GPU, as `torch.bincount` does.

    Asked before a capture, because one that fails takes the random generators of later cases along.
    """
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        fn(*inputs)
    except RuntimeError as error:
        if "synchronizing" not in str(error):
            raise
        return True
    finally:
        torch.cuda.set_sync_debug_mode(before)
    return False


def interleave(
    replays: Mapping[str, Replay],
    rounds: int,
    device: torch.device,
    settle_ms: float | None = None,
) -> dict[str, Timing]:
    """Medians over `rounds` rounds of all of them, each round in an order of its own.

    A GPU at its power limit runs slower after a hungrier kernel: nobody always follows the same.
    One that was idle runs faster at first: long calls are timed when its clock has come to rest.
    """
    names = list(replays)
    shuffled = random.Random(0)
    orders = [shuffled.sample(names, len(names)) for _ in range(rounds)]
    if device.type == "cuda":
        samples = _device_rounds(replays, orders, SETTLE_MS if settle_ms is None else settle_ms)
    else:
        samples = _wall_rounds(replays, orders)
    return {name: _summarise(samples[name], replays[name].calls) for name in names}


def host_us(
    calls: Mapping[str, Callable[[], Any]], repeats: int, loops: int, device: torch.device
) -> dict[str, Timing]:
    """CPU time per call: `loops` calls are queued, then one synchronisation; interleaved."""
    names = list(calls)
    samples: dict[str, list[float]] = {name: [] for name in names}
    with _without_collection():
        for round_ in range(-1, repeats):  # the first is warm-up
            shift = round_ % len(names)
            for name in names[shift:] + names[:shift]:
                call = calls[name]
                synchronize(device)
                start = time.perf_counter()
                for _ in range(loops):
                    call()
                synchronize(device)
                if round_ >= 0:
                    samples[name].append((time.perf_counter() - start) * 1e6)
    return {name: _summarise(samples[name], loops) for name in names}


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _device_rounds(
    replays: Mapping[str, Replay], orders: Sequence[Sequence[str]], settle_ms: float
) -> dict[str, list[float]]:
    # Everything is queued at once, so that the GPU never waits for the host between two events.
    events: dict[str, list[tuple[Any, Any]]] = {name: [] for name in replays}
    round_us = _wait_us(_queue(lambda: _run_all(replays)))
    long = round_us >= LONG_US * sum(replay.calls for replay in replays.values())
    torch.cuda._sleep(HEAD_START_CYCLES)
    for _ in range(math.ceil(settle_ms * 1e3 / round_us) if long else 0):
        _run_all(replays)
    for order in orders:
        for name in order:
            events[name].append(_queue(replays[name].run))
    return {name: [_wait_us(pair) for pair in pairs] for name, pairs in events.items()}


def _run_all(replays: Mapping[str, Replay]) -> None:
    for replay in replays.values():
        replay.run()


def _queue(run: Callable[[], None]) -> tuple[Any, Any]:
    """The events before and after it."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    run()
    end.record()
    return start, end


def _wait_us(events: tuple[Any, Any]) -> float:
    """Between the two, when the second has come."""
    start, end = events
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3


def _wall_rounds(
    replays: Mapping[str, Replay], orders: Sequence[Sequence[str]]
) -> dict[str, list[float]]:
    samples: dict[str, list[float]] = {name: [] for name in replays}
    for order in orders:
        for name in order:
            start = time.perf_counter()
            replays[name].run()
            samples[name].append((time.perf_counter() - start) * 1e6)
    return samples


def _summarise(replay_us: Sequence[float], calls: int) -> Timing:
    median = statistics.median(replay_us)
    spread = (max(replay_us) - min(replay_us)) / median if median > 0 else 0.0
    return Timing(median / calls, min(replay_us) / calls, spread, calls)


_STREAMS: dict[int, Any] = {}


def _side_stream(device: torch.device) -> Any:
    index = device.index if device.index is not None else torch.cuda.current_device()
    if index not in _STREAMS:
        _STREAMS[index] = torch.cuda.Stream(index)
    return _STREAMS[index]
