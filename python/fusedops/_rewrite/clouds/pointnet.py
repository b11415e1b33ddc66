"""Set abstraction and feature propagation modules of two widely copied code bases.

erikwijmans' pointnet2_ops (PointnetSAModule, PointnetSAModuleMSG, PointnetFPModule) and yanx27's
pointnet2_utils (PointNetSetAbstraction, PointNetSetAbstractionMsg, PointNetFeaturePropagation) are
known by their attributes, whatever the classes are called. Copies of them differ, so that a module
runs as ours only after it gave our values on clouds of probes; pointnet2_ops' own classes, which
run on a GPU alone, are taken as they are published where their own code cannot run.
"""

from __future__ import annotations

import copy
import math
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...nn.linear import untouched
from ...points.abstraction import set_abstraction
from ...points.grouping import gather
from ...points.neighbours import ball_query
from ...points.propagation import feature_propagation
from ...points.sampling import farthest_point_sample
from ..fused_class import Fused
from .layers import Layers, layers_of, original_class, read_layers
from .probe import Calls, agrees, draws

_is_dynamo_compiling = torch.compiler.is_dynamo_compiling
_PUBLISHED = "pointnet2_ops.pointnet2_modules"


class Form(NamedTuple):
    """What is not in the attributes of a module."""

    kind: str  # "abstraction" or "propagation"
    style: str  # "wijmans" or "yan": the attributes, layouts and comparisons of that code base
    offsets_last: bool = False
    random_start: bool = False
    detached: bool = False  # no gradient for coordinates through distances, as pointnet2_ops


def forms_of(module: Any) -> list[Form]:
    """What a module may compute by its attributes; an empty list for another one."""
    mine = set(module._modules) | {k for k in vars(module) if not k.startswith("_")} - {"training"}
    several = {"conv_blocks", "bn_blocks", "npoint", "radius_list", "nsample_list"}
    if mine == {"mlp_convs", "mlp_bns", "npoint", "radius", "nsample", "group_all"}:
        starts = (False,) if module.group_all else (True, False)
        return [Form("abstraction", "yan", random_start=start) for start in starts]
    if mine == several:
        return [
            Form("abstraction", "yan", offsets_last=last, random_start=start)
            for last in (True, False)
            for start in (True, False)
        ]
    if mine == {"mlp_convs", "mlp_bns"}:
        return [Form("propagation", "yan")]
    if mine == {"npoint", "groupers", "mlps"}:
        return [Form("abstraction", "wijmans")]
    published = original_class(module).__name__ == "PointnetFPModule"
    return [Form("propagation", "wijmans")] if mine == {"mlp"} and published else []


class Scale(NamedTuple):
    """One scale of set abstraction; radius None: all points."""

    layers: Layers
    radius: float | None
    k: int | None
    use_xyz: bool


def _yan_layers(convs: Any, norms: Any) -> Layers | None:
    if len(convs) != len(norms):
        return None
    return layers_of(convs, norms, ("relu", 0.01), True)


def scales_of(module: Any, form: Form) -> list[Scale] | None:
    """The scales of a module; None where one of its layers computes more."""
    if form.style == "wijmans":
        if len(module.groupers) != len(module.mlps):
            return None
        found = [_wijmans_scale(*pair) for pair in zip(module.groupers, module.mlps, strict=True)]
    elif "radius_list" in vars(module):
        rows = zip(
            module.conv_blocks, module.bn_blocks, module.radius_list, module.nsample_list,
            strict=True,
        )  # fmt: skip
        found = [
            None if (layers := _yan_layers(convs, norms)) is None else Scale(layers, r, k, True)
            for convs, norms, r, k in rows
        ]
    else:
        layers = _yan_layers(module.mlp_convs, module.mlp_bns)
        radius, k = (None, None) if module.group_all else (module.radius, module.nsample)
        found = [None if layers is None else Scale(layers, radius, k, True)]
    scales = [scale for scale in found if scale is not None]
    return scales if len(scales) == len(found) > 0 else None


def _wijmans_scale(grouper: Any, mlp: Any) -> Scale | None:
    layers = read_layers(mlp)
    name, known = type(grouper).__name__, vars(grouper)
    if layers is None or not untouched(grouper):
        return None
    more = {k: v for k, v in known.items() if not k.startswith("_") and k != "training"}
    if name == "QueryAndGroup" and set(more) == {"radius", "nsample", "use_xyz"}:
        return Scale(layers, more["radius"], more["nsample"], bool(more["use_xyz"]))
    if name == "GroupAll" and set(more) == {"use_xyz"}:
        return Scale(layers, None, None, bool(more["use_xyz"]))
    return None


def _scale(
    scale: Scale, form: Form, xyz: Tensor, features: Tensor | None, centers: Tensor | None
) -> Tensor:
    """One scale (B, M, C)."""
    biases, norms, options = scale.layers.arguments()
    weights = scale.layers.weights()
    if scale.radius is None or scale.k is None:
        everything = torch.arange(xyz.shape[1], device=xyz.device)
        idx = everything.expand(len(xyz), 1, -1)
        centers = None
    else:
        assert centers is not None
        closed = form.style == "yan"
        idx = ball_query(
            xyz.detach(), centers.detach(), scale.radius, scale.k, pad="first", closed=closed
        ).idx
    if form.offsets_last and features is not None:
        width = features.shape[-1]
        first = torch.cat([weights[0][:, width:], weights[0][:, :width]], dim=1)
        weights = [first, *weights[1:]]
    if not scale.use_xyz:
        return set_abstraction(None, features, None, idx, weights, biases, norms, **options)
    return set_abstraction(xyz, features, centers, idx, weights, biases, norms, **options)


def _start(form: Form, xyz: Tensor) -> Any:
    if not form.random_start:
        return 0
    # NOTE: drawn as there, so that a seed gives the same centres.
    return torch.randint(0, xyz.shape[1], (len(xyz),), dtype=torch.long).to(xyz.device)


def abstraction(
    scales: list[Scale], count: int | None, form: Form, xyz: Tensor, features: Tensor | None
) -> tuple[Tensor | None, Tensor]:
    """xyz (B, N, 3), features (B, N, F) to centres (B, M, 3) and features (B, M, C)."""
    centers = None
    if count is not None and scales[0].radius is not None:
        idx = farthest_point_sample(xyz, count, start=_start(form, xyz))
        assert isinstance(idx, Tensor)
        centers = gather(xyz, idx)
    elif form.style == "yan":
        centers = xyz.new_zeros(len(xyz), 1, xyz.shape[2])
    found = [_scale(scale, form, xyz, features, centers) for scale in scales]
    return centers, found[0] if len(found) == 1 else torch.cat(found, dim=-1)


def _transposed(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.transpose(1, 2).contiguous()


class FusedAbstraction(Fused):
    """Mixed into a set abstraction module.

    Its own forward runs for other arguments and dtypes, while a layer in it has hooks or was
    replaced, and under torch.compile.
    """

    _base: Any
    _fused: Form | None = None

    def forward(self, xyz: Any, *args: Any, **kwargs: Any) -> Any:
        """What the module gives."""
        form = None if len(args) != 1 or kwargs or _is_dynamo_compiling() else self._fused
        y = None if form is None else FusedAbstraction._run(self, xyz, *args, form=form)
        return self._base.forward(self, xyz, *args, **kwargs) if y is None else y

    @staticmethod
    def _run(module: Any, xyz: Any, features: Any, *, form: Form) -> Any:
        if not _are_clouds(xyz, features):
            return None
        scales = scales_of(module, form)
        if scales is None or not all(scale.layers.takes(xyz, features) for scale in scales):
            return None
        if not _fits(scales, features):
            return None
        at: Any = xyz if form.style == "wijmans" else _transposed(xyz)
        count = module.npoint
        if at.shape[-1] != 3 or (count is not None and not 0 < count <= at.shape[1]):
            return None
        centers, y = abstraction(scales, count, form, at, _transposed(features))
        y = y.transpose(1, 2).contiguous()
        return (centers if form.style == "wijmans" else _transposed(centers)), y


class FusedPropagation(Fused):
    """Mixed into a feature propagation module, as `FusedAbstraction` is."""

    _base: Any
    _fused: Form | None = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module gives."""
        form = None if len(args) != 4 or kwargs or _is_dynamo_compiling() else self._fused
        y = None if form is None else FusedPropagation._run(self, *args, form=form)
        return self._base.forward(self, *args, **kwargs) if y is None else y

    @staticmethod
    def _run(
        module: Any, xyz: Any, known_xyz: Any, features: Any, known: Any, *, form: Form
    ) -> Any:
        if known_xyz is None or not _are_clouds(xyz, known_xyz, features, known):
            return None
        wijmans = form.style == "wijmans"
        if wijmans:
            layers = read_layers(module.mlp)
        else:
            layers = _yan_layers(module.mlp_convs, module.mlp_bns)
        if layers is None or not layers.takes(xyz, known_xyz, features, known):
            return None
        if not wijmans:
            xyz, known_xyz = _transposed(xyz), _transposed(known_xyz)
        if form.detached:
            xyz, known_xyz = xyz.detach(), known_xyz.detach()
        if xyz.shape[-1] != 3 or (known_xyz.shape[1] < 3 and (wijmans or known_xyz.shape[1] > 1)):
            return None
        biases, norms, options = layers.arguments()
        y = feature_propagation(
            xyz, known_xyz, _transposed(features), _transposed(known), layers.weights(), biases,
            norms, order="known_first" if wijmans else "skip_first", power=1 if wijmans else 2,
            **options,
        )  # fmt: skip
        return y.transpose(1, 2).contiguous()


def _are_clouds(*given: Any) -> bool:
    return all(x is None or (isinstance(x, Tensor) and x.dim() == 3) for x in given)


# ---- recognition ----


def _probes(form: Form, module: Any, like: Tensor) -> Calls:
    """Arguments of calls that a module of this form takes."""
    draw = draws(like)
    wijmans = form.style == "wijmans"
    if form.kind == "propagation":
        layer = module.mlp[0] if wijmans else module.mlp_convs[0]
        columns = int(layer.weight.shape[1])
        calls: Calls = []
        for skip in {columns // 2, 0}:
            at = [draw(2, 40, 3), draw(2, 20, 3)]
            at = at if wijmans else [x.transpose(1, 2) for x in at]
            calls.append((*at, draw(2, skip, 40) if skip else None, draw(2, columns - skip, 20)))
        return calls
    scales = scales_of(module, form)
    assert scales is not None
    width = scales[0].layers.linears[0].weight.shape[1] - (3 if scales[0].use_xyz else 0)
    count = 2 * (module.npoint or 32)
    most = max(scale.k or 1 for scale in scales)
    size = max((scale.radius or 1.0) for scale in scales)
    calls = []
    # Balls that are full, that are short, and that hold their centre alone.
    for points, side, scale in ((count + 4 * most, 1, 1.0), (count, 4, 30.0), (count, 200, 1000.0)):
        at = draw(2, points, 3) * (side * size)
        features = (2 * draw(2, width, points) - 1) * scale if width else None
        calls.append((at if wijmans else at.transpose(1, 2).contiguous(), features))
    return calls


def _with_binary_radii(module: Any, form: Form) -> Any:
    """A copy whose radii are powers of two: their squares, and distances of them, are exact."""
    made = copy.deepcopy(module)

    def binary(radius: float | None) -> float | None:
        return None if radius is None else 2.0 ** round(math.log2(radius))

    if form.style == "wijmans":
        for grouper in made.groupers:
            if hasattr(grouper, "radius"):
                grouper.radius = binary(grouper.radius)
    elif "radius_list" in vars(made):
        made.radius_list = [binary(radius) for radius in made.radius_list]
    else:
        made.radius = binary(made.radius)
    return made


def _boundary_probes(form: Form, module: Any, like: Tensor) -> Calls:
    """A cloud for each radius: two points that far apart, others far from all."""
    draw, scales = draws(like), scales_of(module, form)
    assert scales is not None
    width = scales[0].layers.linears[0].weight.shape[1] - (3 if scales[0].use_xyz else 0)
    radii = [scale.radius for scale in scales if scale.radius is not None]
    count = max(2, module.npoint)  # so that all points are centres
    at = (1 + draw(len(radii), count, 3)) * (200 * max(radii))
    at[:, :2] = 0
    for cloud, radius in zip(at, radii, strict=True):
        cloud[1, 0] = radius
    features = draw(len(radii), width, count) if width else None
    return [(at if form.style == "wijmans" else at.transpose(1, 2).contiguous(), features)]


def _agrees_at_the_radius(module: Any, form: Form, run: Any) -> bool | None:
    """Whether a point exactly at the radius is a neighbour where it is one of ours."""
    scales = scales_of(module, form) if form.kind == "abstraction" else None
    if not scales or any(scale.radius is None or scale.radius <= 0 for scale in scales):
        return True
    made = _with_binary_radii(module, form)
    return agrees(made, run, partial(_boundary_probes, form), exact=True)


def _fits(scales: list[Scale], features: Tensor | None) -> bool:
    """Whether the first layers have the columns that would come."""
    given = 0 if features is None else features.shape[1]
    columns = (s.layers.linears[0].weight.shape[1] - (3 if s.use_xyz else 0) for s in scales)
    return all(c == given for c in columns)


def _follows_coordinates(module: Any) -> bool:
    """Whether a propagation module of pointnet2_ops' form has a gradient for coordinates."""
    probe = copy.deepcopy(module)
    like = next(probe.parameters())
    ((xyz, known, *features), *_) = _probes(Form("propagation", "wijmans"), probe, like)
    try:
        with torch.enable_grad():
            y = type(module).forward(probe, xyz.requires_grad_(), known, *features)
            return torch.autograd.grad(y.sum(), xyz, allow_unused=True)[0] is not None
    except Exception:  # its ops may be missing
        return False


MIXINS: dict[str, Any] = {"abstraction": FusedAbstraction, "propagation": FusedPropagation}
_OPS = {"abstraction": "set_abstraction", "propagation": "feature_propagation"}


def pointnet_form(module: Any) -> tuple[Form, str] | None:
    """The form of a module that computes one of ours, and the op that runs then."""
    published = original_class(module).__module__ == _PUBLISHED
    for form in forms_of(module):
        if form.kind == "abstraction" and scales_of(module, form) is None:
            continue
        if form.kind == "propagation" and form.style == "wijmans":
            form = form._replace(detached=published or not _follows_coordinates(module))
        run = partial(MIXINS[form.kind]._run, form=form)
        same = agrees(module, run, partial(_probes, form))
        same = same and _agrees_at_the_radius(module, form, run)
        if same or (same is None and published):
            return form, _OPS[form.kind]
    return None
