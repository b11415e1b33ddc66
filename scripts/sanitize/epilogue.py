"""Epilogues of one's own in every main loop, and their derived backward."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
import torch.nn.functional as F

import fusedops
from fusedops._epilogue import run as kernels
from fusedops._epilogue.launch import CONFIGS, Needs

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable

    from options import Options


def _everything(acc: Any, row: Any, column: Any, one: Any, two: Any) -> Any:
    return torch.tanh(acc * row + column) * one - F.gelu(acc) * 0.5 + torch.maximum(acc, two)


def _many(acc: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    return F.silu(acc + a) * b + c * torch.cos(d)


# None, few operands along rows and columns, those that are loaded a block ahead, and more.
EXPRESSIONS: tuple[tuple[Callable[..., Any], str], ...] = (
    (lambda acc: 5.0 * torch.tanh(acc / 5.0), ""),
    (lambda acc, scale, bias, res: torch.relu(acc * scale + bias) + res, "ccf"),
    (_everything, "rcff"),
    (_many, "ffff"),
)


def run(o: Options, count: Counter[str]) -> None:
    """Each main loop with one cluster of CTAs for all tiles, and with one for each.

    NOTE: a product of other rows has parameters of its own, so that no other choice is kept.
    """
    configs = [c for c in CONFIGS if o.clusters or c.ctas == 1]
    dtypes = o.some((torch.bfloat16, torch.float16), 1)
    for (number, config), dtype, sms in itertools.product(enumerate(configs), dtypes, (2, 132)):
        m, n, k = 300 + 16 * number + (sms == 2), 264, 136
        for function, kinds in EXPRESSIONS:
            shapes = {"c": (n,), "r": (m, 1), "f": (m, n)}
            x, w = o.randn(m, k, dtype=dtype, grad=True), o.randn(n, k, dtype=dtype, grad=True)
            leaves = [o.randn(*shapes[kind], dtype=dtype, grad=True) for kind in kinds]
            if not Needs(kinds.count("f"), False, False).met_by(config):
                continue
            made = fusedops.epilogue(function)
            bound = made(**dict(zip(made.operands, leaves, strict=True)))
            with (
                patch.object(kernels, "choose", lambda *_, config=config: config),
                patch.object(kernels, "multiprocessors", lambda _, sms=sms: sms),
            ):
                with torch.no_grad():
                    fusedops.linear(x, w, epilogue=bound)
                y = fusedops.linear(x, w, epilogue=bound)
            y.backward(o.randn(m, n, dtype=dtype))
            count[f"epilogue {config.name}"] += 2
