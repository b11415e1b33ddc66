"""What the graph pass measures before it decides: our calls as they are emitted, and products."""

from __future__ import annotations

import contextlib
import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import fusedops
from fusedops._inductor import decide, graph_pass, measure
from integration import test_inductor_loss
from integration.test_inductor import BLOCKS, compiled, inputs, make, step


class Spy:
    """Decides as forced, and times every site as a compilation on a GPU does."""

    def __init__(self, monkeypatch):
        self.times, self.keys, self.unknown = {}, {}, []
        monkeypatch.setattr(graph_pass, "decide", self)

    def __call__(self, site, force):
        from torch._subclasses.fake_tensor import unset_fake_temporarily
        from torch.utils._python_dispatch import _disable_current_modes

        self.keys.setdefault(site.kind, []).append(measure._key(site, decide._hint))
        self.unknown.append(measure._key(site, lambda size: None))  # as of a dynamic shape
        device = site.node.meta["val"].device
        with _disable_current_modes(), unset_fake_temporarily(), torch.no_grad():
            bench = measure._Bench(site, decide._hint, device, 1e6)
            self.times.setdefault(site.kind, []).append(bench.times())
        return decide.decide(site, force)


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(measure, "RUN_US", 10.0)


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_run_as_they_are_emitted(device, name, monkeypatch, quick):
    spy = Spy(monkeypatch)
    model = make(name, device)
    ours = fusedops.inductor(force=True)
    step(compiled(model, ours), model, inputs(device))
    assert ours.report.kinds()
    assert {"mlp", "gated_mlp"} & spy.times.keys()
    assert all(us > 0 for pairs in spy.times.values() for pair in pairs for us in pair)


@pytest.mark.parametrize("bias", [False, True])
def test_losses_run_as_they_are_emitted(device, bias, monkeypatch, quick):
    spy = Spy(monkeypatch)
    head, x, target = test_inductor_loss.make(device, torch.float32, bias)
    ours = fusedops.inductor(force=True)
    run = compiled(lambda x, target: test_inductor_loss.LOSSES["mean"](head(x), target), ours)
    test_inductor_loss.step(run, head, x, target)
    assert None not in spy.keys["linear_cross_entropy"]
    assert all(us > 0 for pair in spy.times["linear_cross_entropy"] for us in pair)


def test_layers_of_one_size_are_measured_once(device, monkeypatch, quick):
    spy = Spy(monkeypatch)
    model = nn.Sequential(*(make("gelu", device) for _ in range(3)))
    step(compiled(model, fusedops.inductor(force=True)), model, inputs(device))
    keys = spy.keys["mlp"]
    assert len(keys) >= 3
    assert len(set(keys[1:])) == 1  # the last block, found first, gives nobody its dx
    assert None not in keys
    assert not any(spy.unknown)


@pytest.mark.parametrize("expanded", [False, True])
@pytest.mark.parametrize("name", ["gelu", "llama"])
def test_operands_whose_elements_share_memory(device, name, expanded, monkeypatch, quick):
    """The gradient of a sum is expanded, and so may x be."""
    spy = Spy(monkeypatch)
    model, x = make(name, device), inputs(device)

    def function(x):
        return model(x[:1].expand_as(x) if expanded else x).sum()

    ours = fusedops.inductor(force=True)
    compiled(function, ours)(x).backward()
    assert spy.times
    assert not any("cannot be measured" in left.reason for left in ours.report.left)


def test_tensors_of_a_measurement():
    bench = measure._Bench(None, None, torch.device("cpu"), 1e6)
    bench.left = 100.0
    for shape, strides in [
        ((3, 4), (0, 1)), ((3, 4), (1, 3)), ((0, 4), (4, 1)), ((), ()), ((2,), None)
    ]:  # fmt: skip
        made = bench.made(shape, strides, torch.float32)
        assert made.shape == shape
        assert strides is None or made.stride() == strides
    assert bench.left == 100 - 4 * (4 + 12 + 0 + 1 + 2)
    with pytest.raises(torch.OutOfMemoryError, match="too large"):
        bench.made((3, 4), (4, 1), torch.float32)


def test_a_measurement_that_fails_stops_nothing(device, monkeypatch):
    def fail(site, force):
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(graph_pass, "decide", fail)
    model, x = make("gelu", device), inputs(device)
    ours = fusedops.inductor(force=True)
    torch.testing.assert_close(compiled(model, ours)(x), model(x))
    assert ours.report.replaced == []
    assert any("no such kernel" in left.reason for left in ours.report.left)


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("grown", [0, 1])
def test_the_memory_of_a_measurement_goes_back(grown, fails, monkeypatch):
    """Whether the GPU is asked to take it; it needs none here."""
    device, freed, reserved = torch.device("cuda", 0), [], [100, 100 + grown]

    def times(*given):
        return None if fails else (1.0, 2.0)

    monkeypatch.setattr(measure, "_measured", {})
    monkeypatch.setattr(measure, "_times", times)
    monkeypatch.setattr(measure, "_key", lambda site, size: "a site")
    monkeypatch.setattr(measure, "value", lambda node: SimpleNamespace(device=device))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: reserved.pop(0))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: freed.append(True))
    got = measure.measured(SimpleNamespace(node=None), decide._hint, 1e6)
    assert got == (None if fails else (1.0, 2.0))
    assert len(freed) == grown
    assert len(measure._measured) == (not fails)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, RuntimeError])
def test_an_error_of_the_driver_is_no_measurement(error, monkeypatch):
    def fail(bench):
        raise error("CUDA driver error: out of memory")

    monkeypatch.setattr(measure._Bench, "times", fail)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    assert measure._times(None, None, torch.device("cpu"), 1e6) is None


def large():
    torch.manual_seed(0)
    layers = nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)
    model = nn.Sequential(*layers).to("cuda", torch.bfloat16)
    return model, torch.randn(4096, 1024, device="cuda", dtype=torch.bfloat16)


def reasons_of(report):
    return [site.reason for site in report.replaced] + [left.reason for left in report.left]


@pytest.mark.gpu
def test_a_gpu_measures():
    model, x = large()
    ours = fusedops.inductor()
    state = torch.cuda.get_rng_state()
    step(compiled(model, ours), model, x)
    assert torch.equal(torch.cuda.get_rng_state(), state)  # a compilation draws nothing
    assert any("us measured" in reason for reason in reasons_of(ours.report))
    assert measure._measured
    assert not any(math.isnan(us) for pair in measure._measured.values() for us in pair)


@pytest.mark.gpu
def test_the_model_decides_where_nothing_can_be_measured(monkeypatch):
    def fails(self):
        raise RuntimeError("no such measurement")

    monkeypatch.setattr(measure, "_measured", {})
    monkeypatch.setattr(measure._Bench, "times", fails)
    model, x = large()
    ours = fusedops.inductor()
    step(compiled(model, ours), model, x)
    reasons = reasons_of(ours.report)
    assert any("us expected" in reason for reason in reasons)
    assert not any("us measured" in reason for reason in reasons)


def test_rows_that_inductor_pads_are_padded(device, monkeypatch, quick):
    """An odd number of classes: all products of a loss are timed in whole chunks of 16 bytes."""
    made, mm = [], torch.mm

    def seen(a, b):
        made.append((a.shape[1], tuple(b.shape)))
        return mm(a, b)

    monkeypatch.setattr(torch, "mm", seen)
    spy = Spy(monkeypatch)
    head, x, target = test_inductor_loss.make(device, torch.float32, bias=False)
    assert head.weight.shape == (50, 16)
    run = compiled(
        lambda x, target: test_inductor_loss.LOSSES["mean"](head(x), target),
        fusedops.inductor(force=True),
    )
    test_inductor_loss.step(run, head, x, target)
    assert "linear_cross_entropy" in spy.times
    assert {(16, (16, 52)), (50, (50, 16))} <= set(made)
