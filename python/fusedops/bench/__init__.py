"""Measures fusedops against its peers: `python -m fusedops bench SUITE`.

One suite is one file in `suites/`; runner.py measures a case by the clock of `_timing`,
`report/` holds the CSV and what is read out of it.
"""
