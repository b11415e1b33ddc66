"""autograd.Functions around the mlp ops: entered only when some input needs a gradient.

Between forward and backward live the inputs and one tensor of the hidden size: the pre-activation
(two of them, gate and up, in a gated MLP), or the activation's output where its derivative and the
weight gradient need no more (relu, sigmoid, tanh), or nothing with recompute. Backward is two ops,
so that this tensor is freed before the second one allocates dx.

With create_graph=True backward is composed of differentiable torch functions, from the inputs.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import _C  # noqa: F401  (registers torch.ops.fusedops)
from .._core.activation import SAVES_PREACT
from .autocast import cast_weight
from .compose import activate, no_autocast
from .main_grad import accumulate, deliver, delivered, main_grad_owner, target
from .shared import _eager_apply, is_batched

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_ops = torch.ops.fusedops
_linear = _ops.linear.default
_linear_backward = _ops.linear_backward.default
_mlp_forward = _ops.mlp_forward.default
_mlp_backward = _ops.mlp_backward.default
_mlp_backward_in_place = _ops.mlp_backward_.default
_gated_linear = _ops.gated_linear.default
_gated_mlp_forward = _ops.gated_mlp_forward.default
_gated_mlp_backward = _ops.gated_mlp_backward.default
_gated_mlp_backward_in_place = _ops.gated_mlp_backward_.default
_gated_input_backward = _ops.gated_input_backward.default


# ---- composed of torch functions ----


def compose_mlp(x: Tensor, w1: Tensor, b1: Tensor | None, w2: Tensor, code: int) -> Tensor:
    """act(x @ w1.T + b1) @ w2.T by torch."""
    return F.linear(activate(F.linear(x, w1, b1), code), w2)


def compose_gated(
    x: Tensor,
    w_gate: Tensor,
    w_up: Tensor | None,
    b_gate: Tensor | None,
    b_up: Tensor | None,
    w_down: Tensor,
    code: int,
) -> Tensor:
    """(act(gate) * up) @ w_down.T by torch."""
    return F.linear(gated_hidden(x, w_gate, w_up, b_gate, b_up, code), w_down)


def gated_hidden(
    x: Tensor,
    w_gate: Tensor,
    w_up: Tensor | None,
    b_gate: Tensor | None,
    b_up: Tensor | None,
    code: int,
) -> Tensor:
    """act(gate) * up by torch."""
    gate = F.linear(x, w_gate, b_gate)
    if w_up is None:
        gate, up = gate.chunk(2, dim=-1)
    else:
        up = F.linear(x, w_up, b_up)
    return activate(gate, code) * up


def _differentiable_grads(
    compose: Callable[..., Tensor],
    inputs: Sequence[Tensor | None],
    needs: Sequence[bool],
    dy: Tensor,
) -> list[Tensor | None]:
    """Gradients of compose(*inputs) that can be differentiated again."""
    with torch.enable_grad(), no_autocast(dy):
        # NOTE: aliases, since the gradient of one input must not run through another's history.
        aliases = [None if t is None else t.view_as(t) for t in inputs]
        y = compose(*(None if t is None else t.to(dy.dtype) for t in aliases))
        wanted = [t for t, need in zip(aliases, needs, strict=True) if need and t is not None]
        grads = iter(torch.autograd.grad(y, wanted, dy, create_graph=True) if wanted else ())
    return [next(grads) if need else None for need in needs]


def _sum_rows(dy: Tensor) -> Tensor:
    return dy.sum(tuple(range(dy.ndim - 1))) if dy.ndim > 1 else dy.clone()


def _cast_or_none(tensor: Tensor | None, compute: torch.dtype | None) -> Any:
    return tensor if tensor is None or compute is None else cast_weight(tensor, compute)


def _master(weight: Tensor, used: Tensor) -> Tensor | None:
    """The weight behind its cast, saved for second derivatives; a parameter is alive anyway."""
    return None if used is weight else weight


def _release(ctx: Any) -> None:
    """Drop what forward saved, unless the graph is kept: only the caller's references remain."""
    if not torch.compiler.is_compiling():
        ctx.maybe_clear_saved_tensors()


# NOTE: torch's own compiled backward decides alike whether it may reuse a saved buffer.
_keep_graph = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", lambda: True)
_saved_tensors_hooks = getattr(
    torch._C._autograd, "_top_saved_tensors_default_hooks", lambda _: (None, None)
)


def _state(tensor: Tensor) -> tuple[int, int]:
    return tensor.untyped_storage()._cdata, tensor._version


def _ours_alone(saved: Tensor) -> tuple[int, int] | None:
    """By what backward knows `saved` again; None where it is not forward's own: a hook takes it,
    or it is no plain tensor, whose memory is another's.
    """
    if torch.compiler.is_compiling() or _saved_tensors_hooks(True) is not None:
        return None
    if type(saved) is not Tensor:
        return None
    return _state(saved)


def _may_overwrite(saved: Tensor | None, ours: tuple[int, int] | None, dy: Tensor) -> bool:
    """Whether backward owns what forward saved, and runs for the last time and once."""
    if torch.compiler.is_compiling() or type(dy) is not Tensor or is_batched(dy):
        return False
    return saved is None or (ours == _state(saved) and not _keep_graph())


# ---- mlp ----


class MLPFunction(torch.autograd.Function):
    """(x, w1, b1, w2, b2, residual, code, recompute, allow_tf32, compute) -> y.

    compute is the autocast dtype or None; weights and biases are cast here, so that the gradients
    of fp32 master weights leave the kernels in fp32.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        w1: Tensor,
        b1: Tensor | None,
        w2: Tensor,
        b2: Tensor | None,
        residual: Tensor | None,
        code: int,
        recompute: bool,
        allow_tf32: bool,
        compute: torch.dtype | None,
    ) -> Tensor:
        first, bias1, second, bias2 = w1, b1, w2, b2
        if compute is not None:
            first, bias1, second, bias2 = (_cast_or_none(t, compute) for t in (w1, b1, w2, b2))
        y, saved = _mlp_forward(
            x, first, bias1, second, bias2, residual, code, not recompute, allow_tf32
        )
        masters = _master(w1, first), _master(w2, second)
        ctx.save_for_backward(x, first, b1, second, None if recompute else saved, *masters)
        ctx.owners = main_grad_owner("mlp", w1), main_grad_owner("mlp", w2)
        ctx.options = code, allow_tf32, None if recompute else _ours_alone(saved)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, w1, b1, w2, saved, master1, master2 = ctx.saved_tensors
        code, allow_tf32, ours = ctx.options
        need_x, need_w1, need_b1, need_w2, need_b2, need_residual = ctx.needs_input_grad[:6]
        dresidual = dy if need_residual else None
        if torch.is_grad_enabled():
            weights = w1 if master1 is None else master1, w2 if master2 is None else master2
            dx, dw1, db1, dw2 = _differentiable_grads(
                functools.partial(compose_mlp, code=code),
                (x, weights[0], b1, weights[1]),
                (need_x, need_w1, need_b1, need_w2),
                dy,
            )
            db2 = _sum_rows(dy) if need_b2 else None
            return dx, dw1, db1, dw2, db2, dresidual, None, None, None, None
        owner1, owner2 = ctx.owners
        owner1, owner2 = owner1 if need_w1 else None, owner2 if need_w2 else None
        fp32_1 = master1 is not None and master1.dtype is torch.float32
        fp32_2 = master2 is not None and master2.dtype is torch.float32
        _release(ctx)
        owned = _may_overwrite(saved, ours, dy)
        if saved is None:
            bias = None if b1 is None else b1.to(x.dtype)
            saved = _linear(x, w1, bias, 0 if SAVES_PREACT[code] else code, allow_tf32)
        need_dz = need_x or need_w1
        flags = (code, need_dz, need_b1, need_w2, need_b2)
        if owned:
            into = (None, False) if owner2 is None else target(owner2)
            dz, db1, dw2, db2 = _mlp_backward_in_place(
                dy, saved, w2, *into, *flags, fp32_2, allow_tf32
            )
            if owner2 is not None:
                dw2 = delivered(owner2)
        else:
            fp32 = fp32_2 or owner2 is not None
            dz, db1, dw2, db2 = _mlp_backward(dy, saved, w2, *flags, fp32, allow_tf32)
            if owner2 is not None:
                dw2 = deliver("mlp", owner2, dw2)
        del saved
        dx = dw1 = None
        if need_dz:
            dx, dw1, _ = _linear_backward(
                dz, x, w1, None, 0, need_x, need_w1 and owner1 is None, False, fp32_1, allow_tf32
            )
            if owner1 is not None:
                dw1 = accumulate(owner1, dz, x, allow_tf32, again=owner1 is owner2)
        return (
            dx if need_x else None,
            dw1 if need_w1 else None,
            db1 if need_b1 else None,
            dw2 if need_w2 else None,
            db2 if need_b2 else None,
            dresidual,
            None,
            None,
            None,
            None,
        )


# ---- gated_mlp ----


class GatedMLPFunction(torch.autograd.Function):
    """(x, w_gate, w_up, b_gate, b_up, w_down, b_down, residual, code, ...) -> y, as MLPFunction."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        w_gate: Tensor,
        w_up: Tensor | None,
        b_gate: Tensor | None,
        b_up: Tensor | None,
        w_down: Tensor,
        b_down: Tensor | None,
        residual: Tensor | None,
        code: int,
        recompute: bool,
        allow_tf32: bool,
        compute: torch.dtype | None,
    ) -> Tensor:
        gate, up, down, biases = w_gate, w_up, w_down, [b_gate, b_up, b_down]
        if compute is not None:
            gate, up, down, *biases = (
                _cast_or_none(t, compute) for t in (w_gate, w_up, w_down, *biases)
            )
        y, saved = _gated_mlp_forward(
            x, gate, up, *biases[:2], down, biases[2], residual, code, not recompute, allow_tf32
        )
        ctx.save_for_backward(
            x,
            gate,
            up,
            down,
            b_gate,
            b_up,
            None if recompute else saved,
            _master(w_gate, gate),
            None if w_up is None else _master(w_up, up),
            _master(w_down, down),
        )
        ctx.owners = [
            None if w is None else main_grad_owner("gated_mlp", w) for w in (w_gate, w_up, w_down)
        ]
        ctx.options = code, allow_tf32, None if recompute else _ours_alone(saved)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, gate, up, down, b_gate, b_up, saved, *masters = ctx.saved_tensors
        code, allow_tf32, ours = ctx.options
        needs = ctx.needs_input_grad[:8]
        need_x, need_gate, need_up, need_bg, need_bu, need_down, need_bd, need_residual = needs
        dresidual = dy if need_residual else None
        if torch.is_grad_enabled():
            gate, up, down = (
                w if m is None else m for w, m in zip((gate, up, down), masters, strict=True)
            )
            grads = _differentiable_grads(
                functools.partial(compose_gated, code=code),
                (x, gate, up, b_gate, b_up, down),
                needs[:6],
                dy,
            )
            db_down = _sum_rows(dy) if need_bd else None
            return *grads, db_down, dresidual, None, None, None, None
        needed = need_gate, need_up, need_down
        owners = [o if need else None for o, need in zip(ctx.owners, needed, strict=True)]
        fp32 = [m is not None and m.dtype is torch.float32 for m in masters]
        _release(ctx)
        owned = _may_overwrite(saved, ours, dy)
        if saved is None:
            biases = [None if b is None else b.to(x.dtype) for b in (b_gate, b_up)]
            saved = _gated_linear(x, gate, up, *biases, allow_tf32)
        packed = up is None
        need_dz, need_dbias = need_x or need_gate or need_up, need_bg or need_bu
        wanted = need_dz, need_dbias, need_down, need_bd
        dz, dbias, ddown, db_down = _gated_hidden_grads(
            dy, saved, down, owners[2], code, packed, owned, wanted, fp32[2], allow_tf32
        )
        del saved
        dx = dgate = dup = None
        if need_dz:
            dx, dgate, dup = _gated_weight_grads(
                dz, x, gate, up, needs, owners, fp32[0] or fp32[1], allow_tf32
            )
        dbg, dbu = _unpacked(dbias, packed, need_bg, need_bu)
        if not need_down:
            ddown = None
        if not need_bd:
            db_down = None
        return dx, dgate, dup, dbg, dbu, ddown, db_down, dresidual, None, None, None, None


def _gated_hidden_grads(
    dy: Tensor,
    saved: Tensor,
    down: Tensor,
    owner: Tensor | None,
    code: int,
    packed: bool,
    owned: bool,
    wanted: tuple[bool, bool, bool, bool],
    fp32: bool,
    allow_tf32: bool,
) -> tuple[Tensor, Tensor, Any, Any]:
    """dz and dbias of gate and up, ddown and its bias: back to the pre-activations.

    dz takes the place of `saved` where that is `owned`; ddown goes to its owner's main_grad.
    """
    need_dz, need_dbias, need_down, need_bd = wanted
    if owned and (need_dz or need_dbias):
        into = (None, False) if owner is None else target(owner)
        options = (code, packed, need_dbias, need_down, need_bd, fp32, allow_tf32)
        dbias, ddown, db_down = _gated_mlp_backward_in_place(dy, saved, down, *into, *options)
        return saved, dbias, ddown if owner is None else delivered(owner), db_down
    flags = (code, packed, *wanted, fp32 or owner is not None, allow_tf32)
    dz, dbias, ddown, db_down = _gated_mlp_backward(dy, saved, down, *flags)
    return dz, dbias, ddown if owner is None else deliver("gated_mlp", owner, ddown), db_down


def _gated_weight_grads(
    dz: Tensor,
    x: Tensor,
    gate: Tensor,
    up: Tensor | None,
    needs: Sequence[bool],
    owners: Sequence[Tensor | None],
    fp32: bool,
    allow_tf32: bool,
) -> tuple[Any, Any, Any]:
    """dx, dgate and dup of dz; those of weights that have an owner go to its main_grad."""
    need_x, need_gate, need_up = needs[:3]
    owner_gate, owner_up, owner_down = owners
    own = need_gate and owner_gate is None, need_up and owner_up is None
    dx, dgate, dup = _gated_input_backward(dz, x, gate, up, need_x, *own, fp32, allow_tf32)
    if owner_gate is not None and up is None:
        dgate = accumulate(owner_gate, dz.flatten(-2), x, allow_tf32)
    elif owner_gate is not None:
        dgate = accumulate(owner_gate, dz[0], x, allow_tf32, owner_gate is owner_down)
    if owner_up is not None:
        again = owner_up is owner_down or owner_up is owner_gate
        dup = accumulate(owner_up, dz[1], x, allow_tf32, again)
    return dx if need_x else None, dgate if need_gate else None, dup if need_up else None


def _unpacked(
    dbias: Tensor, packed: bool, need_gate: bool, need_up: bool
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of the biases of gate (or of both, packed) and up."""
    if packed:
        return dbias.view(-1) if need_gate else None, None
    return dbias[0] if need_gate else None, dbias[1] if need_up else None


mlp_eager = _eager_apply(MLPFunction)
gated_mlp_eager = _eager_apply(GatedMLPFunction)
