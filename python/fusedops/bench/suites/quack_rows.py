"""QuACK's row kernels as peers; install_quack.sh and $FUSEDOPS_QUACK_SITE as in quack_peer."""

from __future__ import annotations

import os
import site

import torch

from fusedops.bench.suites.base import Call, PeerUnavailableError

EPS = 1e-5


def quack_rows(op: str, pass_: str) -> Call:
    """The op's call in QuACK; raises PeerUnavailableError."""
    if folder := os.environ.get("FUSEDOPS_QUACK_SITE"):
        site.addsitedir(folder)  # its .pth files count, as PYTHONPATH's would not
    try:
        from quack.cross_entropy import cross_entropy_bwd, cross_entropy_fwd
        from quack.rmsnorm import layernorm_fwd, rmsnorm_bwd, rmsnorm_fwd
        from quack.softmax import softmax_bwd, softmax_fwd
    except ImportError as error:
        raise PeerUnavailableError(f"QuACK is not installed: {error}") from error
    if not torch.cuda.is_available():
        raise PeerUnavailableError("QuACK needs a GPU")
    calls: dict[tuple[str, str], Call] = {
        ("softmax", "fwd"): softmax_fwd,
        ("softmax", "bwd"): softmax_bwd,
        ("layer_norm", "fwd"): lambda x, w, b: layernorm_fwd(x, w.float(), b.float(), EPS),
        ("rms_norm", "fwd"): lambda x, w: rmsnorm_fwd(x, w, eps=EPS)[0],
        ("rms_norm", "bwd"): lambda dy, x, w, rstd: rmsnorm_bwd(x, w, dy, rstd)[:2],
        ("rms_norm_residual", "fwd"): lambda x, w, r: rmsnorm_fwd(x, w, residual=r, eps=EPS)[:2],
        ("rms_norm_residual", "bwd"): lambda dy, dr, x, w, rstd: rmsnorm_bwd(
            x, w, dy, rstd, dresidual_out=dr
        )[:2],
        ("cross_entropy", "fwd"): lambda x, t: cross_entropy_fwd(x, t).mean(),
        ("cross_entropy", "bwd"): lambda dloss, x, t, lse, *_: cross_entropy_bwd(
            x, t, (dloss.float() / x.shape[0]).expand(x.shape[0]).contiguous(), lse
        ),
    }
    if (op, pass_) not in calls:
        raise PeerUnavailableError(f"QuACK has no {op} {pass_}")
    return calls[op, pass_]
