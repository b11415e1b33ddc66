"""Stencils against torch's depthwise convolutions, with F.pad in front where the border asks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

import fusedops
from fusedops.bench.suites.base import Call, Case, PeerUnavailableError, Selection, Suite, Work
from fusedops.bench.suites.linear import COMPILE_MODES, compiled
from fusedops.reference import stencil as torch_stencil

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable

OURS: dict[int, Callable[..., Tensor]] = {
    1: fusedops.stencil1d,
    2: fusedops.stencil2d,
    3: fusedops.stencil3d,
}
# Shape, spatial dimensions, taps along each, padding mode, one weight per channel.
CASES: tuple[tuple[tuple[int, ...], int, int, str, bool], ...] = (
    ((32, 256, 56, 56), 2, 3, "zeros", True),
    ((32, 256, 56, 56), 2, 5, "zeros", True),
    ((32, 384, 28, 28), 2, 7, "zeros", True),
    ((64, 512, 14, 14), 2, 3, "zeros", True),
    ((128, 768, 7, 7), 2, 3, "zeros", True),
    ((8, 64, 512, 512), 2, 3, "zeros", True),
    ((8, 64, 512, 512), 2, 5, "zeros", True),
    ((8, 64, 512, 512), 2, 3, "reflect", True),
    ((8, 64, 511, 511), 2, 3, "zeros", True),
    ((1, 3, 4096, 4096), 2, 5, "replicate", False),
    ((16, 3, 1080, 1920), 2, 3, "reflect", False),
    ((64, 512, 4096), 1, 3, "zeros", True),
    ((64, 512, 4096), 1, 7, "circular", True),
    ((2, 32, 64, 128, 128), 3, 3, "zeros", True),
)
STEP_CASES = tuple(case for case in CASES if case[0] in ((32, 256, 56, 56), (8, 64, 512, 512)))


class StencilSuite(Suite):
    name = "stencil"
    passes: tuple[str, ...] = ("fwd", "step")
    dtypes: tuple[str, ...] = ("bf16", "fp16", "fp32", "fp64")

    def context(self, dtype_label: str) -> contextlib.AbstractContextManager[None]:
        # NOTE: cuDNN would compute fp32 convolutions in TF32, which ours do not.
        flags: Any = torch.backends.cudnn.flags(enabled=True, allow_tf32=False)
        return flags  # type: ignore[no-any-return]

    def default_dtypes_of(self, pass_: str) -> tuple[str, ...]:
        return ("bf16", "fp32") if pass_ == "fwd" else ("bf16",)

    def cases(self, selection: Selection) -> list[Case]:
        chosen = CASES if selection.pass_ == "fwd" else STEP_CASES
        if any(len(shape) < 3 for shape in selection.shapes):
            raise ValueError("expected CxHxW, with more sizes in front or not")
        if selection.shapes:
            chosen = tuple((shape, 2, 3, "zeros", True) for shape in selection.shapes)
        return [
            Case(
                f"{dims}d/{'x'.join(map(str, shape))}_k{taps}_{padding}",
                {"shape": shape, "dims": dims, "taps": taps, "padding": padding, "own": own},
            )
            for shape, dims, taps, padding, own in chosen
        ]

    def make_inputs(
        self, case: Case, dtype: torch.dtype, pass_: str, device: torch.device
    ) -> tuple[Tensor, ...]:
        shape, dims = case["shape"], case["dims"]
        x = torch.randn(shape, dtype=dtype, device=device)
        channels = (shape[-dims - 1],) if case["own"] else ()
        weight = torch.randn(*channels, *(case["taps"],) * dims, dtype=dtype, device=device)
        if pass_ == "fwd":
            return x, weight
        return x.requires_grad_(), weight.requires_grad_(), torch.randn_like(x)

    def ours(self, case: Case, pass_: str) -> Call:
        function, padding = OURS[case["dims"]], case["padding"]
        return _as_pass(lambda x, weight: function(x, weight, padding), pass_)

    def peers(self, case: Case, pass_: str) -> tuple[str, ...]:
        return ("eager", *COMPILE_MODES)

    def peer(self, name: str, case: Case, pass_: str, device: torch.device) -> Call:
        dims, padding = case["dims"], case["padding"]

        def call(x: Tensor, weight: Tensor) -> Tensor:
            return torch_stencil(x, weight, 1.0, dims, padding)

        if name == "eager":
            return _as_pass(call, pass_)
        if name in COMPILE_MODES:
            return _as_pass(compiled(call, COMPILE_MODES[name]), pass_)
        raise PeerUnavailableError(f"the suite has no peer {name!r}")

    def work(self, case: Case, dtype: torch.dtype, pass_: str) -> Work:
        count = torch.Size(case["shape"]).numel()
        flops = 2 * count * case["taps"] ** case["dims"]
        if pass_ == "fwd":
            return Work(2 * count * dtype.itemsize, flops)
        return Work(5 * count * dtype.itemsize, 3 * flops)


def _as_pass(forward: Call, pass_: str) -> Call:
    """`step` returns y, dx and dweight."""
    if pass_ == "fwd":
        return forward

    def step(x: Tensor, weight: Tensor, dy: Tensor) -> tuple[Any, ...]:
        y = forward(x, weight)
        return (y.detach(), *torch.autograd.grad(y, (x, weight), dy))

    return step


SUITE = StencilSuite
