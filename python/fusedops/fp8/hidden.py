"""The hidden layer of MLPs in FP8: its gradients and its values, of one pass over what is there."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from .._core.fp8 import BLOCK, BLOCKS, FORMATS, NONE, PADDING, ceil_div
from .quantizer import Operand

if TYPE_CHECKING:
    from torch import Tensor

    from .functions import Numbers

_hidden_grads = torch.ops.fusedops._fp8_hidden_grads.default


class HiddenGrads(NamedTuple):
    """Gradients before the activation, of a gated MLP gate's and up's beside each other.

    rows (M, parts K) and columns (parts K, M) with `size` K; hidden_t is the transpose of what the
    second product read, and sums are those of the gradients' columns.
    """

    size: int
    rows: Operand
    columns: Operand
    hidden_t: Operand
    sums: Tensor

    def rows_of(self, part: int) -> Operand:
        """One part by rows."""
        width, blocks = ceil_div(self.size, PADDING) * PADDING, ceil_div(self.size, BLOCK)
        q = self.rows.q[:, part * width : (part + 1) * width]
        return Operand(q, self.rows.scale[part * blocks : (part + 1) * blocks], True)

    def columns_of(self, part: int) -> Operand:
        """One part by columns."""
        first, end = part * self.size, (part + 1) * self.size
        return Operand(self.columns.q[first:end], self.columns.scale[:, first:end], True)

    def sums_of(self, part: int) -> Tensor:
        """The sums of one part."""
        return self.sums[part * self.size : (part + 1) * self.size]


def takes_hidden_grads(how: Numbers) -> bool:
    """Whether one pass does: where each block has its scale."""
    return how.rows == BLOCKS


def hidden_grads(
    how: Numbers,
    dh: Tensor,
    saved: Tensor,
    factor: Tensor | None,
    code: int,
    rows: bool,
    columns: bool,
    hidden: bool,
    *,
    need_sums: bool,
    sums_fp32: bool,
) -> HiddenGrads:
    """From the gradient of the hidden values: what products read for dx, the weights' gradients and
    the biases'; the others are empty.
    """
    of_hidden = how.inputs_transposed if hidden else NONE
    q, scale, q_t, scale_t, h_t, h_scale, sums = _hidden_grads(
        dh, saved, factor, code, FORMATS.index(how.backward), rows, columns, of_hidden,
        how.power_of_two, need_sums, sums_fp32,
    )  # fmt: skip
    return HiddenGrads(
        dh.shape[1],
        Operand(q, scale, True),
        Operand(q_t, scale_t, True),
        Operand(h_t, h_scale, of_hidden == BLOCKS),
        sums,
    )
