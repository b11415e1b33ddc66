"""torchtitan's entries: its own registry where it is installed, else one of the same shape."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import fusedops

if TYPE_CHECKING:
    from collections.abc import Iterator

TORCHTITAN = importlib.util.find_spec("torchtitan") is not None


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w3 = nn.Linear(32, 64, bias=False), nn.Linear(32, 64, bias=False)
        self.w2 = nn.Linear(64, 32, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w2(nn.functional.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.feed_forward = nn.RMSNorm(32), FeedForward()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.feed_forward(self.norm(x))


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The registry's module, as of torchtitan 0.2, or a stand-in."""
    if TORCHTITAN:
        yield pytest.importorskip(
            "torchtitan.protocols.model_converter", reason="torchtitan 0.3 has no model converters"
        )
        return
    converter: Any = ModuleType("torchtitan.protocols.model_converter")
    converter._registry_model_converter_cls = {}
    converter.register_model_converter = lambda cls, name: (
        converter._registry_model_converter_cls.__setitem__(name, cls)
    )
    protocols: Any = ModuleType("torchtitan.protocols")
    protocols.model_converter = converter
    titan: Any = ModuleType("torchtitan")
    titan.protocols = protocols
    for module in (titan, protocols, converter):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    yield converter


def entries() -> Any:
    return importlib.import_module("fusedops.integrations.torchtitan")


def test_the_converter_is_registered_and_fuses(registry: Any) -> None:
    titan = entries()
    assert titan.register()
    assert titan.register()
    made = registry._registry_model_converter_cls["fusedops"](SimpleNamespace(), SimpleNamespace())
    model, x = Block(), torch.randn(4, 32)
    want = model(x)
    made.convert(model)
    assert made.report.blocks
    assert made.post_optimizer_hook([model]) is None
    torch.testing.assert_close(model(x), want, rtol=1e-4, atol=1e-4)


def test_a_model_on_the_meta_device_converts(registry: Any) -> None:
    """torchtitan builds models there, and gives them weights after they are sharded."""
    with torch.device("meta"):
        model = Block()
    made = entries().FusedopsConverter(None, None)
    made.convert(model)
    model.to_empty(device="cpu")
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.1)
    plain = Block()
    plain.load_state_dict(model.state_dict())
    x = torch.randn(4, 32)
    assert made.report.blocks
    torch.testing.assert_close(model(x), plain(x), rtol=1e-4, atol=1e-4)


def test_fuse_before_parallelizing() -> None:
    seen = []

    def parallelize(model: nn.Module, *, parallel_dims: int) -> nn.Module:
        seen.append((isinstance(model.norm, fusedops.nn.RMSNorm), parallel_dims))
        return model

    model = Block()
    assert entries().fuse_before(parallelize)(model, parallel_dims=3) is model
    assert seen == [(True, 3)]


def test_without_converters_register_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    titan = entries()
    if TORCHTITAN:
        pytest.skip("torchtitan is installed: the test above holds its registry")
    with pytest.raises(ImportError):
        titan.register()
    newer = ModuleType("torchtitan")
    newer.__path__ = []  # a package without protocols.model_converter
    monkeypatch.setitem(sys.modules, "torchtitan", newer)
    assert not titan.register()
