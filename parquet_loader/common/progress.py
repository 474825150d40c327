"""Progress bars of tqdm, which is imported only when a bar is requested."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from parquet_loader.common.hints import needs_package

ShowProgress: TypeAlias = Callable[[int, int], None]
"""Takes the amount done and the total amount."""


def progress_bar() -> Any:
    """Return tqdm's class of bars.

    Raises:
        MissingPackageError: tqdm is not installed.
    """
    with needs_package("tqdm", "progress=True needs tqdm: pip install 'torch-parquet-loader[progress]'"):
        from tqdm.auto import tqdm  # noqa: PLC0415
    return tqdm


def no_progress(done: int, total: int) -> None:
    """Show nothing."""


@contextlib.contextmanager
def shown_progress(make_bar: Any, **options: Any) -> Iterator[ShowProgress]:
    """Yield the function that updates a bar; the bar is closed after the body.

    Args:
        make_bar: The result of `progress_bar`, or None for no bar.
        options: For tqdm, such as ``desc`` and ``unit``.
    """
    if make_bar is None:
        yield no_progress
        return
    with make_bar(**options) as bar:

        def show(done: int, total: int) -> None:
            if bar.total != total:
                bar.reset(total=total)
            bar.update(done - bar.n)

        yield show
