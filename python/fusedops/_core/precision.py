"""How precisely torch computes: its settings for float32, and whether autocast casts."""

from __future__ import annotations

import torch

KINDS = ("conv", "matmul")


def is_autocast_on(device_type: str) -> bool:
    """Whether autocast is on for a device; meta has none, and torch raises where it is asked."""
    return device_type != "meta" and torch.is_autocast_enabled(device_type)


def fp32_precision(kind: str, device_type: str) -> str:
    """The setting of "conv" or "matmul" on a device: "ieee", "tf32" or "bf16"."""
    backends = torch.backends
    if device_type != "cuda":
        setting = getattr(backends.mkldnn, kind).fp32_precision
    else:
        setting = (backends.cudnn.conv if kind == "conv" else backends.cuda.matmul).fp32_precision
    return "ieee" if setting == "none" else str(setting)


def fp32_precisions() -> tuple[str, ...]:
    """All settings that decide whether a product may stand for a convolution."""
    return tuple(fp32_precision(kind, device) for device in ("cuda", "cpu") for kind in KINDS)


def why_another_precision(device_type: str) -> str | None:
    """What a convolution of float32 and a product would not do alike, None where they do."""
    conv, matmul = (fp32_precision(kind, device_type) for kind in KINDS)
    if conv == matmul:
        return None
    return f"torch's settings for float32: {conv} in convolutions, {matmul} in products"
