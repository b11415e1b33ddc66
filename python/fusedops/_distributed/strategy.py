"""From rules to what torch.distributed.tensor wants.

NOTE: `register_sharding` of torch.distributed.tensor.experimental does the same, but its cache
ignores flags that come before the first int argument, and it knows nothing of arguments that an op
writes to.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._op_schema import OpSchema, OpStrategy, RuntimeSchemaInfo
from torch.distributed.tensor._ops.utils import expand_to_full_mesh_op_strategy

from .. import _C  # noqa: F401  (registers torch.ops.fusedops)
from .norms import whole_rows
from .notation import replicate
from .rules import RULES


def _strategy(rule: Any, schema: OpSchema) -> OpStrategy:
    """Every sharding of a call over the whole mesh, for torch to choose the cheapest from."""
    signature = schema.op._schema
    arguments: dict[str, Any] = {}
    tensors: list[Any] = []
    written: list[tuple[int, tuple[Any, ...]]] = []
    for argument, value in zip(signature.arguments, schema.args_schema, strict=True):
        if isinstance(value, OpStrategy):
            value = value.strategies[0].output_spec
            if argument.alias_info is not None and argument.alias_info.is_write:
                written.append((sum(t is not None for t in tensors), value.placements))
        arguments[argument.name] = value
        if str(argument.type) in ("Tensor", "Optional[Tensor]"):
            tensors.append(value)
    count = len(signature.returns)
    shardings = [*rule(arguments, tensors), replicate(count, tensors)]
    mesh = next(t.mesh for t in tensors if t is not None)
    strategy = expand_to_full_mesh_op_strategy(
        mesh, schema, [made + given for made, given in shardings], input_index=count
    )
    by_rows = "_norm" in signature.name
    strategy.strategies = [
        one
        for one in strategy.strategies
        # NOTE: what an op writes to stays where it lies: a copy of it would be lost.
        if all(one.input_specs[i].placements == held for i, held in written)
        and (not by_rows or whole_rows(tensors[0].shape, one.input_specs[0].placements, mesh.shape))
    ]
    if not strategy.strategies:
        held = ", ".join(str(placements) for _, placements in written)
        raise RuntimeError(
            f"{schema.op}: what the op writes to must have placements that it can keep; got {held}"
        )
    return strategy


def register() -> None:
    """Give DTensor the rules of every op."""
    for name, rule in RULES.items():
        DTensor._op_dispatcher.sharding_propagator.register_op_strategy(
            getattr(torch.ops.fusedops, name).default,
            partial(_strategy, rule),
            RuntimeSchemaInfo(static_argnum=0),
        )
