"""Begins the copy of each batch to a device while the caller uses the previous batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from parquet_loader.collate.output import Batch

Copying = TypeVar("Copying")


def begun_ahead(
    batches: Iterator[Batch], begin: Callable[[Batch], Copying], end: Callable[[Copying], Batch]
) -> Iterator[Batch]:
    """Yield copies of the batches; the next copy begins before one is yielded. Runs in the caller's thread.

    An error of `batches` or of `begin` is raised after the batch whose copy has begun.

    Args:
        batches: The batches.
        begin: Begins the copy of a batch, and does not wait for it.
        end: Returns the copy, for use in the caller's thread.
    """
    copying: Copying | None = None
    failure: Exception | None = None
    while True:
        try:
            batch = next(batches, None)
            following = None if batch is None else begin(batch)
        except Exception as error:  # raised after the batch that is being copied
            batch, following, failure = None, None, error
        del batch  # its window can be freed while this generator waits for the next batch
        if copying is not None:
            yield end(copying)
        if following is None:
            break
        copying = following
    if failure is not None:
        try:
            raise failure
        finally:
            failure = None
