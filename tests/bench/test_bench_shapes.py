"""`bench --shapes FILE`, `bench all` by turns, the gate of `--compare` and the page of `--html`."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from fusedops.bench import cli
from fusedops.bench.report import results
from fusedops.bench.report.html import shade
from fusedops.bench.shapes import ShapesError, from_file

ROOT = Path(__file__).resolve().parents[2]
LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "hidden_act": "silu",
}


@pytest.fixture(autouse=True)
def _in_an_empty_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def written(name: str, content: Any) -> Path:
    path = Path(name)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def listed(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert cli.main([*arguments, "--list"]) == 0
    return capsys.readouterr().out.splitlines()


# ---- shapes ----


def test_a_config_names_a_layer_and_its_head() -> None:
    found = from_file(written("config.json", LLAMA), 2048)
    assert found.of("linear") == (
        (2048, 14336, 4096),
        (2048, 4096, 14336),
        (2048, 4096, 4096),
        (2048, 1024, 4096),
        (2048, 128256, 4096),
    )
    assert found.of("mlp") == ((2048, 4096, 14336),)
    assert found.activations["mlp"] == ("swiglu",)
    assert found.of("norm") == ((2048, 4096),)
    assert found.of("rope") == ((2048, 32, 128),)
    assert found.of("loss") == ((2048, 4096, 128256),)


@pytest.mark.parametrize(
    ("config", "shape", "activation"),
    [
        ({"n_embd": 768, "activation_function": "gelu_new"}, (64, 768, 3072), "gelu_tanh"),
        ({"hidden_size": 768, "intermediate_size": 3072}, (64, 768, 3072), "gelu"),
        ({"d_model": 512, "d_ff": 1024, "is_gated_act": True, "dense_act_fn": "gelu_new"},
         (64, 512, 1024), "geglu_tanh"),
        ({"model_type": "phi3", "hidden_size": 3072, "intermediate_size": 8192,
          "hidden_act": "silu"}, (64, 3072, 8192), "swiglu_packed"),
        ({"model_type": "gemma3", "text_config": {"hidden_size": 640, "intermediate_size": 2048,
          "hidden_activation": "gelu_pytorch_tanh"}}, (64, 640, 2048), "geglu_tanh"),
        ({**LLAMA, "num_local_experts": 8, "num_experts_per_tok": 2}, (16, 4096, 14336), "swiglu"),
    ],
)  # fmt: skip
def test_configs_of_other_models(
    config: dict[str, Any], shape: tuple[int, ...], activation: str
) -> None:
    found = from_file(written("config.json", config), 64)
    assert found.of("mlp") == (shape,)
    assert found.activations["mlp"] == (activation,)


def test_files_of_shapes(capsys: pytest.CaptureFixture[str]) -> None:
    written("a.json", [[16, 8, 12], "32x8x12"])
    assert from_file(Path("a.json"), 1).of("linear") == ((16, 8, 12), (32, 8, 12))
    written("b.json", {"mlp": [[16, 8, 32]], "linear": ["16x8x12"]})
    assert from_file(Path("b.json"), 1).of("mlp") == ((16, 8, 32),)
    written("c.csv", "suite,M,N,K\nlinear,16,8,12\nnorm,16,8,\n")
    found = from_file(Path("c.csv"), 1)
    assert (found.of("linear"), found.of("norm")) == (((16, 8, 12),), ((16, 8),))
    lines = listed(capsys, "linear", "--shapes", "c.csv", "--pass", "fwd", "--dtype", "bf16")
    assert [line.split()[1] for line in lines] == ["16x8x12/relu", "16x8x12/gelu_tanh"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", [[1, "x"]], r"expected shapes such as \[8192, 4096, 1024\]; got"),
        ("a.json", [], r"expected shapes such as \[8192, 4096, 1024\]; got"),
        ("a.json", {"layers": 3}, "expected a list of shapes, lists by suite, or a model's config"),
        ("a.json", "{", "a.json: Expecting"),
        ("a.csv", "M,N,K\n", "expected a line of names and a line for each shape; got none"),
        ("a.csv", "M,N\n4,y\n", "expected a column for each size, and whole numbers"),
        ("a.csv", "suite,M\nfoo,4\n", "no suite foo; choose from linear"),
    ],
)
def test_other_files_are_refused(name: str, content: Any, message: str) -> None:
    with pytest.raises(ShapesError, match=message):
        from_file(written(name, content), 1)


def test_refusals_on_the_command_line() -> None:
    with pytest.raises(SystemExit, match=r"bench: --shapes nowhere\.json: .*No such file"):
        cli.main(["linear", "--shapes", "nowhere.json"])
    written("b.json", {"mlp": [[16, 8, 32]]})
    with pytest.raises(SystemExit, match=r"b\.json has no shapes for suite linear; it has mlp"):
        cli.main(["linear", "--shapes", "b.json"])


def test_a_config_runs(capsys: pytest.CaptureFixture[str]) -> None:
    tiny = LLAMA | {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4}
    written("config.json", tiny | {"num_key_value_heads": 2, "vocab_size": 50})
    arguments = ["linear", "mlp", "--shapes", "config.json", "--tokens", "16", "--rounds", "1"]
    arguments += ["--peers", "eager", "--dtype", "bf16", "--device", "cpu", "--out", "out/"]
    assert cli.main(arguments) == 0
    cases = {row["case"] for row in results.read_rows(Path("out"))}
    assert {"16x48x32/none", "16x50x32/none", "T16_d32_h48/swiglu"} <= cases
    capsys.readouterr()
    names = {line.split()[0] for line in listed(capsys, "all", "--shapes", "config.json")}
    assert {"linear", "mlp", "norm", "rope", "loss"} <= names
    assert not {"stencil", "scan", "points"} & names


def test_all_takes_the_suites_by_turns(capsys: pytest.CaptureFixture[str]) -> None:
    """A budget that ends in the middle leaves the same share of each."""
    names = [line.split()[0] for line in listed(capsys, "all", "--peers", "none")]
    whole = {name: names.count(name) for name in names}
    half = names[: len(names) // 2]
    assert len(whole) > 12
    for name, count in whole.items():
        assert abs(half.count(name) - count / 2) <= max(2, 0.1 * count), name


def test_all_has_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def run(options: Any) -> tuple[int, list[Path]]:
        seen.append(options.budget)
        return 0, []

    monkeypatch.setattr(cli, "_run", run)
    assert cli.main(["all"]) == 0
    assert cli.main(["all", "--budget", "0"]) == 0
    assert cli.main(["linear"]) == 0
    assert seen == [540.0, 0.0, None]


# ---- the gate ----


def rows(**speeds: str) -> list[results.Row]:
    values = dict.fromkeys(results.COLUMNS, "1")
    values |= {"suite": "linear", "dtype": "bf16", "pass": "fwd", "peer": "eager", "torch": "2.11"}
    values |= {"gpu": "NVIDIA H100", "gbps": "100", "tflops": "5", "floor_us": "0.5"}
    return [values | {"case": f"{m[1:]}x64x64/relu", "speedup": s} for m, s in speeds.items()]


def test_compare_is_a_gate(capsys: pytest.CaptureFixture[str]) -> None:
    results.merge_rows(Path("old/linear.csv"), rows(m64="1.5", m128="1.0"))
    results.merge_rows(Path("new/linear.csv"), rows(m64="1.4", m128="1.1"))
    assert cli.main(["--compare", "old", "--out", "new"]) == 1
    assert "1 better, 1 worse" in capsys.readouterr().out
    assert cli.main(["--compare", "old", "--out", "new", "--allow", "0.9"]) == 0
    assert cli.main(["--compare", "new", "--out", "new"]) == 0
    results.merge_rows(Path("other/linear.csv"), rows(m7="1.0"))
    assert cli.main(["--compare", "other", "--out", "new"]) == 1
    assert "no case in common" in capsys.readouterr().out


# ---- the page ----


class Page(HTMLParser):
    """Checks that elements nest, and keeps what the page loads and shows."""

    VOID = ("meta", "input", "line", "circle", "br")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_alone(capsys: pytest.CaptureFixture[str]) -> None:
    found = [*rows(m64="1.5", m128="0.5"), rows(m1="1")[0] | {"peer": "-", "speedup": ""}]
    found[0]["gpu"] = "NVIDIA <b>"
    results.merge_rows(Path("r/linear.csv"), found)
    assert cli.main(["--summary", "r", "--html", "out/page.html"]) == 0
    text = Path("out/page.html").read_text()
    page = Page()
    page.feed(text)
    assert page.open == []
    assert page.loads == []
    assert "<b>" not in text
    assert page.tags.count("circle") == 3
    assert "0.866" in text  # the geomean
    assert f"background:{shade(0.5)}" in text
    assert len(re.findall(r"<tr><td class=\"text\">\d+x64x64/relu", text)) == 3
    assert "wrote out/page.html" in capsys.readouterr().out


def test_shades_are_about_doublings() -> None:
    assert shade(1.0) == "rgb(255,255,255)"
    red, _, blue = (int(c) for c in shade(0.5)[4:-1].split(","))
    assert red > blue
    red, _, blue = (int(c) for c in shade(2.0)[4:-1].split(","))
    assert blue > red
    assert shade(0.0) == shade(0.01)


@pytest.mark.skipif(not shutil.which("chromium"), reason="there is no browser here")
def test_the_page_fits_a_telephone() -> None:
    """At 390 pixels nothing but tables, which scroll by themselves, is wider than the screen."""
    measure = (
        "<script>onload=()=>{document.title='width '+document.documentElement.scrollWidth}</script>"
    )
    committed = ROOT / "perf/results/h200"
    assert cli.main(["--summary", str(committed), "--html", "page.html"]) == 0
    page = Path("page.html")
    page.write_text(page.read_text().replace("</body>", f"{measure}</body>"))
    frame = Path("frame.html")
    frame.write_text(
        '<iframe id="f" style="width:390px;height:900px;border:0" src="page.html"></iframe>'
        "<script>setTimeout(()=>{document.body.append(document.getElementById('f')"
        ".contentDocument.title)},3000)</script>"
    )
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu"]
    command += ["--allow-file-access-from-files", "--virtual-time-budget=20000", "--dump-dom"]
    done = subprocess.run(
        [*command, frame.resolve().as_uri()], capture_output=True, text=True, timeout=120
    )
    width = re.search(r"width (\d+)", done.stdout)
    assert width, done.stdout[-500:] + done.stderr[-500:]
    assert int(width[1]) <= 390
