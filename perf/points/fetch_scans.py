"""Fetches real LiDAR scans from PyPI into a folder.

    python perf/points/fetch_scans.py FOLDER
    FUSEDOPS_BENCH_SCAN=FOLDER/source.ply python -m fusedops bench points pointnet --case '*scan*'

The source distribution of small-gicp 1.0.1 (MIT) has two of them, source.ply and target.ply: 69,792
and 69,088 points with intensities, in metres. Its licence is copied beside them.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

PACKAGE, FOLDER = "small-gicp==1.0.1", "small_gicp-1.0.1"
FILES = {"data/source.ply": "source.ply", "data/target.ply": "target.ply", "LICENSE": "LICENSE"}


def fetch(folder: Path) -> list[Path]:
    """The files written; raises subprocess.CalledProcessError where pip cannot download."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--no-binary", "small-gicp", "--dest", temporary, PACKAGE]
        subprocess.run(command, check=True)
        (archive,) = Path(temporary).glob("*.tar.gz")
        written = []
        with tarfile.open(archive) as tar:
            for name, target in FILES.items():
                member = tar.extractfile(f"{FOLDER}/{name}")
                if member is None:
                    raise SystemExit(f"fetch_scans: {archive.name} has no {name}")
                written.append(folder / target)
                written[-1].write_bytes(member.read())
    return written


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    for path in fetch(parser.parse_args().folder):
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
