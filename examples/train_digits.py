"""Trains a digit classifier twice, with torch.nn and with fusedops.nn, in three precisions.

    python examples/train_digits.py [--epochs 20] [--device cpu] [--no-layer-table]

Real images (scikit-learn's digits), the same seed, the same batches. Prints one table; exits with 1
when the test accuracies differ by more than 1 %. On a GPU a table of realistic layer sizes follows.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

import fusedops.nn

if TYPE_CHECKING:
    from collections.abc import Callable

SIZES = (64, 256, 128, 10)  # pixels, hidden, hidden, digits
BATCH = 64
LEARNING_RATE = 1e-3
SEED = 0
MAX_DIFFERENCE = 0.01  # of the two test accuracies
PRECISIONS = {"fp32": None, "bf16 autocast": torch.bfloat16, "fp16 + GradScaler": torch.float16}
CPU_NOTE = """On a CPU, layers this small are host time: each of ours enters autograd through
Python, where torch.nn is C++ throughout, and under bf16 forms what gelu sees, and the gradients
of fp32 weights, in fp32, to round them once."""
LAYERS = (  # M x N x K of the layer table
    ((8192, 4096, 1024), "relu"),
    ((8192, 1024, 4096), "relu"),
    ((16384, 3072, 768), "gelu_tanh"),
    ((65536, 256, 256), "relu"),
)


def torch_mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(SIZES[0], SIZES[1]),
        nn.ReLU(),
        nn.Linear(SIZES[1], SIZES[2]),
        nn.GELU(approximate="tanh"),
        nn.Linear(SIZES[2], SIZES[3]),
    )


def fused_mlp() -> nn.Module:
    return nn.Sequential(
        fusedops.nn.Linear(SIZES[0], SIZES[1], activation="relu"),
        fusedops.nn.Linear(SIZES[1], SIZES[2], activation="gelu_tanh"),
        fusedops.nn.Linear(SIZES[2], SIZES[3]),
    )


@dataclass
class Data:
    train_x: Tensor  # (1257, 64) in [0, 1]
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor

    @classmethod
    def load(cls, device: torch.device) -> Data:
        pixels, digits = load_digits(return_X_y=True)
        parts = train_test_split(pixels, digits, test_size=0.3, random_state=SEED, stratify=digits)
        train_x, test_x = (torch.tensor(p / 16.0, dtype=torch.float32) for p in parts[:2])
        train_y, test_y = (torch.tensor(p) for p in parts[2:])
        return cls(*(t.to(device) for t in (train_x, train_y, test_x, test_y)))


@dataclass
class Trainer:
    """One model in one precision: the loop that anybody writes."""

    make: Callable[[], nn.Module]
    autocast: torch.dtype | None
    data: Data
    step_us: list[float] = field(default_factory=list)  # per epoch

    def __post_init__(self) -> None:
        self.device = self.data.train_x.device
        torch.manual_seed(SEED)
        self.model = self.make().to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=LEARNING_RATE)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.autocast == torch.float16)
        self.shuffle = torch.Generator().manual_seed(SEED)

    def logits(self, x: Tensor) -> Tensor:
        enabled = self.autocast is not None
        with torch.autocast(self.device.type, dtype=self.autocast, enabled=enabled):
            y: Tensor = self.model(x)
        return y

    def epoch(self) -> None:
        order = torch.randperm(len(self.data.train_x), generator=self.shuffle).to(self.device)
        batches = order.split(BATCH)
        self._synchronize()
        start = time.perf_counter()
        for batch in batches:
            self.optimizer.zero_grad()
            loss = F.cross_entropy(
                self.logits(self.data.train_x[batch]).float(), self.data.train_y[batch]
            )
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        self._synchronize()
        self.step_us.append((time.perf_counter() - start) * 1e6 / len(batches))

    @torch.no_grad()
    def accuracy(self) -> float:
        hits = self.logits(self.data.test_x).argmax(1) == self.data.test_y
        return float(hits.float().mean())

    def median_step_us(self) -> float:
        return statistics.median(self.step_us[1:] or self.step_us)  # the first epoch warms up

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def train(device: torch.device, epochs: int) -> bool:
    """Prints the table; True when both libraries reach the same accuracy everywhere."""
    data = Data.load(device)
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    runs: dict[str, tuple[Trainer, Trainer]] = {}
    with Bar(len(PRECISIONS) * epochs) as bar:
        for name, dtype in PRECISIONS.items():
            pair = Trainer(torch_mlp, dtype, data), Trainer(fused_mlp, dtype, data)
            runs[name] = pair
            for epoch in range(epochs):
                for trainer in pair if epoch % 2 else pair[::-1]:  # in turns: a fair clock
                    trainer.epoch()
                bar.step(name)
    train_count, test_count = len(data.train_x), len(data.test_x)
    print(f"Digits: {train_count} training and {test_count} test images, {epochs} epochs, {where}")
    print(f"{'precision':18} {'test accuracy':>21} {'step time, us':>21} {'speed-up':>9}")
    print(f"{'':18} {'torch.nn':>10} {'fusedops':>10} {'torch.nn':>10} {'fusedops':>10}")
    agree = True
    for name, (plain, fused) in runs.items():
        accuracies = plain.accuracy(), fused.accuracy()
        us = plain.median_step_us(), fused.median_step_us()
        print(f"{name:18} {accuracies[0]:10.2%} {accuracies[1]:10.2%} ", end="")
        print(f"{us[0]:10.0f} {us[1]:10.0f} {us[0] / us[1]:8.2f}x")
        agree &= abs(accuracies[0] - accuracies[1]) <= MAX_DIFFERENCE
    verdict = "agree" if agree else "DISAGREE"
    print(f"Accuracies {verdict} (allowed difference {MAX_DIFFERENCE:.0%}).")
    if device.type == "cpu":
        print(CPU_NOTE)
    return agree


def layer_table(device: torch.device, rounds: int = 7) -> None:
    """GPU time of one layer, ours against nn.Linear + activation and torch.compile."""
    from fusedops.bench.runner import OURS, measure
    from fusedops.bench.suites.linear import LinearSuite, linear_case

    suite = LinearSuite()
    print("\nOne layer in bf16, GPU time in us (M x N x K; step = forward + backward)")
    print(f"{'layer':28} {'pass':5} {'nn.Linear':>10} {'compile':>10} {'fusedops':>10} speed-up")
    with Bar(2 * len(LAYERS)) as bar:
        for shape, activation in LAYERS:
            case = linear_case(shape, activation)
            for pass_ in suite.passes:
                peers = ("eager", "compile")
                result = measure(suite, case, "bf16", pass_, peers, device, rounds)
                us = {name: timing.us for name, timing in result.timings.items()}
                best = min(us[name] for name in peers if name in us)
                cells = [f"{us[p]:10.1f}" if p in us else f"{'-':>10}" for p in (*peers, OURS)]
                bar.print(f"{case.name:28} {pass_:5} {' '.join(cells)} {best / us[OURS]:7.2f}x")
                bar.step(case.name)


class Bar:
    """A progress bar on a terminal, nothing elsewhere."""

    def __init__(self, total: int) -> None:
        self._bar = None
        if sys.stderr.isatty():
            from tqdm import tqdm

            self._bar = tqdm(total=total, leave=False, dynamic_ncols=True)

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def step(self, label: str) -> None:
        if self._bar is not None:
            self._bar.set_description(label)
            self._bar.update()

    def print(self, line: str) -> None:
        if self._bar is not None:
            self._bar.write(line)
        else:
            print(line, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--device", type=torch.device, help="default: the GPU, else the CPU")
    parser.add_argument("--no-layer-table", action="store_true")
    options = parser.parse_args()
    if options.epochs < 1:
        parser.error(f"--epochs must be at least 1; got {options.epochs}")
    device = options.device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu":
        torch.set_num_threads(1)  # threads only wait for each other on layers this small
    agree = train(device, options.epochs)
    if device.type == "cuda" and not options.no_layer_table:
        layer_table(device)
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
