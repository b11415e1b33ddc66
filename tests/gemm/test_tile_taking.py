"""CTAs that take tiles as they get to them: which products, and every kernel against the same
kernel over parts of the rows, where each CTA has its own tiles."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import fusedops
from fusedops import _C
from fusedops._core.activation import CODES
from fusedops._tuning.measure import EPILOGUES, FAMILIES
from util import ACTIVATIONS, HALVES, assert_replays_and_streams, linear_inputs, name, poisoned

SMS = 132
ROWS = 400  # clusters of tiles below each other: more than six for each pair of SMs
K = 72


def takes(m, n, k, kernel, **options):
    """Whether this sm90 kernel takes the tiles of a product; kernel as `128x128 pingpong 1x1`."""
    _, candidates = _C.select_config(m, n, k, **options)
    return next(c for c in candidates if c["name"] == f"sm90 {kernel}")["takes_tiles"]


NAMES = {c["name"] for c in _C.select_config(4096, 4096, 4096)[1]}
CONFIGS = [
    c
    for c in _C.gemm_configs()
    if c["family"] == "sm90" and c["tile"][0] >= 128 and c["name"] in NAMES
]


@pytest.mark.parametrize(
    ("product", "kernel"),
    [
        ((1048576, 64, 64), "128x64 pingpong 1x1"),
        ((262144, 256, 128), "128x128 pingpong 1x1"),
        ((401408, 512, 128), "192x128 pingpong 2x1"),
        ((474112, 448, 64), "128x128 pingpong 1x1"),
    ],
)
def test_products_that_wait_for_memory(product, kernel):
    assert takes(*product, kernel)


@pytest.mark.parametrize(
    ("product", "kernel"),
    [
        ((8192, 8192, 8192), "128x128 pingpong 1x1"),  # bound by MMAs
        ((50176, 768, 192), "128x128 pingpong 1x1"),
        ((401408, 512, 128), "128x64 pingpong 1x1"),  # many tiles beside each other
        ((1048576, 64, 64), "64x64 pingpong 1x1"),
        ((16384, 64, 64), "128x64 pingpong 1x1"),  # one wave
    ],
)
def test_other_products(product, kernel):
    assert not takes(*product, kernel)


def test_costly_activations_take_while_outputs_are_few():
    gelu = CODES["gelu_tanh"]
    assert takes(1048576, 64, 64, "128x64 pingpong 1x1", activation=gelu)
    assert takes(401408, 512, 128, "128x128 pingpong 1x1", activation=CODES["relu"])
    assert not takes(401408, 512, 128, "128x128 pingpong 1x1", activation=gelu)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_other_dtypes_do_not_take(dtype):
    _, candidates = _C.select_config(
        1048576, 64, 64, dtype, math="fp32" if "32" in dtype else "native"
    )
    assert not any(c["takes_tiles"] for c in candidates)


def launch(config, x: Tensor, weight: Tensor, bias: Tensor, activation="relu", epilogue="fused"):
    op = torch.ops.fusedops_tuning.gemm_with_config
    kernel = (FAMILIES["sm90"], config["index"], 1, 8, EPILOGUES[epilogue])
    return op(x, weight.t(), bias, ACTIVATIONS.index(activation), *kernel)


def inputs(config, dtype=torch.bfloat16):
    m = ROWS * config["cluster"][0] * config["tile"][0]
    if config["cluster"][0] == 1:
        m *= 2
    m, n = m - 40, config["tile"][1] * config["cluster"][1] - 24
    assert takes(m, n, K, config["name"][5:])
    return linear_inputs(m, n, K, dtype, "cuda")[:3]


def in_parts(config, x: Tensor, weight: Tensor, bias: Tensor, *args) -> Tensor:
    """The same, a wave of whole tiles at a time."""
    rows = 64 * config["cluster"][0] * config["tile"][0]
    parts = [launch(config, part, weight, bias, *args) for part in x.split(rows)]
    return torch.cat(parts)


@pytest.mark.gpu
@pytest.mark.sm90
@pytest.mark.parametrize("dtype", HALVES, ids=name)
@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c["name"])
def test_every_config(config, dtype):
    operands = inputs(config, dtype)
    for activation in ("relu", "none"):
        with poisoned():
            y = launch(config, *operands, activation)
        assert torch.equal(y, in_parts(config, *operands, activation))
        for _ in range(5):
            assert torch.equal(y, launch(config, *operands, activation))


@pytest.mark.gpu
@pytest.mark.sm90
@pytest.mark.parametrize("config", CONFIGS[:8:2], ids=lambda c: c["name"])
def test_graphs_replay_and_streams_run_beside_each_other(config):
    operands = inputs(config)
    y = in_parts(config, *operands)
    assert_replays_and_streams(lambda: launch(config, *operands), y)


@pytest.mark.gpu
@pytest.mark.sm90
def test_the_memory_of_a_counter_is_anything():
    """Also what an earlier launch, cut off, would have left there."""
    config = CONFIGS[0]
    operands = inputs(config)
    y = in_parts(config, *operands)
    for value in (0, 1, 255):
        torch.cuda.synchronize()
        filled = torch.full((512,), value, dtype=torch.uint8, device="cuda")
        del filled  # the next small block
        assert torch.equal(y, launch(config, *operands))


@pytest.mark.gpu
@pytest.mark.sm90
@pytest.mark.parametrize("dtype", HALVES, ids=name)
def test_a_layer_and_its_gradients(dtype):
    m, n, k = 132 * 7 * 128 + 8, 128, 64
    x, weight, bias, dy = linear_inputs(m, n, k, dtype, "cuda")
    leaves = [t.requires_grad_() for t in (x, weight, bias)]

    def step(rows):
        part = [leaves[0][rows].detach().requires_grad_(), *leaves[1:]]
        y = fusedops.linear(*part, activation="gelu_tanh")
        dx, _, _ = torch.autograd.grad(y, part, dy[rows])
        return y, dx

    y, dx = step(slice(None))
    rows = [slice(i, i + 128 * 64) for i in range(0, m, 128 * 64)]
    parts = [step(r) for r in rows]
    torch.testing.assert_close(y, torch.cat([p[0] for p in parts]))
    torch.testing.assert_close(dx, torch.cat([p[1] for p in parts]))
