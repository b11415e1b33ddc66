"""Wrong arguments of set abstraction: op, argument, what was expected and what came."""

from __future__ import annotations

import pytest
import torch

from fusedops.points import BatchNorm, LayerNorm, set_abstraction

B, N, M, K, FEATURES = 2, 10, 4, 3, 2
XYZ, ROWS, CENTERS = torch.zeros(B, N, 3), torch.zeros(B, N, FEATURES), torch.zeros(B, M, 3)
IDX = torch.zeros(B, M, K, dtype=torch.int64)
W = [torch.zeros(6, 3 + FEATURES), torch.zeros(5, 6)]
FULL = BatchNorm(None, None, torch.zeros(6), torch.ones(6))
GOOD = {"xyz": XYZ, "features": ROWS, "centers": CENTERS, "idx": IDX, "weights": W}

WRONG = [
    (TypeError, "idx must be a Tensor; got list", {"idx": [1]}),
    (TypeError, "xyz must be a Tensor; got int", {"xyz": 3}),
    (TypeError, "weights must be a sequence; got Tensor", {"weights": W[0]}),
    (TypeError, r"weights\[1\] must be a Tensor; got NoneType", {"weights": [W[0], None]}),
    (TypeError, "biases must be a sequence; got Tensor", {"biases": torch.zeros(6)}),
    (TypeError, r"biases\[0\] must be a Tensor; got float", {"biases": [0.0, None]}),
    (TypeError, "norms must be a sequence; got BatchNorm", {"norms": FULL}),
    (TypeError, r"norms\[1\] must be a BatchNorm, a LayerNorm or None; got str",
     {"norms": [None, "batch"]}),
    (ValueError, "xyz or features must be given; got None for both",
     {"xyz": None, "features": None, "centers": None}),
    (ValueError, "centers must be None where xyz is; got a Tensor", {"xyz": None}),
    (ValueError, "weights must have at least one entry; got none", {"weights": []}),
    (ValueError, "biases must have one entry a weight, 2; got 1", {"biases": [None]}),
    (ValueError, "norms must have one entry a weight, 2; got 3", {"norms": [None] * 3}),
    (ValueError, "activation must be None or one of 'none', .*; got 'swish'",
     {"activation": "swish"}),
    (ValueError, "pool must be one of 'max', 'mean', 'sum'; got 'min'", {"pool": "min"}),
    (ValueError, "normalize_radius must be positive or None; got 0.0", {"normalize_radius": 0}),
    (ValueError, r"norms\[0\] must have running_mean and running_var, or neither of them in "
     "training; got running_mean None, running_var None, training False",
     {"norms": [BatchNorm(), None]}),
    (ValueError, r"norms\[0\] must have running_mean and running_var, or neither of them in "
     "training; got running_mean a Tensor, running_var None, training True",
     {"norms": [BatchNorm(None, None, torch.zeros(6), training=True), None]}),
    (ValueError, r"norms\[0\].eps must be positive; got 0.0",
     {"norms": [FULL._replace(eps=0.0), None]}),
    (RuntimeError, "xyz must be float16, bfloat16, float32 or float64; got int64",
     {"xyz": XYZ.long()}),
    (RuntimeError, r"xyz must be \(B, N, C\) or \(P, C\); got \(3,\)", {"xyz": torch.zeros(3)}),
    (RuntimeError, r"features must be \(2, 10, C\); got \(2, 9, 2\)", {"features": ROWS[:, :9]}),
    (RuntimeError, r"features must be \(2, 10, C\); got \(10, 2\)", {"features": ROWS[0]}),
    (RuntimeError, "idx must be int64 on cpu; got int32 on cpu", {"idx": IDX.int()}),
    (RuntimeError, r"idx must be \(2, M, K\); got \(4, 3\)", {"idx": IDX[0]}),
    (RuntimeError, r"idx must be \(2, M, K\); got \(1, 4, 3\)", {"idx": IDX[:1]}),
    (RuntimeError, r"centers must be \(2, 4, 3\); got \(2, 3, 3\)", {"centers": CENTERS[:, :3]}),
    (RuntimeError, r"weights\[0\] must be \(C, 5\); got \(5, 6\)", {"weights": W[1:]}),
    (RuntimeError, r"weights\[1\] must be \(C, 6\); got \(6, 5\)", {"weights": [W[0], W[0]]}),
    (RuntimeError, r"weights\[1\] must be float32 like weights\[0\]; got float64",
     {"weights": [W[0], W[1].double()]}),
    (RuntimeError, r"biases\[1\] must be \(5,\); got \(6,\)", {"biases": [None, torch.zeros(6)]}),
    (RuntimeError, r"norms\[1\].weight must be \(5,\); got \(6,\)",
     {"norms": [None, LayerNorm(torch.zeros(6))]}),
    (RuntimeError, r"norms\[0\].running_var must be \(6,\); got \(5,\)",
     {"norms": [FULL._replace(running_var=torch.ones(5)), None]}),
    (RuntimeError, "features must be float32 like the weights; got float16",
     {"features": ROWS.half()}),
    (RuntimeError, "xyz must be float32; got float64", {"xyz": XYZ.double()}),
    (RuntimeError, "xyz must be float32 or float16; got bfloat16",
     {"xyz": XYZ.bfloat16(), "features": ROWS.half(), "weights": [w.half() for w in W]}),
    (RuntimeError, "features must be on cpu; got meta", {"features": ROWS.to("meta")}),
    (RuntimeError, r"weights\[0\] must be on cpu; got meta", {"weights": [W[0].to("meta"), W[1]]}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "message", "wrong"), WRONG, ids=[str(m) for _, m, _ in WRONG])
def test_errors(kind, message, wrong):
    with pytest.raises(kind, match=f"^set_abstraction: {message}$"):
        set_abstraction(**{**GOOD, **wrong})


def test_the_good_call_is_good():
    assert set_abstraction(**GOOD).shape == (B, M, 5)
    assert set_abstraction(**GOOD, norms=[FULL, None]).shape == (B, M, 5)


def test_meta():
    meta = {key: t.to("meta") for key, t in GOOD.items() if key != "weights"}
    weights = [w.to("meta") for w in W]
    norms = [BatchNorm(training=True), LayerNorm()]
    out = set_abstraction(**meta, weights=weights, norms=norms)
    assert out.shape == (B, M, 5)
    assert out.device.type == "meta"
