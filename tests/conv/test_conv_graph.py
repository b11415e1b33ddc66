"""The graphs of cuDNN: where the norm goes, by which forms, and what each computes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

import fusedops
from fusedops.ops import conv, conv_graph
from fusedops.ops.conv_problem import conv_problem
from util import HALVES, assert_accurate, make, name

FORMS = ("inside", "beside", "folded")
TORCH = SimpleNamespace(
    add=lambda a, b: a + b,
    sub=lambda a, b: a - b,
    mul=lambda a, b: a * b,
    rsqrt=lambda input: input.rsqrt(),
)


def form_of(behind):
    if behind.var is not None:
        return "inside"
    return "beside" if behind.scale is not None else "folded"


def by_torch(x, weight, behind, residual, problem, code):
    """What a graph computes; only ReLU."""
    assert code == 1
    vectors = [None if t is None else t.view(1, -1, 1, 1) for t in behind.vectors]
    z = conv._convolve(x, weight, None, problem)
    z = conv_graph._normalised(TORCH, z, vectors, behind.eps)
    return F.relu(z if residual is None else z + residual)


def operands(kernel, dtype, device):
    x = make(3, 16, 7, 7, dtype=dtype, device=device, seed=1)
    weight = make(40, 16, kernel, kernel, dtype=dtype, device=device, seed=2, scale=0.1)
    bias = make(40, dtype=dtype, device=device, seed=3)
    mean, var, gamma, beta = (
        make(40, dtype=torch.float32, device=device, seed=s) for s in range(4, 8)
    )
    return x, weight, bias, conv.Norm(mean, var.abs() + 0.5, gamma + 1, beta)


def expected(x, weight, bias, norm, residual, padding):
    wide = [None if t is None else t.double() for t in (x, weight, bias, *norm)]
    residual = None if residual is None else residual.double()
    return fusedops.reference.conv_bn_act(
        *wide, activation="relu", residual=residual, padding=padding
    )


@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("with_residual", [False, True])
@pytest.mark.parametrize("refused", range(3))
def test_the_first_form_that_is_not_refused(monkeypatch, kernel, with_residual, refused):
    x, weight, bias, norm = operands(kernel, torch.float32, "cpu")
    residual = make(3, 40, 7, 7, dtype=x.dtype, device="cpu", seed=9) if with_residual else None
    seen = []

    def graph(x, weight, behind, *rest):
        seen.append(form_of(behind))
        return None if len(seen) <= refused else by_torch(x, weight, behind, *rest)

    monkeypatch.setattr(conv_graph, "convolve_by_graph", graph)
    problem = conv_problem("conv_bn_act", x, weight, 1, kernel // 2, 1, 1)
    got = conv._by_graph(conv.Fused(x, weight, bias, norm, residual, problem, 1, 1e-5))
    if refused == 2 and kernel == 1 and not with_residual:
        assert got is None  # left to a product of rows
        assert seen == ["inside", "beside"]
        return
    assert tuple(seen) == FORMS[: refused + 1]
    want = expected(x, weight, bias, norm, residual, kernel // 2)
    torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-5)


def test_a_product_with_few_outputs_is_folded(monkeypatch):
    x, weight, bias, norm = operands(1, torch.float32, "cpu")
    weight, bias, norm = weight[:24], bias[:24], conv.Norm(*(t[:24] for t in norm))
    seen = []

    def graph(x, weight, behind, *rest):
        seen.append(form_of(behind))
        return by_torch(x, weight, behind, *rest)

    monkeypatch.setattr(conv_graph, "convolve_by_graph", graph)
    problem = conv_problem("conv_bn_act", x, weight, 1, 0, 1, 1)
    got = conv._by_graph(conv.Fused(x, weight, bias, norm, None, problem, 1, 1e-5))
    assert seen == ["folded"]
    want = expected(x, weight, bias, norm, None, 0)
    torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-5)


def test_a_scale_is_not_rounded_to_half(monkeypatch):
    """A norm in half precision is inside of the graph, or folded."""
    x, weight, bias, norm = operands(3, torch.bfloat16, "cpu")
    norm = conv.Norm(*(t.bfloat16() for t in norm))
    seen = []
    monkeypatch.setattr(
        conv_graph, "convolve_by_graph", lambda x, w, behind, *_: seen.append(form_of(behind))
    )
    problem = conv_problem("conv_bn_act", x, weight, 1, 1, 1, 1)
    assert conv._by_graph(conv.Fused(x, weight, bias, norm, None, problem, 1, 1e-5)) is None
    assert seen == ["inside", "folded"]


@pytest.mark.parametrize(
    ("x_shape", "w_shape", "with_residual", "pays"),
    [
        ((64, 256, 14, 14), (256, 256, 3, 3), False, True),
        ((64, 512, 7, 7), (80, 512, 1, 1), True, True),
        ((64, 64, 56, 56), (256, 64, 1, 1), True, False),
        ((64, 3, 224, 224), (64, 3, 7, 7), False, False),
        ((8, 512, 34, 34), (512, 512, 3, 3), False, False),
    ],
)
def test_where_a_norm_inside_pays(x_shape, w_shape, with_residual, pays):
    x, weight = (torch.empty(shape, device="meta") for shape in (x_shape, w_shape))
    problem = conv_problem("conv_bn_act", x, weight, 1, 0, 1, 1)
    assert conv.pays_inside(w_shape, problem, with_residual) is pays


def test_nothing_is_folded_without_a_norm(monkeypatch):
    x, weight, bias, _ = operands(3, torch.float32, "cpu")
    monkeypatch.setattr(conv_graph, "convolve_by_graph", by_torch)
    problem = conv_problem("conv_bn_act", x, weight, 1, 1, 1, 1)
    got = conv._by_graph(
        conv.Fused(x, weight, bias, conv.Norm(*[None] * 4), None, problem, 1, 1e-5)
    )
    torch.testing.assert_close(got, F.relu(F.conv2d(x, weight, bias, padding=1)))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", HALVES, ids=name)
@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("form", FORMS)
def test_each_form_on_a_gpu(monkeypatch, form, kernel, dtype):
    if not conv_graph.is_installed():
        pytest.skip("nvidia-cudnn-frontend is not installed")
    x, weight, bias, norm = operands(kernel, dtype, "cuda")
    x = x.to(memory_format=torch.channels_last)
    residual = make(3, 40, 7, 7, dtype=dtype, device="cuda", seed=9)
    real, tried = conv_graph.convolve_by_graph, []

    def graph(x, weight, behind, *rest):
        if form_of(behind) != form:
            return None
        y = real(x, weight, behind, *rest)
        tried.append(y is not None)
        return y

    monkeypatch.setattr(conv_graph, "convolve_by_graph", graph)
    problem = conv_problem("conv_bn_act", x, weight, 1, kernel // 2, 1, 1)
    with torch.no_grad():
        got = conv._by_graph(conv.Fused(x, weight, bias, norm, residual, problem, 1, 1e-5))
    if tried == [False]:
        pytest.skip(f"this cuDNN has no engine for the norm {form}")
    z = F.batch_norm(F.conv2d(x, weight, bias, padding=kernel // 2), *norm)
    eager = F.relu(z + residual)
    assert_accurate(got, eager, expected(x, weight, bias, norm, residual, kernel // 2))
