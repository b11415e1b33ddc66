"""The one place that decides which sites pay, by time models of the region with and without us.

Ours are the products with their epilogues as `fusedops.explain` expects them (measured ones after
`fusedops.tune`), and the passes that our backward adds. Theirs are the same products without
epilogue, which cuBLAS is taken to run as fast as we do, and the pointwise kernels that Inductor
makes: what these move, at the memory's speed. Nothing is measured here: the answer is cached with
the compiled graph.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from .._gemm_text import DTYPES
from ..activation import CODES, SAVES_PREACT
from ..explain import _explain_gemm, _gpu
from ..info import built_archs, kernels_for
from .graph import value

if TYPE_CHECKING:
    from .sites import Site

LAUNCH_US = 1.0  # of a kernel behind another one
BYTES_PER_US = {"H200": 4.2e6, "H100": 2.9e6}  # measured copy bandwidth, read and written bytes
SLOWEST = 1.3e6  # of a GPU that is none of these
MARGIN = 1.0  # theirs must be slower by more than this factor


@dataclass(frozen=True)
class Verdict:
    """Whether a site is replaced, and why."""

    take: bool
    reason: str
    ours_us: float = math.nan
    theirs_us: float = math.nan


def decide(site: Site, force: bool) -> Verdict:
    """Whether a site pays."""
    fake = value(site.node)
    device = fake.device.type
    if device == "cuda":
        facts = torch.cuda.get_device_properties(fake.device)
        served = kernels_for((facts.major, facts.minor), built_archs())
        if served.startswith("none"):
            return Verdict(False, f"no kernels: {served.removeprefix('none: ')}")
    elif device != "cpu":
        return Verdict(False, f"no kernels for {device}")
    if force:
        return Verdict(True, "forced")
    if device == "cpu":
        return Verdict(False, "on a CPU our ops are plain C++: nothing to gain")
    sizes = [_hint(s) for s in site.sizes]
    if None in sizes:
        return Verdict(False, "its size is unknown when it is compiled")
    ours, theirs = _Model(site, [int(s) for s in sizes if s is not None]).times()
    if math.isnan(ours):
        return Verdict(False, "no kernel takes one of its products")
    text = f"{ours:.0f} us expected, {theirs:.0f} us by cuBLAS and Inductor"
    return Verdict(ours * MARGIN < theirs, text, ours, theirs)


def _hint(size: Any) -> int | None:
    """A size as it is in this compilation; adds no guard."""
    if isinstance(size, int):
        return size
    hint = getattr(size.node, "hint", None)
    return int(hint) if isinstance(hint, int) else None


class _Model:
    def __init__(self, site: Site, sizes: list[int]) -> None:
        self.site, self.sizes = site, sizes
        fake = value(site.node)
        name, capability, sm_count = _gpu(fake)
        self.bytes_per_us = next((b for n, b in BYTES_PER_US.items() if n in name), SLOWEST)
        self.element = fake.dtype.itemsize
        tf32 = any(True in step.args[-1:] for step in site.steps)
        self.options = {
            "dtype": DTYPES[fake.dtype],
            "allow_tf32": tf32,
            "capability": capability,
            "sm_count": sm_count,
        }
        self.code = CODES[site.activation]
        self.training = site.facts.get("training", False)

    def times(self) -> tuple[float, float]:
        """Microseconds with our ops, and without."""
        result: tuple[float, float] = getattr(self, self.site.kind)(*self.sizes)
        return result

    def gemm(self, m: int, n: int, k: int, epilogue: str = "fused", act: int = 0) -> float:
        options = self.options | {"epilogue": epilogue, "activation": act}
        names = ("a", "b")
        return _explain_gemm("", m, n, k, (k, 1, 0), (1, k, 0), names, options).expected_us

    def wgrad(self, m: int, n: int, k: int, epilogue: str = "fused") -> float:
        """a.T @ b with M rows summed over."""
        options = self.options | {"epilogue": epilogue, "activation": 0}
        views = (1, n, 0), (k, 1, 0)
        return _explain_gemm("", n, k, m, *views, ("a", "b"), options).expected_us

    def moved(self, *elements: int) -> float:
        """A kernel that reads and writes this much."""
        moved: float = sum(elements) * self.element / self.bytes_per_us
        return moved + LAUNCH_US

    @property
    def stored(self) -> str:
        """The epilogue of a first product: whether it stores z beside act(z)."""
        return "preact" if self.training and SAVES_PREACT[self.code] else "fused"

    def linear(self, m: int, n: int, k: int) -> tuple[float, float]:
        out = m * n
        ours = self.gemm(m, n, k, "preact" if self.training else "fused", self.code)
        return ours, self.gemm(m, n, k) + self.moved(out, out)

    def weight_grad(self, m: int, n: int, k: int) -> tuple[float, float]:
        out = n * k
        cast = self.moved(out, out * 4 // self.element)
        return self.wgrad(m, n, k, "accumulator"), self.wgrad(m, n, k) + cast

    def mlp(self, m: int, hidden: int, k: int, n: int) -> tuple[float, float]:
        wide, out = m * hidden, m * n
        last = self.gemm(m, n, hidden)
        ours = self.gemm(m, hidden, k, self.stored, self.code) + last
        theirs = self.gemm(m, hidden, k) + self.moved(wide, wide) + last
        if self.site.facts.get("residual"):
            ours += self.gemm(m, n, hidden, "residual") - last
            theirs += self.moved(out) - LAUNCH_US  # read by the kernel that adds
        if self.training:
            ours += self.gemm(m, hidden, n, "grad", self.code)
            theirs += self.gemm(m, hidden, n) + self.moved(wide, wide, wide)
            theirs += self.moved(wide) if self.site.facts.get("bias") else 0.0
            if SAVES_PREACT[self.code]:  # act(z) again, for the weight gradient
                ours += self.moved(wide, wide)
        return ours, theirs

    def gated_mlp(self, m: int, hidden: int, k: int, n: int) -> tuple[float, float]:
        wide, out = m * hidden, m * n
        last = self.gemm(m, n, hidden)
        both = self.gemm(m, 2 * hidden, k)
        apart = both if self.site.facts.get("packed") else 2 * self.gemm(m, hidden, k)
        ours = both + self.moved(wide) - LAUNCH_US + last
        theirs = apart + self.moved(wide, wide, wide) + last
        if self.site.facts.get("residual"):
            ours += self.gemm(m, n, hidden, "residual") - last
            theirs += self.moved(out) - LAUNCH_US
        if self.training:
            product = self.gemm(m, hidden, n)
            # The epilogue reads gate and up and writes both gradients; act(gate) * up is formed
            # again, for the weight gradient.
            ours += product + self.moved(3 * wide) - LAUNCH_US + self.moved(3 * wide)
            theirs += product + self.moved(5 * wide)
            if not self.site.facts.get("packed"):
                ours += self.gemm(m, k, 2 * hidden)
                theirs += 2 * self.gemm(m, k, hidden) + self.moved(3 * m * k)
        return ours, theirs
