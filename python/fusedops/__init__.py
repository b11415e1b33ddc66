"""fusedops: fused PyTorch ops. Importing it registers `torch.ops.fusedops.*`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch  # noqa: F401  (loads libtorch, which _C is linked against)

from . import _C, _distributed, fp8, jit, models, nn, points, reference  # noqa: F401
from ._core import math_bits  # noqa: F401
from ._core.products import compute_intensive_ops
from ._epilogue.epilogue import epilogue
from ._inductor import inductor
from ._rewrite.fuse import FuseReport, fuse
from ._rewrite.losses.criterion import fuse_loss
from ._tuning.explain import explain
from ._tuning.explain_conv import explain_conv_bn_act
from ._tuning.explain_layers import explain_edge_conv, explain_set_abstraction
from ._tuning.tune import tune
from .ops.attention import fast_attention
from .ops.batch_norm import batch_norm_act
from .ops.conv import conv_bn_act
from .ops.cross_entropy import cross_entropy
from .ops.elementwise import (
    add,
    add_,
    bias_act,
    bias_act_,
    bias_dropout_residual,
    bias_dropout_residual_,
    fma,
    fma_,
    relu,
    relu_,
    scale_bias_act,
    scale_bias_act_,
    square,
    square_,
)
from .ops.histogram import bincount, histogram
from .ops.linear import linear, matmul
from .ops.linear_cross_entropy import linear_cross_entropy
from .ops.mlp import gated_mlp, mlp
from .ops.norm import layer_norm, rms_norm
from .ops.reduce import (
    all,
    amax,
    amin,
    any,
    argmax,
    argmin,
    bias_grad,
    count_nonzero,
    logsumexp,
    mean,
    norm,
    prod,
    std,
    sum,
    var,
)
from .ops.rope import rope
from .ops.scan import cummax, cummin, cumprod, cumsum
from .ops.segment import segment_reduce
from .ops.softmax import log_softmax, softmax
from .ops.stencil import box_filter1d, box_filter2d, box_filter3d, stencil1d, stencil2d, stencil3d
from .ops.topk import topk

__version__: str  # looked up when asked for

__all__ = [
    "_C",
    "FuseReport",
    "add",
    "add_",
    "all",
    "amax",
    "amin",
    "any",
    "argmax",
    "argmin",
    "batch_norm_act",
    "bias_act",
    "bias_act_",
    "bias_dropout_residual",
    "bias_dropout_residual_",
    "bias_grad",
    "bincount",
    "box_filter1d",
    "box_filter2d",
    "box_filter3d",
    "compute_intensive_ops",
    "conv_bn_act",
    "count_nonzero",
    "cross_entropy",
    "cummax",
    "cummin",
    "cumprod",
    "cumsum",
    "epilogue",
    "explain",
    "explain_conv_bn_act",
    "explain_edge_conv",
    "explain_set_abstraction",
    "fast_attention",
    "fma",
    "fma_",
    "fp8",
    "fuse",
    "fuse_loss",
    "gated_mlp",
    "histogram",
    "inductor",
    "jit",
    "layer_norm",
    "linear",
    "linear_cross_entropy",
    "log_softmax",
    "logsumexp",
    "matmul",
    "mean",
    "mlp",
    "models",
    "nn",
    "norm",
    "points",
    "prod",
    "reference",
    "relu",
    "relu_",
    "rms_norm",
    "rope",
    "scale_bias_act",
    "scale_bias_act_",
    "segment_reduce",
    "softmax",
    "square",
    "square_",
    "std",
    "stencil1d",
    "stencil2d",
    "stencil3d",
    "sum",
    "topk",
    "tune",
    "var",
]

if not TYPE_CHECKING:  # a type checker would take every name for one of these

    def __getattr__(name: str) -> str:
        if name != "__version__":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from ._core.info import build_info

        return str(build_info()["version"])
