"""Measures fusedops against its peers: `python -m fusedops bench SUITE`.

One suite is one file in `suites/`; timing.py holds the clock, runner.py the measurement of a case,
results.py the CSV, report.py and plot.py what is read out of it.
"""
