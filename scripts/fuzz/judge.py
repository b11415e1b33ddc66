"""Whether a result is right: values against float64, layouts and gradients, and good errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from draw import Case, Draw

# Our error may be TIMES that of the definition in the operands' own dtype, and so many ulp of the
# largest result, or of the terms that are summed.
TIMES = 3.0
ULP = {torch.float16: 2.0, torch.bfloat16: 2.0, torch.float32: 32.0, torch.float64: 4096.0}
RAISED = (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError, OverflowError)
HOSTILE = (None, "nonsense", 1.5, -1, 1 << 62, float("nan"), True, torch.float32)


class Wrong(Exception):  # noqa: N818
    """A result that no rounding explains."""


def as_tensors(value: Any) -> list[Tensor]:
    found = [value] if isinstance(value, Tensor) else list(value)
    return [t for t in found if isinstance(t, Tensor)]


def wide(x: Tensor) -> Tensor:
    return x.detach().double() if x.is_floating_point() else x


def judge(case: Case, draw: Draw) -> None:
    """Raises Wrong, or what ours raises."""
    before = [t.clone() for t in case.tensors]
    got = as_tensors(case.ours(*case.tensors))
    for i, (x, copy) in enumerate(zip(case.tensors, before, strict=True)):
        if not same_bits(x, copy):
            raise Wrong(f"tensor {i} was changed")
    again = as_tensors(case.ours(*case.tensors))
    exact = as_tensors(case.exact(*map(wide, case.tensors)))
    own = _own(case)
    if len(got) != len(exact):
        raise Wrong(f"{len(got)} results, the definition has {len(exact)}")
    scale = case.scale(*map(wide, case.tensors)) if case.scale else None
    for i, (g, a, e) in enumerate(zip(got, again, exact, strict=True)):
        close(g, e, own[i] if own else None, scale, f"result {i}")
        if not same_bits(g, a):
            raise Wrong(f"result {i}: two runs differ")
    if case.differentiable and all(t.isfinite().all() for t in case.tensors):
        _judge_gradients(case, draw, got)


def _own(case: Case) -> list[Tensor] | None:
    """The definition in the operands' dtypes: None where torch has no kernel for them."""
    try:
        return as_tensors(case.exact(*case.tensors))
    except RuntimeError:
        return None


def _judge_gradients(case: Case, draw: Draw, got: list[Tensor]) -> None:
    behind = [torch.randn(g.shape, generator=draw.generator).to(g) for g in got]

    def gradients(call: Any, tensors: list[Tensor]) -> list[Tensor]:
        leaves = [t.detach().requires_grad_(t.is_floating_point()) for t in tensors]
        wanted = [t for t in leaves if t.requires_grad]
        results = as_tensors(call(*leaves))
        pairs = [
            (r, b.to(r.dtype)) for r, b in zip(results, behind, strict=True) if r.requires_grad
        ]
        found = torch.autograd.grad(
            [r for r, _ in pairs], wanted, [b for _, b in pairs], allow_unused=True
        )
        return [torch.zeros_like(t) if g is None else g for g, t in zip(found, wanted, strict=True)]

    ours = gradients(case.ours, case.tensors)
    exact = gradients(case.exact, [wide(t) for t in case.tensors])
    own = gradients(case.exact, case.tensors)
    for i, (g, e, o) in enumerate(zip(ours, exact, own, strict=True)):
        terms = e.abs().max() + 1 if e.numel() else None  # of behind, which is about 1
        close(g, e, o, terms, f"gradient {i}")


def close(got: Tensor, exact: Tensor, own: Tensor | None, scale: Tensor | None, what: str) -> None:
    """Holds a result to the rule at TIMES."""
    if got.shape != exact.shape:
        raise Wrong(f"{what}: shape {tuple(got.shape)}, expected {tuple(exact.shape)}")
    if got.numel() == 0:
        return
    if not got.is_floating_point():
        if not torch.equal(got.long(), exact.long()):
            raise Wrong(f"{what}: {(got.long() != exact.long()).sum().item()} entries differ")
        return
    info = torch.finfo(got.dtype)
    rounded = exact.to(got.dtype)
    finite = rounded.isfinite() & (exact.abs() < 0.99 * info.max)
    odd = ~finite & ~(exact.isfinite() & (exact.abs() >= 0.99 * info.max))
    if not same_bits(torch.where(odd, got, 0), torch.where(odd, rounded, 0)):
        raise Wrong(f"{what}: NaN or infinities differ")
    here = torch.where(finite, got.double(), 0.0)
    there = torch.where(finite, exact, 0.0)
    lost = finite & ~got.isfinite()
    if own is not None:
        lost &= own.isfinite()
    if lost.any():
        raise Wrong(f"{what}: {lost.sum().item()} entries are not finite")
    error = (here - there).abs().nan_to_num(0, 0)
    top = there.abs().max()
    if scale is not None and scale.numel():
        top = torch.maximum(scale.nan_to_num(0, 0).max(), top)
    allowed = ULP[got.dtype] * info.eps * top.item() + info.smallest_normal
    if own is not None:
        theirs = torch.where(finite & own.isfinite(), own.double() - exact, 0.0).abs()
        allowed += TIMES * theirs.max().item()
    if error.max().item() > allowed:
        raise Wrong(f"{what}: error {error.max().item():.3e}, allowed {allowed:.3e}")


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Equal, NaN to NaN."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return torch.equal(a.nan_to_num(12345.0, 1e9, -1e9), b.nan_to_num(12345.0, 1e9, -1e9)) and (
        torch.equal(a.isnan(), b.isnan()) if a.is_floating_point() else True
    )


def judge_hostile(case: Case, draw: Draw) -> None:
    """One argument made wrong: a good error or a good result, and the next call works."""
    tensors: list[Any] = list(case.tensors)
    at = draw.random.randrange(len(tensors))
    kind = draw.pick(("value", "dtype", "shape", "meta", "rank"))
    x = tensors[at]
    if kind == "value":
        tensors[at] = draw.pick(HOSTILE)
    elif kind == "dtype":
        tensors[at] = x.to(draw.pick((torch.int32, torch.bool, torch.complex64, torch.uint8)))
    elif kind == "shape":
        tensors[at] = x.new_zeros([n + 1 for n in x.shape])
    elif kind == "meta":
        tensors[at] = x.to("meta")
    else:
        tensors[at] = x.unsqueeze(0) if draw.chance(0.5) else x.flatten()
    draw.facts.append(f"hostile {kind} of tensor {at}")
    try:
        case.ours(*tensors)
    except RAISED as error:
        text = str(error)
        if not text.strip() or "INTERNAL ASSERT" in text:
            raise Wrong(f"a bad message: {type(error).__name__}: {text[:200]!r}") from None
    judge(case, draw)
