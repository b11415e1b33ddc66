"""fuse: existing models, rewritten onto the fused modules."""
