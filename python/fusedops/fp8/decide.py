"""Whether FP8 pays for a layer: a floor of its time in bf16 and in FP8, by arithmetic.

Rates are those of long products, measured on an H100 (perf/results/h100/fp8.csv); the bf16 rate is
among the highest that were seen, FP8's among the lowest. Both counts leave out what both have
(waves of tiles, epilogues), so that what decides is what FP8 adds: passes that quantise. A product
that is short is bound by launches, and FP8 has more of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from .._core.traced import is_exporting
from .inference import has_fp8

BF16_FLOPS_PER_US = 690e6
FP8_FLOPS_PER_US = 1080e6  # forward and input gradient: 1041 to 1228
FP8_WGRAD_FLOPS_PER_US = 1080e6  # inputs [tile], gradients 1x128: 1050 to 1206
COPY_BYTES_PER_US = {"H100": 2.9e6, "H200": 4.2e6}
QUANTIZE_SHARE = 0.85  # of a copy's rate
LAUNCH_US = 3.3
MARGIN = 0.95  # FP8 is chosen below this fraction of bf16's time: the model's own error


@dataclass(frozen=True)
class Fp8Estimate:
    """What a layer takes in bf16 and in FP8, by the time model.

    Attributes:
        bf16_us: All products of the call.
        fp8_us: The same with the passes that quantise.
        pays: Whether "auto" runs the layer in FP8.
        reason: Why, in words.
    """

    bf16_us: float
    fp8_us: float
    pays: bool
    reason: str

    @property
    def speedup(self) -> float:
        """bf16's time over FP8's."""
        return self.bf16_us / self.fp8_us


def _product_us(m: Any, n: Any, k: Any, flops_per_us: float, size: int, copy: float) -> Any:
    """A product by its arithmetic or by its bytes; operands have `size` bytes an element."""
    arithmetic = 2.0 * m * n * k / flops_per_us
    memory = ((m + n) * k * float(size) + 2.0 * m * n) / copy
    return LAUNCH_US + max(arithmetic, memory)


def _pass_us(elements: Any, bytes_each: int, copy: float) -> Any:
    return LAUNCH_US + elements * float(bytes_each) / (QUANTIZE_SHARE * copy)


def times(
    m: Any, n: Any, k: Any, need_x: bool, need_w: bool, copy: float, keeps_weight: bool = True
) -> tuple[Any, Any]:
    """(bf16, fp8) of a linear layer of m rows, in us; keeps_weight: quantised before."""
    bf16 = _product_us(m, n, k, BF16_FLOPS_PER_US, 2, copy)
    fp8 = _product_us(m, n, k, FP8_FLOPS_PER_US, 1, copy) + _pass_us(
        m * k, 4 if need_w else 3, copy
    )
    trains = need_x or need_w
    if trains or not keeps_weight:
        fp8 = fp8 + _pass_us(n * k, 4 if need_x else 3, copy)  # once a step
    if need_x:
        bf16 = bf16 + _product_us(m, k, n, BF16_FLOPS_PER_US, 2, copy)
        fp8 = fp8 + _product_us(m, k, n, FP8_FLOPS_PER_US, 1, copy)
    if need_w:
        bf16 = bf16 + _product_us(n, k, m, BF16_FLOPS_PER_US, 2, copy)
        fp8 = fp8 + _product_us(n, k, m, FP8_WGRAD_FLOPS_PER_US, 1, copy)
    if trains:
        fp8 = fp8 + _pass_us(m * n, 2 + need_x + need_w, copy)
    return bf16, fp8


def _copy_rate_of(name: str) -> float:
    return COPY_BYTES_PER_US["H100" if "H100" in name else "H200"]


def _copy_rate() -> float:
    """That of the current GPU; an H200's where there is none."""
    if not torch.cuda.is_available():
        return COPY_BYTES_PER_US["H200"]
    return _copy_rate_of(torch.cuda.get_device_name())


# NOTE: as in ops/linear.py, for Dynamo without its import.
_copy_rate._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _example(m: Any) -> Any:
    """The rows that decide: of a program that is exported those of its example."""
    # NOTE: what is decided by a symbol becomes a bound of it, which torch.export refuses.
    if not is_exporting():
        return m
    from torch.fx.experimental import symbolic_shapes

    if hasattr(symbolic_shapes, "optimization_hint"):
        return symbolic_shapes.optimization_hint(m)
    return symbolic_shapes.size_hint(m)  # what torch 2.11 has of it


def pays(
    layers: tuple[tuple[Any, Any], ...], m: Any, need_x: bool, need_w: bool, device: torch.device
) -> bool:
    """Whether "auto" runs layers (N, K) of a call in FP8. Where FP8 is emulated, as asked.

    Of two layers the first one's results (N, gate and up of a gated MLP) become the second one's
    input by passes of their own, which a linear layer alone does not have.
    """
    if not has_fp8(device):
        return True
    copy, m = _copy_rate(), _example(m)
    bf16 = fp8 = 0.0
    for n, k in layers:
        of_layer = times(m, n, k, need_x, need_w, copy)
        bf16, fp8 = bf16 + of_layer[0], fp8 + of_layer[1]
    if len(layers) > 1:
        (first, _), (_, hidden) = layers
        between = first if need_x or need_w else first - hidden
        fp8 = fp8 + m * between * 2.0 / (QUANTIZE_SHARE * copy)
    return bool(fp8 < MARGIN * bf16)


def estimate(
    m: int, n: int, k: int, need_x: bool = True, need_w: bool = True, gpu: str = "H200"
) -> Fp8Estimate:
    """Both times of a linear layer of m rows on a GPU, and which one "auto" takes."""
    bf16, fp8 = times(m, n, k, need_x, need_w, _copy_rate_of(gpu))
    chosen = fp8 < MARGIN * bf16
    bound = "the products outweigh the passes that quantise"
    if not chosen:
        bound = "the passes that quantise take what the products gain"
    reason = f"{bound}: {fp8:.0f} us expected against {bf16:.0f} us in bf16"
    return Fp8Estimate(bf16, fp8, bool(chosen), reason)


def rows_to_pay(n: int, k: int, gpu: str = "H200", most: int = 1 << 20) -> int | None:
    """The fewest rows, a power of two, from which "auto" trains a layer in FP8; None: never."""
    rows = 128
    while rows <= most:
        if all(estimate(r, n, k, gpu=gpu).pays for r in (rows, 2 * rows)):
            return rows
        rows *= 2
    return None
