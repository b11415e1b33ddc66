"""Measured GEMM plans on disk: one JSON file per GPU model, driver and build of fusedops.

Any number of processes may read and merge at once: a writer holds a lock file, merges with what is
there and renames its new file over the old one, so a reader sees one or the other, whole. What
cannot be read is ignored with a warning: selection then works as if nothing had been tuned.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import json
import math
import os
import re
import stat
import sys
import warnings
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch

from .. import _C
from .._core.files import cache_dir, replace_file
from .._core.info import build_info, built_archs, chosen_as

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

Plan = dict[str, Any]  # one entry of the file: PROBLEM and CHOICE fields

FORMAT = 2
MOST_BYTES = 64 << 20  # of a file; a plan takes about 300
PROBLEM = (
    *("m", "n", "k", "dtype", "math", "epilogue"),
    *("a_major", "b_major", "activation"),
)
CHOICE = ("family", "name", "index", "splits", "swizzle", "us", "default_us")
TEXTS = {"dtype", "math", "epilogue", "a_major", "b_major", "family", "name"}
TIMES = {"us", "default_us"}


@dataclass(frozen=True)
class GpuKey:
    """What a measurement depends on besides the problem."""

    gpu: str
    capability: int  # 10 * major + minor, as selection takes it
    sm_count: int
    driver: int  # CUDA version of the driver
    build: str  # of fusedops: its version and kernels

    @property
    def path(self) -> Path:
        """The file of this key in the cache directory."""
        digest = hashlib.sha256(repr(self).encode()).hexdigest()[:10]
        words = re.sub(r"[^a-z0-9]+", "-", self.gpu.lower()).strip("-")
        return cache_dir() / f"gemm-{words}-{digest}.json"


def gpu_key(device: torch.device) -> GpuKey:
    """The key of a CUDA device."""
    properties = torch.cuda.get_device_properties(device)
    return GpuKey(
        gpu=properties.name,
        capability=chosen_as((properties.major, properties.minor), built_archs()),
        sm_count=properties.multi_processor_count,
        driver=_driver_version(),
        build=_build(),
    )


@functools.cache
def _driver_version() -> int:
    """The newest CUDA version that the driver serves (13000 is 13.0), 0 where it does not say."""
    version = ctypes.c_int(0)
    with contextlib.suppress(OSError):
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
        driver.cuDriverGetVersion(ctypes.byref(version))
    return version.value


@functools.cache
def _build() -> str:
    # NOTE: the size of the binary stands for its kernels: a rebuild of changed ones starts anew.
    facts = (build_info()["version"], _C.gemm_configs(), os.path.getsize(str(_C.__file__)))
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:10]


# ---- the file ----


def read_plans(path: Path) -> list[Plan]:
    """The plans of a file that make sense, none where there is no file; a warning about others."""
    try:
        facts = path.stat()
        # NOTE: a pipe or a device in its place would never end.
        if not stat.S_ISREG(facts.st_mode) or facts.st_size > MOST_BYTES:
            raise ValueError(f"no regular file, or of more than {MOST_BYTES} bytes")
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != FORMAT:
            raise ValueError(f"format {content['format']!r}, this version reads {FORMAT}")
        found = content["plans"]
        if not isinstance(found, list):
            raise TypeError(f"plans is no list but {type(found).__name__}")
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        _warn(f"the tuned plans in {path}: {type(error).__name__}: {error}")
        return []
    plans: list[Plan] = [entry for entry in found if _is_plan(entry)]
    if len(plans) < len(found):
        bad = len(found) - len(plans)
        _warn(f"{bad} of the {len(found)} tuned plans in {path}: a field lacks or has another type")
    return plans


def _is_plan(entry: Any) -> bool:
    """Whether every field is there, of its type."""
    return isinstance(entry, dict) and all(
        name in entry and _is_field(name, entry[name]) for name in (*PROBLEM, *CHOICE)
    )


def _is_field(name: str, value: Any) -> bool:
    if name in TEXTS:
        return isinstance(value, str)
    if name in TIMES:
        return type(value) in (int, float) and math.isfinite(value)
    return type(value) is int and abs(value) < 1 << 63


def _warn(what: str) -> None:
    warnings.warn(
        f"fusedops: ignoring {what}; fusedops.tune measures and stores them anew", stacklevel=3
    )


def merge_plans(key: GpuKey, plans: Iterable[Plan]) -> Path:
    """Adds plans to the key's file, replacing those of the same problem; returns the file."""
    path = key.path
    path.parent.mkdir(parents=True, exist_ok=True)
    with _lock(path):
        merged = {problem_of(plan): plan for plan in [*read_plans(path), *plans]}
        content = {"format": FORMAT, **asdict(key), "plans": list(merged.values())}
        replace_file(path, json.dumps(content, indent=1))
    return path


def problem_of(plan: Plan) -> tuple[Any, ...]:
    """What a plan is for, as a key."""
    return tuple(plan[name] for name in PROBLEM)


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Excludes other processes; released by the system when a process dies."""
    with path.with_suffix(".lock").open("a") as handle:
        try:
            import fcntl
        except ImportError:  # a platform without it: the rename alone keeps the file whole
            yield
            return
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


# ---- the table in this process ----


def install(key: GpuKey, plans: Iterable[Plan]) -> int:
    """Makes selection use plans; returns how many this build has the kernels for."""
    return sum(_install_one(key, plan) for plan in plans)


def _install_one(key: GpuKey, plan: Plan) -> bool:
    try:  # problem and choice in one
        return bool(_C.add_tuned_plan(plan, plan, key.capability, key.sm_count))
    except (ValueError, RuntimeError) as error:  # an unknown name, a number out of range
        _warn(f"a tuned plan for {key.gpu}: {error}")
        return False


def load() -> None:
    """Installs the stored plans of every visible GPU; selection calls this once, when it first has
    to choose a kernel."""
    if not torch.cuda.is_available():
        return
    keys = dict.fromkeys(gpu_key(torch.device("cuda", i)) for i in range(torch.cuda.device_count()))
    for key in keys:
        install(key, read_plans(key.path))


_C.set_tuned_loader(load)
