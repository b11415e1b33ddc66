"""linear_cross_entropy where each rank of a group has some rows of the weight."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import _fakes  # noqa: F401  (registers the fakes)
from .._core.dtensor import is_dtensor

if TYPE_CHECKING:
    from collections.abc import Callable

_linear = torch.ops.fusedops.linear.default
_linear_backward = torch.ops.fusedops.linear_backward.default
_linear_wgrad = torch.ops.fusedops.linear_wgrad_.default
_parts = torch.ops.fusedops.loss_shard_parts.default
_gradient = torch.ops.fusedops.loss_shard_gradient_.default

CHUNK_BYTES = 7 << 27  # of logits, as in linear_cross_entropy_check.h
HALVES = (torch.float16, torch.bfloat16)
Given = tuple[Tensor, Tensor, Tensor | None, Tensor]  # x, weight, bias, target


@dataclass(frozen=True)
class ClassShard:
    """The classes [first, first + width) of `classes`, and the ranks that have the others."""

    group: Any
    first: int
    width: int
    classes: int


def _as_it_is(loss: Tensor) -> Tensor:
    return loss


def share(
    x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, group: Any
) -> tuple[Given, ClassShard | None, Callable[[Tensor], Tensor]]:
    """This rank's tensors, its classes (None: it has all), and what makes the result of its loss.

    DTensors stay as they are unless their mesh has one dimension, which the rows of weight are
    sharded along.
    """
    if group is not None:
        from torch import distributed as dist

        kind = getattr(dist, "ProcessGroup", None)  # None: a torch without distributed
        if kind is None or not isinstance(group, kind):
            raise TypeError(
                f"linear_cross_entropy: group must be a ProcessGroup; got {type(group).__name__}"
            )
        width, ranks = weight.shape[0], dist.get_world_size(group)
        shard = ClassShard(group, dist.get_rank(group) * width, width, ranks * width)
        return (x, weight, bias, target), shard, _as_it_is

    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    whole = (x, weight, bias, target), None, _as_it_is
    if not isinstance(x, DTensor) or not isinstance(weight, DTensor):
        return whole
    mesh = weight.device_mesh
    if mesh.ndim != 1 or x.device_mesh != mesh or weight.placements != (Shard(0),):
        return whole
    everywhere = [Replicate()]
    local = weight.to_local()
    step = -(-weight.shape[0] // mesh.size())
    first = min(mesh.get_local_rank() * step, weight.shape[0])
    shard = ClassShard(mesh.get_group(), first, local.shape[0], weight.shape[0])
    # NOTE: each rank's gradient of x is that of its own classes.
    own = x.redistribute(placements=everywhere).to_local(grad_placements=[Partial()])
    if isinstance(bias, DTensor):
        bias = bias.redistribute(placements=[Shard(0)]).to_local()
    if isinstance(target, DTensor):
        target = target.redistribute(placements=everywhere).to_local()

    def replicated(loss: Tensor) -> Tensor:
        result: Tensor = DTensor.from_local(loss, mesh, everywhere, run_check=False)
        return result

    return (own, local, bias, target), shard, replicated


def is_shared(weight: Tensor, group: Any) -> bool:
    """Whether `share` has something to do."""
    return group is not None or is_dtensor(weight)


def _check(smoothing: float, softcap: float, z_loss: float, chunk_size: int) -> None:
    """The checks of the op linear_cross_entropy, in its words."""
    for name, value in (("softcap", softcap), ("z_loss", z_loss), ("chunk_size", chunk_size)):
        if value < 0:
            raise RuntimeError(f"linear_cross_entropy: {name} must be at least 0; got {value:g}")
    if not 0 <= smoothing <= 1:
        raise RuntimeError(
            f"linear_cross_entropy: label_smoothing must be from 0 to 1; got {smoothing:g}"
        )


def _gather(parts: Tensor, group: Any) -> Tensor:
    """The (M, 4) of every rank as (ranks, M, 4)."""
    from torch.distributed import _functional_collectives as collectives

    found = collectives.all_gather_tensor(parts, 0, group)
    if isinstance(found, collectives.AsyncCollectiveTensor):
        found = found.wait()
    return found.reshape(-1, *parts.shape)


def _join(
    parts: Tensor, counted: Tensor, smoothing: float, z_loss: float, classes: int
) -> tuple[Tensor, Tensor]:
    """(loss, lse) of every row from the parts of all ranks, in the order of the ranks."""
    tops, sums, values, chosen = parts.unbind(-1)
    top = tops.amax(0)
    top = top.masked_fill(top == -math.inf, 0)
    log_sum = (sums * (tops - top).exp()).sum(0).log()
    lse = top + log_sum
    loss = (1 - smoothing) * (top - chosen.sum(0) + log_sum) + z_loss * lse.square()
    if smoothing != 0:
        loss = loss + smoothing * (lse - values.sum(0) / classes)
    return torch.where(counted, loss, 0), lse


class _Sums:
    """Gradients of weight and bias, added up over chunks: in fp32 if there are several."""

    def __init__(self, allow_tf32: bool) -> None:
        self.dweight: Tensor | None = None
        self.dbias: Tensor | None = None
        self._allow_tf32 = allow_tf32

    def add(
        self, dz: Tensor, x: Tensor, weight: Tensor, needs: tuple[bool, bool, bool], fp32: bool
    ) -> Tensor:
        """Adds those of a chunk, and returns its gradient of x."""
        dx, dw, db = needs
        later = dw and self.dweight is not None
        dx_part, dw_part, db_part = _linear_backward(
            dz, x, weight, None, 0, dx, dw and not later, db, fp32, self._allow_tf32
        )
        if self.dweight is None:
            self.dweight = dw_part
        elif later and self.dweight.dtype is torch.float32:
            _linear_wgrad(dz, x, self.dweight, True, self._allow_tf32)
        elif later:
            self.dweight.addmm_(dz.t(), x)
        self.dbias = db_part if self.dbias is None else self.dbias + db_part
        result: Tensor = dx_part
        return result


def _finished(gradient: Tensor | None, need: bool, width: int, like: Tensor) -> Tensor:
    """The first rows of a gradient, in the dtype of `like`; (0,) where it is not needed."""
    if not need or gradient is None:
        return like.new_empty((0, *like.shape[1:]) if need else (0,))
    return gradient[:width].to(like.dtype).contiguous()


def run_shard(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    dloss: Tensor | None,
    options: tuple[int, float, float, float, str, bool, int],
    needs: tuple[bool, bool, bool],
    dweight_fp32: bool,
    allow_tf32: bool,
    shard: ClassShard,
) -> tuple[Tensor, ...]:
    """What the op linear_cross_entropy gives: (loss, scale, dx, dweight, dbias) of this rank."""
    ignore_index, smoothing, softcap, z_loss, reduction, fp32_out, chunk_size = options
    _check(smoothing, softcap, z_loss, chunk_size)
    compute = torch.float64 if x.dtype is torch.float64 else torch.float32
    per_chunk = 16 // x.element_size()
    pitch = max(-(-shard.width // per_chunk), 1) * per_chunk
    if pitch != shard.width:
        weight = F.pad(weight, (0, 0, 0, pitch - shard.width))
        bias = None if bias is None else F.pad(bias, (0, pitch - shard.width))
    counted = target != ignore_index
    count = counted.sum().to(compute)
    factor, scale = _factors(x, dloss, count, reduction, compute)

    rows = x.shape[0]
    fitting = max(CHUNK_BYTES // (pitch * x.element_size()), 1)
    most = chunk_size or -(-rows // max(-(-rows // fitting), 1)) or 1
    fp32 = dweight_fp32 or (rows > most and x.dtype in HALVES)
    sums, losses, dx = _Sums(allow_tf32), [], []
    for first in range(0, max(rows, 1), most):
        part = slice(first, first + most)
        logits = _linear(x[part], weight, bias, 0, allow_tf32)
        here = (shard.first, shard.width, shard.classes, ignore_index)
        known = _gather(_parts(logits, target[part], *here, softcap, smoothing != 0), shard.group)
        loss, lse = _join(known, counted[part], smoothing, z_loss, shard.classes)
        losses.append(loss)
        if not any(needs):
            continue
        own = factor[part] if reduction == "none" else factor
        _gradient(logits, target[part], lse, own, *here, smoothing, softcap, z_loss)
        dx.append(sums.add(logits, x[part], weight, needs, fp32))

    total = torch.cat(losses)
    if reduction != "none":
        total = total.double().sum()
        total = total / count if reduction == "mean" else total
    parameter = x.new_empty((0,), dtype=torch.float32 if dweight_fp32 else x.dtype)
    return (
        total.to(torch.float32 if fp32_out else x.dtype),
        scale,
        torch.cat(dx) if needs[0] else x.new_empty((0,)),
        _finished(sums.dweight, needs[1], shard.width, parameter),
        _finished(sums.dbias, needs[2], shard.width, parameter),
    )


def _factors(
    x: Tensor, dloss: Tensor | None, count: Tensor, reduction: str, compute: torch.dtype
) -> tuple[Tensor, Tensor]:
    """What the gradient of a row is multiplied by: now, and by whoever knows dloss."""
    one = torch.ones(1, dtype=compute, device=x.device)
    factor = one if dloss is None else dloss.to(compute).reshape(-1)
    if reduction != "mean":
        return factor, one
    inverse = torch.where(count > 0, 1 / count, 1).reshape(1)
    # NOTE: the gradient of a mean over many rows is smaller than float16 can tell.
    if x.dtype is torch.float16 and dloss is None:
        return factor, inverse
    return factor * inverse, one
