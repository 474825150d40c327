"""Agreement between the ranks of `torch.distributed`: broadcasts of bytes and of errors.

Every exchange is a collective: all ranks construct their loaders in the same order. An error on one rank is broadcast
with the exchange: the others raise it too, instead of waiting for a rank that has failed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from parquet_loader import errors
from parquet_loader.common.validation import check_int
from parquet_loader.errors import ParquetLoaderError, SourceError


class Ranks:
    """The default process group, while one loader is constructed. Used by one thread.

    Args:
        shard: This rank and the world size.
    """

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self._is_told = False

    def gather(self, work: Callable[[], bytes]) -> list[bytes]:
        """Call `work` on this rank; return the results of all ranks, in rank order.

        Raises:
            ParquetLoaderError: another rank failed; the message has its number. An error of this rank's own `work`
                passes through.
        """
        with broadcasting_errors(self):
            mine = b"+" + work()
        received = _exchange(mine, self.shard.world_size)
        self._raise_others(received)
        return [payload[1:] for payload in received]

    def from_first(self, work: Callable[[], bytes]) -> bytes:
        """Call `work` on rank 0 only; return its result on every rank. Raises as `gather` does."""
        return self.gather(work if self.shard.rank == 0 else bytes)[0]

    def broadcast_error(self, error: BaseException) -> None:
        """Make the other ranks' next exchange fail with this rank's error, unless they already know of an error."""
        if not self._is_told and isinstance(error, Exception):
            self._is_told = True
            _exchange(b"-" + json.dumps([type(error).__name__, str(error)]).encode(), self.shard.world_size)

    def _raise_others(self, received: list[bytes]) -> None:
        for rank, payload in enumerate(received):
            if payload[:1] == b"-":
                self._is_told = True
                name, text = json.loads(payload[1:])
                kind = getattr(errors, name, SourceError)
                known = isinstance(kind, type) and issubclass(kind, ParquetLoaderError)
                raise (kind if known else SourceError)(f"rank {rank}: {text}")


@contextmanager
def broadcasting_errors(ranks: Ranks | None) -> Iterator[None]:
    """Raise an error of the block on all ranks: the others wait for this one. `ranks` is None if there is one rank."""
    try:
        yield
    except BaseException as error:
        if ranks is not None:
            ranks.broadcast_error(error)
        raise


def current_ranks() -> Shard | None:
    """Return rank and world size in `torch.distributed`, or None if it is not initialised. Imports nothing."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return None
    return Shard(torch.distributed.get_rank(), torch.distributed.get_world_size())


def is_worker() -> bool:
    """Whether this process is a worker of torch's `DataLoader`. Imports nothing."""
    data = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None


def _exchange(payload: bytes, world_size: int) -> list[bytes]:
    """Return every rank's bytes, in the order of ranks."""
    import torch  # noqa: PLC0415  (there are ranks, so torch is loaded; the light core never gets here)
    import torch.distributed as dist  # noqa: PLC0415

    device = _collective_device(torch, dist)
    size = torch.tensor([len(payload)], dtype=torch.int64, device=device)
    sizes = [torch.zeros_like(size) for _ in range(world_size)]
    dist.all_gather(sizes, size)
    lengths = [int(s.item()) for s in sizes]
    received = []
    for rank, length in enumerate(lengths):
        block = torch.empty(length, dtype=torch.uint8, device=device)
        if payload and rank == dist.get_rank():
            block.copy_(torch.frombuffer(bytearray(payload), dtype=torch.uint8))
        dist.broadcast(block, src=rank)
        received.append(block.cpu().numpy().tobytes())
    return received


def _collective_device(torch: Any, dist: Any) -> Any:
    """Return the device whose tensors the default group sends: the CPU if any of its backends does."""
    backend = str(dist.get_backend())
    if "nccl" in backend and "cpu:" not in backend:
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Shard:
    """The part of the rows that one rank owns.

    Attributes:
        rank: From 0 to ``world_size - 1``.
        world_size: Number of ranks.
    """

    rank: int
    world_size: int

    def __post_init__(self) -> None:
        world_size = check_int("Shard world_size", self.world_size, 1, 2**31)
        object.__setattr__(self, "world_size", world_size)
        object.__setattr__(self, "rank", check_int("Shard rank", self.rank, 0, world_size - 1))
