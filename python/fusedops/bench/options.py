"""The command line of `python -m fusedops bench`."""

from __future__ import annotations

import argparse
import functools
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from fusedops.bench.report.summary import REGRESSION
from fusedops.bench.shapes import Shapes, from_text
from fusedops.bench.suites.base import APART, PASSES, SUITES, TOLERANCES

if TYPE_CHECKING:
    from collections.abc import Collection

DESCRIPTION = "Runs suites, prints and draws what the CSV holds."
RESULTS = Path("perf/results")
WILD_COUNT = 300
ALL_SECONDS = 540.0  # what is under way then still ends within ten minutes


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m fusedops bench", description=DESCRIPTION)
    add = parser.add_argument
    add("suite", nargs="*", help=f"{', '.join(SUITES)} or all (but {', '.join(APART)})")
    add(
        "--case",
        metavar="GLOB",
        help="only cases whose name matches, or its part before a slash, e.g. '8192x*/relu'",
    )
    add(
        "--shapes",
        type=_shapes,
        default=Shapes(),
        metavar="MxNxK,...|FILE",
        help="instead of the suite's; a .csv, a .json or a Hugging Face config.json names them too",
    )
    add("--tokens", type=_positive, default=4096, help="rows of a model's config (default: 4096)")
    add("--peers", type=_peers, metavar="NAME,...", help="`none`: ours alone; default: the suite's")
    add("--dtype", type=functools.partial(_names_of, TOLERANCES), metavar="NAME,...")
    add("--activation", type=_names, default=(), metavar="NAME,...")
    add("--pass", dest="pass_", type=functools.partial(_names_of, PASSES), metavar=",".join(PASSES))
    add("--rounds", type=_positive, help="default: the suite's")
    add("--device", type=_device, help="default: the GPU, else the CPU")
    _add_run(parser)
    _add_reports(parser)
    return parser


def _add_run(parser: argparse.ArgumentParser) -> None:
    """How to run, and what of `wild`."""
    add = parser.add_argument
    add("--out", type=Path, metavar="FILE.csv", help=f"or a folder; default {RESULTS}/<gpu>/")
    add(
        "--missing",
        action="store_true",
        help="skip cases with a row of this commit and these peers",
    )
    add(
        "--budget",
        type=float,
        metavar="SECONDS",
        help=f"start no case after this long; default of `all`: {ALL_SECONDS:.0f}, 0 for no limit",
    )
    add(
        "--turns",
        type=Path,
        metavar="FILE",
        help="models: benches that name this file compile side by side and measure one by one",
    )
    add("--family", type=_names, default=(), metavar="NAME,...", help="of wild; default: all")
    add("--count", type=_positive, default=WILD_COUNT, help="of wild: cases a family")
    add("--seed", type=int, default=0, help="of wild: other shapes")
    add("--list", action="store_true", help="print the cases and stop")


def _add_reports(parser: argparse.ArgumentParser) -> None:
    """What to read out."""
    add = parser.add_argument
    add("--merge", type=Path, metavar="PATH", help=f"merge a CSV or folder of them into {RESULTS}")
    add(
        "--summary",
        type=Path,
        nargs="?",
        const=Path(),
        metavar="PATH",
        help=f"geomeans and bars of a CSV or folder; default {RESULTS}/<gpu>",
    )
    add(
        "--plot",
        action="store_true",
        help="draw heat map and roofline beside the CSV (of --summary)",
    )
    add(
        "--html",
        type=Path,
        metavar="FILE.html",
        help="write a report of one file: of what ran, or of --summary",
    )
    add(
        "--compare",
        type=Path,
        metavar="OLD",
        help="print regressions against a CSV or a folder; the exit code is 1 if there are any",
    )
    add(
        "--allow",
        type=float,
        default=REGRESSION,
        metavar="SHARE",
        help=f"of the old speed-up that is no regression (default: {REGRESSION})",
    )


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)


def _names_of(known: Collection[str], text: str) -> tuple[str, ...]:
    names = _names(text)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise argparse.ArgumentTypeError(f"no {', '.join(unknown)}; choose from {', '.join(known)}")
    return names


def _peers(text: str) -> tuple[str, ...]:
    return () if text == "none" else _names(text)


def _device(text: str) -> torch.device:
    try:
        device = torch.device(text)
    except RuntimeError:
        raise argparse.ArgumentTypeError(f"{text} is no torch device") from None
    if device.type not in ("cpu", "cuda"):
        raise argparse.ArgumentTypeError(f"expected cpu or cuda; got {text}")
    gpus = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= gpus:
        raise argparse.ArgumentTypeError(f"{text}: {gpus} CUDA GPUs are visible")
    return device


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number from 1; got {text}")
    return int(text)


def _shapes(text: str) -> Shapes | Path:
    """A file is read when --tokens is known."""
    return Path(text) if Path(text).suffix in (".json", ".csv") else from_text(text)
