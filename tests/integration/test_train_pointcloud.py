"""examples/train_pointcloud.py: its shapes, what it learns, and that it goes on bit by bit."""

from __future__ import annotations

import importlib.util
import os
import re
import statistics
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
STEPS = 18  # of the preset tiny
TIMES = "clouds_per_s"


@pytest.fixture(autouse=True)
def _here(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(EXAMPLES)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def example():
    import train_pointcloud

    return train_pointcloud


@pytest.fixture
def parts():
    from pointcloud import data, models, mujoco, procedural, surfaces

    return {m.__name__.split(".")[1]: m for m in (data, models, mujoco, procedural, surfaces)}


def run(example, out, *more, device="cpu"):
    """The rows of train.csv, one a step."""
    args = ["--preset", "tiny", "--out", out, "--log-every", "1", "--device", device]
    assert example.main([*args, "--precision", "fp32", *more]) == 0
    return rows(Path(out) / "train.csv")


def rows(file):
    from pointcloud import logs

    return [{k: v for k, v in row.items() if k != TIMES} for row in logs.read(file)]


def losses(found):
    return torch.tensor([float(row["loss"]) for row in found])


def tensors(value):
    """All tensors in a checkpoint, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [t for v in value for t in tensors(v)] if isinstance(value, list | tuple) else []


def same_checkpoints(a, b):
    found = [tensors(torch.load(Path(out) / "checkpoint.pt", weights_only=True)) for out in (a, b)]
    assert len(found[0]) > 20
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


# ---- a run ----


@pytest.mark.parametrize("model", ["ssg", "msg", "dgcnn"])
def test_it_learns_and_logs(example, model, device, capsys):
    epochs = 10 if device == "cpu" else 20  # its other roundings lead another way
    found = run(example, "run", "--model", model, "--epochs", str(epochs), device=device)
    assert [row["step"] for row in found] == [str(i + 1) for i in range(6 * epochs)]
    assert losses(found)[-6:].mean() < losses(found)[:6].mean() - 0.1
    tests = rows(Path("run/test.csv"))
    assert [row["epoch"] for row in tests] == [str(i + 1) for i in range(epochs)]
    assert all(0 <= float(row["class_accuracy"]) <= 1 for row in tests)
    assert "12 classes, 96 items" in capsys.readouterr().out


def test_plain_torch_has_the_same_loss_curve(example, device):
    """Until roundings choose another maximum somewhere, which on a GPU is in the fourth step."""
    fused, plain = (run(example, f"run{len(o)}", *o, device=device) for o in ((), ("--plain",)))
    torch.testing.assert_close(losses(fused)[:3], losses(plain)[:3], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(losses(fused).mean(), losses(plain).mean(), rtol=0.1, atol=0.1)


def test_it_goes_on_bit_by_bit(example, device):
    """Behind a checkpoint amid an epoch, over rows that a lost run had logged after it."""
    whole = run(example, "whole", "--save-every", "5", device=device)
    run(example, "parts", "--save-every", "5", "--stop-at", "7", device=device)
    with Path("parts/train.csv").open("a") as log:
        log.write("9,1.0,9.9,9.9,9.9,9.9\n")
    parts = run(example, "parts", "--save-every", "5", device=device)
    assert parts == whole
    assert rows(Path("parts/test.csv")) == rows(Path("whole/test.csv"))
    same_checkpoints("whole", "parts")


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_mixed_precision_goes_on_bit_by_bit(example, precision):
    for out, more in (("whole", ()), ("parts", ("--stop-at", "7")), ("parts", ())):
        args = ["--preset", "tiny", "--out", out, "--precision", precision, *more]
        assert example.main(args) == 0
    same_checkpoints("whole", "parts")


def test_another_run_does_not_go_on(example):
    run(example, "run", "--stop-at", "2")
    with pytest.raises(SystemExit, match=r"checkpoint\.pt has seed 0; this run 1"):
        run(example, "run", "--seed", "1")
    with pytest.raises(SystemExit, match="has plain False; this run True"):
        run(example, "run", "--plain")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "gpu"], "argument --device: expected cpu, cuda or cuda:N; got gpu"),
        (["--device", "meta"], "argument --device: expected cpu, cuda or cuda:N; got meta"),
        (["--device", "cuda:99"], r"cuda:99 is none of the \d GPU"),
        (["--seed", "-1"], "argument --seed: expected a number from 0 to 999999; got -1"),
        (["--epochs", "0"], "argument --epochs: expected a number from 1; got 0"),
    ],
)
def test_wrong_arguments_end_in_one_line(example, capsys, arguments, message):
    with pytest.raises(SystemExit) as ended:
        example.main(["--preset", "tiny", "--out", "run", *arguments])
    assert ended.value.code == 2
    assert re.search(message, capsys.readouterr().err.splitlines()[-1])


def broken_checkpoint(content):
    torch.save(content, "run/checkpoint.pt")


def test_broken_files_end_in_one_line(example):
    """A file in the place of --out, a checkpoint or a log that is none."""
    Path("taken").write_text("a file")
    with pytest.raises(SystemExit, match=r"^train_pointcloud: --out taken: File exists$"):
        run(example, "taken")
    run(example, "run", "--stop-at", "2", "--save-every", "2")
    whole = torch.load("run/checkpoint.pt", weights_only=True)
    log = Path("run/train.csv").read_text()
    wrong = r"^train_pointcloud: run/checkpoint\.pt is no checkpoint of this script: .*$"
    for content in (b"", b"no pickle", Path("run/checkpoint.pt").read_bytes()[:1000]):
        Path("run/checkpoint.pt").write_bytes(content)
        with pytest.raises(SystemExit, match=wrong):
            run(example, "run")
    for content in ([1], {}, {**whole, "model": {}}, {**whole, "generators": []}):
        broken_checkpoint(content)
        with pytest.raises(SystemExit, match=wrong):
            run(example, "run")
    broken_checkpoint(whole)
    for content in ("step,loss\nx,1\n", "loss\n1\n", "step,loss\n1,1\n"):
        Path("run/train.csv").write_text(content)
        with pytest.raises(
            SystemExit, match=r"^train_pointcloud: run/train\.csv is no log of a run"
        ):
            run(example, "run")
    Path("run/train.csv").write_text(log)
    assert len(run(example, "run", "--stop-at", "3")) == 3


def test_broken_meshes_end_in_one_line(parts, tmp_path):
    mujoco = parts["mujoco"]
    folder = tmp_path / "assets/objects"
    folder.mkdir(parents=True)
    scene, mesh = folder / "cup.xml", folder / "cup.stl"
    body = (
        '<mujoco><asset><mesh file="cup.stl"/></asset><worldbody><geom mesh="cup"{}/></worldbody>'
    )

    def ends(message):
        with pytest.raises(SystemExit, match=f"^train_pointcloud: {message}"):
            mujoco.find_objects(tmp_path)["cup"](torch.Generator())

    for content in ("", "<mujoco>", "<mujoco/>", "<mujoco><include/></mujoco>"):
        scene.write_text(content)
        ends(r".*cup\.xml is no scene of MuJoCo")
    scene.write_text('<mujoco><include file="gone.xml"/></mujoco>')
    ends(r".*gone\.xml: No such file")
    scene.write_text(body.format(' pos="a b c"') + "</mujoco>")
    ends(r".*cup\.xml is no scene of MuJoCo")
    scene.write_text(body.format("") + "</mujoco>")
    ends(r".*cup\.stl: No such file")
    for content in (b"", b"solid cup", bytes(84) + b"x", bytes(80) + b"\xff" * 4):
        mesh.write_bytes(content)
        ends(r".*cup\.stl is no binary STL")


def test_pictures(example):
    pytest.importorskip("matplotlib")
    run(example, "run", "--stop-at", "2", "--pictures")
    for name in ("confusion.png", "clouds.png"):
        assert (Path("run") / name).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("option", "module", "package"),
    [
        ("--pictures", "matplotlib", "matplotlib"),
        ("--tensorboard", "torch.utils.tensorboard", "tensorboard"),
    ],
)
def test_what_is_not_installed_is_said_at_once(example, monkeypatch, option, module, package):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SystemExit, match=f"{option} needs {package}: pip install {package}"):
        run(example, "run", option)
    assert not Path("run").exists()


def test_tensorboard(example):
    pytest.importorskip("tensorboard")
    run(example, "run", "--stop-at", "6", "--tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator("run/tensorboard").Reload()
    assert [e.step for e in events.Scalars("train/loss")] == list(range(1, 7))
    assert [e.step for e in events.Scalars("test/accuracy")] == [6]


def test_trainings_are_compared_over_seeds(example):
    pytest.importorskip("matplotlib")
    for kind, more in (("fused", ()), ("plain", ("--plain",))):
        for seed in ("0", "1"):
            run(example, f"runs/{kind}_{seed}", "--seed", seed, *more)
    script = EXAMPLES.parent / "perf/points/compare_training.py"
    done = subprocess.run(
        [sys.executable, str(script), "runs", "--out", "found/table.csv"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "accuracy: fused 0." in done.stdout
    assert len(Path("found/table.csv").read_text().splitlines()) == 5
    assert "<svg" in Path("found/table.svg").read_text()


def test_the_tutorial_has_the_figures_of_the_committed_runs(parts):
    root = EXAMPLES.parent
    from pointcloud import logs

    found = logs.read(root / "perf/results/pointcloud/training_cpu.csv")
    page = (root / "docs/tutorials/train-on-point-clouds.md").read_text()
    for kind, name in (("fused", "`fusedops`"), ("plain", "plain torch")):
        texts = []
        for column in ("accuracy", "loss"):
            values = [float(row[column]) for row in found if row["kind"] == kind]
            texts.append(f"{statistics.mean(values):.3f} +- {statistics.stdev(values):.3f}")
        assert f"| {name} | {texts[0]} | {texts[1]} |" in page


@pytest.mark.slow
def test_two_processes_share_a_batch_and_go_on_bit_by_bit(example):
    """torchrun with gloo; the clouds of a step are those of one process."""
    one = run(example, "one")
    for out, more in (("whole", ()), ("parts", ("--stop-at", "7")), ("parts", ())):
        args = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        args += [str(EXAMPLES / "train_pointcloud.py"), "--preset", "tiny", "--out", out]
        args += ["--log-every", "1", "--device", "cpu", "--precision", "fp32", *more]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, *args], env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        assert "2 process(es)" in done.stdout
    assert rows(Path("parts/train.csv")) == rows(Path("whole/train.csv"))
    same_checkpoints("whole", "parts")
    two = rows(Path("whole/train.csv"))
    assert len(two) == STEPS
    # Batch norms see the half of a batch that a process has.
    torch.testing.assert_close(losses(two)[0], losses(one)[0], rtol=0.2, atol=0.2)


# ---- the clouds ----


def test_a_batch_depends_on_seed_and_step_alone(parts):
    data = parts["data"]
    shapes = data.Shapes.make(parts["procedural"].KINDS, 4, 64, 0)
    again = data.Shapes.make(parts["procedural"].KINDS, 4, 64, 0)
    assert torch.equal(shapes.points, again.points)
    clouds, labels = data.batch_at(shapes, 7, 8, 32, 3)
    assert clouds.shape == (8, 32, 3)
    torch.rand(5)  # what others draw changes nothing
    same, same_labels = data.batch_at(again, 7, 8, 32, 3)
    assert torch.equal(clouds, same)
    assert torch.equal(labels, same_labels)
    for step, seed in ((8, 3), (7, 4)):
        assert not torch.equal(data.batch_at(shapes, step, 8, 32, seed)[0], clouds)
    epoch = torch.cat([data.batch_at(shapes, step, 8, 32, 0)[1] for step in range(6)])
    assert epoch.bincount().tolist() == [4] * 12  # every item once


def test_a_view_is_cut_and_lies_in_the_unit_sphere(parts):
    data = parts["data"]
    shapes = data.Shapes.make({"ball": parts["procedural"].KINDS["ball"]}, 2, 1000, 0)
    clouds, _ = data.views(shapes, torch.tensor([0, 1] * 20), 300, 1)
    assert float(clouds.norm(dim=2).max()) < 1 + 6 * data.JITTER
    reach = clouds.norm(dim=2).amin(1)  # a whole sphere's points are all far from its middle
    assert float(reach.min()) < 0.8


@pytest.mark.parametrize("name", ["box", "sphere", "cylinder", "capsule", "mesh"])
def test_points_are_spread_by_area(parts, name):
    surfaces = parts["surfaces"]
    g = torch.Generator().manual_seed(0)
    corners = torch.tensor([[[0.0, 0, 0], [1, 0, 0], [0, 1, 0]], [[0, 0, 1], [3, 0, 1], [0, 3, 1]]])
    made = {
        "box": [surfaces.box(1.0, 2.0, 3.0)],
        "sphere": [surfaces.sphere(2.0)],
        "cylinder": surfaces.cylinder(1.0, 2.0),
        "capsule": surfaces.capsule(1.0, 2.0),
        "mesh": [surfaces.mesh(corners)],
    }[name]
    points = surfaces.draw(made, 20_000, g)
    on = {  # a part of the surface, its share of the area
        "box": (points[:, 0].abs() > 1 - 1e-5, 2 * 6 / 22),
        "sphere": (points[:, 2] > 1.0, 1 / 4),  # a zone's area is as its height
        "cylinder": (points[:, 2].abs() > 2 - 1e-5, 2 / 10),
        "capsule": (points[:, 2].abs() > 2, 4 / 12),
        "mesh": (points[:, 2] == 0, 1 / 10),
    }[name]
    assert float(on[0].double().mean()) == pytest.approx(on[1], abs=0.015)
    assert sum(s.area for s in made) == pytest.approx(
        {"box": 88, "sphere": 50.27, "cylinder": 31.42, "capsule": 37.7, "mesh": 5}[name], rel=1e-3
    )


def test_every_kind_has_shapes_of_its_own(parts):
    data = parts["data"]
    shapes = data.Shapes.make(parts["procedural"].KINDS, 2, 256, 0)
    assert len(shapes.names) == 12
    assert bool(shapes.points.isfinite().all())
    pairs = shapes.points.view(12, 2, 256, 3)
    extents = pairs.amax(2) - pairs.amin(2)
    changes = (extents[:, 0] - extents[:, 1]).abs().amax(1)
    assert bool((changes[1:] > 1e-3).all())  # balls are all alike


# ---- objects of MuJoCo's XML ----


def write_object(folder):
    """A drawer: a box, a cube that slides out of it, a triangle of an STL file, a collider."""
    scenes = folder / "assets/objects"
    (scenes / "assets").mkdir(parents=True)
    (scenes / "meshes").mkdir()
    triangle = struct.pack("<12f", 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0) + b"\0\0"
    stl = b" " * 80 + struct.pack("<I", 1) + triangle
    (scenes / "meshes/leaf.stl").write_bytes(stl)
    (scenes / "assets/drawer_dependencies.xml").write_text(
        '<mujocoinclude><asset><mesh file="../objects/meshes/leaf.stl" name="leaf"/></asset>'
        "</mujocoinclude>"
    )
    (scenes / "assets/drawer.xml").write_text(
        '<mujocoinclude><body pos="0 0 10"><geom type="box" size="1 1 1"/>'
        '<geom class="x_col" type="box" size="50 50 50"/>'
        '<geom mesh="leaf" pos="0 0 5" euler="0 0 1.5707963"/>'
        '<body pos="0 0 0"><joint type="slide" axis="0 1 0" range="-8 -4"/>'
        '<geom type="box" size="0.5 0.5 0.5"/></body></body></mujocoinclude>'
    )
    (scenes / "drawer.xml").write_text(
        '<mujoco><include file="assets\\drawer_dependencies.xml"/>'
        '<include file="../scene/basic_scene.xml"/><worldbody><body pos="0 0 -10">'
        '<include file="assets/drawer.xml"/></body></worldbody></mujoco>'
    )


def test_objects_are_assembled(parts, tmp_path):
    write_object(tmp_path)
    ((name, make),) = parts["mujoco"].find_objects(tmp_path).items()
    assert name == "drawer"
    slides = []
    for seed in range(8):
        g = torch.Generator().manual_seed(seed)
        box, leaf, cube = make(g)
        assert float(box.sample(100, g).abs().max()) == pytest.approx(1)
        corners = leaf.sample(200, g)  # turned by 90 degrees about z
        assert bool((corners[:, 2] == 5).all())
        assert float(corners[:, 0].max()) < 1e-5
        middle = cube.sample(500, g).mean(0)
        slides.append(float(middle[1]))
        assert abs(float(middle[0])) < 0.1
    assert all(-8.2 < y < -3.8 for y in slides)
    assert max(slides) - min(slides) > 1


def test_what_is_no_package_of_objects_is_said(parts, tmp_path, monkeypatch):
    mujoco = parts["mujoco"]
    with pytest.raises(SystemExit, match=r"no objects in .*pip install --no-deps metaworld"):
        mujoco.find_objects(tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="metaworld is not installed: pip install"):
        mujoco.find_objects(None)


def test_real_objects(parts):
    if importlib.util.find_spec("metaworld") is None:
        pytest.skip("metaworld is not installed: pip install --no-deps metaworld==3.1.1")
    kinds = parts["mujoco"].find_objects(None)
    assert len(kinds) == 31
    shapes = parts["data"].Shapes.make(kinds, 2, 200, 0)
    extent = shapes.points.amax(1) - shapes.points.amin(1)
    assert float(extent.min()) > 0.01  # metres
    assert float(extent.max()) < 2
    by_name = dict(zip(kinds, shapes.points.view(31, 2, 200, 3), strict=True))
    laptops = by_name["laptop"].amax(1) - by_name["laptop"].amin(1)
    assert float((laptops[0] - laptops[1]).abs().max()) > 0.01  # open at another angle
