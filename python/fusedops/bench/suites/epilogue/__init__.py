"""Epilogues of one's own, beside the built-in ones."""

from fusedops.bench.suites.epilogue.suite import SUITE

__all__ = ["SUITE"]
