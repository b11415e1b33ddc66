"""Errors of FP8 products and layers against float64: the tables of docs/fp8.md, on the CPU.

python perf/fp8/error_tables.py            writes perf/results/fp8/errors_cpu.csv and the page

Products and layers are ours (quantised as on the GPU, multiplied in fp32), inputs and weights are
fp32: no rounding to bf16 is in the figures but in the row that says so.
"""

from __future__ import annotations

import argparse
import csv
import re
import warnings
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

import fusedops
from fusedops.fp8 import Recipe

ROOT = Path(__file__).resolve().parents[2]
CSV = ROOT / "perf/results/fp8/errors_cpu.csv"
PAGE = ROOT / "docs/fp8.md"
RECIPES = {
    "tensor": Recipe(scaling="tensor"),
    "row": Recipe(scaling="row"),
    "block": Recipe(),
    "block, 1x128 weight gradient": Recipe(weight_gradient="block"),
    "block, e5m2 gradients": Recipe(backward="e5m2"),
    "block, power-of-two scales": Recipe(power_of_two_scales=True),
}
TOKENS, FEATURES, HIDDEN = 1024, 512, 1024


def inputs(kind: str, rows: int, columns: int, seed: int) -> Tensor:
    """What enters a layer: normal values; a norm's output with outlier channels; SwiGLU's."""
    g = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g)

    if kind == "normal":
        return normal(rows, columns)
    if kind == "norm, outlier channels":
        gain = torch.exp(0.4 * normal(columns))
        where = torch.randperm(columns, generator=g)[: max(1, columns // 256)]
        gain[where] *= 20 + 40 * torch.rand(len(where), generator=g)
        return normal(rows, columns) * gain
    if kind == "SwiGLU":
        gate, up = 1.5 * normal(rows, columns), 1.5 * normal(rows, columns)
        return F.silu(gate) * up * torch.exp(0.4 * normal(columns))
    # Gradients: tokens and channels that differ, heavy tails, small.
    tail = torch.sqrt(sum(normal(rows, columns) ** 2 for _ in range(4)) / 4)
    tokens, channels = torch.exp(1.5 * normal(rows, 1)), torch.exp(0.5 * normal(columns))
    return 1e-6 * normal(rows, columns) / tail * tokens * channels


def error(got: Tensor, exact: Tensor) -> float:
    """Relative, in percent."""
    return 100 * float((got.detach().double() - exact).norm() / exact.norm())


def linear_errors(kind: str, recipe: Recipe | None) -> list[float]:
    """The errors of y, dx and dweight of a linear layer."""
    x = inputs(kind, TOKENS, FEATURES, 1).requires_grad_()
    weight = (0.02 * inputs("normal", HIDDEN, FEATURES, 2)).requires_grad_()
    dy = inputs("gradients", TOKENS, HIDDEN, 3)
    exact = (x.double() @ weight.double().t(), dy.double() @ weight.double())
    exact = (*exact, dy.double().t() @ x.detach().double())
    if recipe is None:
        half = [t.detach().bfloat16().requires_grad_() for t in (x, weight)]
        y = fusedops.linear(*half)
        got = (y, *torch.autograd.grad(y, half, dy.bfloat16()))
    else:
        y = fusedops.linear(x, weight, recipe=recipe)
        got = (y, *torch.autograd.grad(y, (x, weight), dy))
    return [error(a, b.detach()) for a, b in zip(got, exact, strict=True)]


def block_errors(gated: bool, recipe: Recipe | None) -> list[float]:
    """The errors of y, dx, first and last weight's gradient of an MLP with GELU or a SwiGLU."""
    torch.manual_seed(0)
    kind = fusedops.nn.GatedMLP if gated else fusedops.nn.MLP
    block = kind(FEATURES, HIDDEN, bias=False)
    x = inputs("norm, outlier channels", TOKENS, FEATURES, 1)
    dy = inputs("gradients", TOKENS, FEATURES, 3)

    def run(dtype: torch.dtype, recipe: Recipe | None) -> list[Tensor]:
        block.to(dtype).recipe = recipe
        leaf = x.to(dtype).requires_grad_()
        parameters = list(block.parameters())
        y = block(leaf)
        grads = torch.autograd.grad(y, (leaf, parameters[0], parameters[-1]), dy.to(dtype))
        return [t.detach() for t in (y, *grads)]

    exact = run(torch.float64, None)
    got = run(torch.bfloat16 if recipe is None else torch.float32, recipe)
    return [error(a, b) for a, b in zip(got, exact, strict=True)]


def measure() -> list[dict[str, str]]:
    """The rows of the CSV."""
    rows = []
    for name, recipe in {"bf16": None, **RECIPES}.items():
        for kind in ("normal", "norm, outlier channels", "SwiGLU"):
            found = linear_errors(kind, recipe)
            for result, value in zip(("y", "dx", "dweight"), found, strict=True):
                rows.append({"layer": "linear", "inputs": kind, "recipe": name,
                             "result": result, "error_percent": f"{value:.2f}"})  # fmt: skip
        for layer, gated in (("MLP, gelu", False), ("SwiGLU", True)):
            found = block_errors(gated, recipe)
            results = ("y", "dx", "dweight first", "dweight last")
            for result, value in zip(results, found, strict=True):
                rows.append({"layer": layer, "inputs": "norm, outlier channels", "recipe": name,
                             "result": result, "error_percent": f"{value:.2f}"})  # fmt: skip
    return rows


def tables(rows: list[dict[str, str]]) -> dict[str, list[str]]:
    """The page's tables by name, from the CSV's rows."""
    value = {(r["layer"], r["inputs"], r["recipe"], r["result"]): r["error_percent"] for r in rows}
    recipes = list(dict.fromkeys(r["recipe"] for r in rows))
    kinds = ("normal", "norm, outlier channels", "SwiGLU")
    linear = ["| recipe | " + " | ".join(kinds) + " |", "|---|" + "---|" * len(kinds)]
    blocks = ["| recipe | MLP, gelu | SwiGLU |", "|---|---|---|"]
    for recipe in recipes:
        cells = [
            " ".join(value["linear", kind, recipe, r] for r in ("y", "dx", "dweight"))
            for kind in kinds
        ]
        linear.append(f"| {recipe} | " + " | ".join(cells) + " |")
        results = ("y", "dx", "dweight first", "dweight last")
        both = [
            " ".join(value[layer, "norm, outlier channels", recipe, r] for r in results)
            for layer in ("MLP, gelu", "SwiGLU")
        ]
        blocks.append(f"| {recipe} | " + " | ".join(both) + " |")
    return {"linear": linear, "blocks": blocks}


def with_tables(page: str, found: dict[str, list[str]]) -> str:
    """The page with its tables between their marks."""
    for name, lines in found.items():
        marks = (f"<!-- errors: {name} -->", "<!-- end -->")
        inside = re.escape(marks[0]) + r".*?" + re.escape(marks[1])
        page = re.sub(inside, "\n".join([marks[0], "", *lines, "", marks[1]]), page, flags=re.S)
    return page


def main() -> None:
    """Write the CSV and the page."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    warnings.filterwarnings("ignore", "fusedops.fp8")
    rows = measure()
    CSV.parent.mkdir(parents=True, exist_ok=True)
    with CSV.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    PAGE.write_text(with_tables(PAGE.read_text(), tables(rows)))


if __name__ == "__main__":
    main()
