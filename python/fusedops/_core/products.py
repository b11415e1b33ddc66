"""What torch's tools know of our products of matrices: what checkpoints should save, flops."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from importlib.abc import MetaPathFinder
from typing import TYPE_CHECKING, Any

import torch

from .. import _C  # noqa: F401  (registers torch.ops.fusedops)

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

_ops = torch.ops.fusedops

# The ops whose results selective activation checkpointing should save rather than compute again;
# public as fusedops.compute_intensive_ops. A list, since create_selective_checkpoint_contexts takes
# nothing else.
compute_intensive_ops: list[torch._ops.OpOverload[..., Any]] = [
    _ops.linear.default,
    _ops.linear_preact.default,
    _ops.matmul.default,
    _ops.matmul_preact.default,
    _ops.mlp_forward.default,
    _ops.gated_mlp_forward.default,
    _ops.gated_linear.default,
]

_COUNTER = "torch.utils.flop_counter"


class _WithFormulas(MetaPathFinder):
    """Registers our flop formulas once torch's counter is imported, which takes 0.2 s by itself."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """The counter's own spec, with a loader that goes on to our formulas."""
        if name != _COUNTER:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_both(module: Any) -> None:
            execute(module)
            importlib.import_module(".flops", __package__)

        spec.loader.exec_module = execute_both  # type: ignore[method-assign]
        return spec


if _COUNTER in sys.modules:
    importlib.import_module(".flops", __package__)
else:
    sys.meta_path.insert(0, _WithFormulas())
