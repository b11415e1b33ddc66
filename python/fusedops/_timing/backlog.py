"""Quick timing without graphs: calls queued back to back behind a head start of the host."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

Queued = tuple[Callable[..., Any], int]  # a call and how often it runs in a row

CHUNK_CALLS = 256  # queued before a synchronisation; the launch queue holds about 1000 kernels
ENQUEUE_US = 40.0  # host time that a queued call may cost; the head start covers it
CYCLES_PER_US = 2000
ATTEMPTS = 3  # each with a longer head start


def sample(calls: Sequence[Queued], sets: Sequence[Any], device: torch.device) -> list[float]:
    """us per call of each (call, repeats), queued back to back behind a head start of the host."""
    times: list[float] = []
    for chunk in _chunks(calls):
        enqueue_us = ENQUEUE_US
        for _ in range(ATTEMPTS):
            measured, starved = _sample_chunk(chunk, sets, device, enqueue_us)
            if not starved:
                break
            enqueue_us *= 3
        times += measured
    return times


def _chunks(calls: Sequence[Queued]) -> list[list[Queued]]:
    chunks: list[list[Queued]] = [[]]
    load = 0
    for call, repeats in calls:
        if load + repeats + 2 > CHUNK_CALLS and chunks[-1]:
            chunks.append([])
            load = 0
        chunks[-1].append((call, repeats))
        load += repeats + 2
    return chunks


def _sample_chunk(
    chunk: Sequence[Queued], sets: Sequence[Any], device: torch.device, enqueue_us: float
) -> tuple[list[float], bool]:
    if device.type != "cuda":
        times = []
        for call, repeats in chunk:
            start = time.perf_counter()
            for i in range(repeats):
                call(*sets[i % len(sets)])
            times.append((time.perf_counter() - start) * 1e6 / repeats)
        return times, False
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(len(chunk) + 1)]
    queued = sum(repeats + 1 for _, repeats in chunk)
    torch.cuda._sleep(int(queued * enqueue_us * CYCLES_PER_US))
    marks[0].record()
    start = time.perf_counter()
    position = 0
    for (call, repeats), mark in zip(chunk, marks[1:], strict=True):
        for _ in range(repeats):
            call(*sets[position % len(sets)])
            position += 1
        mark.record()
    host_us = (time.perf_counter() - start) * 1e6
    overtaken = marks[0].query()  # the head start was over before the host was done
    torch.cuda.synchronize(device)
    starved = overtaken and marks[0].elapsed_time(marks[-1]) * 1e3 < 1.5 * host_us
    return [
        marks[i].elapsed_time(marks[i + 1]) * 1e3 / repeats for i, (_, repeats) in enumerate(chunk)
    ], starved
