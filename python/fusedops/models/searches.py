"""What a PointNet++ finds by coordinates alone, ahead of its layers and beside them.

Furthest point sampling is a chain of latencies on few multiprocessors, and searches of small clouds
are hardly more. Of a whole model only the first level's centres and neighbours have to come before
the first layer: a second stream finds the centres of all levels, the neighbours of the others and
the weights of interpolation, while the layers run. Results are those of the layers' own searches,
bit by bit.

Points in the order in which furthest point sampling chose them are sampled already: the point
furthest from the first k of them is, of all points and so of these, the next one, and of equal ones
the lowest by index came first. The centres of deeper levels are the first ones of the level above.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from .._autograd.shared import needs_grad, sees_torch_functions_only
from ..nn import FeaturePropagation, SetAbstraction
from ..nn.linear import untouched

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_STREAMS = threading.local()  # of a thread: its graph captures are no other thread's


class Level(NamedTuple):
    """The centres of a set abstraction layer."""

    centers: Tensor
    lengths: Tensor | None
    neighbours: list[Tensor] | None  # of each scale; None: the layer searches itself


class Searches:
    """The levels of an encoder, and the neighbours of its propagations, the finest first."""

    def __init__(self, stream: Any, device: torch.device) -> None:
        self._main, self._side = torch.cuda.current_stream(device), stream
        self._levels: list[tuple[Level, Any]] = []  # and an event each
        self._blends: list[tuple[tuple[Tensor, Tensor], Any]] = []

    def level(self, i: int) -> Level:
        """Level i, ready for the model's stream."""
        level, event = self._levels[i]
        self._main.wait_event(event)
        return level

    def blend(self, i: int) -> tuple[Tensor, Tensor] | None:
        """The neighbours of propagation i among the known points, and their weights; or None."""
        if i >= len(self._blends):
            return None
        blend, event = self._blends[i]
        self._main.wait_event(event)
        return blend

    def run(
        self,
        stages: Sequence[Any],
        propagations: Sequence[Any],
        xyz: Tensor,
        lengths: Tensor | None,
    ) -> None:
        """Find everything but the first layer's neighbours, which wait for its centres alone."""
        clouds = [(xyz, lengths)]
        self._side.wait_stream(self._main)
        with torch.cuda.stream(self._side):
            for stage in stages:
                fine, counts = clouds[-1]
                centers, center_counts = _sampled(stage, fine, counts, in_order=bool(self._levels))
                found = None
                if self._levels:
                    found = stage.search(
                        fine, centers, lengths=counts, center_lengths=center_counts
                    )
                event = self._handed_over((centers, center_counts, *(found or ())))
                self._levels.append((Level(centers, center_counts, found), event))
                clouds.append((centers, center_counts))
            for i in range(len(propagations) - 1, -1, -1):  # as the decoder needs them
                (fine, counts), (known, known_counts) = clouds[i : i + 2]
                blend = propagations[i].search(
                    fine, known, lengths=counts, known_lengths=known_counts
                )
                self._blends.insert(0, (blend, self._handed_over(blend)))

    def _handed_over(self, tensors: Iterable[Tensor | None]) -> Any:
        """An event behind what the second stream has done; the other one may use the tensors."""
        for tensor in tensors:
            if tensor is not None:
                tensor.record_stream(self._main)
        return self._side.record_event()


def _sampled(
    stage: SetAbstraction, xyz: Tensor, lengths: Tensor | None, in_order: bool
) -> tuple[Tensor, Tensor | None]:
    """The centres of a stage, and how many each cloud has. in_order: of samples, as they came."""
    if in_order and not stage.random_start and stage.num_points is not None:
        centers = xyz[:, : stage.num_points].contiguous()
    else:
        centers = stage.sample(xyz, lengths)[0]
    return centers, None if lengths is None else lengths.clamp(max=centers.shape[1])


def searches(
    stages: Sequence[Any],
    propagations: Sequence[Any],
    xyz: Tensor,
    lengths: Tensor | None,
    offsets: Tensor | None,
) -> Searches | None:
    """The searches of a model, begun; None where its layers search one by one.

    propagations: those between the levels, the finest first. NOTE: packed clouds read sizes from
    the device, and a graph of torch.compile has one stream.
    """
    if not _has_streams(xyz, lengths, offsets):
        return None
    if not all(type(stage) is SetAbstraction and untouched(stage) for stage in stages):
        return None
    alike = all(type(layer) is FeaturePropagation and untouched(layer) for layer in propagations)
    if not alike or xyz.dtype != torch.float32:
        propagations = ()
    if len(stages) < 2 and not propagations:
        return None
    stream = _stream(xyz.device)
    if stream is None:
        return None
    result = Searches(stream, xyz.device)
    result.run(stages, propagations, xyz, lengths)
    return result


def _has_streams(xyz: Any, lengths: Any, offsets: Any) -> bool:
    plain = type(xyz) is Tensor and (lengths is None or type(lengths) is Tensor)
    if not plain or offsets is not None or not xyz.is_cuda or needs_grad(xyz):
        return False
    if torch.compiler.is_compiling() or sees_torch_functions_only(xyz, lengths):
        return False
    filled: bool = xyz.dim() == 3 and xyz.numel() > 0
    return filled


def _stream(device: torch.device) -> Any:
    """This thread's second stream on a device; None where a graph's capture would be its first."""
    known: dict[int, Any] | None = getattr(_STREAMS, "known", None)
    if known is None:
        known = _STREAMS.known = {}
    index = torch.cuda.current_device() if device.index is None else device.index
    if index not in known:
        if torch.cuda.is_current_stream_capturing():
            return None
        known[index] = torch.cuda.Stream(index, priority=-1)
    return known[index]
