"""Trains a small ResNet on images, of torch.nn and of fusedops.nn, over several seeds.

    python examples/train_images.py [--epochs 8] [--seeds 3] [--device cpu] [--csv F] [--plot F]

Real images that ship with scikit-learn (1797 scans of digits), the same seeds, the same batches.
On a GPU it trains in mixed precision, channels last. Prints one table; exits with 1 where the
mean test accuracies differ by more than 1 %. A model that exists needs no other modules: see
`fusedops.fuse`.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

import fusedops

WIDTHS = (16, 32, 64)
CLASSES = 10
BATCH = 64
LEARNING_RATE = 2e-3
SHIFT = 1  # pixels that an image is moved by at most
MAX_DIFFERENCE = 0.01  # of the two mean test accuracies
VARIANTS = ("torch", "fusedops")
FIELDS = ("variant", "precision", "seed", "epoch", "loss", "accuracy", "step_ms")


class Plain(nn.Module):
    """``relu(bn(conv(x)) + residual)`` by torch's modules."""

    def __init__(self, conv: nn.Conv2d, bn: nn.BatchNorm2d, activation: str | None) -> None:
        super().__init__()
        self.conv, self.bn, self.activation = conv, bn, activation

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        y: Tensor = self.bn(self.conv(x))
        y = y if residual is None else y + residual
        return y if self.activation is None else F.relu_(y)


def layer(
    variant: str, inside: int, outside: int, kernel: int, stride: int, activation: str | None
) -> nn.Module:
    """One convolution with its norm: the same parameters in both variants."""
    conv = nn.Conv2d(inside, outside, kernel, stride, kernel // 2, bias=False)
    norm = nn.BatchNorm2d(outside)
    if variant == "torch":
        return Plain(conv, norm, activation)
    return fusedops.nn.ConvBNAct.from_torch(conv, norm, activation=activation)


class Block(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, variant: str, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.first = layer(variant, inside, outside, 3, stride, "relu")
        self.second = layer(variant, outside, outside, 3, 1, "relu")
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or inside != outside:
            self.shortcut = layer(variant, inside, outside, 1, stride, None)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(self.first(x), self.shortcut(x))
        return y


def small_resnet(variant: str) -> nn.Sequential:
    """A stem, a block for each width, the mean over pixels and a linear layer."""
    layers: list[nn.Module] = [layer(variant, 1, WIDTHS[0], 3, 1, "relu")]
    before = WIDTHS[0]
    for i, width in enumerate(WIDTHS):
        layers.append(Block(variant, before, width, 1 if i == 0 else 2))
        before = width
    pooled = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, CLASSES))
    return nn.Sequential(*layers, *pooled)


@dataclass
class Data:
    """Images (N, 1, 8, 8) in [0, 1] and digits (N,)."""

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor

    @classmethod
    def load(cls, device: torch.device) -> Data:
        pixels, digits = load_digits(return_X_y=True)
        parts = train_test_split(pixels, digits, test_size=0.3, random_state=0, stratify=digits)
        images = (torch.tensor(p / 16.0, dtype=torch.float32).view(-1, 1, 8, 8) for p in parts[:2])
        train_x, test_x = (x.to(device, memory_format=torch.channels_last) for x in images)
        train_y, test_y = (torch.tensor(p).to(device) for p in parts[2:])
        return cls(train_x, train_y, test_x, test_y)


class Trainer:
    """One model of one seed: the loop that anybody writes."""

    def __init__(self, variant: str, seed: int, data: Data, epochs: int) -> None:
        self.data, self.device = data, data.train_x.device
        self.half = self.device.type == "cuda"
        torch.manual_seed(seed)
        self.model = small_resnet(variant).to(self.device, memory_format=torch.channels_last)
        steps = epochs * -(-len(data.train_x) // BATCH)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), weight_decay=0.01)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, LEARNING_RATE, steps)
        self.random = torch.Generator().manual_seed(seed)

    def logits(self, x: Tensor) -> Tensor:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.half):
            y: Tensor = self.model(x)
        return y.float()

    def moved(self, x: Tensor) -> Tensor:
        """Images shifted by up to a pixel each way, all of a batch alike."""
        dy, dx = (int(i) for i in torch.randint(0, 2 * SHIFT + 1, (2,), generator=self.random))
        return F.pad(x, (SHIFT,) * 4)[:, :, dy : dy + 8, dx : dx + 8]

    def epoch(self) -> tuple[float, float]:
        """(mean loss, milliseconds a step)."""
        self.model.train()
        order = torch.randperm(len(self.data.train_x), generator=self.random).to(self.device)
        losses = []
        self._synchronize()
        start = time.perf_counter()
        for batch in order.split(BATCH):
            self.optimizer.zero_grad()
            x = self.moved(self.data.train_x[batch])
            loss = F.cross_entropy(self.logits(x), self.data.train_y[batch])
            loss.backward()
            self.optimizer.step()
            self.schedule.step()
            losses.append(loss.detach())
        self._synchronize()
        took = (time.perf_counter() - start) * 1e3 / len(losses)
        return float(torch.stack(losses).mean()), took

    @torch.no_grad()
    def accuracy(self) -> float:
        self.model.eval()
        hits = self.logits(self.data.test_x).argmax(1) == self.data.test_y
        return float(hits.float().mean())

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def train(device: torch.device, epochs: int, seeds: int) -> list[dict[str, object]]:
    """A row for each variant, seed and epoch; the variants take turns."""
    data = Data.load(device)
    precision = "bf16" if device.type == "cuda" else "fp32"
    rows: list[dict[str, object]] = []
    for seed in range(seeds):
        trainers = {variant: Trainer(variant, seed, data, epochs) for variant in VARIANTS}
        for epoch in range(epochs):
            for variant in VARIANTS if epoch % 2 else VARIANTS[::-1]:
                loss, took = trainers[variant].epoch()
                accuracy = trainers[variant].accuracy()
                values = (variant, precision, seed, epoch + 1, f"{loss:.4f}", f"{accuracy:.4f}")
                rows.append(dict(zip(FIELDS, (*values, f"{took:.2f}"), strict=True)))
    return rows


def summary(rows: list[dict[str, object]], epochs: int) -> bool:
    """Prints the table; True where both variants reach the same accuracy."""
    means = []
    print(f"{'':10} {'test accuracy of each seed':40} {'mean':>7} {'step, ms':>9}")
    for variant in VARIANTS:
        mine = [row for row in rows if row["variant"] == variant]
        last = [float(str(row["accuracy"])) for row in mine if row["epoch"] == epochs]
        took = [float(str(row["step_ms"])) for row in mine if row["epoch"] != 1 or epochs == 1]
        means.append(statistics.mean(last))
        each = " ".join(f"{accuracy:.2%}" for accuracy in last)
        print(f"{variant:10} {each:40} {means[-1]:7.2%} {statistics.median(took):9.2f}")
    if rows[0]["precision"] == "fp32":
        print("On a CPU the op is there to be right: torch's own kernels are as fast or faster.")
    agree = abs(means[0] - means[1]) <= MAX_DIFFERENCE
    print(f"Accuracies {'agree' if agree else 'DISAGREE'} (allowed difference of the means "
          f"{MAX_DIFFERENCE:.0%}).")  # fmt: skip
    return agree


def plot(rows: list[dict[str, object]], path: Path) -> None:
    """Test accuracy by epoch, a line for each seed."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "fusedops"
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 4))
    for variant, style in zip(VARIANTS, ("C7-", "C0--"), strict=True):
        mine = [row for row in rows if row["variant"] == variant]
        for seed in sorted({int(str(row["seed"])) for row in mine}):
            curve = [row for row in mine if row["seed"] == seed]
            epochs = [int(str(row["epoch"])) for row in curve]
            values = [100 * float(str(row["accuracy"])) for row in curve]
            axes.plot(epochs, values, style, label=variant if seed == 0 else None)
    axes.set(xlabel="epoch", ylabel="test accuracy, %", title="small ResNet on scans of digits")
    axes.legend()
    figure.savefig(path, metadata={"Date": None})


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", type=torch.device, help="default: the GPU, else the CPU")
    parser.add_argument("--csv", type=Path, help="write a row for each variant, seed and epoch")
    parser.add_argument("--plot", type=Path, help="draw the accuracies (.svg or .png)")
    options = parser.parse_args(arguments)
    if options.epochs < 1 or options.seeds < 1:
        parser.error("--epochs and --seeds must be at least 1")
    device = options.device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu":
        torch.set_num_threads(1)  # threads only wait for each other on images this small
    rows = train(device, options.epochs, options.seeds)
    if options.csv:
        with options.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, FIELDS)
            writer.writeheader()
            writer.writerows(rows)
    if options.plot:
        plot(rows, options.plot)
    return 0 if summary(rows, options.epochs) else 1


if __name__ == "__main__":
    sys.exit(main())
