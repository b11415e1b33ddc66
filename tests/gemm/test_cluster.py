"""Kernels of one wave (family cluster): ragged extents, layouts, outputs, against float64."""

from __future__ import annotations

import pytest
import torch

import fusedops
from fusedops import reference
from fusedops._tuning.names import EPILOGUES, FAMILIES
from util import ACTIVATIONS, HALVES, assert_accurate, linear_inputs, name, poisoned, torch_linear

pytestmark = [pytest.mark.gpu, pytest.mark.sm90]

CONFIGS = [c for c in fusedops._C.gemm_configs() if c["family"] == "cluster"]
SWAPPED = [c for c in CONFIGS if "swapped" in c["name"]]
# Each kernel comes with the tiles of a cluster, whose blocks share operands if each has its own.
KERNELS = [
    pytest.param(c, tiles, id=f"{c['name']}, {tiles}")
    for c in CONFIGS
    for tiles in ((1, 4, 8) if c["cluster"] == (1, 1) else (1,))
]
# M, N, K: one tile and several, ragged in each direction, steps of K that blocks share unevenly,
# the fewest steps, a last block without columns, more steps than stages for a single block, more
# clusters than run at a time
SHAPES = (
    *((129, 264, 520), (577, 200, 2056), (256, 384, 256), (1, 8, 200), (300, 1000, 4096)),
    (2056, 1544, 264),
)


def shapes_of(config, shapes):
    """Those with a step of K for each block."""
    return [s for s in shapes if -(-s[2] // 64) >= config["cluster"][1]]


def run(config, a, b, bias=None, activation="none", epilogue="fused", tiles=1):
    op = torch.ops.fusedops_tuning.gemm_with_config
    code, family = ACTIVATIONS.index(activation), FAMILIES["cluster"]
    with poisoned():
        return op(a, b, bias, code, family, config["index"], 1, tiles, EPILOGUES[epilogue])


@pytest.mark.parametrize("dtype", HALVES, ids=name)
@pytest.mark.parametrize(("config", "tiles"), KERNELS)
def test_every_config_fused_and_preact(config, tiles, dtype):
    for m, n, k in shapes_of(config, SHAPES):
        x, weight, bias, _ = linear_inputs(m, n, k, dtype, "cuda")
        exact = reference.linear(x.double(), weight.double(), bias.double(), "silu")
        torchs = torch_linear(x, weight, bias, "silu")
        for epilogue in ("fused", "preact"):
            y = run(config, x, weight.t(), bias, "silu", epilogue, tiles)
            assert_accurate(y, torchs, exact, config["name"])


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", HALVES, ids=name)
def test_activations_with_and_without_bias(dtype, activation):
    x, weight, bias, _ = linear_inputs(200, 136, 1032, dtype, "cuda")
    for b in (bias, None):
        b64 = None if b is None else b.double()
        exact = reference.linear(x.double(), weight.double(), b64, activation)
        for config in (CONFIGS[0], SWAPPED[-1]):  # rows of WGMMA are rows of y, and columns
            y = run(config, x, weight.t(), b, activation)
            assert_accurate(y, torch_linear(x, weight, b, activation), exact, config["name"])


@pytest.mark.parametrize("dtype", HALVES, ids=name)
@pytest.mark.parametrize("transposed", ["b", "ab"])
@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c["name"])
def test_operands_that_are_not_k_contiguous(config, transposed, dtype):
    split = config["name"].split()[2] == "split-k"
    exists = split and config["tile"][1] % 64 == 0
    shapes = ((136, 264, 520), (584, 200, 2050), (256, 384, 256), (80, 480, 12544))
    for m, n, k in shapes_of(config, shapes):
        x, weight, _, _ = linear_inputs(m, n, k, dtype, "cuda")
        a = x.t().contiguous().t() if transposed == "ab" else x[:, : k // 8 * 8]
        weight = weight[:, : a.shape[1]]
        if not exists:
            with pytest.raises(RuntimeError, match="no kernel"):
                run(config, a, weight.t().contiguous())
            continue
        y = run(config, a, weight.t().contiguous())
        exact = reference.linear(a.double(), weight.double(), None, "none")
        assert_accurate(y, torch_linear(a, weight, None, "none"), exact, config["name"])


def test_selected_preactivations_and_repeatable():
    x, weight, bias, _ = linear_inputs(577, 1024, 4096, torch.bfloat16, "cuda")
    assert fusedops._C.select_config(577, 1024, 4096)[0]["family"] == "cluster"
    assert fusedops._C.select_config(577, 1024, 4096, epilogue="preact")[0]["family"] == "cluster"
    op, code = torch.ops.fusedops.linear_preact, ACTIVATIONS.index("gelu")
    y, z = op(x, weight, bias, code, False)
    for got, activation in ((y, "gelu"), (z, "none")):
        exact = reference.linear(x.double(), weight.double(), bias.double(), activation)
        assert_accurate(got, torch_linear(x, weight, bias, activation), exact)
    for _ in range(20):
        again = op(x, weight, bias, code, False)
        assert torch.equal(y, again[0])
        assert torch.equal(z, again[1])


def test_clusters_that_share_operands_are_repeatable():
    # Rows that cut cache lines: loading them for several blocks is what pays.
    x, weight, bias, _ = linear_inputs(904, 904, 3600, torch.bfloat16, "cuda")
    chosen = fusedops._C.select_config(904, 904, 3600)[0]
    assert (chosen["family"], chosen["swizzle"]) == ("cluster", 8)
    y = fusedops.linear(x, weight, bias, "relu")
    exact = reference.linear(x.double(), weight.double(), bias.double(), "relu")
    assert_accurate(y, torch_linear(x, weight, bias, "relu"), exact)
    for _ in range(20):
        assert torch.equal(y, fusedops.linear(x, weight, bias, "relu"))


def test_fewer_steps_of_k_than_blocks_are_refused():
    x, weight, bias, _ = linear_inputs(64, 64, 64, torch.bfloat16, "cuda")
    with pytest.raises(RuntimeError, match="fewer steps of K than blocks"):
        run(CONFIGS[0], x, weight.t(), bias)


@pytest.mark.parametrize(("config", "tiles"), [(CONFIGS[0], 1), (SWAPPED[-1], 8)], ids=str)
def test_the_predecessor_may_write_any_operand(config, tiles):
    weight = torch.zeros(1024, 1024, device="cuda", dtype=torch.bfloat16)
    x = torch.ones(256, 1024, device="cuda", dtype=torch.bfloat16)
    for step in range(1, 12):
        weight.fill_(step)
        y = run(config, x, weight.t(), tiles=tiles)
        z = run(config, y / 1024, weight.t(), tiles=tiles)
        assert (y == 1024 * step).all()
        assert (z == 1024 * step * step).all()
