"""Convolutions with their norms, residuals and activations in existing models, as one op each."""
