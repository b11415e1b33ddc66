"""Pure-torch definitions of every op: the specification, slow and plain.

Feed float64 tensors to get the values that the tests measure errors against.
"""

from . import reduce
from .abstraction import edge_conv, feature_propagation, set_abstraction
from .activation import activate, activate_grad
from .conv import batch_norm_act, conv_bn_act
from .elementwise import bias_dropout_residual, dropout_mask, fma, scale_bias_act
from .fp8 import fp8_dequantize, fp8_matmul, fp8_quantize, fp8_round, fp8_scales
from .gemm import linear, linear_backward, linear_preact, matmul, matmul_backward, matmul_preact
from .mlp import gated_mlp, mlp
from .points import farthest_point_sample, group, interpolate
from .rows import (
    cross_entropy,
    embedding_backward,
    layer_norm,
    linear_cross_entropy,
    log_softmax,
    rms_norm,
    rope,
    softmax,
)
from .scan import (
    bincount,
    cummax,
    cummin,
    cumprod,
    cumsum,
    histogram,
    segment_reduce,
    topk,
)
from .stencil import stencil

__all__ = [
    "activate",
    "activate_grad",
    "batch_norm_act",
    "bias_dropout_residual",
    "bincount",
    "conv_bn_act",
    "cross_entropy",
    "cummax",
    "cummin",
    "cumprod",
    "cumsum",
    "dropout_mask",
    "edge_conv",
    "embedding_backward",
    "farthest_point_sample",
    "feature_propagation",
    "fma",
    "fp8_dequantize",
    "fp8_matmul",
    "fp8_quantize",
    "fp8_round",
    "fp8_scales",
    "gated_mlp",
    "group",
    "histogram",
    "interpolate",
    "layer_norm",
    "linear",
    "linear_backward",
    "linear_cross_entropy",
    "linear_preact",
    "log_softmax",
    "matmul",
    "matmul_backward",
    "matmul_preact",
    "mlp",
    "reduce",
    "rms_norm",
    "rope",
    "scale_bias_act",
    "segment_reduce",
    "set_abstraction",
    "softmax",
    "stencil",
    "topk",
]
