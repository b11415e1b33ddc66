"""Argument tuples of every op, for test_contract.py: `SAMPLES[op](device, dtype, codes)`.

One file per family; `codes` are the activation codes to cover, where an op takes one.
"""

from . import (
    batch_norm,
    conv,
    edge_rows,
    edges,
    elementwise,
    embedding,
    fp8,
    gemm,
    losses,
    mlp,
    neighbours,
    points,
    reduce,
    rope,
    rows,
    scan,
    stencil,
    template,
)

SAMPLES = {
    **batch_norm.SAMPLES,
    **conv.SAMPLES,
    **edge_rows.SAMPLES,
    **edges.SAMPLES,
    **elementwise.SAMPLES,
    **embedding.SAMPLES,
    **fp8.SAMPLES,
    **gemm.SAMPLES,
    **losses.SAMPLES,
    **mlp.SAMPLES,
    **neighbours.SAMPLES,
    **points.SAMPLES,
    **reduce.SAMPLES,
    **scan.SAMPLES,
    **rope.SAMPLES,
    **rows.SAMPLES,
    **stencil.SAMPLES,
    **template.SAMPLES,
}

# Ops that take integers too: their wrong dtype is bool.
INTEGER_OPS = elementwise.INTEGER_OPS

# Ops whose wrong dtype is another one: (it, the message).
REFUSED = {
    **edge_rows.REFUSED,
    **edges.REFUSED,
    **fp8.REFUSED,
    **reduce.REFUSED,
    **scan.REFUSED,
}

# Ops without a CPU implementation.
CUDA_ONLY = frozenset({**edges.SAMPLES, **edge_rows.SAMPLES})
