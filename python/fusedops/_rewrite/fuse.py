"""fuse: replace linear layers, convolutions, MLPs, norms and losses in an existing model."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import nn as torch_nn

from .._core.dtensor import set_own_class
from .._core.text import table
from ..fp8.recipe import check_recipe
from ..nn import Linear
from ..nn.activation import activation_name
from ..nn.norm import fuse_norms
from .attention import FusedAttention, fuse_attention
from .blocks import fuse_block, hooked, hooked_by_others
from .calls import fuse_calls
from .clouds.fuse import fuse_clouds
from .convs.depthwise import DEPTHWISE
from .convs.fuse import FusedConv, fuse_model
from .convs.patches import PATCHES
from .dropping import drops_note
from .embedding import fuse_embeddings
from .fp8 import Fp8Layer, set_recipe
from .fused_class import fused_class
from .fused_methods import fuse_methods
from .gated.norm import fuse_gated_norm, has_gate
from .leaf import FusedLeaf, fuse_leaf, may_be_leaf
from .losses.functions import fuse_criterion
from .ordinary import reason_to_skip
from .sequential import FusedSteps, in_order, norms_of_rows, steps

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from ..fp8 import Recipe
    from .convs.single import Single

__all__ = ["FuseReport", "FusedLayer", "FusedMLP", "SkippedLayer", "fuse"]


@dataclass(frozen=True)
class FusedLayer:
    """One linear layer or norm that runs fused now."""

    name: str  # its path in the model; every path, joined by ", ", when it is shared
    shape: str  # "in -> out"; of a norm its normalized_shape
    activation: str | None  # those it runs with, joined by ", " where they differ
    absorbed: tuple[str, ...]  # the paths of the activation modules that run with it
    note: str = ""  # why a following activation does not


@dataclass(frozen=True)
class FusedMLP:
    """One block of layers that runs as one op now; its linear layers are listed as well."""

    name: str  # its path in the model
    kind: str  # "mlp", "gated_mlp", or of a cloud or graph: "set_abstraction", "edge_sum" ...
    layers: tuple[str, ...]  # the names of its layers in it
    activation: str
    note: str = ""  # when the module's own forward runs instead


@dataclass(frozen=True)
class SkippedLayer:
    """One linear layer or norm that was left alone."""

    name: str
    kind: str
    reason: str


@dataclass
class FuseReport:
    """What `fuse` did: print it for a table.

    Attributes:
        fused: The linear layers and norms that run fused now.
        skipped: The linear layers and norms that were left alone, with the reason.
        unchanged: How many fused layers and norms were there before.
        blocks: The MLP blocks that run as one op now.
        pairs: Norms that a method runs with the sum before them, as (path, method, norms).
        rotations: Functions that rotate query and key and run as `fusedops.rope`, as (path, method,
            names).
        projections: Linear layers that a method calls on one input, as (path, method, "q+k").
        splits: Parts that a method takes before it permutes, as (path, method, "q+k+v").
        losses: Losses that run as `fusedops.cross_entropy`, as (path, method, what it calls).
        convs: Convolutions that run with the norm, sum and activation behind them.
        embeddings: The paths of the embeddings whose gradient is one pass of ours.
        fp8: The linear layers, where a recipe was given, and whether each has it now.
    """

    fused: list[FusedLayer] = field(default_factory=list)
    skipped: list[SkippedLayer] = field(default_factory=list)
    unchanged: int = 0
    blocks: list[FusedMLP] = field(default_factory=list)
    pairs: list[tuple[str, str, tuple[str, ...]]] = field(default_factory=list)
    rotations: list[tuple[str, str, tuple[str, ...]]] = field(default_factory=list)
    projections: list[tuple[str, str, tuple[str, ...]]] = field(default_factory=list)
    splits: list[tuple[str, str, tuple[str, ...]]] = field(default_factory=list)
    losses: list[tuple[str, str, tuple[str, ...]]] = field(default_factory=list)
    convs: list[FusedConv] = field(default_factory=list)
    embeddings: list[str] = field(default_factory=list)
    fp8: list[Fp8Layer] = field(default_factory=list)

    @property
    def num_fused(self) -> int:
        """How many layers and norms were replaced."""
        return len(self.fused)

    @property
    def num_absorbed(self) -> int:
        """How many activation modules run with a linear layer."""
        return sum(len(layer.absorbed) for layer in self.fused)

    @property
    def num_skipped(self) -> int:
        """How many linear layers and norms were left alone."""
        return len(self.skipped)

    def __str__(self) -> str:
        lines = [
            f"fused {self.num_fused} layer(s), absorbed {self.num_absorbed} activation(s), "
            f"skipped {self.num_skipped}, fused before {self.unchanged}"
        ]
        rows = [
            (one.name or "(model)", one.shape, one.activation or "none", _absorbed_text(one))
            for one in self.fused
        ]
        if rows:
            lines += ["", *table(("fused layer", "shape", "activation", "notes"), rows)]
        blocks = [(b.name or "(model)", b.kind, ", ".join(b.layers), b.activation, b.note)
                  for b in self.blocks]  # fmt: skip
        if blocks:
            header = ("fused block", "op", "layers", "activation", "notes")
            lines += ["", *table(header, blocks)]
        for called, inside in (
            (("sums with norms", "norms", "in"), self.pairs),
            (("rotary embeddings", "functions", "in"), self.rotations),
            (("layers of one input", "layers", "in"), self.projections),
            (("parts of one tensor", "parts", "in"), self.splits),
            (("losses", "calls", "in"), self.losses),
        ):
            calls = [(name or "(model)", ", ".join(names), at) for name, at, names in inside]
            if calls:
                lines += ["", *table(called, calls)]
        if self.convs:
            header = ("fused convolution", "norm", "activation", "sum", "in")
            lines += ["", *table(header, [conv.row for conv in self.convs])]
        if self.embeddings:
            names = (name or "(model)" for name in self.embeddings)
            lines += ["", f"gradients of embeddings in one pass: {', '.join(names)}"]
        if self.fp8:
            rows_of = [(layer.name or "(model)", layer.shape, layer.note) for layer in self.fp8]
            lines += ["", *table(("FP8 layer", "shape", "notes"), rows_of)]
        left = [(s.name or "(model)", s.kind, s.reason) for s in self.skipped]
        if left:
            lines += ["", *table(("skipped layer", "type", "reason"), left)]
        return "\n".join(lines)

    __repr__ = __str__


def _absorbed_text(layer: FusedLayer) -> str:
    absorbed = f"absorbed {', '.join(layer.absorbed)}" if layer.absorbed else ""
    return "; ".join(text for text in (absorbed, layer.note) if text)


@dataclass
class _Runs:
    """What a linear layer runs with in the Sequentials it sits in."""

    activations: dict[str, str] = field(default_factory=dict)  # path of the module: its activation
    note: str = ""


def _paths(model: torch_nn.Module) -> dict[torch_nn.Linear, list[str]]:
    """Every linear layer with its paths."""
    found: dict[torch_nn.Linear, list[str]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, torch_nn.Linear):
            found.setdefault(module, []).append(path)
    return found


def _fuse_sequentials(model: torch_nn.Module, report: FuseReport) -> dict[Any, _Runs]:
    """Let Sequentials run linear layers, fused ones already, with what follows them."""
    found: dict[Any, _Runs] = defaultdict(_Runs)
    for prefix, module in list(model.named_modules()):
        if not isinstance(module, torch_nn.Sequential) or isinstance(module, FusedSteps):
            continue
        if not in_order(type(module)) or "forward" in vars(module):
            continue
        keys, layers = list(module._modules), list(module._modules.values())
        paths = [f"{prefix}.{key}" if prefix else key for key in keys]
        for layer, path, follower in zip(layers, paths[1:], layers[1:], strict=False):
            if type(layer) is Linear and activation_name(follower) and hooked(follower):
                found[layer].note = f"{path} has hooks and runs by itself"
        fused, normed = list(steps(layers)), norms_of_rows(layers)
        for i in normed:
            found[layers[i - 1]].note = f"{paths[i]} runs with {paths[i + 1]}"
        for i, step in fused:
            if layers[i].activation in (None, "none"):
                found[layers[i]].activations[paths[i + 1]] = step.activation
            if step.second is not None:
                names = (keys[i], keys[step.second])
                report.blocks.append(FusedMLP(prefix, "mlp", names, step.activation))
        if fused or normed:
            module.__class__ = fused_class(FusedSteps, type(module))
    return found


def _fuse_blocks(model: torch_nn.Module, report: FuseReport) -> None:
    """Turn MLP blocks into one op; their layers are fused layers already."""
    for name, module in model.named_modules():
        block = fuse_block(module)
        if block is None:
            continue
        note = drops_note(block.may_drop, block.dropouts)
        layers = (*block.first, block.down)
        report.blocks.append(FusedMLP(name, block.kind, layers, block.activation, note))


def _fuse_clouds(model: torch_nn.Module, report: FuseReport) -> None:
    """Let layers of point clouds and graphs run as ours."""
    for site in fuse_clouds(model):
        report.blocks.append(FusedMLP(site.name, site.op, site.layers, "as it has", site.note))


def _fuse_methods(model: torch_nn.Module, report: FuseReport) -> None:
    """Let methods run their MLPs as one op; inner modules first, whose classes change."""
    found: list[FusedMLP] = []
    for name, module in list(model.named_modules())[::-1]:
        try:
            kept = fuse_methods(module)
        except Exception:  # the module's class may raise anything
            kept = None
        for method, norms in () if kept is None else kept.pairs:
            report.pairs.append((name, method, norms))
        for chain in () if kept is None else (one.chain for one in kept.found):
            drops = sorted({".".join(d.path) or f"dropout({d.p})" for d in chain.dropouts})
            text = drops_note(chain.may_drop, drops)
            note = f"in {chain.method}; {text}" if text else f"in {chain.method}"
            found.append(FusedMLP(name, chain.kind, chain.layers, chain.activation, note))
    report.blocks += found[::-1]


def _fuse_calls(model: torch_nn.Module, report: FuseReport) -> None:
    """Let methods rotate query and key by one op, and form their loss by one."""
    for name, module in list(model.named_modules()):
        if fuse_criterion(module):
            report.losses.append((name, "forward", ("cross_entropy",)))
            continue
        try:
            found = fuse_calls(module)
        except Exception:  # the module's class may raise anything
            continue
        for what, method, names in found:
            getattr(report, what).append((name, method, names))


def _looks_like_norm(module: torch_nn.Module) -> bool:
    """Whether a report should say why a module was left alone."""
    kind = type(module)
    theirs = kind.__module__.split(".")[0] == "torch"
    return "norm" in kind.__name__.lower() and not theirs and not module._modules


def _fuse_leaves(model: torch_nn.Module, report: FuseReport) -> None:
    """Turn norms and products of other classes into ours, by what they compute."""
    for name, module in list(model.named_modules()):
        if isinstance(module, (torch_nn.Linear, torch_nn.LayerNorm, torch_nn.RMSNorm)):
            continue  # done as torch's, or as a subclass
        norm = _looks_like_norm(module)
        kind, why = type(module).__name__, _as_leaf(module, name, report)
        if why is not None and norm:
            report.skipped.append(SkippedLayer(name, kind, why))


def _as_leaf(module: torch_nn.Module, name: str, report: FuseReport) -> str | None:
    """Turn a module into ours by what it computes; why not, where it stays what it is."""
    if isinstance(module, FusedLeaf):
        report.unchanged += 1
        return None
    if not may_be_leaf(module):
        return "has more than a weight and a bias"
    why = fuse_gated_norm(module) if has_gate(module) else fuse_leaf(module)
    if why is None:
        report.fused.append(FusedLayer(name, _shape_of(module), None, (), _note_of(module)))
    return why


def _shape_of(module: Any) -> str:
    form = module._fused.form
    if form.weight is None:
        return "-"
    shape = tuple(getattr(module, form.weight).shape)
    if form.kind == "linear":
        shape = shape[::-1]
    return f"{shape[0]} -> {shape[1]}" if len(shape) == 2 else str(shape)


def _note_of(module: Any) -> str:
    form = module._fused.form
    return f"{module._base.__name__} is {form.kind}" + (" of 1 + weight" if form.plus_one else "")


def _fuse_attention(model: torch_nn.Module, report: FuseReport) -> set[torch_nn.Module]:
    """Let torch's attention run its projections as our linear: the out_projs that are done."""
    done = set()
    for name, module in model.named_modules():
        if not isinstance(module, torch_nn.MultiheadAttention):
            continue
        again = isinstance(module, FusedAttention)
        reason = None if again else fuse_attention(module)
        if reason is not None:
            report.skipped.append(SkippedLayer(name, type(module).__name__, reason))
            continue
        done.add(module.out_proj)
        if again:
            report.unchanged += 1
            continue
        shape = f"{module.embed_dim} -> {module.embed_dim}"
        note = "q, k, v and out as linear, the attention as torch's"
        report.fused.append(FusedLayer(name, shape, None, (), note))
    return done


def _fuse_single(
    model: torch_nn.Module, kind: Single, report: FuseReport, without: Collection[str] = ()
) -> None:
    found = ((n, m) for n, m in model.named_modules() if n not in without and kind.has(m))
    for name, module in found:
        if isinstance(module, kind.fused):
            report.unchanged += 1
        elif (why := kind.fuse(module)) is None:
            report.fused.append(FusedLayer(name, *kind.described(module)))
        else:
            report.skipped.append(SkippedLayer(name, type(module).__name__, why))


def _fuse_subclass(module: torch_nn.Module, name: str, reason: str, report: FuseReport) -> None:
    """A subclass of one of torch's layers, by what it computes; else left for the reason."""
    kind = type(module).__name__
    if _as_leaf(module, name, report) is not None:
        report.skipped.append(SkippedLayer(name, kind, reason))


def fuse(
    model: torch_nn.Module, fp8: Recipe | None = None, skip: Sequence[str] | None = None
) -> FuseReport:
    """Replace the linear layers and norms of a model by fused ones, in place.

    Every ``torch.nn.LayerNorm``, ``RMSNorm`` and ``Linear`` becomes that of `fusedops.nn`. Where an
    ``nn.Sequential`` runs an activation module behind a linear layer (ReLU, GELU of either form,
    SiLU, Sigmoid, Tanh), both run as one op, and with a second linear layer behind as
    `fusedops.mlp`. All modules stay where they are, and each call of the Sequential looks at them.

    Modules whose forward, as torch.fx traces it, is ``down(act(up(x)))`` or ``down(act(gate(x)) *
    up(x))`` of their linear layers, whatever the names (Llama's, Hugging Face's, torchtune's; gate
    and up packed in one layer too), become one op each way, `fusedops.mlp` or `fusedops.gated_mlp`.
    Such a module stays what it is where its code might do more: store anything but local variables,
    enter a ``with`` (no_grad, autocast), call other functions (checkpoint) or refer to other
    objects than modules, numbers and strings.

    Other modules are looked at by what they compute:

    - A module with a weight (and a bias) and no more is a norm or a linear layer where its source
      does nothing but compute, and where it gives our op's values, gradients and dtypes on probe
      values: Hugging Face's RMSNorms (Llama's, T5's, Gemma's with ``1 + weight``), layer norms of
      other classes and over channels, transformers' Conv1D, torch_geometric's Linear. Each dtype
      counts by itself: what was not found equal runs the module's own forward.
    - Statements in a row in any method which are an MLP of the module's layers, or of modules of
      layers (BERT, OPT, Whisper, T5, GPT-2): the method is written anew with the op for them, and
      with the same statements where the op cannot stand for them.
    - A sum and the norm of it, where the norm is the next thing that a method calls.
    - A function that a method calls with query, key and the two tables of a rotary embedding, where
      its source does nothing but compute and its values and gradients on probes are those of
      `fusedops.rope` (``apply_rotary_pos_emb`` of Hugging Face's models, halves or interleaved, a
      part of the row too), or with one tensor and two tables. It is called as it is with tables
      that require a gradient or have another dtype.
    - Linear layers that statements in a row call on one input (query, key and value) sum their
      gradients of it as these are formed, and autocast casts it once.
    - nn.Embedding forms its gradient in one pass, with the same bits in each run.
    - A convolution with the batch norm, sum and activation behind it, in a method or nn.Sequential,
      is `fusedops.conv_bn_act` (docs/conv.md); of rows, `fusedops.batch_norm_act` in nn.Sequential.
    - A convolution whose kernel is as large as its stride, without padding, dilation or groups (the
      embedding of ViT, CLIP, Swin), runs as `fusedops.linear` of its patches. Float32 on a GPU does
      only where torch's settings of TF32 are the same for convolutions and products.
    - A depthwise convolution of 7 x 7 (ConvNeXt) with nothing of the above behind it runs on our
      kernels in half precision on a GPU, where x has 2^20 elements or more.
    - A loss is `fusedops.cross_entropy` where a method calls ``F.cross_entropy`` or makes an
      ``nn.CrossEntropyLoss``, where a module is one, and where the property ``loss_function`` of a
      class gives a function of logits and labels whose source does nothing but prepare them, with
      the values and gradients of our op on probes (Hugging Face's ForCausalLMLoss and
      ForMaskedLMLoss). Half logits that such a function converts to float32 are read as they are.
      What the op does not take (class weights, probabilities as targets, arguments that change
      what a function computes) is torch's. On the GPU a label out of range makes the loss
      NaN, where torch stops the program. A module that has statements of the kinds above (an MLP, a
      sum and its norm) keeps its rotary embeddings, layers of one input and losses as they are.
    - Layers of point clouds run as `fusedops.points` has them: torch_geometric's PointNetConv,
      EdgeConv and DynamicEdgeConv, and its MLP's layers without a norm; those with the attributes
      of pointnet2_ops', Pointnet_Pointnet2_pytorch's and DGCNN's that give our values on probes.
    - torch_geometric's GINConv, GCNConv, SAGEConv and others whose messages are rows, or those by
      constant weights, add many of them without atomics in half precision on a GPU.
    - nn.MultiheadAttention runs its projections as `fusedops.linear`, without copies in training
      where it returns no weights; the rest and the fast path in inference are torch's own code.

    Later changes are respected. A layer that has hooks, a forward of its own or an adapter around
    it (LoRA) runs by itself, and so does an activation. A fused block whose dropout is active runs
    layer by layer. Its own forward runs while a module in it has hooks, and after such a module, a
    class's forward or method, an attribute, global or function that the traced code refers to was
    replaced. Not seen are patches of ``nn.Linear.forward`` and of the norms' (whose classes have
    become ours), code that changes inside a function object, and, by the modules inside of what
    runs as one op, hooks on all modules (``register_module_forward_hook``). Compiled code looks for
    new hooks where torch's does. Our norms keep their input for backward, as torch's do: a norm
    written by hand that keeps a copy in fp32 lets its half input be changed in place, ours does
    not, and backward raises. So it does for the logits of a loss, of which torch keeps a copy.

    A layer changes its class and stays the same object. So its parameters (what the optimizer
    holds, tied weights), state dict keys, device, training flag and everything that refers to it
    stay valid, and a model which is itself one ``nn.Linear`` is replaced as well. A second call
    changes nothing.

    Left alone, and reported with the reason: subclasses of nn.Linear and of the norms that compute
    something else (LoRA layers, parametrizations) or cannot be read, layers and norms with hooks
    (weight_norm, pruning; not torch.distributed's, of which FSDP is made), with an own forward or
    with a dtype that the kernels do not have, and linear layers with further parameters. Separate
    q, k and v stay three products: one weight for them would have to be packed in each step.

    torch.fx, torch.jit.script and quantize_dynamic do not see into fused modules; torch.jit.trace
    with gradients on needs ``check_trace=False``.

    Args:
        model: Any module.
        fp8: Have the linear layers of `fusedops.nn`, and MLPs of them, run by this recipe.
        skip: Names of layers that keep what they have, patterns of fnmatch (``"*.lm_head"``); None
            for the model's first and its last linear layer.

    Returns:
        The report; print it for a table.

    Raises:
        TypeError: model is not an nn.Module, or fp8 no recipe.

    Example:
        >>> model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
        >>> print(fusedops.fuse(model))
    """
    if not isinstance(model, torch_nn.Module):
        raise TypeError(f"fuse: model must be a torch.nn.Module; got {type(model).__name__}")
    check_recipe("fuse", fp8)
    report = FuseReport()
    paths = _paths(model)
    before = {module for module in paths if isinstance(module, Linear)}
    skipped = _fuse_attention(model, report)
    for module, names in paths.items():
        if module in skipped:
            continue
        reason = reason_to_skip(module)
        if reason is not None:
            skipped.add(module)
            _fuse_subclass(module, ", ".join(names), reason, report)
        elif module not in before:
            set_own_class(module, Linear)
            module.activation = None
    runs = _fuse_sequentials(model, report)
    for module, names in paths.items():
        if module in skipped:
            continue
        with_it = runs[module]
        if module in before and not with_it.activations:
            report.unchanged += 1
            continue
        shape = f"{module.in_features} -> {module.out_features}"
        activation = ", ".join(dict.fromkeys(with_it.activations.values())) or None
        absorbed = tuple(with_it.activations)
        report.fused.append(FusedLayer(", ".join(names), shape, activation, absorbed, with_it.note))
    _fuse_clouds(model, report)
    _fuse_blocks(model, report)
    _fuse_leaves(model, report)
    for norm in fuse_norms(model, hooked_by_others):
        if norm.reason:
            _fuse_subclass(model.get_submodule(norm.name), norm.name, norm.reason, report)
        elif norm.replaced:
            report.fused.append(FusedLayer(norm.name, norm.shape, None, ()))
        else:
            report.unchanged += 1
    report.embeddings += fuse_embeddings(model)
    _fuse_single(model, PATCHES, report)
    _fuse_methods(model, report)
    _fuse_calls(model, report)
    report.convs, left = fuse_model(model)
    _fuse_single(model, DEPTHWISE, report, {conv.name for conv in report.convs})
    report.skipped += [SkippedLayer(*one) for one in left]
    if fp8 is not None:
        report.fp8 += set_recipe(model, fp8, skip)
    return report
