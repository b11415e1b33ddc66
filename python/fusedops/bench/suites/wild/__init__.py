"""Random shapes of every family: the suite, its distributions and the draws they are made of."""

from fusedops.bench.suites.wild.suite import SUITE, WildSuite, wild_case

__all__ = ["SUITE", "WildSuite", "wild_case"]
