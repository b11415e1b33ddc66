"""Our ops on DTensors: how torch.distributed.tensor may shard each of them."""

from __future__ import annotations

from .._core.after_import import import_after

import_after("torch.distributed.tensor", f"{__package__}.register")
