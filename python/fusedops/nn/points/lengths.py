"""Lengths of padded clouds, where no op of a layer checks them."""

from __future__ import annotations

from torch import Tensor

from ..._fakes.cloud import check_index_vector


def check_lengths(op: str, lengths: object, xyz: Tensor) -> None:
    """Raise unless lengths are those of clouds (B, N, D), in the words of the ops."""
    if not isinstance(lengths, Tensor):
        raise TypeError(f"{op}: lengths must be a Tensor or None; got {type(lengths).__name__}")
    check_index_vector(op, "lengths", lengths, xyz.shape[0], "xyz", xyz)
