"""Two ranks for every test of the folder: `ranks.run(function, ...)`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from distributed.pool import Pool

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def pools() -> Iterator[dict[str, Pool]]:
    """The ranks of each kind of device, started when first wanted."""
    found: dict[str, Pool] = {}
    yield found
    for pool in found.values():
        pool.close()


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.multi_gpu)])
def ranks(request: pytest.FixtureRequest, pools: dict[str, Pool]) -> Pool:
    """Two ranks, on the CPU with gloo and on two GPUs with NCCL."""
    if not torch.distributed.is_available():
        pytest.skip("torch without distributed")
    device = str(request.param)
    if device not in pools:
        pools[device] = Pool(device)
    return pools[device]
