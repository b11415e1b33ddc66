"""Every reduction on shapes that reach every kernel of the planner, and every gradient."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import torch

import fusedops
from fusedops._core.reduction import FLOATING_ONLY, REDUCTIONS
from options import DTYPES

if TYPE_CHECKING:
    from collections import Counter

    from options import Options

SHAPES = [(300, 8), (129, 64), (45, 192), (301, 4), (301, 2), (100, 17), (33, 1023), (50, 4104)]
SHAPES += [(2, 70001), (1000, 64), (5000, 4), (3001, 3), (3, 4096), (20000, 8), (9, 50, 7)]
SHAPES += [(5, 4001), (300, 301), (40, 12, 301), (33, 4001, 5), (5003, 1)]


def run(o: Options, count: Counter[str]) -> None:
    for dtype, shape in o.mine(itertools.product((*DTYPES, torch.int8, torch.int64), SHAPES)):
        x = torch.ones(shape, device=o.device, dtype=dtype)
        floating = dtype.is_floating_point
        for code, dim in itertools.product(range(len(REDUCTIONS)), range(x.dim() + 1)):
            if floating or code not in FLOATING_ONLY:
                mask = 1 << dim if dim < x.dim() else (1 << x.dim()) - 1
                torch.ops.fusedops.reduce(x, code, mask, False, False)
                count[REDUCTIONS[code]] += 1
        for name in ("prod", "amax", "norm", "logsumexp", "std") if floating else ():
            getattr(fusedops, name)(x.requires_grad_(), dim=1).sum().backward()
            count[f"{name} backward"] += 1
        if dtype in DTYPES:
            short = x.detach().flatten()[: x.numel() // 2 * 2].view(2, -1)[:, 1:14]
            torch.ops.fusedops.reduce(short, 0, 2, False, False)
            fusedops.bias_grad(x.detach())
            count["bias_grad"] += 1
