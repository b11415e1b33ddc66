"""Kernel selection: a host function, so its choices are pinned here without a GPU."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fusedops import _C
from fusedops._core.activation import CODES
from fusedops._tuning.names import DTYPES, EPILOGUES, FAMILIES, plan_text

TN = {"a_major": "k", "b_major": "k"}  # x @ weight.T
NN = {"a_major": "k", "b_major": "mn"}  # dz @ weight
NT = {"a_major": "mn", "b_major": "mn"}  # dz.T @ x


def choose(m, n, k, **options):
    return _C.select_config(m, n, k, **options)[0]


# The benchmark's shapes. A change here wants a new sweep, or one under load for long products.
PINNED = {
    (4096, 4096, 4096, "TN"): "sm90 128x256 cooperative 2x1, raster width 16",
    (8192, 8192, 8192, "TN"): "sm90 128x192 pingpong 2x1, stream-K tail, raster width 16",
    (8192, 4096, 1024, "TN"): "sm90 128x128 pingpong 1x1",
    (8192, 1024, 4096, "TN"): "sm90 128x256 cooperative 1x1",
    (16384, 3072, 768, "TN"): "sm90 128x192 pingpong 1x1",
    (16384, 768, 3072, "TN"): "sm90 128x192 pingpong 1x1",
    (2048, 2048, 2048, "TN"): "sm90 128x128 pingpong 1x1",
    (1024, 1024, 1024, "TN"): "cluster 128x64 swapped 1x1",
    (512, 512, 512, "TN"): "cluster 72x64 swapped 1x1",
    (65536, 256, 256, "TN"): "sm90 128x128 pingpong 1x1, raster width 32",
    (131072, 128, 128, "TN"): "sm90 256x128 cooperative 1x1, raster width 32",
    (1048576, 64, 64, "TN"): "sm90 128x64 pingpong 1x1, raster width 32",
    (32768, 512, 512, "TN"): "sm90 128x128 pingpong 1x1, raster width 32",
    (8192, 11008, 4096, "TN"): "sm90 128x176 pingpong 1x1, stream-K tail",
    (8192, 4096, 11008, "TN"): "sm90 128x256 cooperative 2x1, stream-K tail, raster width 16",
    (4096, 28672, 4096, "TN"): "sm90 128x192 pingpong 2x1, stream-K tail, raster width 16",
    (3000, 1000, 520, "TN"): "cluster 216x128 swapped 1x1, clusters of 4 tiles",
    (6144, 4608, 1536, "TN"): "sm90 128x192 pingpong 2x1, raster width 16",
    (2048, 5120, 1280, "TN"): "sm90 128x160 pingpong 1x1",
    (12544, 768, 768, "TN"): "sm90 128x192 pingpong 1x1",
    (12544, 3072, 768, "TN"): "sm90 128x192 pingpong 1x1",
    (1024, 4096, 4096, "TN"): "sm90 128x256 cooperative 1x1",
    (512, 4096, 4096, "TN"): "cluster 128x128 swapped 1x1",
    (256, 4096, 4096, "TN"): "cluster 128x128 split-k 1x2",
    (128, 4096, 4096, "TN"): "skinny 128x64 deep 1x2",
    (64, 4096, 4096, "TN"): "skinny 128x64 deep 1x2",
    (32, 4096, 4096, "TN"): "skinny 128x64 deep 1x2",
    (16, 4096, 4096, "TN"): "skinny 128x64 deep 1x2",
    (8, 4096, 4096, "TN"): "skinny 128x64 deep 1x2",
    (1, 4096, 4096, "TN"): "skinny 128x64 deep 1x2",
    (128, 11008, 4096, "TN"): "skinny 128x192 deep 1x2",
    (64, 11008, 4096, "TN"): "skinny 128x192 deep 1x2",
    (16, 11008, 4096, "TN"): "skinny 128x64 half 1x1",
    (1, 11008, 4096, "TN"): "skinny 128x64 half 1x1",
    (128, 4096, 11008, "TN"): "skinny 128x64 deep 1x2",
    (1, 4096, 11008, "TN"): "skinny 128x64 deep 1x2",
    (128, 8192, 1024, "TN"): "skinny 128x64 deep 1x1",
    (64, 8192, 1024, "TN"): "skinny 128x64 deep 1x1",
    (1, 8192, 1024, "TN"): "skinny 128x64 deep 1x1",
    (8192, 1600, 6400, "TN"): "sm90 128x160 pingpong 2x1, stream-K tail, raster width 16",
    (2048, 1280, 5120, "TN"): "cluster 160x128 swapped 1x1",
    (256, 11008, 4096, "TN"): "sm90 128x176 pingpong 1x1",
    (256, 4096, 11008, "TN"): "cluster 128x128 split-k 1x2",
    (197, 768, 3072, "TN"): "cluster 64x128 split-k 1x4",
    (197, 3072, 768, "TN"): "cluster 104x64 swapped 1x1",
    (577, 1024, 4096, "TN"): "cluster 104x64 swapped 1x1, clusters of 8 tiles",
    (1024, 768, 3072, "TN"): "cluster 104x64 swapped 1x1, clusters of 8 tiles",
    (1024, 1024, 4096, "TN"): "cluster 128x128 split-k 1x2",
    (2048, 800, 3200, "TN"): "cluster 208x64 swapped 1x1",
    (2000, 640, 2560, "TN"): "cluster 80x128 swapped 1x1",
    (640, 4096, 1024, "TN"): "cluster 160x128 swapped 1x1",
    # These are shapes of models that no suite has.
    (1576, 768, 3072, "TN"): "cluster 72x128 swapped 1x1",
    (9232, 1152, 4304, "TN"): "sm90 128x192 pingpong 1x1, stream-K tail",
    (12800, 512, 512, "TN"): "sm90 128x128 pingpong 1x1, raster width 32",
    # Epilogues that outlast their mainloops, and rows that cut lines and sectors of L2 as well.
    (12104, 688, 280, "TN"): "sm90 128x192 pingpong 2x1, raster width 32",
    (23856, 1920, 280, "TN"): "sm90 128x192 pingpong 2x1, raster width 32",
    (4448, 5808, 296, "TN"): "sm90 128x192 pingpong 2x1, raster width 16",
    (19072, 5392, 168, "TN"): "sm90 128x192 pingpong 2x1, raster width 32",
    # Rows that cut the sectors of L2: blocks load them once for several tiles.
    (904, 904, 3600, "TN"): "cluster 152x64 swapped 1x1, clusters of 8 tiles",
    (4288, 512, 3496, "TN"): "cluster 144x128 swapped 1x1, clusters of 8 tiles",
    (328, 5920, 5784, "TN"): "cluster 168x128 swapped 1x1, clusters of 8 tiles",
    (8192, 1024, 4096, "NN"): "sm90 128x256 cooperative 2x1, raster width 16",
    (4096, 1024, 8192, "NT"): "sm90 128x256 cooperative 2x1, raster width 16",
    (8192, 4096, 1024, "NN"): "sm90 128x192 pingpong 1x1",
    (1024, 4096, 8192, "NT"): "sm90 128x256 cooperative 2x1, raster width 16",
    (8192, 4096, 4096, "NN"): "sm90 128x192 pingpong 2x1, stream-K tail, raster width 16",
    (4096, 4096, 8192, "NT"): "sm90 128x256 cooperative 2x1, raster width 16",
    (16384, 768, 3072, "NN"): "sm90 128x192 pingpong 1x1",
    (3072, 768, 16384, "NT"): "sm90 128x192 pingpong 1x1, stream-K tail",
    (1500, 1024, 4096, "NN"): "cluster 192x128 split-k 1x2",
    (65536, 256, 256, "NN"): "sm90 128x128 pingpong 1x1, raster width 32",
    (256, 256, 65536, "NT"): "sm90 64x64 pingpong 1x1, 8 splits",
    (2048, 2048, 2048, "NN"): "sm90 128x128 pingpong 1x1",
    (2048, 2048, 2048, "NT"): "sm90 128x128 pingpong 1x1",
    (1048576, 64, 64, "NN"): "sm90 128x64 pingpong 1x1, raster width 32",
    (64, 64, 1048576, "NT"): "sm90 64x64 pingpong 1x1, 48 splits",
}


# Weight gradients into main_grad.
PINNED_MAIN_GRAD = {
    (4096, 1024, 8192): "sm90 128x256 cooperative 2x1, raster width 16",
    (1024, 4096, 8192): "sm90 128x256 cooperative 2x1, raster width 16",
    (4096, 4096, 8192): "sm90 128x256 cooperative 2x1, raster width 16",
    (3072, 768, 16384): "sm90 128x192 pingpong 1x1, stream-K tail",
    (768, 3072, 16384): "sm90 128x192 pingpong 1x1, stream-K tail",
    (8192, 2048, 8192): "sm90 128x256 cooperative 2x1, raster width 16",
    (14336, 4096, 8192): "sm90 128x256 cooperative 2x1, stream-K tail, raster width 16",
    (4096, 14336, 8192): "sm90 128x192 pingpong 2x1, stream-K tail, raster width 16",
}


# Gradients of the pre-activation, of gelu_tanh: long epilogues, which pingpong hides.
PINNED_GRAD = {
    (8192, 3072, 768): "sm90 128x128 pingpong 1x1",
    (100352, 768, 192): "sm90 128x128 pingpong 1x1, raster width 32",
    (4096, 10240, 2560): "sm90 128x128 pingpong 2x1, stream-K tail, raster width 16",
    (8192, 16384, 4096): "sm90 128x128 pingpong 2x1, stream-K tail, raster width 16",
    (512, 2048, 512): "sm90 64x64 pingpong 1x1",
}


# These run with gelu_tanh, for which relu's kernel is not taken.
PINNED_COSTLY = {
    (8192, 4096, 1024): "sm90 128x160 pingpong 1x1",
    (16384, 768, 768): "sm90 128x128 pingpong 1x1",
    (524288, 128, 64): "sm90 128x64 pingpong 1x1, raster width 32",
}


@pytest.mark.parametrize(("m", "n", "k", "layout"), list(PINNED))
def test_choice_on_h200_is_pinned(m, n, k, layout):
    chosen = choose(m, n, k, **{"TN": TN, "NN": NN, "NT": NT}[layout])
    assert plan_text(chosen) == PINNED[m, n, k, layout]


@pytest.mark.parametrize("shape", list(PINNED_COSTLY))
def test_choice_for_a_costly_activation(shape):
    assert plan_text(choose(*shape, activation=CODES["gelu_tanh"])) == PINNED_COSTLY[shape]
    assert plan_text(choose(*shape)) != PINNED_COSTLY[shape]


@pytest.mark.parametrize("shape", list(PINNED_MAIN_GRAD))
def test_choice_for_main_grad(shape):
    assert plan_text(choose(*shape, epilogue="accumulator", **NT)) == PINNED_MAIN_GRAD[shape]


@pytest.mark.parametrize("shape", list(PINNED_GRAD))
def test_choice_for_gradients_of_the_preactivation(shape):
    chosen = choose(*shape, epilogue="grad", activation=CODES["gelu_tanh"], **NN)
    assert plan_text(chosen) == PINNED_GRAD[shape]


@pytest.mark.parametrize(
    ("shape", "tiles", "waves"), [((768, 192, 100352), 6, 1), ((384, 1536, 50176), 24, 2)]
)
def test_slices_of_k_fill_waves(shape, tiles, waves):
    chosen = choose(*shape, **NT)
    assert chosen["name"] == "sm90 128x192 pingpong 1x1"
    assert chosen["splits"] == waves * 132 // tiles


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precisions_choose_alike(dtype):
    assert choose(8192, 4096, 1024, dtype=dtype)["family"] == "sm90"


def test_what_tma_refuses_goes_to_the_mma_sync_family():
    for m, n, k, options in [
        (1000, 1001, 512, {}),  # rows of the output are not 16-byte multiples
        (1000, 1024, 512, {"capability": 80, "sm_count": 108}),
        (1000, 1024, 512, {"dtype": "float64"}),
    ]:
        chosen, candidates = _C.select_config(m, n, k, **options)
        assert chosen["family"] == "sm80"
        refused = [c for c in candidates if c["family"] == "sm90"]
        assert all(c["rejected"] for c in refused)


def refusals(family, *shape, **options):
    candidates = _C.select_config(*shape, **options)[1]
    return {c["rejected"] for c in candidates if c["family"] == family}


def test_few_rows_of_any_width_take_the_skinny_kernels():
    for n in (64, 1001, 4096, 32001):
        for dtype in ("float16", "bfloat16"):
            assert choose(8, n, 4096, dtype=dtype)["family"] == "skinny"
    assert choose(8, 4096, 4096, epilogue="preact")["family"] == "skinny"


def test_what_the_skinny_kernels_refuse():
    for reason, shape, options in [
        ("more than 128 rows of A", (129, 4096, 4096), {}),
        ("not a Hopper GPU", (8, 4096, 4096), {"capability": 80, "sm_count": 108}),
        ("neither fp16 nor bf16", (8, 4096, 4096), {"dtype": "float32", "math": "tf32"}),
        ("an operand is not K-contiguous", (8, 4096, 4096), NN),
        ("no kernel with this epilogue", (8, 4096, 4096), {"epilogue": "accumulator"}),
        ("an operand or its rows are not 16-byte aligned", (8, 4096, 4096), {"aligned": False}),
        ("an operand or its rows are not 16-byte aligned", (8, 4096, 4092), {}),
    ]:
        assert refusals("skinny", *shape, **options) == {reason}, reason


def test_a_skinny_cluster_shares_at_least_a_step_each():
    assert refusals("skinny", 8, 64, 64) == {None, "fewer steps of K than blocks to share them"}
    assert choose(8, 64, 64)["name"].endswith("1x1")


def test_what_the_clusters_that_share_k_refuse():
    layout = "no kernel of this tile with this layout and epilogue"
    for reason, shape, options in [
        ("not a Hopper GPU", (577, 1024, 4096), {"capability": 80, "sm_count": 108}),
        ("neither fp16 nor bf16", (577, 1024, 4096), {"dtype": "float32", "math": "tf32"}),
        ("more tiles than clusters that run at a time", (8192, 8192, 4096), {}),
        (layout, (577, 1024, 4096), {"epilogue": "accumulator"}),
    ]:
        assert refusals("cluster", *shape, **options) == {reason}, reason
    assert refusals("cluster", 128, 512, 4096, **NN) == {None, layout}
    # Kernels of a single block share nothing.
    fewer = "fewer steps of K than blocks to share them"
    assert refusals("cluster", 64, 64, 64) == {None, fewer}


def test_blocks_share_operands_where_each_has_a_tile():
    _, candidates = _C.select_config(904, 904, 3600)
    tiles: dict[str, set[int]] = {}
    for c in candidates:
        if c["family"] == "cluster":
            tiles.setdefault(c["name"], set()).add(c["swizzle"])
    assert {frozenset(t) for name, t in tiles.items() if name.endswith("1x1")} == {
        frozenset({1, 4, 8})
    }
    assert {frozenset(t) for name, t in tiles.items() if not name.endswith("1x1")} == {
        frozenset({1})
    }


def test_families_never_compete():
    _, candidates = _C.select_config(4096, 4096, 4096)
    assert all(c["rejected"] for c in candidates if c["family"] == "sm80")


def test_few_output_tiles_split_k():
    assert choose(64, 64, 1 << 20, **NT)["splits"] >= 32
    assert choose(8192, 8192, 512)["splits"] == 1


def test_fp64_and_preactivations_never_round_partial_sums():
    assert choose(64, 64, 1 << 20, dtype="float64", **NT)["splits"] == 1


def test_tf32_and_fp32_take_different_kernels():
    assert choose(4096, 4096, 4096, dtype="float32", math="tf32")["family"] == "sm90"
    assert choose(512, 512, 512, dtype="float32", math="fp32")["family"] == "sm80"


def test_expected_times_of_mma_sync_are_not_below_what_hardware_can_do():
    def us(*shape, **options):
        return choose(*shape, **options)["expected_us"]

    flops = 2 * 4096**3
    assert us(4096, 4096, 4096, dtype="float64") > flops / 67e6
    a100 = {"capability": 80, "sm_count": 108}
    assert us(4096, 4096, 4096, dtype="float64", **a100) > flops / 19.5e6
    assert us(4096, 4096, 4096, dtype="float32", math="tf32", **a100) > flops / 156e6
    m, n, k = 1 << 22, 64, 64
    assert us(m, n, k, **a100) > 2 * (m * k + n * k + m * n) / 2.04e6


def test_every_large_shape_finds_a_kernel():
    for dtype, math in [("bfloat16", "native"), ("float32", "tf32"), ("float32", "fp32")]:
        for layout in (TN, NN, NT, {"a_major": "mn", "b_major": "k"}):
            for m, n, k in [(8, 8, 8), (1 << 20, 8, 8), (8, 1 << 20, 8), (8, 8, 1 << 20)]:
                assert choose(m, n, k, dtype=dtype, math=math, **layout) is not None


def test_an_unknown_dtype_is_refused():
    with pytest.raises(ValueError, match="dtype must be one of"):
        choose(8, 8, 8, dtype="int8")


def measured_rows():
    """(m, n, k, layout, epilogue, costly, tile, cluster and splits) of the compiled table."""
    header = Path(__file__).parents[2] / "csrc/cutlass/select/sm90_measured.h"
    row = r"\{(\d+), (\d+), (\d+), k(K|MN), k(K|MN), k(\w+), (true|false), k\w+, ([\d, ]+)\}"
    for m, n, k, a, b, epilogue, costly, rest in re.findall(row, header.read_text()):
        numbers = [int(word) for word in rest.split(", ")]
        shape = int(m), int(n), int(k)
        yield *shape, a.lower(), b.lower(), epilogue.lower(), costly == "true", numbers


def test_every_measured_choice_can_be_taken():
    rows = list(measured_rows())
    assert len(rows) > 100
    for m, n, k, a, b, epilogue, costly, (*shape, splits, _) in rows:
        activation = CODES["gelu_tanh" if costly else None]
        chosen = choose(m, n, k, a_major=a, b_major=b, epilogue=epilogue, activation=activation)
        _, _, tile = chosen["name"].partition(" ")
        assert [int(word) for word in re.findall(r"\d+", tile)] == shape, (m, n, k)
        assert chosen["splits"] == splits


@pytest.mark.parametrize(
    ("name", "enum", "header"),
    [
        ("dtype", "DType", "csrc/common/dtype.h"),
        ("epilogue", "Epilogue", "csrc/cutlass/problem.h"),
        ("math", "MathMode", "csrc/cutlass/problem.h"),
        ("major", "Major", "csrc/cutlass/problem.h"),
        ("family", "Family", "csrc/cutlass/configs/config.h"),
        ("chosen_by", "ChosenBy", "csrc/cutlass/configs/plan.h"),
    ],
)
def test_enums_have_the_names_of_their_enumerators(name, enum, header):
    text = (Path(__file__).parents[2] / header).read_text()
    values = re.search(rf"enum class {enum} : \w+ {{([^}}]*)}}", text)[1]
    enumerators = [value.strip() for value in values.split(",")]
    assert _C.enums()[name] == [value.removeprefix("k").lower() for value in enumerators]


def test_codes_are_the_positions_of_names():
    assert [*FAMILIES] == _C.enums()["family"]
    assert [*EPILOGUES.values()] == list(range(len(_C.enums()["epilogue"])))
    assert [str(dtype) for dtype in DTYPES] == [f"torch.{name}" for name in _C.enums()["dtype"]]
