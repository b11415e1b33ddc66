"""What the FP8 suite compares with: torch's scaled products, torchao, and torch's own quantiser."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from fusedops.bench.suites.base import Call, Case, PeerUnavailableError
from fusedops.bench.suites.linear import compiled

if TYPE_CHECKING:
    from torch import Tensor

E4M3 = torch.float8_e4m3fn


def as_pass(forward: Call, pass_: str) -> Call:
    """`step` returns (y, gradients of every operand); the last input is dy."""
    if pass_ == "fwd":
        return lambda *inputs: forward(*inputs[:-1])

    def step(*inputs: Tensor) -> tuple[Any, ...]:
        *operands, dy = inputs
        y = forward(*operands)
        return (y.detach(), *torch.autograd.grad(y, operands, dy))

    return step


def scaled_mm(mode: str, device: torch.device) -> Call:
    """torch's product of the operands of a mode; both are K-major, as it wants them."""
    if device.type != "cuda":
        raise PeerUnavailableError("needs a GPU")
    kind = getattr(F, "ScalingType", None)
    if kind is None:
        raise PeerUnavailableError("needs torch.nn.functional.scaled_mm")
    recipes = {
        "tensor": (kind.TensorWise, kind.TensorWise),
        "row": (kind.RowWise, kind.RowWise),
        "block": (kind.BlockWise1x128, kind.BlockWise128x128),
    }[mode]
    first = {"block": 2, "row": 6, "tensor": 10}[mode]

    def call(*inputs: Tensor) -> Tensor:
        x8, w8, scale_x, scale_w = inputs[first : first + 4]
        if mode == "row":
            scale_w = scale_w.t()
        y: Tensor = F.scaled_mm(
            x8, w8.t(), scale_x, recipes[0], scale_w, recipes[1], output_dtype=torch.bfloat16
        )
        return y

    if mode != "block":
        return call

    def by_blocks(*inputs: Tensor) -> Tensor:
        # NOTE: its 128x128 scales lie with the blocks of K side by side, padded to 4.
        x8, w8, scale_x, scale_w = inputs[2:6]
        blocks = scale_w.shape[1]
        padded = F.pad(scale_w, (0, -blocks % 4)).t() if blocks % 4 else scale_w.t()
        y: Tensor = F.scaled_mm(
            x8, w8.t(), scale_x, recipes[0], padded, recipes[1], output_dtype=torch.bfloat16
        )
        return y

    return by_blocks


def torchao(case: Case, device: torch.device) -> Call:
    """torchao's float8 training, compiled, in its recipe of one scale for each row."""
    try:
        from torchao.float8 import (  # type: ignore[import-not-found]
            Float8LinearConfig,
            convert_to_float8_training,
        )
    except ImportError as error:
        raise PeerUnavailableError(f"torchao is not installed ({error})") from None
    if device.type != "cuda":
        raise PeerUnavailableError("needs a GPU")
    _, n, k = case["shape"]
    shapes = {"linear": ((k, n),), "mlp": ((k, n), (n, k)), "gated": ((k, n), (k, n), (n, k))}
    shapes["norm_gated"] = shapes["gated"]
    layers = [
        torch.nn.Linear(*s, bias=False, device=device, dtype=torch.bfloat16)
        for s in shapes[case["kind"]]
    ]
    model = torch.nn.ModuleList(layers)
    convert_to_float8_training(model, config=Float8LinearConfig.from_recipe_name("rowwise"))

    def layer(i: int, x: Tensor, weight: Tensor) -> Tensor:
        y: Tensor = torch.func.functional_call(model[i], {"weight": weight}, (x,))
        return y

    def forward(x: Tensor, *weights: Tensor) -> Tensor:
        if case["kind"] == "norm_gated":
            total, weights = x + weights[0], weights[1:]
            x, weights = F.rms_norm(total, (k,), weights[0], 1e-5), weights[1:]
            gate, up = layer(0, x, weights[0]), layer(1, x, weights[1])
            return total + layer(2, F.silu(gate) * up, weights[2])
        if case["kind"] == "linear":
            return layer(0, x, weights[0])
        if case["kind"] == "mlp":
            return layer(1, F.gelu(layer(0, x, weights[0]), approximate="tanh"), weights[1])
        return layer(2, F.silu(layer(0, x, weights[0])) * layer(1, x, weights[1]), weights[2])

    return as_pass(compiled(forward), "step")


def quantize_by_torch(x: Tensor) -> tuple[Tensor, ...]:
    """Rows by 1x128 and the transpose by 128x128, of sizes that 128 divides."""
    m, k = x.shape
    rows = x.float().view(m, k // 128, 128)
    maxima = rows.abs().amax(-1).clamp_min(2.0**-100)
    q = (rows * (torch.full_like(maxima, 448) / maxima)[..., None]).clamp(-448, 448).to(E4M3)
    tiles = x.float().view(m // 128, 128, k // 128, 128)
    of_tiles = tiles.abs().amax((1, 3)).clamp_min(2.0**-100)
    inverse = (torch.full_like(of_tiles, 448) / of_tiles)[:, None, :, None]
    q_t = (tiles * inverse).clamp(-448, 448).to(E4M3).view(m, k).t().contiguous()
    scale = (maxima / 448).t().contiguous()
    return q.view(m, k), scale, q_t, (of_tiles / 448).t().contiguous()


def by_torch(case: Case) -> Call:
    """torch's norm of a case, where it has one, and its quantiser behind it."""
    if case["kind"] == "quantize":
        return quantize_by_torch

    def call(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        shape = (x.shape[-1],)
        if case["kind"] == "rms_norm":
            return quantize_by_torch(F.rms_norm(x, shape, weight, 1e-5))
        return quantize_by_torch(F.layer_norm(x, shape, weight, bias, 1e-5))

    return call
