"""Rotary embeddings in methods as one op."""
