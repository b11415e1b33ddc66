"""The commands of `fusedops` that are no part of bench or tuning."""
