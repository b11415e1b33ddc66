"""embedding_backward: values against the definition in float64, order of the sums, errors."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import fusedops
from util import DTYPES, generator, make, name, poisoned

backward = torch.ops.fusedops.embedding_backward
reference = fusedops.reference.embedding_backward

# Entries, rows, D: one value, rows without alignment, several vectors, wider than a block's vectors
SHAPES = [
    *((1, 1, 1), (50, 7, 1), (50, 9, 3), (300, 40, 65), (1000, 3, 8), (40, 3000, 24)),
    *((200, 50, 257), (70, 30, 2048), (9, 5, 4104), (9, 5, 2051)),
]


def draw(entries, rows, device, seed=0):
    return torch.randint(rows, (entries,), generator=generator("cpu", seed)).to(device)


def assert_sums(got, grad, indices, num_rows, padding_idx=None):
    """One rounding of sums that were formed in float32, float64 for float64."""
    exact = reference(grad.double(), indices, num_rows, padding_idx)
    size = reference(grad.double().abs(), indices, num_rows, padding_idx)
    wide = torch.float64 if got.dtype is torch.float64 else torch.float32
    terms = max(indices.numel(), 1)
    allowed = torch.finfo(got.dtype).eps * exact.abs() + terms * torch.finfo(wide).eps * size
    assert got.shape == exact.shape
    assert got.is_contiguous()
    assert ((got.double() - exact).abs() <= allowed + torch.finfo(got.dtype).tiny).all()
    assert (got[size == 0] == 0).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_values(device, dtype, shape):
    entries, rows, d = shape
    grad, indices = make(entries, d, dtype=dtype, device=device), draw(entries, rows, device)
    for padding_idx in (-1, int(indices[0])):
        for idx in (indices, indices.int()):
            with poisoned():
                got = backward(grad, idx, rows, padding_idx)
            none = padding_idx if padding_idx >= 0 else None
            assert got.dtype is dtype
            assert_sums(got, grad, indices, rows, none)


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_agrees_with_torch(device, dtype):
    weight = make(30, 24, dtype=dtype, device=device).requires_grad_()
    indices = draw(90, 30, device).view(3, 30)
    for padding_idx in (None, 4):
        y = F.embedding(indices, weight, padding_idx)
        dy = make(*y.shape, dtype=dtype, device=device, seed=1)
        (want,) = torch.autograd.grad(y, weight, dy)
        got = backward(dy, indices, 30, -1 if padding_idx is None else padding_idx)
        eps = torch.finfo(dtype).eps
        torch.testing.assert_close(got, want, rtol=8 * eps, atol=64 * eps)


@pytest.mark.parametrize("entries", [63, 64, 65, 128, 4096, 5000])
@pytest.mark.parametrize("d", [1, 7, 64])
def test_all_indices_equal(device, entries, d):
    grad = make(entries, d, dtype=torch.bfloat16, device=device)
    indices = torch.full((entries,), 2, device=device)
    got = backward(grad, indices, 4, -1)
    assert_sums(got, grad, indices, 4)
    assert torch.equal(backward(grad, indices, 4, 2), torch.zeros_like(got))


def chunked(rows, chunk):
    """The sum in the order of the op."""
    total = torch.zeros_like(rows[0])
    full = len(rows) // chunk * chunk
    for start in range(0, full, chunk):
        part = torch.zeros_like(total)
        for row in rows[start : start + chunk]:
            part = part + row
        total = total + part
    for row in rows[full:]:
        total = total + row
    return total


@pytest.mark.parametrize(("entries", "chunk"), [(1000, 64), (4096, 64), (5000, 128)])
def test_order_of_the_sums(device, entries, chunk):
    # Lists that begin anywhere in the sorted order, with no, one and several full chunks.
    grad = make(entries, 8, dtype=torch.float32, device=device)
    rows = 1 + draw(entries, 9, device, seed=1).square() // 8  # few to many
    rows[: entries // 3] = 0
    got = backward(grad, rows, 12, -1)
    for v in range(12):
        of_row = grad[rows == v]
        want = chunked(of_row, chunk) if len(of_row) else torch.zeros_like(grad[0])
        assert torch.equal(got[v], want)


def test_a_row_does_not_depend_on_other_rows(device):
    grad = make(2000, 16, dtype=torch.float32, device=device)
    rows = draw(2000, 4, device)
    whole = backward(grad, rows, 50, -1)
    for v in range(4):
        others = torch.where(rows == v, v, 10 + draw(2000, 40, device, seed=v))
        assert torch.equal(backward(grad, others, 50, -1)[v], whole[v])


def test_repeats_bitwise(device):
    grad, indices = make(6000, 40, dtype=torch.bfloat16, device=device), draw(6000, 5, device)
    first = backward(grad, indices, 5, -1)
    for _ in range(5):
        assert torch.equal(backward(grad, indices, 5, -1), first)


def test_more_entries_than_are_counted(device):
    # On a GPU they are sorted.
    grad, indices = make(300_000, 2, dtype=torch.float32, device=device), draw(300_000, 7, device)
    for idx in (indices, indices.int()):
        assert_sums(backward(grad, idx, 9, 6), grad, indices, 9, 6)


def test_strides(device):
    indices = draw(60, 11, device).view(5, 12)
    base = make(12, 5, 48, dtype=torch.bfloat16, device=device)
    for grad in (
        base.transpose(0, 1),
        base.transpose(0, 1)[..., ::2],
        base.transpose(0, 1)[..., 3:43],
        base[0, 0].expand(5, 12, 48),
    ):
        want = backward(grad.contiguous(), indices, 11, -1)
        assert torch.equal(backward(grad, indices, 11, -1), want)
        strided = indices.t().contiguous().t()
        assert torch.equal(backward(grad, strided, 11, -1), want)


def test_unaligned_memory(device):
    flat, indices = make(50 * 16 + 1, dtype=torch.bfloat16, device=device), draw(50, 6, device)
    grad = flat[1:].view(50, 16)
    assert torch.equal(backward(grad, indices, 6, -1), backward(grad.clone(), indices, 6, -1))


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_empty(device, index):
    none = torch.zeros(0, dtype=index, device=device)
    with poisoned():
        got = backward(torch.ones(0, 5, device=device), none, 3, -1)
    assert torch.equal(got, torch.zeros(3, 5, device=device))
    assert backward(torch.ones(0, 5, device=device), none, 0, -1).shape == (0, 5)
    assert backward(torch.ones(2, 0, device=device), none.new_zeros(2), 3, -1).shape == (3, 0)
    one = backward(torch.ones(3, device=device), none.new_ones(()), 2, -1)
    assert torch.equal(one, torch.tensor([[0.0] * 3, [1.0] * 3], device=device))


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("bad", [-1, -5, 4, 2**31 - 1])
def test_an_index_that_is_no_row(device, bad, index):
    grad = torch.ones(3, 8, device=device)
    indices = torch.tensor([1, bad, 1], dtype=index, device=device)
    if device == "cpu":
        # NOTE: from torch 2.13 on an op has the text of torch's error alone.
        kind = RuntimeError if torch.__version__ >= "2.13" else IndexError
        with pytest.raises(kind, match="index out of range in self"):
            backward(grad, indices, 4, -1)
    else:  # as if it were not there
        got = backward(grad, indices, 4, -1)
        assert torch.equal(got, backward(grad[::2].contiguous(), indices[::2].contiguous(), 4, -1))


@pytest.mark.gpu
def test_only_indices_that_are_no_rows():
    grad = torch.ones(500, 8, device="cuda")
    for bad in (-1, 4, 2**62):
        indices = torch.full((500,), bad, device="cuda")
        assert not backward(grad, indices, 4, -1).any()


def test_errors(device):
    grad, idx = torch.ones(2, 3, 4), torch.zeros(2, 3, dtype=torch.int64)
    for arguments, text in [
        ((torch.ones(()), idx, 5, -1), r"grad must have at least 1 dimension\(s\); got shape \(\)"),
        ((grad, idx.short(), 5, -1), "indices must have dtype int32 or int64; got int16"),
        (
            (grad, idx[:1], 5, -1),
            r"indices must have the shape of grad \(2, 3, 4\) without the last dimension; got "
            r"\(1, 3\)",
        ),
        ((grad, idx[0], 5, -1), r"indices must have the shape of grad .*; got \(3,\)"),
        ((grad, idx, -1, -1), "num_rows must be from 0 to 4294967294; got -1"),
        ((grad, idx, 2**32, -1), "num_rows must be from 0 to 4294967294; got 4294967296"),
        ((grad, idx, 5, 5), "padding_idx must be -1 or a row of 5; got 5"),
        ((grad, idx, 5, -2), "padding_idx must be -1 or a row of 5; got -2"),
    ]:
        for to in (device, "meta"):
            moved = [a.to(to) if isinstance(a, torch.Tensor) else a for a in arguments]
            with pytest.raises(RuntimeError, match=f"^embedding_backward: {text}$"):
                backward(*moved)
    other = "cpu" if device == "cuda" else "meta"
    with pytest.raises((RuntimeError, NotImplementedError)):
        backward(grad.to(device), idx.to(other), 5, -1)


@pytest.mark.gpu
def test_a_gpu_sums_as_a_cpu():
    for entries, d in ((5000, 24), (700, 5)):
        grad, indices = make(entries, d, dtype=torch.float16, device="cpu"), draw(entries, 4, "cpu")
        want = backward(grad, indices, 6, -1)
        assert torch.equal(backward(grad.cuda(), indices.cuda(), 6, -1).cpu(), want)


@pytest.mark.gpu
@pytest.mark.slow  # other tests beside it leave too little memory
def test_more_than_2_to_31_elements():
    rows, d = 2**20 + 3, 2048 + 8
    if torch.cuda.mem_get_info()[0] < 3 * 2 * rows * d:
        pytest.skip("needs 13 GB")
    indices = torch.tensor([rows - 1, 7, rows - 1], device="cuda")
    grad = make(3, d, dtype=torch.bfloat16, device="cuda")
    got = backward(grad, indices, rows, -1)
    assert torch.equal(got[7], grad[1])
    assert torch.equal(got[-1], (grad[0].float() + grad[2].float()).bfloat16())
    assert int(torch.count_nonzero(got.view(torch.int16))) <= 2 * d


@pytest.mark.gpu
def test_a_gradient_of_more_than_2_to_31_elements():
    entries, d = 2**20 + 3, 2048 + 8
    if torch.cuda.mem_get_info()[0] < 3 * 2 * entries * d:
        pytest.skip("needs 13 GB")
    grad = torch.zeros(entries, d, dtype=torch.bfloat16, device="cuda")
    grad[-1] = make(d, dtype=torch.bfloat16, device="cuda")
    indices = torch.arange(entries, device="cuda") % 50
    got = backward(grad, indices, 50, -1)
    last = (entries - 1) % 50
    assert torch.equal(got[last], grad[-1])
    assert not got[torch.arange(50, device="cuda") != last].any()
