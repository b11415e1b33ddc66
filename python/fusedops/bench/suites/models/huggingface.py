"""Models of transformers: real widths, a few layers, random weights, no dropout."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .spec import Data, Model, dtype_of, tokens

# What transformers calls the class, and the sizes: real, then what a test takes instead.
Config = dict[str, Any]
Size = tuple[int, int]  # batch, length
TINY: Size = (2, 16)
SMALL = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
SMALL_DECODER = {**SMALL, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 32}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def build(head: str, kind: str, config: Config) -> nn.Module:
    import transformers

    # A token id beyond a tiny vocabulary would be refused.
    given = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2} | config
    settings = transformers.AutoConfig.for_model(kind, **given)
    settings.use_cache = False
    model: Any = getattr(transformers, head).from_config(settings)
    if head == "AutoModelForCausalLM" and model.loss_type is None:
        # GPT-2 names no loss: transformers warns at every call, and a warning breaks the graph.
        model.loss_type = "ForCausalLM"
    checked: nn.Module = model
    return checked


def labelled_loss(model: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
    """transformers' own loss, which Liger replaces."""
    loss: Tensor = model(input_ids=x, labels=labels).loss
    return loss


def logits(model: nn.Module, x: Tensor, _: Tensor) -> Tensor:
    found: Tensor = model(input_ids=x).logits
    return found


def text_model(
    name: str,
    kind: str,
    real: Config,
    size: Size,
    tiny: Config | None = None,
    head: str = "AutoModelForCausalLM",
    common: Config | None = None,
    fp32: bool = True,
) -> Model:
    small = SMALL_DECODER if tiny is None else tiny

    def data(model: nn.Module, is_tiny: bool) -> Data:
        shape = TINY if is_tiny else size
        vocabulary = 96 if is_tiny else int(model.config.vocab_size)
        return tokens(*shape, vocabulary), tokens(*shape, vocabulary)

    def make(is_tiny: bool) -> nn.Module:
        return build(head, kind, {**(small if is_tiny else real), **(common or {})})

    return Model(name, make, data, labelled_loss, logits, "transformers", fp32=fp32)


def decoder(vocabulary: int, width: int, hidden: int, heads: int, kv_heads: int, depth: int,
            **more: Any) -> Config:  # fmt: skip
    return {
        "vocab_size": vocabulary,
        "hidden_size": width,
        "intermediate_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "num_hidden_layers": depth,
        "max_position_embeddings": 4096,
        **more,
    }


def encoder(vocabulary: int, width: int, heads: int, depth: int) -> Config:
    return {
        "vocab_size": vocabulary,
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_attention_heads": heads,
        "num_hidden_layers": depth,
    }


GPT2 = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
GPT2_TINY = {"vocab_size": 96, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 32}
DISTIL = {"dropout": 0.0, "attention_dropout": 0.0}
DISTIL_TINY = {"vocab_size": 96, "dim": 64, "hidden_dim": 96, "n_layers": 2, "n_heads": 4}
OPT = {"dropout": 0.0, "attention_dropout": 0.0, "layerdrop": 0.0}
OPT_TINY = {
    "vocab_size": 96,
    "hidden_size": 64,
    "word_embed_proj_dim": 64,
    "ffn_dim": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
}
MASKED = "AutoModelForMaskedLM"

TEXT = (
    text_model("llama", "llama", decoder(128256, 2048, 8192, 32, 8, 4, head_dim=64), (2, 2048)),
    text_model(
        "qwen3", "qwen3", decoder(151936, 1024, 3072, 16, 8, 6, head_dim=128), (2, 2048)
    ),
    text_model(
        "gemma2", "gemma2", decoder(256000, 2304, 9216, 8, 4, 2, head_dim=256), (1, 2048)
    ),
    text_model("mistral", "mistral", decoder(32768, 4096, 14336, 32, 8, 2), (1, 4096)),
    text_model(
        "mixtral",
        "mixtral",
        decoder(32000, 1024, 3584, 16, 8, 2, num_local_experts=8, num_experts_per_tok=2),
        (4, 1024),
        {**SMALL_DECODER, "num_local_experts": 4, "num_experts_per_tok": 2},
        fp32=False,  # grouped products know no fp64
    ),
    text_model("phi3", "phi3", decoder(32064, 3072, 8192, 32, 32, 2), (1, 4096),
               {**SMALL_DECODER, "num_key_value_heads": 4}),
    text_model(
        "gpt2_medium",
        "gpt2",
        {"vocab_size": 50257, "n_embd": 1024, "n_layer": 6, "n_head": 16, "n_positions": 1024},
        (8, 1024),
        GPT2_TINY,
        common=GPT2,
    ),
    text_model(
        "opt",
        "opt",
        {"vocab_size": 50272, "hidden_size": 2048, "word_embed_proj_dim": 2048, "ffn_dim": 8192,
         "num_hidden_layers": 4, "num_attention_heads": 32, "max_position_embeddings": 2048},
        (4, 1024),
        OPT_TINY,
        common=OPT,
    ),
    text_model("bert", "bert", encoder(30522, 1024, 16, 6), (32, 512), SMALL, MASKED, NO_DROPOUT),
    text_model(
        "roberta",
        "roberta",
        {**encoder(50265, 768, 12, 6), "max_position_embeddings": 514},
        (32, 512),
        SMALL,
        MASKED,
        NO_DROPOUT,
    ),
    text_model(
        "distilbert",
        "distilbert",
        {"vocab_size": 30522, "dim": 768, "hidden_dim": 3072, "n_layers": 6, "n_heads": 12},
        (32, 512),
        DISTIL_TINY,
        MASKED,
        DISTIL,
    ),
)  # fmt: skip


# ---- encoder and decoder, sound, pictures ----

T5 = {"dropout_rate": 0.0, "feed_forward_proj": "gated-gelu", "decoder_start_token_id": 0}


def build_t5(tiny: bool) -> nn.Module:
    sizes = {"vocab_size": 32128, "d_model": 1024, "d_ff": 2816, "num_layers": 3, "num_heads": 16}
    if tiny:
        sizes = {"vocab_size": 96, "d_model": 64, "d_ff": 96, "num_layers": 1, "num_heads": 4}
    return build("AutoModelForSeq2SeqLM", "t5", {**sizes, "d_kv": 16 if tiny else 64, **T5})


def t5_data(model: nn.Module, tiny: bool) -> Data:
    shape = TINY if tiny else (16, 512)
    vocabulary = 96 if tiny else 32128
    return tokens(*shape, vocabulary), tokens(shape[0], max(shape[1] // 4, 8), vocabulary)


def t5_logits(model: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
    found: Tensor = model(input_ids=x, decoder_input_ids=labels).logits
    return found


def build_whisper(tiny: bool) -> nn.Module:
    width, depth, heads = (64, 1, 4) if tiny else (1024, 3, 16)
    sizes: Config = {
        "vocab_size": 96 if tiny else 51865,
        "d_model": width,
        "max_source_positions": 16 if tiny else 1500,
        "max_target_positions": 32 if tiny else 448,
        "decoder_start_token_id": 1,
    }
    for side in ("encoder", "decoder"):
        sizes |= {f"{side}_layers": depth, f"{side}_attention_heads": heads,
                  f"{side}_ffn_dim": 4 * width, f"{side}_layerdrop": 0.0}  # fmt: skip
    return build("AutoModelForSpeechSeq2Seq", "whisper", sizes)


def whisper_data(model: nn.Module, tiny: bool) -> Data:
    batch, frames, length, vocabulary = (2, 32, 8, 96) if tiny else (8, 3000, 256, 51865)
    sound = torch.randn(batch, 80, frames, dtype=dtype_of(model))
    return sound, tokens(batch, length, vocabulary)


def whisper_loss(model: nn.Module, sound: Tensor, labels: Tensor) -> Tensor:
    loss: Tensor = model(input_features=sound, labels=labels).loss
    return loss


def whisper_logits(model: nn.Module, sound: Tensor, labels: Tensor) -> Tensor:
    found: Tensor = model(input_features=sound, decoder_input_ids=labels).logits
    return found


def build_clip(tiny: bool) -> nn.Module:
    """The widths of ViT-L/14 and of its text tower."""
    text = {**encoder(49408, 768, 12, 3), "pad_token_id": 1, "eos_token_id": 2}
    vision = {**encoder(1, 1024, 16, 3), "image_size": 224, "patch_size": 14}
    if tiny:
        text |= {**SMALL, "max_position_embeddings": 32}
        vision |= {**SMALL, "image_size": 32, "patch_size": 8}
    vision.pop("vocab_size")
    width = 32 if tiny else 768
    config = {"text_config": text, "vision_config": vision, "projection_dim": width}
    return build("AutoModel", "clip", config)


def clip_data(model: nn.Module, tiny: bool) -> Data:
    batch, length, vocabulary, side = (2, 16, 96, 32) if tiny else (64, 77, 49408, 224)
    return tokens(batch, length, vocabulary), torch.randn(
        batch, 3, side, side, dtype=dtype_of(model)
    )


def clip_loss(model: nn.Module, text: Tensor, pictures: Tensor) -> Tensor:
    loss: Tensor = model(input_ids=text, pixel_values=pictures, return_loss=True).loss
    return loss


def clip_output(model: nn.Module, text: Tensor, pictures: Tensor) -> Tensor:
    found: Tensor = model(input_ids=text, pixel_values=pictures).logits_per_image
    return found


MODELS: tuple[Model, ...] = (
    *TEXT,
    Model("t5", build_t5, t5_data, labelled_loss, t5_logits, "transformers"),
    Model("whisper", build_whisper, whisper_data, whisper_loss, whisper_logits, "transformers"),
    Model("clip", build_clip, clip_data, clip_loss, clip_output, "transformers"),
)
