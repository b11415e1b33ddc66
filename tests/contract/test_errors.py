"""Bad input: one readable error that names op, argument, what was expected and what came."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F

import fusedops
from fusedops.ops.template import template_scale

T = torch.ones


def cuda_or_meta(device):
    """A second device to mix with."""
    return "cpu" if device == "cuda" else "meta"


# Calls on a device, and the whole message.
LINEAR = {
    "0d": (
        lambda d: (T((), device=d), T(3, 4, device=d)),
        "linear: x must have at least 1 dimension(s); got shape ()",
    ),
    "weight_1d": (
        lambda d: (T(2, 4, device=d), T(4, device=d)),
        "linear: weight must be 2-dimensional, (N, K); got shape (4,)",
    ),
    "weight_3d": (
        lambda d: (T(2, 4, device=d), T(1, 3, 4, device=d)),
        "linear: weight must be 2-dimensional, (N, K); got shape (1, 3, 4)",
    ),
    "k": (
        lambda d: (T(2, 4, device=d), T(3, 5, device=d)),
        "linear: weight must have shape (N, 4) to match x (..., 4); got (3, 5)",
    ),
    "k_of_1": (
        lambda d: (T(2, 1, device=d), T(3, 5, device=d)),
        "linear: weight must have shape (N, 1) to match x (..., 1); got (3, 5)",
    ),
    "bias_length": (
        lambda d: (T(2, 4, device=d), T(3, 4, device=d), T(4, device=d)),
        "linear: bias must have shape (3,) to match weight (3, 4); got (4,)",
    ),
    "bias_of_1": (
        lambda d: (T(2, 4, device=d), T(3, 4, device=d), T(1, device=d)),
        "linear: bias must have shape (3,) to match weight (3, 4); got (1,)",
    ),
    "bias_2d": (
        lambda d: (T(2, 4, device=d), T(3, 4, device=d), T(1, 3, device=d)),
        "linear: bias must have shape (3,) to match weight (3, 4); got (1, 3)",
    ),
    "int": (
        lambda d: (T(2, 4, device=d, dtype=torch.int64), T(3, 4, device=d, dtype=torch.int64)),
        "linear: x must be float16, bfloat16, float32 or float64; got int64",
    ),
    "bool": (
        lambda d: (T(2, 4, device=d, dtype=torch.bool), T(3, 4, device=d)),
        "linear: x must be float16, bfloat16, float32 or float64; got bool",
    ),
    "complex": (
        lambda d: (T(2, 4, device=d, dtype=torch.complex64), T(3, 4, device=d)),
        "linear: x must be float16, bfloat16, float32 or float64; got complex64",
    ),
    "mixed_dtype": (
        lambda d: (T(2, 4, device=d, dtype=torch.float16), T(3, 4, device=d)),
        "linear: weight must have dtype float16 like x; got float32",
    ),
    "mixed_bias_dtype": (
        lambda d: (T(2, 4, device=d), T(3, 4, device=d), T(3, device=d, dtype=torch.float64)),
        "linear: bias must have dtype float32 like x; got float64",
    ),
}
MATMUL = {
    "a_1d": (
        lambda d: (T(4, device=d), T(4, 3, device=d)),
        "matmul: a must be 2-dimensional, (M, K); got shape (4,)",
    ),
    "a_3d": (
        lambda d: (T(2, 2, 4, device=d), T(4, 3, device=d)),
        "matmul: a must be 2-dimensional, (M, K); got shape (2, 2, 4)",
    ),
    "b_1d": (
        lambda d: (T(2, 4, device=d), T(4, device=d)),
        "matmul: b must be 2-dimensional, (K, N); got shape (4,)",
    ),
    "k": (
        lambda d: (T(2, 4, device=d), T(3, 4, device=d)),
        "matmul: b must have shape (4, N) to match a (2, 4); got (3, 4)",
    ),
    "bias": (
        lambda d: (T(2, 4, device=d), T(4, 3, device=d), T(2, device=d)),
        "matmul: bias must have shape (3,) to match b (4, 3); got (2,)",
    ),
    "int": (
        lambda d: (T(2, 4, device=d, dtype=torch.int32), T(4, 3, device=d)),
        "matmul: a must be float16, bfloat16, float32 or float64; got int32",
    ),
    "mixed_dtype": (
        lambda d: (T(2, 4, device=d), T(4, 3, device=d, dtype=torch.bfloat16)),
        "matmul: b must have dtype float32 like a; got bfloat16",
    ),
}
CASES = [
    pytest.param(function, *case, id=f"{function.__name__}-{label}")
    for function, cases in ((fusedops.linear, LINEAR), (fusedops.matmul, MATMUL))
    for label, case in cases.items()
]


@pytest.mark.parametrize("activation", [None, "gelu"])
@pytest.mark.parametrize(("function", "arguments", "text"), CASES)
def test_message(device, function, arguments, text, activation):
    values = arguments(device)
    with pytest.raises(RuntimeError, match=f"^{re.escape(text)}$"):
        function(*values, activation=activation)
    # The same where a gradient is needed
    with pytest.raises(RuntimeError, match=f"^{re.escape(text)}$"):
        function(
            *(t.requires_grad_() if t.is_floating_point() else t for t in values),
            activation=activation,
        )


@pytest.mark.parametrize(("function", "arguments", "text"), CASES)
def test_fake_tensors_give_the_same_message(function, arguments, text):
    with pytest.raises(RuntimeError, match=f"^{re.escape(text)}$"):
        function(*arguments("meta"))


@pytest.mark.parametrize("argument", ["weight", "bias"])
def test_mixed_devices(device, argument):
    other = cuda_or_meta(device)
    tensors = {"x": T(2, 4, device=device), "weight": T(3, 4, device=device)}
    tensors["bias"] = T(3, device=device)
    tensors[argument] = tensors[argument].to(other)
    with pytest.raises(
        RuntimeError, match=rf"linear: {argument} must be on {device}.* like x; got"
    ):
        fusedops.linear(**tensors)


@pytest.mark.multi_gpu
def test_two_gpus():
    x, weight = T(2, 4, device="cuda:0"), T(3, 4, device="cuda:1")
    with pytest.raises(RuntimeError, match="linear: weight must be on cuda:0 like x; got cuda:1"):
        fusedops.linear(x, weight)


@pytest.mark.parametrize("function", [fusedops.linear, fusedops.matmul])
@pytest.mark.parametrize("activation", ["ReLU", "gelu_erf", "", 1, F.relu, ["relu"], True])
def test_unknown_activation_lists_the_known_ones(device, function, activation):
    x = T(4, 4, device=device)
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the whole text is compared)
        function(x, x, activation=activation)
    assert str(caught.value) == (
        f"{function.__name__}: activation must be None or one of 'none', 'relu', 'gelu', "
        f"'gelu_tanh', 'silu', 'sigmoid', 'tanh', 'relu2', 'quick_gelu', 'leaky_relu', "
        f"'hardswish', 'mish', 'softplus', 'elu', 'relu6'; got {activation!r}"
    )


@pytest.mark.parametrize("bad", [None, 1.0, [[1.0]], "x"], ids=str)
def test_what_is_no_tensor(device, bad):
    x = T(4, 4, device=device)
    kind = type(bad).__name__
    for arguments, text in [
        ((bad, x), f"linear: x must be a Tensor; got {kind}"),
        ((x, bad), f"linear: weight must be a Tensor; got {kind}"),
        ((x, x, bad), f"linear: bias must be a Tensor or None; got {kind}"),
    ]:
        if "bias" in text and bad is None:
            continue
        with pytest.raises(TypeError, match=f"^{re.escape(text)}$"):
            fusedops.linear(*arguments)
    with pytest.raises(TypeError, match=r"^matmul: b must be a Tensor; got"):
        fusedops.matmul(x, bad)


def test_numpy_array_is_no_tensor():
    numpy = pytest.importorskip("numpy")
    with pytest.raises(TypeError, match="linear: weight must be a Tensor; got ndarray"):
        fusedops.linear(T(2, 4), numpy.ones((3, 4), "float32"))


@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.parametrize("layout", ["sparse", "sparse_csr"])
def test_sparse_tensors_are_refused(layout):
    dense = torch.eye(4)
    sparse = dense.to_sparse() if layout == "sparse" else dense.to_sparse_csr()
    for arguments in [(sparse, dense), (dense, sparse)]:
        with pytest.raises((RuntimeError, NotImplementedError), match="linear"):
            fusedops.linear(*arguments)


def test_forward_only_op_refuses_to_lose_a_gradient(device):
    x = T(3, device=device, requires_grad=True)
    text = r"template_scale: x must not require grad, since .* got"
    with pytest.raises(RuntimeError, match=text):
        template_scale(x, 2.0)
    with torch.no_grad():
        assert torch.equal(template_scale(x, 2.0), 2 * x)
    assert torch.equal(template_scale(x.detach(), 2.0), 2 * x.detach())


def test_an_error_leaves_nothing_behind(device):
    x, weight = T(2, 4, device=device, requires_grad=True), T(3, 4, device=device)
    with pytest.raises(RuntimeError):
        fusedops.linear(x, weight.t())
    if device == "cuda":
        torch.cuda.synchronize()
    assert torch.is_grad_enabled()
    fusedops.linear(x, weight).sum().backward()
    assert x.grad is not None


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_errors_under_compile_name_the_argument(device, compiled):
    torch.compiler.reset()
    function = torch.compile(fusedops.linear, backend="aot_eager") if compiled else fusedops.linear
    with pytest.raises(Exception, match=r"linear: weight must have shape \(N, 4\)"):
        function(T(2, 4, device=device), T(3, 5, device=device))
