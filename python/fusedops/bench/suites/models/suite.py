"""Whole models: a training step with its loss, and inference, in wall time and memory."""

from __future__ import annotations

import contextlib
import gc
from typing import TYPE_CHECKING, Any

import torch

from fusedops.bench.suites.base import (
    TOLERANCES,
    Call,
    Case,
    GroupedSuite,
    PeerUnavailableError,
    Selection,
)

from . import clouds, huggingface, own, vision
from .check import worst_error
from .contenders import GRAPHS, PEERS, VARIANTS, Results, available, make
from .profile import shares
from .spec import layers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from .spec import Loaded, Model

# In the order of their worth: a budget may end before the last.
FIRST = (
    "llama",
    "bert",
    "gpt2_medium",
    "qwen3",
    "titan_llama",
    "vit_large",
    "nanogpt_autocast",
    "dlrm",
    "opt",
    "t5",
    "swin_base",
    "pointnet2_bn",
    "mistral",
)
MODELS: tuple[Model, ...] = tuple(
    sorted(
        (*huggingface.MODELS, *own.MODELS, *vision.MODELS, *clouds.MODELS),
        key=lambda model: FIRST.index(model.name) if model.name in FIRST else len(FIRST),
    )
)
RECOMPILES = 256  # layers that hold their index are code of their own each


class ModelsSuite(GroupedSuite):
    """A case is MODEL/VARIANT; all variants of a model and its peers take turns in one run.

    On a CPU every model is in tiny widths: that checks, its times say nothing.
    """

    name = "models"
    passes: tuple[str, ...] = ("step", "infer")
    dtypes: tuple[str, ...] = ("bf16", "fp16", "fp32")

    def __init__(self) -> None:
        self._loaded: Loaded | None = None
        self._references: tuple[Results, Results] | None = None  # eager's, exact

    def cases(self, selection: Selection) -> list[Case]:
        if selection.shapes:
            raise ValueError("models have the sizes that they have")
        return [
            Case(f"{model.name}/{variant}", {"model": model, "variant": variant})
            for model in MODELS
            for variant in VARIANTS
        ]

    def group(self, case: Case) -> str:
        name: str = case["model"].name
        return name

    def peers(self, case: Case, pass_: str) -> tuple[str, ...]:
        return available(case["model"].package)

    def default_peers(self, pass_: str) -> tuple[str, ...]:
        return PEERS

    def runs(self, case: Case, dtype: str) -> bool:
        model: Model = case["model"]
        if case["variant"].endswith(GRAPHS) and not torch.cuda.is_available():
            return False
        return dtype != "fp32" or model.fp32

    def work(self, case: Case, dtype: torch.dtype, pass_: str) -> None:
        return None

    @contextlib.contextmanager
    def context(self, dtype_label: str) -> Iterator[None]:
        """A model's; behind it nothing of the model is left in memory or in Dynamo's caches."""
        import torch._dynamo

        limits = {"recompile_limit": RECOMPILES, "accumulated_recompile_limit": 8 * RECOMPILES}
        torch._dynamo.reset()
        try:
            with torch._dynamo.config.patch(**limits):
                yield
        finally:
            self._loaded = self._references = None
            torch._dynamo.reset()
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()

    def make_inputs(
        self, case: Case, dtype: torch.dtype, pass_: str, device: torch.device
    ) -> tuple[Tensor, ...]:
        """Loads the model as well, which `ours` and `peer` share until the context ends."""
        self._loaded = case["model"].load(device.type == "cpu", dtype, device)
        self._references = None
        return self._loaded.data

    def ours(self, case: Case, pass_: str) -> Call:
        return make(case["variant"], self._model(), pass_)

    def peer(self, name: str, case: Case, pass_: str, device: torch.device) -> Call:
        if name not in PEERS:
            raise PeerUnavailableError(f"the suite has no peer {name!r}")
        loaded = self._model()
        if name == "compile_whole" and not layers(loaded.module):
            raise PeerUnavailableError("the same as compile: the model has no layers in a row")
        if name.endswith(GRAPHS) and device.type != "cuda":
            raise PeerUnavailableError("CUDA graphs need a GPU")
        return make(name, loaded, pass_)

    def expect(self, pass_: str, dtype: str) -> None:
        loaded = self._model()
        plain = make("eager", loaded, pass_)(*loaded.data)
        exact = loaded.exact(torch.float64 if dtype == "fp32" else torch.float32)
        self._references = plain, make("eager", exact, pass_)(*exact.data)

    def check(self, results: Results, pass_: str, dtype: str) -> float:
        """The largest relative error; raises check.WrongModelError where it is no rounding."""
        assert self._references is not None, "expect makes them"
        return worst_error(results, *self._references, TOLERANCES[dtype])

    def shares(self, call: Call, data: Sequence[Tensor], device: torch.device) -> dict[str, float]:
        return shares(call, data, device)

    def _model(self) -> Loaded:
        if self._loaded is None:
            raise RuntimeError("models: make_inputs loads the model that the calls are of")
        return self._loaded


SUITE: Any = ModelsSuite
