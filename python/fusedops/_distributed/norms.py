"""Norms: by rows. Statistics are one flat vector of them, whichever dimension is sharded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.distributed.tensor import Replicate, Shard

from .notation import Sharding, read, shard
from .rules import RULES

if TYPE_CHECKING:
    from collections.abc import Sequence

try:
    from torch.distributed.tensor.placement_types import _StridedShard
except ImportError:  # private: torch may rename it
    _StridedShard = None


def _flat(shape: Sequence[int], dim: int) -> Any:
    """The rows of a shard along a leading dimension, among those of all leading dimensions."""
    before = 1
    for size in shape[:dim]:
        before *= size
    if before == 1:
        return Shard(0)
    return None if _StridedShard is None else _StridedShard(0, split_factor=before)


def _norm_rule(name: str, given_text: str, made_text: str) -> None:
    """Terms as in `rules`; Z is what is normalised over, R the flat vector of rows."""

    def rule(arguments: dict[str, Any], tensors: Sequence[Any]) -> list[Sharding]:
        x = tensors[0]
        leading = x.ndim - arguments["norm_dims"]
        own = "abcdefgh"[: arguments["norm_dims"]]
        texts = f"{given_text} -> {made_text}".replace("Z", own)
        given, made, lead = read(texts, tensors)
        found = []
        for dim in lead[:leading]:
            results, placed = shard(dim, given, made, tensors)
            rows = _flat(x.shape[:leading], dim)
            if rows is None:
                continue
            for terms, places in ((given, placed), (made, results)):
                for i, term in enumerate(terms):
                    if term.labels == ("R",) and isinstance(places[i], Replicate):
                        places[i] = rows
            found.append((results, placed))
        return found

    RULES[name] = rule


_norm_rule("layer_norm", "...Z ...Z Z Z", "...Z ...Z R R")
_norm_rule("rms_norm", "...Z ...Z Z", "...Z ...Z R")
_norm_rule("layer_norm_backward", "...Z ...Z ...Z Z R R", "...Z Z/... Z/...")
_norm_rule("rms_norm_backward", "...Z ...Z ...Z Z R", "...Z Z/...")


def whole_rows(shape: Sequence[int], placements: Sequence[Any], sizes: Sequence[int]) -> bool:
    """Whether the shards of a norm's input are the shards of its flat statistics.

    placements, sizes: of the input, and of the mesh, by its dimensions.
    """
    sharded = [(p, size) for p, size in zip(placements, sizes, strict=True) if p.is_shard()]
    if len(sharded) > 1:
        return False
    return all(shape[p.dim] % size == 0 for p, size in sharded)
