"""What waits for a module of torch that `import torch` leaves alone, since it costs time."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from importlib.abc import MetaPathFinder
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec


class AfterImport(MetaPathFinder):
    """Calls a function once a module is imported."""

    def __init__(self, module: str, function: Callable[[], object]) -> None:
        self.module, self.function = module, function
        self.searching = False

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """The module's own spec, with a loader that goes on to the function."""
        if name != self.module or self.searching:
            return None
        self.searching = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.searching = False
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_both(module: Any) -> None:
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                self.function()

        spec.loader.exec_module = execute_both  # type: ignore[method-assign]
        return spec


def import_after(module: str, ours: str) -> None:
    """Import a module of ours once one of torch's is imported, or now if it is already."""
    if module in sys.modules:
        importlib.import_module(ours)
    else:
        sys.meta_path.insert(0, AfterImport(module, lambda: importlib.import_module(ours)))
