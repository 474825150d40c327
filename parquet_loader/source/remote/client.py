"""The protocol of clients, which make one request without retries, and its errors."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from parquet_loader.common import without_secrets
from parquet_loader.source.byte_ranges import ByteRange
from parquet_loader.source.files import SourceFile, same_etag

Bytes = npt.NDArray[np.uint8]

_STATUS = re.compile(r"\b([345]\d\d) [A-Z][a-z]")
_XML = re.compile(r"<(Code|Message)>([^<]{1,300})</")
_MOST_WORDS = 300


class TransientError(Exception):
    """A failure that a retry may resolve: no answer, a broken connection, too few bytes, a busy server.

    Attributes:
        is_busy: Whether the store asked for fewer requests (429, 503).
        wait_s: How long the store said to wait before the next attempt, or None.
    """

    def __init__(self, words: str, *, is_busy: bool = False, wait_s: float | None = None) -> None:
        super().__init__(words)
        self.is_busy = is_busy
        self.wait_s = wait_s


class PermanentError(Exception):
    """A failure that a retry cannot resolve: the file is missing, has changed, or may not be read."""


class UnsupportedServerError(Exception):
    """The client does not support this server; another client is needed."""


class Client(Protocol):
    """Requests bytes from a store. Used by the thread of one event loop at a time.

    Attributes:
        tells_progress: Whether `read` reports bytes as they arrive, not only at the end.
    """

    tells_progress: bool

    async def read(self, file: SourceFile, span: ByteRange, into: Bytes, progress: Callable[[], None]) -> None:
        """Fill `into` with a range of a file; `progress` is called whenever bytes have arrived.

        Raises:
            TransientError, PermanentError, UnsupportedServerError: the request failed; see these classes.
        """
        ...

    def close(self) -> None:
        """End the client's own threads, if it has any; does not wait for threads whose call has no answer."""
        ...


def words_of(error: BaseException) -> str:
    """Return an error's message on one line, without secrets; for the XML of an S3 server, its code and message."""
    text = str(error).split("\n\nDebug source:")[0]
    named = dict(_XML.findall(text))
    if named:
        status = _STATUS.search(text)
        start = text[: text.index("<")].rstrip(": ")
        text = f"{start if status else type(error).__name__}: " + ": ".join(named.values())
    text = without_secrets(" ".join("".join(c if c.isprintable() else " " for c in text).split()))
    text = text or type(error).__name__
    return text if len(text) <= _MOST_WORDS else text[: _MOST_WORDS - 3] + "..."


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status in an error's text, or None."""
    found = _STATUS.search(str(error))
    return int(found[1]) if found else None


def time_ns(when: datetime) -> int:
    """Return a time in nanoseconds since 1970."""
    return round(when.timestamp() * 1e6) * 1000


def http_time_ns(last_modified: str | None) -> int | None:
    """Return the time in a header ``Last-Modified`` in nanoseconds since 1970; None without one that is valid."""
    if last_modified is None:
        return None
    try:
        return time_ns(parsedate_to_datetime(last_modified))
    except ValueError:
        return None


def check_same(
    file: SourceFile, size_bytes: int | None, etag: str | None = None, modified_ns: int | None = None
) -> None:
    """Compare the size and ETag of a response with those that were listed, or else the time; None is not compared.

    Raises:
        PermanentError: the file is another one than was listed.
    """
    if size_bytes is not None and size_bytes != file.size_bytes:
        raise PermanentError(
            f"it has {size_bytes} bytes, and had {file.size_bytes} when it was listed; open the data set again"
        )
    if etag is not None and file.etag is not None and not same_etag(etag, file.etag):
        raise PermanentError(
            f"it has changed since it was listed: its ETag was {file.etag}, and is {etag}; open the data set again"
        )
    if file.etag is None and file.mtime_ns is not None and modified_ns is not None and modified_ns > file.mtime_ns:
        raise PermanentError("by its modification time, it was modified after it was listed; open the data set again")


def as_client_error(error: BaseException) -> TransientError | PermanentError:
    """Return a store's error as a transient or permanent one, by the HTTP status in its text."""
    status, words = status_of(error), words_of(error)
    if status is not None and 400 <= status < 500 and status not in (408, 425, 429):
        return PermanentError(words)
    return TransientError(words, is_busy=status in (429, 503))


def view(data: Any) -> Bytes:
    """Return a buffer as an array of bytes."""
    return np.frombuffer(data, np.uint8)
