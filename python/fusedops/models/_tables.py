"""The names of our models' tensors in the repositories that others train in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..nn import (
    EdgeConv,
    FeaturePropagation,
    GlobalSetAbstraction,
    SetAbstraction,
    SharedMLP,
)
from ._entries import Entry, linear_entries, moved_columns, norm_entries
from .pointnet2 import PointNet2Classifier
from .pointnext import PointNeXtSegmenter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor, nn

    Names = Callable[[int], tuple[str, ...]]


def always(*prefixes: str) -> Names:
    """The same names for each layer."""
    return lambda _: prefixes


def numbered(prefix: str) -> Names:
    """Names by the layer's number."""
    return lambda k: (f"{prefix}{k}.",)


def mlp_entries(
    mlp: SharedMLP,
    ours: str,
    linear: Names,
    norm: Names,
    *,
    ones: int = 0,
    columns: Tensor | None = None,
) -> Iterable[Entry]:
    """The layers of an MLP; `linear` and `norm` give the prefixes there of layer l."""
    for i, layer in enumerate(mlp.linears):
        first = columns if i == 0 else None
        yield from linear_entries(
            layer, f"{ours}linears.{i}.", *linear(i), ones=ones, columns=first
        )
    for i, layer in enumerate(mlp.norms):
        yield from norm_entries(layer, f"{ours}norms.{i}.", *norm(i))


def head_entries(
    head: Any, linear: Callable[[int], str], norm: Names, ones: int = 0
) -> Iterable[Entry]:
    """The layers of a head, the last one included."""
    for i, mlp in enumerate(head.layers):
        yield from mlp_entries(
            mlp, f"head.layers.{i}.", always(linear(i)), always(*norm(i)), ones=ones
        )
    yield from linear_entries(head.last, "head.last.", linear(len(head.layers)), ones=ones)


# ---- erikwijmans/Pointnet2_PyTorch ----


def erikwijmans(model: Any, old: bool) -> list[Entry]:
    """`old`: the names before its modules became plain Sequentials."""

    def names(prefix: str, step: int) -> tuple[Names, Names]:
        if old:
            norms = ("normlayer.bn.", "bn.bn.")
            return (
                lambda i: (f"{prefix}.layer{i}.conv.",),
                lambda i: tuple(f"{prefix}.layer{i}.{norm}" for norm in norms),
            )
        return lambda i: (f"{prefix}.{step * i}.",), lambda i: (f"{prefix}.{step * i + 1}.",)

    def layers(mlp: SharedMLP, ours: str, prefix: str) -> Iterable[Entry]:
        linear, norm = names(prefix, 3 if mlp.norms else 2)
        return mlp_entries(mlp, ours, linear, norm, ones=2)

    entries: list[Entry] = []
    for i, stage in enumerate(model.stages):
        for s, mlp in enumerate(stage.scales):
            entries += layers(mlp, f"stages.{i}.scales.{s}.", f"SA_modules.{i}.mlps.{s}")
    if isinstance(model, PointNet2Classifier):
        last = f"SA_modules.{len(model.stages)}.mlps.0"
        entries += layers(model.all_points.mlp, "all_points.mlp.", last)
        places = {0: 0, 1: 3, 2: 7}  # linear, norm, activation twice, dropout, linear
        if old:
            heads = head_entries(
                model.head,
                lambda i: f"FC_layer.{2 * i}.fc.",
                lambda i: (f"FC_layer.{2 * i}.normlayer.bn.", f"FC_layer.{2 * i}.bn.bn."),
            )
        else:
            heads = head_entries(
                model.head,
                lambda i: f"fc_layer.{places[i]}.",
                lambda i: (f"fc_layer.{places[i] + 1}.",),
            )
        return entries + list(heads)
    for i, layer in enumerate(model.propagations):
        _check_propagation("erikwijmans", layer, "known_first", 1)
        entries += layers(layer.mlp, f"propagations.{i}.mlp.", f"FP_modules.{i}.mlp")
    if old:
        heads = head_entries(
            model.head,
            lambda i: f"FC_layer.{2 * i}.conv.",
            lambda i: (f"FC_layer.{2 * i}.normlayer.bn.", f"FC_layer.{2 * i}.bn.bn."),
            ones=1,
        )
    else:
        heads = head_entries(  # spelt so there
            model.head, lambda i: f"fc_lyaer.{4 * i}.", lambda _: ("fc_lyaer.1.",), ones=1
        )
    return entries + list(heads)


# ---- yanx27/Pointnet_Pointnet2_pytorch ----


def yanx27(model: Any) -> list[Entry]:
    """Its classifiers and segmenters, of one scale or several."""
    entries: list[Entry] = []
    for i, stage in enumerate(model.stages, 1):
        several = len(stage.scales) > 1
        for s, mlp in enumerate(stage.scales):
            conv, norm = ("conv_blocks", "bn_blocks") if several else ("mlp_convs", "mlp_bns")
            at = f"{s}." if several else ""
            # NOTE: only its layers of several scales have the offsets last.
            total = mlp.linears[0].in_features
            columns = moved_columns(3, total) if several and stage.use_xyz else None
            entries += mlp_entries(
                mlp,
                f"stages.{i - 1}.scales.{s}.",
                numbered(f"sa{i}.{conv}.{at}"),
                numbered(f"sa{i}.{norm}.{at}"),
                ones=2,
                columns=columns,
            )
    if model.all_points is not None:
        last = f"sa{len(model.stages) + 1}"
        entries += _convs(model.all_points.mlp, "all_points.mlp.", last, 2)
    if isinstance(model, PointNet2Classifier):
        heads = head_entries(model.head, lambda i: f"fc{i + 1}.", lambda i: (f"bn{i + 1}.",))
        return entries + list(heads)
    for i, layer in enumerate(model.propagations):
        _check_propagation("yanx27", layer, "skip_first", 2)
        entries += _convs(layer.mlp, f"propagations.{i}.mlp.", f"fp{i + 1}", 1)
    heads = head_entries(model.head, lambda i: f"conv{i + 1}.", lambda i: (f"bn{i + 1}.",), ones=1)
    return entries + list(heads)


def _check_propagation(name: str, layer: FeaturePropagation, order: str, power: int) -> None:
    """An error where a layer computes something else than that code base does."""
    for word, expected in (("order", order), ("power", power)):
        if getattr(layer, word) != expected:
            raise ValueError(
                f"{name}: a FeaturePropagation must have {word} {expected!r}; got "
                f"{getattr(layer, word)!r}"
            )


def _convs(mlp: SharedMLP, ours: str, theirs: str, ones: int) -> Iterable[Entry]:
    return mlp_entries(
        mlp,
        ours,
        numbered(f"{theirs}.mlp_convs."),
        numbered(f"{theirs}.mlp_bns."),
        ones=ones,
    )


# ---- WangYueFt/dgcnn ----


def dgcnn(model: Any) -> list[Entry]:
    """Its classifier, which has every norm under two names."""
    entries: list[Entry] = []
    mlps = [(edge.mlp, f"edges.{i}.mlp.", 2) for i, edge in enumerate(model.edges)]
    mlps.append((model.embedding, "embedding.", 1))
    for i, (mlp, ours, ones) in enumerate(mlps, 1):
        entries += mlp_entries(
            mlp,
            ours,
            always(f"conv{i}.0."),
            always(f"bn{i}.", f"conv{i}.1."),
            ones=ones,
        )
    first = len(mlps) + 1
    heads = head_entries(model.head, lambda i: f"linear{i + 1}.", lambda i: (f"bn{first + i}.",))
    return entries + list(heads)


def dgcnn_parts(model: Any) -> list[Entry]:
    """antao97/dgcnn.pytorch's segmenter of parts: its convolutions are numbered in order."""
    entries: list[Entry] = []

    def layers(mlp: SharedMLP, ours: str, theirs: str, first: int, ones: int) -> None:
        nonlocal entries
        entries += mlp_entries(
            mlp,
            ours,
            lambda k: (f"{theirs}conv{first + k}.0.",),
            lambda k: (f"{theirs}bn{first + k}.", f"{theirs}conv{first + k}.1."),
            ones=ones,
        )

    if model.transform is not None:
        turn, net = model.transform, "transform_net."
        layers(turn.edge.mlp, "transform.edge.mlp.", net, 1, 2)
        count = len(turn.edge.mlp.linears)
        # NOTE: bn3 is the name of the head's first norm there, too, which took it.
        embedding = f"{net}conv{count + 1}."
        entries += mlp_entries(
            turn.embedding, "transform.embedding.", always(f"{embedding}0."),
            always(f"{embedding}1."), ones=1,
        )  # fmt: skip
        for i, mlp in enumerate(turn.head.layers):
            entries += mlp_entries(
                mlp, f"transform.head.layers.{i}.", always(f"{net}linear{i + 1}."),
                always(f"{net}bn{count + 1 + i}."),
            )  # fmt: skip
        entries += linear_entries(turn.head.last, "transform.head.last.", f"{net}transform.")
    at = 1
    for i, edge in enumerate(model.edges):
        layers(edge.mlp, f"edges.{i}.mlp.", "", at, 2)
        at += len(edge.mlp.linears)
    mlps = [(model.embedding, "embedding."), (model.category, "category."),
            (model.mixed.mlp, "mixed.mlp.")]  # fmt: skip
    mlps += [(mlp, f"head.layers.{i}.") for i, mlp in enumerate(model.head.layers)]
    for mlp, ours in mlps:
        if mlp is not None:
            layers(mlp, ours, "", at, 1)
            at += 1
    return entries + list(linear_entries(model.head.last, "head.last.", f"conv{at}.", ones=1))


# ---- guochengqian/openpoints ----


def openpoints(model: Any) -> list[Entry]:
    """PointNeXt's models; its blocks are Sequentials of convolution and norm."""

    def blocks(mlp: SharedMLP, ours: str, theirs: str, ones: int) -> Iterable[Entry]:
        linear, norm = (lambda k, i=i: (f"{theirs}.{k}.{i}.",) for i in range(2))
        return mlp_entries(mlp, ours, linear, norm, ones=ones)

    encoder = "encoder.encoder"
    entries = list(linear_entries(model.stem, "stem.", f"{encoder}.0.0.convs.0.0.", ones=1))
    for i, (first, *more) in enumerate(model.stages):
        ours, theirs = f"stages.{i}", f"{encoder}.{i + 1}"
        scale = first.abstraction.scales[0]
        entries += blocks(scale, f"{ours}.0.abstraction.scales.0.", f"{theirs}.0.convs", 2)
        if first.skip is not None:
            skip = f"{theirs}.0.skipconv.0."
            entries += linear_entries(first.skip, f"{ours}.0.skip.", skip, ones=1)
        for j, block in enumerate(more, 1):
            scale = block.abstraction.scales[0]
            at, there = f"{ours}.{j}", f"{theirs}.{j}"
            entries += blocks(scale, f"{at}.abstraction.scales.0.", f"{there}.convs.convs", 2)
            entries += blocks(block.mlp, f"{at}.mlp.", f"{there}.pwconv", 1)
    segments = isinstance(model, PointNeXtSegmenter)
    if segments:
        for i, layer in enumerate(model.propagations):
            _check_propagation("openpoints", layer, "skip_first", 1)
            theirs = f"decoder.decoder.{i}.0.convs"
            entries += blocks(layer.mlp, f"propagations.{i}.mlp.", theirs, 1)
    else:
        last = f"{encoder}.{len(model.stages) + 1}.0.convs"
        entries += blocks(model.all_points.mlp, "all_points.mlp.", last, 2)
    head = "head.head" if segments else "prediction.head"
    heads = head_entries(  # with a dropout between its blocks
        model.head,
        lambda i: f"{head}.{2 * i}.0.",
        lambda i: (f"{head}.{2 * i}.1.",),
        ones=1 if segments else 0,
    )
    return entries + list(heads)


# ---- pyg-team/pytorch_geometric ----


def pyg_mlp(mlp: SharedMLP, ours: str, theirs: str, columns: Tensor | None) -> Iterable[Entry]:
    """torch_geometric.nn.MLP; norms are wrapped in one of its own."""
    return mlp_entries(
        mlp,
        ours,
        numbered(f"{theirs}lins."),
        lambda k: (f"{theirs}norms.{k}.module.",),
        columns=columns,
    )


def pyg_layer(layer: nn.Module, ours: str, theirs: str) -> list[Entry]:
    """The MLP of a layer; theirs is the prefix of the MLP's names."""
    mlp, name = of_layer(layer)
    return list(pyg_mlp(mlp, f"{ours}{name}", theirs, pyg_columns(layer, mlp)))


def of_layer(layer: Any) -> tuple[SharedMLP, str]:
    """The one MLP of a layer, and the prefix of its names in it."""
    if isinstance(layer, SharedMLP):
        return layer, ""
    if isinstance(layer, SetAbstraction):
        if len(layer.scales) != 1:
            raise ValueError(f"pyg: the layer must have one scale; got {len(layer.scales)}")
        return layer.scales[0], "scales.0."
    if isinstance(layer, (GlobalSetAbstraction, FeaturePropagation, EdgeConv)):
        return layer.mlp, "mlp."
    raise TypeError(f"pyg: layer must be one of fusedops.nn; got {type(layer).__name__}")


def pyg_columns(layer: Any, mlp: SharedMLP) -> Tensor | None:
    """Its first layers take features first and then coordinates; edges f_i, then f_j - f_i."""
    total = mlp.linears[0].in_features
    if isinstance(layer, EdgeConv):
        return moved_columns(total // 2, total)
    if isinstance(layer, (SetAbstraction, GlobalSetAbstraction)) and layer.use_xyz:
        return moved_columns(layer.dimensions, total)
    if isinstance(layer, FeaturePropagation):
        _check_propagation("pyg", layer, "known_first", 2)
    return None


def pyg_head(head: Any, theirs: str) -> Iterable[Entry]:
    """A head, which is an MLP there."""
    return head_entries(
        head, lambda i: f"{theirs}lins.{i}.", lambda i: (f"{theirs}norms.{i}.module.",)
    )


def pyg_model(model: Any) -> list[Entry]:
    """The models of its examples pointnet2_classification and dgcnn_classification."""
    entries: list[Entry] = []
    if isinstance(model, PointNet2Classifier):
        for i, stage in enumerate(model.stages):
            entries += pyg_layer(stage, f"stages.{i}.", f"sa{i + 1}_module.conv.local_nn.")
        last = f"sa{len(model.stages) + 1}_module.nn."
        entries += pyg_layer(model.all_points, "all_points.", last)
    else:
        for i, edge in enumerate(model.edges):
            entries += pyg_layer(edge, f"edges.{i}.", f"conv{i + 1}.nn.")
        (layer,) = model.embedding.linears
        entries += linear_entries(layer, "embedding.linears.0.", "lin1.")
    return entries + list(pyg_head(model.head, "mlp."))
