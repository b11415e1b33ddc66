"""What the README shows runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import fusedops

README = Path(__file__).resolve().parents[1] / "README.md"


def test_the_first_snippet_runs(monkeypatch, capsys):
    """On the CPU, with fewer rows; tune needs a GPU."""
    monkeypatch.setattr(fusedops, "tune", lambda model, x: model(x).shape)
    code = re.search(r"```python\n(.*?)```", README.read_text(), re.DOTALL)[1]
    assert '"cuda"' in code
    names = {}
    exec(code.replace('"cuda"', '"cpu"').replace("8192", "16"), names)
    assert names["y"].shape == names["c"].shape == (16, 4096)
    assert names["report"].num_fused == 3
    assert names["report"].blocks
    assert names["n"].shape == (8, 1024)
    assert names["idx"].shape == names["d2"].shape == (8, 4096, 16)
    assert "torch.Size([16, 1024])" in capsys.readouterr().out
