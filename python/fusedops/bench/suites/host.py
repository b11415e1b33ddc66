"""CPU time of one call on shapes so small that the GPU never limits."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fusedops.bench.suites.base import Call, Case, PeerUnavailableError, Selection, Suite
from fusedops.bench.suites.linear import ACTIVATIONS

MODULES = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
}

SHAPES = ((64, 64, 64),)


class HostSuite(Suite):
    """`linear/...` calls the function, `module/...` the nn module; `grad` builds the graph."""

    name = "host"
    shape = "MxNxK"
    clock = "host"

    def cases(self, selection: Selection) -> list[Case]:
        return [
            Case(
                f"{form}/{m}x{n}x{k}/{activation}/{grad}",
                {"form": form, "shape": (m, n, k), "activation": activation, "grad": grad},
            )
            for m, n, k in selection.shapes or SHAPES
            for activation in selection.activations or ("relu",)
            for form in (("linear", "module") if activation in MODULES else ("linear",))
            for grad in ("nograd", "grad")
        ]

    def make_inputs(
        self, case: Case, dtype: torch.dtype, pass_: str, device: torch.device
    ) -> tuple[Tensor, ...]:
        m, n, k = case["shape"]
        grad = case["grad"] == "grad"
        x = torch.randn(m, k, dtype=dtype, device=device)
        weight = torch.randn(n, k, dtype=dtype, device=device).mul_(k**-0.5)
        bias = torch.randn(n, dtype=dtype, device=device)
        return tuple(t.requires_grad_(grad) for t in (x, weight, bias))

    def ours(self, case: Case, pass_: str) -> Call:
        import fusedops
        import fusedops.nn

        activation = case["activation"]
        if case["form"] == "linear":
            linear = fusedops.linear
            return lambda x, weight, bias: linear(x, weight, bias, activation)
        return _ModuleCall(
            lambda n, k, **where: fusedops.nn.Linear(k, n, activation=activation, **where)
        )

    def peers(self, case: Case, pass_: str) -> tuple[str, ...]:
        return ("eager",)

    def peer(self, name: str, case: Case, pass_: str, device: torch.device) -> Call:
        if name != "eager":
            raise PeerUnavailableError(f"the suite has no peer {name!r}")
        activation = case["activation"]
        if case["form"] == "linear":
            act = ACTIVATIONS[activation]
            return lambda x, weight, bias: act(F.linear(x, weight, bias))
        module = MODULES[activation]
        return _ModuleCall(lambda n, k, **where: nn.Sequential(nn.Linear(k, n, **where), module()))

    def work(self, case: Case, dtype: torch.dtype, pass_: str) -> None:
        return None


class _ModuleCall:
    """Makes its module from the weights of the first call, then only calls it."""

    def __init__(self, make: Call) -> None:
        self._make = make
        self._module: nn.Module | None = None

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        if self._module is None:
            module = self._make(*weight.shape, device=weight.device, dtype=weight.dtype)
            for parameter, value in zip(module.parameters(), (weight, bias), strict=True):
                parameter.data = value.detach()
                parameter.requires_grad_(value.requires_grad)
            self._module = module
        y: Tensor = self._module(x)
        return y


SUITE = HostSuite
