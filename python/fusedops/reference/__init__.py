"""Pure-torch definitions of every op: the specification, slow and plain.

Feed float64 tensors to get the values that the tests measure errors against.
"""

from .activation import activate, activate_grad
from .gemm import linear, linear_backward, linear_preact, matmul, matmul_backward, matmul_preact
from .mlp import gated_mlp, mlp
from .points import farthest_point_sample, group, interpolate

__all__ = [
    "activate",
    "activate_grad",
    "farthest_point_sample",
    "gated_mlp",
    "group",
    "interpolate",
    "linear",
    "linear_backward",
    "linear_preact",
    "matmul",
    "matmul_backward",
    "matmul_preact",
    "mlp",
]
