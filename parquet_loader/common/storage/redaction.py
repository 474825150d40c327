"""Redacts URLs and third-party messages, so that secrets never reach an error or a log."""

from __future__ import annotations

import re

# A user, perhaps with a password: all before an "@" of the part that names the host; and where a colon stands there
# that opens no port, all before the last "@", since secret keys of AWS have slashes in them.
_USER = re.compile(r"(\w+://)[^/\s'\"<>]*@")
_PASSWORD = re.compile(
    r"(\w+://)(?:(?<=s3://)|(?<=s3a://)|(?![^/\s:@'\"<>]*:\d{1,5}(?:[/?\s'\"<>]|$)))[^/\s:@'\"<>]*:[^\s'\"<>]*@"
)
# A query. Elsewhere than in HTTP a question mark may be a pattern's, and opens a query only if a "=" comes.
_QUERY = re.compile(r"(https?://[^\s?\"<>]*)\?[^\s\"<>]*[^\s\"<>'),]", re.IGNORECASE)
_OPTIONS = re.compile(r"(\w+://[^\s?\"<>]*)\?[^\s\"<>=]*=(?:[^\s\"<>]*[^\s\"<>'),])?")


def shown(url: str) -> str:
    """Return how messages name a URL, or a path: without secrets, spaces in it or not."""
    if url[:8].lower().startswith(("http://", "https://")):
        head, question, _ = url.partition("?")
        return without_secrets(head) + ("?..." if question else "")
    return without_secrets(url)


def without_secrets(text: str) -> str:
    """Return a text whose URLs have neither user and password nor a query, in which signatures and keys stand."""
    text = _USER.sub(r"\1...@", _PASSWORD.sub(r"\1...@", text))
    return _OPTIONS.sub(r"\1?...", _QUERY.sub(r"\1?...", text))
