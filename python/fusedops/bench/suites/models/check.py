"""Whether a contender computes what the model says, as near to it as eager does."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

TIMES_EAGER = 3.0  # the error against the exact result that a contender may have, in eager's
SMALL = 1e-3  # of the typical norm: gradients that are zero in theory are noise below it


class WrongModelError(Exception):
    """A contender's loss, output or gradients are not the model's: it gets no time."""


def worst_error(
    got: Mapping[str, Tensor],
    plain: Mapping[str, Tensor],
    exact: Mapping[str, Tensor],
    tolerance: float,
) -> float:
    """The largest relative error against `exact`; raises where it is not as eager's (`plain`)."""
    if got.keys() != plain.keys():
        missing = sorted(plain.keys() - got.keys()) or sorted(got.keys() - plain.keys())
        raise WrongModelError(f"gradients of {', '.join(missing[:3])} on one side only")
    typical = _typical_norm(exact)
    worst = 0.0
    for name, want in exact.items():
        if got[name].shape != want.shape:
            raise WrongModelError(f"{name}: expected {want.shape}; got {got[name].shape}")
        error = _error(got[name], want, typical)
        allowed = max(TIMES_EAGER * _error(plain[name], want, typical), tolerance)
        if not error <= allowed:
            raise WrongModelError(f"{name}: relative error {error:.1e} > {allowed:.1e}")
        worst = max(worst, error)
    return worst


def _error(got: Tensor, want: Tensor, typical: float) -> float:
    norm = float(torch.linalg.vector_norm(want))
    difference = float(torch.linalg.vector_norm(got.detach().to(want.dtype) - want))
    scale = max(norm, SMALL * typical)
    return difference / scale if scale > 0 else difference


def _typical_norm(results: Mapping[str, Tensor]) -> float:
    norms = [float(torch.linalg.vector_norm(t)) for name, t in results.items() if name != "loss"]
    return math.sqrt(sum(n * n for n in norms) / max(len(norms), 1))
