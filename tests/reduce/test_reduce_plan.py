"""The reduction planner: a host function, so its choices and its arithmetic are tested without a
GPU. `walk` does what the kernels do with a plan, element by element.
"""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from fusedops import _C


def plan(tensor, dims, **options):
    """The plan for a tensor on paper."""
    reduced = [i in dims for i in range(tensor.dim())]
    return _C.reduce_plan(
        list(tensor.shape),
        list(tensor.stride()),
        reduced,
        element_bytes=tensor.element_size(),
        **options,
    )


def paper(*shape, dtype=torch.bfloat16):
    """A contiguous tensor without memory."""
    return torch.empty(shape, dtype=dtype, device="meta")


# (shape, dims): kernel, threads, parts. A change here wants new measurements.
PINNED = {
    ((1 << 30,), (0,)): ("long rows", (256, 1, 1), 8192),
    ((32768, 32768), (0,)): ("columns", (32, 8, 1), 32),
    ((32768, 32768), (1,)): ("long rows", (128, 2, 1), 1),
    ((1 << 20, 1024), (1,)): ("long rows", (32, 8, 1), 1),
    ((1 << 20, 1023), (1,)): ("staged rows", (32, 8, 1), 1),
    ((1 << 24, 64), (0,)): ("columns", (8, 32, 1), 4096),
    ((1 << 24, 64), (1,)): ("short rows", (2, 128, 1), 1),
    ((1 << 26, 16), (1,)): ("short rows", (1, 256, 1), 1),
    ((1 << 28, 4), (0,)): ("columns", (1, 256, 1), 8192),
    ((1 << 28, 4), (1,)): ("packed rows", (256, 1, 1), 1),
    ((1 << 26, 17), (1,)): ("staged rows", (1, 256, 1), 1),
    ((1024, 1 << 20), (1,)): ("long rows", (256, 1, 1), 8),
    ((4, 1 << 28), (0,)): ("few rows", (256, 1, 1), 1),
    ((4, 1 << 28), (1,)): ("long rows", (256, 1, 1), 2048),
    ((1024, 1024, 1024), (1,)): ("columns", (32, 8, 1), 1),
    ((256, 64, 256, 256), (0, 2, 3)): ("long rows", (256, 1, 1), 256),
    ((32768,), (0,)): ("long rows", (1024, 1, 1), 1),
    # rows that no vector divides
    ((1 << 26, 17), (0,)): ("packed columns", (256, 1, 1), 4083),
    ((4_000_001, 5), (0,)): ("packed columns", (256, 1, 1), 298),
    ((3, 10_000_001), (0,)): ("few shifted rows", (256, 1, 1), 1),
    ((20, 2_000_001), (0,)): ("few shifted rows", (256, 1, 1), 1),
    ((64, 100_003), (0,)): ("shifted columns", (32, 8, 1), 1),
    ((16, 8, 500_001), (1,)): ("few shifted rows", (256, 1, 1), 1),
    ((20_000, 128, 17), (1,)): ("staged columns", (128, 2, 1), 1),
    ((20_001, 31, 129), (1,)): ("staged columns", (256, 1, 1), 1),
    ((621, 1902, 95), (1,)): ("dense columns", (288, 1, 1), 3),
    ((500, 4096, 31), (1,)): ("packed columns", (256, 1, 1), 2),
    ((2_000_000, 9, 3), (1,)): ("staged columns", (256, 1, 1), 1),
    ((5000, 60, 301), (1,)): ("dense columns", (320, 1, 1), 1),
    # columns that fill the GPU by themselves, and what latency bounds
    ((24, 3_456_192), (0,)): ("few rows", (256, 1, 1), 1),
    ((1370, 8, 576), (1,)): ("few rows", (256, 1, 1), 1),
    ((200, 64, 2499), (1,)): ("shifted columns", (32, 8, 1), 1),
    ((7, 39_391), (0,)): ("scalar columns", (128, 2, 1), 1),
    ((3, 77, 301), (1,)): ("scalar columns", (32, 8, 1), 1),
}


@pytest.mark.parametrize("case", PINNED, ids=str)
def test_pinned_choices(case):
    shape, dims = case
    p = plan(paper(*shape), dims)
    assert (p["kernel"], p["threads"], p["parts"]) == PINNED[case]


def test_strides_decide_not_the_order_of_dimensions():
    assert plan(paper(4096, 512).t(), (0,))["kernel"] == "long rows"
    assert plan(paper(4096, 512).t(), (1,))["kernel"] == "columns"
    nhwc = paper(8, 64, 16, 16).to(memory_format=torch.channels_last)
    p = plan(nhwc, (0, 2, 3))
    assert (p["kernel"], p["reduced"], p["cols"]) == ("columns", 8 * 16 * 16, 64)


def test_collapsing():
    p = plan(paper(4, 5, 6, 7), (2, 3))
    assert (p["reduced"], p["batches"], len(p["batch"])) == (42, 20, 1)
    p = plan(paper(4, 5, 6, 7), (0, 1, 2, 3))
    assert (p["reduced"], p["batches"], p["outputs"]) == (840, 1, 1)
    p = plan(paper(40, 64)[:, :48], (1,))  # sliced rows stay vectors
    assert (p["kernel"], p["batch"][0][:2]) == ("short rows", (40, 64))
    p = plan(paper(40, 64)[:, ::2], (1,))
    assert (p["kernel"], p["reduced_stride"]) == ("strided rows", 2)


def test_alignment():
    assert plan(paper(1000, 64), (1,))["kernel"] == "short rows"
    assert plan(paper(1000, 64), (1,), alignment=2)["kernel"] == "long rows"
    assert plan(paper(1000, 64), (0,), alignment=2)["kernel"] == "packed columns"
    assert plan(paper(1000, 640), (0,), alignment=2)["kernel"] == "dense columns"
    assert plan(paper(1000, 1024), (0,), alignment=2)["kernel"] == "dense columns"
    assert plan(paper(1000, 1025), (0,), alignment=2)["kernel"] == "shifted columns"


def test_small_problems_take_one_pass():
    for shape in [(32768,), (128, 256), (4, 8192), (2048, 16), (16, 2048), (32, 32, 32)]:
        for r in range(1, len(shape) + 1):
            for dims in itertools.combinations(range(len(shape)), r):
                p = plan(paper(*shape), dims)
                alternates = dims == (0, 2)
                assert p["splits"] == 1
                assert alternates or p["parts"] == p["fold"]


def test_too_many_dimensions_ask_for_a_copy():
    x = paper(*[3] * 16)[::2, :, ::2, :, ::2, :, ::2, :, ::2, :, ::2, :, ::2, :, ::2]
    assert plan(x, tuple(range(0, 16, 2)))["copy"]


# ---- what the kernels do with a plan, on paper ----


def batches(p):
    """(input offset, slot, index) of every batch entry."""
    for position in itertools.product(*(range(size) for size, *_ in p["batch"])):
        pairs = list(zip(position, p["batch"], strict=True))
        yield tuple(sum(i * dim[field] for i, dim in pairs) for field in (1, 2, 3))


def walk(p):
    """(slot in [parts, outputs], memory offset, logical index) of every element read."""
    for start, slot, index in batches(p):
        for s in range(p["splits"]):
            if p["kernel"].endswith(("columns", "singles")) or p["kernel"].startswith("few"):
                yield from walk_columns(p, s, start, slot, index)
                continue
            for r in range(s * p["chunk"], min((s + 1) * p["chunk"], p["reduced"])):
                yield (
                    slot + s * p["outputs"],
                    start + r * p["reduced_stride"],
                    index + r * p["index_step"],
                )


def walk_columns(p, s, start, slot, index):
    """One slice of folded rows; the last takes the ragged rest."""
    fold, cols = p["fold"], p["cols"]
    assert p["chunk"] % fold == 0
    rows = p["reduced"] // fold
    last = p["reduced"] if s == p["splits"] - 1 else (s + 1) * p["chunk"]
    assert s * p["chunk"] // fold < rows
    for r in range(s * p["chunk"], min(last, p["reduced"])):
        for c in range(cols):
            part = s * fold + r % fold
            yield (
                slot + part * p["outputs"] + c * p["col_out"],
                start + r * p["reduced_stride"] + c * p["col_stride"],
                index + r * p["index_step"],
            )


BASE = torch.arange(2 * 3 * 4 * 5 * 6).reshape(2, 3, 4, 5, 6)
VIEWS = {
    "contiguous": BASE,
    "permuted": BASE.permute(3, 0, 4, 2, 1),
    "sliced": BASE[:, 1:, ::2, :, 1:5],
    "expanded": BASE[:, :1, :, None].expand(2, 3, 4, 2, 5, 6),
    "tall": torch.arange(3001 * 3).reshape(3001, 3),
    "wide": torch.arange(3 * 3001).reshape(3, 3001),
    "long": torch.arange(70000),
    "eights": torch.arange(64 * 24).reshape(64, 24),
    "odd middle": torch.arange(40 * 5 * 301).reshape(40, 5, 301),
    "small entries": torch.arange(70 * 9 * 3).reshape(70, 9, 3),
    "odd": torch.arange(1 + 20 * 77)[1:].reshape(20, 77),
}


@pytest.mark.parametrize("element_bytes", [1, 2, 4, 8])
@pytest.mark.parametrize("view", VIEWS)
def test_plans_read_every_element_once(view, element_bytes):
    x = VIEWS[view]
    for r in range(x.dim() + 1):
        for dims in itertools.combinations(range(x.dim()), r):
            reduced = [i in dims for i in range(x.dim())]
            p = _C.reduce_plan(
                list(x.shape),
                list(x.stride()),
                reduced,
                element_bytes=element_bytes,
                indexed=True,
                sm_count=4,
            )
            if p["copy"]:
                continue
            kept = [i for i in range(x.dim()) if i not in dims]
            rows = x.permute(*kept, *dims).reshape(-1, math.prod(x.shape[d] for d in dims))
            base = x.storage_offset()
            found: dict[tuple[int, int], int] = {}
            parts = set()
            for slot, offset, index in walk(p):
                part, output = divmod(slot, p["outputs"])
                parts.add((part, output))
                assert (output, index) not in found
                found[output, index] = base + offset
            assert len(parts) == p["parts"] * p["outputs"]  # every part is written
            want = {(o, i): v for o, row in enumerate(rows.tolist()) for i, v in enumerate(row)}
            assert found == want, (view, dims)
