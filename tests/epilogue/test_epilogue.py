"""Epilogues of one's own: tracing, the derived backward, the unfused way, the C++ text."""

from __future__ import annotations

import functools
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import fusedops
from fusedops._epilogue import launch, run, toolchain
from fusedops._epilogue.derive import derive
from fusedops._epilogue.epilogue import Epilogue, epilogue
from fusedops._epilogue.graph import evaluate, order
from fusedops._epilogue.trace import trace


def mixed(acc, scale, bias):
    chosen = torch.where(acc > bias, acc.exp().clamp(max=3), -acc.abs())
    return chosen / (scale.square() + 1)


def powers(acc, res):
    return (acc**3 - 2 * acc**2) / torch.sqrt(res * res + 1) + torch.rsqrt(acc.square() + 1)


def extrema(acc, res):
    both = torch.maximum(acc, res) - torch.minimum(acc, 0.5 * res)
    return both + 1 / (1 + torch.sigmoid(acc))


def waves(acc, bias):
    return torch.sin(acc) * abs(torch.cos(bias)) + torch.erf(acc - bias) + F.leaky_relu(acc, 0.1)


def hard(acc, bias, res):
    return F.relu6(acc + bias) * res - F.hardtanh(acc, -2, 0.5)


EXPRESSIONS = {
    "issue": lambda acc, scale, bias, res: torch.relu(acc * scale + bias) + res,
    "gelu": lambda acc, bias: F.gelu(acc + bias),
    "gelu_tanh": lambda acc, scale: F.gelu(acc, approximate="tanh") * scale,
    "gate": lambda acc, bias, res: F.silu(acc + bias) * res,
    "softcap": lambda acc: 5.0 * torch.tanh(acc / 5.0),
    "log": lambda acc: torch.log(acc.square() + 1) - (-acc).clamp(-1.0, 1.0),
    "mixed": mixed,
    "powers": powers,
    "extrema": extrema,
    "waves": waves,
    "hard": hard,
}
SHAPES = {"scale": (5,), "bias": (5,), "res": (3, 5)}


def gradients_of(
    result: torch.Tensor, leaves: list[torch.Tensor], dy: torch.Tensor
) -> list[torch.Tensor]:
    """By autograd; zeros where only a comparison reads a leaf."""
    found = torch.autograd.grad(result, leaves, dy, allow_unused=True)
    return [torch.zeros_like(t) if g is None else g for g, t in zip(found, leaves, strict=True)]


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_the_expression_is_the_function(name: str) -> None:
    function = EXPRESSIONS[name]
    _, output, operands = trace(function)
    values = {n: torch.randn(3, 5, dtype=torch.float64) for n in ("acc", *operands)}
    (got,) = evaluate([output], values)
    expected = function(values["acc"], *(values[n] for n in operands))
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_the_derived_gradient_is_autograds(name: str) -> None:
    function = EXPRESSIONS[name]
    builder, output, operands = trace(function)
    names = ("acc", *operands)
    values = {n: torch.randn(40, 50, dtype=torch.float64, requires_grad=True) for n in names}
    dy = torch.randn(40, 50, dtype=torch.float64)
    expected = gradients_of(function(*values.values()), list(values.values()), dy)
    gradients = derive(builder, output, names)
    got = evaluate([gradients[n] for n in names], {**values, "dy": dy})
    for n, g, e in zip(names, got, expected, strict=True):
        torch.testing.assert_close(g.expand(e.shape), e, rtol=1e-10, atol=1e-12, msg=n)


@pytest.mark.parametrize("function", [F.relu6, F.hardtanh, F.hardsigmoid, F.hardswish])
def test_activations_with_two_kinks(function: object) -> None:
    """At their kinks too; torch has hardswish's as the slope on one side, and 1 / 6 in float."""
    builder, output, _ = trace(lambda acc: function(acc))
    x = torch.arange(-8, 8, 0.25, dtype=torch.float64)
    x = (x[x.abs() != 3] if function is F.hardswish else x).requires_grad_()
    expected = function(x)
    (slope,) = torch.autograd.grad(expected.sum(), x)
    gradient = derive(builder, output, ("acc",))["acc"]
    got = evaluate([output, gradient], {"acc": x, "dy": torch.ones_like(x)})
    torch.testing.assert_close(torch.stack(got), torch.stack([expected, slope]), rtol=0, atol=1e-6)
    assert evaluate([output], {"acc": torch.tensor(math.nan)})[0].isnan()


def test_the_gradient_by_hand() -> None:
    """Symbolically: nothing is computed twice, and the kink stops the gradient itself."""
    found = epilogue(EXPRESSIONS["issue"]).gradients
    z = "add(mul(acc, scale), bias)"
    behind = f"where(le({z}, 0), 0, dy)"
    assert found == {
        "acc": f"mul({behind}, scale)",
        "scale": f"mul({behind}, acc)",
        "bias": behind,
        "res": "dy",
    }


def test_equal_nodes_are_one_and_constants_fold() -> None:
    builder, output, _ = trace(lambda acc: (acc + 1) * (acc + 1) + 0 + math.pi * (2 - 2))
    assert [node.op for node in order([output])] == ["input", "const", "add", "mul"]
    gradient = derive(builder, output, ("acc",))["acc"]
    assert gradient.text() == "add(mul(dy, add(acc, 1)), mul(dy, add(acc, 1)))"


def leaves_of(
    made: Epilogue, device: str, dtype: torch.dtype, m: int = 24, n: int = 40, k: int = 16
) -> dict[str, torch.Tensor]:
    """x, w and operands by the names' kinds, that require gradients."""
    shapes = {"x": (m, k), "w": (n, k)}
    shapes |= {name: (m, n) if name == "res" else (n,) for name in made.operands}
    return {
        name: torch.randn(shape, device=device).to(dtype).requires_grad_()
        for name, shape in shapes.items()
    }


UNITS = {
    torch.float64: 2.0**-40,  # several roundings, and cancellation
    torch.float32: 2.0**-16,
    torch.float16: 2.0**-11,  # one rounding
    torch.bfloat16: 2.0**-8,
}


@pytest.mark.parametrize("dtype", UNITS)
@pytest.mark.parametrize("name", EXPRESSIONS)
def test_linear(device: str, dtype: torch.dtype, name: str) -> None:
    """Values and gradients of every operand against float64, rounded once.

    NOTE: backward starts from the product as it was kept, in the operands' type. Where a kink lies
    between that and the exact product, the exact gradient is another one altogether: of relu(acc *
    scale + bias) in bfloat16 at 1.5 of 10,000 elements, which is 9 roundings of the gradient's norm
    (eager, which rounds twice: 14), while the mask of float64 at the kept product leaves the .9 of
    rounding the result. So the reference takes its gradient at the kept product.
    """
    function = EXPRESSIONS[name]
    fused = device == "cuda" and dtype in run.ELEMENTS and hopper()
    made = epilogue(function, unfused=not fused)
    leaves = leaves_of(made, device, dtype)
    operands = {name: leaves[name] for name in made.operands}
    got = fusedops.linear(leaves["x"], leaves["w"], epilogue=made(**operands))
    wide = {n: t.detach().double().requires_grad_() for n, t in leaves.items()}
    acc, unit = wide["x"] @ wide["w"].t(), UNITS[dtype]
    exact = function(acc.detach(), *(wide[n].detach() for n in made.operands))
    # NOTE: a GPU's bfloat16 sigmoid has an absolute error of 2**-12, which a factor scales.
    near = unit * max(1.0, float(exact.abs().max()) / 8)
    torch.testing.assert_close(got.double(), exact, rtol=unit, atol=near)
    kept = acc + (acc.detach().to(dtype).double() - acc.detach())
    dy = torch.randn(exact.shape, device=device).to(dtype)
    ours = torch.autograd.grad(got, list(leaves.values()), dy)
    at_kept = function(kept, *(wide[n] for n in made.operands))
    theirs = gradients_of(at_kept, list(wide.values()), dy.double())
    for leaf, g, e in zip(leaves, ours, theirs, strict=True):
        # NOTE: the products' gradients start from a rounded one.
        assert g.dtype == dtype
        assert float((g.double() - e).norm()) <= 1.5 * unit * float(e.norm()), leaf
        torch.testing.assert_close(
            g.double(), e, rtol=2 * unit, atol=2 * unit * float(e.abs().max()), msg=leaf
        )


def hopper() -> bool:
    return torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9


def mixture(acc, r, c, f, s, t):
    return acc * r + c * f + torch.tanh(acc * s) * t


def test_kinds_of_operands() -> None:
    """A row, a column, all, one element, a number; with leading dimensions; to second use."""
    made = epilogue(mixture)
    shapes = ((2, 3, 4), (5, 4), (2, 3, 1), (5,), (2, 3, 5), ())
    leaves = [torch.randn(s, dtype=torch.float64).requires_grad_() for s in shapes]

    def call(x, w, r, c, f, s):
        return fusedops.linear(x, w, epilogue=made(r=r, c=c, f=f, s=s, t=0.5))

    assert call(*leaves).shape == (2, 3, 5)
    # NOTE: exact, since float64 products are kept in float64.
    assert torch.autograd.gradcheck(call, leaves)


def test_matmul_and_mlp() -> None:
    made = epilogue(lambda acc, bias: F.silu(acc + bias))
    a, b, bias = (torch.randn(s, dtype=torch.float64) for s in ((6, 8), (8, 16), (16,)))
    hidden = F.silu(a @ b + bias)
    torch.testing.assert_close(fusedops.matmul(a, b, epilogue=made(bias=bias)), hidden)
    w2, b2, res = (torch.randn(s, dtype=torch.float64) for s in ((8, 16), (8,), (6, 8)))
    got = fusedops.mlp(a, b.t(), None, w2, b2, None, res, epilogue=made(bias=bias))
    torch.testing.assert_close(got, F.linear(hidden, w2, b2) + res)


def test_only_what_is_needed_gets_a_gradient() -> None:
    made = epilogue(EXPRESSIONS["gate"])
    x, w, bias, res = (torch.randn(s) for s in ((3, 4), (5, 4), (5,), (3, 5)))
    bias.requires_grad_()
    fusedops.linear(x, w, epilogue=made(bias=bias, res=res)).sum().backward()
    assert x.grad is None
    assert bias.grad is not None
    with torch.no_grad():
        assert not fusedops.linear(x, w, epilogue=made(bias=bias, res=res)).requires_grad


def test_autocast() -> None:
    made = epilogue(EXPRESSIONS["issue"])
    x, w, s, r = (torch.randn(q).requires_grad_() for q in ((8, 8), (16, 8), (16,), (8, 16)))
    with torch.autocast("cpu", torch.bfloat16):
        y = fusedops.linear(x, w, epilogue=made(scale=s, bias=s, res=r))
    assert y.dtype is torch.bfloat16
    y.sum().backward()
    assert all(t.grad.dtype is torch.float32 for t in (x, w, s, r))


def test_main_grad_and_empty() -> None:
    made = epilogue(EXPRESSIONS["softcap"])
    x, w = torch.randn(4, 8), torch.randn(16, 8).requires_grad_()
    w.main_grad = torch.zeros(16, 8)
    fusedops.linear(x, w, epilogue=made()).sum().backward()
    plain = w.detach().clone().requires_grad_()
    (5 * torch.tanh(F.linear(x, plain) / 5)).sum().backward()
    torch.testing.assert_close(w.main_grad, plain.grad)
    assert fusedops.linear(x[:0], plain, epilogue=made).shape == (0, 16)


@pytest.mark.parametrize("name", ["issue", "gelu", "softcap"])
def test_compile(name: str) -> None:
    """Without a graph break, forward and backward."""
    made = epilogue(EXPRESSIONS[name])
    leaves = leaves_of(made, "cpu", torch.float32)
    order_ = list(leaves)

    def call(*tensors: torch.Tensor) -> torch.Tensor:
        named = dict(zip(order_, tensors, strict=True))
        x, w = named.pop("x"), named.pop("w")
        return fusedops.linear(x, w, epilogue=made(**named)) * 2

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    got, expected = compiled(*leaves.values()), call(*leaves.values())
    torch.testing.assert_close(got, expected)
    ours = torch.autograd.grad(got.sum(), list(leaves.values()))
    theirs = torch.autograd.grad(expected.sum(), list(leaves.values()))
    torch.testing.assert_close(ours, theirs)


def test_opcheck() -> None:
    made = epilogue(EXPRESSIONS["issue"])
    x, w, v, r = (torch.randn(s) for s in ((4, 8), (16, 8), (16,), (4, 16)))
    kinds = (("scale", "column", 4), ("bias", "column", 4), ("res", "full", 4))
    program = made.program(kinds)
    ops = torch.ops.fusedops_epilogue
    torch.library.opcheck(ops.forward.default, (x, w, [v, v, r], [], program, True))
    names = "acc,scale,res"
    torch.library.opcheck(ops.backward.default, (r, r, [v, v, r], [], program, names))


# ---- what a GPU runs, compiled without one ----

needs_nvrtc = pytest.mark.skipif(torch.version.cuda is None, reason="a torch without CUDA")
KINDS = {"scale": ("column", 2), "bias": ("row", 4), "res": ("full", 2)}


def program_of(name: str) -> run.Program:
    builder, output, operands = trace(EXPRESSIONS[name])
    kinds = tuple((n, *KINDS[n]) for n in operands)
    return run.Program(output, derive(builder, output, ("acc", *operands)), kinds)


@needs_nvrtc
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", EXPRESSIONS)
def test_the_texts_compile(name: str, dtype: torch.dtype) -> None:
    program = program_of(name)
    ir = toolchain.compile_text(program.forward_source(dtype, False), run.ARCH, ir=True)
    cubin = toolchain.compile_text(
        program.backward_source(dtype, list(program.gradients)), run.ARCH, ir=False
    )
    assert len(ir) > 1000
    assert cubin[:4] == b"\x7fELF"


@needs_nvrtc
def test_a_refused_text_shows_what_the_compiler_said() -> None:
    with pytest.raises(fusedops.jit.BuildError, match='identifier "wrong" is undefined'):
        toolchain.compile_text("int f() { return wrong; }", run.ARCH, ir=False)


@pytest.mark.parametrize(
    ("function", "computed"),
    [
        (lambda acc, a, b: acc + a + b, "b"),
        (lambda acc, a, b: torch.relu(acc) * b + a, "acc,b"),
        (lambda acc, a, b: acc * b - a, "acc,a,b"),
    ],
)
def test_gradients_that_are_those_of_the_result(function: Any, computed: str) -> None:
    """None is computed, for the product and operands of its size, that is the result's."""
    x, w = torch.randn(3, 4).requires_grad_(), torch.randn(5, 4).requires_grad_()
    a, b = torch.randn(3, 5).requires_grad_(), torch.randn(5).requires_grad_()
    y, dy = fusedops.linear(x, w, epilogue=epilogue(function)(a=a, b=b)), torch.randn(3, 5)
    names: list[str] = []

    class Calls(TorchDispatchMode):
        def __torch_dispatch__(
            self, op: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if op is torch.ops.fusedops_epilogue.backward.default:
                names.append(args[5])
            return op(*args, **(kwargs or {}))

    with Calls():
        found = torch.autograd.grad(y, (x, w, a, b), dy)
    assert names == [computed]
    theirs = torch.autograd.grad(function(F.linear(x, w), a, b), (x, w, a, b), dy)
    torch.testing.assert_close(found, theirs)


def test_large_expressions() -> None:
    """Deep ones are no recursion, and a text of shared nodes does not grow without end."""
    made = epilogue(lambda acc: functools.reduce(lambda x, _: x * x + 1, range(100), acc))
    assert len(made.expression) < 10000
    assert "..." in made.gradients["acc"]
    deep = epilogue(lambda acc: functools.reduce(lambda x, _: torch.sin(x), range(250), acc))
    x, w = torch.randn(2, 3), torch.randn(4, 3).requires_grad_()
    fusedops.linear(x, w, epilogue=deep).sum().backward()
    assert w.grad is not None


CHILD = """
import sys, time, torch
from fusedops._epilogue import toolchain
made = []
def make():
    made.append(1); time.sleep(0.3); return b"content"
assert toolchain.cached("text", ".cubin", make) == b"content"
print(len(made))
"""


def test_one_of_many_processes_compiles(tmp_path: Path) -> None:
    environment = {**os.environ, "FUSEDOPS_CACHE_DIR": str(tmp_path)}
    children = [
        subprocess.Popen(
            [sys.executable, "-c", CHILD], stdout=subprocess.PIPE, text=True, env=environment
        )
        for _ in range(4)
    ]
    assert sorted(child.communicate()[0].strip() for child in children) == ["0", "0", "0", "1"]
    assert all(child.returncode == 0 for child in children)


def test_a_cut_file_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEDOPS_CACHE_DIR", str(tmp_path))
    assert toolchain.cached("a", ".cubin", lambda: b"first") == b"first"
    (file,) = tmp_path.rglob("*.cubin")
    file.write_bytes(file.read_bytes()[:-1])
    assert toolchain.cached("a", ".cubin", lambda: b"second") == b"second"
    assert toolchain.cached("a", ".cubin", lambda: b"third") == b"second"


def test_what_is_no_file_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe would be waited for, and a folder cannot be replaced."""
    monkeypatch.setenv("FUSEDOPS_CACHE_DIR", str(tmp_path))
    for make in (os.mkfifo, os.mkdir):
        toolchain.cached("a", ".cubin", lambda: b"first")
        (file,) = tmp_path.rglob("*.cubin")
        file.unlink()
        make(file)
        if make is os.mkfifo:
            assert toolchain.cached("a", ".cubin", lambda: b"second") == b"second"
        else:
            with pytest.raises(fusedops.jit.BuildError, match=r"cannot write to .*FUSEDOPS_CACHE"):
                toolchain.cached("a", ".cubin", lambda: b"second")


def test_an_error_of_the_compiler_is_not_the_caches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FUSEDOPS_CACHE_DIR", str(tmp_path))

    def make() -> bytes:
        raise FileNotFoundError("nvcc")

    with pytest.raises(FileNotFoundError, match="nvcc"):
        toolchain.cached("a", ".cubin", make)


def test_a_new_main_loop_is_linked_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another version of the package meets what an earlier one kept."""
    monkeypatch.setenv("FUSEDOPS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(toolchain, "PACKAGE", tmp_path)
    monkeypatch.setattr(run, "compile_text", lambda source, arch, ir: b" with " + source.encode())
    monkeypatch.setattr(run, "link", lambda parts, arch: b"".join(parts))
    config = launch.CONFIGS[0]
    file = tmp_path / "_epilogue" / "ir" / f"bf16_{config.name}.ltoir"
    file.parent.mkdir(parents=True)
    for loop in (b"first", b"second"):
        toolchain.main_loop_digest.cache_clear()  # as a new process
        file.write_bytes(loop)
        assert run.forward_cubin("a", "bf16", config) == loop + b" with a"
    assert len(list(tmp_path.rglob("*.cubin"))) == 2
    toolchain.main_loop_digest.cache_clear()


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(fusedops.jit.BuildError, match=r"no NVRTC .* pass unfused=True"):
        toolchain._library("NVRTC", ("no-such-package",), "libno-such.so")


@pytest.mark.parametrize(
    ("divisor", "multiplier", "shift"),
    [(1, 0, 0), (2, 2147483648, 0), (3, 2863311531, 1), (7, 2454267027, 2), (132, 4164816772, 7)],
)
def test_fast_division(divisor: int, multiplier: int, shift: int) -> None:
    """As cutlass::FastDivmod makes them."""
    made = launch._fast_division(divisor)
    assert [int.from_bytes(made[i : i + 4], "little") for i in (0, 4, 8)] == [
        divisor,
        multiplier,
        shift,
    ]


def test_the_configurations_are_those_of_the_kernels() -> None:
    text = (Path(__file__).parents[2] / "csrc/cutlass/configs/sm90_configs.h").read_text()
    rows = [line.strip() for line in text.splitlines() if line.startswith("    {")]
    for config in launch.CONFIGS:
        sizes = f"{{{config.tile_m}, {config.tile_n}, 64, {config.cluster_m}, {config.cluster_n},"
        assert rows[config.number].startswith(sizes)


@pytest.mark.parametrize(
    ("full", "long", "keep", "number"),
    [
        (0, False, False, 6),
        (0, True, True, 6),
        (1, False, False, 6),
        (1, True, False, 1),  # too few registers for more columns
        (1, False, True, 6),
        (2, False, False, 1),
    ],
)
def test_the_choice(full: int, long: bool, keep: bool, number: int) -> None:
    needs = launch.Needs(full, long, keep)
    for k in (1024, 4096):
        config = launch.choose(8192, 4096, k, 132, needs)
        assert config.number == number
        looped = long and (k > 1024 or number == 1)
        assert launch.loops(config, k, needs) == looped
    assert launch.choose(64, 4096, 4096, 132, needs).tile_m == 64


@pytest.mark.gpu
def test_what_the_kernels_do_not_take() -> None:
    made = epilogue(EXPRESSIONS["softcap"])
    x, w = torch.randn(8, 12, device="cuda"), torch.randn(16, 12, device="cuda")
    with pytest.raises(RuntimeError, match=r"take float16 and bfloat16; got .*unfused=True"):
        fusedops.linear(x, w, epilogue=made)
    with pytest.raises(RuntimeError, match=r"multiples of 8; got K 12, N 16; .*unfused=True"):
        fusedops.linear(x.half(), w.half(), epilogue=made)
