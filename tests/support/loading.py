"""Loads a file in a process of its own, which may crash, without a new interpreter for each."""

from __future__ import annotations

from multiprocessing.connection import Connection

import pyarrow.compute as pc

from parquet_loader import BatchedDataLoader, OutputOptions
from tests.support.processes import forkserver

SECONDS_TO_LOAD = 60


def load_in_a_process(path: str, on_error: str, *, is_filtered: bool = False) -> str:
    """Return the rows of a file with a column ``a``, or the error; fail if the process crashes."""
    context = forkserver()
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_load, args=(theirs, path, on_error, is_filtered))
    process.start()
    theirs.close()
    with ours:
        try:
            assert ours.poll(SECONDS_TO_LOAD), "the process hangs"
            said: str = ours.recv()
        except EOFError:
            said = ""
        finally:
            process.join(SECONDS_TO_LOAD)
            process.kill()
    assert process.exitcode == 0, f"exit code {process.exitcode}"
    return said


def _load(theirs: Connection, path: str, on_error: str, is_filtered: bool) -> None:
    filters = pc.field("a") >= 90 if is_filtered else None
    options = OutputOptions(format="numpy")
    try:
        with BatchedDataLoader(path, 10, on_error=on_error, filters=filters, output_options=options) as loader:  # type: ignore[arg-type]
            rows = sum(len(batch["a"]) for batch in loader)
            said = f"rows {rows} skipped {len(loader.stats().skipped_row_groups)}"
    except Exception as error:
        said = f"{type(error).__name__} {error}"
    theirs.send(said)
