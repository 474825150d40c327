"""Runs coroutines together: all are cancelled if one fails, and none outlives its caller."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from typing import Any, Self, TypeVar

from parquet_loader.errors import RemoteError

S = TypeVar("S")
T = TypeVar("T")


async def ended(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel tasks, and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def side_by_side(work: Callable[[S], Awaitable[T]], things: Sequence[S], most: int) -> list[T]:
    """Return the result of `work` for each thing; at most `most` run at a time. Raises the first error in order.

    A `RemoteError` (the store does not answer) is raised at once.
    """
    left, found, errors = enumerate(things), dict[int, T](), dict[int, Exception]()

    async def take() -> None:
        for number, thing in left:
            if errors:
                return
            try:
                found[number] = await work(thing)
            except RemoteError:
                raise
            except Exception as error:
                errors[number] = error

    async with TaskGroup() as together:
        for _ in range(min(most, len(things))):
            together.add(take())
    if errors:
        raise errors[min(errors)]
    return [found[number] for number in range(len(things))]


class TaskGroup:
    """Runs coroutines concurrently. If one fails, all are cancelled, and its error is raised, not in a group."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []

    def add(self, work: Coroutine[Any, Any, None]) -> None:
        """Start one more coroutine."""
        self._tasks.append(asyncio.get_running_loop().create_task(work))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await asyncio.gather(*self._tasks)
        finally:
            await ended(self._tasks)
