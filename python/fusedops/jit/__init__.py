"""Ops of one's own, compiled when they are first used, on fusedops' headers and the stable ABI.

`load` is to libtorch's stable ABI and fusedops' own headers (docs/kernel-authors.md) what
`torch.utils.cpp_extension.load` is to all of torch's: seconds instead of a minute, and one library
serves torch 2.11 and everything later. Libraries are kept by content.
"""

from .errors import BuildError
from .kit import cmake_dir, include_dir
from .library import build, load, load_inline

__all__ = ["BuildError", "build", "cmake_dir", "include_dir", "load", "load_inline"]
