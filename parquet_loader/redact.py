"""What may be shown of a URL: secrets in it, and in what servers and libraries say, never reach a message or a log."""

from __future__ import annotations

import re

_USER = re.compile(r"(\w+://)[^/\s@'\"<>]*@")
_QUERY = re.compile(r"(\w+://[^\s?'\"<>]*)\?[^\s'\"<>)]*=[^\s'\"<>)]*")


def without_secrets(text: str) -> str:
    """Return a text whose URLs have neither user and password nor a query, in which signatures and keys stand."""
    return _QUERY.sub(r"\1?...", _USER.sub(r"\1...@", text))
