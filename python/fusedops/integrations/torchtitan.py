"""torchtitan: a model converter, and the same as a step of `parallelize_fn`.

Up to torchtitan 0.2, `--experimental.custom_import fusedops.integrations.torchtitan` (or an import
anywhere before the trainer is built) registers the converter "fusedops", and
`--model.converters fusedops` runs it before the model is parallelised. From 0.3 on converters work
on configs and not on models: `fuse_before` wraps the `parallelize_fn` of a model's spec.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
from typing import TYPE_CHECKING, Any

import fusedops

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

__all__ = ["FusedopsConverter", "fuse_before", "register"]

NAME = "fusedops"
_logger = logging.getLogger(__name__)


class FusedopsConverter:
    """torchtitan's protocol `ModelConverter`: `convert` calls `fusedops.fuse`.

    Args:
        job_config: torchtitan's; nothing of it is read.
        parallel_dims: torchtitan's; ops take DTensors, so every plan is fine.
    """

    def __init__(self, job_config: Any, parallel_dims: Any) -> None:
        self.report: fusedops.FuseReport | None = None

    def convert(self, model: nn.Module) -> None:
        """Rewrites the model in place and logs what was done."""
        self.report = fusedops.fuse(model)
        _logger.info("%s", self.report)

    def post_optimizer_hook(self, model: nn.Module | list[nn.Module]) -> None:
        """Nothing to do: no state depends on the weights."""


def register() -> bool:
    """Register the converter "fusedops"; again is no error.

    Returns:
        Whether this torchtitan has converters of models (0.2 and before).

    Raises:
        ImportError: torchtitan is not installed.
    """
    importlib.import_module("torchtitan")
    try:
        model_converter = importlib.import_module("torchtitan.protocols.model_converter")
    except ImportError:
        return False
    if NAME not in model_converter._registry_model_converter_cls:
        model_converter.register_model_converter(FusedopsConverter, NAME)
    return True


def fuse_before(parallelize_fn: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a spec's `parallelize_fn`: the model is fused before it is parallelised.

    Args:
        parallelize_fn: Takes the model first.

    Returns:
        A function with the same arguments and result.
    """

    def wrapped(model: nn.Module, *arguments: Any, **options: Any) -> Any:
        FusedopsConverter(None, None).convert(model)
        return parallelize_fn(model, *arguments, **options)

    return wrapped


with contextlib.suppress(ImportError):  # custom_import names this module and calls nothing
    register()
