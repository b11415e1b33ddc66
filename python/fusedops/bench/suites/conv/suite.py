"""Convolutions with norm, residual and activation: layers of three networks, and ResNet-50.

`infer` cases use running statistics, or have none where the norm was folded into the weight ahead;
`step` cases use those of the batch, with every gradient. All is channels last; norms are float32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fusedops._timing.timing import Pace
from fusedops.bench.suites.base import Call, Case, PeerUnavailableError, Selection, Suite, Work
from fusedops.bench.suites.linear import compiled

from . import nets
from .cudnn_peer import cudnn_layer
from .layers import EPS, FOLDED, LAYERS, MOMENTUM, Layer, by_torch, make_inputs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, nn

IMAGES = 4  # that an error is measured on
WORST_ERROR = 1.1  # of eager's


class ConvSuite(Suite):
    name = "conv"
    shape = "NxCxHxOxKxS"
    passes: tuple[str, ...] = ("infer", "step")
    dtypes: tuple[str, ...] = ("bf16", "fp16", "fp32")
    pace = Pace(captured_us=20_000.0)  # a step of a whole model keeps no second one in memory

    def __init__(self) -> None:
        self._net: tuple[Any, nn.Module] | None = None

    def cases(self, selection: Selection) -> list[Case]:
        if selection.shapes:
            wanted = selection.activations or ("relu",)
            return [_layer(shape, a).case for shape in selection.shapes for a in wanted]
        layers = (*LAYERS, *(FOLDED if selection.pass_ == "infer" else ()))
        found = [layer.case for layer in layers]
        return [*found, nets.case(nets.BATCHES[selection.pass_])]

    def default_dtypes_of(self, pass_: str) -> tuple[str, ...]:
        return ("bf16", "fp16") if pass_ == "infer" else ("bf16",)

    def make_inputs(
        self, case: Case, dtype: torch.dtype, pass_: str, device: torch.device
    ) -> tuple[Tensor, ...]:
        if case["kind"] == "layer":
            return make_inputs(case["layer"], dtype, pass_, device)
        key = (dtype, device)
        if self._net is None or self._net[0] != key:
            self._net = key, nets.build(dtype, device)
        small = device.type == "cpu"
        return nets.make_inputs(2 if small else case["batch"], 96 if small else 224, dtype, device)

    def ours(self, case: Case, pass_: str) -> Call:
        if case["kind"] == "net":
            return nets.net_call(self._model(), "ours", pass_)
        return as_pass(ours_layer(case["layer"], pass_ == "step"), pass_)

    def peers(self, case: Case, pass_: str) -> tuple[str, ...]:
        fused = ("cudnn",) if case["kind"] == "layer" and pass_ == "infer" else ()
        return ("eager", "compile", *fused)

    def default_peers(self, pass_: str) -> tuple[str, ...]:
        return ("eager", "compile", "cudnn")

    def peer(self, name: str, case: Case, pass_: str, device: torch.device) -> Call:
        if name not in self.peers(case, pass_):
            raise PeerUnavailableError(f"the suite has no peer {name!r} of this case")
        if case["kind"] == "net":
            return nets.net_call(self._model(), name, pass_)
        layer: Layer = case["layer"]
        if name == "cudnn":
            return cudnn_layer(layer, pass_, device)
        training = pass_ == "step"
        if name == "compile":
            return as_pass(compiled(by_torch(layer, training, in_place=False)), pass_)
        return as_pass(by_torch(layer, training), pass_)

    def work(self, case: Case, dtype: torch.dtype, pass_: str) -> Work | None:
        return case["layer"].work(dtype, pass_) if case["kind"] == "layer" else None

    def tolerance(self, case: Case, dtype: str) -> float:
        """A step's gradients, and a model's last layer, may differ more than one product.

        torch rounds what is between norm, sum and activation; ours does not. So a value in a
        thousand is on the other side of ReLU's kink, and its gradient differs whole. What
        inference gives is held to eager's error besides.
        """
        half = {"bf16": 6e-2, "fp16": 3e-2}.get(dtype, 1e-3)
        return half if case["kind"] == "layer" else 0.1

    def errors(
        self, case: Case, pass_: str, inputs: Sequence[Tensor], results: dict[str, Any]
    ) -> dict[str, float]:
        """Inference on a few images, against float64: at most 1.1 x eager's error."""
        if case["kind"] != "layer" or pass_ != "infer":
            return {}
        images = (0, case["layer"].residual_at)  # x and residual: an image counts by itself
        wide = [
            t[:IMAGES].double() if i in images else t.double() for i, t in enumerate(inputs[:-2])
        ]
        with torch.no_grad():
            exact = by_torch(case["layer"], False, in_place=False)(*wide)
        found = {
            name: float((y[:IMAGES].double() - exact).norm() / exact.norm())
            for name, y in results.items()
        }
        if "eager" in found and not found["ours"] <= WORST_ERROR * found["eager"] + 1e-7:
            raise ValueError(f"relative error {found['ours']:.2e}, eager's {found['eager']:.2e}")
        return found

    def _model(self) -> nn.Module:
        if self._net is None:
            raise RuntimeError("conv: make_inputs builds the model that the calls are of")
        return self._net[1]


def _layer(shape: tuple[int, ...], activation: str) -> Layer:
    if len(shape) != 6:
        raise ValueError(f"conv: a shape is {ConvSuite.shape}; got {shape}")
    n, c, h, o, k, s = shape
    return Layer(n, c, h, o, k, s, activation=activation)


def ours_layer(layer: Layer, training: bool) -> Call:
    """Our op."""
    import fusedops

    def forward(
        x: Tensor, weight: Tensor, mean: Tensor, var: Tensor, scale: Tensor, shift: Tensor,
        residual: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        y: Tensor = fusedops.conv_bn_act(
            x, weight, None, mean, var, scale, shift, activation=layer.activation,
            residual=residual, stride=layer.stride, padding=layer.padding, groups=layer.groups,
            training=training, momentum=MOMENTUM, eps=EPS,
        )  # fmt: skip
        return y

    def folded(x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None = None) -> Tensor:
        y: Tensor = fusedops.conv_bn_act(
            x, weight, bias, activation=layer.activation, residual=residual, stride=layer.stride,
            padding=layer.padding, groups=layer.groups,
        )  # fmt: skip
        return y

    return folded if layer.folded else forward


def as_pass(forward: Call, pass_: str) -> Call:
    """`step` returns y and the gradients of what asks for one; its last input is dy."""

    def infer(*inputs: Tensor) -> Tensor:
        with torch.no_grad():
            y: Tensor = forward(*inputs[:-2])  # without scale and shift of the norm
        return y

    def step(*inputs: Tensor) -> tuple[Tensor, ...]:
        *operands, dy = inputs
        y = forward(*operands)
        learnt = [t for t in operands if t.requires_grad]
        return (y.detach(), *torch.autograd.grad(y, learnt, dy))

    return infer if pass_ == "infer" else step


SUITE = ConvSuite
