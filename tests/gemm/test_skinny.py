"""The kernels for few rows: every padded size, width, activation and output, against float64."""

from __future__ import annotations

import pytest
import torch

import fusedops
from fusedops import reference
from fusedops._tuning.measure import FAMILIES
from util import ACTIVATIONS, HALVES, assert_accurate, linear_inputs, name, poisoned, torch_linear

pytestmark = [pytest.mark.gpu, pytest.mark.sm90]

ROWS = (1, 2, 7, 8, 9, 16, 17, 31, 32, 33, 63, 64, 65, 96, 97, 127, 128)
# (N, K): even and odd widths, a ragged last block, K shorter than a step, ragged and unevenly split
WEIGHTS = ((4096, 1024), (8192, 264), (1001, 2056), (65, 8), (3, 4096), (11008, 520))


def check(m, n, k, dtype, activation="relu", bias=True):
    x, weight, b, _ = linear_inputs(m, n, k, dtype, "cuda")
    b = b if bias else None
    with poisoned():
        y = fusedops.linear(x, weight, b, activation)
    b64 = b.double() if bias else None
    exact = reference.linear(x.double(), weight.double(), b64, activation)
    assert_accurate(y, torch_linear(x, weight, b, activation), exact, f"{m}x{n}x{k} ")


@pytest.mark.parametrize("m", ROWS)
def test_every_number_of_rows_and_width(m):
    for n, k in WEIGHTS:
        check(m, n, k, torch.bfloat16)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", HALVES, ids=name)
def test_activations_with_and_without_bias(dtype, activation):
    for m, n in ((1, 4096), (24, 1003), (64, 512)):
        for bias in (True, False):
            check(m, n, 1032, dtype, activation, bias)


@pytest.mark.parametrize("dtype", HALVES, ids=name)
def test_every_config_fused_and_preact(dtype):
    op = torch.ops.fusedops.linear_preact
    with_config = torch.ops.fusedops_tuning.gemm_with_config
    configs = [c for c in fusedops._C.gemm_configs() if c["family"] == "skinny"]
    assert configs
    for m, n, k in ((5, 1001, 2056), (40, 200, 4096), (128, 640, 1160)):
        x, weight, bias, _ = linear_inputs(m, n, k, dtype, "cuda")
        exact = reference.linear(x.double(), weight.double(), bias.double(), "silu")
        torchs = torch_linear(x, weight, bias, "silu")
        family = FAMILIES["skinny"]
        for config in configs:
            for epilogue in (0, 1):
                with poisoned():
                    y = with_config(
                        x, weight.t(), bias, ACTIVATIONS.index("silu"), family, config["index"],
                        1, 8, epilogue,
                    )  # fmt: skip
                assert_accurate(y, torchs, exact, f"{config['name']} {m}x{n}x{k} ")
        y, z = op(x, weight, bias, ACTIVATIONS.index("silu"), False)
        exact_z = reference.linear(x.double(), weight.double(), bias.double(), "none")
        assert_accurate(y, torchs, exact, f"{m}x{n}x{k} y ")
        assert_accurate(z, torch_linear(x, weight, bias, "none"), exact_z, f"{m}x{n}x{k} z ")


def test_rows_of_a_wider_tensor_and_repeatable():
    x = torch.randn(48, 2048, device="cuda", dtype=torch.bfloat16)[::3, :1032]
    weight = torch.randn(4096, 1040, device="cuda", dtype=torch.bfloat16)[:, :1032] / 32
    y = fusedops.linear(x, weight, None, "gelu")
    exact = reference.linear(x.double(), weight.double(), None, "gelu")
    assert_accurate(y, torch_linear(x, weight, None, "gelu"), exact)
    for _ in range(20):
        assert torch.equal(y, fusedops.linear(x, weight, None, "gelu"))


def test_nan_stays_in_its_row_and_column():
    x = torch.randn(20, 512, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(130, 512, device="cuda", dtype=torch.bfloat16)
    x[3, 7] = float("nan")
    weight[129, 500] = float("nan")
    y = fusedops.linear(x, weight, None)
    bad = torch.zeros(20, 130, dtype=torch.bool, device="cuda")
    bad[3], bad[:, 129] = True, True
    assert torch.equal(y.isnan(), bad)


def test_the_predecessor_may_write_any_operand():
    weight = torch.zeros(4096, 1024, device="cuda", dtype=torch.bfloat16)
    x = torch.ones(8, 1024, device="cuda", dtype=torch.bfloat16)
    for step in range(1, 30):
        weight.fill_(step)
        y = fusedops.linear(x, weight, None)
        z = fusedops.linear(y[:, :1024] / 1024, weight, None)
        assert (y == 1024 * step).all()
        assert (z == 1024 * step * step).all() or step > 15
