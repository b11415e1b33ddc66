"""One suite per file; each file names its class SUITE. suite.py lists the registered ones."""
