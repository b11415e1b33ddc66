"""State dicts of the same models in other repositories: load them, and write them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ._entries import Entry, loaded, without_wrapper, written
from ._tables import (
    dgcnn,
    dgcnn_parts,
    erikwijmans,
    mlp_entries,
    of_layer,
    openpoints,
    pyg_columns,
    pyg_layer,
    pyg_model,
)
from ._tables import yanx27 as yanx27_table
from .dgcnn import DGCNN
from .dgcnn_parts import DGCNNSegmenter
from .pointnet2 import PointNet2Classifier, PointNet2Segmenter
from .pointnext import PointNeXt, PointNeXtSegmenter

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = [
    "load_dgcnn",
    "load_erikwijmans",
    "load_openpoints",
    "load_pyg",
    "load_yanx27",
    "to_dgcnn",
    "to_erikwijmans",
    "to_openpoints",
    "to_pyg",
    "to_yanx27",
]


def _check(op: str, model: nn.Module, *kinds: type[nn.Module]) -> None:
    if not isinstance(model, kinds):
        names = " or ".join(kind.__name__ for kind in kinds)
        raise TypeError(f"{op}: model must be a {names}; got {type(model).__name__}")


def load_erikwijmans(model: nn.Module, state_dict: dict[str, Any]) -> None:
    """Load a state dict of erikwijmans/Pointnet2_PyTorch.

    Its classifiers are ``PointNet2Classifier(classes, in_channels, "ssg64" or "msg", dropout=(0,
    0.5))``, its segmenters ``PointNet2Segmenter(classes, in_channels, "scene_ssg")`` or with
    "scene_msg", without biases before norms. Both sets of names that it has had are read, with
    DataParallel's prefix or without. The number of features is as there without the coordinates.

    Coordinates get gradients through the weights of interpolation here, which pointnet2_ops leaves
    out.

    Args:
        model: Its parameters are overwritten.
        state_dict: State dict of the model there, all of it.

    Raises:
        TypeError: model is no PointNet++.
        ValueError: Names or shapes are not those of the model.
    """
    _check("load_erikwijmans", model, PointNet2Classifier, PointNet2Segmenter)
    tables = [erikwijmans(model, old) for old in (False, True)]
    loaded("load_erikwijmans", model, state_dict, tables)


def to_erikwijmans(model: nn.Module) -> dict[str, Tensor]:
    """The state dict that `load_erikwijmans` reads, by the newer names."""
    _check("to_erikwijmans", model, PointNet2Classifier, PointNet2Segmenter)
    return written(model, erikwijmans(model, old=False))


def load_yanx27(model: nn.Module, state_dict: dict[str, Any]) -> None:
    """Load a state dict of yanx27/Pointnet_Pointnet2_pytorch.

    Its models are ``PointNet2Classifier(classes, normals, "ssg" or "msg", bias=True, closed=True,
    random_start=True, dropout=(0.4, 0.4))`` (msg: (0.4, 0.5)) and ``PointNet2Segmenter(parts,
    normals, "ssg" or "msg", num_categories=16, bias=True, closed=True, random_start=True)``, with
    normals = 3 or 0; outputs there are log_softmax of these logits. With several scales its first
    columns are [features, offset]: they are put in our order.

    What may differ by roundings: it forms squared distances as ``a.a + b.b - 2 a.b``, so that
    points very near to the radius may fall on its other side.

    Args:
        model: Its parameters are overwritten.
        state_dict: State dict of the model there, all of it.

    Raises:
        TypeError: model is no PointNet++.
        ValueError: Names or shapes are not those of the model.
    """
    _check("load_yanx27", model, PointNet2Classifier, PointNet2Segmenter)
    loaded("load_yanx27", model, state_dict, [yanx27_table(model)])


def to_yanx27(model: nn.Module) -> dict[str, Tensor]:
    """The state dict that `load_yanx27` reads."""
    _check("to_yanx27", model, PointNet2Classifier, PointNet2Segmenter)
    return written(model, yanx27_table(model))


def load_dgcnn(model: nn.Module, state_dict: dict[str, Any]) -> None:
    """Load a state dict of WangYueFt/dgcnn (pytorch) or antao97/dgcnn.pytorch.

    The classifier of both is ``DGCNN(classes)``, the segmenter of parts of the latter
    ``DGCNNSegmenter(parts)``.

    Args:
        model: Its parameters are overwritten.
        state_dict: State dict of the model there, all of it.

    Raises:
        TypeError: model is no `DGCNN` and no `DGCNNSegmenter`.
        ValueError: Names or shapes are not those of the model.
    """
    _check("load_dgcnn", model, DGCNN, DGCNNSegmenter)
    loaded("load_dgcnn", model, state_dict, [_dgcnn_table(model)])


def _dgcnn_table(model: nn.Module) -> list[Entry]:
    return dgcnn_parts(model) if isinstance(model, DGCNNSegmenter) else dgcnn(model)


def to_dgcnn(model: nn.Module) -> dict[str, Tensor]:
    """The state dict that `load_dgcnn` reads, every norm under both of its names."""
    _check("to_dgcnn", model, DGCNN, DGCNNSegmenter)
    return written(model, _dgcnn_table(model))


def load_openpoints(model: nn.Module, state_dict: dict[str, Any]) -> None:
    """Load a state dict of guochengqian/openpoints.

    Its classifier PointNeXt-S is ``PointNeXt(classes, in_channels)`` with the number of features
    beside the coordinates: 1 for ScanObjectNN there, 0 for ModelNet40. The segmenter of S3DIS is
    ``PointNeXtSegmenter(13, 4, xyz_features=False)``.

    Args:
        model: Its parameters are overwritten.
        state_dict: State dict of the model there (its checkpoints hold it as "model"), all of it.

    Raises:
        TypeError: model is no `PointNeXt` and no `PointNeXtSegmenter`.
        ValueError: Names or shapes are not those of the model.
    """
    _check("load_openpoints", model, PointNeXt, PointNeXtSegmenter)
    loaded("load_openpoints", model, state_dict, [openpoints(model)])


def to_openpoints(model: nn.Module) -> dict[str, Tensor]:
    """The state dict that `load_openpoints` reads."""
    _check("to_openpoints", model, PointNeXt, PointNeXtSegmenter)
    return written(model, openpoints(model))


def load_pyg(model: nn.Module, state_dict: dict[str, Any], prefix: str = "") -> None:
    """Load a state dict of torch_geometric: a layer's, or that of two of its examples.

    A layer of `fusedops.nn` takes the tensors of an MLP there, whose names start with `prefix`:
    `SetAbstraction` those of a PointNetConv's local_nn ("sa1_module.conv.local_nn."),
    `GlobalSetAbstraction` and `FeaturePropagation` those of an example's GlobalSAModule and
    FPModule ("sa3_module.nn."), `EdgeConv` those of a (Dynamic)EdgeConv's nn ("conv1.nn."). Such an
    MLP is a torch_geometric.nn.MLP or an nn.Sequential of linear layers, norms and activations. An
    MLP there has by default a last layer without norm and activation: last_norm=False,
    last_activation=False; it has biases (bias=True), and FPModule weights 1 / d^2 (power=2).

    The whole models of the examples are ``PointNet2Classifier(classes, bias=True, head_norm=None,
    last_norm=False, last_activation=False, stages=...)`` and the `DGCNN` that its docstring names.

    A PointNetConv of that library adds self-loops by default, which between two sets of points
    join point i to centre i, whatever these are; the layers here have none. `fusedops.fuse` runs
    the module itself with them.

    Args:
        model: A layer or model; its parameters are overwritten.
        state_dict: State dict of the model there; with a prefix, other names are passed over.
        prefix: Prefix of the names that count.

    Raises:
        TypeError: model is none of these.
        ValueError: Names or shapes are not those of the model.
    """
    state = without_wrapper(state_dict)
    state = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
    if isinstance(model, (PointNet2Classifier, DGCNN)):
        loaded("load_pyg", model, state, [pyg_model(model)])
        return
    tables = [pyg_layer(model, "", "")]
    in_order = _sequential(model, state)
    loaded("load_pyg", model, state, tables if in_order is None else [*tables, in_order])


def to_pyg(model: nn.Module, prefix: str = "") -> dict[str, Tensor]:
    """The state dict that `load_pyg` reads: names of torch_geometric.nn.MLP behind a prefix."""
    whole = isinstance(model, (PointNet2Classifier, DGCNN))
    table = pyg_model(model) if whole else pyg_layer(model, "", "")
    return {f"{prefix}{name}": value for name, value in written(model, table).items()}


def _sequential(layer: Any, state: dict[str, Any]) -> list[Entry] | None:
    """The table of an nn.Sequential whose places are those of a state dict; None for another."""
    places = sorted({int(name.split(".")[0]) for name in state if re.match(r"\d+\.", name)})
    weights = {at: state.get(f"{at}.weight") for at in places}
    linears = [at for at, weight in weights.items() if weight is not None and weight.dim() == 2]
    norms = [at for at in places if at not in linears]
    mlp, ours = of_layer(layer)
    if len(linears) != len(mlp.linears) or len(norms) != len(mlp.norms):
        return None
    for k, (norm, linear) in enumerate(zip(norms, linears, strict=False)):
        if norm != linear + 1:
            raise ValueError(
                f"load_pyg: expected norm {k} right behind its linear layer {linear}, as ours runs "
                f"it; got it at {norm}"
            )
    return list(
        mlp_entries(
            mlp,
            ours,
            lambda k: (f"{linears[k]}.",),
            lambda k: (f"{norms[k]}.", f"{norms[k]}.module."),
            columns=pyg_columns(layer, mlp),
        )
    )
