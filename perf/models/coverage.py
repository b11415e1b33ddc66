"""How much of the models of transformers and timm `fusedops.fuse` reaches, in tiny sizes.

Every model is built with random weights, run, copied, fused and run again. A row says which share
of the FLOPs of linear layers (transformers' Conv1D too) and of the norms runs fused, and whether
outputs and gradients are those of the model before. On the CPU:

    python perf/models/coverage.py --csv perf/results/coverage/transformers.csv
    python perf/models/coverage.py --library timm --only vit
"""

from __future__ import annotations

import argparse
import copy
import csv
import importlib.metadata
import os
import signal
import sys
import traceback
import warnings
from collections import Counter
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

import fusedops
from fusedops._rewrite.leaf import FusedLeaf

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SIZES = {
    "vocab_size": 96,
    "hidden_size": 64,
    "d_model": 64,
    "n_embd": 64,
    "dim": 64,
    "embed_dim": 64,
    "intermediate_size": 96,
    "ffn_dim": 96,
    "d_ff": 96,
    "hidden_dim": 96,
    "encoder_ffn_dim": 96,
    "decoder_ffn_dim": 96,
    "moe_intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_layers": 2,
    "n_layer": 2,
    "n_layers": 2,
    "decoder_layers": 2,
    "num_attention_heads": 4,
    "num_heads": 4,
    "n_head": 4,
    "n_heads": 4,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "n_positions": 64,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_topk": 2,
    "moe_k": 2,
    "n_group": 1,
    "topk_group": 1,
    "rotary_dim": 8,
    "word_embed_proj_dim": 64,
    "embedding_size": 64,
    "encoder_layers": 2,
    "num_encoder_layers": 2,
    "num_decoder_layers": 2,
    "depth": 2,
    "embed_dims": 64,
    "feature_size": 64,
    "projection_dim": 64,
    "out_hidden_size": 64,
    "moe_num_heads": 4,
    "num_mem_blocks": 1,
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_ssm": 128,
    "mamba_d_state": 16,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 16,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "norm_eps": 1e-5,
    "use_cache": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
# What some models ask for besides.
OWN: dict[str, dict[str, Any]] = {
    "Mamba2Config": {"num_heads": 8, "head_dim": 16, "n_groups": 1, "chunk_size": 16},
    "Dots1Config": {"n_shared_experts": 1, "moe_intermediate_size": 48},
    "NemotronConfig": {"num_key_value_heads": 2},
    "GPTNeoConfig": {"num_layers": 2, "attention_types": [[["global", "local"], 1]]},
    "ReformerConfig": {"is_decoder": False, "axial_pos_embds": False, "hidden_size": 64},
    "XmodConfig": {"default_language": "en_XX"},
    "FunnelConfig": {"block_sizes": [1, 1]},
    "ProphetNetConfig": {"num_encoder_layers": 2, "num_decoder_layers": 2},
    "MusicgenDecoderConfig": {"num_codebooks": 1},
    "MusicgenMelodyDecoderConfig": {"num_codebooks": 1},
}
UNSET = {"FunnelConfig": ("num_hidden_layers",), "ProphetNetConfig": ("num_hidden_layers",),
         "XLNetConfig": ("max_position_embeddings",)}  # fmt: skip
SECONDS = 30  # of CPU time for one model


@dataclass
class Row:
    """What fuse reached in one model."""

    library: str
    model: str
    flops: float = 0.0  # share of the products' FLOPs that run fused
    norms: float = 1.0  # share of norms
    blocks: int = 0  # MLPs that run as one op
    error: float = 0.0  # largest difference of outputs, relative
    grad_error: float = 0.0
    left: str = ""  # what was left alone
    failed: str = ""
    version: str = ""  # of the library
    torch: str = torch.__version__


def is_product(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or type(module).__name__.endswith("Conv1D")


def is_norm(module: nn.Module) -> bool:
    """Layer and RMS norms of any class: not those that read statistics of a batch or groups."""
    other = (nn.modules.batchnorm._NormBase, nn.GroupNorm)
    if isinstance(module, (nn.LayerNorm, nn.RMSNorm)):
        return True
    own = [p for p in module._parameters.values() if p is not None]
    name = type(module).__name__.lower()
    return "norm" in name and not module._modules and not isinstance(module, other) and bool(own)


def is_fused(module: nn.Module) -> bool:
    ours = (fusedops.nn.Linear, fusedops.nn.LayerNorm, fusedops.nn.RMSNorm, FusedLeaf)
    return isinstance(module, ours)


def first_tensor(output: Any) -> Tensor:
    """The output that is compared."""
    if isinstance(output, Tensor):
        return output
    if isinstance(output, dict):
        for name in ("logits", "last_hidden_state", "loss"):
            if isinstance(output.get(name), Tensor):
                return output[name]
        return first_tensor(next(iter(output.values())))
    return first_tensor(output[0])


def run(model: nn.Module, call: Callable[[nn.Module], Any]) -> tuple[Tensor, dict[str, Tensor]]:
    model.zero_grad()
    torch.manual_seed(0)
    y = first_tensor(call(model))
    generator = torch.Generator().manual_seed(1)
    (y * torch.randn(y.shape, generator=generator)).sum().backward()
    return y.detach(), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def product_flops(model: nn.Module, call: Callable[[nn.Module], Any]) -> Counter[str]:
    """Multiplications and additions of each product in a forward, by path."""
    found: Counter[str] = Counter()

    def count(name: str) -> Any:
        def hook(module: nn.Module, args: Any, output: Tensor) -> None:
            weight = next(p for p in module.parameters(recurse=False) if p.dim() == 2)
            output = first_tensor(output)
            found[name] += 2 * output.numel() * weight.numel() // output.shape[-1]

        return hook

    handles = [
        module.register_forward_hook(count(name))
        for name, module in model.named_modules()
        if is_product(module)
    ]
    with torch.no_grad():
        call(model)
    for handle in handles:
        handle.remove()
    return found


def difference(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max() / (a.abs().max() + 1e-12))


def measure(row: Row, model: nn.Module, call: Callable[[nn.Module], Any]) -> None:
    flops = product_flops(model, call)
    y, grads = run(model, call)
    model.zero_grad()
    fused = copy.deepcopy(model)
    report = fusedops.fuse(fused)
    modules = dict(fused.named_modules())
    total = sum(flops.values())
    row.flops = sum(f for n, f in flops.items() if is_fused(modules[n])) / total if total else 1.0
    norms = [m for m in fused.modules() if is_norm(m)]
    row.norms = sum(map(is_fused, norms)) / len(norms) if norms else 1.0
    row.blocks = len(report.blocks)
    new_y, new_grads = run(fused, call)
    row.error = difference(y, new_y)
    # NOTE: against the largest gradient of all, since some are zero but for rounding.
    largest = max((float(g.abs().max()) for g in grads.values()), default=1.0)
    pairs = [(grads[n], new_grads[n]) for n in grads]
    row.grad_error = max((float((a - b).abs().max()) / largest for a, b in pairs), default=0.0)
    if set(grads) != set(new_grads):
        row.failed = "other parameters have gradients"
    left = Counter(f"{s.kind}: {s.reason}" for s in report.skipped)
    row.left = "; ".join(f"{n} x {text}" for text, n in left.most_common(4))


# ---- models ----


def small(config: Any) -> dict[str, Any]:
    """The sizes that a config knows of, small; nested configs too."""
    wanted = {k: v for k, v in SIZES.items() if has(config, k)}
    if has(config, "num_key_value_heads") and plain(config, "num_key_value_heads") is None:
        wanted.pop("num_key_value_heads", None)
    if hasattr(config, "qk_rope_head_dim"):  # multi-head latent attention
        wanted |= {"qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16, "head_dim": 8,
                   "q_lora_rank": 32, "kv_lora_rank": 32, "num_key_value_heads": 4}  # fmt: skip
    return {k: v for k, v in wanted.items() if has(config, k)}


def has(config: Any, name: str) -> bool:
    """Whether a config knows of a size, be it another one for each layer."""
    return name in vars(config) or name in getattr(config, "attribute_map", {})


def plain(config: Any, name: str) -> Any:
    try:
        return getattr(config, name)
    except Exception:  # one of its own for each layer
        return 0


def small_config(config_class: Any) -> Any:
    """A config with small sizes, nested ones too, without those that it does not let be set."""
    default = config_class()
    wanted = small(default) | OWN.get(config_class.__name__, {})
    for name in UNSET.get(config_class.__name__, ()):
        wanted.pop(name, None)
    for name in getattr(config_class, "sub_configs", {}):
        inner = getattr(default, name, None)
        if hasattr(inner, "to_dict"):
            wanted[name] = small_config(type(inner))
    kinds = [k for k in ("layer_types", "layers_block_type") if hasattr(default, k)]
    trials = [dict(wanted)]
    for kind in kinds:  # one layer of each kind
        there = list(dict.fromkeys(getattr(default, kind) or ()))
        if there:
            trials.append(wanted | {kind: there, "num_hidden_layers": len(there)})
    trials.append({k: v for k, v in wanted.items() if "layer" not in k})
    first: Exception | None = None
    for trial in trials:
        for _ in range(len(trial) + 1):
            try:
                return config_class(**trial)
            except Exception as error:  # noqa: PERF203
                first = first or error
                name = next((n for n in trial if f"'{n}'" in str(error)), None)
                if name is None:
                    break
                del trial[name]
    raise first or ValueError("no config")


def transformer_models(only: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    import transformers
    from transformers.models.auto import modeling_auto

    groups = (
        ("causal", modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES),
        ("masked", modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES),
        ("seq2seq", modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES),
        ("image", modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES),
    )
    seen = set()
    for group, names in groups:
        for kind, class_name in names.items():
            class_name = class_name if isinstance(class_name, str) else class_name[0]
            if class_name in seen or only not in f"{group}/{kind}":
                continue
            seen.add(class_name)
            if not hasattr(transformers, class_name):
                continue
            yield f"{group}/{kind}", lambda n=class_name, g=group: transformer(n, g)


def transformer(class_name: str, group: str) -> tuple[nn.Module, Callable[[nn.Module], Any]]:
    import transformers

    cls = getattr(transformers, class_name)
    config_class = cls.config_class
    config = small_config(config_class)
    torch.manual_seed(0)
    model = cls._from_config(config) if hasattr(cls, "_from_config") else cls(config)
    for parameter in model.parameters():  # norms of ones and biases of zeros hide mistakes
        with torch.no_grad():
            parameter.add_(0.02 * torch.randn_like(parameter))
    model = model.float().eval()
    if group == "image":
        size = getattr(config, "image_size", 224)
        size = size if isinstance(size, int) else size[0]
        x = torch.randn(1, getattr(config, "num_channels", 3), size, size)
        return model, lambda m: m(x)
    ids = torch.arange(3, 27).view(2, 12)
    if group == "seq2seq":
        return model, lambda m: m(input_ids=ids, decoder_input_ids=ids.flip(1))
    return model, lambda m: m(input_ids=ids)


def timm_models(only: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    import timm

    smallest: dict[str, str] = {}
    for name in timm.list_models():
        family = timm.models._registry._model_to_module[name]
        words = ("atto", "femto", "pico", "nano", "tiny", "xxs", "xs", "small", "_s", "mini", "18")
        rank = next((i for i, word in enumerate(words) if word in name), len(words))
        best = smallest.get(family)
        if best is None or (rank, len(name)) < (ranks[family], len(best)):
            smallest[family], ranks[family] = name, rank
    for family, name in sorted(smallest.items()):
        if only in f"{family}/{name}":
            yield f"{family}/{name}", lambda n=name: timm_model(n)


ranks: dict[str, int] = {}


def timm_model(name: str) -> tuple[nn.Module, Callable[[nn.Module], Any]]:
    import timm

    torch.manual_seed(0)
    try:
        model = timm.create_model(name, num_classes=10, img_size=128).eval()
        height = width = 128
    except (TypeError, AssertionError, RuntimeError, ValueError):  # it has no such argument
        model = timm.create_model(name, num_classes=10).eval()
        _, height, width = model.default_cfg.get("input_size", (3, 224, 224))
        if not model.default_cfg.get("fixed_input_size", False):
            height = width = 128
    x = torch.randn(1, 3, height, width)
    return model, lambda m: m(x)


def rows(library: str, only: str, skip: str) -> Iterator[Row]:
    models = transformer_models if library == "transformers" else timm_models
    skipping = bool(skip)
    for name, build in models(only):
        if skipping:
            skipping = name != skip
            continue
        row = Row(library, name, version=importlib.metadata.version(library))
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        try:
            measure(row, *build())
        except Exception as error:  # of hundreds of models, some need other sizes
            last = traceback.extract_tb(error.__traceback__)[-1]
            row.failed = f"{type(error).__name__}: {str(error)[:90]} ({last.name})".replace(
                "\n", " "
            )
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        yield row


def too_long(*_: Any) -> None:
    raise TimeoutError(f"more than {SECONDS} s")


def rounded(value: Any) -> Any:
    return f"{value:.3g}" if isinstance(value, float) else value


def show(row: Row) -> None:
    if row.failed:
        print(f"{row.model:44} not run: {row.failed}", flush=True)
        return
    good = row.flops >= 0.95 and row.norms >= 0.95 and row.error < 1e-4 and row.grad_error < 1e-3
    print(
        f"{row.model:44} {row.flops:6.1%} {row.norms:6.1%} {row.blocks:4} {row.error:8.1e} "
        f"{row.grad_error:8.1e}  {'' if good else '<-- '}{row.left}",
        flush=True,
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", choices=("transformers", "timm"), default="transformers")
    parser.add_argument("--only", default="", help="models whose name contains this")
    parser.add_argument("--skip", default="", help="begin behind the model of this name")
    parser.add_argument("--csv", help="write the rows here")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    signal.signal(signal.SIGPROF, too_long)
    torch.set_num_threads(1)
    print(f"{'model':44} {'flops':>6} {'norms':>6} mlps {'error':>8} {'grads':>8}  left alone")
    done = []
    with open(options.csv or os.devnull, "w", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)], lineterminator="\n")
        writer.writeheader()
        for row in rows(options.library, options.only, options.skip):
            show(row)
            done.append(row)
            writer.writerow({k: rounded(v) for k, v in asdict(row).items()})
            file.flush()  # what ran counts, should the machine go away
    ran = [row for row in done if not row.failed]
    full = [r for r in ran if r.flops >= 0.95 and r.norms >= 0.95]
    same = [r for r in ran if r.error < 1e-4 and r.grad_error < 1e-3]
    print(f"{len(ran)} of {len(done)} run; {len(full)} have 95 % of both; {len(same)} match")


if __name__ == "__main__":
    sys.exit(main())
