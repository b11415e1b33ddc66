"""linear, matmul, mlp and gated_mlp as a user calls them; every compiled GEMM kernel by itself."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Any

import torch

import fusedops
from fusedops._core.activation import activation_code
from fusedops._tuning.names import FAMILIES, STREAM_K_TAIL
from fusedops.ops.template import template_scale
from options import DTYPES

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator

    from options import Options

# The first two alone under racecheck
ACTIVATIONS = (
    "none", "gelu", "relu", "gelu_tanh", "silu", "sigmoid", "tanh", "relu2", "quick_gelu",
    "leaky_relu", "hardswish", "mish", "softplus", "elu", "relu6",
)  # fmt: skip

# M, N, K that reach every helper kernel. TMA refuses the odd ones, so none of these is a cluster's.
ODD = [(33, 17, 65), (127, 71, 263), (40, 7, 0)]
# The last but those has rows that are padded on their way out and for the gradients.
SHAPES = [(136, 72, 264), (1, 40, 24), (5000, 8, 16), (2100, 501, 520), *ODD]


def run_ops(o: Options, count: Counter[str]) -> None:
    shapes = SHAPES if o.clusters else ODD
    activations = o.some(ACTIVATIONS, 2)
    for dtype, activation, (m, n, k) in o.mine(itertools.product(DTYPES, activations, shapes)):
        x, w = o.randn(m, k, dtype=dtype, grad=True), o.randn(n, k, dtype=dtype, grad=True)
        b = o.randn(n, dtype=dtype, grad=True)
        fusedops.linear(x, w, b, activation).backward(o.randn(m, n, dtype=dtype))
        fusedops.matmul(x[:, ::2], w.t()[::2], b, activation).sum().backward()
        count[f"linear {activation}"] += 2
        run_mlps(o, dtype, activation, m, n, k)
        count[f"mlp {activation}"] += 4
    for precision in ("highest", "high") if o.clusters else ():
        torch.set_float32_matmul_precision(precision)
        a, b = o.randn(1000, 520), o.randn(520, 1032)
        a[3, 5] = torch.inf
        fusedops.matmul(a, b, None, "relu")
        fusedops.matmul(a.t().contiguous().t(), b.t().contiguous().t())
        count[f"fp32 {precision}"] += 2
    template_scale(o.randn(1001), 2.0)


def run_gradients(o: Options, count: Counter[str]) -> None:
    """What backward passes have kernels of their own for."""
    for dtype in (torch.bfloat16, torch.float16):
        run_gated_gradient(o, dtype)
        count["gated gradient"] += 2
        run_main_grad(o, dtype, count)
        run_input_gradient(o, dtype, count)
        run_moments(o, dtype, count)
        run_norm(o, dtype, count)
        run_preactivation_gradient(o, dtype, count)
        if o.clusters:
            run_large_gated_mlp(o, dtype)
            count["gated kernels"] += 2


# M, N, K of linear layers of few features: ragged features, whole ones, several tiles to a block.
NARROW = [
    *((1025, 24, 40), (9001, 136, 64), (34001, 64, 72), (20001, 40, 136), (17001, 256, 128)),
]
NARROW_PAIRS = [(20001, 136, 200), (20001, 256, 256)]


def run_narrow(o: Options, count: Counter[str]) -> None:
    """Every gradient of a linear layer of few features in one kernel."""
    op = torch.ops.fusedops.linear_backward
    shapes = NARROW + (NARROW_PAIRS if o.clusters else [])
    for dtype, activation, shape in itertools.product(
        (torch.bfloat16, torch.float16), ("none", "relu", "gelu_tanh"), shapes
    ):
        m, n, k = shape
        m = m if o.device == "cuda" else m % 100
        x, w = o.randn(m, k, dtype=dtype), o.randn(n, k, dtype=dtype)
        dy, saved = o.randn(m, n, dtype=dtype), o.randn(m, n, dtype=dtype)
        for needs in ((True, True, True), (True, False, True), (False, True, True)):
            op(dy, x, w, saved, activation_code(activation), *needs, False, False)
            count[f"narrow {activation}"] += 1


# M, N, K that stream: one feature, K in chunks, N in groups and in parts; a few features that
# become many, in runs of d, in rows and in parts.
THIN = [(4101, 1, 2), (4099, 5, 3), (4098, 11, 64), (4097, 9, 70), (4100, 17, 24), (4097, 133, 3)]
THIN += [(9001, 393, 6), (8198, 65, 64), (8197, 777, 40), (20_003, 64, 3)]


def run_thin(o: Options, count: Counter[str]) -> None:
    """Forward and gradients of a few features and many rows, dense, in columns and as slices."""
    dtypes = (torch.bfloat16, torch.float16, torch.float32)
    for dtype, (m, n, k) in itertools.product(dtypes, THIN):
        m = m if o.device == "cuda" else m % 100
        w, b, dy = (o.randn(*s, dtype=dtype) for s in ((n, k), (n,), (m, n)))
        for x in (
            o.randn(m, k, dtype=dtype),
            o.randn(k, m, dtype=dtype).t(),
            o.randn(m, k + 3, dtype=dtype)[:, 1 : k + 1],
        ):
            x = x.detach().requires_grad_()
            fusedops.linear(x, w.detach().requires_grad_(), b, "gelu").backward(dy)
            count[f"thin {dtype}"] += 1


# N, K: a row of w shorter than a unit of 16 bytes, more columns than blocks; blocks that share K.
ONE_ROW = [(1, 5, 3), (1, 7001, 51), (1, 4099, 264)]
ONE_ROW_IN_CLUSTERS = [(1, 43, 20001), (1, 700, 515)]


def run_one_row(o: Options, count: Counter[str]) -> None:
    """One row by a weight: dense, and as slices that begin anywhere."""
    dtypes = (torch.bfloat16, torch.float16, torch.float32)
    shapes = ONE_ROW + (ONE_ROW_IN_CLUSTERS if o.clusters else [])
    for dtype, (m, n, k) in itertools.product(dtypes, shapes):
        b = o.randn(n, dtype=dtype)
        for gap in (0, 3):
            x, w = (o.randn(r, k + gap, dtype=dtype)[:, gap // 2 : k + gap // 2] for r in (m, n))
            y = fusedops.linear(x, w, b, "gelu")
            assert not torch.isnan(y).any(), (m, n, k, dtype)
            count[f"one row {dtype}"] += 1


# Tiles of csrc/cutlass/configs/unaligned_configs.h: 16-bit, on Hopper more of them, and fp32.
UNALIGNED_TILES, UNALIGNED_PART_TILES = 8, 4
# M, N, K: one tile and a bit of the next in every direction; less than a unit of 16 bytes.
UNALIGNED = [(131, 133, 515), (3, 5, 7)]


def run_unaligned(o: Options, count: Counter[str]) -> None:
    """Every tile of the kernels for operands that begin anywhere: layouts, addresses, epilogues,
    slices of K; and the choice between them, with gradients.
    """
    if o.device == "cuda":
        run_unaligned_tiles(o, count)
    for dtype, (m, n, k) in itertools.product(
        (torch.bfloat16, torch.float16), [(1, 43, 301), (129, 33, 1033), (300, 70, 201)]
    ):
        x, w = o.randn(m, k, dtype=dtype, grad=True), o.randn(n, k, dtype=dtype, grad=True)
        b, dy = o.randn(n, dtype=dtype, grad=True), o.randn(m, n, dtype=dtype)
        fusedops.linear(x, w, b, "gelu").backward(dy)
        count[f"unaligned {dtype}"] += 1


def run_unaligned_tiles(o: Options, count: Counter[str]) -> None:
    op = torch.ops.fusedops_tuning.gemm_unaligned
    dtypes = (*o.some((torch.bfloat16, torch.float16), 1), torch.float32)
    for tile, dtype, (m, n, k) in o.mine(
        itertools.product(range(UNALIGNED_TILES), dtypes, UNALIGNED)
    ):
        if dtype is torch.float32 and tile >= UNALIGNED_PART_TILES:
            continue
        works = ((1, 0), (1, 1), (1, 2), *([(2, 0), (2, 1)] if k >= 512 else []))
        for a_t, b_t, (splits, epilogue) in itertools.product((False, True), (False, True), works):
            a, b = o.operand(m, k, a_t, dtype, 1), o.operand(n, k, b_t, dtype, 3)
            y = op(a, b.t(), o.randn(n, dtype=dtype), 3, tile, splits, epilogue)
            assert not torch.isnan(y).any(), (tile, dtype)
            count[f"unaligned tile {tile}"] += 1


def run_mlps(o: Options, dtype: torch.dtype, activation: str, m: int, n: int, k: int) -> None:
    """mlp and gated_mlp forward and backward, once owning what forward saved and once not."""
    shapes = ((m, k), (n, k), (n,), (k, n), (k,))
    leaves = x, w1, b1, w2, b2 = [o.randn(*shape, dtype=dtype, grad=True) for shape in shapes]
    y = fusedops.mlp(*leaves, activation, residual=x.detach())
    y.sum().backward(retain_graph=True)
    y.sum().backward()
    y = fusedops.gated_mlp(x, w1, w1.detach(), w2, b1, b1.detach(), b2, activation)
    y.sum().backward(retain_graph=True)
    y.sum().backward()
    fusedops.gated_mlp(x, w1, w1.detach(), w2, activation=activation).sum().backward()
    torch.ops.fusedops.gated_linear(x, w1, w1, b1, None, False)  # what a second backward repeats
    both = torch.cat([w1, w1]).detach().requires_grad_()
    fusedops.gated_mlp(x, both, None, w2, activation=activation).sum().backward()


def run_gated_gradient(o: Options, dtype: torch.dtype) -> None:
    """The gradients of gate and up by themselves: their last wave of tiles is shared and not."""
    op = torch.ops.fusedops.gated_mlp_backward_
    for m, hidden, n in ((2824, 1416, 2056), (2824, 1416, 72)):
        m = m if o.device == "cuda" else m % 100
        dy, down = o.randn(m, n, dtype=dtype), o.randn(n, hidden, dtype=dtype)
        saved = o.randn(2, m, hidden, dtype=dtype)
        silu = activation_code("silu")
        op(dy, saved, down, None, False, silu, False, True, o.clusters, False, False, False)


def tuned_kernels(recorded: list[Any]) -> Iterator[dict[str, Any]]:
    """Every kernel of the recorded products, each as fusedops.tune's choice while it is out."""
    for problem, *device in recorded:
        for choice in fusedops._C.plan_gemm(problem, *device)["candidates"]:
            fusedops._C.add_tuned_plan(problem, choice | {"us": 1.0}, *device)
            yield choice
    fusedops._C.clear_tuned_plans()


def tuned_sm90_kernels(o: Options, recorded: list[Any]) -> Iterator[dict[str, Any]]:
    """Those of sm90 that can run, without clusters where none are wanted."""
    for kernel in tuned_kernels(recorded):
        runs = kernel["rejected"] is None and kernel["family"] == "sm90"
        if runs and (kernel["name"].endswith("1x1") or o.clusters):
            yield kernel


def run_large_gated_mlp(o: Options, dtype: torch.dtype) -> None:
    """Without biases and with a wave of tiles, gated_mlp has kernels of its own."""
    m, hidden, k, n = 2824, 1416, 2056, 2056
    shapes = ((m, k), (hidden, k), (hidden, k), (n, hidden), (2 * hidden, k))
    x, gate, up, down, both = [o.randn(*shape, dtype=dtype, grad=True) for shape in shapes]
    fusedops._C.start_recording()
    fusedops.gated_mlp(x, gate, up, down, activation="silu").sum().backward()
    recorded = fusedops._C.stop_recording()
    fusedops.gated_mlp(x, both, None, down, activation="gelu").sum().backward()

    # The gradient of x in every tile that it has, whole and shared: one product to selection.
    of_x = [r for r in recorded if [r[0][size] for size in "mnk"] == [m, k, 2 * hidden]]
    for kernel in tuned_kernels(of_x):
        if re.search(r"128x(128|192) pingpong 1x1|cooperative", kernel["name"]):
            fusedops.gated_mlp(x, gate, up, down, activation="silu").sum().backward()


def run_preactivation_gradient(o: Options, dtype: torch.dtype, count: Counter[str]) -> None:
    """The gradient inside mlp in every kernel of sm90, its bias gradient and act(z) beside it."""
    m, width, hidden = 1096, 264, 520
    dy, w2 = o.randn(m, width, dtype=dtype), o.randn(width, hidden, dtype=dtype)
    main_grad = o.randn(width, hidden)  # no cluster adds to one
    op = torch.ops.fusedops.mlp_backward_

    def run(activation: str) -> None:
        saved = o.randn(m, hidden, dtype=dtype)
        code = activation_code(activation)
        op(dy, saved, w2, main_grad, True, code, True, True, True, False, False, False)
        count["gradient of the pre-activation"] += 1

    for activation in ("gelu_tanh", "relu"):
        fusedops._C.start_recording()
        run(activation)
        recorded = [r for r in fusedops._C.stop_recording() if r[0]["epilogue"] == "grad"]
        for _ in tuned_sm90_kernels(o, recorded):
            run(activation)


def run_input_gradient(o: Options, dtype: torch.dtype, count: Counter[str]) -> None:
    """The gradient of x with another one added, in every kernel of sm90."""
    dz, weight = o.randn(1096, 264, dtype=dtype), o.randn(264, 328, dtype=dtype)
    added = o.randn(1096, 328, dtype=dtype)
    op = torch.ops.fusedops.linear_input_backward
    fusedops._C.start_recording()
    op(dz, weight, added, False)
    for _ in tuned_sm90_kernels(o, fusedops._C.stop_recording()):
        op(dz, weight, added, False)
        count["gradient of x with one added"] += 1


def run_norm(o: Options, dtype: torch.dtype, count: Counter[str]) -> None:
    """A product with a norm in its epilogue, and with a residual, in every kernel of sm90."""
    x, weight = o.randn(1096, 520, dtype=dtype), o.randn(328, 520, dtype=dtype)
    vectors = [o.rand(328) + 0.5 for _ in range(4)]
    op = torch.ops.fusedops.pointwise_conv  # of as many channels, by a product
    fusedops._C.start_recording()
    op(x, weight, None, *vectors, None, 1e-5, 1)
    for _ in tuned_sm90_kernels(o, fusedops._C.stop_recording()):
        for residual, code in ((None, 4), (o.randn(1096, 328, dtype=dtype), 1)):
            op(x, weight, None, *vectors, residual, 1e-5, code)
            count["product with a norm"] += 1


def run_moments(o: Options, dtype: torch.dtype, count: Counter[str]) -> None:
    """A product and its columns' moments in every kernel of sm90, and joined by batch norm."""
    x, weight = o.randn(8456, 264, dtype=dtype), o.randn(328, 264, dtype=dtype)
    op = torch.ops.fusedops.linear_moments
    fusedops._C.start_recording()
    op(x, weight)
    for _ in tuned_sm90_kernels(o, fusedops._C.stop_recording()):
        y, moments = op(x, weight)
        torch.ops.fusedops.batch_norm_statistics_(y, moments, None, None, None, 0.1)
        count["moments of a product"] += 2


def run_main_grad(o: Options, dtype: torch.dtype, count: Counter[str]) -> None:
    """Weight gradients over and onto what main_grad holds, in every kernel of sm90."""
    dz, x = o.randn(1096, 264, dtype=dtype), o.randn(1096, 328, dtype=dtype)
    main_grad = o.randn(264, 328)
    op = torch.ops.fusedops.linear_wgrad_
    fusedops._C.start_recording()
    op(dz, x, main_grad, False, False)
    for _ in tuned_sm90_kernels(o, fusedops._C.stop_recording()):
        for add in (False, True):
            op(dz, x, main_grad, add, False)
            count["main_grad"] += 1
    assert not torch.isnan(main_grad).any()


def run_kernels(o: Options, count: Counter[str]) -> None:
    """Each kernel in each layout and epilogue it was compiled for; they exist on a GPU only."""
    op = torch.ops.fusedops_tuning.gemm_with_config
    ranked = fusedops._C.select_config(4096, 4096, 4096)[1]
    forward = {c["index"] for c in ranked if c["family"] == "sm90"}
    n = 264
    for config, dtype in o.mine(itertools.product(fusedops._C.gemm_configs(), DTYPES)):
        alone = config["name"].endswith(" 1x1")
        if not re.search(o.kernels, config["name"]) or not (alone or o.clusters):
            continue
        m = 100 if config["family"] == "skinny" else 200
        k = 264 if config["family"] == "cluster" else 136  # a step for each block
        # The blocks of so many tiles share operands in family cluster.
        swizzle = 8 if o.clusters else 1
        shares = config["family"] == "sm90" and dtype.itemsize == 2
        works = ((1, k), (2, k), *([(STREAM_K_TAIL, 1096)] if shares else []))
        for a_t, b_t, epilogue, (splits, k) in itertools.product(
            (False, True), (False, True), range(3), works
        ):
            a = o.randn(k, m, dtype=dtype).t() if a_t else o.randn(m, k, dtype=dtype)
            b = o.randn(n, k, dtype=dtype).t() if b_t else o.randn(k, n, dtype=dtype)
            bias = o.randn(n, dtype=dtype)
            kernel = (FAMILIES[config["family"]], config["index"], splits, swizzle, epilogue)
            try:
                y = op(a, b, bias, 3, *kernel)
            except RuntimeError as error:
                if "no kernel" not in str(error) and "did not run" not in str(error):
                    raise
                continue
            assert not torch.isnan(y).any(), (config["name"], dtype)
            count[config["name"]] += 1
        if shares and config["index"] in forward:
            run_many_tiles(o, config, dtype)
            count[config["name"]] += 1


def run_many_tiles(o: Options, config: dict[str, Any], dtype: torch.dtype) -> None:
    """Six tiles and more for each CTA: what a tile leaves in shared memory the next one takes, and
    CTAs take most tiles as they get to them.
    """
    m, n = 800 * config["tile"][0] - 8, config["tile"][1] - 24
    x, w, bias = (o.randn(*shape, dtype=dtype) for shape in ((m, 136), (n, 136), (n,)))
    kernel = (FAMILIES["sm90"], config["index"], 1, 8, 0)
    y = torch.ops.fusedops_tuning.gemm_with_config(x, w.t(), bias, activation_code("silu"), *kernel)
    assert not torch.isnan(y).any(), (config["name"], dtype)
