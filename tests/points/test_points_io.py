"""Files of points: what is read of small files of every format, and of a real LiDAR scan."""

from __future__ import annotations

import os
import struct
import sys
from pathlib import Path

import pytest
import torch

from fusedops import points

np = pytest.importorskip("numpy")

ROWS = [(0.5, -1.25, 3.0, 7.0), (1e3, 2.0, -0.125, 255.0), (4.0, 5.0, 6.0, 0.0)]
SCANS = "FUSEDOPS_SCANS"  # a folder with the scans that perf/points/fetch_scans.py fetches


def expected(columns: int = 3) -> torch.Tensor:
    return torch.tensor([row[:columns] for row in ROWS])


def write_ply(path: Path, form: str) -> None:
    lines = ["ply", f"format {form} 1.0", "comment of a scanner", f"element vertex {len(ROWS)}"]
    lines += [f"property float {name}" for name in ("x", "y", "z", "intensity")]
    header = "\n".join([*lines, "end_header", ""]).encode()
    if form == "ascii":
        body = "".join(" ".join(map(str, row)) + "\n" for row in ROWS).encode()
    else:
        order = "<" if "little" in form else ">"
        body = b"".join(struct.pack(f"{order}4f", *row) for row in ROWS)
    path.write_bytes(header + body)


def write_pcd(path: Path, form: str) -> None:
    lines = ["# .PCD v0.7", "VERSION 0.7", "FIELDS x y z intensity", "SIZE 4 4 4 4", "TYPE F F F F"]
    lines += ["COUNT 1 1 1 1", f"WIDTH {len(ROWS)}", "HEIGHT 1", "VIEWPOINT 0 0 0 1 0 0 0"]
    header = "\n".join([*lines, f"POINTS {len(ROWS)}", f"DATA {form}", ""]).encode()
    if form == "ascii":
        body = "".join(" ".join(map(str, row)) + "\n" for row in ROWS).encode()
    else:
        body = b"".join(struct.pack("<4f", *row) for row in ROWS)
    path.write_bytes(header + body)


@pytest.mark.parametrize("form", ["ascii", "binary_little_endian", "binary_big_endian"])
def test_ply(tmp_path: Path, form: str) -> None:
    pytest.importorskip("trimesh")
    write_ply(tmp_path / "scan.ply", form)
    got = points.read_points(tmp_path / "scan.ply")
    assert got.dtype is torch.float32
    assert torch.equal(got, expected())
    assert torch.equal(points.read_points(tmp_path / "scan.ply", ["intensity"]), expected(4))
    with pytest.raises(ValueError, match="expected fields time; got x, y, z, intensity"):
        points.read_points(tmp_path / "scan.ply", ["time"])


def test_the_vertices_of_a_mesh_are_read(tmp_path: Path) -> None:
    trimesh = pytest.importorskip("trimesh")
    box = trimesh.creation.box((1.0, 2.0, 3.0))
    box.export(tmp_path / "box.ply")
    got = points.read_points(tmp_path / "box.ply", dtype=torch.float64)
    assert torch.equal(got, torch.from_numpy(np.asarray(box.vertices)))


@pytest.mark.parametrize("form", ["ascii", "binary"])
def test_pcd(tmp_path: Path, form: str) -> None:
    pytest.importorskip("pypcd4")
    write_pcd(tmp_path / "scan.pcd", form)
    assert torch.equal(points.read_points(tmp_path / "scan.pcd", ["intensity"]), expected(4))


def test_las_coordinates_of_a_map_keep_their_millimetres(tmp_path: Path) -> None:
    laspy = pytest.importorskip("laspy")
    header = laspy.LasHeader(point_format=3, version="1.2")
    header.scales, header.offsets = [0.001] * 3, [690_000.0, 5_336_000.0, 500.0]
    cloud = laspy.LasData(header)
    xyz = np.array([[690_123.456, 5_336_789.012, 512.345], [690_000.001, 5_336_000.002, 500.003]])
    cloud.x, cloud.y, cloud.z = xyz.T
    cloud.intensity = np.array([3, 65535])
    cloud.write(tmp_path / "map.las")
    got = points.read_points(tmp_path / "map.las", ["intensity"], dtype=torch.float64)
    torch.testing.assert_close(got[:, :3], torch.from_numpy(xyz), rtol=0, atol=1e-8)
    assert got[:, 3].tolist() == [3.0, 65535.0]


def test_npy(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.array(ROWS, dtype=np.float32))
    assert torch.equal(points.read_points(tmp_path / "rows.npy"), expected())
    assert torch.equal(points.read_points(str(tmp_path / "rows.npy"), ["3"]), expected(4))
    kinds = [("z", "f8"), ("y", "f4"), ("x", "f4"), ("label", "u1")]
    np.save(tmp_path / "named.npy", np.array([(3.0, 2.0, 1.0, 9)], dtype=kinds))
    assert points.read_points(tmp_path / "named.npy", ["label"]).tolist() == [[1.0, 2.0, 3.0, 9.0]]
    np.save(tmp_path / "flat.npy", np.zeros((4, 2)))
    with pytest.raises(ValueError, match=r"expected an array \(N, 3 or more\); got \(4, 2\)"):
        points.read_points(tmp_path / "flat.npy")


def test_points_of_no_return_are_left_out(tmp_path: Path) -> None:
    rows = np.array([[0.0, 0, 0], [np.nan, 1, 1], [2, np.inf, 2], [3, 3, 3]])
    np.save(tmp_path / "scan.npy", rows)
    assert points.read_points(tmp_path / "scan.npy")[:, 0].tolist() == [0.0, 3.0]
    assert len(points.read_points(tmp_path / "scan.npy", finite=False)) == 4


def test_what_cannot_be_read_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"expected a file \.npy, \.ply.*got 'a\.xyz'"):
        points.read_points(tmp_path / "a.xyz")
    with pytest.raises(FileNotFoundError, match=r"no file .*none\.ply"):
        points.read_points(tmp_path / "none.ply")
    with pytest.raises(ValueError, match=r"expected a floating-point type; got torch\.int64"):
        points.read_points(tmp_path / "none.ply", dtype=torch.int64)
    for name, package in ((".ply", "trimesh"), (".pcd", "pypcd4"), (".las", "laspy")):
        monkeypatch.setitem(sys.modules, package, None)
        (tmp_path / f"scan{name}").write_bytes(b"")
        with pytest.raises(ImportError, match=rf"\{name} files need the package {package}: pip"):
            points.read_points(tmp_path / f"scan{name}")


def test_a_real_scan() -> None:
    """small-gicp's source distribution has it: 69,792 points of a LiDAR, metres."""
    folder = os.environ.get(SCANS)
    if not folder:
        pytest.skip(f"{SCANS} names no folder with scans: python perf/points/fetch_scans.py FOLDER")
    pytest.importorskip("trimesh")
    scan = points.read_points(Path(folder) / "source.ply", ["scalar_intensity"])
    assert scan.shape == (69_792, 4)
    extent = scan[:, :3].amax(0) - scan[:, :3].amin(0)
    assert 40 < float(extent[0]) < 45
    assert 10 < float(extent[2]) < 15
    near = points.knn(scan[:, :3][None], None, 2).dist2
    assert near is not None
    assert float(near[0, :, 1].sqrt().median()) < 0.5  # of neighbours on one surface
