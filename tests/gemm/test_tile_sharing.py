"""A last wave of tiles that is shared out: who takes what, and every kernel against float64."""

from __future__ import annotations

import pytest
import torch

import fusedops
from fusedops import _C, reference
from fusedops._tuning.measure import EPILOGUES, FAMILIES
from fusedops._tuning.names import SHARED_WAVE
from util import (
    ACTIVATIONS,
    HALVES,
    assert_accurate,
    assert_replays_and_streams,
    linear_inputs,
    name,
    poisoned,
    torch_linear,
)

SMS = 132
INDICES = {c["index"] for c in _C.select_config(4096, 4096, 4096)[1] if c["family"] == "sm90"}
CONFIGS = [c for c in _C.gemm_configs() if c["family"] == "sm90" and c["index"] in INDICES]
# Clusters of tiles along M and N: few of a wave, most of one, more than one, all but one
GRIDS = ((2, 3), (5, 9), (7, 11), (10, 13), (13, 5))
STEPS = 40  # of K


@pytest.mark.parametrize("slots", [66, 132])
@pytest.mark.parametrize("k_steps", [1, 8, 15, 16, 17, 31, 64, 100, 255, 1000])
def test_parts_cover_k_and_end_before_their_owners(slots, k_steps):
    for tiles in range(slots):
        helpers, parts, steps = _C.share_tiles(tiles, slots, k_steps)
        if helpers == 0:
            continue
        assert helpers <= slots - tiles
        assert parts == 1 or helpers == tiles * parts
        turns = -(-tiles * parts // helpers)
        owned = k_steps - parts * steps
        assert steps >= 8
        assert owned > 0
        assert turns * steps <= max(owned, steps)  # helpers that have one part may end later
        assert max(owned, turns * steps) <= k_steps - 8


@pytest.mark.parametrize("tiles", [1, 33, 66, 96, 100])
def test_most_waves_are_shared(tiles):
    assert _C.share_tiles(tiles, SMS, 256)[0] > 0


def test_whole_waves_and_short_products_are_not_shared():
    assert _C.share_tiles(0, SMS, 256) == (0, 0, 0)
    assert _C.share_tiles(131, SMS, 256) == (0, 0, 0)
    assert _C.share_tiles(66, SMS, 12) == (0, 0, 0)


def test_selection_shares_the_wave_of_a_weight_gradient():
    chosen = _C.select_config(768, 3072, 16384, a_major="mn", b_major="mn")[0]
    assert chosen["splits"] == SHARED_WAVE
    assert "shared last wave" in fusedops._tuning.names.plan_text(chosen)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_other_dtypes_are_not_shared(dtype):
    _, candidates = _C.select_config(768, 3072, 16384, dtype)
    assert all(c["splits"] != SHARED_WAVE for c in candidates)


def launch(config, a, b, bias=None, activation="none", epilogue="fused"):
    op = torch.ops.fusedops_tuning.gemm_with_config
    code, family = ACTIVATIONS.index(activation), FAMILIES["sm90"]
    return op(a, b, bias, code, family, config["index"], SHARED_WAVE, 8, EPILOGUES[epilogue])


def run(*args, **options):
    with poisoned():
        return launch(*args, **options)


def extents(config, grid):
    """M and N of so many clusters of tiles, ragged, on a GPU with SMS multiprocessors."""
    (tile_m, tile_n), (cluster_m, cluster_n) = config["tile"][:2], config["cluster"]
    return grid[0] * cluster_m * tile_m - 40, grid[1] * cluster_n * tile_n - 24


def compiled(config, a, b, epilogue="fused"):
    """Whether there is a kernel of this config for the operands' layout."""
    try:
        run(config, a, b, epilogue=epilogue)
    except RuntimeError as error:
        if "no kernel" not in str(error):
            raise
        return False
    return True


@pytest.mark.gpu
@pytest.mark.sm90
@pytest.mark.parametrize("dtype", HALVES, ids=name)
@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c["name"])
def test_every_config(config, dtype):
    for grid in GRIDS:
        m, n = extents(config, grid)
        x, weight, bias, _ = linear_inputs(m, n, STEPS * 64 - 8, dtype, "cuda")
        exact = reference.linear(x.double(), weight.double(), bias.double(), "silu")
        torchs = torch_linear(x, weight, bias, "silu")
        for epilogue in ("fused", "preact"):
            if not compiled(config, x, weight.t(), epilogue):
                continue
            y = run(config, x, weight.t(), bias, "silu", epilogue)
            assert_accurate(y, torchs, exact, f"{config['name']} {grid} {epilogue}")


@pytest.mark.gpu
@pytest.mark.sm90
@pytest.mark.parametrize("transposed", ["b", "ab"])
@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c["name"])
def test_operands_that_are_not_k_contiguous(config, transposed):
    m, n = extents(config, (7, 11))
    x, weight, _, _ = linear_inputs(m, n, STEPS * 64, torch.bfloat16, "cuda")
    a = x.t().contiguous().t() if transposed == "ab" else x
    b = weight.t().contiguous()
    exact = reference.linear(x.double(), weight.double(), None, "none")
    torchs = torch_linear(x, weight, None, "none")
    for epilogue in ("fused", "accumulator"):
        if compiled(config, a, b, epilogue):
            y = run(config, a, b, epilogue=epilogue)
            assert_accurate(y, torchs, exact, f"{config['name']} {epilogue}")


@pytest.mark.gpu
@pytest.mark.sm90
@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c["name"])
def test_repeats_are_bitwise_equal(config):
    m, n = extents(config, (7, 11))
    x, weight, bias, _ = linear_inputs(m, n, STEPS * 64, torch.bfloat16, "cuda")
    y = run(config, x, weight.t(), bias, "gelu")
    for _ in range(20):
        assert torch.equal(y, run(config, x, weight.t(), bias, "gelu"))


@pytest.mark.gpu
@pytest.mark.sm90
def test_graphs_replay_and_streams_run_beside_each_other():
    config = CONFIGS[5]
    m, n = extents(config, (7, 11))
    x, weight, bias, _ = linear_inputs(m, n, STEPS * 64, torch.bfloat16, "cuda")
    y = run(config, x, weight.t(), bias)
    assert_replays_and_streams(lambda: launch(config, x, weight.t(), bias), y)


def share_all(call):
    """Has every product of a call share its last wave; the epilogues of those that can."""
    _C.start_recording()
    call()
    epilogues = set()
    for problem, capability, sm_count in _C.stop_recording():
        candidates = _C.plan_gemm(problem, capability, sm_count)["candidates"]
        shared = [c for c in candidates if c["splits"] == SHARED_WAVE and c["rejected"] is None]
        if shared:
            best = min(shared, key=lambda c: c["expected_us"])
            assert _C.add_tuned_plan(problem, best | {"us": 1.0}, capability, sm_count)
            epilogues.add(problem["epilogue"])
    return epilogues


@pytest.mark.gpu
@pytest.mark.sm90
@pytest.mark.usefixtures("forget_plans")
@pytest.mark.parametrize("dtype", HALVES, ids=name)
def test_epilogues_of_a_block(dtype):
    tokens, width, hidden = 2040, 2056, 2568
    x = torch.randn(tokens, width, device="cuda", dtype=dtype)
    w1 = torch.randn(hidden, width, device="cuda", dtype=dtype).mul_(width**-0.5)
    w2 = torch.randn(width, hidden, device="cuda", dtype=dtype).mul_(hidden**-0.5)
    b1, b2 = (torch.randn(n, device="cuda", dtype=dtype) for n in (hidden, width))
    residual, dy = torch.randn_like(x), torch.randn_like(x)
    leaves = [t.requires_grad_() for t in (x, w1, b1, w2, b2, residual)]

    def step(function, dtype):
        inputs = [t.detach().to(dtype).requires_grad_() for t in leaves]
        y = function(*inputs[:5], "gelu_tanh", residual=inputs[5])
        return (y, *torch.autograd.grad(y, inputs, dy.to(dtype)))

    epilogues = share_all(lambda: step(fusedops.mlp, dtype))
    assert {"preact", "grad", "residual", "fused"} <= epilogues
    exact = step(reference.mlp, torch.float64)
    torchs = step(reference.mlp, dtype)
    shared = step(fusedops.mlp, dtype)
    for got, theirs, right in zip(shared, torchs, exact, strict=True):
        assert_accurate(got, theirs, right)
    for got, again in zip(shared, step(fusedops.mlp, dtype), strict=True):
        assert torch.equal(got, again)


@pytest.mark.gpu
@pytest.mark.sm90
@pytest.mark.parametrize("dtype", HALVES, ids=name)
@pytest.mark.parametrize(
    ("tokens", "width", "hidden"),
    [  # tiles of the gradient of gate and up:
        (2552, 2048, 2816),  # 10 x 22, of which a helper takes parts of two
        (4000, 3080, 1096),  # 16 x 9, several helpers for one
    ],
)
def test_gated_mlp_of_more_than_a_wave(tokens, width, hidden, dtype):
    x, dy = (torch.randn(tokens, width, device="cuda", dtype=dtype) for _ in range(2))
    gate, up = (
        torch.randn(hidden, width, device="cuda", dtype=dtype).mul_(width**-0.5) for _ in range(2)
    )
    down = torch.randn(width, hidden, device="cuda", dtype=dtype).mul_(hidden**-0.5)

    def step(function, dtype):
        inputs = [t.detach().to(dtype).requires_grad_() for t in (x, gate, up, down)]
        y = function(*inputs)
        return (y, *torch.autograd.grad(y, inputs, dy.to(dtype)))

    exact, torchs = (step(reference.gated_mlp, d) for d in (torch.float64, dtype))
    ours = step(fusedops.gated_mlp, dtype)
    for got, theirs, right in zip(ours, torchs, exact, strict=True):
        assert_accurate(got, theirs, right)
    for _ in range(5):
        for got, again in zip(ours, step(fusedops.gated_mlp, dtype), strict=True):
            assert torch.equal(got, again)


@pytest.mark.gpu
def test_families_that_cannot_share_refuse():
    x, weight, _, _ = linear_inputs(256, 256, 256, torch.bfloat16, "cuda")
    op = torch.ops.fusedops_tuning.gemm_with_config
    with pytest.raises(RuntimeError, match="shared last wave"):
        op(x, weight.t(), None, 0, FAMILIES["cluster"], 0, SHARED_WAVE, 1, 0)
