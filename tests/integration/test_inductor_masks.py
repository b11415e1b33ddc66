"""Masks of attention in the graph pass: causal and full ones go, all others stay."""

from __future__ import annotations

import operator

import pytest
import torch
import torch.nn.functional as F

import fusedops
from fusedops._inductor.pre_grad import masks, values
from integration.test_inductor import without_codegen

T = 6


def positions(x):
    return torch.arange(x.shape[-2], device=x.device)


def causal(x):
    p = positions(x) + 0
    return (p[None, None, None, :] <= p[None, None, :, None]).expand(2, -1, T, T)


def packed(x, lengths=(T,)):
    """As transformers makes it: keys up to the query, of the same sequence of a packed row."""
    p = torch.cat([torch.arange(n, device=x.device) for n in lengths])[None].expand(2, -1)
    sequence = (torch.diff(p, prepend=p[:, :1] - 1, dim=-1) != 1).cumsum(-1)
    batch = torch.arange(2, device=x.device)[:, None, None, None]
    q, k = positions(x)[None, None, :, None], positions(x)[None, None, None, :]
    mask = q.new_ones((), dtype=torch.bool)
    mask = mask & (k <= q).to(x.device)
    return (mask & (sequence[batch, q] == sequence[batch, k])).expand(2, -1, T, T)


def packed_twice(x):
    return packed(x, (2, T - 2))


def lower(x):
    return torch.ones(T, T, dtype=torch.bool, device=x.device).tril()


def full(x):
    p = positions(x)
    return (p[None, :] >= 0).expand(T, T)


def window(x):
    p = positions(x)
    return causal(x) & (p[None, :] > p[:, None] - 3)


def strict(x):
    p = positions(x)
    return p[None, :] < p[:, None] + 2


def written(x):
    mask = lower(x)
    mask.view(-1)[5] = True
    return mask


def written_later(x):
    mask = lower(x)
    mask.logical_or_(x[0, 0, 0, 0] > 9)
    return mask


def additive(x):
    return torch.ones(T, T, device=x.device)


def zeros(x):
    return torch.where(full(x), torch.zeros(1, 3, T, T, device=x.device), -9.0).contiguous()


def least(x):
    """As transformers adds what is hidden."""
    return torch.zeros(1, 3, T, T, device=x.device).masked_fill(~lower(x), torch.finfo(x.dtype).min)


def hardly(x):
    return torch.zeros(T, T, device=x.device).masked_fill(~lower(x), -9.0)


def from_input(x):
    return lower(x) & (x[0, 0, :1, :1] < 99)


def random(x):
    return torch.rand(T, T, device=x.device) < 2


CASES = {causal: 1, packed: 1, lower: 1, full: 1, zeros: 1, least: 1} | dict.fromkeys(
    (packed_twice, window, strict, written, written_later, additive, hardly, from_input, random), 0
)


def attend(mask, **options):
    def run(x):
        return F.scaled_dot_product_attention(x, x, x, attn_mask=mask(x), **options)

    return run


def masks_left(function, x, **options):
    """The compiled function, the report, and the calls that still have a mask."""
    torch._dynamo.reset()
    seen = []
    ours = fusedops.inductor(force=True, **options)
    inner = without_codegen(ours["options"])

    def backend(graph, inputs):
        compiled = inner(graph, inputs)
        nodes = graph.graph.find_nodes(op="call_function", target=F.scaled_dot_product_attention)
        seen.extend((n.kwargs.get("attn_mask"), n.kwargs.get("is_causal")) for n in nodes)
        return compiled

    run = torch.compile(function, backend=backend, fullgraph=True, dynamic=False)
    return run(x), ours.report, seen


@pytest.mark.parametrize("mask", CASES, ids=operator.attrgetter("__name__"))
def test_which_masks_go(device, mask):
    x = torch.randn(2, 3, T, 8, device=device)
    got, report, seen = masks_left(attend(mask), x)
    torch.testing.assert_close(got, attend(mask)(x), rtol=1e-5, atol=1e-5)
    assert report.masks == CASES[mask]
    assert [m is None for m, _ in seen] == [bool(CASES[mask])]
    if CASES[mask]:
        assert seen[0][1] is (mask not in (full, zeros))
        assert "instead of masked" in str(report)


def test_more_keys_than_queries(device):
    """A triangle that ends at the last key is not torch's is_causal."""
    x = torch.randn(2, 3, T, 8, device=device)

    def run(x):
        q, p = x[:, :, -2:], positions(x)
        return F.scaled_dot_product_attention(q, x, x, attn_mask=p <= p[-2:, None])

    got, report, _ = masks_left(run, x)
    torch.testing.assert_close(got, run(x), rtol=1e-5, atol=1e-5)
    assert report.masks == 0


def test_gradients(device):
    x = torch.randn(2, 3, T, 8, device=device, requires_grad=True)
    got, report, _ = masks_left(attend(causal), x)
    want = attend(causal)(x)
    assert report.masks == 1
    pair = [torch.autograd.grad(y.square().sum(), x)[0] for y in (got, want)]
    torch.testing.assert_close(*pair, rtol=1e-5, atol=1e-5)


def test_lengths_that_are_not_fixed_keep_the_mask(device):
    torch._dynamo.reset()
    ours = fusedops.inductor(force=True)
    backend = without_codegen(ours["options"])

    def run(x):
        p = positions(x)
        mask = p <= p[:, None]
        return F.scaled_dot_product_attention(x, x, x, attn_mask=mask)

    compiled = torch.compile(run, backend=backend, dynamic=True)
    for length in (5, 9):
        x = torch.randn(2, 3, length, 8, device=device)
        torch.testing.assert_close(compiled(x), run(x), rtol=1e-5, atol=1e-5)
    assert ours.report.masks == 0


def test_a_pass_that_was_there_runs_before(device):
    seen = []
    x = torch.randn(2, 3, T, 8, device=device)
    first = lambda graph: seen.append(len(graph.nodes))  # noqa: E731
    _, report, _ = masks_left(attend(causal), x, pre_grad_custom_pass=first)
    assert len(seen) == 1
    assert report.masks == 1


def test_the_whole_of_inductor(device):
    torch._dynamo.reset()
    x = torch.randn(2, 3, T, 8, device=device)
    ours = fusedops.inductor()
    got = torch.compile(attend(causal), dynamic=False, **ours)(x)
    torch.testing.assert_close(got, attend(causal)(x), rtol=1e-5, atol=1e-5)
    assert ours.report.masks == 1


# ---- what changes a mask behind its back ----


@torch.library.custom_op("fusedops_test::clear_mask", mutates_args={"mask"})
def clear_mask(mask: torch.Tensor) -> None:
    mask.fill_(True)


def by_remainder(p):
    p %= 2


def by_shift(p):
    p <<= 1


def by_relu(p):
    F.relu(p, inplace=True)


def by_relu_in_place_of_it(p):
    F.relu(p, True)


def by_method(p):
    p.__imod__(2)


def by_aten(p):
    torch.ops.aten.fill_.Scalar(p, 0)


def by_packet(p):
    torch.ops.aten.fill_(p, 0)


def by_custom_op(p):
    clear_mask(p)


def by_numpy(p):
    p.numpy()[1:] = 0


def by_list(p):
    torch._foreach_mul_(p.split(2), 0)


CHANGES = (
    by_remainder, by_shift, by_relu, by_relu_in_place_of_it, by_method, by_aten, by_packet,
    by_custom_op, by_numpy, by_list,
)  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=operator.attrgetter("__name__"))
def test_positions_that_are_changed_through_an_alias(device, change):
    if change is by_numpy and device != "cpu":
        pytest.skip("NumPy reads the memory of a CPU")

    def run(x):
        p = positions(x) - 3
        seen = p.view(-1)
        change(p)
        mask = seen[None, :] <= (positions(x) - 3)[:, None]
        return F.scaled_dot_product_attention(x, x, x, attn_mask=mask)

    x = torch.randn(2, 3, T, 8, device=device)
    got, report, _ = masks_left(run, x)
    torch.testing.assert_close(got, run(x), rtol=1e-5, atol=1e-5)
    assert report.masks == 0


def test_what_reads_positions_is_no_reason_to_keep_the_mask(device):
    """As models do: embeddings, angles of rotary embeddings, functions that could work in place."""
    table = torch.randn(T, 8, device=device)

    def run(x):
        p = positions(x)
        angles = torch.matmul(p.float()[:, None], torch.ones(1, 8, device=x.device)).cos()
        x = x * angles + F.embedding(p, table) + F.relu(p)[:, None]
        x = x + torch.ops.aten.neg(p)[:, None]
        return F.scaled_dot_product_attention(x, x, x, attn_mask=p <= p[:, None])

    x = torch.randn(2, 3, T, 8, device=device)
    got, report, _ = masks_left(run, x)
    torch.testing.assert_close(got, run(x), rtol=1e-5, atol=1e-5)
    assert report.masks == 1


def test_views_behind_attention_may_copy(device, monkeypatch):
    """The kernel without a mask gives another layout; here it is made to.

    There is one head: whether a kernel has heads or queries outside, one can view its result.
    """
    attention = masks.F.scaled_dot_product_attention
    say = masks._say

    def turned(*given, **options):
        return attention(*given, **options).mT.contiguous().mT

    def say_and_turn(node, **options):
        say(node, **options)
        node.target = turned

    def run(x):
        before, heads = x.view(-1, 8), attend(lower)(x)
        return heads.view(2, -1) * 2, heads.view(torch.int32), before

    x = torch.randn(2, 1, T, 8, device=device)
    monkeypatch.setattr(masks, "_say", say_and_turn)
    got, report, _ = masks_left(run, x)
    torch.testing.assert_close(got[0], run(x)[0], rtol=1e-5, atol=1e-5)
    assert got[1].dtype is torch.int32
    assert report.masks == 1


def test_calls_of_other_lengths_share_a_mask(device):
    """The first key alone is causal for one query, and is not for more."""

    def run(x):
        mask = positions(x)[None, :] < 1
        queries = x[:, :, :1], x
        return [F.scaled_dot_product_attention(q, x, x, attn_mask=mask) for q in queries]

    x = torch.randn(2, 3, T, 8, device=device)
    got, report, seen = masks_left(run, x)
    torch.testing.assert_close(got, run(x), rtol=1e-5, atol=1e-5)
    assert report.masks == 1
    assert [m is None for m, _ in seen] == [True, False]


def test_what_is_too_large_is_not_evaluated(device, monkeypatch):
    """A mask of a large batch may be made of more than it is."""

    def run(x):
        p = positions(x)
        many = torch.arange(1000, device=x.device)[:, None, None] >= 0
        return F.scaled_dot_product_attention(x, x, x, attn_mask=(many & (p <= p[:, None]))[0])

    evaluated = []
    monkeypatch.setattr(values, "LARGEST", 999 * T * T)
    monkeypatch.setattr(values, "_evaluate", lambda *given: evaluated.append(given))
    x = torch.randn(2, 3, T, 8, device=device)
    got, report, _ = masks_left(run, x)
    torch.testing.assert_close(got, run(x), rtol=1e-5, atol=1e-5)
    assert report.masks == 0
    assert not evaluated


def test_transforms_of_functions_keep_the_mask(device):
    """What is made under torch.func.grad does not say which memory it has."""

    def run(x):
        return torch.func.grad(lambda x: attend(causal)(x).square().sum())(x)

    x = torch.randn(2, 3, T, 8, device=device)
    got, report, _ = masks_left(run, x)
    torch.testing.assert_close(got, run(x), rtol=1e-5, atol=1e-5)
    assert report.masks == 0


# ---- masks with a copy for each of a batch ----


def biased(bias, seen):
    """T5's: a bias where a mask that is as large as the batch lets it be seen."""
    return torch.where(seen, bias, torch.finfo(bias.dtype).min).contiguous()


def sum_of_two(bias, seen):
    return bias.expand(2, -1, -1, -1) + (~seen).to(bias.dtype) * -9.0


def of_each(bias, seen):
    own = torch.arange(2, device=bias.device)[:, None, None, None]
    return torch.where(seen, bias * own, -9.0)


def of_an_input(bias, seen):
    return torch.where(seen, bias + torch.arange(2.0, device=bias.device)[:, None, None, None], 0)


def changed_copy(bias, seen):
    mask = torch.where(seen, bias, -9.0)
    mask[1].mul_(2)
    return mask


@pytest.mark.parametrize(
    ("form", "shared"),
    [(biased, 1), (sum_of_two, 1), (of_each, 0), (of_an_input, 0), (changed_copy, 0)],
    ids=lambda given: getattr(given, "__name__", ""),
)
@pytest.mark.parametrize(
    "seen", [causal, lambda x: full(x).expand(2, 1, T, T)], ids=["causal", "full"]
)
def test_one_mask_for_a_batch(device, form, shared, seen):
    x = torch.randn(2, 3, T, 8, device=device, requires_grad=True)
    bias = torch.randn(1, 3, T, T, device=device, requires_grad=True)

    def run(x):
        return F.scaled_dot_product_attention(x, x, x, attn_mask=form(bias, seen(x)))

    got, report, calls = masks_left(run, x)
    want = run(x)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    assert (report.masks, report.shared_masks) == (0, shared)
    assert calls[0][0].meta["example_value"].shape[0] == (1 if shared else 2)
    if shared:
        assert "one mask for a batch" in str(report)
    pairs = (torch.autograd.grad(y.square().sum(), (x, bias)) for y in (got, want))
    for a, b in zip(*pairs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
