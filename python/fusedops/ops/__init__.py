"""The public functions, one file per op."""
