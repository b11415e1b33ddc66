"""Trains PointNet++ or DGCNN to tell objects from clouds of their surfaces.

    python examples/train_pointcloud.py --out run                      # twelve made shapes
    pip install --no-deps metaworld==3.1.1                             # 37 MB: meshes and licence
    python examples/train_pointcloud.py --data metaworld --out run     # 31 objects of CAD models
    python examples/train_pointcloud.py --out run --plain              # the same in plain torch
    torchrun --nproc-per-node 2 examples/train_pointcloud.py --out run # several GPUs, or processes

Every cloud is a view of its own: turned, stretched, cut, with noise; doors and drawers of real
objects stand at all angles. Which one comes when is a function of seed and step, also for several
processes, which share each batch. A run goes on from --out's checkpoint, bit by bit as if it had
not stopped. --out also gets train.csv and test.csv, with --pictures confusion.png and clouds.png
(matplotlib), with --tensorboard its files (tensorboard). `--preset small` takes minutes on a CPU.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pointcloud import errors, logs, mujoco, pictures, procedural
from pointcloud.data import TEST_SEED, Kinds, Shapes, views
from pointcloud.errors import positive
from pointcloud.models import NAMES, PRESETS
from pointcloud.ranks import Ranks
from pointcloud.trainer import HALVES, Trainer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SHOWN = 24  # clouds of the picture


def main(argv: Sequence[str] | None = None) -> int:
    options = parser().parse_args(argv)
    if options.pictures:
        logs.need("matplotlib", "--pictures")
    if options.tensorboard:
        logs.need("torch.utils.tensorboard", "--tensorboard")
    if options.plain and options.sync_batch_norm and not torch.cuda.is_available():
        raise errors.failure("--plain with --sync-batch-norm needs a GPU: torch's norm is for GPUs")
    errors.make_folder(options.out)
    p = PRESETS[options.preset]
    p = replace(p, epochs=options.epochs or p.epochs)
    kinds = find_kinds(options)
    ranks = Ranks.join(options.device)
    try:
        if p.batch % ranks.size:
            raise errors.failure(f"{ranks.size} processes cannot share {p.batch}")
        train = Shapes.make(kinds, p.each, p.pool, 0)  # the same for every seed
        test = Shapes.make(kinds, p.test_each, p.pool, TEST_SEED)
        run(Trainer(options, p, train, test, ranks))
    finally:
        ranks.leave()
    return 0


def find_kinds(options: argparse.Namespace) -> Kinds:
    if options.data == "procedural":
        return procedural.KINDS
    return mujoco.find_objects(options.meshes)


def run(trainer: Trainer) -> None:
    options, ranks = trainer.options, trainer.ranks
    checkpoint = options.out / "checkpoint.pt"
    if checkpoint.exists():
        trainer.resume(checkpoint)
    if ranks.first:
        weights = sum(w.numel() for w in trainer.model.parameters())
        print(f"{weights * 1e-3:.0f} k parameters, {len(trainer.train.names)} classes, "
              f"{len(trainer.train)} items, {trainer.device}, {ranks.size} process(es), "
              f"steps {trainer.step} to {trainer.last}", flush=True)  # fmt: skip
    for loss, confusion in epochs(trainer, Writer(trainer), checkpoint):
        if ranks.first:
            accuracy = float(confusion.diagonal().sum() / confusion.sum())
            print(f"epoch {trainer.epoch:.0f}: test loss {loss:.4f}, accuracy {accuracy:.4f}",
                  flush=True)  # fmt: skip
    if options.pictures and ranks.first:
        _, confusion = alone(trainer).evaluate()
        pictures.draw_confusion(confusion, trainer.test.names, options.out / "confusion.png")
        draw_some(trainer, options.out / "clouds.png")
    ranks.wait()


def epochs(trainer: Trainer, writer: Writer, checkpoint: Path) -> Iterator[tuple[float, Tensor]]:
    """Trains up to the last step; the test's loss and confusion behind every epoch."""
    options = trainer.options
    stop = min(trainer.last, options.stop_at or trainer.last)
    bar = progress_bar(trainer, stop)
    while trainer.step < stop:
        lr = trainer.learning_rate()
        loss, norm = trainer.train_step()
        bar.update()
        if trainer.step % options.log_every == 0 or trainer.step == stop:
            writer.train(float(loss), lr, float(norm))
            bar.set_postfix(loss=f"{float(loss):.3f}")
        if trainer.step % trainer.steps_of_epoch == 0:
            found = trainer.evaluate()
            writer.test(*found)
            yield found
        if trainer.step % options.save_every == 0 or trainer.step == stop:
            trainer.save(checkpoint)
    bar.close()
    writer.board.close()


class Writer:
    """Logs of the first process."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer, out = trainer, trainer.options.out
        self.first = trainer.ranks.first
        board = out / "tensorboard" if trainer.options.tensorboard and self.first else None
        self.board = logs.Board(board, trainer.step)
        self.begin, self.since = time.perf_counter(), trainer.step
        if self.first:
            self.train_log = logs.Log(out / "train.csv", logs.TRAIN, trainer.step)
            self.test_log = logs.Log(out / "test.csv", logs.TEST, trainer.step)

    def train(self, loss: float, lr: float, norm: float) -> None:
        t = self.trainer
        clouds = (t.step - self.since) * t.p.batch / (time.perf_counter() - self.begin)
        row = (t.step, t.epoch, loss, lr, norm, clouds)
        if self.first:
            self.train_log.write(*row)
            self.board.write("train", logs.TRAIN, row)
        self.begin, self.since = time.perf_counter(), t.step

    def test(self, loss: float, confusion: Tensor) -> None:
        right, each = confusion.diagonal().double(), confusion.sum(1).double()
        accuracy = float(right.sum() / each.sum())
        row = (self.trainer.step, self.trainer.epoch, loss, accuracy, float((right / each).mean()))
        if self.first:
            self.test_log.write(*row)
            self.board.write("test", logs.TEST, row)
        self.begin, self.since = time.perf_counter(), self.trainer.step


class NoBar:
    """In the place of tqdm's."""

    def update(self) -> None: ...
    def set_postfix(self, **_: str) -> None: ...
    def close(self) -> None: ...


def progress_bar(trainer: Trainer, stop: int) -> NoBar:
    """On a terminal, where tqdm is installed."""
    if not trainer.ranks.first or not sys.stderr.isatty():
        return NoBar()
    try:
        from tqdm import tqdm
    except ImportError:
        print("tqdm is not installed: no progress bar", file=sys.stderr)
        return NoBar()
    bar: NoBar = tqdm(total=stop, initial=trainer.step, unit="step")
    return bar


def alone(trainer: Trainer) -> Trainer:
    """For what the first process does without the others."""
    trainer.ranks = Ranks(0, 1, trainer.device)
    return trainer


def draw_some(trainer: Trainer, file: Path) -> None:
    """Test clouds of as many classes as fit, and what they are taken for."""
    items = torch.linspace(0, len(trainer.test) - 1, min(SHOWN, len(trainer.test))).long()
    clouds, labels = views(trainer.test, items, trainer.p.points, TEST_SEED)
    taken_for = trainer.logits(clouds).argmax(1)
    names = trainer.test.names
    pictures.draw_clouds(clouds, labels.tolist(), taken_for.tolist(), names, file)


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = found.add_argument
    gpu = torch.cuda.is_available()
    add("--out", type=Path, required=True, metavar="FOLDER")
    add("--data", choices=("procedural", "metaworld"), default="procedural")
    add(
        "--meshes", type=Path, metavar="FOLDER", help="of metaworld; default: where it is installed"
    )
    add("--model", choices=NAMES, default="ssg")
    add("--preset", choices=tuple(PRESETS), default="full" if gpu else "small")
    add("--plain", action="store_true", help="layers in plain torch, over the same searches")
    add("--precision", choices=tuple(HALVES), default="bf16" if gpu else "fp32")
    add("--sync-batch-norm", action="store_true", help="statistics of all processes (GPUs)")
    add("--epochs", type=positive, help="default: the preset's")
    add("--stop-at", type=positive, metavar="STEP", help="stop early, on the schedule of all steps")
    add("--device", type=errors.device, help="default: the GPU, else the CPU")
    add("--seed", type=errors.seed, default=0)
    add("--log-every", type=positive, default=10)
    add("--save-every", type=positive, default=200)
    add("--pictures", action="store_true")
    add("--tensorboard", action="store_true")
    return found


if __name__ == "__main__":
    raise SystemExit(main())
