"""Epilogues of one's own: a traced expression, its derived backward, and how both run."""
