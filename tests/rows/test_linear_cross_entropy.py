"""linear_cross_entropy: values and gradients, chunks, options, shapes, dtypes, errors."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F

import fusedops
from fusedops import reference
from fusedops.ops import linear_cross_entropy_autograd as autograd
from util import DTYPES, HALVES, LAYOUTS, assert_accurate, linear_inputs, make, name, poisoned

every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=name)
every_reduction = pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
EXTRAS = {"label_smoothing": 0.1, "softcap": 3.0, "z_loss": 0.01}


def inputs(m, v, k, dtype, device):
    """x, weight, bias and targets, every fifth row ignored."""
    x, weight, bias, _ = linear_inputs(m, v, k, dtype, device)
    target = torch.randint(v, (m,), generator=torch.Generator().manual_seed(0)).to(device)
    target[2::5] = -100
    return x, weight, bias, target


def leaves(*tensors, dtype=None):
    """Copies that require a gradient."""
    return [t.detach().to(dtype or t.dtype, copy=True).requires_grad_() for t in tensors]


def by_torch(x, weight, target, bias=None, **options):
    """What a user writes without us."""
    full = {"ignore_index": -100, "label_smoothing": 0.0, "softcap": 0.0, "z_loss": 0.0}
    full |= {"reduction": "mean", "fp32_out": False, "chunk_size": 0, **options}
    return autograd.compose(x, weight, bias, target, tuple(full.values()))


def check(x, weight, bias, target, chunk_size=None, **options):
    """Loss and gradients against float64, by torch's own error."""
    given = (x, weight, bias)
    ours, theirs, exact = leaves(*given), leaves(*given), leaves(*given, dtype=torch.float64)
    losses = [
        function(a, w, target, b, **options, **more)
        for function, (a, w, b), more in (
            (fusedops.linear_cross_entropy, ours, {"chunk_size": chunk_size}),
            (by_torch, theirs, {}),
            (reference.linear_cross_entropy, exact, {}),
        )
    ]
    assert losses[0].dtype is x.dtype
    assert_accurate(losses[0].detach(), losses[1].detach(), losses[2].detach(), "loss")
    for loss in losses:
        with poisoned():
            loss.backward(torch.full_like(loss, 0.75))
    for what, a, b, c in zip(("dx", "dweight", "dbias"), ours, theirs, exact, strict=True):
        assert a.grad.is_contiguous()
        assert_accurate(a.grad, b.grad, c.grad, what)


@every_dtype
@every_reduction
@pytest.mark.parametrize(("m", "v", "k"), [(33, 10, 16), (40, 257, 24), (7, 1000, 33)])
def test_matches_torch(device, m, v, k, reduction, dtype):
    tensors = inputs(m, v, k, dtype, device)
    check(*tensors, reduction=reduction)
    check(*tensors, reduction=reduction, chunk_size=16, **EXTRAS)


@pytest.mark.parametrize("option", EXTRAS)
def test_each_option(device, option):
    check(*inputs(33, 50, 16, torch.float32, device), **{option: EXTRAS[option]})


@every_dtype
@pytest.mark.parametrize("chunk_size", [1, 5, 16, 32, 33, 100])
def test_chunks(device, chunk_size, dtype):
    check(*inputs(33, 64, 32, dtype, device), chunk_size=chunk_size)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", HALVES, ids=name)
@pytest.mark.parametrize(
    ("m", "v", "k", "chunk_size"),
    [(1024, 32000, 1024, 512), (1000, 50257, 768, 400), (2048, 8192, 512, 256), (3, 128256, 64, 2)],
)
def test_vocabularies(m, v, k, chunk_size, dtype):
    check(*inputs(m, v, k, dtype, "cuda"), chunk_size=chunk_size)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", HALVES, ids=name)
@pytest.mark.parametrize(("m", "n", "k"), [(512, 4096, 1024), (130, 1000, 520), (64, 50257, 72)])
def test_weight_gradients_add_up_in_halves(m, n, k, dtype):
    """A half weight gradient of two chunks is rounded to within two ulp of their sum."""
    x, weight, _, target = inputs(2 * m, n, k, dtype, "cuda")
    (w,) = leaves(weight)
    fusedops.linear_cross_entropy(x, w, target, chunk_size=m, reduction="sum").backward()
    parts = []
    for rows in (slice(0, m), slice(m, 2 * m)):
        (part,) = leaves(weight)
        fusedops.linear_cross_entropy(x[rows], part, target[rows], reduction="sum").backward()
        parts.append(part.grad.double())
    info = torch.finfo(dtype)
    largest = torch.maximum(parts[0].abs(), parts[1].abs())
    allowed = 2 * info.eps * (largest + (parts[0] + parts[1]).abs()) + info.smallest_normal
    assert ((w.grad.double() - parts[0] - parts[1]).abs() <= allowed).all()


@pytest.mark.parametrize("needs", list(itertools.product([False, True], repeat=3))[1:], ids=str)
@every_reduction
def test_only_the_gradients_that_are_asked_for(device, reduction, needs):
    x, weight, bias, target = inputs(20, 30, 8, torch.float32, device)
    given = [t.requires_grad_(need) for t, need in zip((x, weight, bias), needs, strict=True)]
    wanted = [t for t, need in zip(given, needs, strict=True) if need]
    ours = fusedops.linear_cross_entropy(x, weight, target, bias, reduction=reduction, chunk_size=8)
    theirs = by_torch(x, weight, target, bias, reduction=reduction)
    got = torch.autograd.grad(ours.sum(), wanted)
    for a, b in zip(got, torch.autograd.grad(theirs.sum(), wanted), strict=True):
        torch.testing.assert_close(a, b)


def test_every_backward_through_a_graph(device):
    """The second one forms the gradients again; the first one's are left alone."""
    x, weight, bias, target = inputs(20, 30, 8, torch.float32, device)
    given = leaves(x, weight, bias)
    loss = fusedops.linear_cross_entropy(given[0], given[1], target, given[2])
    first = torch.autograd.grad(loss, given, retain_graph=True)
    kept = [g.clone() for g in first]
    second = torch.autograd.grad(2 * loss, given, retain_graph=True)
    third = torch.autograd.grad(loss, given)
    for a, b, c, d in zip(first, second, third, kept, strict=True):
        torch.testing.assert_close(b, 2 * a)
        torch.testing.assert_close(c, a)
        assert torch.equal(a, d)


def test_the_gradient_is_not_copied(device, monkeypatch):
    """What the op has formed is what the weight gets."""
    formed = []

    def run(*arguments):
        formed.append(original(*arguments))
        return formed[-1]

    original = autograd.run
    monkeypatch.setattr(autograd, "run", run)
    x, weight, _, target = inputs(20, 30, 8, torch.float32, device)
    (weight,) = leaves(weight)
    loss = fusedops.linear_cross_entropy(x, weight, target)
    address = formed.pop()[3].data_ptr()
    loss.backward()
    assert weight.grad.data_ptr() == address


@pytest.mark.parametrize("dtype", HALVES, ids=name)
def test_loss_scaling(device, dtype):
    """Gradients of a mean that float16 cannot tell from zero before they are scaled."""
    x, weight, bias, target = inputs(4096, 64, 8, dtype, device)
    given, theirs = leaves(x, weight, bias), leaves(x, weight, bias)
    (2.0**10 * fusedops.linear_cross_entropy(given[0], given[1], target, given[2])).backward()
    exact = leaves(x, weight, bias, dtype=torch.float64)
    (2.0**10 * reference.linear_cross_entropy(exact[0], exact[1], target, exact[2])).backward()
    (2.0**10 * by_torch(theirs[0], theirs[1], target, theirs[2])).backward()
    for a, b, c in zip(given, theirs, exact, strict=True):
        assert_accurate(a.grad, b.grad, c.grad)


@pytest.mark.parametrize("ignore_index", [-100, 3, 2**40])
def test_ignore_index(device, ignore_index):
    x, weight, bias, target = inputs(40, 7, 8, torch.float32, device)
    target[target < 0] = 0
    target[::3] = ignore_index
    check(x, weight, bias, target, ignore_index=ignore_index, chunk_size=16)


@every_dtype
@every_reduction
def test_without_rows_that_count(device, reduction, dtype):
    for rows in (0, 3):
        x, weight, bias, _ = inputs(rows, 5, 4, dtype, device)
        target = torch.full((rows,), -100, device=device)
        given = leaves(x, weight, bias)
        loss = fusedops.linear_cross_entropy(
            given[0], given[1], target, given[2], reduction=reduction
        )
        want = F.cross_entropy(x.float() @ weight.float().t(), target, reduction=reduction)
        torch.testing.assert_close(loss.float(), want, equal_nan=True)
        loss.sum().backward()
        assert all(torch.equal(t.grad, torch.zeros_like(t)) for t in given)


@every_reduction
@pytest.mark.parametrize("v", [7, 5003])
def test_a_wrong_target_is_an_error_or_nan(device, v, reduction):
    """On the CPU torch's error, on the GPU NaN: nothing waits for it."""
    for wrong in (v, -1, -(2**40), 2**40):
        x, weight, _, target = inputs(12, v, 8, torch.float32, device)
        target[4] = wrong
        (x,) = leaves(x)
        if device == "cpu":
            with pytest.raises(IndexError, match=rf"^Target {wrong} is out of bounds\.$"):
                fusedops.linear_cross_entropy(x, weight, target, reduction=reduction)
            continue
        loss = fusedops.linear_cross_entropy(x, weight, target, reduction=reduction, chunk_size=8)
        if reduction == "none":
            assert loss.isnan().nonzero().flatten().tolist() == [4]
        else:
            assert loss.isnan()
        loss.sum().backward()
        assert x.grad.isnan().any(1).nonzero().flatten().tolist() == [4]


@every_reduction
@pytest.mark.parametrize("shape", [(), (4,), (2, 3), (2, 0, 3)], ids=str)
def test_shapes(device, shape, reduction):
    x = make(*shape, 8, dtype=torch.float32, device=device).requires_grad_()
    weight = make(5, 8, dtype=torch.float32, device=device, seed=1)
    target = torch.randint(5, shape).to(device)
    loss = fusedops.linear_cross_entropy(x, weight, target, reduction=reduction)
    logits = (x @ weight.t()).reshape(-1, 5)
    want = F.cross_entropy(logits, target.reshape(-1), reduction=reduction)
    want = want.reshape(shape) if reduction == "none" else want
    torch.testing.assert_close(loss, want, equal_nan=True)
    (ours,) = torch.autograd.grad(loss.sum(), x)
    torch.testing.assert_close(ours, torch.autograd.grad(want.sum(), x)[0])


@pytest.mark.parametrize("layout", [layout for layout in LAYOUTS if layout != "expanded"])
def test_layouts(device, layout):
    x, weight, bias, target = inputs(24, 40, 16, torch.bfloat16, device)
    given = [LAYOUTS[layout](t).requires_grad_() for t in (x, weight)]
    wide = torch.stack([target, target], 1)[:, 0]
    strided = torch.stack([bias, bias], 1)[:, 0]
    loss = fusedops.linear_cross_entropy(*given, wide, strided)
    dense = leaves(x, weight)
    want = fusedops.linear_cross_entropy(*dense, target, bias)
    torch.testing.assert_close(loss, want)
    pairs = zip(torch.autograd.grad(loss, given), torch.autograd.grad(want, dense), strict=True)
    for a, b in pairs:
        torch.testing.assert_close(a, b)


@every_dtype
def test_repeats_bitwise(device, dtype):
    x, weight, bias, target = inputs(100, 300, 64, dtype, device)

    def step():
        given = leaves(x, weight, bias)
        loss = fusedops.linear_cross_entropy(given[0], given[1], target, given[2], chunk_size=32)
        loss.backward()
        return [loss.detach(), *(t.grad for t in given)]

    first = step()
    for _ in range(3):
        assert all(torch.equal(a, b) for a, b in zip(step(), first, strict=True))


@pytest.mark.parametrize("dtype", HALVES, ids=name)
@pytest.mark.parametrize("master", [torch.float32, None], ids=["master", "half"])
def test_autocast_gives_the_dtypes_of_torch(device, dtype, master):
    x, weight, bias, target = inputs(24, 40, 16, master or dtype, device)
    given, theirs = leaves(x, weight, bias), leaves(x, weight, bias)
    with torch.autocast(device, dtype=dtype):
        loss = fusedops.linear_cross_entropy(given[0], given[1], target, given[2], chunk_size=8)
        want = F.cross_entropy(F.linear(theirs[0], theirs[1], theirs[2]), target)
    assert loss.dtype is want.dtype is torch.float32
    torch.testing.assert_close(loss, want, rtol=1e-2, atol=1e-2)
    loss.backward()
    want.backward()
    for a, b in zip(given, theirs, strict=True):
        assert a.grad.dtype is a.dtype
        torch.testing.assert_close(a.grad, b.grad, rtol=2e-2, atol=1e-3)


def test_autocast_forms_the_gradient_of_an_fp32_weight_in_fp32(device):
    x, weight, _, target = inputs(64, 40, 16, torch.float32, device)
    (weight,) = leaves(weight)
    with torch.autocast(device, dtype=torch.bfloat16):
        fusedops.linear_cross_entropy(x, weight, target).backward()
    assert not torch.equal(weight.grad, weight.grad.bfloat16().float())


@pytest.mark.parametrize("add", [True, False])
def test_main_grad(device, add):
    x, weight, _, target = inputs(24, 40, 16, torch.bfloat16, device)
    (expected,) = leaves(weight)
    fusedops.linear_cross_entropy(x, expected, target).backward()
    (weight,) = leaves(weight)
    weight.main_grad = torch.ones(40, 16, device=device)
    weight.overwrite_main_grad = not add
    weight.grad_added_to_main_grad = False
    (x,) = leaves(x)
    loss = fusedops.linear_cross_entropy(x, weight, target)
    assert torch.equal(weight.main_grad, torch.ones_like(weight.main_grad))
    loss.backward()
    assert weight.grad_added_to_main_grad
    want = expected.grad.float() + (1.0 if add else 0.0)
    torch.testing.assert_close(weight.main_grad, want, rtol=1e-2, atol=1e-3)
    assert torch.equal(weight.grad, torch.zeros_like(weight))


@every_reduction
def test_higher_derivatives(device, reduction):
    x, weight, bias, target = inputs(7, 5, 3, torch.float64, device)
    given = leaves(x, weight, bias)

    def call(x, weight, bias):
        return fusedops.linear_cross_entropy(
            x, weight, target, bias, reduction=reduction, chunk_size=4, **EXTRAS
        )

    assert torch.autograd.gradcheck(call, given)
    assert torch.autograd.gradgradcheck(call, given)


def test_function_transforms(device):
    x, weight, bias, target = inputs(7, 5, 3, torch.float32, device)

    def loss(x, weight, bias):
        return fusedops.linear_cross_entropy(x, weight, target, bias, **EXTRAS)

    given = leaves(x, weight, bias)
    want = torch.autograd.grad(loss(*given), given)
    got = torch.func.grad(loss, argnums=(0, 1, 2))(x, weight, bias)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)


@every_reduction
@pytest.mark.parametrize("dynamic", [False, True])
def test_compile(device, reduction, dynamic):
    torch.compiler.reset()
    x, weight, bias, target = inputs(24, 5, 8, torch.float32, device)
    compiled = torch.compile(
        lambda x, w, b: fusedops.linear_cross_entropy(
            x, w, target[: x.shape[0]], b, reduction=reduction, chunk_size=4
        ),
        fullgraph=True,
        backend="aot_eager",
        dynamic=dynamic,
    )
    for rows in (24, 15):
        given = leaves(x[:rows], weight, bias)
        loss = compiled(*given)
        want = by_torch(given[0], given[1], target[:rows], given[2], reduction=reduction)
        torch.testing.assert_close(loss, want)
        ours = torch.autograd.grad(3 * loss.sum(), given)
        theirs = torch.autograd.grad(3 * want.sum(), given)
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.gpu
def test_memory_and_capture():
    """No logits of all rows, and no wait for the GPU in forward and backward."""
    m, v, k = 4096, 16384, 256
    x, weight, _, target = inputs(m, v, k, torch.bfloat16, "cuda")
    x, weight = leaves(x, weight)

    def step():
        x.grad = weight.grad = None
        loss = fusedops.linear_cross_entropy(x, weight, target, chunk_size=512)
        loss.backward()
        return loss

    want = step().detach()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() - (m * k + v * k) * 2
    step()
    assert torch.cuda.max_memory_allocated() - before < m * v * 2 // 2
    gradient = weight.grad.clone()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        loss = step()
    graph.replay()
    assert torch.equal(loss.detach(), want)
    assert torch.equal(weight.grad, gradient)


def test_errors(device):
    x, w, t = torch.ones(3, 4), torch.ones(5, 4), torch.zeros(3, dtype=torch.int64)
    call = fusedops.linear_cross_entropy
    for to in (device, "meta"):
        a, b, c = x.to(to), w.to(to), t.to(to)
        for arguments, options, text in [
            ((a, b, c[:2]), {}, r"target must have shape \(3,\) to match x \(3, 4\); got \(2,\)"),
            ((a, b, c.int()), {}, "target must have dtype int64; got int32"),
            ((a, b[:0], c), {}, r"weight must have at least one class; got shape \(0, 4\)"),
            ((a, b[:, :3], c), {}, r"weight must have shape \(N, 4\) to match x .*; got \(5, 3\)"),
            ((a, b, c, b[0]), {}, r"bias must have shape \(5,\) to match weight .*; got \(4,\)"),
            ((a, b.double(), c), {}, "weight must have dtype float32 like x; got float64"),
            ((a[0, 0], b, c[0]), {}, r"x must have at least 1 dimension\(s\); got shape \(\)"),
            ((a, b, c), {"label_smoothing": 1.5}, "label_smoothing must be from 0 to 1; got 1.5"),
            ((a, b, c), {"softcap": -2.0}, "softcap must be at least 0; got -2"),
            ((a, b, c), {"z_loss": -0.5}, "z_loss must be at least 0; got -0.5"),
            ((a, b, c), {"chunk_size": -1}, "chunk_size must be at least 0; got -1"),
        ]:
            with pytest.raises(RuntimeError, match=f"^linear_cross_entropy: {text}$"):
                call(*arguments, **options)
        for number, text in [(c.sum(), "dloss must be float16, .*"), (a[0], "dloss must have .*")]:
            with pytest.raises(RuntimeError, match=f"^scale_gradient_: {text}"):
                torch.ops.fusedops.scale_gradient_(a, number, a[0, :1])
        with pytest.raises(RuntimeError, match=r"scale must have shape \(1,\); got \(2,\)"):
            torch.ops.fusedops.scale_gradient_(a, a[0, 0], a[0, :2])
    with pytest.raises(ValueError, match="reduction must be one of none, mean, sum; got 'max'"):
        call(x, w, t, reduction="max")
    with pytest.raises(TypeError, match="target must be a Tensor; got list"):
        call(x, w, [0])
    if device == "cpu":
        w.requires_grad_().main_grad = torch.ones(5, 4)
        with pytest.raises(Exception, match=r"main_grad must not be used under torch\.compile"):
            torch.compile(call, fullgraph=True, backend="eager")(x, w, t)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@pytest.mark.parametrize("count", [1, 7, 100_003])
def test_scaling_a_gradient(dtype, count):
    for offset in (0, 1):
        given = make(count + offset, dtype=dtype, device="cuda")[offset:]
        for dloss, scale in ((1.0, 1.0), (3.0, 0.25), (0.0, 1.0)):
            gradient = (
                given.clone() if offset == 0 else make(count + 1, dtype=dtype, device="cuda")[1:]
            )
            numbers = torch.tensor(dloss, device="cuda"), torch.tensor([scale], device="cuda")
            torch.ops.fusedops.scale_gradient_(gradient, *numbers)
            assert torch.equal(gradient, (given.double() * (dloss * scale)).to(dtype))
