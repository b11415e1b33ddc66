"""What every op registered in torch.ops.fusedops promises, walked op by op."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch

import fusedops  # noqa: F401  (registers the ops)
from fusedops._core.activation import ACTIVATIONS, CODES, SAVES_OUTPUT, SAVES_PREACT
from samples import CUDA_ONLY, INTEGER_OPS, REFUSED, SAMPLES
from util import DTYPES, linear_inputs, name, poisoned

OPS = torch.ops.fusedops
ALL_CODES = range(len(ACTIVATIONS))
OPCHECKS = (
    "test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic",
)  # fmt: skip
CODE_OF = {code: activation for activation, code in CODES.items() if activation is not None}


def registered():
    """Every op name of the namespace, from the dispatcher itself."""
    names = torch._C._dispatch_get_all_op_names()
    return sorted(n.removeprefix("fusedops::") for n in names if n.startswith("fusedops::"))


every_op = pytest.mark.parametrize("op", SAMPLES)


def samples(op, device, dtype=torch.float32, codes=ALL_CODES):
    """Argument tuples for an op."""
    if device == "cpu" and op in CUDA_ONLY:
        pytest.skip("the op runs on CUDA only")
    return list(SAMPLES[op](device, dtype, codes))


def flat(result):
    """The tensors of a result."""
    if result is None:
        return ()
    return result if isinstance(result, (tuple, list)) else (result,)


def plain(tensor):
    """The values in a dtype that torch compares: it does not FP8."""
    return tensor.float() if tensor.dtype.itemsize == 1 and tensor.is_floating_point() else tensor


def equal(a, b):
    """Whether two tensors hold the same values."""
    return a.dtype is b.dtype and torch.equal(plain(a), plain(b))


def overload(op):
    """The one overload of an op."""
    assert getattr(OPS, op).overloads() == ["default"]
    return getattr(OPS, op).default


def written(op):
    """The positions of the arguments that an op writes: `out` of an `_out` op, any of an `_` op."""
    arguments = overload(op)._schema.arguments
    return [i for i, a in enumerate(arguments) if a.alias_info is not None]


def outcome(op, arguments):
    """What an op returns and what it writes: new memory for an `_out` op, copies for an `_` op."""
    copy = torch.empty_like if op.endswith("_out") else torch.clone
    given = list(arguments)
    changed = [i for i in written(op) if given[i] is not None]
    for i in changed:
        given[i] = copy(given[i])
    returned = flat(overload(op)(*given))
    return [*returned, *(given[i] for i in changed)]


@pytest.mark.smoke
def test_every_op_has_samples():
    assert registered() == sorted(SAMPLES)


def test_activation_table_is_that_of_the_header():
    header = Path(__file__).parents[2] / "csrc" / "common" / "activation.h"
    if not header.exists():
        pytest.skip("needs the sources")
    text = header.read_text()
    codes = {n: int(c) for n, c in re.findall(r"^\s*k(\w+) = (\d+),", text, re.MULTILINE)}
    assert {n.lower(): c for n, c in codes.items()} == {
        activation.replace("_", ""): code for code, activation in CODE_OF.items()
    }
    assert f"kNumActivations = {len(ACTIVATIONS)};" in text
    groups = re.findall(r"((?:case Activation::k\w+:\s*)+)return Saved::k(\w+);", text)
    kept = {n: kind for cases, kind in groups for n in re.findall(r"::k(\w+):", cases)}
    assert "default: return Saved::kPreact;" in text
    for header_name, code in codes.items():
        kind = kept.get(header_name, "Preact")
        assert (SAVES_OUTPUT[code], SAVES_PREACT[code]) == (kind == "Output", kind == "Preact")


@pytest.mark.smoke
@every_op
def test_schema(op):
    schema = overload(op)._schema
    for argument in schema.arguments:
        # NOTE: the stable ABI truncates every other scalar type without a word.
        scalars = {"int", "float", "bool", "List[int]", "List[float]"}
        assert str(argument.type) in {"Tensor", "Optional[Tensor]"} | scalars
        if argument.alias_info is not None:
            assert op.endswith(("_", "_out")), "ops do not write to or alias their arguments"
            assert argument.alias_info.is_write
        if argument.alias_info is not None and op.endswith("_out"):
            assert (argument.name, str(argument.type)) == ("out", "Tensor")
            assert argument.name == schema.arguments[-1].name
            assert not schema.returns
        assert not argument.has_default_value(), "Python passes every argument"
    assert all(str(r.type) == "Tensor" and r.alias_info is None for r in schema.returns)


@pytest.mark.smoke
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@every_op
def test_fake_agrees_with_real(device, op, dtype):
    for arguments in samples(op, device, dtype):
        real = outcome(op, arguments)
        with torch._subclasses.FakeTensorMode() as mode:
            fake = [mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in arguments]
            result = outcome(op, fake)
        assert len(real) == len(result)
        for got, want in zip(result, real, strict=True):
            assert (got.shape, got.dtype, got.device) == (want.shape, want.dtype, want.device)
            assert got.stride() == want.stride()
            assert want.is_contiguous() or op.endswith("_")


@every_op
def test_fake_agrees_with_real_on_strided_and_empty_inputs(device, op):
    def variants(tensor):
        if not isinstance(tensor, torch.Tensor) or tensor.dim() != 2:
            return tensor
        return torch.stack([tensor, tensor], -1)[..., 0]

    for arguments in samples(op, device, codes=[0, 1, 2]):
        strided = [variants(a) for a in arguments]
        real = outcome(op, strided)
        fake = outcome(op, [a.to("meta") if hasattr(a, "to") else a for a in strided])
        for got, want, dense in zip(fake, real, outcome(op, arguments), strict=True):
            assert (got.shape, got.stride(), got.dtype) == (want.shape, want.stride(), want.dtype)
            # Another kernel may read the strided form, with another rounding to TF32
            torch.testing.assert_close(plain(want), plain(dense), rtol=5e-3, atol=5e-3)


@every_op
def test_opcheck(device, op):
    # One activation of each kind of saved tensor, and both sets of flags.
    for arguments in samples(op, device, codes=[0, 1, 2])[:12]:
        of_fp8 = any(isinstance(a, torch.Tensor) and plain(a) is not a for a in arguments)
        # NOTE: torch's check of the schema multiplies the arguments, which FP8 tensors refuse.
        utils = [u for u in OPCHECKS if not (of_fp8 and u == "test_schema")]
        torch.library.opcheck(overload(op), arguments, test_utils=utils)


@every_op
def test_results_are_new_and_inputs_stay(device, op):
    for arguments in samples(op, device):
        before = [a.clone() if isinstance(a, torch.Tensor) else a for a in arguments]
        results = outcome(op, arguments)
        memory = {a.data_ptr() for a in arguments if isinstance(a, torch.Tensor) and a.numel()}
        filled = [r.data_ptr() for r in results if r.numel()]
        assert not memory & set(filled)
        assert len(set(filled)) == len(filled)
        assert not any(r.requires_grad or r._is_view() for r in results)
        for a, b in zip(arguments, before, strict=True):
            assert equal(a, b) if isinstance(a, torch.Tensor) else a == b


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@every_op
def test_writes_every_element_and_repeats_bitwise(device, op, dtype):
    for arguments in samples(op, device, dtype):
        with poisoned():
            first = outcome(op, arguments)
        assert all(torch.isfinite(plain(t)).all() for t in first)
        for _ in range(3):
            for a, b in zip(outcome(op, arguments), first, strict=True):
                assert equal(a, b)


def negated_lazily(value):
    """The same values behind torch's negative bit."""
    if not isinstance(value, torch.Tensor) or value.dtype is not torch.float32:
        return value
    lazy = torch.complex(torch.zeros_like(value), -value).conj().imag
    assert lazy.is_neg()
    return lazy


@every_op
def test_takes_and_writes_lazily_negated_tensors(device, op):
    for arguments in samples(op, device, codes=[1]):
        expected = outcome(op, arguments)
        lazy = [negated_lazily(a) for a in arguments]
        for i in written(op):
            if op.endswith("_out") and lazy[i] is not None:
                lazy[i] = negated_lazily(torch.full_like(arguments[i], 7))
        returned = flat(overload(op)(*lazy))
        results = [*returned, *(lazy[i] for i in written(op) if lazy[i] is not None)]
        for got, want in zip(results, expected, strict=True):
            assert equal(got, want)


@every_op
def test_activation_codes_are_not_truncated(device, op):
    position = {a.name: i for i, a in enumerate(overload(op)._schema.arguments)}
    if "activation" not in position:
        pytest.skip("takes no activation")
    arguments = list(samples(op, device, codes=[1])[0])
    last = max(CODES.values())
    for code in (2**40 + 1, 2**32 + 1, last + 1, -1, -(2**40), 2**63 - 1):
        arguments[position["activation"]] = code
        text = rf"activation must be a code from 0 to {last}; got {code}$"
        for to in (device, "meta"):
            moved = [a.to(to) if isinstance(a, torch.Tensor) else a for a in arguments]
            with pytest.raises(RuntimeError, match=text):
                overload(op)(*moved)


@pytest.mark.smoke
def test_doubles_cross_exactly(device):
    one = torch.ones(1, dtype=torch.float64, device=device)
    for value in (1.25, 1 / 3, 2.0**-1060, 1e300, math.pi, -0.0, float(2**53 + 2)):
        got = OPS.template_scale(one, value).item()
        assert got == value
        assert math.copysign(1, got) == math.copysign(1, value)
    assert math.isnan(OPS.template_scale(one, math.nan).item())
    assert math.isinf(OPS.template_scale(one, math.inf).item())


@pytest.mark.smoke
@pytest.mark.parametrize("position", [5, 6, 7, 8])
def test_booleans_cross_one_by_one(device, position):
    # need_dx, need_dweight, need_dbias and dweight_fp32 each switch what they name
    x, weight, _, dy = linear_inputs(3, 4, 5, torch.float16, device)
    flags = [False, False, False, False]
    flags[position - 5] = True
    dx, dw, db = OPS.linear_backward(dy, x, weight, None, 0, *flags, False)
    shapes = [(3, 5), (4, 5), (4,)]
    for i, (result, shape) in enumerate(zip((dx, dw, db), shapes, strict=True)):
        assert tuple(result.shape) == (shape if flags[i] else (0,))
    assert dx.dtype is torch.float16
    assert dw.dtype is db.dtype is (torch.float32 if flags[3] else torch.float16)


@every_op
def test_a_wrong_dtype_names_op_and_argument(device, op):
    schema = overload(op)._schema
    arguments = list(samples(op, device, codes=[1])[0])
    first = schema.arguments[1 if op == "linear_backward" else 0].name
    public = op.removesuffix("_preact").removesuffix("_forward").removesuffix("_out")
    bad = torch.bool if op in INTEGER_OPS else torch.int32
    wanted = "float16, bfloat16, float32 or float64"
    if op in INTEGER_OPS:
        wanted = r"floating \(16 to 64 bits\) or an integer \(8 to 64 bits\)"
    text = rf"^{public}: {first} must be {wanted}; got {name(bad)}$"
    bad, text = REFUSED.get(op, (bad, text))
    ints = [a.to(bad) if isinstance(a, torch.Tensor) else a for a in arguments]
    for to in (device, "meta"):
        moved = [a.to(to) if isinstance(a, torch.Tensor) else a for a in ints]
        with pytest.raises(RuntimeError, match=text):
            overload(op)(*moved)


@pytest.mark.parametrize("op", ["linear_backward", "act_backward_bias_grad"])
def test_saved_is_checked(device, op):
    index = {a.name: i for i, a in enumerate(overload(op)._schema.arguments)}["saved"]
    for code in range(1, len(ACTIVATIONS)):
        arguments = list(samples(op, device, codes=[code])[0])
        what = "the forward output y" if SAVES_OUTPUT[code] else "the pre-activation z"
        for bad, text in [
            (None, f"saved must be {what} for activation code {code}; got None"),
            (arguments[index][:1], r"saved must have shape \(6, 8\) like dy; got \(1, 8\)"),
            (arguments[index].double(), "saved must have dtype float32 like dy; got float64"),
        ]:
            for to in (device, "meta"):
                arguments[index] = bad
                moved = [a.to(to) if isinstance(a, torch.Tensor) else a for a in arguments]
                with pytest.raises(RuntimeError, match=f"^{op}: {text}$"):
                    overload(op)(*moved)


def test_dy_is_checked(device):
    x, weight, _, _ = linear_inputs(3, 4, 5, torch.float32, device)
    text = r"linear_backward: dy must have the shape of x \(3, 5\) with a last dimension of 4; got"
    for shape in [(3, 5), (2, 4), (4,), (1, 3, 4)]:
        for to in (device, "meta"):
            dy = torch.ones(shape, device=to)
            with pytest.raises(RuntimeError, match=text):
                OPS.linear_backward(
                    dy, x.to(to), weight.to(to), None, 0, True, True, True, False, False
                )


@pytest.mark.parametrize(
    ("index", "shape", "text"),
    [
        (0, (), r"dz must have at least 1 dimension\(s\); got shape \(\)"),
        (1, (3, 5), r"weight must have shape \(4, K\) to match dz \(..., 4\); got \(3, 5\)"),
        (1, (4,), r"weight must be 2-dimensional, \(N, K\); got shape \(4,\)"),
        (2, (3, 4), r"added must have the shape of dz .* with a last dimension of 5; got \(3, 4\)"),
        (2, (1, 5), r"added must have the shape of dz .* with a last dimension of 5; got \(1, 5\)"),
    ],
)  # fmt: skip
def test_shapes_of_an_added_gradient(device, index, shape, text):
    for to in (device, "meta"):
        tensors = [torch.ones(s, device=to) for s in [(3, 4), (4, 5), (3, 5)]]
        tensors[index] = torch.ones(shape, device=to)
        with pytest.raises(RuntimeError, match=f"^linear_input_backward: {text}$"):
            OPS.linear_input_backward(*tensors, False)


def test_dy_has_the_dtype_of_x(device):
    x, weight, _, dy = linear_inputs(3, 4, 5, torch.float32, device)
    flags = (None, 0, True, True, True, False, False)
    for to in (device, "meta"):
        with pytest.raises(RuntimeError, match="dy must have dtype float32 like x; got float64"):
            OPS.linear_backward(dy.double().to(to), x.to(to), weight.to(to), *flags)


@pytest.mark.gpu
@every_op
def test_runs_on_the_current_stream(op):
    # The inputs are written late, on a side stream: an op on another stream reads the old ones.
    for arguments in samples(op, "cuda", codes=[1, 2]):
        expected = outcome(op, arguments)
        torch.cuda.synchronize()
        stream = torch.cuda.Stream()
        late = [torch.zeros_like(a) if isinstance(a, torch.Tensor) else a for a in arguments]
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(2_000_000)
            for a, b in zip(late, arguments, strict=True):
                if isinstance(a, torch.Tensor):
                    a.copy_(b)
            results = outcome(op, late)
        stream.synchronize()
        for got, want in zip(results, expected, strict=True):
            assert equal(got, want)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@every_op
def test_is_captured_in_a_cuda_graph(op, dtype):
    for arguments in samples(op, "cuda", dtype, codes=[1, 2]):
        expected = outcome(op, arguments)
        static = [torch.zeros_like(a) if isinstance(a, torch.Tensor) else a for a in arguments]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = outcome(op, static)
        for a, b in zip(static, arguments, strict=True):
            if isinstance(a, torch.Tensor):
                a.copy_(b)
        for _ in range(2):
            graph.replay()
            for got, want in zip(results, expected, strict=True):
                assert equal(got, want)


@pytest.mark.multi_gpu
@every_op
def test_runs_on_the_device_of_its_inputs(op):
    for arguments in samples(op, "cuda:1", codes=[1]):
        with torch.cuda.device(0):
            results = outcome(op, arguments)
            assert torch.cuda.current_device() == 0
        assert all(r.device == torch.device("cuda", 1) for r in results)
        assert all(torch.isfinite(plain(r)).all() for r in results)
