"""Runs every compiled kernel once on small operands: the program to put under compute-sanitizer.

    compute-sanitizer --tool memcheck --error-exitcode 1 python scripts/sanitize.py
    compute-sanitizer --tool racecheck --error-exitcode 1 python scripts/sanitize.py ops
    compute-sanitizer --tool memcheck --error-exitcode 1 python scripts/sanitize.py clusters
    compute-sanitizer --tool racecheck --error-exitcode 1 python scripts/sanitize.py "sm90 64x64"

An argument limits the run to the public GEMM ops, to the reductions (`reduce`), to softmax and
norms (`rows`; `clusters` for those of long rows), to the point ops (`points`; racecheck cannot take
clusters of thread blocks: `sampling`, `neighbours` and `rows` have none)
or to the kernels whose name matches it as a regular expression: racecheck is slow.

Sizes are odd multiples of the alignment, so that tiles are ragged on every side.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections import Counter

import torch

import fusedops
from fusedops.reduction import FLOATING_ONLY, REDUCTIONS
from fusedops.template import template_scale

FAMILIES = {"sm80": 0, "sm90": 1}
DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
ACTIVATIONS = ("none", "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh", "relu2")


def matrix(rows: int, cols: int, dtype: torch.dtype, transposed: bool = False) -> torch.Tensor:
    if transposed:
        return torch.randn(cols, rows, device="cuda", dtype=dtype).t()
    return torch.randn(rows, cols, device="cuda", dtype=dtype)


def every_config(pattern: str, count: Counter[str]) -> None:
    """Each GEMM kernel in each layout and epilogue it was compiled for."""
    op = torch.ops.fusedops_tuning.gemm_with_config
    m, n, k = 200, 264, 136
    for config, dtype in itertools.product(fusedops._C.gemm_configs(), DTYPES):
        if not re.search(pattern, config["name"]):
            continue
        family = FAMILIES[config["family"]]
        for a_t, b_t, epilogue, splits in itertools.product(
            (False, True), (False, True), range(3), (1, 2)
        ):
            a, b = matrix(m, k, dtype, a_t), matrix(k, n, dtype, b_t)
            bias = torch.randn(n, device="cuda", dtype=dtype)
            try:
                y = op(a, b, bias, 3, family, config["index"], splits, 8, epilogue)
            except RuntimeError as error:
                if "no kernel" not in str(error) and "did not run" not in str(error):
                    raise
                continue
            torch.cuda.synchronize()
            assert not torch.isnan(y).any(), (config["name"], dtype)
            count[config["name"]] += 1


def every_mlp(dtype: torch.dtype, activation: str, m: int, n: int, k: int) -> None:
    """mlp and gated_mlp forward and backward, once owning what forward saved and once not."""
    x, w1, w2 = matrix(m, k, dtype), matrix(n, k, dtype), matrix(k, n, dtype)
    b1, b2 = (torch.randn(size, device="cuda", dtype=dtype) for size in (n, k))
    leaves = [t.requires_grad_() for t in (x, w1, b1, w2, b2)]
    y = fusedops.mlp(*leaves, activation, residual=x.detach())
    y.sum().backward(retain_graph=True)
    y.sum().backward()
    y = fusedops.gated_mlp(x, w1, w1.detach(), w2, b1, b1.detach(), b2, activation)
    y.sum().backward(retain_graph=True)
    y.sum().backward()
    fusedops.gated_mlp(x, w1, w1.detach(), w2, activation=activation).sum().backward()
    both = torch.cat([w1, w1]).detach().requires_grad_()
    fusedops.gated_mlp(x, both, None, w2, activation=activation).sum().backward()


def every_op(count: Counter[str]) -> None:
    """The public ops as a user calls them, on shapes that reach every helper kernel."""
    shapes = [(136, 72, 264), (33, 17, 65), (1, 40, 24), (5000, 8, 16), (40, 8, 0)]
    for dtype, activation, (m, n, k) in itertools.product(DTYPES, ACTIVATIONS, shapes):
        x, w = (t.requires_grad_() for t in (matrix(m, k, dtype), matrix(n, k, dtype)))
        b = torch.randn(n, device="cuda", dtype=dtype, requires_grad=True)
        fusedops.linear(x, w, b, activation).backward(torch.randn(m, n, device="cuda", dtype=dtype))
        fusedops.matmul(x[:, ::2], w.t()[::2], b, activation).sum().backward()
        count[f"linear {activation}"] += 1
    for dtype, activation, (m, n, k) in itertools.product(DTYPES, ACTIVATIONS, shapes):
        every_mlp(dtype, activation, m, n, k)
        count[f"mlp {activation}"] += 1
    for precision in ("highest", "high"):
        torch.set_float32_matmul_precision(precision)
        a, b = matrix(1000, 520, torch.float32), matrix(520, 1032, torch.float32)
        a[3, 5] = torch.inf
        fusedops.matmul(a, b, None, "relu")
        fusedops.matmul(a.t().contiguous().t(), b.t().contiguous().t())
        count[f"fp32 {precision}"] += 2
    template_scale(torch.randn(1001, device="cuda"), 2.0)
    torch.cuda.synchronize()


def every_reduction(count: Counter[str]) -> None:
    """Every reduction on shapes that reach every kernel of the planner, and every gradient."""
    shapes = [(300, 8), (129, 64), (45, 192), (301, 4), (301, 2), (100, 17), (33, 1023), (50, 4104)]
    shapes += [(2, 70001), (1000, 64), (5000, 4), (3001, 3), (3, 4096), (20000, 8), (9, 50, 7)]
    for dtype, shape in itertools.product((*DTYPES, torch.int8, torch.int64), shapes):
        x = torch.ones(shape, device="cuda", dtype=dtype)
        floating = dtype.is_floating_point
        for code, dim in itertools.product(range(len(REDUCTIONS)), range(x.dim() + 1)):
            if floating or code not in FLOATING_ONLY:
                mask = 1 << dim if dim < x.dim() else (1 << x.dim()) - 1
                torch.ops.fusedops.reduce(x, code, mask, False, False)
                count[REDUCTIONS[code]] += 1
        for name in ("prod", "amax", "norm", "logsumexp", "std") if floating else ():
            getattr(fusedops, name)(x.requires_grad_(), dim=1).sum().backward()
            count[f"{name} backward"] += 1
    torch.cuda.synchronize()


def every_point_op(count: Counter[str], device: str = "cuda", large: bool = True) -> None:
    """Sampling in each of its regimes, grouping and interpolation with their backward."""
    ops = fusedops.points
    sizes = [(100, 3), (1000, 3), (4000, 3), (10_000, 3), (500, 6)]
    if large:  # clusters and grids of thread blocks
        sizes += [(20_000, 3), (70_000, 3), (150_000, 3), (300_000, 3), (300, 5000)]
    for (n, dim), dtype in itertools.product(sizes, (torch.float32, torch.float64)):
        ops.farthest_point_sample(torch.rand(2, n, dim, device=device, dtype=dtype), 9)
        count["fps"] += 1
    for dtype, channels in itertools.product(DTYPES, (5, 16, 40)):
        like = {"device": device, "dtype": dtype}
        features = torch.randn(2, 40, channels, **like, requires_grad=True)
        points = torch.rand(2, 40, 3, **like, requires_grad=True)
        centers = torch.rand(2, 60, 3, **like)
        weights = torch.rand(2, 60, 7, **like, requires_grad=True)
        idx = torch.randint(-1, 41, (2, 60, 7), device=device)
        idx[1] = 3  # a long list
        ops.group(features, idx, points=points, centers=centers).sum().backward()
        ops.group(features, idx).sum().backward()
        ops.interpolate(features, idx, weights).sum().backward()
        count["group"] += 3
    features = torch.randn(1, 40, 8, device=device, requires_grad=True)
    many = torch.randint(0, 40, (1, 300_000, 1), device=device)  # sorted, not counted
    ops.group(features, many).sum().backward()


def every_neighbour_search(count: Counter[str], device: str = "cuda") -> None:
    """k-NN, ball query and radius search by every algorithm, with their backward and the index."""
    ops = fusedops.points
    like = {"device": device}
    # Queries, neighbours: few and many of each
    sizes = ((45, 5), (45, 40), (9000, 16), (9000, 33), (30_000, 8))
    cases = [*itertools.product(sizes, (2, 3), DTYPES)]
    cases += [*itertools.product(sizes[:4:2], (5, 40), DTYPES)]
    for (m, k), dim, dtype in cases:
        points = torch.rand(2, 333, dim, **like, dtype=dtype)
        queries = torch.rand(2, m // 2, dim, **like, dtype=dtype)
        clouds = {
            "lengths": torch.tensor([333, 20], **like),
            "query_lengths": torch.tensor([m // 2, 3], **like),
        }
        algorithms = ["brute"] + ["grid"] * (dim <= 3)
        for algorithm, norm in itertools.product(algorithms, (2, 1)):
            ops.knn(points, queries, k, norm=norm, algorithm=algorithm, **clouds)
            count[f"knn {algorithm}"] += 1
        if dtype is not torch.float64 and dim >= 16:
            ops.knn(points, queries, k, algorithm="tensor", **clouds)
            count["knn tensor"] += 1
        for algorithm, select in itertools.product(algorithms, ("first", "nearest")):
            ops.ball_query(points, queries, 0.2, k, select=select, algorithm=algorithm, **clouds)
            count[f"ball_query {algorithm}"] += 1
        for algorithm in algorithms:
            ops.radius_search(points, queries, 0.1, algorithm=algorithm, **clouds)
            count[f"radius_search {algorithm}"] += 1
    for dtype in DTYPES:
        features = torch.rand(1, 300, 64, **like, dtype=dtype, requires_grad=True)
        for k in (20, 50, 100):
            found = ops.knn(features, None, k)
            assert found.dist2 is not None
            found.dist2.sum().backward()
            count["knn backward"] += 1
        edges = torch.tensor([0, 0, 170, 300], **like)
        index = ops.GridIndex(torch.rand(300, 3, **like, dtype=dtype), offsets=edges)
        at = torch.rand(50, 3, **like, dtype=dtype)
        query_edges = torch.tensor([0, 10, 40, 50], **like)
        index.knn(at, 9, query_offsets=query_edges)
        index.ball_query(at, 0.1, 9, query_offsets=query_edges)
        index.radius_search(at, 0.1, query_offsets=query_edges)
        count["index"] += 3


def row_ops(count: Counter[str], lengths: tuple[int, ...]) -> None:
    """softmax, norms and cross entropy, forward and backward."""
    for dtype, n in itertools.product(DTYPES, lengths):
        x, r = (matrix(37, n, dtype).requires_grad_() for _ in range(2))
        w, b = (torch.randn(n, device="cuda", dtype=dtype, requires_grad=True) for _ in range(2))
        target = torch.arange(37, device="cuda") % n
        outputs = [
            fusedops.softmax(x, 1),
            fusedops.log_softmax(x, 0),
            *fusedops.layer_norm(x, n, w, b, residual=r),
            fusedops.rms_norm(x, n, w),
            fusedops.cross_entropy(x, target, label_smoothing=0.1),
        ]
        for y in outputs:
            y.backward(torch.ones_like(y), retain_graph=True)
        count[f"rows of {n}"] += len(outputs)


ROWS = (1, 40, 255, 1023, 4097)
CLUSTER_ROWS = (20001, 140001)  # NOTE: not for racecheck, which cannot handle clusters

if __name__ == "__main__":
    ran: Counter[str] = Counter()
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    if wanted in ("", "ops"):
        every_op(ran)
    if wanted in ("", "reduce"):
        every_reduction(ran)
    if wanted in ("", "points"):
        every_point_op(ran)
    if wanted in ("", "points", "neighbours"):
        every_neighbour_search(ran)
    if wanted == "sampling":
        every_point_op(ran, large=False)
    if wanted in ("", "rows"):
        row_ops(ran, ROWS)
    if wanted in ("", "clusters"):
        row_ops(ran, CLUSTER_ROWS)
    torch.cuda.synchronize()
    if wanted not in (
        "ops",
        "reduce",
        "points",
        "neighbours",
        "sampling",
        "rows",
        "clusters",
    ):
        every_config(wanted, ran)
    print(f"{sum(ran.values())} calls, {len(ran)} kinds, no error")
