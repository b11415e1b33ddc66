"""Fake (shape-only) implementations of every op: what torch.compile, torch.export and meta tensors
run. One file per family; importing the package registers them all.
"""

from . import (  # noqa: F401
    batch_norm,
    conv,
    edge_conv,
    edge_first,
    edge_list,
    edge_rows,
    edges,
    elementwise,
    embedding,
    fp8,
    gemm,
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
