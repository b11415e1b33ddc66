"""`fusedops new`: an op or an epilogue of one's own, as a project whose tests pass."""

from __future__ import annotations

import argparse
import keyword
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

TEMPLATES = Path(__file__).parent / "templates"
TAKEN = ("fusedops", "torch", "aten", "prim", "prims", "quantized", "tests", "kernels", "build")


def main(argv: Sequence[str], prog: str) -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(
        prog=f"{prog} new",
        description=(
            "Write a project with an op of your own: kernel, CPU twin, schema, fake, gradient, "
            "reference, tests, bench, and a build as a wheel. It computes silu(alpha * x) * y, and "
            "its tests pass: replace the formula. With --epilogue, a project in Python alone with "
            "an epilogue of a product, of which fusedops derives the gradient."
        ),
    )
    parser.add_argument("name", help="of the op, the package and the namespace, e.g. my_op")
    parser.add_argument("--epilogue", action="store_true", help="an epilogue instead of an op")
    parser.add_argument("--folder", type=Path, help="to write into; default: ./NAME")
    options = parser.parse_args(argv)
    if problem := name_problem(options.name):
        parser.error(problem)
    folder = options.folder or Path(options.name)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SystemExit(f"new: {folder} exists and is not an empty folder; nothing was written")
    try:
        files = write(options.name, folder, "epilogue" if options.epilogue else "op")
    except OSError as error:
        raise SystemExit(f"new: cannot write {folder}: {error.strerror}") from None
    print(f"wrote {len(files)} files into {folder}. Try it:")
    print(f"  cd {folder}\n  python -m pytest")
    return 0


def name_problem(name: str) -> str | None:
    """Why an op cannot have this name, or None."""
    if not name.isidentifier() or keyword.iskeyword(name) or name != name.lower():
        return f"NAME must be a lower-case identifier such as my_op; got {name}"
    if not name.isascii() or name.startswith("_") or "__" in name:
        return f"NAME must be of letters, digits and single underscores; got {name}"
    if name in TAKEN:
        return f"NAME must be free, and {name} means something else to Python, torch or the build"
    return None


def write(name: str, folder: Path, kind: str = "op") -> list[Path]:
    """Fills in the templates.

    Args:
        name: Name of the op, as `name_problem` allows.
        folder: Made where it is missing.
        kind: "op" or "epilogue".

    Returns:
        The files.
    """
    roots = (TEMPLATES / kind, TEMPLATES / "both")
    files = []
    pairs = sorted((root, file) for root in roots for file in root.rglob("*.in"))
    for home, template in pairs:
        words = template.relative_to(home).as_posix().removesuffix(".in")
        words = words.replace("gitignore", ".gitignore").replace("my_op", name)
        file = folder / words
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(template.read_text(encoding="utf-8").replace("my_op", name))
        files.append(file)
    return files
