"""`python -m fusedops COMMAND`."""

# NOTE: argparse, so that the command works wherever torch does, without another package.
from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def _info(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m fusedops info", description="Show what this build is and the GPUs it sees."
    )
    parser.parse_args(argv)
    from fusedops.info import table

    print(table())
    return 0


def _bench(argv: Sequence[str]) -> int:
    from fusedops.bench import cli

    return cli.main(argv)


COMMANDS = {
    "info": (_info, "what this build is, which GPUs it sees and which kernels serve them"),
    "bench": (_bench, "measure ours against every installed peer (bench --help)"),
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
    return run(arguments[1:])


if __name__ == "__main__":
    sys.exit(main())
