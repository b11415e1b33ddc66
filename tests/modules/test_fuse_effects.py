"""fusedops.fuse on modules whose forward does more than compute: they stay what they are."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import fusedops
from util import make

CAPTURED: list[torch.Tensor] = []


class Base(nn.Module):
    """A block, were its forward the usual one."""

    losses: list[torch.Tensor] = []  # noqa: RUF012
    rate = 2.0

    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(12, 20)
        self.act = nn.ReLU()
        self.fc2 = nn.Linear(20, 12)
        self.steps, self.h, self.seen = 0, None, []

    def forward(self, x):
        return self.fc2(self.act(self.fc1(x)))


class MulInPlace(Base):
    def forward(self, x):
        h = F.relu(self.fc1(x))
        h.mul_(2.0)
        return self.fc2(h)


class ClampInPlace(Base):
    def forward(self, x):
        h = F.relu(self.fc1(x))
        h.clamp_(max=0.1)
        return self.fc2(h)


class ResidualInPlace(Base):
    def forward(self, x):
        y = self.fc2(F.relu(self.fc1(x)))
        y.add_(x)
        return y


class WeightInPlace(Base):
    def forward(self, x):
        self.fc1.weight.data.clamp_(-0.1, 0.1)
        return self.fc2(self.act(self.fc1(x)))


class NoGrad(Base):
    def forward(self, x):
        with torch.no_grad():
            h = F.relu(self.fc1(x))
        return self.fc2(h)


class NoGradAround(Base):
    @torch.no_grad()
    def forward(self, x):
        return self.fc2(F.relu(self.fc1(x)))


class GradModeCalls(Base):
    def forward(self, x):
        torch.set_grad_enabled(False)
        h = F.relu(self.fc1(x))
        torch.set_grad_enabled(True)
        return self.fc2(h)


class NoAutocast(Base):
    def forward(self, x):
        with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
            return self.fc2(F.relu(self.fc1(x)))


class Checkpointed(Base):
    def inner(self, x):
        return self.fc2(F.relu(self.fc1(x)))

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=False)


class Counts(Base):
    def forward(self, x):
        self.steps += 1
        return super().forward(x)


class CountsInHelper(Base):
    def count(self):
        self.steps += 1

    def forward(self, x):
        self.count()
        return self.fc2(self.act(self.fc1(x)))


class Stashes(Base):
    def forward(self, x):
        self.h = F.relu(self.fc1(x))
        return self.fc2(self.h)


class StashesAndIsNoBlock(Base):
    def forward(self, x):
        y = self.fc2(F.softsign(self.fc1(x)))
        self.h = y if self.h is None else self.h + y
        return self.h


class Appends(Base):
    def forward(self, x):
        h = self.act(self.fc1(x))
        self.seen.append(h)
        return self.fc2(h)


class AppendsToClass(Base):
    def forward(self, x):
        h = self.act(self.fc1(x))
        self.losses.append(h)
        return self.fc2(h)


class AppendsToGlobal(Base):
    def forward(self, x):
        h = self.act(self.fc1(x))
        CAPTURED.append(h)
        return self.fc2(h)


class Tries(Base):
    def forward(self, x):
        try:
            if x.sum() > 0:
                return x
        except ValueError:  # torch.fx's, of a branch on a traced value
            pass
        return self.fc2(self.act(self.fc1(x)))


def recorded(function):
    """A decorator that keeps the arguments of calls."""

    @functools.wraps(function)
    def wrapper(*args):
        CAPTURED.append(args)
        return function(*args)

    return wrapper


class Decorated(Base):
    @recorded
    def forward(self, x):
        return self.fc2(self.act(self.fc1(x)))


class ActivationWithState(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = {}

    def forward(self, x):
        self.calls["n"] = self.calls.get("n", 0) + 1
        return F.silu(x)


class InsideActivation(Base):
    def __init__(self):
        super().__init__()
        self.act = ActivationWithState()


class CountedCall(nn.ReLU):
    calls = 0

    def __call__(self, *args):
        CountedCall.calls += 1
        return super().__call__(*args)

    def forward(self, x):
        return F.relu(x)


class InsideCall(Base):
    def __init__(self):
        super().__init__()
        self.act = CountedCall()


EFFECTS = [
    MulInPlace, ClampInPlace, NoGrad, GradModeCalls, Counts, Stashes, StashesAndIsNoBlock, Appends,
    AppendsToClass, AppendsToGlobal, InsideActivation, InsideCall,
]  # fmt: skip
# What these do besides stands in other statements than their MLP, and goes on.
AROUND = [
    WeightInPlace, NoGradAround, NoAutocast, Checkpointed, CountsInHelper, Tries, Decorated,
    ResidualInPlace,
]  # fmt: skip


def state(model):
    """What a forward could have written to."""
    modules = [vars(m) for m in model.modules() if not isinstance(m, nn.Linear)]
    return repr((modules, CAPTURED, Base.losses, CountedCall.calls, torch.is_grad_enabled()))


def test_the_base_is_a_block():
    assert len(fusedops.fuse(Base()).blocks) == 1


@pytest.mark.parametrize("kind", EFFECTS)
def test_is_left_alone_and_never_run(device, kind):
    torch.manual_seed(0)
    model = kind().to(device)
    original = copy.deepcopy(model)
    before = state(model)
    assert fusedops.fuse(model).blocks == []
    assert type(model) is kind
    assert state(model) == before
    x = make(5, 12, dtype=torch.float32, device=device)
    torch.testing.assert_close(model(x), original(x), rtol=1e-4, atol=1e-5)
    assert torch.equal(model.fc1.weight, original.fc1.weight)
    with torch.autocast(device, dtype=torch.bfloat16):
        y, expected = model(x), original(x)
    assert (y.dtype, y.requires_grad) == (expected.dtype, expected.requires_grad)
    CAPTURED.clear()
    Base.losses.clear()


@pytest.mark.parametrize("kind", AROUND)
def test_effects_around_go_on(device, kind):
    torch.manual_seed(0)
    model = kind().to(device)
    original = copy.deepcopy(model)
    assert len(fusedops.fuse(model).blocks) == 1
    assert (model.steps, CAPTURED) == (0, [])
    x = make(5, 12, dtype=torch.float32, device=device)
    results, calls = [], []
    for one in (original, model):
        CAPTURED.clear()
        y = one(x)
        calls.append((len(CAPTURED), one.steps, y.requires_grad))
        if y.requires_grad:
            y.square().sum().backward()
        results.append([y.detach(), *(p.grad for p in one.parameters())])
    assert calls[0] == calls[1]
    for ours, theirs in zip(*results, strict=True):
        if theirs is not None:
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    with torch.autocast(device, dtype=torch.bfloat16):
        y, expected = model(x), original(x)
    assert (y.dtype, y.requires_grad) == (expected.dtype, expected.requires_grad)
    CAPTURED.clear()


def test_hooks_on_an_activation_keep_firing(device):
    class Silu(nn.Module):
        def forward(self, x):
            return F.silu(x)

    model, seen = Base(), []
    model.act = Silu()
    model.act.register_forward_hook(lambda *_: seen.append(1))
    assert fusedops.fuse(model.to(device)).blocks == []
    assert seen == []
    model(make(5, 12, dtype=torch.float32, device=device))
    assert seen == [1]


@pytest.mark.parametrize("buffer", [torch.ones(4, 4), torch.zeros(())], ids=["mask", "zero"])
def test_a_module_with_a_buffer_runs_as_its_method(device, buffer):
    model = Base()
    model.register_buffer("mask", buffer)
    report = fusedops.fuse(nn.Sequential(model, Base()).to(device))
    assert sorted((block.name, block.note) for block in report.blocks) == [
        ("0", "in forward"),
        ("1", ""),
    ]


def test_a_class_that_refuses_subclasses_is_left_alone(device):
    class Meta(type):
        def __new__(mcs, name, bases, namespace):
            if any(isinstance(base, Meta) for base in bases):
                raise TypeError(name)
            return super().__new__(mcs, name, bases, namespace)

    class Final(Base, metaclass=Meta):
        pass

    report = fusedops.fuse(nn.Sequential(Final(), Base()).to(device))
    assert [block.name for block in report.blocks] == ["1"]


@pytest.mark.filterwarnings("ignore:Complex modules")
def test_layers_of_other_dtypes_make_no_block():
    model = Base().to(torch.complex64)
    model.act = nn.Tanh()
    report = fusedops.fuse(model)
    assert (report.blocks, report.num_skipped) == ([], 2)
    assert model(torch.zeros(2, 12, dtype=torch.complex64)).shape == (2, 12)


def test_a_layer_known_by_a_deeper_path(device):
    class Aliased(nn.Module):
        def __init__(self):
            super().__init__()
            self.one = nn.Sequential(nn.Linear(12, 20))
            self.fc1, self.fc2 = self.one[0], nn.Linear(20, 12)

        def forward(self, x):
            return self.fc2(F.relu(self.fc1(x)))

    model = Aliased().to(device)
    original = copy.deepcopy(model)
    fusedops.fuse(model)
    x = make(5, 12, dtype=torch.float32, device=device)
    torch.testing.assert_close(model(x), original(x), rtol=1e-4, atol=1e-5)


def test_a_sequential_that_iterates_its_own_way_keeps_its_activations(device):
    class Backwards(nn.Sequential):
        def __iter__(self):
            return iter(list(self._modules.values())[::-1])

    model = Backwards(nn.Linear(6, 6), nn.Tanh()).to(device)
    original = copy.deepcopy(model)
    assert fusedops.fuse(model).num_absorbed == 0
    x = make(5, 6, dtype=torch.float32, device=device)
    torch.testing.assert_close(model(x), original(x))
