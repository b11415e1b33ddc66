"""What layers over edges are given: products by point and by group, and the layers, folded or not.

The first layer is linear in the offset x_j - c_i and in the features of neighbour and centre, so
its products with features are formed once a point and gathered; only the offsets' product belongs
to an edge. That is exact algebra, not an approximation.
"""

from __future__ import annotations

import contextlib
import math
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .._autograd.compose import no_autocast
from .._autograd.gemm import linear_eager
from .._autograd.shared import distinct, needs_grad, sees_torch_functions_only
from .._core.dtensor import is_dtensor
from ..ops.linear import linear
from ._edge_batch_norm import wide_dtype
from .norms import BatchNorm

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ._edge_checks import Layers
    from .norms import Norm

_ops = torch.ops.fusedops
_VECTOR = 8  # kRowVec


class PointProduct(NamedTuple):
    """Products of the first layer that are still to be formed, one a point."""

    features: Tensor  # (B, N, F)
    weight: Tensor  # (C1, F)

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of the product."""
        return (*self.features.shape[:2], self.weight.shape[0])


class EdgeInput(NamedTuple):
    """The first layer's products, by point and by group, and the edges (i, j) themselves.

    y_1 = rows[j] + group_rows[i] + offset_weight (xyz[j] - centers[i]) + bias.
    """

    rows: Tensor | PointProduct | None  # (B, N, C1), float32 beside half dtypes
    group_rows: Tensor | None  # (B, M, C1), like rows
    offset_weight: Tensor | None  # (C1, D), dtype
    xyz: Tensor | None  # (B, N, D), float32 (float64 where dtype is)
    centers: Tensor | None  # (B, M, D) like xyz, or None for 0
    idx: Tensor  # (B, M, K) int64; what is outside the cloud is no edge
    dtype: torch.dtype  # of hidden activations and of the result


class EdgeLayer(NamedTuple):
    """One layer; the product of the first one is in EdgeInput."""

    weight: Tensor | None  # (C_l, C_{l-1}) in EdgeInput.dtype; None for the first layer
    bias: Tensor | None  # (C_l,), any floating dtype
    norm: Norm | None


def edge_layers(layers: Layers) -> list[EdgeLayer]:
    """Checked layers as `edge_mlp` takes them; norms count this call."""
    weights = [None, *layers.weights[1:]]
    _count(layers.norms)
    norms = [_with_momentum(norm, layers.dtype) for norm in layers.norms]
    return [EdgeLayer(*layer) for layer in zip(weights, layers.biases, norms, strict=True)]


@torch.no_grad()
def _count(norms: Sequence[Norm | None]) -> None:
    """Batch norms in training count their batch, at once where they are different ones."""
    counts = [
        norm.num_batches_tracked
        for norm in norms
        if isinstance(norm, BatchNorm) and norm.training and norm.num_batches_tracked is not None
    ]
    # NOTE: torch.vmap has no rule for lists.
    if len({id(count) for count in counts}) < len(counts) or sees_torch_functions_only(*counts):
        for count in counts:
            count.add_(1)
    elif counts:
        torch._foreach_add_(counts, 1)


@torch.no_grad()
def _with_momentum(norm: Norm | None, dtype: torch.dtype) -> Norm | None:
    """A batch norm that has counted its batch, with a momentum from then on."""
    if not isinstance(norm, BatchNorm) or not norm.training or norm.num_batches_tracked is None:
        return norm
    if norm.momentum is not None:
        return norm
    # NOTE: a tensor, as the number would be one to wait for.
    return norm._replace(momentum=1 / norm.num_batches_tracked.to(wide_dtype(dtype)).reshape(()))


def plain_product(x: Tensor, weight: Tensor) -> Tensor:
    """`product_by_point` without a gradient."""
    if x.dtype.itemsize > 2:
        return linear(x, weight)
    torchs = torch.compiler.is_dynamo_compiling() or sees_torch_functions_only(x, weight)
    if not torchs and x.is_cuda and x.numel() > 0 and not any(map(is_dtensor, (x, weight))):
        with no_autocast(x):  # halves are read as they are, and their products summed in float32
            rows = x.reshape(-1, x.shape[-1])
            wide = torch.mm(rows, weight.contiguous().t(), out_dtype=torch.float32)
        return wide.view(*x.shape[:-1], weight.shape[0])
    x, weight = x.float(), weight.float()
    if torchs:
        return F.linear(x, weight)
    product: Tensor = linear_eager(x, weight, None, 0, x.is_cuda, None)
    return product


class PointRows(torch.autograd.Function):
    """(x, weight) -> the products of all rows; a row without a gradient is in none of the weight's.

    It may hold anything, even NaN: it belongs to no edge.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return plain_product(x, weight)

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        with no_autocast(dout):
            dout = dout.to(x.dtype)
            dx = dout @ weight if ctx.needs_input_grad[0] else None
            if not ctx.needs_input_grad[1]:
                return dx, None
            # NOTE: torch does not batch flatten in a backward.
            count = math.prod(x.shape[:-1])
            rows, grads = (t.reshape(count, t.shape[-1]) for t in (x, dout))
            return dx, grads.t() @ _used_rows(rows, grads)


def columns_of(weight: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The first columns of a weight and the others; their gradients become one by one copy."""
    if count in (0, weight.shape[1]):
        return weight[:, :count], weight[:, count:]
    first, others = weight.split((count, weight.shape[1] - count), 1)
    return first, others


def _used_rows(x: Tensor, dout: Tensor) -> Tensor:
    """Rows x (R, F), with zeros where those of their gradients dout (R, C) are zero."""
    whole = all(t.shape[1] > 0 and t.shape[1] % _VECTOR == 0 for t in (x, dout))
    known = whole and x.is_cuda and x.dtype.itemsize == 2 and 0 < x.shape[0] < 2**31
    torchs = torch.compiler.is_dynamo_compiling() or sees_torch_functions_only(x, dout)
    if known and not torchs and not torch.is_grad_enabled():
        found: Tensor = torch.ops.fusedops.edge_rows_used(x, dout)
        return found
    return torch.where(dout.any(-1, keepdim=True), x, 0)


def product_by_point(x: Tensor, weight: Tensor) -> Tensor:
    """x (..., F) times weight (C, F) transposed; in float32 of halves.

    Rows that are summed with others must not be rounded before.
    """
    if x.is_cuda and x.dtype.itemsize == 2:
        # NOTE: Tensor Cores take rows of whole vectors only; those of 3 + C columns are none.
        x, weight = _pad(x, -1), _pad(weight, -1).contiguous()
    if sees_torch_functions_only(x, weight) or not needs_grad(x, weight):
        return plain_product(x, weight)
    product: Tensor = PointRows.apply(*distinct(x, weight))
    return product


def _pad(t: Any, *dims: int) -> Any:
    """t with zeros behind these dimensions, up to multiples of 8."""
    if t is None or all(t.shape[dim] % _VECTOR == 0 for dim in dims):
        return t
    behind = [0] * t.dim()
    for dim in dims:
        behind[dim] = -t.shape[dim] % _VECTOR
    return F.pad(t, [size for amount in reversed(behind) for size in (0, amount)])


def padded_call(
    given: EdgeInput, layers: Sequence[EdgeLayer]
) -> tuple[EdgeInput, list[EdgeLayer], list[tuple[Tensor, Tensor]]]:
    """The call with zeros behind its channels, and running statistics beside what stands for them.

    Accesses have 16 bytes, and products of other widths would run on kernels half as fast.
    """
    given = given._replace(
        rows=_pad(given.rows, -1),
        group_rows=_pad(given.group_rows, -1),
        offset_weight=_pad(given.offset_weight, 0),
    )
    running: list[tuple[Tensor, Tensor]] = []
    wide = []
    for layer in layers:
        norm = layer.norm
        if isinstance(norm, BatchNorm):
            own = (norm.running_mean, norm.running_var)
            mean, var = (None if t is None else _pad(t.float().contiguous(), -1) for t in own)
            if norm.training and mean is not own[0]:
                running += zip(own, (mean, var), strict=True)
            norm = BatchNorm(_pad(norm.weight, -1), _pad(norm.bias, -1), mean, var, *norm[4:])
        wide.append(EdgeLayer(_pad(layer.weight, 0, 1), _pad(layer.bias, -1), norm))
    return given, wide, running


class _Ahead(threading.local):
    # By the id of a weight: what stands for its layer, and the layer that is folded.
    folds: dict[int, tuple[tuple[object, ...], EdgeLayer]] | None = None


_ahead = _Ahead()


@contextlib.contextmanager
def folds_ahead(layers: Sequence[EdgeLayer]) -> Iterator[None]:
    """Inside, on this thread, `folded` gives what is folded here, before a model's layers run."""
    made = {id(layer.weight): (_identity(layer), folded(layer)) for layer in layers}
    before, _ahead.folds = _ahead.folds, made
    try:
        yield
    finally:
        _ahead.folds = before


def folded(layer: EdgeLayer) -> EdgeLayer:
    """The layer with its running statistics in its weight and bias."""
    if _ahead.folds is not None:
        kept = _ahead.folds.get(id(layer.weight))
        if kept is not None and all(map(_is_same, kept[0], _identity(layer))):
            return kept[1]
    norm = layer.norm
    assert isinstance(norm, BatchNorm)
    vectors = (
        None if t is None else t.detach().float()
        for t in (norm.weight, norm.bias, layer.bias, norm.running_mean, norm.running_var)
    )
    weight, bias = _ops.edge_rows_fold(layer.weight, *vectors, norm.eps)
    return EdgeLayer(weight, bias, None)


def _identity(layer: EdgeLayer) -> tuple[object, ...]:
    """The layer's tensors, how often they were written, and the norm's epsilon."""
    norm = layer.norm
    assert isinstance(norm, BatchNorm)
    tensors = (layer.weight, layer.bias, *norm[:4])
    return (*tensors, *map(_version, tensors), norm.eps)


def _version(tensor: Tensor | None) -> int:
    return 0 if tensor is None or tensor.is_inference() else tensor._version


def _is_same(a: object, b: object) -> bool:
    return a is b if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor) else a == b
