"""What the suite `wild` draws: per family the suite that measures it, and its distributions.

Every draw gives a case of that suite, a dtype, a pass and the layouts of the first operands. Sizes
are log-uniform (`Draw.size`); a limit on elements or flops keeps a call under some milliseconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fusedops.bench.suites import (
    elementwise,
    linear,
    mlp,
    norm,
    points_grouping,
    points_neighbours,
    points_sampling,
    reduce,
    scan,
    stencil,
)
from fusedops.bench.suites.base import Case, Suite
from fusedops.bench.suites.points_clouds import CLOUDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from fusedops.bench.suites.wild.draw import Draw

ELEMENTS = 1 << 27  # of the largest tensor of a case
FLOPS, FP32_FLOPS = 2e12, 2e11  # of a case, by Tensor Cores and without
PAIRS = 1 << 26  # that a reference compares one by one
LARGEST_HALF = 65504
ACTIVATIONS = ("relu", "gelu_tanh", "none", "silu", "gelu", "tanh")
TINY = 31  # the widest of what counts as few features
MANY_ROWS = 100_000


class Drawn(NamedTuple):
    case: Case
    dtype: str = "bf16"
    pass_: str = "fwd"
    layouts: tuple[str, ...] = ()


class Family(NamedTuple):
    suite: Suite
    draw: Callable[[Draw], Drawn]
    copy_bound: bool = False  # memory bounds it, and torch is near that


def _flops(dtype: str) -> float:
    return FP32_FLOPS if dtype.startswith("fp32") else FLOPS


def draw_linear(draw: Draw) -> Drawn:
    """Layers; a quarter of them with N or K up to 31 and 1e5 rows or more."""
    dtype, pass_ = draw.dtype(wide=0.2), draw.weighted(fwd=0.7, step=0.3)
    if draw.chance(0.25):
        m, n, k = draw.size(MANY_ROWS, 1 << 22), draw.size(1, 1024), draw.size(1, 1024)
        tiny = draw.number(1, TINY)
        n, k = draw.pick(((tiny, k), (n, tiny)))
    else:
        m, n, k = draw.size(129, 1 << 20), draw.size(32, 16384), draw.size(32, 16384)
    m, n, k = draw.within(_flops(dtype) / 2, m, n, k)
    while m * max(n, k) > ELEMENTS:
        m = m // 2 | m % 2
    layouts = draw.layout(), draw.layout(sliced=0.1, transposed=0.1)
    return Drawn(linear.linear_case((m, n, k), draw.pick(ACTIVATIONS)), dtype, pass_, layouts)


def draw_skinny(draw: Draw) -> Drawn:
    """At most 128 rows against a large weight."""
    m = draw.size(1, 128)
    n, k = draw.within(ELEMENTS, draw.size(64, 1 << 15), draw.size(64, 1 << 15))
    layouts = ("plain", draw.layout(sliced=0.1, transposed=0.1))
    return Drawn(linear.linear_case((m, n, k), draw.pick(ACTIVATIONS)), draw.dtype(wide=0), "fwd",
                 layouts)  # fmt: skip


def _block(draw: Draw, names: tuple[str, ...], products: int) -> Drawn:
    dtype, pass_ = draw.dtype(wide=0.1), draw.weighted(fwd=0.5, step=0.5)
    t, d, h = draw.size(1, 1 << 17), draw.size(16, 8192), draw.size(16, 16384)
    work = _flops(dtype) / (2 * products * (1 if pass_ == "fwd" else 3))
    t, d, h = draw.within(work, t, d, h)
    while t * max(d, h) > ELEMENTS:
        t = t // 2 | t % 2
    return Drawn(mlp.mlp_case(t, d, h, draw.pick(names)), dtype, pass_, (draw.layout(),))


def draw_mlp(draw: Draw) -> Drawn:
    return _block(draw, ("gelu_tanh", "relu", "gelu", "silu", "relu2"), 2)


def draw_gated(draw: Draw) -> Drawn:
    gates = ("swiglu", "geglu_tanh", "reglu", "geglu")
    return _block(draw, (*gates, *(f"{gate}_packed" for gate in gates)), 3)


def draw_reduce(draw: Draw) -> Drawn:
    """Rows, columns, few rows of long ones, middle dimensions, and any dims of up to four."""
    kinds = {"sum": 0.3, "argmax": 0.15, "amax": 0.1, "mean": 0.1, "var": 0.1, "norm2": 0.05}
    kinds |= {"logsumexp": 0.05, "any": 0.05, "prod": 0.05, "count_nonzero": 0.05}
    kind, dtype = draw.weighted(**kinds), draw.dtype(wide=0.35, double=0.05)
    form = draw.weighted(matrix=0.25, few=0.15, tall=0.15, middle=0.25, general=0.2)
    dims: tuple[int, ...]
    shape: tuple[int, ...]
    if form == "matrix":
        shape, dims = (draw.size(1, 1 << 20), draw.size(1, 1 << 20)), (draw.pick((0, 1)),)
    elif form == "few":
        shape, dims = (draw.number(2, 32), draw.size(1024, 1 << 24)), (0,)
    elif form == "tall":
        shape, dims = (draw.size(10_000, 1 << 24), draw.number(1, 32)), (draw.pick((0, 0, 1)),)
    elif form == "middle":
        shape = (draw.size(1, 1 << 14), draw.size(2, 4096), draw.size(1, 1 << 16))
        dims = (1,)
    else:
        shape = tuple(draw.size(1, 512) for _ in range(draw.pick((3, 4))))
        dims = tuple(i for i in range(len(shape)) if draw.chance(0.5)) or (len(shape) - 1,)
    shape = draw.within(ELEMENTS, *shape)
    if kind == "var" and all(shape[dim] == 1 for dim in dims):
        kind = "sum"  # one element has no variance
    one = kind in ("argmax", "prod") or len(dims) == 1
    return Drawn(
        reduce.reduce_case(kind, shape, dims[0] if one else dims), dtype, "fwd", (draw.layout(),)
    )


def _rows(draw: Draw, ops: tuple[str, ...], longest: int) -> Drawn:
    n = draw.size(2, longest)
    m = draw.size(1, 1 << 21)
    m, n = draw.within(ELEMENTS // 2, m, n)
    op, pass_ = draw.pick(ops), draw.weighted(fwd=0.5, bwd=0.5)
    layouts = (draw.weighted(plain=0.85, sliced=0.15),)
    dtype = draw.dtype()
    if op == "cross_entropy" and m > LARGEST_HALF and dtype == "fp16":
        dtype = "bf16"  # torch's mean of losses divides by m, which fp16 does not have
    return Drawn(Case(f"{op}/{m}x{n}", {"op": op, "shape": (m, n)}), dtype, pass_, layouts)


def draw_norm(draw: Draw) -> Drawn:
    return _rows(draw, ("layer_norm", "rms_norm", "rms_norm_residual"), 1 << 18)


def draw_softmax(draw: Draw) -> Drawn:
    return _rows(draw, ("softmax", "log_softmax", "cross_entropy"), 1 << 18)


def draw_scan(draw: Draw) -> Drawn:
    kind = draw.weighted(cumsum=0.4, cumprod=0.1, cummax=0.15, topk=0.2, bincount=0.15)
    dtype = draw.weighted(bf16=0.6, fp32=0.4)
    if kind == "bincount":
        data = draw.pick(("uniform", "constant"))
        return Drawn(scan.count_case(draw.size(1, ELEMENTS), 256, data), "u8")
    if kind == "topk":
        rows, columns = draw.within(ELEMENTS // 4, draw.size(1, 1 << 18), draw.size(8, 1 << 22))
        k = draw.number(1, min(64, columns))
        return Drawn(scan.topk_case((rows, columns), k, (dtype,)), dtype)
    shape = tuple(draw.size(1, 1 << 20) for _ in range(draw.pick((1, 2, 3))))
    shape = draw.within(ELEMENTS // 2, *shape)
    dim = draw.pick(range(len(shape)))
    return Drawn(scan.scan_case(kind, shape, dim, (dtype,)), dtype, "fwd", (draw.layout(),))


def draw_segment(draw: Draw) -> Drawn:
    columns = 1 if draw.chance(0.25) else draw.size(1, 512)
    rows = draw.size(1, 1 << 24)
    while rows * columns > ELEMENTS // 2:
        rows //= 2
    segments = draw.size(1, max(rows, 2))
    reduce_, dtype = draw.weighted(sum=0.7, max=0.3), draw.weighted(bf16=0.5, fp32=0.5)
    return Drawn(scan.segment_case(reduce_, rows, segments, columns, (dtype,)), dtype)


def draw_elementwise(draw: Draw) -> Drawn:
    op = draw.pick(tuple(elementwise.OURS))
    flat = set(elementwise.OPERANDS[op]) == {"m"}
    if flat and draw.chance(0.5):
        shape: tuple[int, ...] = (draw.size(1, ELEMENTS // 2),)
    else:
        shape = draw.within(ELEMENTS // 2, draw.size(1, 1 << 21), draw.size(1, 1 << 15))
    activation = draw.pick(ACTIVATIONS[:2]) if op.endswith("act") else "none"
    name = f"{op}/{'x'.join(map(str, shape))}" + (f"/{activation}" if op.endswith("act") else "")
    pass_ = "fwd" if flat else draw.weighted(fwd=0.6, step=0.4)
    case = Case(name, {"op": op, "shape": shape, "activation": activation})
    return Drawn(case, draw.dtype(), pass_, (draw.layout(),))


def draw_stencil(draw: Draw) -> Drawn:
    dims = draw.pick((1, 2, 2, 3))
    extents = [draw.size(8, (1 << 14, 512, 64)[dims - 1]) for _ in range(dims)]
    shape = draw.within(ELEMENTS // 4, draw.size(1, 64), draw.size(1, 512), *extents)
    taps = draw.pick((3, 5, 7)) if min(shape[2:]) >= 8 else 3
    taps = 3 if dims == 3 else taps
    padding = draw.pick(("zeros", "zeros", "reflect", "replicate", "circular"))
    if min(shape[2:]) < taps:
        padding = "zeros"
    own = draw.chance(0.7)
    name = f"{dims}d/{'x'.join(map(str, shape))}_k{taps}_{padding}{'' if own else '_shared'}"
    args = {"shape": shape, "dims": dims, "taps": taps, "padding": padding, "own": own}
    return Drawn(Case(name, args), draw.dtype(wide=0.4), draw.weighted(fwd=0.7, step=0.3))


def _cloud(draw: Draw) -> str:
    return draw.pick(tuple(CLOUDS))


def _clouds(draw: Draw) -> tuple[int, int, int]:
    """B, N, M of a search; in half of them the points are the queries."""
    b, n = draw.number(1, 64), draw.size(16, 1 << 17)
    m = n if draw.chance(0.5) else draw.size(1, n)
    while b * n * m > PAIRS and b > 1:
        b //= 2
    while b * n * m > PAIRS:
        n, m = max(n // 2, 16), (max(n // 2, 16) if m == n else max(m // 2, 1))
    return b, n, m


def draw_knn(draw: Draw) -> Drawn:
    """Clouds, and feature vectors in a third of the cases."""
    if draw.chance(0.33):
        b, n, d = draw.number(1, 16), draw.size(32, 1 << 13), draw.size(4, 256)
        while b * n * n > PAIRS:
            b, n = (b // 2, n) if b > 1 else (b, n // 2)
        k = draw.number(2, min(40, n))
        name = f"knn/B{b}_N{n}_M{n}_D{d}_k{k}_normal"
        case = Case(name, {"shape": (b, n, d), "k": k, "features": True})
        return Drawn(case, draw.weighted(bf16=0.5, fp32=0.5))
    b, n, m = _clouds(draw)
    k, cloud = draw.number(1, min(64, n)), _cloud(draw)
    name = f"knn/B{b}_N{n}_M{m}_k{k}_{cloud}"
    return Drawn(Case(name, {"op": "knn", "shape": (b, n, m), "k": k, "cloud": cloud}), "fp32")


def draw_ball(draw: Draw) -> Drawn:
    b, n, m = _clouds(draw)
    radius = draw.pick((0.01, 0.03, 0.05, 0.1, 0.2, 0.4))
    k, cloud = draw.number(1, min(64, n)), _cloud(draw)
    name = f"ball/B{b}_N{n}_M{m}_r{radius}_k{k}_{cloud}"
    args = {"op": "ball", "shape": (b, n, m), "k": k, "radius": radius, "cloud": cloud}
    return Drawn(Case(name, args), "fp32")


def draw_fps(draw: Draw) -> Drawn:
    b, n = draw.number(1, 64), draw.size(16, 1 << 18)
    while b * n > 1 << 20:
        b //= 2
    m, cloud = draw.size(1, min(n, 256)), _cloud(draw)
    return Drawn(Case(f"fps/B{b}_N{n}_M{m}_{cloud}", {"shape": (b, n, m), "cloud": cloud}), "fp32")


def _grouping(draw: Draw, ops: tuple[str, ...], neighbours: int) -> Drawn:
    b, n, m = draw.number(1, 64), draw.size(4, 1 << 15), draw.size(1, 1 << 14)
    k, c = draw.number(1, neighbours), draw.size(1, 512)
    while b * max(n, m * k) * c > ELEMENTS // 4:
        b, n, m = max(b // 2, 1), max(n // 2, 4), max(m // 2, 1)
    op, dtype = draw.pick(ops), draw.weighted(bf16=0.5, fp32=0.5)
    case = Case(f"{op}/B{b}_N{n}_M{m}_K{k}_C{c}", {"op": op, "shape": (b, n, m, k, c)})
    return Drawn(case, dtype, draw.weighted(fwd=0.6, bwd=0.4))


def draw_group(draw: Draw) -> Drawn:
    return _grouping(draw, ("group", "group_xyz"), 64)


def draw_interpolate(draw: Draw) -> Drawn:
    return _grouping(draw, ("interpolate",), 8)


_NEIGHBOURS = points_neighbours.SUITE()
FEATURES = points_neighbours.FeaturesSuite()  # measures the cases of knn that say so
FAMILIES: dict[str, Family] = {
    "linear": Family(linear.SUITE(), draw_linear),
    "mlp": Family(mlp.SUITE(), draw_mlp),
    "gated": Family(mlp.SUITE(), draw_gated),
    "skinny": Family(linear.SUITE(), draw_skinny),
    "reduce": Family(reduce.SUITE(), draw_reduce, copy_bound=True),
    "norm": Family(norm.SUITE(), draw_norm),
    "softmax": Family(norm.SUITE(), draw_softmax),
    "scan": Family(scan.SUITE(), draw_scan),
    "segment": Family(scan.SUITE(), draw_segment),
    "elementwise": Family(elementwise.SUITE(), draw_elementwise, copy_bound=True),
    "stencil": Family(stencil.SUITE(), draw_stencil),
    "knn": Family(_NEIGHBOURS, draw_knn),
    "ball": Family(_NEIGHBOURS, draw_ball),
    "fps": Family(points_sampling.SUITE(), draw_fps),
    "group": Family(points_grouping.SUITE(), draw_group),
    "interpolate": Family(points_grouping.SUITE(), draw_interpolate),
}
