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
)

CODES: dict[str | None, int] = {None: 0, **{name: code for code, name in enumerate(ACTIVATIONS)}}

# Indexed by code. Backward reads the output y, or the pre-activation z, or neither.
SAVES_OUTPUT: tuple[bool, ...] = tuple(a in ("relu", "sigmoid", "tanh") for a in ACTIVATIONS)
SAVES_PREACT: tuple[bool, ...] = tuple(
    a in ("gelu", "gelu_tanh", "silu", "relu2") for a in ACTIVATIONS
)


def raise_unknown(op: str, activation: object) -> NoReturn:
    """Raise the error for an activation that `CODES` does not hold."""
    known = ", ".join(repr(name) for name in ACTIVATIONS)
    raise ValueError(f"{op}: activation must be None or one of {known}; got {activation!r}")


def activation_code(activation: str | None, op: str = "activation_code") -> int:
    """Return the integer that stands for an activation at the op boundary.

    Args:
        activation: None, "none", "relu", "gelu" (erf form), "gelu_tanh", "silu", "sigmoid", "tanh"
            or "relu2" (squared relu).
        op: The name that an error starts with.

    Raises:
        ValueError: The activation is unknown; the message lists the known ones.
    """
    try:
        return CODES[activation]
    except (KeyError, TypeError):
        raise_unknown(op, activation)
