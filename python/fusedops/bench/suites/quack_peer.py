"""QuACK's gemm_act as a peer: the best of several of its tile configurations.

install_quack.sh puts it into a folder that $FUSEDOPS_QUACK_SITE names, beside whatever else is
installed. Each configuration is compiled on first use, about 10 s.
"""

from __future__ import annotations

import functools
import os
import site
import statistics
from typing import TYPE_CHECKING, Any

import torch

from fusedops._timing.backlog import sample
from fusedops.bench.suites.base import Call, PeerUnavailableError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

QUACK_ACTIVATIONS = {"none": None, "relu": "relu", "gelu_tanh": "gelu_tanh_approx"}
# tile M, tile N, pingpong, cluster M, cluster N, operands swapped
CONFIGS = (
    (128, 192, True, 2, 1, False),  # its default
    (128, 128, True, 2, 1, False),
    (128, 160, True, 2, 1, False),
    (192, 128, True, 2, 1, False),
    (256, 128, False, 2, 1, False),
    (256, 192, False, 2, 1, False),
    (128, 256, False, 2, 1, False),
)
SWAPPED = ((128, 128, True, 2, 1, True), (128, 192, True, 2, 1, True))
SWAP_BELOW_M = 512
PILOT_ROUNDS, PILOT_CALLS = 3, 8


@functools.cache
def _modules() -> tuple[Any, Any]:
    if folder := os.environ.get("FUSEDOPS_QUACK_SITE"):
        site.addsitedir(folder)  # its .pth files count, as PYTHONPATH's would not
    try:
        from quack.gemm_config import GemmConfig
        from quack.gemm_interface import gemm_act
    except ImportError as error:
        raise PeerUnavailableError(f"QuACK is not installed: {error}") from error
    return gemm_act, GemmConfig


def quack_linear(activation: str) -> Call:
    """act(x w^T + b) without the pre-activation; raises PeerUnavailableError."""
    gemm_act, config_type = _modules()
    if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9:
        raise PeerUnavailableError("the QuACK configurations here are for Hopper")

    def call_of(config: tuple[Any, ...]) -> Call:
        names = ("tile_m", "tile_n", "pingpong", "cluster_m", "cluster_n", "swap_ab")
        chosen = config_type(
            **dict(zip(names, config, strict=True)), is_dynamic_persistent=False, device_capacity=9
        )
        options = {
            "activation": QUACK_ACTIVATIONS[activation],
            "store_preact": False,
            "tuned": False,
            "config": chosen,
        }
        return lambda x, weight, bias, *_: gemm_act(x, weight.t(), bias=bias, **options)[1]

    return BestOf({config: functools.partial(call_of, config) for config in (*CONFIGS, *SWAPPED)})


class BestOf:
    """Calls whichever candidate was the fastest on the arguments of the first call."""

    def __init__(self, makers: dict[tuple[Any, ...], Any]) -> None:
        self._makers = makers
        self._best: Call | None = None

    def __call__(self, *inputs: Tensor) -> Any:
        if self._best is None:
            self._best = self._fastest(inputs)
        return self._best(*inputs)

    def _fastest(self, inputs: Sequence[Tensor]) -> Call:
        wide = inputs[0].shape[0] >= SWAP_BELOW_M
        calls: list[Call] = []
        refusal = "no configuration"
        for config, make in self._makers.items():
            if wide and config in SWAPPED:
                continue
            call = make()
            try:
                call(*inputs)
            except Exception as error:  # some tiles refuse some shapes
                refusal = f"{type(error).__name__}: {error}"
                continue
            calls.append(call)
        if not calls:
            raise PeerUnavailableError(f"QuACK refuses this case: {refusal}")
        queued = [(call, PILOT_CALLS) for call in calls]
        rounds = [sample(queued, [inputs], inputs[0].device) for _ in range(PILOT_ROUNDS)]
        times = [statistics.median(values) for values in zip(*rounds, strict=True)]
        return calls[times.index(min(times))]
