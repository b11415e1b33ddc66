"""`python -m fusedops COMMAND`."""

# NOTE: argparse, so that the command works wherever torch does, without another package.
from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch


def _info(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m fusedops info", description="Show what this build is and the GPUs it sees."
    )
    parser.parse_args(argv)
    from fusedops._core.info import table

    print(table())
    return 0


def _bench(argv: Sequence[str]) -> int:
    from fusedops.bench import cli

    return cli.main(argv)


def _gemm_shapes(text: str) -> tuple[tuple[int, ...], ...]:
    from fusedops._core.text import shapes

    found = shapes(text)
    if any(len(shape) != 3 for shape in found):
        raise argparse.ArgumentTypeError(f"expected MxNxK,...; got {text}")
    return found


def _dtype(text: str) -> torch.dtype:
    import torch

    from fusedops._tuning.names import DTYPES

    found = getattr(torch, text, None)
    if found not in DTYPES:
        raise argparse.ArgumentTypeError(
            f"expected one of {', '.join(DTYPES.values())}; got {text}"
        )
    return cast("torch.dtype", found)


def _gemm_parser(command: str, description: str) -> argparse.ArgumentParser:
    from fusedops._core.activation import ACTIVATIONS

    parser = argparse.ArgumentParser(prog=f"python -m fusedops {command}", description=description)
    parser.add_argument("shapes", type=_gemm_shapes, metavar="MxNxK,...")
    parser.add_argument("--activation", default="none", choices=ACTIVATIONS)
    parser.add_argument("--dtype", type=_dtype, default="bfloat16", help="a torch dtype")
    parser.add_argument("--forward", action="store_true", help="without the products of backward")
    return parser


def _tune(argv: Sequence[str]) -> int:
    parser = _gemm_parser("tune", "Measure the kernels that fit linear at these shapes.")
    parser.add_argument("--force", action="store_true", help="measure again what the table holds")
    options = parser.parse_args(argv)
    import torch

    import fusedops

    if not torch.cuda.is_available():
        raise SystemExit("tune: a CUDA GPU must be visible, kernels are measured on it; got none")
    report = fusedops.tune(
        options.shapes,
        dtype=options.dtype,
        activation=options.activation,
        backward=not options.forward,
        force=options.force,
    )
    print(report)
    return 0


def _explain(argv: Sequence[str]) -> int:
    parser = _gemm_parser("explain", "Say which kernels linear takes at these shapes, and why.")
    options = parser.parse_args(argv)
    import fusedops

    for m, n, k in options.shapes:
        report = fusedops.explain(
            (m, k),
            (n, k),
            (n,),
            options.activation,
            dtype=options.dtype,
            backward=not options.forward,
        )
        print(report, end="\n\n")
    return 0


COMMANDS = {
    "info": (_info, "what this build is, which GPUs it sees and which kernels serve them"),
    "explain": (_explain, "say which kernels serve a shape, and why"),
    "tune": (_tune, "measure the kernels that fit a shape and remember the fastest"),
    "bench": (_bench, "measure ours against the suites' usual peers (bench --help)"),
}


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    lines = "\n".join(f"  {name:<8}{what}" for name, (_, what) in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="python -m fusedops",
        description="commands:\n" + lines,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND")
    command = parser.parse_args(arguments[:1]).command
    run, _ = COMMANDS[command]
    try:
        return run(arguments[1:])
    except KeyboardInterrupt:
        raise SystemExit(f"{command}: interrupted") from None


if __name__ == "__main__":
    from fusedops._core.text import run_command

    sys.exit(run_command(main))
