import sys

from fusedops._core.text import run_command
from fusedops.bench.cli import main

sys.exit(run_command(main))
