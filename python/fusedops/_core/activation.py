"""The activation table: names users write, codes the ops take, what backward has to keep."""

from __future__ import annotations

from typing import NoReturn

# NOTE: csrc/common/activation.h holds the same table; test_contract.py compares them.
ACTIVATIONS: tuple[str, ...] = (
    "none",
    "relu",
    "gelu",
    "gelu_tanh",
    "silu",
    "sigmoid",
    "tanh",
    "relu2",
    "quick_gelu",
    "leaky_relu",
    "hardswish",
    "mish",
    "softplus",
    "elu",
    "relu6",
)

CODES: dict[str | None, int] = {None: 0, **{name: code for code, name in enumerate(ACTIVATIONS)}}

# Indexed by code. Backward reads the output y, or the pre-activation z, or neither.
SAVES_OUTPUT: tuple[bool, ...] = tuple(
    a in ("relu", "sigmoid", "tanh", "leaky_relu", "relu6") for a in ACTIVATIONS
)
SAVES_PREACT: tuple[bool, ...] = tuple(
    a != "none" and not output for a, output in zip(ACTIVATIONS, SAVES_OUTPUT, strict=True)
)

# Parameters of activations, which are torch's defaults.
QUICK_GELU_SCALE = 1.702
LEAKY_RELU_SLOPE = 0.01
SOFTPLUS_THRESHOLD = 20.0


def raise_unknown(op: str, activation: object) -> NoReturn:
    """Raise the error for an activation that `CODES` does not hold."""
    known = ", ".join(repr(name) for name in ACTIVATIONS)
    raise ValueError(f"{op}: activation must be None or one of {known}; got {activation!r}")


def activation_code(activation: str | None, op: str = "activation_code") -> int:
    """Return the integer that stands for an activation at the op boundary.

    Args:
        activation: None, "none", "relu", "gelu" (erf form), "gelu_tanh", "silu", "sigmoid", "tanh",
            "relu2" (squared relu), "quick_gelu" (z sigmoid(1.702 z)), "leaky_relu" (slope 0.01),
            "hardswish", "mish", "softplus" (beta 1, threshold 20), "elu" (alpha 1) or "relu6".
        op: The name that an error starts with.

    Raises:
        ValueError: The activation is unknown; the message lists the known ones.
    """
    try:
        return CODES[activation]
    except (KeyError, TypeError):
        raise_unknown(op, activation)
