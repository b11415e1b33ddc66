"""The suite `fp8`: products, steps of layers, and the quantiser."""

from .suite import SUITE, Fp8Suite

__all__ = ["SUITE", "Fp8Suite"]
