"""Layers of point clouds in existing models, run as `fusedops.points` has them."""
