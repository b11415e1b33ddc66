"""fusedops.inductor: our kernels inside what torch.compile makes."""

from __future__ import annotations

from typing import Any

from .report import InductorReport, LeftProduct, ReplacedSite

__all__ = ["InductorOptions", "InductorReport", "LeftProduct", "ReplacedSite", "inductor"]

_KEY, _PRE_GRAD_KEY = "joint_custom_pre_pass", "pre_grad_custom_pass"
_IN_PLACE_KEY = "post_grad_custom_post_pass"


class InductorOptions(dict[str, Any]):
    """Keyword arguments of torch.compile, with the report of the graph pass in them."""

    @property
    def report(self) -> InductorReport:
        """What the pass did in the graphs that were compiled so far: print it."""
        report: InductorReport = self["options"][_KEY].report
        return report


def inductor(mode: str | None = None, *, force: bool = False, **options: Any) -> InductorOptions:
    """Keyword arguments that make torch.compile use our kernels where they pay.

    A graph pass of Inductor reads the graph of forward and backward, and finds by what it computes,
    not by the names of modules, where an activation stands behind a product, with or without bias,
    and a second product behind that (`mlp`), or a gate times an up projection (`gated_mlp`), a
    residual added, a cross entropy behind a product whose logits nothing else reads
    (`linear_cross_entropy`), and the same in backward with the gradients of biases and weights;
    the gradient of an embedding becomes one deterministic pass (`embedding_grad`).
    A convolution whose patches do not overlap (kernel as large as stride, no padding, dilation or
    groups: the embedding of ViT, CLIP and Swin) becomes products of torch's, forward and backward,
    on a GPU where cuDNN would copy x besides; float32 where torch's settings of TF32 are the same
    for convolutions and products. Depthwise convolutions of 7 x 7 (ConvNeXt) in half precision run
    on our kernels (`depthwise`), but for the gradient of the weight.
    Convolutions with batch norm, and a sum and an activation behind it or not, become `conv_bn_act`
    where channels lie last, in half precision on a GPU: in training, and in inference where one
    kernel of ours is all of it. Layers of PointNet++ and DGCNN, which gather rows of clouds, run
    linear layers or convolutions of size 1 with batch norm over each neighbour and end in a maximum
    over these, become `set_abstraction` and `edge_conv` in half precision on a GPU, whose groups
    stay on the chip. Messages of graph networks, rows of nodes gathered by edges and added up by
    their other ends (`edge_sum`), are summed in the order of edges, without atomics. A mask of
    attention that depends on no input and is causal, or hides nothing, as transformers makes one
    while it is traced, becomes ``is_causal=True`` or no mask: torch has faster kernels for that.
    Another one that is the same for all of a batch, a bias with a gradient too (T5), is read
    without the copies that it has for each. Gathers by a permutation that `sort` gave, as mixtures
    of experts have them, get a gather for a gradient (`permuted_rows`). In backward, gradients of
    MLPs take the place of what forward saved for them, where AOTAutograd gives that away ("donated
    buffers"). Where our ops are faster, they take their place, everything else is left to Inductor;
    a loss may take 5 % longer where that spares 256 MiB of logits or more. Works for models of
    torch's modules and of ours, in training and inference, with autocast, checkpointing and dynamic
    shapes; Inductor's caches stay in use.

    Args:
        mode: As in torch.compile, which takes no mode beside options: "reduce-overhead",
            "max-autotune" or "max-autotune-no-cudagraphs". "reduce-overhead" runs in CUDA graphs:
            for models whose kernels take less time than the host takes to launch them.
        force: Replace whatever is found, also where no gain is expected (for comparisons).
        **options: Further options of Inductor. A ``joint_custom_pre_pass``,
            ``pre_grad_custom_pass`` or ``post_grad_custom_post_pass`` in them, or in
            ``torch._inductor.config``, runs before ours.

    Returns:
        ``{"options": ...}``, a dict whose ``report`` says, after the first call, what was replaced
        and what was not and why.

    Raises:
        RuntimeError: Unknown mode; torch.compile itself raises for unknown options.

    Example:
        >>> ours = fusedops.inductor()
        >>> model = torch.compile(model, **ours)
        >>> model(x).sum().backward()
        >>> print(ours.report)
    """
    import torch._inductor
    from torch._inductor import config

    from .graph_pass import GraphPass
    from .in_place import InPlacePass
    from .pre_grad.convs import ConvPass
    from .pre_grad.groups import GroupPass
    from .pre_grad.masks import MaskPass
    from .pre_grad.messages import MessagePass
    from .pre_grad.permutations import PermutationPass

    merged: dict[str, Any] = {}
    if mode is not None and mode != "default":
        merged |= torch._inductor.list_mode_options(mode)
    merged |= options
    keys = (_KEY, _PRE_GRAD_KEY, _IN_PLACE_KEY)
    first, first_pre_grad, last = (merged.pop(key, None) or getattr(config, key) for key in keys)
    ours = GraphPass(force=force, first=first)
    masks = MaskPass(ours.report, first=first_pre_grad)
    permutations = PermutationPass(ours.report, first=masks)
    messages = MessagePass(ours.report, force, first=permutations)
    groups = GroupPass(ours.report, force, first=messages)
    merged |= {_KEY: ours, _PRE_GRAD_KEY: ConvPass(ours.report, force, first=groups)}
    merged[_IN_PLACE_KEY] = InPlacePass(first=last)
    return InductorOptions(options=merged)
