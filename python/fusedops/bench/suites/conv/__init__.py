"""The suite `conv`."""

from .suite import SUITE

__all__ = ["SUITE"]
