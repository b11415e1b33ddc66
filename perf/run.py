"""`python perf/run.py SUITE ...` does what `python -m fusedops bench SUITE ...` does."""

import sys

from fusedops._core.text import run_command
from fusedops.bench.cli import main

if __name__ == "__main__":
    sys.exit(run_command(main))
