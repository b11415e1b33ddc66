"""The one place that decides which sites pay: what the region takes with us and without.

Ours are our calls, theirs are cuBLAS's products, both measured once for every size (measure.py),
and the pointwise kernels that Inductor makes: what these move, at the memory's speed. Where there
is no GPU to measure on, or no memory, a time model says what products take: ours with their
epilogues as `fusedops.explain` expects them, theirs as fast as ours without (not those of float32,
which cuBLAS forms without Tensor Cores). The answer is cached with the compiled graph.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from .._core.activation import CODES, SAVES_PREACT
from .._core.info import built_archs, kernels_for
from .._tuning.explain import View, _explain_gemm, _gpu
from .._tuning.names import DTYPES
from ..ops.linear_cross_entropy_shard import CHUNK_BYTES
from .graph import value
from .measure import measured

if TYPE_CHECKING:
    from .sites import Site

LAUNCH_US = 1.0  # of a kernel behind another one
# Read and written bytes of a large elementwise kernel, which Inductor's are: eager's add of
# 268435456 bf16 in perf/results/h200/elementwise.csv. Other cards get the share of their memory's
# peak (4.8 TB/s there) that this is.
BYTES_PER_US = {"H200": 4.4e6}
MEMORY_SHARE = 0.9
SLOWEST = 1.3e6  # of a GPU that does not say how fast its memory is
FP32_FLOPS_PER_US = 50e6  # of cuBLAS at full float32 precision
INDEX_US = 10.0  # listing the entries of an embedding's rows: estimated, not measured
LEAST_DEPTHWISE = 1 << 18  # elements of a depthwise convolution
LEAST_FEATURES = 32  # of a patch: two steps of a kernel's loop over K
MARGIN = 1.0  # theirs must be slower by more than this factor
NOISE = 1.01  # and where times are measured, by this one
# Shorter sites are not measured: what starts a kernel is most of their time. Nor are products
# alone: in half precision they are cuBLAS's.
SHORT_US = 30.0
# Inductor's passes over rows of many logits, forward and backward, take more than the memory's
# time: bytes of logits a microsecond, by whether a row is whole 16-byte chunks. From cross_entropy
# of 32000, 50257 and 128256 classes in perf/results/h200/norm.csv; an H100 takes as long.
WIDE_ROW, INDUCTOR_LOSS = 2048, {True: (1.57e6, 1.63e6), False: (1.38e6, 1.19e6)}
# A loss without the logits in memory is worth that much of its time, if it spares so many bytes.
WORTH, SPARED_BYTES = 0.95, 2**28


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
    if force and site.kind != "product":
        return Verdict(True, "forced")
    if device == "cpu":
        return Verdict(False, "on a CPU our ops are plain C++: nothing to gain")
    sizes = [s for size in site.sizes if (s := _hint(size)) is not None]
    if len(sizes) < len(site.sizes):
        return Verdict(False, "its size is unknown when it is compiled")
    if not site.products:
        return _by_memory(site, sizes)
    model = _Model(site, sizes)
    ours, theirs, margin, how = *model.times(), MARGIN, "expected"
    if math.isnan(ours):
        return Verdict(False, "no kernel takes one of its products")
    found = None
    if theirs >= SHORT_US and site.kind != "product":
        found = measured(site, _hint, model.bytes_per_us)
    if found is not None:
        margin, how = NOISE, "measured"
        ours, theirs = found[0], found[1] + _Pointwise(site, model.sizes).times()[1]
    text = f"{ours:.0f} us {how}, {theirs:.0f} us by cuBLAS and Inductor"
    spared = model.spared()
    if spared >= SPARED_BYTES:
        margin *= WORTH
        text += f"; {spared / 2**20:.0f} MiB of logits spared"
    return Verdict(ours * margin < theirs, text, ours, theirs)


def decide_patches(x: Any, kernel: tuple[int, ...], channels_last: bool, force: bool) -> Verdict:
    """Whether products take the place of a convolution of patches of x (N, C, ...).

    No time is modelled. Of half precision cuDNN's kernels on Tensor Cores read channels last, in
    whole 16 bytes: it copies an x that lies otherwise, and the result back, which is more than the
    one copy of x that makes patches. Where x lies so it copies nothing, and the product would.
    """
    if force:
        return Verdict(True, "forced")
    if x.device.type != "cuda":
        return Verdict(False, f"nothing is gained on {x.device.type}")
    channels = int(x.shape[1])
    features = channels * math.prod(kernel)
    if features < LEAST_FEATURES:
        return Verdict(False, f"a product of {features} features is bound by memory, as it is")
    if channels_last and channels * x.dtype.itemsize % 16 == 0:
        return Verdict(False, "cuDNN reads channels last as they are, a product copies them")
    return Verdict(True, f"a product of {features} features; cuDNN would lay x out anew")


def decide_depthwise(x: Any, force: bool) -> Verdict:
    """Whether our op takes the place of a depthwise convolution of x (N, C, H, W)."""
    if force:
        return Verdict(True, "forced")
    if x.device.type != "cuda":
        return Verdict(False, f"nothing is gained on {x.device.type}")
    count = math.prod(_hint(size) or 1 for size in x.shape)
    if count < LEAST_DEPTHWISE:
        return Verdict(False, f"{count} elements are bound by launches")
    return Verdict(True, "torch's kernels run far from the speed of memory")


def _bytes_per_us(name: str, device: torch.device) -> float:
    """What a large elementwise kernel moves."""
    known = next((b for n, b in BYTES_PER_US.items() if n in name), None)
    if known is not None or not torch.cuda.is_available():
        return known or SLOWEST
    facts = torch.cuda.get_device_properties(device)
    bits, khz = getattr(facts, "memory_bus_width", 0), getattr(facts, "memory_clock_rate", 0)
    peak = 2 * khz * 1e-3 * bits / 8  # two transfers a clock
    return peak * MEMORY_SHARE or SLOWEST


def _by_memory(site: Site, sizes: list[int]) -> Verdict:
    """Decides a site without products, which costs what it moves."""
    ours, theirs = _Model(site, sizes).times()
    text = f"{ours:.0f} us expected, {theirs:.0f} us by Inductor"
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
        self.bytes_per_us = _bytes_per_us(name, fake.device)
        self.element = fake.dtype.itemsize
        tf32 = any(True in step.args[-1:] for step in site.steps)
        self.options = {
            "dtype": DTYPES[fake.dtype],
            "allow_tf32": tf32,
            "capability": capability,
            "sm_count": sm_count,
        }
        self.code = CODES[site.activation]
        self.exact_fp32 = fake.dtype is torch.float32 and not tf32
        self.training = site.facts.get("training", False)

    def times(self) -> tuple[float, float]:
        """Microseconds with our ops, and without."""
        kind = {"product": "product_site"}.get(self.site.kind, self.site.kind)
        result: tuple[float, float] = getattr(self, kind)(*self.sizes)
        return result

    def gemm(self, m: int, n: int, k: int, epilogue: str = "fused", act: int = 0) -> float:
        """x @ weight.T."""
        return self.product(m, n, k, ((k, 1, 0), (1, k, 0)), epilogue, act)

    def dgrad(self, m: int, n: int, k: int, epilogue: str = "fused", act: int = 0) -> float:
        """dy @ weight."""
        return self.product(m, n, k, ((k, 1, 0), (n, 1, 0)), epilogue, act)

    def wgrad(self, m: int, n: int, k: int, epilogue: str = "fused") -> float:
        """dy.T @ x, summed over M rows."""
        return self.product(n, k, m, ((1, n, 0), (k, 1, 0)), epilogue, 0)

    def product(
        self, m: int, n: int, k: int, views: tuple[View, View], epilogue: str, act: int
    ) -> float:
        options = self.options | {"epilogue": epilogue, "activation": act}
        return _explain_gemm("", m, n, k, *views, ("a", "b"), options).expected_us

    def gradient(self, m: int, hidden: int, n: int) -> float:
        """dz = (dy @ weight) * act'(z) and its sums, by one kernel or by two."""
        fused = self.dgrad(m, hidden, n, "grad", self.code)
        wide = m * hidden
        apart = self.dgrad(m, hidden, n) + self.moved(wide, wide, wide)
        return apart if math.isnan(fused) else fused

    def moved(self, *elements: int) -> float:
        """A kernel that reads and writes this much."""
        moved: float = sum(elements) * self.element / self.bytes_per_us
        return moved + LAUNCH_US

    @property
    def stored(self) -> str:
        """The epilogue of a first product: whether it stores z beside act(z)."""
        return "preact" if self.training and SAVES_PREACT[self.code] else "fused"

    def cublas(self, ours: float, m: int, n: int, k: int) -> float:
        """The time of cuBLAS for a product that takes us this long."""
        return 2.0 * m * n * k / FP32_FLOPS_PER_US if self.exact_fp32 else ours

    def plain(self, m: int, n: int, k: int) -> float:
        return self.cublas(self.gemm(m, n, k), m, n, k)

    def product_site(self, m: int, n: int, k: int) -> tuple[float, float]:
        facts = self.site.facts
        views = ((1, m, 0) if facts["a"] else (k, 1, 0), (1, k, 0) if facts["b"] else (n, 1, 0))
        ours = self.product(m, n, k, views, "fused", 0)
        return ours, self.cublas(ours, m, n, k)

    def linear(self, m: int, n: int, k: int) -> tuple[float, float]:
        out = m * n
        ours = self.gemm(m, n, k, "preact" if self.training else "fused", self.code)
        return ours, self.plain(m, n, k) + self.moved(out, out)

    def weight_grad(self, m: int, n: int, k: int) -> tuple[float, float]:
        out = n * k
        cast = self.moved(out, out * 4 // self.element)
        return self.wgrad(m, n, k, "accumulator"), self.wgrad(m, n, k) + cast

    def embedding_grad(self, m: int, rows: int, d: int) -> tuple[float, float]:
        """One pass that writes the gradient; zeros, atomics and a cast of the sums in float32."""
        grad, out = m * d, rows * d
        wide = max(4 // self.element, 1)
        theirs = self.moved(wide * out) + self.moved(grad, 2 * wide * grad)
        if wide > 1:
            theirs += self.moved(wide * out, out)
        return INDEX_US + self.moved(grad, out), theirs

    def spared(self) -> int:
        """Bytes of logits that are not in memory."""
        if self.site.kind != "linear_cross_entropy":
            return 0
        m, classes, _ = self.sizes
        logits: int = m * classes * self.element
        return max(logits - CHUNK_BYTES, 0)

    def linear_cross_entropy(self, m: int, classes: int, k: int) -> tuple[float, float]:
        logits, dweight = m * classes, classes * k
        ours = self.gemm(m, classes, k) + self.moved(logits)
        aligned = classes * self.element % 16 == 0
        forward, backward = self.moved(logits), self.moved(logits, logits)
        if classes >= WIDE_ROW:
            rates = INDUCTOR_LOSS[aligned]
            forward, backward = (
                max(us, logits * self.element / rate)
                for us, rate in zip((forward, backward), rates, strict=True)
            )
        theirs = self.plain(m, classes, k) + forward
        if self.site.facts.get("dx"):
            product = self.dgrad(m, k, classes)
            ours += product
            theirs += self.cublas(product, m, k, classes)
        if self.site.facts.get("dw"):
            product = self.wgrad(m, classes, k)
            theirs += self.cublas(product, m, classes, k)
            # A sum over chunks, which is read again, in float32 if these are more than two; and
            # backward multiplies it by what arrives at the loss.
            chunks = math.ceil(logits * self.element / CHUNK_BYTES)
            wide = max(4 // self.element, 1) if chunks > 2 else 1
            ours += product + (chunks - 1) * self.moved(wide * dweight) - LAUNCH_US
            ours += self.moved(dweight, dweight)
            if wide > 1:
                ours += self.moved((chunks - 1) * wide * dweight, wide * dweight, dweight)
        if self.training:
            ours += self.moved(logits)  # the gradient in the logits' place
            theirs += backward
        return ours, theirs

    def mlp(self, m: int, hidden: int, k: int, n: int) -> tuple[float, float]:
        wide, out = m * hidden, m * n
        last = self.gemm(m, n, hidden)
        ours = self.gemm(m, hidden, k, self.stored, self.code) + last
        theirs = self.plain(m, hidden, k) + self.moved(wide, wide) + self.plain(m, n, hidden)
        if self.site.facts.get("residual"):
            ours += self.gemm(m, n, hidden, "residual") - last
            theirs += self.moved(out) - LAUNCH_US  # read by the kernel that adds
        if self.training:
            ours += self.gradient(m, hidden, n)
            theirs += self.cublas(self.dgrad(m, hidden, n), m, hidden, n)
            theirs += self.moved(wide, wide, wide)
            theirs += self.moved(wide) if self.site.facts.get("bias") else 0.0
            if SAVES_PREACT[self.code]:  # act(z) again, for the weight gradient
                ours += self.moved(wide, wide)
        return ours, theirs

    def gated_mlp(self, m: int, hidden: int, k: int, n: int) -> tuple[float, float]:
        wide, out = m * hidden, m * n
        last = self.gemm(m, n, hidden)
        both = self.gemm(m, 2 * hidden, k)
        packed = self.site.facts.get("packed", False)
        apart = self.plain(m, 2 * hidden, k) if packed else 2 * self.plain(m, hidden, k)
        ours = both + self.moved(wide) - LAUNCH_US + last
        theirs = apart + self.moved(wide, wide, wide) + self.plain(m, n, hidden)
        if self.site.facts.get("residual"):
            ours += self.gemm(m, n, hidden, "residual") - last
            theirs += self.moved(out) - LAUNCH_US
        if self.training:
            product = self.dgrad(m, hidden, n)
            # The epilogue reads gate and up and writes both gradients; act(gate) * up is formed
            # again, for the weight gradient.
            ours += product + self.moved(3 * wide) - LAUNCH_US + self.moved(3 * wide)
            theirs += self.cublas(product, m, hidden, n) + self.moved(5 * wide)
            if not packed:
                ours += self.dgrad(m, k, 2 * hidden)
                dx = self.cublas(self.dgrad(m, k, hidden), m, k, hidden)
                theirs += 2 * dx + self.moved(3 * m * k)
        return ours, theirs


class _Pointwise(_Model):
    """What Inductor's pointwise kernels take: the products take nothing."""

    def product(
        self, m: int, n: int, k: int, views: tuple[View, View], epilogue: str, act: int
    ) -> float:
        return 0.0

    def cublas(self, ours: float, m: int, n: int, k: int) -> float:
        return 0.0
