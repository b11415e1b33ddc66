"""softmax and log_softmax of short rows, of which a warp takes many: few rows and many."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

import fusedops
from fusedops import reference
from util import DTYPES, HALVES, assert_accurate, make, name, poisoned

OURS = {"softmax": fusedops.softmax, "log_softmax": fusedops.log_softmax}
THEIRS = {"softmax": F.softmax, "log_softmax": F.log_softmax}
EXACT = {"softmax": reference.softmax, "log_softmax": reference.log_softmax}
# Every number of lanes, either side of each; odd ones, and those that meet in banks.
LENGTHS = (2, 3, 4, 7, 8, 9, 16, 19, 31, 32, 33, 61, 64, 65, 100, 127, 128, 129, 200, 247, 256, 257)

both = pytest.mark.parametrize("op", OURS)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=name)


def check(op, x, dy, wide=None):
    """Values and gradient against float64, by torch's own error; wide: dtype of the output."""
    ours, theirs = (x.clone().requires_grad_() for _ in range(2))
    exact = x.double().requires_grad_()
    with poisoned():
        y = OURS[op](ours, 1, wide)
    torch_y, exact_y = THEIRS[op](theirs, 1, dtype=wide), EXACT[op](exact, 1)
    assert y.dtype is (wide or x.dtype)
    assert_accurate(y.detach(), torch_y.detach(), exact_y.detach(), op)
    with poisoned():
        y.backward(dy)
    torch_y.backward(dy)
    exact_y.backward(dy.double())
    assert_accurate(ours.grad, theirs.grad, exact.grad, f"{op} gradient")


def many(n):
    """Rows that fill a GPU: more than eight warps of whole chunks an SM, a last tile in part."""
    lanes = 1
    while lanes * 8 < n:
        lanes *= 2
    return max(70_000 // lanes, 9_000) + 5


@every_dtype
@pytest.mark.parametrize("rows", [1, 8, 77])
@pytest.mark.parametrize("n", LENGTHS)
@both
def test_few_rows(device, op, n, rows, dtype):
    x = make(rows, n, dtype=dtype, device=device, scale=2.0)
    check(op, x, make(rows, n, dtype=dtype, device=device, seed=1))


@pytest.mark.gpu
@every_dtype
@pytest.mark.parametrize("n", LENGTHS)
@both
def test_many_rows(op, n, dtype):
    x = make(many(n), n, dtype=dtype, device="cuda", scale=2.0)
    check(op, x, make(many(n), n, dtype=dtype, device="cuda", seed=1))


@pytest.mark.gpu
@every_dtype
@pytest.mark.parametrize(("rows", "n"), [(900_001, 2), (1_700_003, 5), (430_003, 9)])
@both
def test_tiles_of_several_turns(op, rows, n, dtype):
    x = make(rows, n, dtype=dtype, device="cuda", scale=2.0)
    check(op, x, make(rows, n, dtype=dtype, device="cuda", seed=1))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", HALVES, ids=name)
@pytest.mark.parametrize("n", [2, 7, 8, 19, 33, 64, 127, 128, 247])
@both
def test_many_rows_to_float32(op, n, dtype):
    x = make(many(n), n, dtype=dtype, device="cuda", scale=2.0)
    check(op, x, make(many(n), n, dtype=torch.float32, device="cuda", seed=1), torch.float32)


@pytest.mark.gpu
@every_dtype
@pytest.mark.parametrize("n", [3, 19, 61, 128])
@both
def test_special_values_stay_in_their_row(op, n, dtype):
    x = make(many(n), n, dtype=dtype, device="cuda")
    want = THEIRS[op](x, 1)
    inf, nan = math.inf, math.nan
    rows = {
        4: [nan],
        7: [inf],
        8: [-inf],
        11: [-inf] * n,
        12: [nan] * n,
        40: [inf, -inf],
        -1: [nan],
    }
    for row, values in rows.items():
        x[row, : len(values)] = torch.tensor(values, dtype=dtype, device="cuda")
    y, theirs = OURS[op](x, 1), THEIRS[op](x, 1)
    for row in rows:
        torch.testing.assert_close(y[row], theirs[row], equal_nan=True)
    left = torch.ones(len(x), dtype=torch.bool, device="cuda")
    left[list(rows)] = False
    torch.testing.assert_close(y[left], want[left])
    assert not y[left].isnan().any()


@pytest.mark.gpu
@every_dtype
@pytest.mark.parametrize("n", [7, 40, 129])
@both
def test_layouts_of_many_rows(op, n, dtype):
    """Rows that are not side by side: sliced, transposed, one row for all, from an odd address."""
    rows = many(n)
    wide = make(rows, n + 9, dtype=dtype, device="cuda")
    flat = make(rows * n + 1, dtype=dtype, device="cuda")
    given = [
        wide[:, 2 : n + 2],
        wide[:, :n].t().contiguous().t(),
        wide[:1, :n].expand(rows, n),
        flat[1:].view(rows, n),
    ]
    for x in given:
        y = OURS[op](x, 1)
        torch.testing.assert_close(y, THEIRS[op](x, 1))
        dx = torch.ops.fusedops.softmax_backward(x, y, 1, op == "log_softmax", 0)
        dense = torch.ops.fusedops.softmax_backward(x.contiguous(), y, 1, op == "log_softmax", 0)
        torch.testing.assert_close(dx, dense)


@pytest.mark.gpu
@every_dtype
@both
def test_same_bits_every_time(op, dtype):
    x, dy = (make(many(19), 19, dtype=dtype, device="cuda", seed=s) for s in (0, 1))
    y = OURS[op](x, 1)
    dx = torch.ops.fusedops.softmax_backward(dy, y, 1, op == "log_softmax", 0)
    for _ in range(3):
        assert torch.equal(OURS[op](x, 1), y)
        again = torch.ops.fusedops.softmax_backward(dy, y, 1, op == "log_softmax", 0)
        assert torch.equal(again, dx)
