"""SetAbstraction and GlobalSetAbstraction, the encoder layers of PointNet++."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..._core.calls import as_int, shown
from ..._fakes.cloud import check_clouds
from ...ops.segment import segment_reduce
from ...points._cloud import check_cloud_arguments
from ...points.abstraction import set_abstraction
from ...points.grouping import gather, group
from ...points.sampling import farthest_point_sample
from .lengths import check_lengths
from .mlp import SharedMLP, is_readable, widths_of
from .neighbourhoods import neighbourhoods
from .pooling import in_clouds, in_dtype_of, run_on_edges, run_on_points

if TYPE_CHECKING:
    from collections.abc import Sequence

_POOLS = ("max", "mean", "sum")
_NAMES = ("xyz", "lengths", "offsets")


def check_pool(op: str, pool: str) -> None:
    """Raise the error for an unknown pooling."""
    if pool not in _POOLS:
        raise ValueError(f"{op}: pool must be one of {', '.join(map(repr, _POOLS))}; got {pool!r}")


def _listed(value: Any) -> list[Any] | None:
    """The values of a sequence; None for a number, of NumPy or a tensor too."""
    try:
        return list(value)
    except TypeError:
        return None


def _each(value: Any) -> list[Any]:
    """The values of a sequence, or the one value."""
    found = _listed(value)
    return [value] if found is None else found


def _radius(value: Any) -> Any:
    """A radius as a number of Python, or None."""
    if value is None or type(value) in (int, float):
        return value
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(
            f"SetAbstraction: radius must be a number or None; got {shown(value)}"
        ) from None


def _scales(mlps: Any) -> list[list[int]]:
    """The widths of each scale: of one whose widths are given by themselves, or of several."""
    given = _each(mlps)
    if not given:
        raise ValueError("SetAbstraction: mlps must have one width or more; got []")
    one = isinstance(given[0], str) or _listed(given[0]) is None
    several = [given] if one else given
    return [widths_of("SetAbstraction", "mlps", widths) for widths in several]


class SetAbstraction(torch.nn.Module):
    """A set abstraction layer of PointNet++ with one or several scales.

    Centres are chosen by furthest point sampling, or given; the neighbours of each are the first k
    points within a radius by index, repeated from the first on where there are fewer, as
    pointnet2_ops has it; their offsets and features run through a `SharedMLP` and are pooled, all
    in `fusedops.points.set_abstraction`. Qi et al., "PointNet++", 2017. While a module inside has
    hooks or was replaced, the layers run one by one instead.

    Args:
        in_channels: F of the features; 0 for coordinates alone.
        mlps: The widths of the layers, [64, 64, 128], or one such list for each scale.
        radius: Radius of the neighbourhood, in units of the coordinates, or one for each scale;
            None for the k nearest points.
        k: Neighbours, or a number for each scale.
        num_points: M, how many centres are sampled (all points where there are fewer); None where
            centres are given.
        dimensions: D of the coordinates.
        use_xyz: Whether the offsets to the centre are inputs beside the features.
        normalize_offsets: Divide the offsets by the radius, as PointNeXt does.
        pool: "max", "mean" or "sum".
        pad: "first", or -1 to leave missing neighbours out of everything.
        closed: Whether a point exactly at the radius is a neighbour.
        random_start: Whether sampling starts at a random point; else at the first.
        norm, bias, activation, negative_slope, last_norm, last_activation: As in `SharedMLP`. The
            statistics of batch norms are exact over all grouped rows.
        device: Where the parameters are made.
        dtype: Dtype of the parameters.

    Raises:
        ValueError: The scales do not fit each other, there is nothing to compute from, or a word is
            unknown.

    Shape:
        xyz (B, N, D), features (B, N, F) or None; output centers (B, M, D) and features
        (B, M, sum of the scales' last widths). Packed: (P, D), (P, F); (Q, D), (Q, ...) and the
        centres' offsets (B + 1,).

    Example:
        >>> layer = fusedops.nn.SetAbstraction(0, [64, 64, 128], 0.2, 32, num_points=512)
        >>> centers, features = layer(xyz)
    """

    __module__ = "fusedops.nn"  # what pickles name

    def __init__(
        self,
        in_channels: int,
        mlps: Sequence[int] | Sequence[Sequence[int]],
        radius: float | Sequence[float | None] | None,
        k: int | Sequence[int],
        num_points: int | None = None,
        *,
        dimensions: int = 3,
        use_xyz: bool = True,
        normalize_offsets: bool = False,
        pool: str = "max",
        pad: int | str = "first",
        closed: bool = False,
        random_start: bool = False,
        **mlp: Any,
    ) -> None:
        check_pool("SetAbstraction", pool)
        scales = _scales(mlps)
        radii = [_radius(one) for one in _each(radius)]
        ks = [as_int("SetAbstraction", "k", one) for one in _each(k)]
        if not len(scales) == len(radii) == len(ks):
            raise ValueError(
                f"SetAbstraction: radius and k must have one value for each of {len(scales)} "
                f"scale(s) of mlps; got {len(radii)} and {len(ks)}"
            )
        if not use_xyz and in_channels == 0:
            raise ValueError("SetAbstraction: in_channels must be positive without use_xyz; got 0")
        if normalize_offsets and None in radii:
            raise ValueError("SetAbstraction: normalize_offsets needs a radius; got None")
        super().__init__()
        first = in_channels + (dimensions if use_xyz else 0)
        self.scales = nn.ModuleList(SharedMLP([first, *widths], **mlp) for widths in scales)
        self.radii, self.ks = radii, ks
        self.num_points, self.dimensions, self.pool = num_points, dimensions, pool
        self.use_xyz, self.normalize_offsets = use_xyz, normalize_offsets
        self.pad, self.closed, self.random_start = pad, closed, random_start

    def sample(
        self,
        xyz: Tensor,
        lengths: Tensor | None = None,
        num_points: int | Tensor | None = None,
        *,
        offsets: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        """Choose the centres: their coordinates (B, M, D), and their indices (B, M) int64.

        M is num_points, the layer's by default, or N where that is less; of a cloud with fewer
        points by its length the centres beyond are none: index -1, coordinates 0. Of packed clouds
        (Q, D), (Q,) and the centres' offsets (B + 1,), each cloud with as many as it has points at
        most; num_points may be a tensor (B,) there. Q is read from the device.
        """
        wanted = self.num_points if num_points is None else num_points
        if wanted is None:
            raise ValueError("SetAbstraction: centers must be given without num_points; got None")
        start: Any = "random" if self.random_start else 0
        if offsets is not None:
            idx, center_offsets = farthest_point_sample(
                xyz, wanted, lengths, start, offsets=offsets
            )
            return gather(xyz, idx), idx, center_offsets
        count = wanted if isinstance(wanted, Tensor) else min(wanted, xyz.shape[1])
        idx = farthest_point_sample(xyz, count, lengths, start)
        assert isinstance(idx, Tensor)
        return gather(xyz, idx), idx

    def search(
        self,
        xyz: Tensor,
        centers: Tensor,
        *,
        lengths: Tensor | None = None,
        center_lengths: Tensor | None = None,
        offsets: Tensor | None = None,
        center_offsets: Tensor | None = None,
    ) -> list[Tensor]:
        """Find the neighbours of the centres: int64 (B, M, K) or (Q, K) of each scale.

        They are what `forward` takes as neighbours, and depend on the coordinates alone.
        """
        return neighbourhoods(
            xyz, centers, self.radii, self.ks, lengths=lengths, center_lengths=center_lengths,
            offsets=offsets, center_offsets=center_offsets, pad=self.pad, closed=self.closed,
        )  # fmt: skip

    def forward(
        self,
        xyz: Tensor,
        features: Tensor | None = None,
        centers: Tensor | None = None,
        *,
        lengths: Tensor | None = None,
        center_lengths: Tensor | None = None,
        offsets: Tensor | None = None,
        center_offsets: Tensor | None = None,
        neighbours: Sequence[Tensor] | None = None,
    ) -> tuple[Tensor, ...]:
        """Apply the layer.

        Args:
            xyz: (B, N, D), or (P, D) packed; float16, bfloat16, float32 or float64.
            features: (B, N, F) or (P, F), or None.
            centers: (B, M, D) or (Q, D); None to sample them.
            lengths: (B,) int64, the points of each cloud.
            center_lengths: (B,) int64, the centres of each cloud; rows beyond are zeros.
            offsets: (B + 1,) int64, where packed clouds begin.
            center_offsets: (B + 1,) int64, those of given centres.
            neighbours: What `search` gives for given centres, where it is known already.

        Returns:
            The centres (B, M, D) and their features; of packed clouds (Q, ...) and, as third, the
            centres' offsets.
        """
        if centers is None and neighbours is not None:
            raise ValueError("SetAbstraction: centers must be given with neighbours; got None")
        if centers is None and offsets is not None:
            centers, _, center_offsets = self.sample(xyz, lengths, offsets=offsets)
        elif centers is None:
            centers, idx = self.sample(xyz, lengths)
            if lengths is not None:
                center_lengths = lengths.clamp(max=idx.shape[1])
        if neighbours is None:
            neighbours = self.search(
                xyz, centers, lengths=lengths, center_lengths=center_lengths, offsets=offsets,
                center_offsets=center_offsets,
            )  # fmt: skip
        elif len(neighbours) != len(self.ks):
            raise ValueError(
                f"SetAbstraction: neighbours must have {len(self.ks)} tensor(s), one for each "
                f"scale; got {len(neighbours)}"
            )
        scales = [self._scale(i, xyz, features, centers, idx) for i, idx in enumerate(neighbours)]
        y = scales[0] if len(scales) == 1 else torch.cat(scales, dim=-1)
        if offsets is None:
            return centers, y
        assert center_offsets is not None  # else the searches raised
        return centers, y, center_offsets

    def _scale(
        self, i: int, xyz: Tensor, features: Tensor | None, centers: Tensor, idx: Tensor
    ) -> Tensor:
        mlp: Any = self.scales[i]
        if not is_readable(mlp):
            return self._by_layers(i, xyz, features, centers, idx)
        weights, biases, norms = mlp.arguments()
        return set_abstraction(
            xyz if self.use_xyz else None,
            features,
            centers if self.use_xyz else None,
            idx,
            weights,
            biases,
            norms,
            mlp.activation,
            self.pool,
            negative_slope=mlp.negative_slope,
            last_activation=mlp.last_activation,
            normalize_radius=self.radii[i] if self.normalize_offsets and self.use_xyz else None,
        )

    def _by_layers(
        self, i: int, xyz: Tensor, features: Tensor | None, centers: Tensor, idx: Tensor
    ) -> Tensor:
        parts = []
        if self.use_xyz:
            wide = torch.promote_types(xyz.dtype, torch.float32)
            offsets = group(None, idx, points=xyz.to(wide), centers=centers.to(wide))
            scale = self.radii[i] if self.normalize_offsets else None
            parts.append(offsets if scale is None else offsets / scale)
        if features is not None:
            parts.append(group(features, idx))
        rows = torch.cat(parts, dim=-1)
        return run_on_edges(self.scales[i], rows, idx >= 0, self.pool)

    def extra_repr(self) -> str:
        """The neighbourhoods, and what differs from the defaults."""
        text = f"num_points={self.num_points}, radius={self.radii}, k={self.ks}"
        for name, default in (
            ("use_xyz", True), ("normalize_offsets", False), ("pool", "max"), ("pad", "first"),
            ("closed", False), ("random_start", False),
        ):  # fmt: skip
            if getattr(self, name) != default:
                text += f", {name}={getattr(self, name)!r}"
        return text


class GlobalSetAbstraction(torch.nn.Module):
    """The last layer of a PointNet++ encoder: all points of a cloud are one group, without centre.

    The coordinates (not offsets) and features run through a `SharedMLP` and are pooled over the
    cloud.

    Args:
        in_channels: F of the features; 0 for coordinates alone.
        mlp: The widths of the layers.
        dimensions: D of the coordinates.
        use_xyz: Whether the coordinates are inputs beside the features.
        pool: "max", "mean" or "sum".
        norm, bias, activation, negative_slope, last_norm, last_activation, device, dtype: As in
            `SharedMLP`.

    Raises:
        ValueError: There is nothing to compute from, or a word is unknown.

    Shape:
        xyz (B, N, D), features (B, N, F) or None, or packed (P, D) and (P, F); output
        (B, mlp[-1]).
    """

    __module__ = "fusedops.nn"  # what pickles name

    def __init__(
        self,
        in_channels: int,
        mlp: Sequence[int],
        *,
        dimensions: int = 3,
        use_xyz: bool = True,
        pool: str = "max",
        **options: Any,
    ) -> None:
        check_pool("GlobalSetAbstraction", pool)
        if not use_xyz and in_channels == 0:
            raise ValueError(
                "GlobalSetAbstraction: in_channels must be positive without use_xyz; got 0"
            )
        super().__init__()
        first = in_channels + (dimensions if use_xyz else 0)
        self.mlp = SharedMLP([first, *widths_of("GlobalSetAbstraction", "mlp", mlp)], **options)
        self.dimensions, self.use_xyz, self.pool = dimensions, use_xyz, pool

    def forward(
        self,
        xyz: Tensor,
        features: Tensor | None = None,
        *,
        lengths: Tensor | None = None,
        offsets: Tensor | None = None,
    ) -> Tensor:
        """Apply the layer.

        Args:
            xyz: (B, N, D), or (P, D) packed; float16, bfloat16, float32 or float64.
            features: (B, N, F) or (P, F), or None.
            lengths: (B,) int64, the points of each cloud; rows beyond count nowhere. More than N
                are N; a cloud without points gives zeros.
            offsets: (B + 1,) int64, where packed clouds begin.
        """
        if offsets is not None:
            check_cloud_arguments("GlobalSetAbstraction", xyz, lengths, offsets)
            check_clouds("GlobalSetAbstraction", xyz, lengths, offsets, _NAMES)
            return self._packed(xyz, features, offsets)
        if lengths is not None:
            check_lengths("GlobalSetAbstraction", lengths, xyz)
        inside = in_clouds(xyz, lengths, None)
        if inside is not None and is_readable(self.mlp):
            at = torch.arange(xyz.shape[1], device=xyz.device)
            idx = torch.where(inside, at, -1).unsqueeze(1)
            return self._of_groups(xyz, features, idx).squeeze(1)
        if inside is None and self._runs_grouped(xyz, features):
            at = torch.arange(xyz.shape[1], device=xyz.device)
            return self._of_groups(xyz, features, at.expand(xyz.shape[0], 1, -1)).squeeze(1)
        x = self._rows(xyz, features)
        if inside is not None:
            return run_on_edges(self.mlp, x, inside, self.pool)
        y = run_on_points(self.mlp, x)
        if self.pool == "max":
            return y.max(dim=1)[0]
        return y.mean(dim=1) if self.pool == "mean" else y.sum(dim=1)

    def _runs_grouped(self, xyz: Tensor, features: Tensor | None) -> bool:
        """Whether the kernels of set abstraction take the cloud as one group."""
        if not (xyz.is_cuda and self.pool == "max" and xyz.shape[2] == 3 and xyz.numel() > 0):
            return False
        dtype = next(self.mlp.parameters()).dtype
        casts = torch.is_autocast_enabled("cuda")
        return (
            (casts or dtype in (torch.float16, torch.bfloat16))
            and (casts or features is None or features.dtype == dtype)
            and xyz.dtype in (torch.float32, dtype)
            and not torch.compiler.is_compiling()
            and is_readable(self.mlp)
        )

    def _of_groups(self, xyz: Tensor, features: Tensor | None, idx: Tensor) -> Tensor:
        weights, biases, norms = self.mlp.arguments()
        return set_abstraction(
            xyz if self.use_xyz else None, features, None, idx, weights, biases, norms,
            self.mlp.activation, self.pool, negative_slope=self.mlp.negative_slope,
            last_activation=self.mlp.last_activation,
        )  # fmt: skip

    def _rows(self, xyz: Tensor, features: Tensor | None) -> Tensor:
        """What the MLP takes of every point."""
        parts = [] if features is None else [features]
        if self.use_xyz:
            own = in_dtype_of(self.mlp, xyz) if features is None else xyz.to(features.dtype)
            parts.insert(0, own)
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)

    def _packed(self, xyz: Tensor, features: Tensor | None, offsets: Tensor) -> Tensor:
        """Groups of one point each through the MLP, then a reduction of every cloud's rows."""
        inside = in_clouds(xyz, None, offsets)
        assert inside is not None
        if is_readable(self.mlp):
            at = torch.arange(xyz.shape[0], device=xyz.device)
            y = self._of_groups(xyz, features, torch.where(inside, at, -1).unsqueeze(1))
        else:
            y = run_on_points(self.mlp, self._rows(xyz, features), inside)
        return segment_reduce(y, offsets, self.pool)

    def extra_repr(self) -> str:
        """The pooling, and whether coordinates are left out."""
        return f"pool={self.pool!r}" + ("" if self.use_xyz else ", use_xyz=False")
