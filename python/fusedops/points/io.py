"""Reads clouds of points from the files that scanners and mesh tools write.

Every format is read by a package of its own, which is imported when such a file is read: NumPy for
.npy, trimesh for .ply, pypcd4 for .pcd, laspy for .las (with lazrs for .laz).
`pip install fusedops[clouds]` brings all of them.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

    from torch import Tensor

AXES = ("x", "y", "z")
EXTRA = "clouds"  # of pyproject.toml


def read_points(
    path: str | os.PathLike[str],
    fields: Sequence[str] = (),
    *,
    dtype: torch.dtype = torch.float32,
    finite: bool = True,
) -> Tensor:
    """The points of a scan, on the CPU.

    Args:
        path: A file .ply, .pcd, .las, .laz, or .npy with an array (N, 3 or more) or one with named
            fields.
        fields: Names of further columns as the file has them, e.g. `("intensity",)`; of a plain
            .npy the column's number, `"3"`.
        dtype: Dtype of the result. Coordinates are read as the file has them and rounded once.
            Those of a map in metres (.las) need float64: subtract an origin before they become
            float32.
        finite: Leave out points with a coordinate that is NaN or infinite, which scanners write
            where nothing came back.

    Returns:
        (N, 3 + len(fields)) in the file's order and unit: x, y, z, then the fields.

    Raises:
        ImportError: The package that reads this format is missing; the text names it.
        ValueError: An unknown ending, or the file has no coordinates or no such field, is cut off
            or cannot be read.
    """
    path = Path(path)
    read = READERS.get(path.suffix.lower())
    if read is None:
        known = ", ".join(READERS)
        raise ValueError(f"read_points: path: expected a file {known}; got {path.name!r}")
    if not dtype.is_floating_point:
        raise ValueError(f"read_points: dtype: expected a floating-point type; got {dtype}")
    if not path.is_file():
        raise FileNotFoundError(f"read_points: path: no file {path}")
    names = (*AXES, *fields)
    np = _package("numpy", path)
    columns = [_column(path, np, c) for c in _read(read, path, names)]
    found = torch.from_numpy(np.stack(columns, axis=1))
    if finite:
        found = found[found[:, :3].isfinite().all(1)]
    return found.to(dtype)


def _read(
    read: Callable[[Path, Sequence[str]], list[Any]], path: Path, names: Sequence[str]
) -> list[Any]:
    """The columns, or one kind of error for what the packages raise of a broken file."""
    try:
        return read(path, names)
    except ImportError:
        raise
    except Exception as error:
        text = str(error)
        if text.startswith("read_points: "):
            raise
        raise ValueError(
            f"read_points: {path}: the file cannot be read: {type(error).__name__}: {text}"
        ) from error


def _column(path: Path, np: Any, values: Any) -> Any:
    column = np.asarray(values)
    if column.ndim == 2 and column.shape[1] == 1:
        column = column[:, 0]
    if column.ndim != 1 or np.iscomplexobj(column):
        raise ValueError(
            f"read_points: {path}: expected one real number a point; got {column.dtype} of shape "
            f"{tuple(column.shape)}"
        )
    return column.astype(np.float64)


def _check_count(path: Path, expected: int, found: int) -> None:
    if expected != found:
        raise ValueError(
            f"read_points: {path}: expected {expected} points, as the file says; got {found}"
        )


def _read_npy(path: Path, names: Sequence[str]) -> list[Any]:
    array = _package("numpy", path).load(path, allow_pickle=False)
    if array.dtype.names is not None:
        return _named(path, array.reshape(-1), array.dtype.names, names)
    if array.ndim != 2 or array.shape[1] < 3:
        raise ValueError(
            f"read_points: {path}: expected an array (N, 3 or more); got {tuple(array.shape)}"
        )
    known = (*AXES, *(str(column) for column in range(3, array.shape[1])))
    return _named(path, dict(zip(known, array.T, strict=True)), known, names)


def _read_ply(path: Path, names: Sequence[str]) -> list[Any]:
    """The vertices, also of a mesh; trimesh keeps all their properties beside its own reading."""
    _package("trimesh", path)
    ply = importlib.import_module("trimesh.exchange.ply")
    with path.open("rb") as file:
        elements = ply.load_ply(file)["metadata"]["_ply_raw"]
    vertices = elements.get("vertex")
    if vertices is None or "data" not in vertices:
        raise ValueError(f"read_points: {path}: the file has no vertices")
    return _named(path, vertices["data"], tuple(vertices["properties"]), names)


def _read_pcd(path: Path, names: Sequence[str]) -> list[Any]:
    cloud = _package("pypcd4", path).PointCloud.from_path(path)
    _check_count(path, int(cloud.metadata.points), len(cloud.pc_data))
    return _named(path, cloud.pc_data, tuple(cloud.fields), names)


def _read_las(path: Path, names: Sequence[str]) -> list[Any]:
    cloud = _package("laspy", path).read(path)
    _check_count(path, int(cloud.header.point_count), len(cloud.points))
    known = (*AXES, *cloud.point_format.dimension_names)
    scaled = {name: cloud[name] for name in names if name in known}  # x is X scaled and moved
    return _named(path, scaled, known, names)


def _named(path: Path, table: Any, known: Sequence[str], names: Sequence[str]) -> list[Any]:
    missing = [name for name in names if name not in known]
    if missing:
        raise ValueError(
            f"read_points: {path}: expected fields {', '.join(missing)}; got {', '.join(known)}"
        )
    return [table[name] for name in names]


def _package(name: str, path: Path) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"read_points: {path.suffix} files need the package {name}: "
            f"pip install {name}, or fusedops[{EXTRA}] ({error})"
        ) from error


READERS: dict[str, Callable[[Path, Sequence[str]], list[Any]]] = {
    ".npy": _read_npy,
    ".ply": _read_ply,
    ".pcd": _read_pcd,
    ".las": _read_las,
    ".laz": _read_las,
}
