"""cuDNN's fused kernels for convolution, scale, bias, sum and activation, through its frontend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fusedops.bench.suites.base import Call, PeerUnavailableError

if TYPE_CHECKING:
    from torch import Tensor

    from .layers import Layer

_ACTIVATIONS = {"none": "", "relu": "relu", "silu": "swish"}


class _Graph:
    """One graph of a layer, planned for its shapes."""

    def __init__(self, cudnn: Any, layer: Layer, inputs: tuple[Tensor, ...]) -> None:
        x, weight, residual = (
            inputs[0],
            inputs[1],
            inputs[layer.residual_at] if layer.residual else None,
        )
        kinds = {torch.bfloat16: "BFLOAT16", torch.float16: "HALF", torch.float32: "FLOAT"}
        wide, dtype = cudnn.data_type.FLOAT, getattr(cudnn.data_type, kinds[x.dtype])
        self.cudnn, self.handle = cudnn, cudnn.create_handle()
        graph = cudnn.pygraph(
            handle=self.handle,
            io_data_type=dtype,
            intermediate_data_type=wide,
            compute_data_type=wide,
        )

        def tensor(name: str, shape: Any, stride: Any, kind: Any) -> Any:
            return graph.tensor(name=name, dim=[*shape], stride=[*stride], data_type=kind)

        self.x = tensor("x", x.shape, x.stride(), dtype)
        self.weight = tensor("weight", weight.shape, weight.stride(), dtype)
        vector = ((1, layer.out, 1, 1), (layer.out, 1, layer.out, layer.out), wide)
        self.scale = None if layer.folded else tensor("scale", *vector)
        self.shift = tensor("shift", *vector)
        both, ones = [layer.padding] * 2, [1, 1]
        value = graph.conv_fprop(
            image=self.x, weight=self.weight, padding=both, stride=[layer.stride] * 2, dilation=ones
        )
        if self.scale is not None:
            value = graph.mul(a=value, b=self.scale)
        value = graph.add(a=value, b=self.shift)
        self.residual, self.residual_at = None, layer.residual_at
        if residual is not None:
            self.residual = tensor("residual", residual.shape, residual.stride(), dtype)
            value = graph.add(a=value, b=self.residual)
        if name := _ACTIVATIONS[layer.activation]:
            value = getattr(graph, name)(input=value)
        self.y = value
        self.shape = (layer.batch, layer.out_side, layer.out_side, layer.out)
        n, h, w, c = self.shape
        value.set_output(True).set_data_type(dtype)
        value.set_dim([n, c, h, w]).set_stride([h * w * c, 1, w * c, c])
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        graph.check_support()
        graph.build_plans()
        size = graph.get_workspace_size()
        self.workspace = torch.empty(max(size, 1), dtype=torch.uint8, device=x.device)
        self.graph = graph

    def __call__(self, inputs: tuple[Tensor, ...]) -> Tensor:
        x, (scale, shift) = inputs[0], inputs[-2:]
        y = torch.empty(self.shape, dtype=x.dtype, device=x.device).permute(0, 3, 1, 2)
        pack = {self.x: x, self.weight: inputs[1], self.shift: shift, self.y: y}
        if self.scale is not None:
            pack[self.scale] = scale
        if self.residual is not None:
            pack[self.residual] = inputs[self.residual_at]
        stream = torch.cuda.current_stream().cuda_stream
        self.cudnn.set_stream(handle=self.handle, stream=stream)
        self.graph.execute(pack, self.workspace, handle=self.handle)
        return y


def cudnn_layer(layer: Layer, pass_: str, device: torch.device) -> Call:
    """Inference by one graph; scale (not of a folded norm) and shift are among the inputs.

    Raises:
        PeerUnavailableError: The frontend is not installed, or has no graph for the layer.
    """
    if pass_ != "infer":
        raise PeerUnavailableError("cuDNN's graphs of a training step are not put together here")
    if device.type != "cuda":
        raise PeerUnavailableError("needs a GPU")
    if layer.activation not in _ACTIVATIONS:
        raise PeerUnavailableError(f"has no {layer.activation}")
    try:
        import cudnn  # type: ignore[import-not-found]
    except ImportError as error:
        raise PeerUnavailableError(f"nvidia-cudnn-frontend is not installed ({error})") from None
    planned: list[_Graph] = []

    def call(*inputs: Tensor) -> Tensor:
        if not planned:
            planned.append(_Graph(cudnn, layer, inputs))
        return planned[0](inputs)

    return call
