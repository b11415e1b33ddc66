"""fp32 products at both of torch's precision settings, with their error against float64."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fusedops.bench.suites.linear import LinearSuite, eager_linear, linear_case

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fusedops.bench.suites.base import Case, Selection

SHAPES = ((4096, 4096, 4096), (8192, 4096, 1024), (2048, 2048, 2048), (512, 512, 512))


class Fp32Suite(LinearSuite):
    name = "fp32"
    passes: tuple[str, ...] = ("fwd",)
    dtypes: tuple[str, ...] = ("fp32_highest", "fp32_high")
    default_dtypes = dtypes

    def default_dtypes_of(self, pass_: str) -> tuple[str, ...]:
        return self.default_dtypes

    def cases(self, selection: Selection) -> list[Case]:
        activations = selection.activations or ("relu",)
        shapes = selection.shapes or SHAPES
        return [linear_case(shape, a) for shape in shapes for a in activations]

    def default_peers(self, pass_: str) -> tuple[str, ...]:
        return ("eager",)

    @contextlib.contextmanager
    def _precision(self, setting: str) -> Iterator[None]:
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision(setting)
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)

    def context(self, dtype_label: str) -> contextlib.AbstractContextManager[None]:
        return self._precision(dtype_label.removeprefix("fp32_"))

    def errors(
        self, case: Case, pass_: str, inputs: Sequence[Tensor], results: dict[str, Any]
    ) -> dict[str, float]:
        exact = eager_linear(case["activation"])(*(t.double() for t in inputs))
        norm = torch.linalg.vector_norm(exact)
        return {
            name: float(torch.linalg.vector_norm(result.double() - exact) / norm)
            for name, result in results.items()
        }


SUITE = Fp32Suite
