"""Compares main loops of block-scaled FP8 products (fp8_loops.cu) with each other and torch's.

Each loop is first checked against float64 products of the scaled operands; one that hangs or errs
is reported and left out. Then all are timed in turns, on random data.

    python3 perf/gemm/fp8_loops.py fp8_loops.so [--seconds 60]
"""

from __future__ import annotations

import argparse
import ctypes
import os
import pickle
import signal
import statistics
import sys
import time
from functools import partial
from typing import TYPE_CHECKING

import torch

try:
    import fusedops
except ImportError:  # the loops need nothing of it
    fusedops = None

if TYPE_CHECKING:
    from collections.abc import Callable

SHAPES = ((8192, 4096, 4096), (8192, 16384, 4096), (4096, 4096, 7168))
QUANTISING = "quantising"  # how names of loops begin that store e4m3 by rows and transposed
CHECKS = (
    (512, 256, 512),
    (1280, 640, 400),
    (1000, 712, 400),
    (8192, 4096, 1024),
    (4, 8, 16),
    (130, 1032, 144),
)


class Loops:
    """The shared library's functions."""

    def __init__(self, path: str) -> None:
        self.lib = ctypes.CDLL(os.path.abspath(path))
        self.lib.fp8_name.restype = ctypes.c_char_p
        self.lib.fp8_run.restype = ctypes.c_char_p
        pointer, size = ctypes.c_void_p, ctypes.c_int64
        self.lib.fp8_run.argtypes = [
            ctypes.c_int, pointer, pointer, pointer, size, size, pointer, size, size, pointer,
            pointer, pointer, pointer, pointer, size, size, size, ctypes.c_int, pointer,
        ]  # fmt: skip
        self.names = [self.lib.fp8_name(i).decode() for i in range(self.lib.fp8_variants())]

    def run(self, variant: int, case: Case, raster: int) -> None:
        mode = mode_of(self.names[variant])
        a_scale, b_scale = case.scales[mode]
        refusal = self.lib.fp8_run(
            variant, case.a.data_ptr(), case.b.data_ptr(), a_scale.data_ptr(),
            *a_scale.stride(), b_scale.data_ptr(), *b_scale.stride(),
            *(out.data_ptr() for out in case.outputs), case.m, case.n, case.k, raster,
            torch.cuda.current_stream().cuda_stream,
        )  # fmt: skip
        if refusal:
            raise RuntimeError(refusal.decode())


def mode_of(name: str) -> str:
    return "row" if name.startswith("rowwise") else "both" if name.startswith("1x128") else "tile"


def vector_scale(rows: int, blocks: int) -> torch.Tensor:
    padded = torch.rand(blocks, (rows + 3) // 4 * 4, device="cuda") + 0.5
    return padded[:, :rows].t()


class Case:
    """Random operands, and scales of each mode, of a product."""

    def __init__(self, m: int, n: int, k: int) -> None:
        self.m, self.n, self.k = m, n, k
        self.a = torch.randn(m, k, device="cuda").to(torch.float8_e4m3fn)
        self.b = torch.randn(n, k, device="cuda").to(torch.float8_e4m3fn)
        self.d = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
        bands = n // 128 + 1
        self.rows = torch.empty(m, n, device="cuda", dtype=torch.float8_e4m3fn)
        self.columns = torch.empty(n, m, device="cuda", dtype=torch.float8_e4m3fn)
        self.row_scales = torch.empty(bands * m, device="cuda")
        self.tile_scales = torch.empty(bands * (m // 128 + 1), device="cuda")
        self.outputs = self.d, self.rows, self.columns, self.row_scales, self.tile_scales
        self.poison()
        blocks, tiles = (k + 127) // 128, (n + 127) // 128
        a_scale = vector_scale(m, blocks)
        self.scales = {
            "tile": (a_scale, (torch.rand(blocks, tiles, device="cuda") + 0.5).t()),
            "both": (a_scale, vector_scale(n, blocks)),
            "row": (torch.rand(m, 1, device="cuda") + 0.5, torch.rand(n, 1, device="cuda") + 0.5),
        }

    def poison(self) -> None:
        """NaN everywhere, e4m3's too."""
        for out in self.outputs:
            out.view(torch.uint8).fill_(0x7F if out.element_size() == 1 else 0xFF)

    def dequantized(self) -> tuple[tuple[torch.Tensor, torch.Tensor], ...]:
        """(values, their scales) of both e4m3 outputs, as (M, N)."""
        m, n = self.m, self.n
        by_rows = self.row_scales[: n // 128 * m].view(-1, m).t().repeat_interleave(128, 1)
        tiles = self.tile_scales[: n // 128 * m // 128].view(-1, m // 128)
        by_tiles = tiles.repeat_interleave(128, 0).repeat_interleave(128, 1).t()
        # Tokens r and r + 8 of 16 are neighbours in the transposed copy.
        columns = self.columns.double().view(n, m // 16, 8, 2).transpose(2, 3).reshape(n, m).t()
        return (self.rows.double() * by_rows, by_rows), (columns * by_tiles, by_tiles)

    def wide(self, mode: str) -> tuple[torch.Tensor, torch.Tensor]:
        a_scale, b_scale = self.scales[mode]
        repeat = 1 if mode != "tile" else 128

        def spread(scale: torch.Tensor, rows: int, times: int) -> torch.Tensor:
            scale = scale.double().repeat_interleave(times, 0)[:rows]
            return scale.repeat_interleave(128, 1)[:, : self.k] if mode != "row" else scale

        return (
            self.a.double() * spread(a_scale, self.m, 1),
            self.b.double() * spread(b_scale, self.n, repeat),
        )


def check(loops: Loops, variant: int) -> list[float]:
    """The worst element of each case, by what rounding and 14 bits of sums allow."""
    errors = []
    quantises = loops.names[variant].startswith(QUANTISING)
    for m, n, k in CHECKS:
        if quantises and (m % 128 or n % 128):
            continue
        torch.manual_seed(m)
        case = Case(m, n, k)
        loops.run(variant, case, 8)
        torch.cuda.synchronize()
        a, b = case.wide(mode_of(loops.names[variant]))
        exact = a @ b.t()
        sums = a.abs() @ b.abs().t() * 2**-11
        if quantises:
            for values, scales in case.dequantized():
                allowed = exact.abs() * 0.063 + scales * 2**-9 + sums
                errors.append(((values - exact).abs() / allowed).max().item())
        else:
            allowed = exact.abs() * 2**-8 + sums
            errors.append(((case.d.double() - exact).abs() / allowed).max().item())
        first = [out.view(torch.uint8).clone() for out in case.outputs]
        for _ in range(3):
            case.poison()
            loops.run(variant, case, 8)
            same = [
                torch.equal(x, out.view(torch.uint8))
                for x, out in zip(first, case.outputs, strict=True)
            ]
            if not all(same):
                raise RuntimeError(f"runs differ: {same}")
    return errors


def in_child(work: Callable[[], object], seconds: float) -> object:
    """What work() returns in a process of its own, or why it does not."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        try:
            result: object = work()
        except Exception as error:  # the parent prints it
            result = f"{type(error).__name__}: {error}"
        with os.fdopen(write, "wb") as pipe:
            pickle.dump(result, pipe)
        os._exit(0)
    os.close(write)
    signal.signal(signal.SIGALRM, lambda *_: os.kill(child, signal.SIGKILL))
    signal.setitimer(signal.ITIMER_REAL, seconds)
    with os.fdopen(read, "rb") as pipe:
        data = pipe.read()
    signal.setitimer(signal.ITIMER_REAL, 0)
    os.waitpid(child, 0)
    return pickle.loads(data) if data else "hangs or dies"


def peers(case: Case) -> dict[str, Callable[[], object]]:
    a16, b16 = case.a.bfloat16(), case.b.bfloat16()
    one = torch.ones((), device="cuda")
    block_a, block_b = case.scales["tile"]
    row_a, row_b = case.scales["row"]
    block_b = block_b.contiguous()

    def scaled(scale_a: torch.Tensor, scale_b: torch.Tensor) -> Callable[[], object]:
        return lambda: torch._scaled_mm(
            case.a, case.b.t(), scale_a, scale_b, out_dtype=torch.bfloat16
        )

    result = {"torch bf16": lambda: a16 @ b16.t(), "_scaled_mm tensor": scaled(one, one)}
    if fusedops is not None:
        result["ours bf16"] = lambda: fusedops.linear(a16, b16)
    result["_scaled_mm row"] = scaled(row_a, row_b.t().contiguous())
    if case.k % 512 == 0:  # else cuBLAS reads scales with padding that this call does not take
        result["_scaled_mm block"] = scaled(block_a, block_b.t())
    return result


def runs(name: str, call: Callable[[], object]) -> bool:
    try:
        call()
        torch.cuda.synchronize()
    except RuntimeError as error:
        print(f"  {name}: {error}", flush=True)
        return False
    return True


def time_calls(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median microseconds of each call, in turns."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            call()
            start.record()
            for _ in range(8):
                call()
            end.record()
            end.synchronize()
            times[name].append(start.elapsed_time(end) * 1000 / 8)
    return {name: statistics.median(values) for name, values in times.items()}


def measure(loops: Loops, variants: list[int], seconds: float) -> None:
    end = time.monotonic() + seconds
    for m, n, k in SHAPES:
        if time.monotonic() > end:
            print("out of time", flush=True)
            return
        case = Case(m, n, k)
        calls: dict[str, Callable[[], object]] = {}
        for variant in variants:
            for raster in (8, 16) if variant < 6 else (8,):
                name = f"{loops.names[variant]}, raster {raster}"
                calls[name] = partial(loops.run, variant, case, raster)
        calls |= {name: call for name, call in peers(case).items() if runs(name, call)}
        time_calls(calls, 1)
        times = time_calls(calls, 7)
        base = times.get("torch bf16", float("nan"))
        print(f"{m}x{n}x{k}", flush=True)
        for name, us in times.items():
            rate = 2 * m * n * k / us / 1e6
            print(
                f"  {name:46} {us:8.1f} us {rate:7.0f} TFLOP/s {base / us:5.2f} x bf16", flush=True
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library")
    parser.add_argument("--seconds", type=float, default=40)
    args = parser.parse_args()
    loops = Loops(args.library)
    good = []
    for variant, name in enumerate(loops.names):
        errors = in_child(lambda variant=variant: check(loops, variant), 20)
        passed = isinstance(errors, list) and all(error <= 1 for error in errors)
        stages = loops.lib.fp8_stages(variant)
        print(f"{'ok ' if passed else 'BAD'} {name}, {stages} stages: {errors}", flush=True)
        if passed:
            good.append(variant)
    if good:
        print(torch.cuda.get_device_name(), torch.__version__, flush=True)
        measure(loops, good, args.seconds)
    sys.exit(len(good) != len(loops.names))


if __name__ == "__main__":
    main()
