"""Calls ops at random and holds each result against its definition in float64.

    python scripts/fuzz --seed 7 --cases 10000
    python scripts/fuzz --ops gemm,reduce --seconds 60 --device cuda
    python scripts/fuzz --seed 7 --only 4242       # one case again, as a failure names it

A case draws shapes, strides, dtypes, values (NaN, infinities, ties, zeros) and options; the results
must be right, the same in a second run, and leave the operands alone; gradients are compared, too.
Every fifth case makes one argument wrong: a readable error or a right result, and a right result
of the right call behind it. Exit code 1 where a case fails; the last line counts.
"""

from __future__ import annotations

import argparse
import faulthandler
import sys
import time
from collections import Counter

import torch
from draw import Draw
from epilogues import FAMILIES as EPILOGUES
from families import FAMILIES as OPS
from judge import Wrong, judge, judge_hostile
from layers import FAMILIES as LAYERS

FAMILIES = {**OPS, **LAYERS, **EPILOGUES}
MOST_FAILURES = 20


def run_case(seed: int, number: int, names: tuple[str, ...], device: str) -> tuple[str, str]:
    """One case.

    Returns:
        The op, and what is wrong, or "".
    """
    draw = Draw(seed, number, device)
    maker = draw.pick(FAMILIES[draw.pick(names)])
    name = maker.__name__
    try:
        case = maker(draw)
        name = case.name
        (judge_hostile if number % 5 == 4 else judge)(case, draw)
    except Wrong as error:
        return name, f"{error}; {', '.join(draw.facts)}"
    except Exception as error:  # whatever a right call raises is a failure
        text = str(error).splitlines()[0] if str(error) else ""
        return name, f"raised {type(error).__name__}: {text[:200]}; {', '.join(draw.facts)}"
    return name, ""


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--ops", default=",".join(FAMILIES), help="families, by commas")
    parser.add_argument("--seconds", type=float, help="start no case after this long")
    parser.add_argument("--only", type=int, metavar="CASE", help="this case alone")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    options = parser.parse_args()
    names = tuple(options.ops.split(","))
    unknown = [name for name in names if name not in FAMILIES]
    if unknown:
        parser.error(f"no family {', '.join(unknown)}; choose from {', '.join(FAMILIES)}")
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: no CUDA GPU is visible")
    faulthandler.enable()
    numbers = range(options.cases) if options.only is None else (options.only,)
    return _run(options, names, numbers)


def _run(options: argparse.Namespace, names: tuple[str, ...], numbers: range | tuple[int]) -> int:
    done: Counter[str] = Counter()
    failed = 0
    start = time.perf_counter()
    for number in numbers:
        if options.seconds and time.perf_counter() - start > options.seconds:
            break
        name, wrong = run_case(options.seed, number, names, options.device)
        done[name.split("/")[0]] += 1
        if wrong:
            failed += 1
            again = f"--seed {options.seed} --only {number} --ops {options.ops}"
            print(f"FAILED {name}: {wrong} ({again})", flush=True)
            if failed == MOST_FAILURES:
                break
    seconds = time.perf_counter() - start
    print(", ".join(f"{name} {count}" for name, count in sorted(done.items())))
    print(f"seed {options.seed}: {done.total()} cases, {failed} failed, {seconds:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
