"""Redacts URLs and third-party messages, so that secrets never reach an error or a log."""

from __future__ import annotations

import re

# A user: all before an "@" in the authority. A user with a password: if the authority has a colon that does not begin a
# port, all before the last "@", because secret keys of AWS contain slashes.
_USER = re.compile(r"(\w+://)[^/\s'\"<>]*@")
_PASSWORD = re.compile(
    r"(\w+://)(?:(?<=s3://)|(?<=s3a://)|(?![^/\s:@'\"<>]*:\d{1,5}(?:[/?\s'\"<>]|$)))[^/\s:@'\"<>]*:[^\s'\"<>]*@"
)
# A query. Outside of HTTP a question mark may be a glob character; it begins a query only if a "=" follows.
_QUERY = re.compile(r"(https?://[^\s?\"<>]*)\?[^\s\"<>]*[^\s\"<>'),]", re.IGNORECASE)
_OPTIONS = re.compile(r"(\w+://[^\s?\"<>]*)\?[^\s\"<>=]*=(?:[^\s\"<>]*[^\s\"<>'),])?")


def shown(url: str) -> str:
    """Return a URL or path for messages: without secrets, even if it contains spaces."""
    if url[:8].lower().startswith(("http://", "https://")):
        head, question, _ = url.partition("?")
        return without_secrets(head) + ("?..." if question else "")
    return without_secrets(url)


def without_secrets(text: str) -> str:
    """Remove user, password and query, which may hold signatures and keys, from all URLs in a text."""
    text = _USER.sub(r"\1...@", _PASSWORD.sub(r"\1...@", text))
    return _OPTIONS.sub(r"\1?...", _QUERY.sub(r"\1?...", text))
