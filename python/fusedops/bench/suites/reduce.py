"""Reductions against eager torch and torch.compile: `KIND/SHAPE_dimD`, 2 GiB of bf16 and small.

floor_us is the time to copy the bytes of input and result at the copy bandwidth of the same run.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fusedops.bench.suites.base import Call, Case, PeerUnavailableError, Selection, Suite, Work
from fusedops.bench.suites.linear import compiled

if TYPE_CHECKING:
    from collections.abc import Callable

Dim = int | tuple[int, ...] | None

# 2 GiB of bf16 each (1.5 GiB where three rows of 2^28).
LARGE: tuple[tuple[tuple[int, ...], tuple[Dim, ...]], ...] = (
    ((1 << 30,), (None,)),
    ((32768, 32768), (0, 1)),
    ((1 << 20, 1024), (0, 1)),
    ((1 << 24, 64), (0, 1)),
    ((1 << 26, 16), (0, 1)),
    ((1 << 28, 4), (0, 1)),
    ((1024, 1 << 20), (0, 1)),
    ((4, 1 << 28), (0, 1)),
    ((3, 1 << 28), (0, 1)),
    # odd lengths, a middle dimension, batch-norm statistics
    ((1 << 20, 1023), (0, 1)),
    ((1 << 26, 17), (0, 1)),
    ((1024, 1024, 1024), (1,)),
    ((256, 64, 256, 256), ((0, 2, 3),)),
)
OTHER_LARGE: tuple[tuple[int, ...], tuple[Dim, ...]] = ((32768, 32768), (None, 0, 1))
SMALL: tuple[tuple[tuple[int, ...], tuple[Dim, ...]], ...] = (
    ((1024,), (None,)),
    ((32768,), (None,)),
    ((128, 256), (0, 1)),
    ((4, 8192), (0, 1)),
    ((2048, 16), (0, 1)),
)
KINDS = (
    *("sum", "mean", "prod", "amax", "amin", "argmax", "argmin", "var", "std"),
    *("norm1", "norm2", "norminf", "logsumexp", "any", "all", "count_nonzero"),
)
NORMS = {"norm1": 1.0, "norm2": 2.0, "norminf": math.inf}


class ReduceSuite(Suite):
    name = "reduce"

    def cases(self, selection: Selection) -> list[Case]:
        if selection.shapes:
            return [
                reduce_case("sum", shape, dim)
                for shape in selection.shapes
                for dim in (None, *range(len(shape)))
            ]
        cases = [reduce_case("sum", shape, dim) for shape, dims in LARGE for dim in dims]
        cases.append(reduce_case("argmax", (1 << 30,), None))
        shape, dims = OTHER_LARGE
        cases += [reduce_case(kind, shape, dim) for kind in KINDS[1:] for dim in dims]
        cases += [
            reduce_case(kind, small, dim)
            for kind in ("sum", "amax", "argmax", "var")
            for small, dims in SMALL
            for dim in dims
        ]
        cases += [
            reduce_case("bias_grad", s, 0) for s in ((262144, 4096), (1 << 24, 64), (128, 256))
        ]
        return list(dict.fromkeys(cases))

    def make_inputs(
        self, case: Case, dtype: torch.dtype, pass_: str, device: torch.device
    ) -> tuple[Tensor, ...]:
        x = torch.randn(case["shape"], dtype=dtype, device=device)
        # A product of 2^30 normal numbers is 0 or infinite: this one stays near 1
        return (x.sign_(),) if case["kind"] == "prod" else (x,)

    def ours(self, case: Case, pass_: str) -> Call:
        import fusedops

        kind, dim = case["kind"], case["dim"]
        if kind == "bias_grad":
            return fusedops.bias_grad
        if kind in NORMS:
            return lambda x: fusedops.norm(x, NORMS[kind], dim)
        function: Callable[..., Any] = getattr(fusedops, kind)
        return lambda x: function(x, dim=dim)

    def peers(self, case: Case, pass_: str) -> tuple[str, ...]:
        return ("eager", "compile")

    def peer(self, name: str, case: Case, pass_: str, device: torch.device) -> Call:
        eager = eager_reduce(case["kind"], case["dim"])
        if name == "eager":
            return eager
        if name == "compile":
            return compiled(eager)
        raise PeerUnavailableError(f"the suite has no peer {name!r}")

    def work(self, case: Case, dtype: torch.dtype, pass_: str) -> Work:
        shape, dim = case["shape"], case["dim"]
        reduced = range(len(shape)) if dim is None else (dim,) if isinstance(dim, int) else dim
        outputs = math.prod(size for i, size in enumerate(shape) if i not in reduced)
        kind = case["kind"]
        wide = kind in ("argmax", "argmin", "count_nonzero")
        itemsize = 8 if wide else 1 if kind in ("any", "all") else dtype.itemsize
        return Work(math.prod(shape) * dtype.itemsize + outputs * itemsize, math.prod(shape))


def reduce_case(kind: str, shape: tuple[int, ...], dim: Dim) -> Case:
    dims = "all" if dim is None else "dim" + "_".join(str(dim).strip("()").split(", "))
    sizes = "x".join(str(size) for size in shape)
    return Case(f"{kind}/{sizes}_{dims}", {"kind": kind, "shape": shape, "dim": dim})


def eager_reduce(kind: str, dim: Dim) -> Call:
    if kind == "bias_grad":
        return lambda x: x.sum(0)
    if kind in NORMS:
        return lambda x: torch.linalg.vector_norm(x, NORMS[kind], dim)
    if kind == "logsumexp" and dim is None:
        return lambda x: torch.logsumexp(x, tuple(range(x.dim())))
    if kind == "amax" or kind == "amin":
        return lambda x: getattr(torch, kind)(x, () if dim is None else dim)
    function: Callable[..., Any] = getattr(torch, kind)
    return function if dim is None else lambda x: function(x, dim=dim)


SUITE = ReduceSuite
