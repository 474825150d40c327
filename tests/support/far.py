"""A store that is far away: a proxy before a real server on this machine, slow and unreliable as it is told to be.

It speaks HTTP/1.1 with bodies of known length. rclone's S3 server answers a range with 200 and `Content-Range`, and
takes no note of `If-Match`; before anything else the proxy makes of this what S3 itself does: 206, and 412.
"""

from __future__ import annotations

import asyncio
import random
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Self

Fault = Literal["503", "500", "429", "403", "drop", "stall", "truncate", "stall_in_body"]


@dataclass
class Line:
    """How the line is; may be changed at any time by any thread.

    Attributes:
        latency_s: Until the first byte of an answer.
        bytes_per_s: Of one connection; None: as fast as it goes.
        link_bytes_per_s: Of all connections together; None: as fast as it goes.
        fault_of: Says what befalls a request, by its method, its target and its number; None: nothing.
        is_dead: Requests are taken, and never answered.
        chunk_bytes: Most bytes that are passed on at a time.
    """

    latency_s: float = 0.0
    bytes_per_s: float | None = None
    link_bytes_per_s: float | None = None
    fault_of: Callable[[str, str, int], Fault | None] = lambda method, target, number: None
    is_dead: bool = False
    chunk_bytes: int = 2**18


@dataclass
class Log:
    """What the proxy has seen; read it when requests have come to an end.

    Attributes:
        requests: Method and target of each request, in their order.
        ranges: The `Range` of each GET that had one.
        asked_ranges: The same, each with the target.
        faults: How often each fault befell a request.
        most_open: Most requests between their beginning and the end of their answer.
        changes: What becomes of GETs with a `Range`: 1 when it comes and -1 when it is answered, range and target.
    """

    requests: list[tuple[str, str]] = field(default_factory=list)
    ranges: list[str] = field(default_factory=list)
    asked_ranges: list[tuple[str, str]] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    most_open: int = 0
    changes: list[tuple[int, str, str]] = field(default_factory=list)

    def count(self, method: str, part: str = "") -> int:
        """Return how many requests of a method there were whose target holds a text."""
        return sum(m == method and part in target for m, target in self.requests)


class _Tracked(asyncio.StreamReaderProtocol):
    """A connection that is known from its first moment to its last, whoever is cancelled meanwhile.

    Args:
        transports: Where it is kept.
        reader: Of its stream.
    """

    def __init__(self, transports: set[asyncio.Transport], reader: asyncio.StreamReader) -> None:
        super().__init__(reader)
        self._known = transports
        self._own: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._own = transport
        self._known.add(transport)
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._own is not None:
            self._known.discard(self._own)
        super().connection_lost(exc)


class Proxy:
    """The proxy, on a thread of its own, for the length of a ``with`` block.

    Args:
        upstream: Host and port of the server.
        line: How the line is.
    """

    def __init__(self, upstream: str, line: Line | None = None) -> None:
        host, _, port = upstream.rpartition(":")
        self._upstream = host, int(port)
        self.line = line or Line()
        self.log = Log()
        self.endpoint = ""
        self._open = 0
        self._transports: set[asyncio.Transport] = set()
        self._link_free_s = 0.0
        self._ready = threading.Event()
        self._changed = threading.Condition(threading.RLock())
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="far-proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._ending.set)
        self._thread.join()

    def asked(self, part: str) -> int:
        """Return how many requests there were whose target holds a text."""
        with self._changed:
            return sum(part in target for _, target in self.log.requests)

    def wait_for(self, holds: Callable[[], bool]) -> None:
        """Wait until something is true that follows from the requests seen."""
        with self._changed:
            self._changed.wait_for(holds)

    async def _serve(self) -> None:
        self._loop, self._ending = asyncio.get_running_loop(), asyncio.Event()
        serving: set[asyncio.Task[None]] = set()

        def accept() -> None:
            with suppress(BlockingIOError, ConnectionAbortedError):
                accepted, _ = listener.accept()
                accepted.setblocking(False)
                # Else what follows the first piece of an answer waits for its delayed acknowledgement, 40 ms.
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                task = self._loop.create_task(self._serve_one(accepted))
                serving.add(task)
                task.add_done_callback(serving.discard)

        # Not asyncio's own server: closed as it accepts, it drops what it has accepted (python/cpython#109564).
        with socket.create_server(("127.0.0.1", 0), backlog=100) as listener:
            listener.setblocking(False)
            self._loop.add_reader(listener, accept)
            self.endpoint = f"127.0.0.1:{listener.getsockname()[1]}"
            self._ready.set()
            await self._ending.wait()
            self._loop.remove_reader(listener)
        await asyncio.sleep(0)  # every task has begun, and so closes its connection when it is cancelled
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
        for transport in list(self._transports):
            transport.abort()
        for _ in range(8):  # connections that were aborted or closed release their sockets
            await asyncio.sleep(0)

    async def _serve_one(self, accepted: socket.socket) -> None:
        """Pass on the requests of one connection, and end it."""
        reader, writer = await self._streams(partial(self._loop.connect_accepted_socket, sock=accepted))
        try:
            await self._connection(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection to the server."""
        host, port = self._upstream
        return await self._streams(partial(self._loop.create_connection, host=host, port=port))

    async def _streams(self, connect: Callable[..., Any]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader = asyncio.StreamReader(limit=2**20)
        protocol = _Tracked(self._transports, reader)
        transport, _ = await connect(lambda: protocol)
        return reader, asyncio.StreamWriter(transport, protocol, reader, self._loop)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await self._connect()
        try:
            while True:
                first, headers = await _head(reader)
                method, target, _ = first.split(" ", 2)
                with self._changed:
                    self.log.requests.append((method, target))
                    number = len(self.log.requests)
                    self._changed.notify_all()
                span = headers.get("range", "") if method == "GET" else ""
                if span:
                    self.log.ranges.append(span)
                    self.log.asked_ranges.append((span, target))
                    self.log.changes.append((1, span, target))
                fault = self.line.fault_of(method, target, number)
                if fault is not None:
                    self.log.faults[fault] += 1
                if self.line.is_dead or fault == "stall":
                    await asyncio.Event().wait()
                self._open += 1
                self.log.most_open = max(self.log.most_open, self._open)
                try:
                    if up_reader.at_eof():  # the server ends connections on which nothing happens
                        up_writer.transport.abort()
                        up_reader, up_writer = await self._connect()
                    if not await self._exchange(reader, writer, up_reader, up_writer, first, headers, fault):
                        return
                finally:
                    self._open -= 1
                    if span:
                        self.log.changes.append((-1, span, target))
        finally:
            up_writer.transport.abort()

    async def _exchange(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        up_reader: asyncio.StreamReader,
        up_writer: asyncio.StreamWriter,
        first: str,
        headers: dict[str, str],
        fault: Fault | None,
    ) -> bool:
        """Pass on one request and its answer; return whether the connection goes on."""
        loop = asyncio.get_running_loop()
        # First of all: a store that is far away does nothing on this machine's processors meanwhile.
        await asyncio.sleep(self.line.latency_s)
        body = int(headers.get("content-length", 0))
        if headers.get("expect") == "100-continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        sent = {name: value for name, value in headers.items() if name != "expect"}
        up_writer.write(_encoded(first, sent))
        while body:
            some = await reader.read(min(body, self.line.chunk_bytes))
            if not some:
                raise ConnectionResetError
            body -= len(some)
            up_writer.write(some)
            await up_writer.drain()
        status, answered = await _head(up_reader)
        length = 0 if first.startswith("HEAD ") or " 204 " in status + " " else int(answered.get("content-length", 0))
        whole_body = b""
        if answered.pop("transfer-encoding", "") == "chunked":  # a listing
            whole_body = await _unchunked(up_reader)
            answered["content-length"] = str(len(whole_body))
        if "content-range" in answered and " 200 " in status:
            status = "HTTP/1.1 206 Partial Content"
        wanted = headers.get("if-match")
        if wanted is not None and answered.get("etag", wanted).strip('"') != wanted.strip('"'):
            fault, status = "412", "HTTP/1.1 412 Precondition Failed"  # type: ignore[assignment]
        if fault == "drop":
            return False
        if fault in ("503", "500", "429", "403", "412"):
            await up_reader.readexactly(length)
            words = {"503": "SlowDown", "429": "TooManyRequests", "403": "AccessDenied"}.get(fault, "InternalError")
            said = f"<Error><Code>{words}</Code><Message>as the test asked</Message></Error>".encode()
            reason = {"412": "Precondition Failed", "403": "Forbidden"}.get(fault, "Told So")
            writer.write(_encoded(f"HTTP/1.1 {fault} {reason}", {"content-length": str(len(said))}) + said)
            return True
        if whole_body and fault == "truncate":
            writer.write(_encoded(status, answered) + whole_body[: len(whole_body) // 2])
            return False
        writer.write(_encoded(status, answered) + whole_body)
        rate, began_s, passed = self.line.bytes_per_s, loop.time(), 0
        whole = length
        while length:
            if fault in ("truncate", "stall_in_body") and passed >= whole // 2:
                if fault == "stall_in_body":
                    await asyncio.Event().wait()
                await writer.drain()
                return False
            some = await up_reader.read(min(length, self.line.chunk_bytes))
            if not some:
                raise ConnectionResetError
            length -= len(some)
            passed += len(some)
            writer.write(some)
            await writer.drain()
            if rate is not None:
                ahead_s = began_s + passed / rate - loop.time()
                if ahead_s > 0:
                    await asyncio.sleep(ahead_s)
            if self.line.link_bytes_per_s is not None:
                self._link_free_s = max(self._link_free_s, loop.time()) + len(some) / self.line.link_bytes_per_s
                await asyncio.sleep(self._link_free_s - loop.time())
        await writer.drain()
        return True


async def _unchunked(reader: asyncio.StreamReader) -> bytes:
    found = b""
    while True:
        size = int((await reader.readline()).split(b";")[0], 16)
        found += await reader.readexactly(size)
        await reader.readline()
        if not size:
            return found


async def _head(reader: asyncio.StreamReader) -> tuple[str, dict[str, str]]:
    raw = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    fields = (line.partition(":") for line in raw[1:] if line)
    return raw[0], {name.lower(): value.strip() for name, _, value in fields}


def _encoded(first: str, headers: dict[str, str]) -> bytes:
    lines = [first, *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def at_random(seed: int, **shares: float) -> Callable[[str, str, int], Fault | None]:
    """Return a `Line.fault_of` that lets faults befall GETs of objects, each with its share of them."""
    rng = random.Random(seed)

    def fault_of(method: str, target: str, number: int) -> Fault | None:
        if method != "GET" or "list-type" in target:
            return None
        drawn = rng.random()
        for name, share in shares.items():
            if drawn < share:
                return name.removeprefix("status_")  # type: ignore[return-value]
            drawn -= share
        return None

    return fault_of


@contextmanager
def far(upstream: str, line: Line | None = None) -> Iterator[Proxy]:
    """Yield a proxy before a server."""
    with Proxy(upstream, line) as proxy:
        yield proxy
