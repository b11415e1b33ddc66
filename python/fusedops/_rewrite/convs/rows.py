"""A batch norm of rows (R, C) and the activation behind it: one op, or the modules run."""

from __future__ import annotations

from typing import Any

from torch import nn as torch_nn

from ...nn.activation import activation_name
from ...nn.conv_call import is_norm, norm_arguments, stepped, takes_rows
from ...ops.batch_norm import batch_norm_act
from .decide import may_pay, norm_pays

_NORMS = (torch_nn.BatchNorm1d, torch_nn.SyncBatchNorm)


def is_row_norm(module: Any) -> bool:
    """Whether a module is a batch norm that takes rows, and no more."""
    return type(module) in _NORMS and is_norm(module)


def run_norm(x: Any, norm: Any, act: Any) -> Any:
    """``act(norm(x))``: `fusedops.batch_norm_act` where x are rows, and many of them."""
    now = norm_arguments(norm, 0) if may_pay(x) and norm_pays(x) else None
    if now is None or not takes_rows(x, now):
        return act(norm(x))
    name = activation_name(act)

    def op(mean: Any, var: Any, momentum: float) -> Any:
        return batch_norm_act(
            x, mean, var, now.weight, now.bias, activation=name, training=now.training,
            momentum=momentum, eps=now.eps, group=now.group,
        )  # fmt: skip

    return stepped(op, now)
