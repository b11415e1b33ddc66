"""Epilogues of one's own: what is refused, and in which words; what they say of themselves."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import fusedops
from fusedops._epilogue.epilogue import epilogue


@pytest.mark.parametrize(
    ("function", "error", "words"),
    [
        (lambda acc: torch.softmax(acc, 1), TypeError, "softmax is not supported; supported: "),
        (lambda acc: acc.sum(), TypeError, "sum is not supported"),
        (lambda acc: acc if acc > 0 else -acc, TypeError, "a branch depends on values"),
        (lambda acc: acc + torch.ones(3), TypeError, "met a tensor from outside; pass it as"),
        (lambda acc: acc[0], TypeError, "__getitem__ is not supported; supported: "),
        (lambda acc: acc // 2, TypeError, "__floordiv__ is not supported"),
        (lambda acc: float(acc), TypeError, "__float__ is not supported"),
        (lambda acc: acc.add_(1), TypeError, "add_ is not supported"),
        (3, TypeError, "function must be a Python function .* got 3"),
        (torch.relu, TypeError, "function must be a Python function"),
        (lambda acc: acc + "x", TypeError, "takes operands and numbers; got str"),
        (lambda acc: acc > 0, TypeError, "must return one tensor"),
        (lambda acc: (acc, acc), TypeError, "must return one tensor; got tuple"),
        (lambda acc: acc**acc, TypeError, "pow takes a number as exponent"),
        (lambda acc: 2**acc, TypeError, "pow takes a number as exponent; write torch.exp"),
        (lambda acc, c=2.0: acc * c, ValueError, "have no defaults, .*; got c=2.0"),
        (F.silu, ValueError, "have no defaults, .*; got inplace=False"),
        (lambda acc, b: acc + 1, ValueError, "the result does not depend on b"),
        (lambda acc: acc**0, ValueError, "the result does not depend on acc"),
        (lambda acc, dy: acc * dy, ValueError, "neither acc nor dy; got dy"),
        (lambda acc, ä: acc * ä, ValueError, "must be of ASCII letters"),
        (lambda acc, b: b + 1, ValueError, "the result does not depend on acc"),
        (lambda *acc: acc, ValueError, r"the function must take \(acc, operands...\)"),
        (lambda acc: sum(torch.sin(acc + i) for i in range(200)), ValueError, "more than 256"),
    ],
)
def test_what_is_refused(function: object, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=f"epilogue: .*{words}"):
        epilogue(function)  # type: ignore[arg-type]


def test_wrong_calls() -> None:
    made = epilogue(lambda acc, bias: F.gelu(acc + bias))
    x, w, b = torch.randn(3, 4), torch.randn(5, 4), torch.randn(5)
    with pytest.raises(TypeError, match=r"operands come by name \(bias=...\); got 1 without"):
        made(torch.ones(5))
    assert repr(made).startswith("fusedops.epilogue(acc, bias): mul(add(acc, bias), normal_cdf(")
    with pytest.raises(TypeError, match="operands must be bias; got none"):
        fusedops.linear(x, w, epilogue=made)
    with pytest.raises(TypeError, match="bias must be a tensor or a number; got str"):
        made(bias="b")
    with pytest.raises(ValueError, match="linear: an epilogue stands instead of bias"):
        fusedops.linear(x, w, b, epilogue=made(bias=b))
    with pytest.raises(TypeError, match=r"matmul: epilogue must come from fusedops.epilogue"):
        fusedops.matmul(x, w.t(), epilogue=torch.relu)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match=r"linear: the epilogue's bias must have shape \(3, 5\)"):
        fusedops.linear(x, w, epilogue=made(bias=x))
    with pytest.raises(RuntimeError, match=r"linear: the epilogue's bias must be .* got .*float64"):
        fusedops.linear(x, w, epilogue=made(bias=b.double()))
    with pytest.raises(RuntimeError, match=r"x must be \(..., K\) and weight \(N, K\)"):
        fusedops.linear(x, w.t(), epilogue=made(bias=b))
    wide = epilogue(lambda acc, a, b, c, d, e, f, g: acc + a + b + c + d + e + f + g)
    with pytest.raises(RuntimeError, match="at most 6 operands along rows and columns; got 7"):
        fusedops.linear(x, w, epilogue=wide(**dict.fromkeys("abcdefg", b)))


def test_what_an_epilogue_says_of_itself() -> None:
    """The names of what its statements give are those of results and gradients."""
    made = epilogue(lambda acc, bias: acc * acc + bias)
    *statements, y, d_acc, d_bias = made.source().splitlines()
    assert made.expression == "add(mul(acc, acc), bias)"
    assert made.gradients["bias"] == "dy"
    assert y == f"y = {statements[1].split()[2]};"
    assert d_acc.startswith("d_acc = t")
    assert d_bias == "d_bias = in_dy;"
