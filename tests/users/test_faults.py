"""What goes wrong around the library: killed processes, hostile files, forks, threads."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

import fusedops
from fusedops import jit
from fusedops._tuning.plan_store import CHOICE, PROBLEM, GpuKey, merge_plans, read_plans

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.skipif(os.name != "posix", reason="forks, signals and file modes")

# No such GPU: nothing here reaches the choices for a real one.
KEY = GpuKey("NVIDIA H200", capability=90, sm_count=101, driver=13000, build="faults")
TEXTS = {"dtype", "math", "epilogue", "a_major", "b_major", "family", "name"}
FORK = multiprocessing.get_context("fork") if os.name == "posix" else None


def plan(m: int) -> dict[str, Any]:
    """A stored plan, as far as the file is concerned."""
    fields: dict[str, Any] = {name: "x" if name in TEXTS else 1 for name in (*PROBLEM, *CHOICE)}
    return fields | {"m": m}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FUSEDOPS_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


# ---- the cache ----


def write_for_ever(first: int) -> None:
    for m in range(first, first + 10**6):
        merge_plans(KEY, [plan(m % 50)])


def test_a_killed_tuner_leaves_the_cache_readable() -> None:
    """SIGKILL wherever it is: while it holds the lock, writes, or renames."""
    merge_plans(KEY, [plan(1000)])
    draw = random.Random(0)
    for turn in range(12):
        tuner = FORK.Process(target=write_for_ever, args=(turn,))
        tuner.start()
        time.sleep(0.02 + 0.1 * draw.random())
        os.kill(tuner.pid, signal.SIGKILL)
        tuner.join()
        assert tuner.exitcode == -signal.SIGKILL
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert 1000 in {found["m"] for found in read_plans(KEY.path)}
    assert len(read_plans(merge_plans(KEY, [plan(2000)]))) >= 3  # nobody holds the lock


def write_one(m: int) -> None:
    merge_plans(KEY, [plan(m)])


def test_sixteen_processes_tune_at_once() -> None:
    tuners = [FORK.Process(target=write_one, args=(m,)) for m in range(16)]
    for tuner in tuners:
        tuner.start()
    for tuner in tuners:
        tuner.join()
    assert [tuner.exitcode for tuner in tuners] == [0] * 16
    assert {found["m"] for found in read_plans(KEY.path)} == set(range(16))


def hostile_file(kind: str, path: Path) -> None:
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "circle":
        path.symlink_to(path)
    elif kind == "huge":
        with path.open("wb") as file:
            file.truncate(100 << 30)  # sparse
    elif kind == "numbers":
        fields = plan(1) | {"n": 10**400, "us": float("inf")}
        path.write_text(json.dumps({"format": 1, "plans": [fields]}))
    else:
        path.write_text('{"format": 1, "plans": ' + "[" * 10**6 + "]" * 10**6 + "}")


@pytest.mark.parametrize(
    "kind", ["pipe", "folder", "device", "circle", "huge", "numbers", "nested"]
)
def test_hostile_files_are_ignored(kind: str) -> None:
    """With a warning, at once, and without their content in memory."""
    KEY.path.parent.mkdir(parents=True)
    hostile_file(kind, KEY.path)
    start = time.perf_counter()
    with pytest.warns(UserWarning, match="fusedops: ignoring .*tuned plans"):
        assert read_plans(KEY.path) == []
    assert time.perf_counter() - start < 5


def as_nobody(results: Any) -> None:
    """Runs without the rights of root, for whom no folder is read-only."""
    os.setuid(65534)
    found = [len(read_plans(KEY.path))]
    try:
        merge_plans(KEY, [plan(2)])
    except OSError as error:
        found.append(type(error).__name__)
    try:
        jit.build("x", [Path(__file__).parent / "axpy/axpy.cpp"], with_cuda=False)
    except jit.BuildError as error:
        found.append("cannot write to" in str(error))
    results.put(found)


@pytest.mark.skipif(os.name != "posix" or os.getuid() != 0, reason="only root becomes another")
def test_a_read_only_cache(cache: Path) -> None:
    """Plans are read; a writer hears what is wrong."""
    merge_plans(KEY, [plan(1)])
    for path in (cache, *cache.parents):
        if path == Path("/tmp"):
            break
        path.chmod(0o755)
    results = FORK.SimpleQueue()
    child = FORK.Process(target=as_nobody, args=(results,))
    child.start()
    child.join()
    assert child.exitcode == 0
    found = results.get()
    assert found[0] == 1
    assert found[1] == "PermissionError"
    assert found[2] is True


# ---- data loaders ----


class Clouds(torch.utils.data.Dataset):
    """Items that are computed by ops, in a worker."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(index)
        cloud = torch.rand(1, 64, 3, generator=generator)
        chosen = fusedops.points.farthest_point_sample(cloud, 8)
        return fusedops.softmax(cloud[0, chosen[0]], 1)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_data_loaders(method: str) -> None:
    """Workers of a process that has used the ops with all of its threads."""
    fusedops.linear(torch.randn(512, 256), torch.randn(512, 256), activation="gelu")
    loader = torch.utils.data.DataLoader(
        Clouds(), batch_size=2, num_workers=2, multiprocessing_context=method, timeout=120
    )
    expected = torch.stack([Clouds()[i] for i in range(8)])
    for _ in range(2):
        torch.testing.assert_close(torch.cat(list(loader)), expected)


# ---- threads ----


def run_in_threads(work: Callable[[int], None], count: int) -> None:
    """work(number) by as many threads at a time."""
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_many_threads(device: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Right results, and every thread its own errors, also those of torch inside an op."""
    x = torch.randn(64, 96, device=device)
    weight = torch.randn(32, 96, device=device)
    expected = fusedops.linear(x, weight, activation="silu")
    wrong: list[str] = []

    def work(number: int) -> None:
        odd = weight[:, : 90 - number]
        for _ in range(25):
            if not torch.equal(fusedops.linear(x, weight, activation="silu"), expected):
                wrong.append(f"{number}: another result")
            try:
                fusedops.linear(x, odd)
                wrong.append(f"{number}: no error")
            except RuntimeError as error:
                if f"got (32, {90 - number})" not in str(error):
                    wrong.append(f"{number}: {error}")

    run_in_threads(work, 16)
    assert wrong == []
    assert capfd.readouterr().err == ""


def model(device: str = "cuda") -> torch.nn.Module:
    """A block of each half: points to features, a fused layer, a norm, an MLP."""
    return torch.nn.Sequential(
        fusedops.nn.Linear(3, 64, activation="relu"),
        fusedops.nn.LayerNorm(64),
        fusedops.nn.MLP(64, 128, 64),
    ).to(device)


def step(layer: torch.nn.Module, cloud: torch.Tensor) -> list[torch.Tensor]:
    """The loss and every gradient of a training step that also searches and reduces."""
    layer.zero_grad(set_to_none=True)
    chosen = fusedops.points.farthest_point_sample(cloud, 32)
    nearest = fusedops.points.knn(fusedops.points.gather(cloud, chosen), cloud, 4)
    features = fusedops.points.group(layer(cloud), nearest.idx)
    loss = fusedops.softmax(features, 3).square().sum()
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in layer.parameters())]


@pytest.mark.gpu
def test_many_streams() -> None:
    """Steps of many threads side by side, each thread on a stream of its own."""
    torch.manual_seed(0)
    layers = [model() for _ in range(8)]
    clouds = [torch.rand(2, 256, 3, device="cuda") for _ in layers]
    expected = [step(layer, cloud) for layer, cloud in zip(layers, clouds, strict=True)]
    torch.cuda.synchronize()
    wrong: list[int] = []

    def work(number: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(50):
                found = step(layers[number], clouds[number])
                if not all(map(torch.equal, found, expected[number])):
                    wrong.append(number)
            torch.cuda.current_stream().synchronize()

    run_in_threads(work, len(layers))
    assert wrong == []


# ---- long runs ----


@pytest.mark.gpu
@pytest.mark.parametrize(
    "replays",
    [
        10_000,
        # Three days of a step every half second.
        pytest.param(3 * 24 * 3600 * 2, marks=pytest.mark.slow),
    ],
)
def test_a_step_is_replayed_for_days(replays: int) -> None:
    """By a CUDA graph: the same bits and the same memory at the end as at the beginning."""
    torch.manual_seed(0)
    layer, cloud = model(), torch.rand(2, 256, 3, device="cuda")
    expected = step(layer, cloud)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step(layer, cloud)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = step(layer, cloud)
    graph.replay()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    wrong = torch.zeros((), device="cuda")
    for number in range(replays):
        graph.replay()
        if number % 100 == 0:
            wrong += sum((a != b).sum() for a, b in zip(found, expected, strict=True))
        if number % 10_000 == 0:
            torch.cuda.synchronize()
    assert wrong.item() == 0
    assert torch.cuda.memory_allocated() - before[0] <= 1 << 20
    assert torch.cuda.memory_reserved() - before[1] <= 4 << 20


def resident_kilobytes() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_steps_leave_no_memory_behind() -> None:
    """Steps with errors in between: a kept exception would keep its tensors."""
    x = torch.randn(64, 128)
    layer = fusedops.nn.Linear(128, 256, activation="gelu")

    def step() -> None:
        layer.zero_grad(set_to_none=True)
        fusedops.softmax(layer(x)).square().sum().backward()
        with pytest.raises(RuntimeError):
            fusedops.linear(x, x[:, :5])

    for _ in range(200):
        step()
    before = resident_kilobytes()
    for _ in range(1500):
        step()
    assert resident_kilobytes() - before < 8 << 10  # one leaked result a step would be 96 MiB
