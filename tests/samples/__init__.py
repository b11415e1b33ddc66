"""Argument tuples of every op, for tests/test_contract.py: `SAMPLES[op](device, dtype, codes)`.

One file per family; `codes` are the activation codes to cover, where an op takes one.
"""

from . import gemm, mlp, neighbours, points, template

SAMPLES = {
    **gemm.SAMPLES,
    **mlp.SAMPLES,
    **neighbours.SAMPLES,
    **points.SAMPLES,
    **template.SAMPLES,
}
