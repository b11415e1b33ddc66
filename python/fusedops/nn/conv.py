"""ConvBNAct: a convolution, its batch norm, a residual and an activation as one module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .._autograd.compose import activate
from .._core.activation import activation_code
from . import conv_call
from .activation import activation_name

if TYPE_CHECKING:
    from collections.abc import Sequence

_CONVS: tuple[Any, ...] = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_NORMS: tuple[Any, ...] = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class ConvBNAct(torch.nn.Module):
    """``activation(batch_norm(conv(x)) + residual)`` as `fusedops.conv_bn_act` runs it.

    Its two submodules are those of torch.nn, ``conv`` and ``bn``: parameters, initialisation,
    running statistics, modes and state dicts are theirs, and
    ``nn.SyncBatchNorm.convert_sync_batchnorm`` converts the norm, whose statistics are those of all
    its processes in the op, too. Each call asks them: a frozen norm (``module.bn.eval()``) uses its
    running statistics in a model that trains, and a momentum of None makes them the plain mean of
    all batches. The modules themselves run, one after the other, where one has hooks or was
    replaced by another kind, for an x without a batch, and under torch.compile.

    Args:
        in_channels: Channels C of the input.
        out_channels: Channels O of the output.
        kernel_size: Kernel size of the convolution, one number or one for each dim, and so on.
        stride: As nn.Conv2d takes it.
        padding: As nn.Conv2d takes it; numbers, "valid" or "same".
        dilation: As nn.Conv2d takes it.
        groups: As nn.Conv2d takes it; as many as channels for a depthwise convolution.
        bias: Whether the convolution has a bias, which the norm would take back.
        padding_mode: "zeros" is part of the op; "reflect", "replicate" and "circular" are a pass of
            torch before it.
        activation: As in `fusedops.linear`.
        dims: 1, 2 or 3: of the images, without batch and channels.
        eps: Epsilon of the norm.
        momentum: Momentum of the norm; None: a plain mean.
        affine: Whether the norm has a weight and a bias.
        track_running_stats: Whether the norm keeps running statistics.
        device: Where the parameters are made.
        dtype: Dtype of the parameters.

    Raises:
        ValueError: The activation is unknown, or dims is none of 1, 2 and 3.

    Shape:
        Input (N, C, H, W), residual and output (N, O, H', W'); likewise with one dim or three.
        Memory in ``torch.channels_last`` is the fast one.

    Example:
        >>> layer = fusedops.nn.ConvBNAct(64, 256, 1, activation="relu")
        >>> y = layer(x, residual)
    """

    __module__ = "fusedops.nn"  # what pickles name

    activation: str | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] | str = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        bias: bool = False,
        padding_mode: str = "zeros",
        *,
        activation: str | None = "relu",
        dims: int = 2,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        activation_code(activation, op="fusedops.nn.ConvBNAct")
        if dims not in (1, 2, 3):
            raise ValueError(f"ConvBNAct: dims must be 1, 2 or 3; got {dims!r}")
        super().__init__()
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.conv = _CONVS[dims - 1](
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias,
            padding_mode, **factory,
        )  # fmt: skip
        self.bn = _NORMS[dims - 1](
            out_channels, eps, momentum, affine, track_running_stats, **factory
        )
        self.activation = activation

    @classmethod
    def from_torch(cls, *modules: nn.Module, activation: str | None = None) -> ConvBNAct:
        """A ConvBNAct around modules that exist: the same objects, with their parameters.

        Args:
            *modules: A convolution and a batch norm of torch.nn, maybe an activation behind them,
                or one nn.Sequential of these.
            activation: As in `fusedops.linear`; None: that of the third module, or none.

        Raises:
            TypeError: A module is of another kind.
            ValueError: The widths of the two differ.

        Example:
            >>> layer = fusedops.nn.ConvBNAct.from_torch(block.conv1, block.bn1, block.relu)
        """
        if len(modules) == 1 and isinstance(modules[0], nn.Sequential):
            modules = tuple(modules[0])
        names = ", ".join(type(m).__name__ for m in modules)
        if len(modules) not in (2, 3) or not isinstance(modules[0], _CONVS):
            raise TypeError(
                "ConvBNAct.from_torch: expected a convolution, a batch norm and maybe an "
                f"activation; got {names}"
            )
        conv: Any = modules[0]
        norm: Any = modules[1]
        if not isinstance(modules[1], (*_NORMS, nn.SyncBatchNorm)):
            raise TypeError(f"ConvBNAct.from_torch: expected a batch norm; got {names}")
        if norm.num_features != conv.out_channels:
            raise ValueError(
                f"ConvBNAct.from_torch: the norm must have {conv.out_channels} channels, as the "
                f"convolution; got {norm.num_features}"
            )
        if len(modules) == 3 and activation is None:
            activation = _activation_of(modules[2])
        activation_code(activation, op="fusedops.nn.ConvBNAct")
        made = cls.__new__(cls)
        nn.Module.__init__(made)
        made.conv, made.bn, made.activation = conv, norm, activation
        made.training = conv.training
        return made

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Apply the layer to x (N, C, ...), with a residual (N, O, ...) before the activation."""
        name = self.activation or "none"
        conv, norm = self.conv, self.bn
        if torch.compiler.is_dynamo_compiling():
            return self._modules_by_themselves(x, residual)
        dims = conv_call.dims_of(conv)
        if dims is None or not conv_call.is_norm(norm):
            return self._modules_by_themselves(x, residual)
        found = conv_call.norm_arguments(norm, dims)
        if found is None or not conv_call.takes(x, conv, found, residual, dims):
            return self._modules_by_themselves(x, residual)
        return conv_call.run(x, conv, found, name, residual)[0]

    def _modules_by_themselves(self, x: Tensor, residual: Tensor | None) -> Tensor:
        y = self.bn(self.conv(x))
        y = y if residual is None else y + residual
        return activate(y, activation_code(self.activation))

    def extra_repr(self) -> str:
        """The activation."""
        return f"activation={self.activation!r}"


def _activation_of(module: nn.Module) -> str:
    """The activation that a module of torch.nn computes.

    Raises:
        TypeError: It is another one.
    """
    name = "none" if type(module) is nn.Identity else activation_name(module)
    if name is None:
        raise TypeError(f"ConvBNAct.from_torch: expected an activation of ours; got {module}")
    return name
