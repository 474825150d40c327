"""A Hugging Face Hub on this machine: its API for data sets, redirects to a content network, and a log of requests.

`tests/source/test_hub_server.py` checks it against huggingface_hub's own client.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

LFS_BYTES = 0
"""Files larger than this are in LFS, and so at the content network."""


@dataclass
class Repository:
    """A repository of a data set.

    Attributes:
        name: ``ORG/NAME``.
        revisions: Commit of each branch and tag.
        commits: Files of each commit.
        gated, private: Who may read it: holders of a token in `readers`.
        readers: Tokens.
    """

    name: str
    revisions: dict[str, str] = field(default_factory=dict)
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    gated: bool = False
    private: bool = False
    readers: set[str] = field(default_factory=set)

    def commit(self, files: dict[str, bytes], revision: str = "main") -> str:
        """Make the files those of a branch, and return the commit."""
        key = json.dumps([self.name, revision, len(self.commits), sorted((n, sha(c)) for n, c in files.items())])
        commit = hashlib.sha1(key.encode()).hexdigest()
        self.commits[commit] = dict(files)
        self.revisions[revision] = commit
        return commit


@dataclass(frozen=True)
class Request:
    """One request that the server answered: ``kind`` is "revision", "tree", "resolve" or "cdn"."""

    kind: str
    path: str
    status: int
    range: str | None
    token: str | None


class Hub:
    """The server's state, which tests set and read.

    Attributes:
        url, cdn_url: Endpoints of the Hub and of the content network, which are different servers.
        repositories: By name.
        requests: All that were answered, in order.
        page_entries: Entries of a page of a listing.
        lfs: Whether files are at the content network, to which the Hub redirects.
        signature_s: How long a signed URL lasts.
        latency_s: How long each answer is kept back.
        failures: Kind of request -> answers (status, headers) given in turn instead of the right one.
    """

    def __init__(self) -> None:
        self.url = self.cdn_url = ""
        self.repositories: dict[str, Repository] = {}
        self.renamed: dict[str, str] = {}
        self.requests: list[Request] = []
        self.page_entries = 1000
        self.lfs = True
        self.signature_s = 3600.0
        self.latency_s = 0.0
        self.failures: dict[str, list[tuple[int, dict[str, str]]]] = {}
        self.now_s = 0.0
        self.sent_bytes = 0
        self.connections = 0
        self.tokens = {"hf_good", "hf_other"}
        self.lock = threading.Lock()

    def repository(self, name: str, **options: Any) -> Repository:
        """Make a repository."""
        self.repositories[name] = Repository(name, **options)
        return self.repositories[name]

    def count(self, kind: str) -> int:
        """How many requests of a kind were answered."""
        return sum(request.kind == kind for request in self.requests)


def sha(content: bytes) -> str:
    """The id that LFS gives to content."""
    return _once("lfs", content, lambda content: hashlib.sha256(content).hexdigest())


@contextmanager
def serving() -> Iterator[Hub]:
    """Serve a Hub and its content network until the end of the block."""
    hub = Hub()
    servers = [_Server(("127.0.0.1", 0), handler, hub) for handler in (_HubHandler, _CdnHandler)]
    hub.url, hub.cdn_url = (f"http://127.0.0.1:{server.server_address[1]}" for server in servers)
    threads = [threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True) for server in servers]
    for thread in threads:
        thread.start()
    try:
        yield hub
    finally:
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            thread.join()
            server.server_close()
        _known.clear()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 256

    def __init__(self, address: tuple[str, int], handler: Any, hub: Hub) -> None:
        super().__init__(address, handler)
        self.hub = hub

    def handle_error(self, *_: Any) -> None:
        """Clients hang up as they like."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        with self.server.hub.lock:
            self.server.hub.connections += 1

    def log_message(self, *_: Any) -> None:
        """Keep quiet."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        raise NotImplementedError

    def answer(self, kind: str, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        """Answer and write the request down."""
        hub = self.server.hub
        with hub.lock:
            waiting = hub.failures.get(kind)
            if waiting:
                status, headers = waiting.pop(0)
                body = b"{}"
            token = (self.headers.get("Authorization") or "").removeprefix("Bearer ") or None
            hub.requests.append(Request(kind, self.path, status, self.headers.get("Range"), token))
            hub.sent_bytes += len(body)
        if hub.latency_s:
            time.sleep(hub.latency_s)
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refuse(self, kind: str, status: int, code: str, message: str = "") -> None:
        headers = ({"X-Error-Code": code} if code else {}) | ({"X-Error-Message": message} if message else {})
        self.answer(kind, status, json.dumps({"error": message}).encode(), headers)

    def ranged(self, kind: str, content: bytes, headers: dict[str, str]) -> None:
        """Answer with a file, or the range of it that was asked for."""
        headers = {"Accept-Ranges": "bytes", **headers}
        found = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range") or "")
        if found is None:
            self.answer(kind, 200, content, headers)
            return
        start, stop = int(found[1] or 0), min(int(found[2] or len(content) - 1) + 1, len(content))
        if not found[1]:
            start, stop = len(content) - int(found[2]), len(content)
        if start >= len(content):
            self.answer(kind, 416, b"", {"Content-Range": f"bytes */{len(content)}"})
            return
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(content)}"
        self.answer(kind, 206, content[start:stop], headers)


_API = re.compile(
    r"/api/datasets/(?P<name>[^/]+(?:/(?!revision/|tree/)[^/]+)?)(?:/(?P<kind>revision|tree)/(?P<rest>.*))?"
)
_RESOLVE = re.compile(r"/datasets/(?P<name>[^/]+(?:/(?!resolve/)[^/]+)?)/resolve/(?P<revision>[^/]+)/(?P<path>.+)")


class _HubHandler(_Handler):
    def do_GET(self) -> None:
        hub, parts = self.server.hub, urlsplit(self.path)
        api, resolve = _API.fullmatch(parts.path), _RESOLVE.fullmatch(parts.path)
        match = api or resolve
        if match is None:
            self.refuse("other", 404, "")
            return
        kind = "resolve" if api is None else api["kind"] or "revision"
        name = match["name"]
        if name in hub.renamed:
            self.answer(kind, 307, b"", {"Location": self.path.replace(f"/{name}/", f"/{hub.renamed[name]}/", 1)})
            return
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ") or None
        repository = hub.repositories.get(name)
        if token is not None and token not in hub.tokens:
            self.refuse(kind, 401, "", "Invalid credentials in Authorization header")
        elif repository is None or (repository.private and token not in repository.readers):
            is_known = token is not None
            self.refuse(kind, 404 if is_known else 401, "RepoNotFound" if is_known else "", "Repository not found")
        elif kind == "resolve" and repository.gated and token not in repository.readers:
            status = 401 if token is None else 403
            self.refuse(kind, status, "GatedRepo", f"Access to dataset {name} is restricted.")
        elif kind == "revision":
            self.revision(repository, unquote((api and api["rest"]) or "main"))
        elif kind == "tree":
            assert api is not None
            self.tree(repository, api["rest"], parse_qs(parts.query))
        else:
            assert resolve is not None
            self.resolve(repository, unquote(resolve["revision"]), unquote(resolve["path"]))

    def commit_of(self, kind: str, repository: Repository, revision: str) -> str | None:
        commit = repository.revisions.get(revision, revision)
        if commit not in repository.commits:
            self.refuse(kind, 404, "RevisionNotFound", f"Invalid rev id: {revision}")
            return None
        return commit

    def revision(self, repository: Repository, revision: str) -> None:
        commit = self.commit_of("revision", repository, revision)
        if commit is not None:
            found = {"_id": "0", "id": repository.name, "sha": commit, "private": repository.private}
            self.answer("revision", 200, json.dumps(found).encode(), {"Content-Type": "application/json"})

    def tree(self, repository: Repository, rest: str, query: dict[str, list[str]]) -> None:
        revision, _, folder = rest.partition("/")
        commit = self.commit_of("tree", repository, unquote(revision))
        if commit is None:
            return
        folder = unquote(folder)
        files = repository.commits[commit]
        folders = {"/".join(name.split("/")[:depth]) for name in files for depth in range(1, name.count("/") + 1)}
        if folder and folder not in folders and folder not in files:
            self.refuse("tree", 404, "EntryNotFound", f"{folder} does not exist on {revision!r}")
            return
        recursive = query.get("recursive", [""])[0].lower() in ("true", "1")
        start = folder and f"{folder}/"
        entries = [e for e in sorted({*files, *folders}) if e.startswith(start)] or [folder]
        if not recursive:
            entries = [entry for entry in entries if "/" not in entry[len(start) :]]
        at, limit = int(query.get("cursor", ["0"])[0]), int(query.get("limit", [self.server.hub.page_entries])[0])
        limit = min(limit, self.server.hub.page_entries)
        page = [self.entry(files, entry) for entry in entries[at : at + limit]]
        headers = {"Content-Type": "application/json"}
        if at + limit < len(entries):
            own = f"{self.server.hub.url}{urlsplit(self.path).path}"
            flag = "recursive=true&" if recursive else ""
            headers["Link"] = f'<{own}?{flag}cursor={at + limit}&limit={limit}>; rel="next"'
        self.answer("tree", 200, json.dumps(page).encode(), headers)

    def entry(self, files: dict[str, bytes], path: str) -> dict[str, Any]:
        if path not in files:
            return {"type": "directory", "oid": hashlib.sha1(path.encode()).hexdigest(), "size": 0, "path": path}
        content = files[path]
        found: dict[str, Any] = {"type": "file", "oid": git_id(content), "size": len(content), "path": path}
        if self.server.hub.lfs and not path.endswith(".md"):
            found["lfs"] = {"oid": sha(content), "size": len(content), "pointerSize": 135}
            found["xetHash"] = git_id(content)
        return found

    def resolve(self, repository: Repository, revision: str, path: str) -> None:
        hub = self.server.hub
        commit = self.commit_of("resolve", repository, revision)
        if commit is None:
            return
        content = repository.commits[commit].get(path)
        headers = {"X-Repo-Commit": commit}
        if content is None:
            self.refuse("resolve", 404, "EntryNotFound", "Entry not found")
        elif hub.lfs and not path.endswith(".md"):
            expires = hub.now_s + hub.signature_s
            target = (
                f"{hub.cdn_url}/xet/{sha(content)}?Expires={expires}&Signature=secret-{quote(repository.name, safe='')}"
            )
            headers |= {
                "X-Linked-Size": str(len(content)),
                "X-Linked-ETag": f'"{sha(content)}"',
                "ETag": f'"{git_id(content)}"',
            }
            self.answer("resolve", 302, b"Found. Redirecting", {**headers, "Location": target})
        else:
            self.ranged("resolve", content, {**headers, "ETag": f'"{git_id(content)}"'})


class _CdnHandler(_Handler):
    def do_GET(self) -> None:
        hub, parts = self.server.hub, urlsplit(self.path)
        query = parse_qs(parts.query)
        if self.headers.get("Authorization") is not None:
            self.refuse("cdn", 400, "", "only one way to sign in")
        elif "Signature" not in query or float(query["Expires"][0]) < hub.now_s:
            self.refuse("cdn", 403, "", "Request has expired")
        else:
            wanted = parts.path.rpartition("/")[2]
            for repository in hub.repositories.values():
                for files in repository.commits.values():
                    for content in files.values():
                        if sha(content) == wanted:
                            self.ranged("cdn", content, {"ETag": f'"{wanted[:16]}"'})
                            return
            self.refuse("cdn", 404, "")


# Hashes of content that was served: to compute them again for each request would take longer than the latency.
_known: dict[tuple[str, int], tuple[bytes, str]] = {}


def _once(kind: str, content: bytes, compute: Callable[[bytes], str]) -> str:
    known = _known.get((kind, id(content)))
    if known is None or known[0] is not content:
        known = _known[kind, id(content)] = content, compute(content)
    return known[1]


def git_id(content: bytes) -> str:
    """The id that git gives to content."""
    return _once("git", content, lambda content: hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest())
