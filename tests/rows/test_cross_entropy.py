"""cross_entropy: values, gradients, ignored and wrong targets, shapes, dtypes, errors."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

import fusedops
from fusedops import reference
from util import DTYPES, HALVES, LAYOUTS, assert_accurate, make, name, poisoned

every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=name)
REDUCTIONS = ("none", "mean", "sum")


def inputs(rows, classes, dtype, device):
    """Logits and targets, every fifth row ignored."""
    logits = make(rows, classes, dtype=dtype, device=device, scale=2.0)
    target = torch.randint(classes, (rows,)).to(device)
    target[2::5] = -100
    return logits, target


def check(logits, target, **options):
    """Loss and gradient against float64, by torch's own error."""
    leaves = [t.detach().clone().requires_grad_() for t in (logits, logits, logits.double())]
    with poisoned():
        loss = fusedops.cross_entropy(leaves[0], target, **options)
    theirs = F.cross_entropy(leaves[1], target, **options)
    exact = reference.cross_entropy(leaves[2], target, **options)
    assert loss.dtype is logits.dtype
    assert loss.shape == theirs.shape
    assert_accurate(loss.detach(), theirs.detach(), exact.detach(), "loss")
    dloss = torch.full_like(loss, 0.75)
    with poisoned():
        loss.backward(dloss)
    theirs.backward(dloss)
    exact.backward(dloss.double())
    assert_accurate(leaves[0].grad, leaves[1].grad, leaves[2].grad, "gradient")


@every_dtype
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("classes", [2, 10, 100, 257, 1000, 5003])
def test_matches_torch(device, classes, reduction, dtype):
    logits, target = inputs(33, classes, dtype, device)
    for label_smoothing in (0.0, 0.1):
        check(logits, target, reduction=reduction, label_smoothing=label_smoothing)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", HALVES, ids=name)
@pytest.mark.parametrize(
    ("rows", "classes"),
    [(1, 32768), (5, 128255), (140, 50257), (3000, 50257), (20011, 100), (20011, 4097)],
)
def test_vocabularies(rows, classes, dtype):
    check(*inputs(rows, classes, dtype, "cuda"), reduction="mean", label_smoothing=0.1)


@pytest.mark.parametrize("ignore_index", [-100, 3, 2**40])
def test_ignore_index(device, ignore_index):
    logits, target = inputs(40, 7, torch.float32, device)
    target[target < 0] = 0
    target[::3] = ignore_index
    check(logits, target, ignore_index=ignore_index, reduction="mean")


@pytest.mark.parametrize("classes", [7, 5003])
def test_a_wrong_target_is_an_error_or_nan(device, classes):
    """On the CPU torch's error, on the GPU NaN: nothing waits for it."""
    for wrong in (classes, -1, -(2**40), 2**40):
        logits, target = inputs(12, classes, torch.float32, device)
        target[4] = wrong
        logits.requires_grad_()
        if device == "cpu":
            with pytest.raises(IndexError, match=rf"^Target {wrong} is out of bounds\.$"):
                fusedops.cross_entropy(logits, target)
            with pytest.raises(IndexError, match=rf"^Target {wrong} is out of bounds\.$"):
                F.cross_entropy(logits, target)
            continue
        loss = fusedops.cross_entropy(logits, target, reduction="none")
        assert loss.isnan().nonzero().flatten().tolist() == [4]
        loss.sum().backward()
        assert logits.grad.isnan().any(1).nonzero().flatten().tolist() == [4]


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_without_rows_that_count(device, reduction):
    for rows in (0, 3):
        logits = torch.ones(rows, 4, device=device, requires_grad=True)
        target = torch.full((rows,), -100, device=device)
        loss = fusedops.cross_entropy(logits, target, reduction=reduction)
        want = F.cross_entropy(logits, target, reduction=reduction)
        torch.testing.assert_close(loss, want, equal_nan=True)
        loss.sum().backward()
        assert torch.equal(logits.grad, torch.zeros_like(logits))


@pytest.mark.parametrize(
    ("shape", "target_shape"),
    [((5,), ()), ((4, 5), (4,)), ((4, 5, 3), (4, 3)), ((2, 5, 3, 2), (2, 3, 2))],
)
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_shapes(device, shape, target_shape, reduction):
    logits = make(*shape, dtype=torch.float32, device=device).requires_grad_()
    target = torch.randint(5, target_shape).to(device)
    loss = fusedops.cross_entropy(logits, target, reduction=reduction)
    want = F.cross_entropy(logits, target, reduction=reduction)
    torch.testing.assert_close(loss, want)
    (ours,) = torch.autograd.grad(loss.sum(), logits)
    torch.testing.assert_close(ours, torch.autograd.grad(want.sum(), logits)[0])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(device, layout):
    logits, target = inputs(24, 40, torch.bfloat16, device)
    laid = LAYOUTS[layout](logits)
    wide = torch.stack([target, target], 1)[:, 0]
    got = fusedops.cross_entropy(laid, wide)
    assert torch.equal(got, fusedops.cross_entropy(laid.contiguous(), target))


@pytest.mark.parametrize("dtype", HALVES, ids=name)
def test_autocast_gives_the_dtypes_of_torch(device, dtype):
    logits, target = inputs(24, 40, dtype, device)
    logits.requires_grad_()
    with torch.autocast(device, dtype=dtype):
        loss = fusedops.cross_entropy(logits, target)
        want = F.cross_entropy(logits, target)
    assert loss.dtype is want.dtype is torch.float32
    # NOTE: on CUDA torch rounds the log-probabilities to halves first.
    torch.testing.assert_close(loss, F.cross_entropy(logits.float(), target))
    (ours,), (theirs,) = torch.autograd.grad(loss, logits), torch.autograd.grad(want, logits)
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_higher_derivatives(device, reduction):
    logits, target = inputs(7, 5, torch.float64, device)
    logits.requires_grad_()

    def call(x):
        return fusedops.cross_entropy(x, target, reduction=reduction, label_smoothing=0.1)

    assert torch.autograd.gradcheck(call, logits)
    assert torch.autograd.gradgradcheck(call, logits)


def test_compile(device):
    logits, target = inputs(7, 5, torch.float32, device)
    logits.requires_grad_()
    compiled = torch.compile(fusedops.cross_entropy, fullgraph=True, backend="aot_eager")
    loss, want = compiled(logits, target), F.cross_entropy(logits, target)
    torch.testing.assert_close(loss, want)
    (ours,), (theirs,) = torch.autograd.grad(loss, logits), torch.autograd.grad(want, logits)
    torch.testing.assert_close(ours, theirs)


def test_extreme_logits(device):
    rows = [[3e4, -3e4, 0.0], [-math.inf, 0, 1], [3e4] * 3, [-3e4] * 3, [-math.inf, -3e4, -3e4]]
    target = torch.tensor([1, 2, 0, 1, 2], device=device)
    for pad in (0, 5000):
        logits = F.pad(torch.tensor(rows, device=device), (0, pad), value=-math.inf)
        for dtype in (torch.float32, torch.float16):
            given = logits.to(dtype)
            loss = fusedops.cross_entropy(given, target, reduction="none")
            torch.testing.assert_close(loss, F.cross_entropy(given, target, reduction="none"))


def test_errors(device):
    x, t = torch.ones(3, 4), torch.zeros(3, dtype=torch.int64)
    for to in (device, "meta"):
        a, b = x.to(to), t.to(to)
        for logits, target, text in [
            (a, b[:2], r"target must have shape \(3,\) to match logits \(3, 4\); got \(2,\)"),
            (a, b.int(), "target must have dtype int64; got int32"),
            (a[:, :0], b, r"logits must have at least one class; got shape \(3, 0\)"),
            (a.unsqueeze(2), b, r"target must have shape \(3, 1\) to match .*; got \(3,\)"),
        ]:
            with pytest.raises(RuntimeError, match=f"^cross_entropy: {text}$"):
                fusedops.cross_entropy(logits, target)
        with pytest.raises(RuntimeError, match=r"label_smoothing must be from 0 to 1; got 1\.5"):
            fusedops.cross_entropy(a, b, label_smoothing=1.5)
    with pytest.raises(ValueError, match="reduction must be one of none, mean, sum; got 'max'"):
        fusedops.cross_entropy(x, t, reduction="max")
    with pytest.raises(TypeError, match="target must be a Tensor; got list"):
        fusedops.cross_entropy(x, [0])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", HALVES, ids=name)
@pytest.mark.parametrize("classes", [2047, 2049, 4096, 30522])
def test_rows_of_the_gradient(dtype, classes):
    """Long odd rows are padded to whole 16 bytes: products read such rows as they are."""
    logits, target = inputs(6, classes, dtype, "cuda")
    leaf = logits.view(2, 3, classes).clone().requires_grad_()
    op = torch.ops.fusedops.cross_entropy_backward
    loss, lse, scale = torch.ops.fusedops.cross_entropy(logits, target, -100, 0.0, 1, False)
    arguments = (torch.ones_like(loss), logits, target, lse, scale, -100, 0.0, 1)
    with poisoned():
        grad = op(*arguments)
    pitch = classes if classes < 2048 else -(-classes // 8) * 8
    assert grad.stride() == (pitch, 1)
    torch.library.opcheck(op.default, arguments, test_utils=("test_schema", "test_faketensor"))
    fusedops.cross_entropy(leaf.flatten(0, 1), target).backward()
    torch.testing.assert_close(leaf.grad.view(6, classes), grad, rtol=0, atol=0)


@pytest.mark.gpu
@pytest.mark.slow
def test_more_than_2_32_bytes():
    rows, classes = (2**32 + 17) // 2 // 4097 + 1, 4097
    logits = torch.zeros(rows, classes, dtype=torch.float16, device="cuda")
    target = torch.full((rows,), classes - 1, device="cuda")
    loss, lse, scale = torch.ops.fusedops.cross_entropy(logits, target, -100, 0.0, 0, True)
    assert (loss - math.log(classes)).abs().max().item() < 1e-4
    grad = torch.ops.fusedops.cross_entropy_backward(
        torch.ones_like(loss), logits, target, lse, scale, -100, 0.0, 0
    )
    assert (grad[:, -1].float() + 1).abs().max().item() < 1e-3
    assert (grad[:, :-1] >= 0).all()


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("ignore_index", [-100, 0])
def test_composed_targets_out_of_range(device, reduction, ignore_index):
    """As elsewhere: torch's error on the CPU, else NaN in their rows, and no error."""
    logits = make(4, 5, dtype=torch.float32, device=device).requires_grad_()
    target = torch.tensor([1, 7, ignore_index, -3], device=device)

    def loss(x):
        return fusedops.cross_entropy(x, target, reduction=reduction, ignore_index=ignore_index)

    if device == "cpu":
        for call in (loss, torch.func.grad(lambda x: loss(x).sum())):
            with pytest.raises(IndexError, match=r"^Target (7|-3) is out of bounds"):
                call(logits.detach())
        return
    (expected,) = torch.autograd.grad(loss(logits).sum(), logits)
    assert expected.isnan().any(1).tolist() == [False, True, False, True]
    (composed,) = torch.autograd.grad(loss(logits).sum(), logits, create_graph=True)
    torch.testing.assert_close(composed, expected, equal_nan=True)
    x = logits.detach()
    transformed = torch.func.grad(lambda x: loss(x).sum())(x)
    torch.testing.assert_close(transformed, expected, equal_nan=True)
    torch.testing.assert_close(torch.func.vmap(loss)(x[None])[0], loss(x), equal_nan=True)


def test_errors_of_odd_arguments():
    with pytest.raises(RuntimeError, match="logits must have 1 dimension at least"):
        fusedops.cross_entropy(torch.tensor(1.0), torch.tensor(0))
    with pytest.raises(ValueError, match=r"reduction must be one of .* got \['mean'\]"):
        fusedops.cross_entropy(torch.ones(2, 3), torch.tensor([0, 1]), reduction=["mean"])


@pytest.mark.parametrize("n", [3, 40, 1023, 5000, 200_001])
def test_far_bfloat16(device, n):
    lowest = torch.finfo(torch.bfloat16).min
    target = torch.tensor([1, 0, 2], device=device)
    for top in (1e9, -1e9, 1e10, -1e10, -1e30, 2e38, 3e38, -3e38, lowest):
        logits = torch.full((3, n), top, dtype=torch.bfloat16, device=device)
        logits[1, 1:] = lowest
        logits[2, 0] = -math.inf
        loss = fusedops.cross_entropy(logits, target, reduction="none")
        expected = F.cross_entropy(logits.double(), target, reduction="none")
        torch.testing.assert_close(loss, expected.to(loss.dtype))


@pytest.mark.parametrize("top", [1e10, 1e30, 3e38])
@pytest.mark.parametrize("n", [3, 40, 5000])
def test_gradient_of_far_bfloat16(device, n, top):
    logits = torch.zeros(2, n, dtype=torch.bfloat16, device=device)
    logits[:, 1] = top
    logits.requires_grad_()
    target = torch.tensor([1, 2], device=device)
    fusedops.cross_entropy(logits, target, reduction="sum").backward()
    expected = F.one_hot(torch.ones_like(target), n) - F.one_hot(target, n)
    assert torch.equal(logits.grad, expected.to(logits.dtype))
