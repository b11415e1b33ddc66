"""Shardings of an op along one dimension of a mesh, from what its dimensions mean.

A label stands for a dimension of the problem: the rows, N and K of a product. Sharding a label
shards every tensor that has it and replicates the others. A result that sums over the label is
partial, and what the op adds to such a result has to be partial as well, or it is added many times.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch.distributed.tensor import Partial, Replicate, Shard

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Label = str | int
# Placements of the results, then of the tensors among the arguments (None: not given).
Sharding = tuple[list[Any], list[Any]]


@dataclass(frozen=True)
class Term:
    """What the dimensions of an argument or a result mean."""

    labels: tuple[Label | None, ...]
    sums: tuple[Label, ...] = ()  # of a result: what it sums over
    kind: str = "sum"  # how the parts of a result make the whole
    added: bool = False  # an argument that is added to results


def _parse(text: str, lead: tuple[int, ...]) -> Term:
    """``...n/k``: rows and n, summed over k; ``n+``: added to the result."""
    added = text.endswith("+")
    dims, _, sums = text.rstrip("+").partition("/")

    def labels(part: str) -> tuple[Label, ...]:
        before, dots, after = part.partition("...")
        return (*before, *lead, *after) if dots else tuple(part)

    return Term(labels(dims), labels(sums), added=added)


def read(rule: str, tensors: Sequence[Any]) -> tuple[list[Term], list[Term], tuple[int, ...]]:
    """The arguments, the results and the leading dimensions of ``arguments -> results``.

    tensors: what came for the arguments; the first that has leading dimensions says how many.
    """
    given, made = (side.split() for side in rule.split("->"))
    lead: tuple[int, ...] = ()
    for text, tensor in zip(given, tensors, strict=True):
        if "..." in text and tensor is not None:
            own = len(text.rstrip("+").replace("...", ""))
            lead = tuple(range(max(len(lead), tensor.ndim - own)))
    return [_parse(t, lead) for t in given], [_parse(t, lead) for t in made], lead


def _place(term: Term, label: Label, shape: Sequence[int] | None, size: int) -> Any:
    """A tensor's placement where a label of a size is sharded."""
    labels = term.labels
    if shape is not None:  # broadcast: aligned at the end
        labels = labels[len(labels) - len(shape) :]
    if label in labels:
        dim = labels.index(label)
        broadcast = shape is not None and shape[dim] == 1 and size != 1
        return Replicate() if broadcast else Shard(dim)
    if label in term.sums:
        return Partial(term.kind)
    return Replicate()


def shard(
    label: Label, arguments: Sequence[Term], results: Sequence[Term], tensors: Sequence[Any]
) -> Sharding:
    """How an op runs with one label sharded."""
    sizes = [1]
    for term, tensor in zip(arguments, tensors, strict=True):
        if tensor is not None:
            labels = term.labels[len(term.labels) - tensor.ndim :]
            sizes += [tensor.shape[i] for i, own in enumerate(labels) if own == label]
    placed: list[Any] = []
    partial = any(label in result.sums for result in results)
    for term, tensor in zip(arguments, tensors, strict=True):
        if tensor is None:
            placed.append(None)
        elif partial and term.added:
            placed.append(Partial())
        else:
            placed.append(_place(term, label, tensor.shape, max(sizes)))
    return [_place(result, label, None, 0) for result in results], placed


def shard_each(
    labels: Iterable[Label],
    arguments: Sequence[Term],
    results: Sequence[Term],
    tensors: Sequence[Any],
) -> list[Sharding]:
    """How an op runs with each of the labels sharded."""
    return [shard(label, arguments, results, tensors) for label in labels]


def replicate(results: int, tensors: Sequence[Any]) -> Sharding:
    """The whole op on every rank."""
    return [Replicate()] * results, [None if t is None else Replicate() for t in tensors]
