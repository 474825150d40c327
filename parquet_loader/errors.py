"""Every error the library raises on purpose.

    ParquetLoaderError
    ├── SourceError            nothing to read, or a path that cannot be listed or opened
    │   ├── RemoteError        a store that did not answer, however often it was asked
    │   └── SystemReadError    the operating system could not read: I/O error, no permission  (also an OSError)
    ├── SchemaError            what the files hold and what was asked for do not fit   (also a ValueError)
    ├── DataError              bytes or values that cannot be delivered                (also a ValueError)
    ├── OutOfMemoryError       the process could not get memory                        (also a MemoryError)
    ├── MemoryLimitError       the plan does not fit into `memory_limit`               (also a ValueError)
    ├── ConfigurationError     an argument of the wrong kind or range                  (also a ValueError)
    │   ├── ArgumentTypeError  ... of the wrong type                               (also a TypeError)
    │   ├── MissingPackageError ... that needs a package that is not installed     (also an ImportError)
    │   └── MissingDeviceError ... that names a GPU that is not there              (also a RuntimeError)
    ├── TransformError         the caller's `transform` broke its contract
    ├── WriteError             a data set could not be written                         (also an OSError)
    │   ├── UnfinishedCommitError   files appeared, and the rest of their commit failed
    │   └── StoreFullError     a sample store is at its limit, and nothing may be evicted
    ├── UnsupportedError       part of the contract that this version does not have yet (also a NotImplementedError)
    ├── OpenFilesError         the process may open no more files                      (also an OSError)
    ├── ReadingProcessError    a process of the library ended, or cannot be started     (also a RuntimeError)
    ├── ResumeError            a state that does not belong to this loader             (also a ValueError)
    └── LoaderStateError       used after `close()`, or iterated twice at once         (also a RuntimeError)

A message is one sentence each for where (file, row group, column), what was expected, what was found
and what to do about it.

`PerformanceWarning` is the class of warnings about an installation that works slower than it could,
`ParquetLoaderDeprecationWarning` of those about names that a later version removes.
"""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable


class ParquetLoaderError(Exception):
    """Base of all errors raised on purpose by `parquet_loader`."""


class PerformanceWarning(UserWarning):
    """The installation works, but slower than it could; ``warnings.filterwarnings`` silences it by this class."""


class ParquetLoaderDeprecationWarning(FutureWarning):
    """Something will be removed; the message names the version and the replacement.

    A `FutureWarning`, which Python shows by default, because those who train must change their scripts. Python hides a
    `DeprecationWarning` outside ``__main__``.
    """


class SourceError(ParquetLoaderError):
    """The source names no readable Parquet file, or one vanished or changed since its footer was read."""


class RemoteError(SourceError):
    """A store did not give a file's bytes in time, however often it was asked; the file may well be there.

    It says nothing about the file, so that ``on_error="skip"`` does not pass over it.
    """


class SystemReadError(SourceError, OSError):
    """The operating system could not read a file: an I/O error, no permission, no more threads.

    It says nothing about the file's content, so that ``on_error="skip"`` does not pass over it. `errno` says which.
    """


class OutOfMemoryError(ParquetLoaderError, MemoryError):
    """The process could not get memory. It says nothing about the files, and ``on_error="skip"`` does not pass over it.

    `MemoryLimitError` is another thing: what `memory_limit` cannot hold, told before anything is read.
    """


class SchemaError(ParquetLoaderError, ValueError):
    """The files' columns and the requested schema, columns or filters do not fit together."""


class DataError(ParquetLoaderError, ValueError):
    """A file, page or value that cannot be decoded or delivered as the schema says."""


class MemoryLimitError(ParquetLoaderError, ValueError):
    """`memory_limit` cannot hold the smallest working set; the message names a limit that suffices."""


class ConfigurationError(ParquetLoaderError, ValueError):
    """An argument has the wrong type or value."""


class ArgumentTypeError(ConfigurationError, TypeError):
    """An argument has the wrong type."""


class MissingPackageError(ConfigurationError, ImportError):
    """An argument needs a package that is not installed; the message names the extra that installs it."""


class MissingDeviceError(ConfigurationError, RuntimeError):
    """`device` names a GPU that this machine does not have."""


class TransformError(ParquetLoaderError):
    """`transform` returned something that is not a dict of equally long columns."""


class WriteError(ParquetLoaderError, OSError):
    """A data set could not be written; nothing of it was published unless the message says so."""


class UnfinishedCommitError(WriteError):
    """New files are published, but old ones could not be deleted; or some are, and could not be taken back.

    What readers see is both, or a part, of a sample store all or for now nothing; the message says which, and who
    brings it to an end. To write the same again would double rows.
    """


class StoreFullError(WriteError):
    """A sample store is at its limit and nothing may be evicted; what was to be written stays with the writer."""


class UnsupportedError(ParquetLoaderError, NotImplementedError):
    """Something that this version cannot do yet; the message says what to do meanwhile."""


class OpenFilesError(ParquetLoaderError, OSError):
    """The process has no free file descriptor; the files are sound, so ``on_error="skip"`` never skips over it."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.errno = errno.EMFILE


class ReadingProcessError(ParquetLoaderError, RuntimeError):
    """A process of ``isolation="process"`` or `transform_workers` was killed or could not be started.

    Attributes:
        exitcode: Its exit code, negative for the signal that killed it; None if it never ran.
    """

    def __init__(self, message: str, exitcode: int | None = None) -> None:
        super().__init__(message)
        self.exitcode = exitcode


class ResumeError(ParquetLoaderError, ValueError):
    """A state cannot be continued by this loader; the message says what differs."""


class LoaderStateError(ParquetLoaderError, RuntimeError):
    """The loader is closed, or is being iterated already."""


def is_skippable(error: BaseException) -> bool:
    """Whether ``on_error="skip"`` passes over a row group for this error: for what its bytes say, and nothing else."""
    is_about_data = isinstance(error, DataError | SourceError | SchemaError)
    return is_about_data and not isinstance(error, RemoteError | SystemReadError)


def nearest(name: str, candidates: Iterable[str]) -> str:
    """Return a sentence that suggests the names most like `name`, for an error message."""
    names = list(candidates)
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    if close:
        return "Did you mean " + " or ".join(repr(c) for c in close) + "?"
    shown = ", ".join(repr(n) for n in names[:8])
    return f"There are: {shown}{', ...' if len(names) > 8 else ''}." if names else "There are none."
