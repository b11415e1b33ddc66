"""Trains a byte-level language model on Python's own sources, with and without fusedops.

    python examples/train_lm.py --fused none --log none.csv
    python examples/train_lm.py --fused fuse --log fuse.csv        # fusedops.fuse(model)
    python examples/train_lm.py --fused inductor --log graph.csv   # torch.compile, our graph pass
    python examples/train_lm.py --fp8 block --log fp8.csv          # fuse with a recipe of FP8

A Llama in plain torch, AdamW, clipped gradients, a cosine schedule; fp32 weights under bf16
autocast on a GPU. Seed and step alone decide which bytes a batch holds, so that the runs see the
same data in the same order and their losses can be laid over each other. `--checkpoint FILE` saves,
and goes on from the file where there is one. `--preset tiny` takes seconds on a CPU.
"""

from __future__ import annotations

import argparse
import csv
import math
import resource
import statistics
import sysconfig
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fusedops
from fusedops import fp8

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

BYTES = 256
VALIDATION = 0.05  # of the corpus, its end
VALIDATION_BATCHES = 8
BETAS, WEIGHT_DECAY, MAX_NORM = (0.9, 0.95), 0.1, 1.0
COLUMNS = ("step", "loss", "lr", "grad_norm", "tokens_per_s", "peak_mb")


@dataclass(frozen=True)
class Preset:
    dim: int
    hidden: int
    heads: int
    depth: int
    length: int
    batch: int
    steps: int
    warmup: int
    lr: float


PRESETS = {
    "tiny": Preset(64, 160, 4, 2, 64, 8, 60, 5, 3e-3),
    "small": Preset(512, 1408, 8, 8, 1024, 16, 1000, 50, 1e-3),
    "medium": Preset(1024, 2816, 16, 12, 1024, 16, 2000, 100, 6e-4),
    "large": Preset(2048, 5632, 16, 16, 2048, 8, 4000, 200, 3e-4),
}


# ---- the model, as anybody writes it ----


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        heads = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k, v = heads.unbind()  # (batch, heads, length, head)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(dim, hidden, bias=False)
        self.up = nn.Linear(dim, hidden, bias=False)
        self.down = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, dim: int, hidden: int, heads: int) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.attention = Attention(dim, heads)
        self.mlp = FeedForward(dim, hidden)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.mlp(self.mlp_norm(x))


class Llama(nn.Module):
    cos: Tensor
    sin: Tensor

    def __init__(self, p: Preset) -> None:
        super().__init__()
        self.embedding = nn.Embedding(BYTES, p.dim)
        self.blocks = nn.ModuleList(Block(p.dim, p.hidden, p.heads) for _ in range(p.depth))
        self.norm = nn.RMSNorm(p.dim)
        self.head = nn.Linear(p.dim, BYTES, bias=False)
        half = p.dim // p.heads // 2
        angles = torch.outer(torch.arange(p.length), 10000.0 ** (-torch.arange(half) / half))
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embedding(x)
        for block in self.blocks:
            h = block(h, self.cos, self.sin)
        return self.head(self.norm(h))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of halves."""
    a, b = x.float().chunk(2, -1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), -1).type_as(x)


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1).float(), target.flatten())


# ---- the data ----


def read_corpus(folder: Path | None, most: int) -> Tensor:
    """The bytes of Python's own sources and documents, or of a folder's, in the order of paths."""
    root = folder or Path(sysconfig.get_path("stdlib"))
    names = (p for p in root.rglob("*") if p.suffix in (".py", ".txt", ".rst", ".md"))
    text = bytearray()
    own = (p for p in names if "site-packages" not in p.relative_to(root).parts and p.is_file())
    for path in sorted(own):
        text += path.read_bytes() + b"\0"
        if len(text) >= most:
            break
    if not text:
        raise SystemExit(f"train_lm: no text in {root}")
    return torch.frombuffer(text[:most], dtype=torch.uint8)


def batch_at(data: Tensor, step: int, seed: int, p: Preset) -> tuple[Tensor, Tensor]:
    """Inputs and the bytes behind them: a function of seed and step, whatever ran before."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    starts = torch.randint(len(data) - p.length, (p.batch,), generator=generator)
    rows = data[starts[:, None] + torch.arange(p.length + 1)].long()
    return rows[:, :-1], rows[:, 1:]


# ---- the loop ----


class Trainer:
    def __init__(self, options: argparse.Namespace, p: Preset, data: Tensor) -> None:
        self.options, self.p, self.device = options, p, options.device
        split = int(len(data) * (1 - VALIDATION))
        self.train_data, self.validation_data = data[:split], data[split:]
        torch.manual_seed(options.seed)
        self.model = Llama(p).to(self.device)
        if options.fused == "fuse":
            recipe = None if options.fp8 is None else fp8.Recipe(options.fp8, when=options.fp8_when)
            print(fusedops.fuse(self.model, fp8=recipe))
        self.criterion: Callable[[Tensor, Tensor], Tensor] = cross_entropy
        if options.fused == "fuse":
            self.criterion = fusedops.fuse_loss(cross_entropy)
        self.loss: Callable[[Tensor, Tensor], Tensor] = self._loss
        if options.fused == "inductor":
            self.loss = torch.compile(self._loss, **fusedops.inductor())
        self.optimizer = torch.optim.AdamW(self._groups(), lr=p.lr, betas=BETAS)
        self.step = 0

    def _loss(self, x: Tensor, target: Tensor) -> Tensor:
        return self.criterion(self.model(x), target)

    def _groups(self) -> list[dict[str, Any]]:
        """Matrices decay, the weights of norms do not."""
        matrices = [w for w in self.model.parameters() if w.ndim > 1]
        vectors = [w for w in self.model.parameters() if w.ndim <= 1]
        decays = {"params": matrices, "weight_decay": WEIGHT_DECAY}
        return [decays, {"params": vectors, "weight_decay": 0.0}]

    def learning_rate(self) -> float:
        """Linear warm-up, then a cosine down to a tenth."""
        if self.step < self.p.warmup:
            return self.p.lr * (self.step + 1) / self.p.warmup
        done = (self.step - self.p.warmup) / max(self.p.steps - self.p.warmup, 1)
        return self.p.lr * (0.1 + 0.45 * (1 + math.cos(math.pi * done)))

    def train_step(self) -> tuple[Tensor, Tensor]:
        """The loss before the update and the norm of its gradient."""
        lr = self.learning_rate()
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        loss = self.evaluate(self.train_data, self.step)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), MAX_NORM)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        return loss.detach(), norm

    def evaluate(self, data: Tensor, step: int) -> Tensor:
        x, target = (t.to(self.device) for t in batch_at(data, step, self.options.seed, self.p))
        half = self.device.type == "cuda"
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=half):
            return self.loss(x, target)

    @torch.no_grad()
    def validate(self) -> float:
        losses = [self.evaluate(self.validation_data, -1 - i) for i in range(VALIDATION_BATCHES)]
        return float(torch.stack(losses).mean())

    def save(self, file: Path) -> None:
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        temporary = file.with_suffix(".part")
        torch.save({**state, "step": self.step}, temporary)
        temporary.replace(file)

    def resume(self, file: Path) -> None:
        state = torch.load(file, map_location=self.device, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = state["step"]
        print(f"goes on behind step {self.step} of {file}")


def peak_mb(device: torch.device) -> float:
    """The peak of the GPU's allocator, or of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) * 1e-6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1.024e-3


class Log:
    """A row every few steps, printed and in the file; a run that goes on appends."""

    def __init__(self, file: Path | None, goes_on: bool) -> None:
        self.rows: list[dict[str, str]] = []
        self.file = file
        if file and not (goes_on and file.exists()):
            file.write_text(",".join(COLUMNS) + "\n")

    def write(self, step: int, *values: float) -> None:
        texts = (f"{value:.6g}" for value in values)
        row = dict(zip(COLUMNS, (str(step), *texts), strict=True))
        self.rows.append(row)
        print("  ".join(f"{name} {value}" for name, value in row.items()), flush=True)
        if self.file:
            with self.file.open("a", newline="") as out:
                csv.DictWriter(out, COLUMNS, lineterminator="\n").writerow(row)

    def tokens_per_s(self) -> float:
        """Without the first interval, which warms up and compiles."""
        speeds = [float(row["tokens_per_s"]) for row in self.rows]
        return statistics.median(speeds[1:] or speeds or [math.nan])


def train(trainer: Trainer, log: Log) -> None:
    """Up to the last step; waits for the GPU only where a row is logged."""
    options, p = trainer.options, trainer.p
    last = min(p.steps, options.stop_at or p.steps)
    begin, first = time.perf_counter(), trainer.step
    while trainer.step < last:
        lr = trainer.learning_rate()
        loss, norm = trainer.train_step()
        if trainer.step % options.log_every == 0 or trainer.step == last:
            values = float(loss), lr, float(norm)
            tokens = (trainer.step - first) * p.batch * p.length
            speed = tokens / (time.perf_counter() - begin)
            log.write(trainer.step, *values, speed, peak_mb(trainer.device))
            begin, first = time.perf_counter(), trainer.step
        if options.checkpoint and (trainer.step % options.save_every == 0 or trainer.step == last):
            trainer.save(options.checkpoint)


def main(argv: Sequence[str] | None = None) -> int:
    options = parser().parse_args(argv)
    if options.fp8 and options.fused != "fuse":
        raise SystemExit(f"train_lm: --fp8 goes with --fused fuse; got {options.fused}")
    p = PRESETS[options.preset]
    p = replace(p, steps=options.steps or p.steps)
    data = read_corpus(options.corpus, options.corpus_bytes)
    if len(data) * VALIDATION <= p.length:
        raise SystemExit(f"train_lm: {len(data)} bytes are too few for rows of {p.length}")
    trainer = Trainer(options, p, data)
    weights = sum(w.numel() for w in trainer.model.parameters())
    print(f"{weights * 1e-6:.1f} M parameters, {len(data) * 1e-6:.1f} MB of text, {options.device}")
    goes_on = options.checkpoint is not None and options.checkpoint.exists()
    if goes_on:
        trainer.resume(options.checkpoint)
    log = Log(options.log, goes_on)
    train(trainer, log)
    how = options.fused + (f", FP8 {options.fp8}" if options.fp8 else "")
    print(
        f"fused {how}: validation loss {trainer.validate():.4f}, "
        f"{log.tokens_per_s():.0f} tokens/s, peak memory {peak_mb(options.device):.0f} MB"
    )
    return 0


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number from 1; got {text}")
    return int(text)


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = found.add_argument
    add("--fused", choices=("none", "fuse", "inductor"), default="fuse")
    add("--fp8", choices=("block", "row", "tensor"), help="scaling of FP8, with --fused fuse")
    add("--fp8-when", choices=("auto", "always"), default="always")
    gpu = torch.cuda.is_available()
    add("--preset", choices=tuple(PRESETS), default="small" if gpu else "tiny")
    add("--steps", type=positive, help="default: the preset's")
    add("--stop-at", type=positive, metavar="STEP", help="stop early, on the schedule of all steps")
    add("--device", type=torch.device, default=torch.device("cuda" if gpu else "cpu"))
    add("--corpus", type=Path, metavar="FOLDER", help="default: Python's standard library")
    add("--corpus-bytes", type=positive, default=50_000_000, help="use no more of it")
    add("--seed", type=int, default=0)
    add("--log", type=Path, metavar="FILE.csv")
    add("--log-every", type=positive, default=10)
    add("--checkpoint", type=Path, metavar="FILE.pt")
    add("--save-every", type=positive, default=200)
    return found


if __name__ == "__main__":
    raise SystemExit(main())
