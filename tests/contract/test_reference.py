"""The definitions that errors are measured against, themselves against torch in float64."""

from __future__ import annotations

import pytest
import torch

from fusedops import reference
from util import ACTIVATIONS, TORCH_ACTIVATION, assert_accurate, linear_inputs, torch_linear


@pytest.mark.parametrize("activation", [None, *ACTIVATIONS])
def test_activations_and_their_derivatives(activation):
    z = torch.cat([torch.linspace(-12, 12, 4801), torch.tensor([-300.0, -40.0, 40.0, 300.0])])
    z = z.double().requires_grad_()
    y = TORCH_ACTIVATION[activation or "none"](z)
    (slope,) = torch.autograd.grad(y.sum(), z)
    torch.testing.assert_close(reference.activate(z, activation), y, rtol=1e-11, atol=1e-14)
    torch.testing.assert_close(
        reference.activate_grad(z, activation), slope, rtol=1e-11, atol=1e-14
    )


@pytest.mark.parametrize("activation", [None, *ACTIVATIONS])
def test_definitions_have_gradients_everywhere(activation):
    """The fuzzer found NaN where an exponential overflows that the value does not use."""
    z = torch.tensor([-2000.0, -800.0, 750.0, 2000.0], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(reference.activate(z, activation).sum(), z)
    torch.testing.assert_close(slope, reference.activate_grad(z.detach(), activation))


@pytest.mark.parametrize("function", [reference.softmax, reference.log_softmax])
def test_rows_of_nothing(function):
    assert function(torch.ones(3, 0), 1).shape == (3, 0)
    assert function(torch.ones(0, 3), 0).shape == (0, 3)


@pytest.mark.parametrize("function", [reference.activate, reference.activate_grad])
def test_unknown_activation(function):
    with pytest.raises(ValueError, match="unknown activation 'x'"):
        function(torch.ones(1), "x")


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_backward_is_the_derivative_of_forward(activation):
    x, weight, bias, dy = linear_inputs(6, 5, 4, torch.float64, "cpu")
    x, dy = x.view(2, 3, 4), dy.view(2, 3, 5)
    leaves = [t.requires_grad_() for t in (x, weight, bias)]
    expected = torch.autograd.grad(torch_linear(*leaves, activation), leaves, dy)
    got = reference.linear_backward(dy, *leaves, activation)
    flat = (dy.view(6, 5), x.view(6, 4), weight.t(), bias)
    by_matmul = reference.matmul_backward(*flat, activation)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b)
    torch.testing.assert_close(by_matmul[0].view(x.shape), expected[0])
    torch.testing.assert_close(by_matmul[1].t(), expected[1])
    torch.testing.assert_close(by_matmul[2], expected[2])


def test_the_accuracy_rule_can_fail():
    exact = torch.linspace(1, 2, 1000).double()
    torchs = exact.float()
    assert_accurate(torchs, torchs, exact)
    with pytest.raises(AssertionError, match="max error"):
        assert_accurate(torchs + 3e-6 * (torch.arange(1000) == 7), torchs, exact)
    with pytest.raises(AssertionError, match="error norm"):
        assert_accurate(torchs * (1 + 3.5e-7), torchs, exact)
    with pytest.raises(AssertionError, match="max error"):
        assert_accurate(torchs * torch.nan, torchs, exact)
    with pytest.raises(AssertionError, match="shape"):
        assert_accurate(torchs[:1], torchs, exact)
