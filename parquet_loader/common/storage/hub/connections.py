"""HTTP connections that are kept open between requests.

Python's own client suffices: no request has a body, and answers are read in large chunks without the GIL.
"""

from __future__ import annotations

import base64
import os
import socket
import ssl
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from http.client import BadStatusLine, HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from threading import Lock
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

# Servers close idle connections after about a minute; a connection is reused only before that.
_IDLE_S = 30.0
_STALE = (BadStatusLine, ConnectionResetError, BrokenPipeError, ConnectionAbortedError, ssl.SSLEOFError)
# The rest of a response is read, to reuse its connection, if it has at most this many bytes.
_MOST_LEFT_BYTES = 2**16
_Place = tuple[str, str, int]


class HttpConnections:
    """Connections to any number of servers. Any thread may use them; each belongs to one request at a time.

    The lock guards the table of idle connections; no I/O happens under it. Connections that were idle for half a minute
    are closed at a later request, and all with this object. A forked child creates its own object.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self.pid = os.getpid()
        self._idle: dict[_Place, list[tuple[HTTPConnection, float]]] = {}
        weakref.finalize(self, _close_all, self._idle)

    @contextmanager
    def get(
        self, url: str, headers: Mapping[str, str], timeout_s: float, watch: Callable[[socket.socket], None]
    ) -> Iterator[HTTPResponse]:
        """Request a URL, and yield the response before its body is read; redirects are not followed.

        Args:
            url: An http or https URL.
            headers: The headers of the request.
            timeout_s: How long to wait for the connection, and for each arrival of bytes.
            watch: Called with the socket when the request is sent; `abort` on this socket ends the wait for the answer.

        Raises:
            OSError, HTTPException: no answer came.
        """
        parts = urlsplit(url)
        connection, response = self._asked(parts, headers, timeout_s, watch)
        is_whole = False
        try:
            yield response
            if not response.isclosed() and (response.length or 0) <= _MOST_LEFT_BYTES and not response.chunked:
                response.read(_MOST_LEFT_BYTES)
            is_whole = response.isclosed() and not response.will_close and connection.sock is not None
        finally:
            response.close()
            if is_whole:
                self._keep(_place(parts), connection)
            else:
                connection.close()

    def _asked(
        self, parts: SplitResult, headers: Mapping[str, str], timeout_s: float, watch: Callable[[socket.socket], None]
    ) -> tuple[HTTPConnection, HTTPResponse]:
        proxy = _proxy(parts)
        target = parts._replace(scheme="", netloc="", fragment="").geturl() or "/"
        if proxy is not None and parts.scheme == "http":
            target = parts._replace(fragment="").geturl()
            headers = {**headers, **_proxy_headers(proxy)}
        while True:
            kept = self._taken(_place(parts))
            connection = kept or _connection(parts, proxy, timeout_s)
            connection.timeout = timeout_s
            try:
                if kept is not None and kept.sock is not None:
                    kept.sock.settimeout(timeout_s)
                connection.request("GET", target, headers=dict(headers))
                watch(connection.sock)
                return connection, connection.getresponse()
            except _STALE:
                connection.close()
                if kept is None:
                    raise
            except BaseException:
                connection.close()
                raise

    def _taken(self, place: _Place) -> HTTPConnection | None:
        old: list[HTTPConnection] = []
        found = None
        with self._lock:
            idle = self._idle.get(place, [])
            while idle and found is None:
                connection, since_s = idle.pop()
                if time.monotonic() - since_s < _IDLE_S:
                    found = connection
                else:
                    old.append(connection)
        for connection in old:
            connection.close()
        return found

    def _keep(self, place: _Place, connection: HTTPConnection) -> None:
        now_s = time.monotonic()
        with self._lock:
            idle = self._idle.setdefault(place, [])
            idle.append((connection, now_s))
            old = [kept for kept, since_s in idle if now_s - since_s >= _IDLE_S]
            idle[:] = [(kept, since_s) for kept, since_s in idle if now_s - since_s < _IDLE_S]
        for kept in old:
            kept.close()


def _close_all(idle: dict[_Place, list[tuple[HTTPConnection, float]]]) -> None:
    for kept in idle.values():
        for connection, _ in kept:
            connection.close()


def abort(connected: socket.socket) -> None:
    """Abort a connection; a thread that waits for its response fails at once."""
    with suppress(OSError):
        socket.socket.shutdown(connected, socket.SHUT_RDWR)  # not TLS's shutdown: the other thread may be using TLS


def origin_of(url: str) -> _Place:
    """Return the origin of a URL: scheme, host and port."""
    return _place(urlsplit(url))


def _place(parts: SplitResult) -> _Place:
    return parts.scheme, parts.hostname or "", parts.port or (80 if parts.scheme == "http" else 443)


def _proxy(parts: SplitResult) -> SplitResult | None:
    named = getproxies().get(parts.scheme)
    if not named or not parts.hostname or proxy_bypass(parts.hostname):
        return None
    return urlsplit(named if "://" in named else f"http://{named}")


def _proxy_headers(proxy: SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    user = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(user.encode()).decode()}"}


def _connection(parts: SplitResult, proxy: SplitResult | None, timeout_s: float) -> HTTPConnection:
    _, host, port = _place(parts)
    if not host or parts.scheme not in ("http", "https"):
        raise HTTPException("not an http or https URL")
    at = (host, port) if proxy is None else (proxy.hostname or "", proxy.port or 80)
    if parts.scheme == "http":
        return HTTPConnection(*at, timeout=timeout_s)
    connection = HTTPSConnection(*at, timeout=timeout_s, context=_tls())
    if proxy is not None:
        connection.set_tunnel(host, port, _proxy_headers(proxy))
    return connection


@cache
def _tls() -> ssl.SSLContext:
    """Return the settings of https: the certificates of the system or SSL_CERT_FILE, and others of the environment."""
    context = ssl.create_default_context()
    for named in filter(None, map(os.environ.get, ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"))):
        if os.path.isfile(named):
            context.load_verify_locations(named)
    return context
