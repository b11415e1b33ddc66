"""The classifier of WangYueFt/dgcnn and antao97/dgcnn.pytorch: its edge convolutions as ours.

It has no modules for them, so that the whole model is known by its attributes and by its values.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...points.abstraction import edge_conv
from ...points.neighbours import knn
from ..fused_class import Fused
from .layers import read_layers
from .probe import Calls, draws

_is_dynamo_compiling = torch.compiler.is_dynamo_compiling
_MODULES = {
    *(f"conv{i}" for i in range(1, 6)),
    *(f"bn{i}" for i in range(1, 8)),
    *(f"linear{i}" for i in range(1, 4)),
    "dp1",
    "dp2",
}
_SLOPE = 0.2


def is_dgcnn(module: Any) -> bool:
    """Whether a module has the attributes of that classifier."""
    mine = {name for name in vars(module) if not name.startswith("_")}
    return set(module._modules) == _MODULES and mine == {"args", "k", "training"}


class FusedDGCNN(Fused):
    """Mixed into the class of the classifier.

    Its own forward runs for other arguments and dtypes, while a layer of an edge convolution has
    hooks or was replaced, and under torch.compile.
    """

    _base: Any

    def forward(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        """The logits."""
        y = None if args or kwargs or _is_dynamo_compiling() else run_dgcnn(self, x)
        return self._base.forward(self, x, *args, **kwargs) if y is None else y


def run_dgcnn(model: Any, points: Any) -> Tensor | None:
    """Points (B, C, N) to logits (B, classes); None where the model computes more."""
    if not isinstance(points, Tensor) or points.dim() != 3 or points.shape[2] < model.k:
        return None
    edges = [read_layers(getattr(model, f"conv{i}")) for i in range(1, 5)]
    if any(layers is None or not layers.takes(points) for layers in edges):
        return None
    found, x = [], points.transpose(1, 2).contiguous()
    for layers in edges:
        assert layers is not None
        idx = knn(x.detach(), None, model.k, return_dist=False).idx
        biases, norms, options = layers.arguments()
        x = edge_conv(x, idx, layers.weights(), biases, norms, **options)
        found.append(x)
    y = model.conv5(torch.cat(found, dim=-1).transpose(1, 2))
    y = torch.cat([y.max(2)[0], y.mean(2)], dim=1)
    y = model.dp1(F.leaky_relu(model.bn6(model.linear1(y)), _SLOPE))
    y = model.dp2(F.leaky_relu(model.bn7(model.linear2(y)), _SLOPE))
    return model.linear3(y)


def dgcnn_calls(model: Any, like: Tensor) -> Calls:
    """Calls of the classifier: clouds of two sizes and scales."""
    channels = model.conv1[0].weight.shape[1] // 2
    draw, least = draws(like), max(48, 2 * model.k)
    return [
        ((2 * draw(2, channels, points) - 1) * scale,)
        for points, scale in ((least, 1.0), (2 * least, 30.0))
    ]
