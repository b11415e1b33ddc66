"""Casts of weights under autocast: one in a region, and the gradients of as many uses."""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fusedops
from fusedops._autograd import autocast as _autocast
from util import Calls, make

BF16 = torch.bfloat16


def parameter(*shape, device, seed=0):
    return nn.Parameter(make(*shape, dtype=torch.float32, device=device, seed=seed))


def weights(device):
    """Two square weights and a bias."""
    a, b = (parameter(8, 8, device=device, seed=seed) for seed in (1, 2))
    return a, b, parameter(8, device=device, seed=3)


OPS = {
    "torch": lambda x, w, _, b: F.linear(x, w, b),
    "linear": lambda x, w, _, b: fusedops.linear(x, w, b),
    "linear_preact": lambda x, w, _, b: fusedops.linear(x, w, b, "gelu"),
    "matmul": lambda x, w, _, b: fusedops.matmul(x, w, b),
    "mlp": lambda x, w, v, b: fusedops.mlp(x, w, b, v, b, "silu"),
    "gated_mlp": lambda x, w, v, b: fusedops.gated_mlp(x, w, v, w, b, b),
    "recomputed": lambda x, w, v, b: fusedops.mlp(x, w, b, v, b, "silu", recompute=True),
}
ours = pytest.mark.parametrize("op", [op for op in OPS if op != "torch"])
MODES = {
    "grad": contextlib.nullcontext,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
}


class Seen(Calls):
    """The ops of torch that make up a block of code."""

    @property
    def casts(self):
        # In inference mode a cast shows as what autograd would have taken apart
        return self.names.count("aten._to_copy") + self.names.count("aten.to.dtype")


def casts_of(op, calls, parameters, device, **options):
    """How many casts some calls in one region make."""
    x = make(4, 8, dtype=BF16, device=device)
    with torch.autocast(device, BF16, **options), Seen() as seen:
        for _ in range(calls):
            OPS[op](x, *parameters)
    return seen.casts


@pytest.mark.parametrize(
    ("op", "mode"),
    [(op, mode) for op in OPS for mode in MODES if (op, mode) != ("torch", "inference")],
)
def test_twelve_calls_cast_each_weight_once(device, op, mode):
    parameters = weights(device)
    with MODES[mode]():
        once = casts_of(op, 1, parameters, device)
        assert once == (3 if "mlp" in op or op == "recomputed" else 2)
        assert casts_of(op, 12, parameters, device) == once
        assert casts_of(op, 12, parameters, device, cache_enabled=False) >= 12 * once
    frozen = [w.detach() for w in parameters]
    assert casts_of(op, 12, frozen, device) >= 12 * once  # torch keeps those of leaves with a grad


@ours
def test_nothing_is_seen_but_casts(device, op):
    x, parameters = make(4, 8, dtype=BF16, device=device), weights(device)
    packed = []

    def run():
        packed.clear()
        with torch.autograd.graph.saved_tensors_hooks(packed.append, lambda t: t), Seen() as seen:
            OPS[op](x, *parameters)
        return {name for name in seen.names if name.startswith("aten.")}, len(packed)

    with torch.autocast(device, BF16):
        first, second = run(), run()
    assert first[0] - second[0] == {"aten._to_copy"}
    assert first[1] == second[1]


@ours
def test_a_region_that_ends_drops_its_casts(device, op):
    x, parameters = make(4, 8, dtype=BF16, device=device), weights(device)
    with torch.no_grad(), torch.autocast(device, BF16):
        before = OPS[op](x, *parameters)
        with torch.autocast(device, BF16):
            OPS[op](x, *parameters)
        assert _autocast._casts()
        for w in parameters:
            w.data.mul_(2)
        torch.clear_autocast_cache()
        assert _autocast._casts() is None
        after = OPS[op](x, *parameters)
        assert not torch.equal(before, after)
    assert _autocast._casts() is None
    for w in parameters:
        w.data.div_(2)
    with torch.no_grad(), torch.autocast(device, BF16):
        assert torch.equal(OPS[op](x, *parameters), before)


@ours
def test_a_weight_that_is_written_in_a_region_is_cast_again(device, op):
    x, parameters = make(4, 8, dtype=BF16, device=device), weights(device)
    optimizer = torch.optim.SGD(parameters, lr=0.5)
    with torch.autocast(device, BF16):
        OPS[op](x, *parameters).float().square().sum().backward()
        optimizer.step()
        got = OPS[op](x, *parameters)
    with torch.autocast(device, BF16):
        assert torch.equal(OPS[op](x, *parameters), got)


def gradients(op, parameters, device, modes=(), **options):
    """Gradients of two uses of the weights in one region, after uses in other modes."""
    x = make(4, 8, dtype=BF16, device=device)
    with torch.autocast(device, BF16, **options):
        for mode in modes:
            with MODES[mode]():
                OPS[op](x, *parameters)
                OPS["torch"](x, *parameters)
        y = OPS[op](OPS[op](x, *parameters), *parameters)
    return torch.autograd.grad(y.float().square().sum(), parameters, allow_unused=True)


def assert_sums_close(got, exact):
    """The same terms added in fp32, in another order."""
    scale = float(exact.abs().max())
    torch.testing.assert_close(got.float(), exact.float(), rtol=1e-5, atol=1e-6 * scale)


@ours
@pytest.mark.parametrize("modes", [(), ("no_grad",), ("inference",), ("inference", "no_grad")])
def test_gradients_reach_the_weights(device, op, modes):
    parameters = weights(device)
    want = gradients(op, parameters, device, cache_enabled=False)
    for got, exact in zip(gradients(op, parameters, device, modes), want, strict=True):
        if exact is None:
            assert got is None
            continue
        assert got.dtype is torch.float32
        if op == "matmul":  # the cast sums both uses in bfloat16, as torch's does
            torch.testing.assert_close(got, exact, rtol=2e-2, atol=2e-2 * float(exact.abs().max()))
        else:
            assert torch.equal(got, exact)


def test_torch_keeps_its_gradients_beside_ours(device):
    x, parameters = make(4, 8, dtype=BF16, device=device), weights(device)
    with torch.autocast(device, BF16):
        with torch.no_grad():
            fusedops.linear(x, parameters[0])
        y = F.linear(x, parameters[0])
    assert torch.autograd.grad(y.sum(), parameters[0])[0].any()


@pytest.mark.parametrize("op", ["linear", "mlp", "gated_mlp"])
def test_main_grad(device, op):
    parameters = weights(device)
    want = gradients(op, parameters, device, cache_enabled=False)
    for w in parameters[:2]:
        w.main_grad = torch.zeros_like(w)
    assert gradients(op, parameters, device, ("no_grad",))[0] is None
    for w, exact in zip(parameters[:2], want, strict=False):
        if exact is not None:
            assert_sums_close(w.main_grad, exact)


def test_second_derivatives(device):
    parameters = weights(device)
    x = make(4, 8, dtype=torch.float32, device=device).requires_grad_()

    def penalty(**options):
        with torch.autocast(device, BF16, **options):
            y = fusedops.linear(fusedops.linear(x, *parameters[::2], "silu"), *parameters[::2])
        (dx,) = torch.autograd.grad(y.float().sum(), x, create_graph=True)
        return torch.autograd.grad(dx.square().sum(), parameters[0])[0]

    assert torch.equal(penalty(), penalty(cache_enabled=False))


def test_regions_inside_with_other_dtypes(device):
    x, (w, _, b) = make(4, 8, dtype=BF16, device=device), weights(device)
    with torch.autocast(device, BF16):
        y = fusedops.linear(x, w, b)
        with torch.autocast(device, torch.float16):
            half = fusedops.linear(x, w, b)
        with torch.autocast(device, enabled=False):
            full = fusedops.linear(x.float(), w, b)
        again = fusedops.linear(x, w, b)
    assert (y.dtype, half.dtype, full.dtype) == (BF16, torch.float16, torch.float32)
    assert torch.equal(y, again)
    torch.testing.assert_close(y.float(), full, rtol=2e-2, atol=2e-2)


def test_compiled_code_beside_eager_code(device):
    torch._dynamo.reset()
    parameters = weights(device)
    x = make(4, 8, dtype=BF16, device=device)

    def forward(x):
        return OPS["mlp"](OPS["linear"](x, *parameters), *parameters)

    compiled = torch.compile(forward, fullgraph=True, backend="aot_eager")
    results = []
    for functions in ([forward] * 3, [forward, compiled, forward], [compiled, forward, compiled]):
        with torch.autocast(device, BF16):
            y = x
            for function in functions:
                y = function(y)
        results.append((y, *torch.autograd.grad(y.float().sum(), parameters)))
    for other in results[1:]:
        for a, b in zip(other, results[0], strict=True):
            # torch's own weight gradients stop in half precision
            scale = float(b.abs().max())
            torch.testing.assert_close(a.float(), b.float(), rtol=2e-2, atol=2e-2 * scale)


@pytest.mark.gpu
@ours
def test_a_graph_casts_what_its_replays_find(op):
    x, parameters = make(4, 8, dtype=BF16, device="cuda"), weights("cuda")
    with torch.autocast("cuda", BF16), torch.no_grad():
        OPS[op](x, *parameters)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = OPS[op](x, *parameters)
        eager = OPS[op](x, *parameters)  # nothing that the capture made is used
        graph.replay()
        assert torch.equal(y, eager)
    for w in parameters:
        w.data.mul_(2)
    graph.replay()
    with torch.autocast("cuda", BF16), torch.no_grad():
        assert torch.equal(y, OPS[op](x, *parameters))
