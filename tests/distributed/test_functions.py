"""Public functions and their gradients on DTensors: what the whole tensors give."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import fusedops
from distributed.models import whole
from util import Calls

pytest.importorskip("torch.distributed.tensor")
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import loss_parallel

B, T, K, H = 4, 6, 8, 12
R, S0, S1, S2 = Replicate(), Shard(0), Shard(1), Shard(2)


def tensors(device, *shapes):
    generator = torch.Generator().manual_seed(5)
    return [
        torch.randn(s, generator=generator, dtype=torch.float64).mul_(0.5).to(device)
        for s in shapes
    ]


def gated(x, g, u, d, bg, bu, bd):
    return fusedops.gated_mlp(x, g, u, d, bg, bu, bd, activation="silu", residual=x)


# name: (function, shapes, placements of the arguments, placement of the result)
X, W1, W2 = (B, T, K), (H, K), (K, H)
CASES = {
    "linear, rows": (fusedops.linear, [X, W1, (H,)], [S1, R, R], S1),
    "linear, columns": (lambda *a: fusedops.linear(*a, "gelu"), [X, W1, (H,)], [R, S0, S0], S2),
    "linear, partial": (fusedops.linear, [X, W1, (H,)], [S2, S1, R], Partial()),
    "linear, no partial": (lambda *a: fusedops.linear(*a, "relu"), [X, W1, (H,)], [S2, S1, R], R),
    "mlp, partial": (
        lambda x, *a: fusedops.mlp(x, *a, "gelu", residual=x),
        [X, W1, (H,), W2, (K,)], [R, S0, S0, S1, R], Partial(),
    ),
    "mlp, rows": (
        lambda *a: fusedops.mlp(*a, "relu"), [X, W1, (H,), W2, (K,)], [S1, R, R, R, R], S1
    ),
    "gated, partial": (
        gated, [X, W1, W1, W2, (H,), (H,), (K,)], [R, S0, S0, S1, S0, S0, R], Partial()
    ),
    "gated, rows": (gated, [X, W1, W1, W2, (H,), (H,), (K,)], [S0, R, R, R, R, R, R], S0),
    "gated, packed": (
        lambda x, w, d: fusedops.gated_mlp(x, w, None, d, activation="silu"),
        [X, (2 * H, K), W2], [S1, R, R], S1,
    ),
    "layer_norm, sequence": (
        lambda x, w, b: fusedops.layer_norm(x, K, w, b), [X, (K,), (K,)], [S1, R, R], S1
    ),
    "layer_norm, batch": (
        lambda x, w, b: fusedops.layer_norm(x, K, w, b), [X, (K,), (K,)], [S0, R, R], S0
    ),
    "layer_norm, columns": (
        lambda x, w, b: fusedops.layer_norm(x, K, w, b), [X, (K,), (K,)], [S2, S0, S0], R
    ),
    "rms_norm, sequence": (lambda x, w: fusedops.rms_norm(x, K, w), [X, (K,)], [S1, R], S1),
    "rms_norm, uneven": (
        lambda x, w: fusedops.rms_norm(x, K, w), [(3, 5, K), (K,)], [S1, R], None
    ),
    "rms_norm, residual": (
        lambda x, r, w: fusedops.rms_norm(x, K, w, residual=r)[0], [X, X, (K,)], [S1, S1, R], S1
    ),
    "softmax": (fusedops.softmax, [X], [S1], S1),
    "bias_act": (lambda x, b: fusedops.bias_act(x, b, "gelu"), [X, (K,)], [S2, S0], S2),
    "add": (fusedops.add, [X, (T, K)], [S1, S0], S1),
    "sum": (lambda x: fusedops.sum(x, (0, 1)), [X], [S1], Partial()),
    "amax": (lambda x: fusedops.amax(x, 1), [X], [S0], S0),
    "var": (lambda x: fusedops.var(x, 2), [X], [S1], S1),
    **{
        f"{name}, {where}": (lambda x, f=f: f(x, 1), [X], [p], S0 if p is S0 else None)
        for name, f in {
            "mean": fusedops.mean, "norm": lambda x, d: fusedops.norm(x, 2, d),
            "prod": fusedops.prod,
            "logsumexp": fusedops.logsumexp, "std": fusedops.std, "amin": fusedops.amin,
            "cumsum": fusedops.cumsum, "cumprod": fusedops.cumprod,
            "topk": lambda x, d: fusedops.topk(x, 3, d)[0], "log_softmax": fusedops.log_softmax,
        }.items()
        for where, p in {"another dim": S0, "its dim": S1}.items()
    },
    "bias_grad": (fusedops.bias_grad, [X], [S1], Partial()),
    "square, fma and relu": (
        lambda x, y: fusedops.relu(fusedops.fma(fusedops.square(x), y, x)), [X, (T, 1)],
        [S2, R], S2,
    ),
    "stencil": (lambda x, w: fusedops.stencil1d(x, w), [X, (3,)], [S1, R], S1),
    "matmul": (lambda a, b: fusedops.matmul(a, b, None, "silu"), [(T, K), (K, H)], [S0, R], S0),
    "dropout of nothing": (
        lambda x, b: fusedops.bias_dropout_residual(x, b, x, 0.0), [X, (K,)], [S1, R], S1
    ),
}  # fmt: skip


def one_function(device, name):
    mesh = init_device_mesh(device, (2,))
    function, shapes, placements, result = CASES[name]
    plain = [t.requires_grad_() for t in tensors(device, *shapes)]
    pairs = zip(plain, placements, strict=True)
    given = [distribute_tensor(t.detach(), mesh, [p]).requires_grad_() for t, p in pairs]
    want = function(*plain)
    with Calls() as calls:
        y = function(*given)
        if result is not None:
            assert y.placements == (result,), y.placements
        torch.testing.assert_close(whole(y), want)
        (y * y).sum().backward()
    (want * want).sum().backward()
    for one, other in zip(given, plain, strict=True):
        torch.testing.assert_close(whole(one.grad), other.grad)
    # The same without a gradient.
    with torch.no_grad():
        torch.testing.assert_close(whole(function(*given)), want)
    return set(calls.ours)


@pytest.mark.parametrize("name", CASES)
def test_a_function_on_shards(ranks, name):
    for names in ranks.run(one_function, ranks.device, name):
        assert names


def some_need_gradients(device, needed):
    mesh = init_device_mesh(device, (2,))
    plain = tensors(device, X, W1, (H,), W2, (K,))
    placed = [distribute_tensor(t, mesh, [p]) for t, p in zip(plain, [S1, R, R, R, R], strict=True)]
    for function in (
        lambda x, w, b, *_: fusedops.linear(x, w, b, "gelu"),
        lambda *a: fusedops.mlp(*a, "gelu"),
    ):
        for those in (plain, placed):
            for i, t in enumerate(those):
                t.grad = None
                t.requires_grad_(i in needed)
            function(*those).square().sum().backward()
        for one, other in zip(placed, plain, strict=True):
            assert (one.grad is None) == (other.grad is None)
            if one.grad is not None:
                torch.testing.assert_close(whole(one.grad), other.grad)


@pytest.mark.parametrize("needed", [(0,), (1,), (2,), (0, 2), (1, 2)])
def test_some_arguments_need_gradients(ranks, needed):
    ranks.run(some_need_gradients, ranks.device, needed)


def losses(device, placement, in_parts):
    mesh = init_device_mesh(device, (2,))
    (logits,) = tensors(device, (6, 10))
    target = torch.tensor([1, 9, -100, 3, 0, 7], device=device)
    want = F.cross_entropy(logits.requires_grad_(), target)
    want.backward()
    given = distribute_tensor(logits.detach(), mesh, [placement]).requires_grad_()
    if in_parts:
        with loss_parallel():
            loss = fusedops.cross_entropy(given, target)
            loss.backward()
    else:
        loss = fusedops.cross_entropy(given, distribute_tensor(target, mesh, [R]))
        loss.backward()
    torch.testing.assert_close(whole(loss), want)
    torch.testing.assert_close(whole(given.grad), logits.grad)


@pytest.mark.parametrize(
    ("placement", "in_parts"), [(R, False), (S0, False), (S1, False), (S1, True)]
)
def test_mean_losses(ranks, placement, in_parts):
    ranks.run(losses, ranks.device, placement, in_parts)


def dropout(device):
    mesh = init_device_mesh(device, (2,))
    x = distribute_tensor(torch.ones(64, 32, device=device), mesh, [S0])
    y = fusedops.bias_dropout_residual(x, p=0.5)
    assert y.placements == (S0,)
    one, two = y.full_tensor().chunk(2)
    if device == "cuda":  # torch's ranks draw alike on the CPU
        assert not torch.equal(one, two)
    assert 0.4 < (y.full_tensor() == 0).double().mean() < 0.6


def test_dropout_of_shards(ranks):
    ranks.run(dropout, ranks.device)


def mixed(device):
    mesh = init_device_mesh(device, (2,))
    x, w = tensors(device, X, W1)
    try:
        fusedops.linear(x, distribute_tensor(w, mesh, [S0]))
    except RuntimeError as error:
        return str(error)
    return "no error"


def test_a_tensor_beside_a_dtensor_is_an_error(ranks):
    for text in ranks.run(mixed, ranks.device):
        assert "mixed torch.Tensor and DTensor" in text


def write(device):
    mesh = init_device_mesh(device, (2,))
    dz, x = tensors(device, (6, H), (6, K))
    main_grad = torch.zeros(H, K, device=device)
    placed = [distribute_tensor(t, mesh, [S0]) for t in (dz, x)]
    held = distribute_tensor(main_grad, mesh, [S0])
    torch.ops.fusedops.linear_wgrad_(*(t.float() for t in placed), held, True, False)
    torch.testing.assert_close(held.full_tensor(), (dz.t() @ x).float())
    assert held.placements == (S0,)


def test_what_is_written_stays_where_it_is(ranks):
    ranks.run(write, ranks.device)
