"""Scans, histograms, segment reductions and top-k, against torch's own and the copy ceiling."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fusedops.bench.suites.base import Call, Case, PeerUnavailableError, Selection, Suite, Work
from fusedops.bench.suites.linear import compiled

if TYPE_CHECKING:
    from collections.abc import Callable

HALF, SINGLE, BYTES = ("bf16",), ("fp32",), ("u8",)

# (operator, shape, dim, dtypes): large ones of 256 MB and more, then small ones of up to 64 KB.
SCANS = (
    ("cumsum", (262144, 4096), 1, HALF),
    ("cumsum", (65536, 16384), 1, HALF),
    ("cumsum", (1 << 28,), 0, ("bf16", "fp32")),
    ("cumsum", (1 << 18, 1023), 1, ("bf16", "fp32")),
    ("cumsum", (1 << 24, 16), 1, HALF),
    ("cumsum", (16384, 32768), 0, HALF),
    ("cumsum", (64, 4096, 1024), 1, HALF),
    ("cumprod", (131072, 4096), 1, HALF),
    ("cummax", (65536, 4096), 1, HALF),
    ("cumsum", (16384,), 0, SINGLE),
    ("cumsum", (32768,), 0, HALF),
    ("cumsum", (64, 256), 1, SINGLE),
    ("cumsum", (128, 128), 0, SINGLE),
    ("cummax", (64, 256), 1, SINGLE),
)
# (elements, bins, data)
COUNTS = ((1 << 30, 256, "uniform"), (1 << 30, 256, "constant"), (1 << 16, 256, "uniform"))
# (reduction, rows, segments, columns, dtypes); one column: features (E,)
SEGMENTS = (
    ("sum", 1 << 24, 1 << 20, 64, HALF),
    ("sum", 1 << 22, 1 << 18, 128, SINGLE),
    ("max", 1 << 22, 1 << 18, 128, SINGLE),
    ("sum", 1 << 28, 1 << 24, 1, ("bf16", "fp32")),
    ("sum", 1 << 10, 64, 8, SINGLE),
)
# (shape, k, dtypes)
TOPKS = (((262144, 4096), 16, HALF), ((1 << 18, 1000), 8, SINGLE), ((64, 1 << 22), 64, SINGLE))


def scan_case(op: str, shape: tuple[int, ...], dim: int, dtypes: tuple[str, ...]) -> Case:
    sizes = "x".join(map(str, shape))
    args = {"kind": "scan", "op": op, "shape": shape, "dim": dim, "dtypes": dtypes}
    return Case(f"{op}/{sizes}_dim{dim}", args)


def count_case(count: int, bins: int, data: str) -> Case:
    args = {"kind": "count", "count": count, "bins": bins, "data": data, "dtypes": BYTES}
    return Case(f"bincount/{count}_{bins}_{data}", args)


def segment_case(
    reduce: str, rows: int, segments: int, columns: int, dtypes: tuple[str, ...]
) -> Case:
    args: dict[str, Any] = {"kind": "segment", "reduce": reduce, "rows": rows, "dtypes": dtypes}
    args |= {"segments": segments, "columns": columns}
    return Case(f"segment_{reduce}/E{rows}_S{segments}_C{columns}_powerlaw", args)


def topk_case(shape: tuple[int, int], k: int, dtypes: tuple[str, ...]) -> Case:
    args = {"kind": "topk", "shape": shape, "k": k, "dtypes": dtypes}
    return Case(f"topk/{shape[0]}x{shape[1]}_k{k}", args)


class ScanSuite(Suite):
    name = "scan"
    dtypes: tuple[str, ...] = ("bf16", "fp32", "u8")
    default_dtypes: tuple[str, ...] = dtypes
    reference_peer = "exact"  # torch in float64 where it sums; eager may round at every step

    def cases(self, selection: Selection) -> list[Case]:
        if selection.shapes:
            return [scan_case("cumsum", s, len(s) - 1, HALF) for s in selection.shapes]
        return [
            *(scan_case(*case) for case in SCANS),
            *(count_case(*case) for case in COUNTS),
            *(segment_case(*case) for case in SEGMENTS),
            *(topk_case(*case) for case in TOPKS),
        ]

    def runs(self, case: Case, dtype: str) -> bool:
        return dtype in case["dtypes"]

    def make_inputs(
        self, case: Case, dtype: torch.dtype, pass_: str, device: torch.device
    ) -> tuple[Tensor, ...]:
        if case["kind"] == "count":
            if case["data"] == "constant":
                return (torch.full((case["count"],), 7, dtype=dtype, device=device),)
            return (torch.randint(0, 256, (case["count"],), dtype=dtype, device=device),)
        if case["kind"] != "segment":
            x = torch.randn(case["shape"], dtype=dtype, device=device)
            return (x.mul_(0.01).add_(1) if case.args.get("op") == "cumprod" else x,)
        offsets = power_law(case["segments"], case["rows"], device)
        ids = torch.repeat_interleave(offsets.diff(), output_size=case["rows"])
        columns = case["columns"]
        shape = (case["rows"],) if columns == 1 else (case["rows"], columns)
        return torch.randn(shape, dtype=dtype, device=device), offsets, ids

    def ours(self, case: Case, pass_: str) -> Call:
        return ours(case)

    def peers(self, case: Case, pass_: str) -> tuple[str, ...]:
        return ("eager", "compile", "exact")

    def peer(self, name: str, case: Case, pass_: str, device: torch.device) -> Call:
        if name == "exact":
            return exact(case)
        if name == "eager":
            return eager(case)
        if name == "compile":
            return compiled(eager(case))
        raise PeerUnavailableError(f"the suite has no peer {name!r}")

    def work(self, case: Case, dtype: torch.dtype, pass_: str) -> Work:
        size = dtype.itemsize
        if case["kind"] == "count":
            return Work(case["count"] * size + case["bins"] * 8, case["count"])
        if case["kind"] == "segment":
            elements = case["rows"] * case["columns"]
            results = case["segments"] * case["columns"]
            return Work((elements + results) * size + (case["segments"] + 1) * 8, elements)
        elements = math.prod(case["shape"])
        if case["kind"] == "topk":
            return Work(elements * size + case["shape"][0] * case["k"] * (size + 8), elements)
        index = 8 if case["op"] == "cummax" else 0
        return Work(elements * (2 * size + index), elements)


def power_law(segments: int, rows: int, device: torch.device) -> Tensor:
    """CSR offsets: lengths fall as the 0.9-th power of their rank, in random order."""
    weight = torch.rand(segments, dtype=torch.float64, device=device).clamp_(min=1e-9).pow_(-0.9)
    edges = (weight.cumsum(0) / weight.sum() * rows).round().long().clamp_(max=rows)
    edges[-1] = rows
    return torch.cat([edges.new_zeros(1), edges])


def ours(case: Case) -> Call:
    import fusedops

    kind = case["kind"]
    if kind == "count":
        return lambda x: fusedops.bincount(x, case["bins"])
    if kind == "segment":
        return lambda x, offsets, _: fusedops.segment_reduce(x, offsets, case["reduce"])
    if kind == "topk":
        return lambda x: fusedops.topk(x, case["k"])
    scan: Callable[..., Any] = getattr(fusedops, case["op"])
    return lambda x: scan(x, case["dim"])


def eager(case: Case) -> Call:
    """What a user writes in torch; segments by atomics, as graph libraries do."""
    kind = case["kind"]
    if kind == "count":
        return lambda x: torch.bincount(x, minlength=case["bins"])
    if kind == "segment":
        return _scatter(case["segments"], case["reduce"])
    if kind == "topk":
        return lambda x: tuple(torch.topk(x, case["k"]))
    scan: Callable[..., Any] = getattr(torch, case["op"])
    if case["op"] == "cummax":
        return lambda x: tuple(scan(x, case["dim"]))
    return lambda x: scan(x, case["dim"])


def exact(case: Case) -> Call:
    if case["kind"] == "topk":

        def first_of_sort(x: Tensor) -> tuple[Tensor, Tensor]:
            values, indices = torch.sort(x, descending=True, stable=True)
            return values[:, : case["k"]].clone(), indices[:, : case["k"]].clone()

        return first_of_sort
    call = eager(case)
    if case["kind"] == "count" or case.args.get("op") == "cummax":
        return call
    return lambda x, *rest: call(x.double(), *rest).to(x.dtype)


def _scatter(segments: int, reduce: str) -> Call:
    def scatter(x: Tensor, _: Tensor, ids: Tensor) -> Tensor:
        out = x.new_zeros((segments, *x.shape[1:]))
        if reduce == "sum":
            return out.index_add_(0, ids, x)
        index = ids.unsqueeze(1).expand_as(x) if x.dim() == 2 else ids
        return out.scatter_reduce_(0, index, x, f"a{reduce}", include_self=False)

    return scatter


SUITE = ScanSuite
