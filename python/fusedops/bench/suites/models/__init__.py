"""The suite `models`: what a user feels is the whole training step."""

from .suite import SUITE, ModelsSuite

__all__ = ["SUITE", "ModelsSuite"]
