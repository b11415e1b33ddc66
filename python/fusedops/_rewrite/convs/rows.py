"""A batch norm of rows (R, C) and the activation behind it: one op, or the modules run."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn as torch_nn

from ...nn.activation import activation_name
from ...nn.conv_call import is_norm, norm_arguments, takes_rows
from ...nn.linear import untouched
from ...ops.batch_norm import batch_norm_act
from .decide import may_pay, norm_pays

_NORMS = (torch_nn.BatchNorm1d, torch_nn.SyncBatchNorm)
_is_dynamo_compiling = torch.compiler.is_dynamo_compiling


class NormStep(NamedTuple):
    """The activation behind a norm in an nn.Sequential, and the index behind it."""

    act: Any
    end: int


def norm_step(layers: list[Any], start: int) -> NormStep | None:
    """What runs with the norm of an index; None where that module runs by itself."""
    end = start + 1
    if end == len(layers) or type(layers[start]) not in _NORMS or not is_norm(layers[start]):
        return None
    act = layers[end]
    if activation_name(act) is None or not untouched(act) or _is_dynamo_compiling():
        return None
    return NormStep(act, end + 1)


def run_norm(x: Any, norm: Any, act: Any) -> Any:
    """``act(norm(x))``: `fusedops.batch_norm_act` where x are rows, and many of them."""
    now = norm_arguments(norm, 0) if may_pay(x) and norm_pays(x) else None
    if now is None or now.momentum is None or not takes_rows(x, now):
        return act(norm(x))
    if now.batches is not None:
        now.batches.add_(1)
    return batch_norm_act(
        x, now.mean, now.var, now.weight, now.bias, activation=activation_name(act),
        training=now.training, momentum=now.momentum, eps=now.eps, group=now.group,
    )  # fmt: skip
