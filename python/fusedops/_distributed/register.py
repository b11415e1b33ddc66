"""Gives torch.distributed.tensor the rules; imported after it."""

from __future__ import annotations

import warnings

try:
    from .strategy import register

    register()
except (ImportError, AttributeError, TypeError) as error:
    # NOTE: what registers a strategy is private to torch, which may change it; its import goes on.
    warnings.warn(f"fusedops: its ops have no DTensor rules with this torch: {error}", stacklevel=2)
