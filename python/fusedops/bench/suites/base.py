"""What a suite is: cases, inputs, our call, the peers' calls and the work a case must do."""

from __future__ import annotations

import contextlib
import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fusedops._core.activation import ACTIVATIONS
from fusedops._timing.timing import Pace

Call = Callable[
    ..., Any
]  # called with the tensors of make_inputs; returns a tensor or a tuple of tensors

# Registered suites, in the order of `bench all`. A suite `x` is the class SUITE of suites/x.py.
SUITES = (
    "linear",
    "mlp",
    "skinny",
    "wgrad",
    "epilogue",
    "fp8",
    "fp32",
    "points",
    "pointnet",
    "reduce",
    "elementwise",
    "stencil",
    "conv",
    "scan",
    "norm",
    "rope",
    "embedding",
    "loss",
    "host",
    "models",
    "wild",
)
APART = ("epilogue", "pointnet", "conv", "models", "wild")  # they take long: not of `bench all`
ALL = tuple(name for name in SUITES if name not in APART)

DTYPES = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "fp64": torch.float64,
    "u8": torch.uint8,
}
# Largest relative norm of (ours - eager peer): both round to dtype once, in another order.
TOLERANCES = {
    "bf16": 1e-2,
    "fp16": 2e-3,
    "fp32": 1e-5,
    "fp32_highest": 1e-5,
    "fp32_high": 2e-3,  # two TF32 products, each about 3e-4 from the truth
    "fp64": 1e-13,
    "u8": 0.0,  # counts
}


# What `--family` of the suite `wild` may name, in the order of suites/wild/families.py.
WILD_FAMILIES = (
    *("linear", "mlp", "gated", "skinny", "reduce", "norm", "softmax", "scan", "segment"),
    *("elementwise", "stencil", "knn", "ball", "fps", "group", "interpolate"),
)
PASSES = ("fwd", "bwd", "wgrad", "step", "infer")


class PeerUnavailableError(Exception):
    """A peer that is not installed here or cannot run this case; the text is shown."""


@dataclass(frozen=True)
class Case:
    name: str  # stable and parseable: `8192x4096x1024/relu`
    args: dict[str, Any] = field(default_factory=dict, hash=False)

    def __getitem__(self, key: str) -> Any:
        return self.args[key]


@dataclass(frozen=True)
class Work:
    """The least a case must do: bytes in and out once, floating-point operations."""

    bytes: float
    flops: float


@dataclass(frozen=True)
class Selection:
    """What the command line asks of a suite."""

    pass_: str
    activations: tuple[str, ...] = ()  # empty: the suite's own choice
    shapes: tuple[tuple[int, ...], ...] = ()  # empty: the suite's own choice
    families: tuple[str, ...] = ()  # of `wild`; empty: all
    count: int = 1  # of `wild`: cases a family
    seed: int = 0  # of `wild`


class Suite(ABC):
    name: str
    passes: tuple[str, ...] = ("fwd",)
    dtypes: tuple[str, ...] = ("bf16", "fp16", "fp32", "fp64")  # labels it can run
    default_dtypes: tuple[str, ...] = ("bf16",)
    activations: tuple[str, ...] = tuple(ACTIVATIONS)  # that --activation may name
    shape = ""  # what --shapes takes, e.g. "MxNxK"; empty: any number of sizes
    reference_peer = "eager"  # ours is checked against this one before it gets a time
    pace = Pace()
    default_rounds = 9
    clock = "device"  # or "host": CPU time per call; or "wall": of calls that follow each other

    @abstractmethod
    def cases(self, selection: Selection) -> list[Case]: ...

    @abstractmethod
    def make_inputs(
        self, case: Case, dtype: torch.dtype, pass_: str, device: torch.device
    ) -> tuple[Tensor, ...]: ...

    @abstractmethod
    def ours(self, case: Case, pass_: str) -> Call: ...

    @abstractmethod
    def peer(self, name: str, case: Case, pass_: str, device: torch.device) -> Call:
        """Raises PeerUnavailableError; imports what it needs here and nowhere else."""

    @abstractmethod
    def peers(self, case: Case, pass_: str) -> tuple[str, ...]:
        """Every peer that makes sense for the case."""

    def group(self, case: Case) -> str:
        """Cases of one group are measured in the same rounds, beside the same peers."""
        return case.name

    def default_peers(self, pass_: str) -> tuple[str, ...]:
        return ("eager",)

    def runs(self, case: Case, dtype: str) -> bool:
        """Whether a case is of interest in a dtype."""
        return True

    def default_dtypes_of(self, pass_: str) -> tuple[str, ...]:
        return self.default_dtypes

    @abstractmethod
    def work(self, case: Case, dtype: torch.dtype, pass_: str) -> Work | None:
        """None where a floor says nothing (host overhead)."""

    def context(self, dtype_label: str) -> contextlib.AbstractContextManager[None]:
        """Global settings under which the case runs (fp32 precision)."""
        return contextlib.nullcontext()

    def reference(self, case: Case) -> str:
        return self.reference_peer

    def tolerance(self, case: Case, dtype: str) -> float:
        """Largest relative norm of (ours - reference peer)."""
        return TOLERANCES[dtype]

    def errors(
        self, case: Case, pass_: str, inputs: Sequence[Tensor], results: dict[str, Any]
    ) -> dict[str, float]:
        """Relative error against float64 per contender, for the sidecar; empty: not asked.

        Raises where ours is wrong: it then gets no time.
        """
        return {}


class GroupedSuite(Suite):
    """The cases of a group are variants of one thing: measured in one run, in wall time."""

    clock = "wall"

    @abstractmethod
    def expect(self, pass_: str, dtype: str) -> None:
        """Computes what `check` compares with, of the inputs made last."""

    @abstractmethod
    def check(self, results: Any, pass_: str, dtype: str) -> float:
        """The largest relative error of what a call returned; raises where it is no rounding."""

    @abstractmethod
    def shares(self, call: Call, data: Sequence[Tensor], device: torch.device) -> dict[str, float]:
        """How the time of one call divides, for the sidecar."""


def torch_dtype(label: str) -> torch.dtype:
    return DTYPES[label.split("_")[0]]


def load_suite(name: str) -> Suite:
    if name not in SUITES:
        raise ValueError(f"unknown suite {name!r}; expected one of {', '.join(SUITES)}")
    suite: Suite = importlib.import_module(f"fusedops.bench.suites.{name}").SUITE()
    return suite
