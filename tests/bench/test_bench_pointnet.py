"""The suite `pointnet`: its cases, its plain models, and small runs of it on the CPU."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

from fusedops import models, nn
from fusedops._timing import timing
from fusedops.bench import cli, machine
from fusedops.bench.report import results
from fusedops.bench.suites import points_clouds
from fusedops.bench.suites.base import ALL, Case, Selection, load_suite
from fusedops.bench.suites.pointnet import clouds, layers, nets, plain, search

CPU = torch.device("cpu")
DRAW = Path(__file__).resolve().parents[2] / "perf/points/draw_layers.py"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(points_clouds.SCAN, raising=False)
    monkeypatch.setattr(timing, "REPLAY_US", 50.0)
    monkeypatch.setattr(machine, "CPU_COPY_BYTES", 1 << 20)
    monkeypatch.setattr(machine, "CPU_MATMUL_SIZE", 64)
    nets.loaded.cache_clear()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def _no_inductor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dynamo's graphs run as they are: the suite is under test, not the compiler."""
    whole = torch.compile

    def compile(function: Any, **options: Any) -> Any:
        return whole(function, dynamic=options.get("dynamic"), backend="eager")

    monkeypatch.setattr(torch, "compile", compile)


def bench(*args: str) -> int:
    return cli.main(["pointnet", *args, "--device", "cpu", "--rounds", "1", "--out", "a.csv"])


def rows() -> set[tuple[str, str, str, str]]:
    found = results.read_rows(Path("a.csv"))
    return {(r["case"], r["dtype"], r["pass"], r["peer"]) for r in found}


# ---- the list ----


def test_it_has_the_cases_that_are_promised() -> None:
    suite = load_suite("pointnet")
    passes = {p: [case.name for case in suite.cases(Selection(p))] for p in suite.passes}
    forward, step = {*passes["fwd"]}, {*passes["step"]}
    wanted = {
        "sa/B32_N1024_M512_K32_C0_64-64-128",
        "sa/B32_N512_M128_K64_C128_128-128-256",
        "sa/B16_N16384_M4096_K32_C6_32-32-64",
        "edge/B32_N1024_k20_64-64",
        "edge/B8_N4096_k20_64-128",
    }
    assert wanted <= forward
    assert any(name.endswith("256-256-512") for name in forward)
    assert any(name.endswith("256-512-1024") for name in forward)
    whole = {"ssg_cls/B32_N1024", "msg_seg/B16_N2048", "dgcnn_cls/B32_N1024"}
    assert step == forward | whole
    assert {*passes["infer"]} == whole
    assert "pointnet" not in ALL


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_every_tensor_counts_once(dtype) -> None:
    """Coordinates in float32, features and results in the dtype and twice in a step, indices."""
    layer = layers.Layer(2, 30, 7, 5, 4, (8, 9), 0.3)
    case = Case("sa/small", {"kind": "sa", "of": layer})
    device = torch.device("cpu")
    xyz, centers, idx, features = layers.make_inputs(case, dtype, "fwd", device)[:4]
    out = 2 * 7 * 9 * dtype.itemsize
    fixed = xyz.nbytes + centers.nbytes + idx.nbytes
    assert layers.work(case, dtype, "fwd").bytes == fixed + features.nbytes + out
    assert layers.work(case, dtype, "step").bytes == fixed + 2 * (features.nbytes + out)


def test_clouds_are_surfaces() -> None:
    """Half of them spheres, the others boxes; balls on them are not full."""
    torch.manual_seed(0)
    cloud = clouds.surfaces(6, 1024, CPU)
    radius = cloud.norm(dim=-1)
    torch.testing.assert_close(radius[::2], torch.ones_like(radius[::2]))
    assert bool((radius[1::2].std(1) > 0.02).all())
    assert float(radius.max()) <= 1 + 1e-5
    idx = search.OURS.ball(cloud, cloud, 0.2, 32)
    distinct = torch.tensor([row.unique().numel() for row in idx.view(-1, 32)])
    assert 0.2 < float(distinct.float().mean()) / 32 < 0.8


def test_torchs_search_is_ours() -> None:
    torch.manual_seed(0)
    xyz = clouds.surfaces(2, 200, CPU)
    chosen = search.OURS.sample(xyz, 20)
    assert torch.equal(search.TORCH.sample(xyz, 20), chosen)
    centers = xyz[:, :20]
    ours, other = (s.ball(xyz, centers, 0.3, 8) for s in (search.OURS, search.TORCH))
    assert torch.equal(ours, other)
    (idx, near), (also, dist2) = (s.knn(xyz, centers, 5) for s in (search.OURS, search.TORCH))
    assert torch.equal(idx, also)
    torch.testing.assert_close(near, dist2, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("net", nets.NETS, ids=lambda net: net.name)
def test_a_plain_model_is_the_model(net: nets.Net) -> None:
    """The same state dict, logits and gradients, in float64 over the same neighbours."""
    torch.manual_seed(0)
    model = nets.build(net.name, True).double()
    other = plain.as_plain(model, search.OURS)
    assert [*other.state_dict()] == [*model.state_dict()]
    case = next(c for c in nets.net_cases(Selection("step")) if c["of"] is net)
    data = nets.make_inputs(case, torch.float64, "step", CPU)
    data = tuple(t.double() if t.is_floating_point() else t for t in data)
    ours, theirs = (nets.run(m, "step", data) for m in (model, other))
    for got, want in zip(ours, theirs, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-9)
    for got, want in zip(model.buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-8, atol=1e-10)
    assert not any(type(m) in plain.PLAIN for m in other.modules())


def test_what_the_plain_layer_lacks_is_said() -> None:
    layer = nn.SetAbstraction(0, [8], 0.2, 4, num_points=4, pool="mean")
    with pytest.raises(ValueError, match="as_plain: pool must be 'max'; got 'mean'"):
        plain.as_plain(layer, search.OURS)
    assert isinstance(plain.as_plain(models.DGCNN(4), search.OURS), models.DGCNN)


# ---- a run ----


@pytest.mark.parametrize(
    ("shape", "dtypes"),
    [((2, 32, 16), ("fp32", "fp64")), ((4, 256, 64), ("bf16", "fp16"))],  # few maxima are chance
)
def test_layers_of_given_shapes_run(shape: tuple[int, ...], dtypes: tuple[str, ...]) -> None:
    b, n, m = shape
    args = ("--shapes", f"{b}x{n}x{m}", "--dtype", ",".join(dtypes), "--peers", "eager,torch")
    assert bench(*args) == 0
    names = {
        f"sa/B{b}_N{n}_M{m}_K8_C0_16-16-32": ("eager",),
        f"edge/B{b}_N{n}_k8_16-16": ("eager", "torch"),
    }
    assert rows() == {
        (name, dtype, pass_, peer)
        for name, peers in names.items()
        for peer in peers
        for dtype in dtypes
        for pass_ in ("fwd", "step")
    }
    errors = Path("a.csv").with_name("pointnet_error.csv").read_text()
    assert "ours/step" in errors
    assert "eager/fwd" in errors


@pytest.mark.usefixtures("_no_inductor")
def test_layers_compile_whole() -> None:
    args = ("--shapes", "2x32x16", "--peers", "eager,compile", "--dtype", "fp32")
    assert bench(*args) == 0
    assert {peer for *_, peer in rows()} == {"eager", "compile"}
    assert len(rows()) == 8


@pytest.mark.usefixtures("_no_inductor")
def test_models_run_in_tiny_widths() -> None:
    assert bench("--case", "*_*/B*_N?0??", "--peers", "eager,compile,torch") == 0
    assert rows() == {
        (f"{net.name}/B{net.b}_N{net.n}", "bf16", pass_, peer)
        for net in nets.NETS
        for pass_ in ("step", "infer")
        for peer in nets.PEERS
    }


def test_a_scan_is_a_case(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    np = pytest.importorskip("numpy")
    np.save(tmp_path / "scan.npy", 3 * np.random.default_rng(0).standard_normal((300, 3)))
    monkeypatch.setenv(points_clouds.SCAN, str(tmp_path / "scan.npy"))
    assert bench("--case", "scan/*", "--peers", "eager", "--dtype", "fp32", "--pass", "fwd") == 0
    assert {name for name, *_ in rows()} == {
        "scan/B1_N300_M300_K32_C0_64-64-128",
        "scan/B1_N300_M300_K32_C0_32-32-64",
    }
    args = ["--case", "*_scan", "--device", "cpu", "--rounds", "1", "--out", "b.csv"]
    assert cli.main(["points", *args, "--peers", "eager"]) == 0
    found = {row["case"] for row in results.read_rows(Path("b.csv"))}
    assert "knn/B1_N300_M300_k16_scan" in found
    assert "ball/B1_N300_M300_r0.5_k32_scan" in found


def test_a_wrong_layer_gets_no_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = layers.ours

    def wrong(*args: Any) -> Any:
        call = right(*args)
        return lambda *inputs: 1.05 * call(*inputs)

    monkeypatch.setattr(layers, "ours", wrong)
    assert bench("--shapes", "2x32x16", "--pass", "fwd", "--peers", "eager") == 1
    assert "FAILED WrongModelError: result 0: relative error" in capsys.readouterr().out


def test_layer_times_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    suite = load_suite("pointnet")
    names = [case.name for case in suite.cases(Selection("fwd")) if case["kind"] == "sweep"]
    found = [
        dict.fromkeys(results.COLUMNS, "")
        | {"suite": "pointnet", "case": name, "dtype": "bf16", "pass": pass_, "gpu": "H200"}
        | {"ours_us": "10", "peer": "eager", "peer_us": "80"}
        for name in names
        for pass_ in ("fwd", "step")
    ]
    results.merge_rows(tmp_path / "a.csv", found)
    spec = importlib.util.spec_from_file_location("draw_layers", DRAW)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.draw(results.read_rows(tmp_path / "a.csv"), tmp_path / "a.svg")
    assert "<svg" in (tmp_path / "a.svg").read_text()


@pytest.mark.gpu
def test_a_gpu_run_has_memory() -> None:
    args = ["--case", "sa/B32_N1024*", "--peers", "eager", "--rounds", "2", "--out", "a.csv"]
    assert cli.main(["pointnet", *args]) == 0
    found = results.read_rows(Path("a.csv"))
    assert {row["pass"] for row in found} == {"fwd", "step"}
    assert all(float(row["peer_extra_mb"]) > 0 for row in found)
