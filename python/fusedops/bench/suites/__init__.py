"""One suite per file; each file names its class SUITE. base.py lists the registered ones."""
