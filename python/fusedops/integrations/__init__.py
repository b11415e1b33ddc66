"""Entries for frameworks that switch on kernels by a name or a configuration.

`fusedops.integrations.huggingface` is for transformers and the package `kernels`,
`fusedops.integrations.torchtitan` for torchtitan. Neither is imported with fusedops.
"""
