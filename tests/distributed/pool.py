"""Processes that stay: each is a rank, runs what it is sent, and sends back what that returns."""

from __future__ import annotations

import importlib.util
import inspect
import tempfile
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

if TYPE_CHECKING:
    from collections.abc import Callable

SECONDS = 120  # that the ranks may take for one function


def _load(path: str, cache: dict[str, Any]) -> Any:
    if path not in cache:
        spec = importlib.util.spec_from_file_location(f"rank_{Path(path).stem}", path)
        assert spec is not None
        assert spec.loader is not None
        cache[path] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(cache[path])
    return cache[path]


def _rank(rank: int, ranks: int, device: str, store: str, pipe: Any) -> None:
    torch.set_num_threads(1)
    if device == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl" if device == "cuda" else "gloo",
        store=dist.FileStore(store, ranks),
        rank=rank,
        world_size=ranks,
    )
    modules: dict[str, Any] = {}
    while (task := pipe.recv()) is not None:
        path, name, arguments = task
        try:
            torch.manual_seed(0)
            pipe.send((getattr(_load(path, modules), name)(*arguments), None))
        except BaseException:
            pipe.send((None, traceback.format_exc()))
    dist.destroy_process_group()


class Pool:
    """Ranks of one process group on one kind of device."""

    def __init__(self, device: str, ranks: int = 2) -> None:
        self.device = device
        context = mp.get_context("spawn")
        store = tempfile.mktemp(prefix="fusedops-ranks-")
        self.pipes, self.processes = [], []
        for rank in range(ranks):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_rank, args=(rank, ranks, device, store, theirs), daemon=True
            )
            process.start()
            self.pipes.append(ours)
            self.processes.append(process)

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """What a function of a test file returns on each rank; raises what a rank raised."""
        for pipe in self.pipes:
            pipe.send((inspect.getfile(function), function.__name__, arguments))
        answers = []
        for rank, pipe in enumerate(self.pipes):
            assert pipe.poll(SECONDS), f"rank {rank} did not answer"
            answers.append(pipe.recv())
        errors = [f"rank {rank}: {error}" for rank, (_, error) in enumerate(answers) if error]
        assert not errors, "\n".join(errors)
        return [value for value, _ in answers]

    def close(self) -> None:
        """Let the ranks end; they are ours, and end at once where one hangs."""
        for pipe in self.pipes:
            pipe.send(None)
        for process in self.processes:
            process.join(10)
            if process.is_alive():
                process.terminate()
