"""The example trainings, in sizes that take seconds on a CPU: what they learn, log and resume."""

from __future__ import annotations

import csv
import importlib.util
import sys
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
STEPS = 12


@pytest.fixture(autouse=True)
def _here(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def lm():
    return load("train_lm")


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def run(lm, name, device="cpu", *more):
    """The rows of the log, a row per step."""
    args = ["--preset", "tiny", "--steps", str(STEPS), "--log-every", "1", "--device", device]
    args += ["--corpus-bytes", "200000", "--log", f"{name}.csv"]
    assert lm.main([*args, *more]) == 0
    with Path(f"{name}.csv").open() as file:
        return list(csv.DictReader(file))


def losses(rows):
    return torch.tensor([float(row["loss"]) for row in rows])


@pytest.fixture
def tolerance(device):
    return 2e-2 if device == "cuda" else 1e-4  # bf16 autocast there, fp32 here


def test_train_lm_has_one_loss_curve(lm, device, tolerance, capsys):
    plain, fused = (run(lm, name, device, "--fused", name) for name in ("none", "fuse"))
    assert [row["step"] for row in plain] == [str(i + 1) for i in range(STEPS)]
    torch.testing.assert_close(losses(fused), losses(plain), rtol=tolerance, atol=tolerance)
    assert losses(plain)[-1] < losses(plain)[0] - 0.5  # bytes are learnt from the first steps on
    assert all(float(row["tokens_per_s"]) > 0 and float(row["peak_mb"]) > 0 for row in fused)
    out = capsys.readouterr().out
    assert "gated_mlp" in out
    assert "tokens/s, peak memory" in out


def test_train_lm_goes_on_as_if_it_had_not_stopped(lm, device, tolerance, capsys):
    whole = run(lm, "whole", device)
    more = ("--checkpoint", "run.pt", "--save-every", "5")
    first = run(lm, "parts", device, *more, "--stop-at", "5")
    assert len(first) == 5
    both = run(lm, "parts", device, *more)
    assert "goes on behind step 5 of run.pt" in capsys.readouterr().out
    assert [row["step"] for row in both] == [row["step"] for row in whole]
    close = tolerance / 10  # on a GPU the gradients of attention are not the same bits
    torch.testing.assert_close(losses(both), losses(whole), rtol=close, atol=close)
    assert [row["lr"] for row in both] == [row["lr"] for row in whole]


def test_train_lm_batches_depend_on_seed_and_step_alone(lm):
    data = lm.read_corpus(None, 50_000)
    assert data.numel() == 50_000
    tiny = lm.PRESETS["tiny"]
    x, target = lm.batch_at(data, 7, 3, tiny)
    assert x.shape == target.shape == (tiny.batch, tiny.length)
    assert torch.equal(x[:, 1:], target[:, :-1])
    torch.randn(5)  # what others draw changes nothing
    assert torch.equal(lm.batch_at(data, 7, 3, tiny)[0], x)
    for step, seed in ((8, 3), (7, 4)):
        assert not torch.equal(lm.batch_at(data, step, seed, tiny)[0], x)


def test_train_lm_follows_a_cosine(lm):
    options = lm.parser().parse_args(["--preset", "tiny", "--device", "cpu", "--fused", "none"])
    tiny = lm.PRESETS["tiny"]
    trainer = lm.Trainer(options, tiny, lm.read_corpus(None, 20_000))
    rates = []
    for trainer.step in range(tiny.steps + 1):
        rates.append(trainer.learning_rate())
    assert rates[tiny.warmup - 1] == rates[tiny.warmup] == tiny.lr
    assert rates[: tiny.warmup] == sorted(rates[: tiny.warmup])
    assert rates[tiny.warmup :] == sorted(rates[tiny.warmup :], reverse=True)
    assert rates[-1] == pytest.approx(tiny.lr / 10)


def test_train_lm_refuses_what_it_cannot_do(lm, tmp_path, capsys):
    for option in ("--steps", "--stop-at", "--corpus-bytes", "--log-every", "--save-every"):
        with pytest.raises(SystemExit):
            lm.main([option, "0"])
        assert f"{option}: expected a number from 1; got 0" in capsys.readouterr().err
    tiny = ["--preset", "tiny", "--device", "cpu", "--corpus", str(tmp_path)]
    with pytest.raises(SystemExit, match="no text in"):
        lm.main(tiny)
    (tmp_path / "text.md").write_text("a" * 999)
    with pytest.raises(SystemExit, match="1000 bytes are too few for rows of 64"):
        lm.main(tiny)


@pytest.mark.filterwarnings("ignore:fusedops.fp8")
def test_train_lm_in_fp8_has_the_loss_curve_of_bf16(lm, device, capsys):
    plain, in_fp8 = (
        run(lm, f"fp8_{i}", device, *more) for i, more in enumerate([(), ("--fp8", "block")])
    )
    torch.testing.assert_close(losses(in_fp8), losses(plain), rtol=0.02, atol=0)
    assert not torch.equal(losses(in_fp8), losses(plain))
    assert "fused fuse, FP8 block: validation loss" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="--fp8 goes with --fused fuse; got none"):
        lm.main(["--fp8", "row", "--fused", "none"])


@pytest.mark.slow
def test_train_lm_through_the_graph_pass(lm, device, tolerance):
    plain, compiled = (run(lm, name, device, "--fused", name) for name in ("none", "inductor"))
    torch.testing.assert_close(losses(compiled), losses(plain), rtol=tolerance, atol=tolerance)


def test_finetune_hf_has_one_loss_curve(capsys):
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    finetune = load("finetune_hf")
    Path("text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 200)
    args = ["--steps", "6", "--length", "32", "--text", "text.txt", "--out", "out"]
    fused, plain = finetune.main(args), finetune.main([*args, "--plain"])
    assert fused == pytest.approx(plain, rel=2e-2)
    assert fused < 5.5  # 5.55 is what knows nothing of bytes
    assert "gated_mlp" in capsys.readouterr().out


def test_train_images_has_one_loss(device, capsys):
    pytest.importorskip("sklearn")
    images = load("train_images")
    args = ["--epochs", "1", "--seeds", "1", "--device", device]
    args += ["--csv", "log.csv", "--plot", "log.svg"]
    images.main(args)  # a first epoch differs by more than the trained model
    out = capsys.readouterr().out
    assert "Accuracies" in out
    with Path("log.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["variant"] for row in rows] == ["fusedops", "torch"]
    loss = [float(row["loss"]) for row in rows]
    assert loss[0] == pytest.approx(loss[1], rel=2e-2 if device == "cuda" else 1e-3)
    assert Path("log.svg").stat().st_size > 1000
