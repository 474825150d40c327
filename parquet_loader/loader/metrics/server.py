"""An OpenMetrics endpoint: one thread that answers one request at a time.

The server owns its socket and its thread. `close` ends both within the timeout of a request. The server keeps no loader
alive: it no longer lists a loader that has been freed.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, Self

from parquet_loader.common import starting_threads, uninterrupted
from parquet_loader.loader.metrics.figures import Measured, counters_of, loaders_by_name
from parquet_loader.loader.metrics.openmetrics import CONTENT_TYPE, openmetrics_text

# The connection of a client that neither sends nor receives for this long is closed.
TIMEOUT_S = 2.0
_POLL_S = 0.2


class MetricsServer:
    """Serves the figures of loaders at ``http://HOST:PORT/metrics``, until `close` or the end of a ``with`` block.

    Each request reads counters, without a lock and without advice, so it does not slow an epoch.

    Args:
        loaders: The loaders by name, which becomes the label `loader`.
        host: The IPv4 or IPv6 address to listen at; the default accepts connections only from this machine. Requests
            are not authenticated.
        port: The port; 0 for a free one.

    Attributes:
        url: The address of the figures.

    Raises:
        ConfigurationError: There is no loader, or a value is not a loader.
        OSError: The port is in use.
    """

    def __init__(self, loaders: Mapping[str, Measured], *, host: str = "127.0.0.1", port: int = 0) -> None:
        named = loaders_by_name("MetricsServer", loaders)

        class Handler(_Handler):
            def text(self) -> str:
                found = ((name, counters_of(loader)) for name, loader in sorted(named.items()))
                return openmetrics_text({name: stats for name, stats in found if stats is not None})

        self._pid = os.getpid()
        self._server = _Server(host, port, Handler)
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self._server.server_port}/metrics"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_S,), name="parquet_loader-metrics", daemon=True
        )
        try:
            with starting_threads("MetricsServer"):
                self._thread.start()
        except BaseException:
            self._server.server_close()
            raise

    def close(self) -> None:
        """End the thread, and release the port; idempotent. In a forked child it releases the socket only."""
        if self._pid == os.getpid() and self._thread.is_alive():
            uninterrupted(self._server.shutdown)
            uninterrupted(self._thread.join)
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Server(HTTPServer):
    def __init__(self, host: str, port: int, handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing about a client that is gone."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    timeout = TIMEOUT_S  # of the connection's socket

    def text(self) -> str:
        raise NotImplementedError

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404, "the figures are at /metrics")
            return
        body = self.text().encode()
        self.send_response(200)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (as in the base class)
        """Print nothing."""
