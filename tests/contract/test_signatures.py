"""torch's signatures: its argument forms, names and types, by OpInfo's own samples."""

from __future__ import annotations

import itertools
import math
import sys
import types
import unittest

import pytest
import torch

import fusedops
from util import HALVES, make, name

if "expecttest" not in sys.modules:  # of which OpInfo's module wants a base class alone
    stub = types.ModuleType("expecttest")
    stub.TestCase = unittest.TestCase
    sys.modules["expecttest"] = stub
opinfo = pytest.importorskip("torch.testing._internal.common_methods_invocations")

REDUCTIONS = [
    *("sum", "mean", "prod", "amax", "amin", "argmax", "argmin", "var", "std", "norm"),
    *("logsumexp", "any", "all", "count_nonzero"),
]
ALONG = ["softmax", "log_softmax", "cumsum", "cumprod", "cummax", "cummin", "topk"]
WITH_DTYPE = ["sum", "mean", "prod", "norm", "softmax", "log_softmax", "cumsum", "cumprod"]
FORMS = [
    form
    for form in opinfo.op_db
    if form.name in (*REDUCTIONS, *ALONG) and form.variant_test_name != "nuc"
]
DTYPES = [
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool),
]
ORDERS = (1, 2, math.inf, -math.inf, "fro", None)  # of norm


def is_supported(op, sample):
    """Whether the README does not except it."""
    order = sample.kwargs.get("p", sample.args[0] if sample.args else "fro")
    complex_result = getattr(sample.kwargs.get("dtype"), "is_complex", False)
    return not complex_result and (op != "norm" or order in ORDERS)


def assert_same(op, got, want, sample):
    """Values and dtypes; which of equal elements topk names is open."""
    if op == "topk" and want.values.dim() > 0:
        dim = sample.args[1] if len(sample.args) > 1 else sample.kwargs.get("dim", -1)
        torch.testing.assert_close(sample.input.gather(dim, got.indices), got.values)
        got, want = got.values, want.values
    rough = {"rtol": 2e-2, "atol": 2e-2} if sample.input.dtype in HALVES else {}
    torch.testing.assert_close(got, want, equal_nan=True, **rough)


def expected(form, sample):
    """torch's result; scans of half precision, whose running value torch may round, in float64."""
    want = form.op(sample.input, *sample.args, **sample.kwargs)
    if form.name in ("cumsum", "cumprod") and want.dtype in HALVES:
        kwargs = {key: value for key, value in sample.kwargs.items() if key != "dtype"}
        exact = form.op(sample.input.double(), *sample.args, **kwargs)
        want = exact.to(want.dtype)
    return want


def test_every_function_has_samples():
    assert {form.name for form in FORMS} == {*REDUCTIONS, *ALONG}


@pytest.mark.smoke
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.formatted_name)
def test_opinfo_samples(device, form, dtype):
    if dtype not in form.supported_dtypes(device):
        pytest.skip("torch has no kernel for it")
    samples = [s for s in form.sample_inputs(device, dtype) if is_supported(form.name, s)]
    assert samples
    for sample in samples:
        want = expected(form, sample)
        got = getattr(fusedops, form.name)(sample.input, *sample.args, **sample.kwargs)
        assert type(got) is type(want)
        assert_same(form.name, got, want, sample)


SPREAD = [
    ((), {}),
    ((False,), {}),
    ((True,), {}),
    ((), {"unbiased": False}),
    ((0, False), {}),
    ((0, False, True), {}),
    ((None, False, True), {}),
    (((0, 1), True), {"keepdim": True}),
    ((1,), {"unbiased": False, "keepdim": True}),
    ((1,), {"correction": None}),
    ((), {"dim": 0, "correction": 2}),
    ((), {"axis": 0, "unbiased": False, "keepdims": True}),
]


@pytest.mark.parametrize("op", ["var", "std"])
@pytest.mark.parametrize(("args", "kwargs"), SPREAD, ids=str)
def test_unbiased_and_correction(device, op, args, kwargs):
    x = make(5, 7, dtype=torch.float32, device=device)
    for t in (x, x.clone().requires_grad_()):
        got, want = (getattr(m, op)(t, *args, **kwargs) for m in (fusedops, torch))
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("op", ["var", "std"])
def test_what_var_refuses(device, op):
    x, function = torch.ones(3, 4, device=device), getattr(fusedops, op)
    for args, kwargs, text in [
        ((0, 1), {}, "unbiased must be a bool; got 1"),
        ((0, True), {"correction": 1}, "correction must be None where unbiased is given; got 1"),
        ((True, True), {}, "dim must be an int or a sequence of ints; got True"),
        ((False,), {"keepdim": True}, "dim must be an int or a sequence of ints; got False"),
        ((0,), {"correction": "1"}, "correction must be a number or None; got str"),
    ]:
        with pytest.raises(TypeError, match=f"^{op}: {text}$"):
            function(x, *args, **kwargs)
        with pytest.raises(TypeError):
            getattr(torch, op)(x, *args, **kwargs)


def first_arguments(op):
    """What stands between x and dim."""
    return {"norm": (2,), "topk": (2,)}.get(op, ())


@pytest.mark.parametrize("op", [*REDUCTIONS, *ALONG])
def test_a_bool_is_no_dim(device, op):
    x, before = torch.ones(3, 4, device=device), first_arguments(op)
    for dim in [True, False] if op not in ("var", "std") else []:
        for call in (getattr(torch, op), getattr(fusedops, op)):
            with pytest.raises(TypeError, match=op if call.__name__ != "norm" else None):
                call(x, *before, dim)
        with pytest.raises(TypeError, match=rf"^{op}: dim must be an int.*; got {dim}$"):
            getattr(fusedops, op)(x, *before, dim)
    for dim in ([True], (False, 1), "0", 0.0):
        with pytest.raises(TypeError, match=rf"^{op}: dim must be an int"):
            getattr(fusedops, op)(x, *before, dim)


@pytest.mark.parametrize("op", REDUCTIONS)
def test_keepdim_is_a_bool(device, op):
    x = torch.ones(3, 4, device=device)
    for bad in (1, None, "a"):
        with pytest.raises(TypeError, match=f"^{op}: keepdim must be a bool; got {bad!r}$"):
            getattr(fusedops, op)(x, dim=0, keepdim=bad)


@pytest.mark.parametrize("op", WITH_DTYPE)
def test_dtype_is_a_dtype(device, op):
    x = torch.ones(3, 4, device=device)
    for bad in (0, 1, "float32", x, str):
        with pytest.raises(TypeError, match=f"^{op}: dtype must be a torch.dtype or None; got"):
            getattr(fusedops, op)(x, dim=0, dtype=bad)
    got = getattr(fusedops, op)(x, dim=0, dtype=float)  # Python's, as in torch
    assert got.dtype is torch.float64


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("op", [*REDUCTIONS, *ALONG])
def test_other_names(device, op, compiled):
    torch.compiler.reset()
    x, function = make(3, 4, dtype=torch.float32, device=device), getattr(fusedops, op)
    extra = {"k": 2} if op == "topk" else {}
    if op in REDUCTIONS:
        extra["keepdims"] = True

    def call(x):
        return function(input=x, axis=0, out=None, **extra)

    if compiled:
        call = torch.compile(call, fullgraph=True, backend="aot_eager")
    ours = {"keepdim" if k == "keepdims" else k: v for k, v in extra.items()}
    torch.testing.assert_close(call(x), function(x, dim=0, **ours))


def test_names_that_do_not_fit(device):
    x = torch.ones(3, 4, device=device)
    for kwargs, text in [
        ({"axis": 0, "dim": 0}, "^sum: dim must be given once; got "),
        ({"out": x[0]}, "^sum: out must be None, results are new; got Tensor$"),
        ({"axes": 0}, "unexpected keyword argument 'axes'"),
        ({"input": x}, "multiple values for argument 'x'"),
    ]:
        with pytest.raises(TypeError, match=text):
            fusedops.sum(x, **kwargs)
    with pytest.raises(TypeError, match="unexpected keyword argument 'keepdims'"):
        fusedops.cumsum(x, 0, keepdims=True)


def test_named_results(device):
    x = make(5, 6, dtype=torch.float32, device=device)
    for op, args in [("topk", (2,)), ("cummax", (0,)), ("cummin", (1,))]:
        result = getattr(fusedops, op)(x, *args)
        values, indices = result
        assert result.values is values
        assert result.indices is indices
        torch.testing.assert_close(tuple(result), tuple(getattr(torch, op)(x, *args)))


def test_topk_forms(device):
    x = make(5, 6, dtype=torch.float32, device=device)
    for largest, ordered in itertools.product([True, False], repeat=2):
        got = fusedops.topk(x, 2, 0, largest, ordered).values
        torch.testing.assert_close(got, torch.topk(x, 2, 0, largest).values)
    assert [t.item() for t in fusedops.topk(x[0, 0], 1)] == [x[0, 0].item(), 0]
    for k, text in [(True, "an int; got True"), (2.0, "an int; got 2.0"), (None, "an int; got N")]:
        with pytest.raises(TypeError, match=f"^topk: k must be {text}"):
            fusedops.topk(x, k)
    with pytest.raises(TypeError, match=r"^topk: largest must be a bool; got 1$"):
        fusedops.topk(x, 2, 0, 1)
    with pytest.raises(IndexError, match=r"^topk: dim must be from -2 to 1; got 2$"):
        fusedops.topk(x, 2, 2)
