"""Finetunes a language model with the Hugging Face Trainer: one line brings fusedops in.

    python examples/finetune_hf.py            # random weights, Python's sources, no network
    python examples/finetune_hf.py --plain    # the same without the line, to compare
    python examples/finetune_hf.py --model gpt2 --text book.txt

Needs transformers and accelerate.
"""

from __future__ import annotations

import argparse
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import Dataset
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
)

import fusedops

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, nn

TINY = {
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}


class Windows(Dataset[dict[str, Any]]):
    """A text cut into pieces of the same length, which are their own labels."""

    def __init__(self, tokens: Tensor, length: int) -> None:
        self.rows = tokens[: len(tokens) // length * length].view(-1, length)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


def load(name: str | None, text: str) -> tuple[nn.Module, Tensor]:
    """A model and the text in its tokens; without a name a tiny Llama on bytes."""
    if name is None:
        model = LlamaForCausalLM(LlamaConfig(vocab_size=256, **TINY))
        return model, torch.tensor(list(text.encode()))
    tokens = AutoTokenizer.from_pretrained(name)(text, return_tensors="pt").input_ids[0]
    return AutoModelForCausalLM.from_pretrained(name), tokens


def finetune(options: argparse.Namespace) -> float:
    """The mean training loss."""
    torch.manual_seed(options.seed)
    source = options.text or Path(sysconfig.get_path("stdlib")) / "argparse.py"
    model, tokens = load(options.model, source.read_text())
    if not options.plain:
        print(fusedops.fuse(model))  # the one line
    settings = TrainingArguments(
        output_dir=str(options.out),
        max_steps=options.steps,
        per_device_train_batch_size=options.batch,
        learning_rate=options.lr,
        logging_steps=max(options.steps // 10, 1),
        bf16=torch.cuda.is_available(),
        use_cpu=not torch.cuda.is_available(),
        seed=options.seed,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    trainer = Trainer(model=model, args=settings, train_dataset=Windows(tokens, options.length))
    loss: float = trainer.train().training_loss
    return loss


def main(argv: Sequence[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--model", metavar="NAME_OR_PATH", help="default: a tiny Llama of random weights")
    add("--text", type=Path, metavar="FILE", help="default: a module of Python's library")
    add("--plain", action="store_true", help="without fusedops")
    add("--steps", type=int, default=50)
    add("--batch", type=int, default=8)
    add("--length", type=int, default=128)
    add("--lr", type=float, default=1e-3)
    add("--seed", type=int, default=0)
    add("--out", type=Path, default=Path("/tmp/finetune_hf"), help="the Trainer's folder")
    loss = finetune(parser.parse_args(argv))
    print(f"mean training loss {loss:.4f}")
    return loss


if __name__ == "__main__":
    main()
