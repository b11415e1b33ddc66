import sys

from fusedops.bench.cli import main

sys.exit(main())
