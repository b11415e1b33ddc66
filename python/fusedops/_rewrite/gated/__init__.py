"""Gated RMS norms in fuse, and the tables in which their code looks activations up."""
