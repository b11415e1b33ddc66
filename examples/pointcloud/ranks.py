"""The processes of a run: one, or those that torchrun starts."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .errors import failure


@dataclass(frozen=True)
class Ranks:
    rank: int
    size: int
    device: torch.device

    @classmethod
    def join(cls, device: torch.device | None) -> Ranks:
        """torchrun's environment says which; each process takes the GPU of its local rank."""
        found = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
        size = int(os.environ.get("WORLD_SIZE", "1"))
        if size == 1:
            return cls(0, 1, found)
        if found.type == "cuda":
            local = int(os.environ["LOCAL_RANK"])
            if local >= torch.cuda.device_count():
                count = torch.cuda.device_count()
                raise failure(f"process {local} of this machine has no GPU; torch sees {count}")
            found = torch.device("cuda", local)
            torch.cuda.set_device(found)
        dist.init_process_group("nccl" if found.type == "cuda" else "gloo")
        return cls(dist.get_rank(), size, found)

    @property
    def first(self) -> bool:
        return self.rank == 0

    def mine(self, batch: Tensor) -> Tensor:
        """This process's rows of a batch of all."""
        return batch[self.rank :: self.size]

    def sum(self, value: Tensor) -> Tensor:
        if self.size > 1:
            dist.all_reduce(value)
        return value

    def gather(self, value: Any) -> list[Any]:
        """Every process gets the values of all."""
        found = [value] * self.size
        if self.size > 1:
            dist.all_gather_object(found, value)
        return found

    def wait(self) -> None:
        if self.size > 1:
            dist.barrier()

    def leave(self) -> None:
        if self.size > 1:
            dist.destroy_process_group()
