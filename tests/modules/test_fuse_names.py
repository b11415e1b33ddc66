"""fusedops.fuse on methods whose names mean something else than they seem to, or do so later."""

from __future__ import annotations

import copy
import pickle
import sys
from typing import TYPE_CHECKING

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.functional import gelu

import fusedops
from util import make

if TYPE_CHECKING:
    from nowhere import Rows


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(12, 20), nn.Linear(20, 12)
        self.norm, self.mix = nn.LayerNorm(12), nn.Linear(12, 12)
        self.function = F.gelu
        self.__scale = 3.0

    def __scaled(self, x):
        return x * self.__scale


class Tripled:
    @staticmethod
    def gelu(x):
        return x * 3.0


class Argument(Base):
    def forward(self, x, gelu=torch.tanh):
        h = self.fc1(x)
        h = gelu(h)
        h = self.fc2(h)
        return h + x


class ArgumentForModule(Base):
    def forward(self, x, F=Tripled):
        h = self.fc1(x)
        h = F.gelu(h)
        h = self.fc2(h)
        return h + x


class Local(Base):
    def forward(self, x):
        gelu = torch.tanh if x.ndim else F.gelu
        h = self.fc1(x)
        h = gelu(h)
        h = self.fc2(h)
        return h + x


class ReadLater(Base):
    def forward(self, x):
        h = x
        later = (h.mean() for _ in range(2))
        h = self.fc1(x)
        h = F.gelu(h)
        y = self.fc2(h)
        return y + sum(later)


class Private(Base):
    def forward(self, x):
        h = self.fc1(x)
        h = F.gelu(h)
        h = self.fc2(h)
        return self._Base__scaled(h) + self.__own(x)

    def __own(self, x):
        return x * 2.0


class PrivateSum(Base):
    def forward(self, x):
        h = x + self.__own(x)
        return self.norm(h) + h

    def __own(self, x):
        return x * 2.0


class Annotated(Base):
    def forward(self, x):
        def twice(h: Rows) -> Rows:
            return h * 2.0

        h = self.fc1(x)
        h = F.gelu(h)
        h = self.fc2(h)
        return twice(h)


class AsksItsName(Base):
    def forward(self, x):
        h = self.fc1(x)
        h = F.gelu(h)
        h = self.fc2(h)
        return h * (2.0 if self.__class__.__name__ == "AsksItsName" else 3.0)


class AsksItsClass(Base):
    def forward(self, x):
        h = self.fc1(x)
        h = F.gelu(h)
        h = self.fc2(h)
        return h * (2.0 if self.mine() else 3.0)

    def mine(self):
        return type(self) is AsksItsClass


class Bare(Base):
    def forward(self, x):
        h = self.fc1(x)
        h = gelu(h)
        h = self.fc2(h)
        return h + x


class OfModule(Base):
    def forward(self, x):
        h = self.fc1(x)
        h = F.gelu(h)
        h = self.fc2(h)
        return h + x


class OfInstance(Base):
    def forward(self, x):
        h = self.fc1(x)
        h = self.function(h)
        h = self.fc2(h)
        return h + x


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.dense, self.function = nn.Linear(12, 20), F.gelu

    def forward(self, x):
        x = self.dense(x)
        return self.function(x)


class OfInner(Base):
    def __init__(self):
        super().__init__()
        self.inner = Inner()

    def forward(self, x):
        h = self.inner(x)
        h = self.fc2(h)
        return h + x


def pair(kind, device):
    torch.manual_seed(0)
    original = kind().to(device)
    model = copy.deepcopy(original)
    return original, model, fusedops.fuse(model)


def assert_same(model, original, device):
    x = make(3, 5, 12, dtype=torch.float32, device=device)
    with torch.no_grad():
        torch.testing.assert_close(model(x), original(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "kind",
    [
        Argument,
        ArgumentForModule,
        Local,
        ReadLater,
        Private,
        PrivateSum,
        Annotated,
        AsksItsName,
        AsksItsClass,
    ],
)
def test_names_that_mean_something_else(device, kind):
    original, model, _ = pair(kind, device)
    assert_same(model, original, device)


@pytest.mark.parametrize("kind", [Bare, OfModule])
def test_replaced_globals(device, monkeypatch, kind):
    original, model, report = pair(kind, device)
    assert len(report.blocks) == 1
    monkeypatch.setattr(sys.modules[__name__], "gelu", torch.tanh)
    monkeypatch.setattr(sys.modules[__name__], "F", Tripled)
    assert_same(model, original, device)


@pytest.mark.parametrize("copied", [lambda m: m, copy.deepcopy,
                                    lambda m: pickle.loads(pickle.dumps(m))])  # fmt: skip
@pytest.mark.parametrize("kind", [OfInstance, OfInner])
def test_replaced_functions_of_instances(device, kind, copied):
    original, model, report = pair(kind, device)
    assert len(report.blocks) == 1
    model = copied(model)
    for one in (original, model):
        getattr(one, "inner", one).function = torch.tanh
    assert_same(model, original, device)


@pytest.mark.parametrize("kind", [Bare, OfInner, lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU())])
def test_classes_keep_their_names(device, kind):
    """FSDP's and accelerate's policies go by them."""
    original, model, _ = pair(kind, device)
    assert repr(model) == repr(original)
    for mine, theirs in zip(model.modules(), original.modules(), strict=True):
        if not isinstance(theirs, (nn.Linear, nn.LayerNorm)):
            assert type(mine).__qualname__ == type(theirs).__qualname__
            assert type(mine).__module__ == type(theirs).__module__
            assert type(mine).__doc__ == type(theirs).__doc__
