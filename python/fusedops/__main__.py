"""`python -m fusedops COMMAND`."""

# NOTE: argparse, so that the command works wherever torch does, without another package.
from __future__ import annotations

import argparse
import difflib
import os
import sys
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

PROG = "fusedops" if os.path.basename(sys.argv[0]) == "fusedops" else "python -m fusedops"


def _info(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog=f"{PROG} info", description="Show what this build is and the GPUs it sees."
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="print one JSON object")
    how.add_argument("--cmake-dir", action="store_true", help="print the folder for find_package")
    how.add_argument("--include-dir", action="store_true", help="print the folder of the headers")
    options = parser.parse_args(argv)
    if options.cmake_dir or options.include_dir:
        from fusedops.jit import cmake_dir, include_dir

        print(cmake_dir() if options.cmake_dir else include_dir())
        return 0
    from fusedops._core.info import as_json, table

    print(as_json() if options.json else table())
    return 0


def _check(argv: Sequence[str]) -> int:
    from fusedops._cli import check

    return check.main(argv, PROG)


def _new(argv: Sequence[str]) -> int:
    from fusedops._cli import new

    return new.main(argv, PROG)


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

    parser = argparse.ArgumentParser(prog=f"{PROG} {command}", description=description)
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
    "check": (_check, "test this installation, in under a minute"),
    "new": (_new, "write a project with an op of your own"),
    "explain": (_explain, "say which kernels serve a shape, and why"),
    "tune": (_tune, "measure the kernels that fit a shape and remember the fastest"),
    "bench": (_bench, "measure ours against the suites' usual peers"),
}
EXIT_CODES = (
    "exit codes: 0 done, 1 it failed or found a failure, 2 wrong command line, 130 interrupted"
)


def _parser() -> argparse.ArgumentParser:
    lines = "\n".join(f"  {name:<9}{what}" for name, (_, what) in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog=PROG,
        usage=f"{PROG} COMMAND [options]",
        description=f"commands ({PROG} COMMAND --help says more):\n{lines}",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="store_true", help="print the version")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = _parser()
    command = arguments[0] if arguments else ""
    if command == "--version":
        import fusedops

        print(f"fusedops {fusedops.__version__}")
        return 0
    if command in ("-h", "--help"):
        parser.print_help()
        return 0
    if not command:
        parser.print_help(sys.stderr)
        return 2
    if command not in COMMANDS:
        near = difflib.get_close_matches(command, COMMANDS, 1)
        hint = f"; did you mean {near[0]}?" if near else f"; choose from {', '.join(COMMANDS)}"
        parser.error(f"no command {command}{hint}")
    try:
        return COMMANDS[command][0](arguments[1:])
    except KeyboardInterrupt:
        print(f"{command}: interrupted", file=sys.stderr)
        return 130


def run() -> int:
    """The script `fusedops`."""
    from fusedops._core.text import run_command

    return run_command(main)


if __name__ == "__main__":
    sys.exit(run())
