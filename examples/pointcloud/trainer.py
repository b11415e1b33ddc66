"""One training: steps, tests, and checkpoints from which it goes on bit by bit as it would have."""

from __future__ import annotations

import math
import pickle
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from .data import TEST_SEED, Shapes, batch_at, views
from .errors import failure, reading
from .models import Preset, build, plain

if TYPE_CHECKING:
    import argparse
    import contextlib
    from pathlib import Path

    from .ranks import Ranks

WEIGHT_DECAY, SMOOTHING, MAX_NORM, WARMUP = 0.05, 0.1, 5.0, 0.05
# What reading of one that is none ends in.
_NO_CHECKPOINT = (pickle.UnpicklingError, EOFError, KeyError, TypeError, ValueError, RuntimeError,
                  IndexError, AttributeError)  # fmt: skip
HALVES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


class Trainer:
    def __init__(
        self, options: argparse.Namespace, p: Preset, train: Shapes, test: Shapes, ranks: Ranks
    ) -> None:
        self.options, self.p, self.ranks, self.device = options, p, ranks, ranks.device
        self.train, self.test = train.to(self.device), test.to(self.device)
        self.steps_of_epoch = len(train) // p.batch
        self.last = self.steps_of_epoch * p.epochs
        self.step = 0
        torch.manual_seed(options.seed)  # of every process: they start from one model
        model = build(options.model, options.preset, len(train.names))
        self.model = (plain(model) if options.plain else model).to(self.device)
        if options.sync_batch_norm:
            self.model = nn.SyncBatchNorm.convert_sync_batchnorm(self.model)
        self.net: nn.Module = self.model
        if ranks.size > 1:
            where = [self.device] if self.device.type == "cuda" else None
            self.net = nn.parallel.DistributedDataParallel(self.model, device_ids=where)
        torch.manual_seed(options.seed + 7919 * ranks.rank)  # dropout differs between processes
        matrices = [w for w in self.model.parameters() if w.ndim > 1]
        vectors = [w for w in self.model.parameters() if w.ndim <= 1]
        groups = [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": vectors}]
        self.optimizer = torch.optim.AdamW(groups, lr=p.lr, weight_decay=0.0)
        self.half = HALVES[options.precision]
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.half is torch.float16)

    @property
    def epoch(self) -> float:
        return self.step / self.steps_of_epoch

    def learning_rate(self) -> float:
        """Linear warm-up, then a cosine to nothing: a function of the step alone."""
        warmup = max(1, int(WARMUP * self.last))
        if self.step < warmup:
            return self.p.lr * (self.step + 1) / warmup
        done = (self.step - warmup) / max(self.last - warmup, 1)
        return self.p.lr * 0.5 * (1 + math.cos(math.pi * done))

    def precision(self) -> contextlib.AbstractContextManager[Any]:
        return torch.autocast(self.device.type, dtype=self.half, enabled=self.half is not None)

    def train_step(self) -> tuple[Tensor, Tensor]:
        """Loss and norm of the gradient, of all processes; both stay on the device."""
        self.net.train()
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate()
        clouds, labels = batch_at(
            self.train, self.step, self.p.batch, self.p.points, self.options.seed
        )
        with self.precision():
            logits = self.net(self.ranks.mine(clouds))
        target = self.ranks.mine(labels)
        loss = F.cross_entropy(logits.float(), target, label_smoothing=SMOOTHING)
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), MAX_NORM)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        self.step += 1
        return self.ranks.sum(loss.detach()) / self.ranks.size, norm

    @torch.no_grad()
    def evaluate(self) -> tuple[float, Tensor]:
        """Mean loss of the test clouds, and the confusion matrix on the CPU.

        Every test sees the same views of items that no training sees.
        """
        if self.ranks.size > 1:  # running statistics are those of the first process
            for buffer in self.model.buffers():
                dist.broadcast(buffer, 0)
        self.model.eval()
        classes = len(self.test.names)
        found = torch.zeros(classes, classes, device=self.device, dtype=torch.float64)
        total = torch.zeros((), device=self.device, dtype=torch.float64)
        for start in range(0, len(self.test), self.p.batch):
            items = torch.arange(start, min(start + self.p.batch, len(self.test)))
            clouds, labels = views(self.test, items, self.p.points, TEST_SEED + start)
            clouds, labels = self.ranks.mine(clouds), self.ranks.mine(labels)
            if len(clouds) == 0:
                continue
            logits = self.logits(clouds)
            total += F.cross_entropy(logits, labels, reduction="sum").double()
            found += torch.bincount(labels * classes + logits.argmax(1), minlength=classes**2).view(
                classes, classes
            )
        loss = self.ranks.sum(total) / len(self.test)
        return float(loss), self.ranks.sum(found).long().cpu()

    @torch.no_grad()
    def logits(self, clouds: Tensor) -> Tensor:
        self.model.eval()
        with self.precision():
            logits: Tensor = self.model(clouds)
        return logits.float()

    # ---- checkpoints ----

    def settings(self) -> dict[str, Any]:
        """What must be the same where a checkpoint goes on."""
        o = self.options
        names = ("model", "preset", "plain", "precision", "seed", "data", "sync_batch_norm")
        run = {name: getattr(o, name) for name in names}
        shared = {"epochs": self.p.epochs, "processes": self.ranks.size}
        return run | shared | {"device": self.device.type}

    def save(self, file: Path) -> None:
        """All processes call; the first one writes."""
        generators = [torch.get_rng_state()]
        if self.device.type == "cuda":
            generators.append(torch.cuda.get_rng_state(self.device))
        gathered = self.ranks.gather(generators)
        if self.ranks.first:
            state = {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "scaler": self.scaler.state_dict(),
                "generators": gathered,
                "step": self.step,
                "settings": self.settings(),
            }
            temporary = file.with_suffix(".part")
            torch.save(state, temporary)
            temporary.replace(file)
        self.ranks.wait()

    def resume(self, file: Path) -> None:
        with reading(file, "checkpoint of this script", *_NO_CHECKPOINT):
            state = torch.load(file, map_location="cpu", weights_only=True)
            settings = dict(state["settings"])
        for name, value in self.settings().items():
            was = settings.get(name)
            if was != value:
                raise failure(f"{file} has {name} {was}; this run {value}")
        with reading(file, "checkpoint of this script", *_NO_CHECKPOINT):
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.scaler.load_state_dict(state["scaler"])
            self.step = state["step"]
            generators = state["generators"][self.ranks.rank]
            torch.set_rng_state(generators[0])
            if self.device.type == "cuda":
                torch.cuda.set_rng_state(generators[1], self.device)
