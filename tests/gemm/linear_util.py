"""What tests of linear's kernels share."""

from __future__ import annotations

import fusedops
from fusedops import reference
from util import assert_accurate, poisoned, torch_linear


def check_linear(x, weight, bias, dy, activation, what=""):
    """y and every gradient against the accuracy rule."""
    leaves = [None if t is None else t.detach().requires_grad_() for t in (x, weight, bias)]
    torchs = [None if t is None else t.detach().requires_grad_() for t in (x, weight, bias)]
    theirs = torch_linear(*torchs, activation)
    theirs.backward(dy)
    with poisoned():
        y = fusedops.linear(*leaves, activation)
        y.backward(dy)
    wide = [None if t is None else t.double() for t in (dy, x, weight, bias)]
    assert_accurate(y, theirs, reference.linear(*wide[1:], activation), f"{what} y")
    exact = reference.linear_backward(*wide, activation)
    # NOTE: a sum over rows may cancel: its rounding is that of its terms.
    squares = wide[0].square()
    scales = (None, (squares.T @ wide[1].square()).sqrt(), squares.sum(0).sqrt())
    for label, leaf, other, truth, scale in zip(
        ("dx", "dw", "db"), leaves, torchs, exact, scales, strict=True
    ):
        if leaf is not None:
            assert_accurate(leaf.grad, other.grad, truth, f"{what} {label}", scale)
