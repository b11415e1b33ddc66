"""Convolutions that run as an op of ours, each by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from .depthwise import FusedDepthwise, fuse_depthwise, is_depthwise
from .patches import FusedPatches, fuse_patches, is_of_patches

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn as torch_nn


class Single(NamedTuple):
    """One kind of them."""

    note: str  # for reports, with the kernel
    fused: type  # the class that is mixed in
    has: Callable[[torch_nn.Module], bool]
    fuse: Callable[[torch_nn.Module], str | None]  # why one stays

    def described(self, module: Any) -> tuple[str, str | None, tuple[str, ...], str]:
        """Shape, activation, what was absorbed and a note, as FusedLayer has them."""
        kernel = " x ".join(map(str, module.kernel_size))
        return f"{module.in_channels} -> {module.out_channels}", None, (), self.note.format(kernel)


PATCHES = Single("linear of patches of {}", FusedPatches, is_of_patches, fuse_patches)
DEPTHWISE = Single("depthwise of {}", FusedDepthwise, is_depthwise, fuse_depthwise)
