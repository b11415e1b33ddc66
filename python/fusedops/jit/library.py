"""From sources to a loaded library: keys by content, one builder at a time, whole files only."""

from __future__ import annotations

import concurrent.futures
import hashlib
import os
import re
import shutil
import struct
import subprocess
import tempfile
import warnings
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .._core.files import cache_dir, folder_for_one
from . import toolchain as tools
from .errors import BuildError, compile_error
from .kit import HEADERS, headers_digest, include_dir

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

FORMAT = "1"  # of the keys
MOST_LIBRARIES = 20  # of one name that are kept
MOST_OBJECTS = 300  # of all names
_INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"\n]+)"|<([^>\n]+)>)', re.MULTILINE)
_loaded: dict[str, Path] = {}


@dataclass(frozen=True)
class _Plan:
    """A library before it is built."""

    name: str
    sources: tuple[Path, ...]  # the user's and ours, in the order of linking
    own: tuple[Path, ...]  # the user's sources and headers
    chain: tools.Toolchain
    keys: tuple[str, ...] = field(default=())  # of the sources' objects

    @property
    def folder(self) -> Path:
        text = "\0".join((FORMAT, *self.keys, *self.chain.link_flags, torch.__version__))
        digest = hashlib.sha256(text.encode()).hexdigest()[:20]
        return cache_dir() / "jit" / self.name / digest

    @property
    def library(self) -> Path:
        return self.folder / f"{self.name}.so"


def load(
    name: str,
    sources: Sequence[str | os.PathLike[str]],
    *,
    with_cuda: bool | None = None,
    parts: Sequence[str] = (),
    include_dirs: Sequence[str | os.PathLike[str]] = (),
    cxx_flags: Sequence[str] = (),
    cuda_flags: Sequence[str] = (),
    link_flags: Sequence[str] = (),
    debug: bool = False,
    verbose: bool = False,
) -> Any:
    """Compile sources into a library, load it, and return its ops.

    The library is kept under ``$FUSEDOPS_CACHE_DIR`` (else the user's cache directory) by the
    content of sources and headers, the flags, the compilers, torch's version and fusedops' headers:
    only what changed is compiled again. Any number of processes may call this at once: one
    compiles, the others wait for it.

    Args:
        name: The namespace of the ops, which the sources register with
            ``STABLE_TORCH_LIBRARY_FRAGMENT(name, m)``: an identifier, and not ``fusedops``.
        sources: Files in C++20 (.cpp, .cc, .cxx) and CUDA (.cu).
        with_cuda: Whether .cu files are part of the library, and ``USE_CUDA`` is defined. Default:
            where a GPU is visible or ``TORCH_CUDA_ARCH_LIST`` names one.
        parts: Further sources of ours to link: ``"rows"`` for `csrc/cuda/rows/team/row_plan.h`.
        include_dirs: Folders of headers. Those of fusedops and torch are there already.
        cxx_flags: For C++ sources, behind ours.
        cuda_flags: For CUDA sources, behind ours.
        link_flags: For the linker, behind ours.
        debug: Without optimisation, with line numbers.
        verbose: Print commands and what compilers say, warnings too.

    Returns:
        ``torch.ops.<name>``.

    Raises:
        BuildError: A compiler is missing, or refuses a source: the message shows the lines.
        FileNotFoundError: A source does not exist.
        RuntimeError: The name was loaded from other sources in this process, or the library does
            not load.
        ValueError: The name, a source's suffix or a part is none.
    """
    library = build(
        name,
        sources,
        with_cuda=with_cuda,
        parts=parts,
        include_dirs=include_dirs,
        cxx_flags=cxx_flags,
        cuda_flags=cuda_flags,
        link_flags=link_flags,
        debug=debug,
        verbose=verbose,
    )
    before = _loaded.get(name)
    if before is None:
        try:
            torch.ops.load_library(library)
        except OSError as error:
            raise RuntimeError(
                f"fusedops.jit: {name}: {library} does not load ({error}); remove "
                f"{library.parent} to have it built again"
            ) from error
        _loaded[name] = library
    elif before != library:
        raise RuntimeError(
            f"fusedops.jit: {name} is loaded already, from other sources or flags ({before}): "
            "torch keeps an op for the life of a process; start a new one, or give the new op "
            "another name"
        )
    return getattr(torch.ops, name)


def load_inline(name: str, cxx: str, cuda: str = "", **options: Any) -> Any:
    """Compile text instead of files.

    Args:
        name: The namespace of the ops, as for `load`.
        cxx: Text in C++: schemas and CPU implementations.
        cuda: Text in CUDA.
        options: As for `load`.

    Returns:
        ``torch.ops.<name>``.

    Raises:
        BuildError: As `load`; lines are numbered as in the text.
    """
    _check_name(name)
    texts = {f"{name}.cpp": cxx, f"{name}_cuda.cu": cuda}
    digest = hashlib.sha256("\0".join(texts.values()).encode()).hexdigest()[:20]
    folder = cache_dir() / "jit" / "inline" / digest
    files = [folder / file for file, text in texts.items() if text]
    with _writable(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for file in files:
            if not file.is_file() or file.read_text() != texts[file.name]:
                _publish(file, partial(_write, texts[file.name]))
    return load(name, files, **options)


def build(
    name: str,
    sources: Sequence[str | os.PathLike[str]],
    *,
    with_cuda: bool | None = None,
    parts: Sequence[str] = (),
    include_dirs: Sequence[str | os.PathLike[str]] = (),
    cxx_flags: Sequence[str] = (),
    cuda_flags: Sequence[str] = (),
    link_flags: Sequence[str] = (),
    debug: bool = False,
    verbose: bool = False,
) -> Path:
    """Compile sources into a library without loading it.

    Args:
        name: As for `load`, as all others.
        sources: See `load`.
        with_cuda: See `load`.
        parts: See `load`.
        include_dirs: See `load`.
        cxx_flags: See `load`.
        cuda_flags: See `load`.
        link_flags: See `load`.
        debug: See `load`.
        verbose: See `load`.

    Returns:
        The file of the library.

    Raises:
        BuildError: As `load`.
    """
    cuda = tools.wants_cuda(with_cuda)
    files = _check(name, sources, parts, cuda)
    cuda = cuda and any(file.suffix in tools.CUDA for file in files)
    folders = tuple(str(Path(folder).resolve()) for folder in include_dirs)
    chain = tools.toolchain(
        cuda, folders, tuple(cxx_flags), tuple(cuda_flags), tuple(link_flags), debug
    )
    plan = _plan(name, files, parts, chain, folders)
    library = plan.library
    if _is_whole(library):
        return library
    with _writable(plan.folder):
        plan.folder.mkdir(parents=True, exist_ok=True)
        with folder_for_one(plan.folder):
            if not _is_whole(library):
                _build(plan, verbose)
                _forget_old(plan.folder)
    return library


def _write(text: str, to: Path) -> None:
    to.write_text(text)


# ---- what is asked for ----


def _check_name(name: str) -> None:
    if not (isinstance(name, str) and name.isidentifier()) or name == "fusedops":
        raise ValueError(
            "fusedops.jit: name must be an identifier, and not fusedops: the namespace of the ops; "
            f"got {name!r}"
        )


def _check(
    name: str, sources: Sequence[str | os.PathLike[str]], parts: Sequence[str], cuda: bool
) -> tuple[Path, ...]:
    """The sources that are compiled."""
    _check_name(name)
    if isinstance(sources, str | os.PathLike) or not sources:
        raise ValueError(f"fusedops.jit: {name}: sources must be a list of files; got {sources!r}")
    files = [Path(source).resolve() for source in sources]
    for file in files:
        if file.suffix not in (*tools.CXX, *tools.CUDA):
            known = ", ".join((*tools.CXX, *tools.CUDA))
            raise ValueError(f"fusedops.jit: {name}: sources must be {known}; got {file.name}")
        if not file.is_file():
            raise FileNotFoundError(f"fusedops.jit: {name}: no file {file}")
    for part in parts:
        if part not in tools.PARTS:
            known = ", ".join(tools.PARTS)
            raise ValueError(f"fusedops.jit: {name}: parts must be of {known}; got {part!r}")
    chosen = tuple(file for file in files if cuda or file.suffix not in tools.CUDA)
    if not chosen:
        raise ValueError(
            f"fusedops.jit: {name}: every source is CUDA, and no GPU is visible; pass "
            "with_cuda=True or set TORCH_CUDA_ARCH_LIST to compile them"
        )
    return chosen


def _plan(
    name: str,
    files: tuple[Path, ...],
    parts: Sequence[str],
    chain: tools.Toolchain,
    folders: tuple[str, ...],
) -> _Plan:
    ours = list(tools.SUPPORT)
    if chain.nvcc:
        ours += [*tools.CUDA_SUPPORT, *(source for part in parts for source in tools.PARTS[part])]
    support = tuple(include_dir() / source for source in ours)
    own: dict[Path, None] = {}
    keys = []
    for source in (*files, *support):
        seen = included(source, [Path(folder) for folder in folders])
        if source in files:
            own.update(dict.fromkeys(seen))
        flags = chain.cuda_flags if source.suffix in tools.CUDA else chain.cxx_flags
        digest = hashlib.sha256("\0".join((FORMAT, *flags, *chain.identity)).encode())
        digest.update(f"{torch.__version__}\0{headers_digest()}\0{source}".encode())
        for path in seen:
            digest.update(f"\0{path}\0".encode() + path.read_bytes())
        keys.append(digest.hexdigest()[:32])
    return _Plan(name, (*files, *support), tuple(own), chain, tuple(keys))


def included(source: Path, folders: Sequence[Path]) -> list[Path]:
    """A source and what its includes name beside it or in `folders`, conditions ignored."""
    found: dict[Path, None] = {}
    waiting = [source]
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found[path] = None
        for quoted, angled in _INCLUDE.findall(path.read_text(errors="replace")):
            near = [path.parent, *folders] if quoted else folders
            for folder in near:
                candidate = (folder / (quoted or angled)).resolve()
                if candidate.is_file() and candidate.suffix in (*HEADERS, *tools.CXX, *tools.CUDA):
                    waiting.append(candidate)
                    break
    return list(found)


# ---- the build ----


def _build(plan: _Plan, verbose: bool) -> None:
    """Compiles what has no object yet, side by side, and links."""
    objects = cache_dir() / "jit" / "objects"
    objects.mkdir(parents=True, exist_ok=True)
    made = [objects / f"{key}.o" for key in plan.keys]
    missing = [(s, o) for s, o in zip(plan.sources, made, strict=True) if not _touch(o)]
    jobs = int(os.environ.get("MAX_JOBS") or os.cpu_count() or 1)
    with concurrent.futures.ThreadPoolExecutor(max(1, min(jobs, len(missing) or 1))) as pool:
        for _ in pool.map(lambda pair: _compile(plan, pair[0], pair[1], verbose), missing):
            pass

    def link(to: Path) -> None:
        done = _run(plan.chain.link(made, to), verbose)
        if done.returncode:
            said = "\n".join(done.stderr.strip().splitlines()[-20:])
            raise BuildError(f"fusedops.jit: {plan.name} does not link\n{said}", done.stderr)

    _publish(plan.library, link)


def _touch(made: Path) -> bool:
    """Whether an object is there; it then is among the youngest."""
    with suppress(FileNotFoundError):
        os.utime(made)
        return True
    return False


def _compile(plan: _Plan, source: Path, to: Path, verbose: bool) -> None:
    def run(partial: Path) -> None:
        done = _run(plan.chain.command(source, partial), verbose)
        if done.returncode:
            log = plan.folder / f"{source.name}.log"
            log.write_text(done.stdout + done.stderr)
            raise compile_error(plan.name, source, done.stdout + done.stderr, plan.own, log)

    _publish(to, run)


def _run(command: list[str], verbose: bool) -> subprocess.CompletedProcess[str]:
    # NOTE: the parser of errors knows the words of the untranslated compiler.
    environment = {**os.environ, "LC_ALL": "C"}
    if verbose:
        print(" ".join(command), flush=True)
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if verbose and (said := (done.stdout + done.stderr).strip()):
        print(said, flush=True)
    return done


# ---- files ----


def _publish(path: Path, make: Any) -> None:
    """Puts the file that make(path) writes in place at once: a killed builder leaves none."""
    handle, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}.", suffix=path.suffix)
    os.close(handle)
    try:
        make(Path(partial))
        with open(partial, "rb") as file:
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise


def _is_whole(library: Path) -> bool:
    """Whether there is a library; one that a disk or somebody else cut short is none."""
    try:
        with library.open("rb") as file:
            header = file.read(64)
        size = library.stat().st_size
    except OSError:
        return False
    # NOTE: a linker puts the section headers last, and the ELF header says where they end.
    whole = header[:4] == b"\x7fELF" and len(header) == 64
    if whole:
        at, each, count = struct.unpack_from("<Q", header, 40) + struct.unpack_from(
            "<HH", header, 58
        )
        whole = size >= at + each * count
    if not whole:
        warnings.warn(f"fusedops.jit: {library} is no library, building it anew", stacklevel=4)
    return whole


@contextmanager
def _writable(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BuildError(
            f"fusedops.jit: cannot write to {folder} ({error}); set FUSEDOPS_CACHE_DIR to a folder "
            "that can be written"
        ) from error


def _forget_old(folder: Path) -> None:
    """Removes what was built longest ago; a process that has a library loaded keeps it."""
    for old in _oldest(folder.parent, MOST_LIBRARIES):
        if old != folder:
            shutil.rmtree(old, ignore_errors=True)
    for old in _oldest(cache_dir() / "jit" / "objects", MOST_OBJECTS):
        old.unlink(missing_ok=True)


def _oldest(folder: Path, but: int) -> list[Path]:
    times = []
    for path in folder.iterdir():
        with suppress(FileNotFoundError):  # another process is at the same
            times.append((path.stat().st_mtime_ns, path))
    return [path for _, path in sorted(times)[:-but]]
