"""What tests of kernels for operands that begin anywhere share."""

from __future__ import annotations

import itertools
import math

from fusedops import _C

HOPPER = {"capability": 90, "sm_count": 132}


def asked(ask, m, n, k, a=None, b=None, **options):
    """What selection says of a (M, K) and b (K, N), dense or of these strides and address."""
    options = {"dtype": "bfloat16", "epilogue": "fused", "activation": 0} | options
    a, b = (*(a or (k, 1)), 0)[:3], (*(b or (1, k)), 0)[:3]
    return ask(m, n, k, a=a, b=b, allow_tf32=False, **(HOPPER | options))


def unaligned(*args, **options):
    return asked(_C.unaligned_gemm, *args, **options)


def shifted(tensor, elements):
    """The same values at an address that is so many elements behind a multiple of 16 bytes."""
    room = tensor.new_full((tensor.numel() + elements,), math.nan)[elements:]
    return room.view(tensor.shape).copy_(tensor)


def columns(tensor):
    return tensor.t().contiguous().t()


def layouts(x, weight, behind):
    """Pairs of both: dense, by columns, and so many elements of weight (one of x) behind a unit."""
    return itertools.product(
        (x, columns(x), shifted(x, 1)), (weight, columns(weight), shifted(weight, behind))
    )
