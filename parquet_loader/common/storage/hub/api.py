"""Sends requests to the Hub and interprets its responses. Each request is one attempt; callers retry."""

from __future__ import annotations

import json
import os
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPException, HTTPMessage, HTTPResponse
from typing import Any, NamedTuple
from urllib.parse import quote, urljoin, urlsplit

from parquet_loader.common.storage.hub.address import HubAddress
from parquet_loader.common.storage.hub.connections import HttpConnections, origin_of
from parquet_loader.common.storage.hub.tokens import hub_token, is_set, token_path
from parquet_loader.common.storage.redaction import shown, without_secrets
from parquet_loader.errors import SourceError

_ENDPOINT = "https://huggingface.co"
_REDIRECTS = (301, 302, 303, 307, 308)
_MOST_REDIRECTS = 8
_TRANSIENT = (408, 425, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524)
_NEXT = re.compile(r'<([^>]+)>\s*;[^,]*\brel="?next"?')
_RATE = re.compile(r"\br\s*=\s*0\s*;\s*t\s*=\s*(\d+)")
_TOKEN_S = 60.0
_MOST_JSON_BYTES = 2**28
_MOST_WORDS = 200
_LOGIN = "run `hf auth login`, or set HF_TOKEN"


class HubError(OSError):
    """The Hub refused, or did not answer.

    Attributes:
        is_transient: Whether a later attempt may succeed.
        wait_s: How long the Hub said to wait, or None.
        code: The Hub's own code, such as ``"EntryNotFound"``; empty if it gave none.
        status: The HTTP status, or 0.
    """

    def __init__(
        self,
        words: str,
        *,
        is_transient: bool = False,
        wait_s: float | None = None,
        code: str = "",
        status: int = 0,
    ) -> None:
        super().__init__(words)
        self.is_transient, self.wait_s, self.code, self.status = is_transient, wait_s, code, status

    @property
    def is_busy(self) -> bool:
        """Whether the Hub, or the store that it redirects to, asked for fewer requests."""
        return self.status in (429, 503)

    @property
    def is_missing_repository(self) -> bool:
        """Whether the Hub answered that the repository does not exist, as it also does for private ones."""
        return self.code == "RepoNotFound" or (self.status in (401, 404) and not self.code)

    @property
    def is_missing_entry(self) -> bool:
        """Whether the repository has no such file or directory."""
        return self.code == "EntryNotFound"


class HubEntry(NamedTuple):
    """A file or directory of a repository.

    Attributes:
        path: Within the repository.
        is_file: Whether it is a file.
        size_bytes: The size of the file, also of one stored in LFS or Xet.
        content_id: Identifies the content: SHA-256 of a file in LFS or Xet, else its git id.
    """

    path: str
    is_file: bool
    size_bytes: int
    content_id: str | None


def hub_endpoint() -> str:
    """Return the URL of the Hub: HF_ENDPOINT, or Hugging Face's.

    Raises:
        SourceError: HF_ENDPOINT is not an http or https URL.
    """
    endpoint = (os.environ.get("HF_ENDPOINT") or _ENDPOINT).strip().rstrip("/")
    try:
        is_url = urlsplit(endpoint).scheme in ("http", "https") and bool(origin_of(endpoint)[1])
    except ValueError:
        is_url = False
    if not is_url:
        raise SourceError(f"HF_ENDPOINT={shown(endpoint)!r}: expected a URL such as {_ENDPOINT!r}")
    return endpoint


class HubApi:
    """Client of one Hub. Any thread may use it. The token is sent to the Hub only, and never in a message or a pickle.

    Args:
        endpoint: The Hub's URL.
    """

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self._connections = HttpConnections()
        self._origin = origin_of(endpoint)
        self._token: tuple[float, str | None] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave out connections and token."""
        return HubApi, (self.endpoint,)

    def connections(self) -> HttpConnections:
        """Return the connections of this process."""
        if self._connections.pid != os.getpid():
            self._connections = HttpConnections()
        return self._connections

    def commit_of(self, address: HubAddress, timeout_s: float) -> HubAddress:
        """Return the address with the current commit of its revision and the current name of its repository.

        Raises:
            HubError: there is no such repository or revision, or the request failed.
        """
        url = f"{self._api(address)}/revision/{quote(address.revision, safe='')}?expand=sha"
        found, _ = self._json(url, address, timeout_s)
        commit, name = (found.get("sha"), found.get("id")) if isinstance(found, dict) else (None, None)
        if not isinstance(commit, str) or not re.fullmatch(r"[\w.-]+", commit):
            raise self._nonsense(url)
        has_name = isinstance(name, str) and re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) is not None
        return HubAddress(str(name) if has_name else address.repository, commit, address.path, is_explicit=True)

    def tree_url(self, address: HubAddress, *, recursive: bool) -> str:
        """Return the URL of the first page of the listing of a directory."""
        path = f"/{quote(address.path)}" if address.path else ""
        suffix = "?recursive=true" if recursive else ""
        return f"{self._api(address)}/tree/{quote(address.revision, safe='')}{path}{suffix}"

    def tree_page(self, url: str, address: HubAddress, timeout_s: float) -> tuple[list[HubEntry], str | None]:
        """Return the entries on a page of a listing, and the URL of the next page or None.

        Raises:
            HubError: there is no such directory, or it cannot be listed.
        """
        found, headers = self._json(url, address, timeout_s)
        try:
            entries = [_entry(item) for item in found]
        except (TypeError, KeyError, ValueError, AttributeError):
            raise self._nonsense(url) from None
        named = _NEXT.search(headers.get("Link") or "")
        return entries, None if named is None else self._on_this_hub(urljoin(url, named[1]))

    def file_url(self, address: HubAddress) -> str:
        """Return the URL of a file."""
        revision = quote(address.revision, safe="")
        return f"{self.endpoint}/datasets/{address.repository}/resolve/{revision}/{quote(address.path)}"

    @contextmanager
    def opened(
        self,
        url: str,
        address: HubAddress,
        timeout_s: float,
        headers: Mapping[str, str] | None = None,
        watch: Callable[[socket.socket], None] = lambda _: None,
    ) -> Iterator[tuple[HTTPResponse, str]]:
        """Request a URL, follow redirects, and yield the response and the URL that it came from.

        Arguments as for `HttpConnections.get`; the address is for messages.

        Raises:
            HubError: the Hub refused or did not answer.
        """
        for _ in range(_MOST_REDIRECTS):
            with self._asked(url, timeout_s, headers or {}, watch) as response:
                location = response.getheader("Location")
                if response.status not in _REDIRECTS or location is None:
                    if response.status not in (200, 206):
                        raise self._refusal(response, url, address)
                    yield response, url
                    return
            target = urljoin(url, location)
            if origin_of(target)[0] not in ("http", "https") or (url[:6] == "https:" and target[:5] == "http:"):
                raise HubError(f"{_host(url)} redirects to a URL that is not https, which is not followed")
            url = target
        raise HubError(f"{_host(url)} redirects more than {_MOST_REDIRECTS} times")

    @contextmanager
    def _asked(
        self, url: str, timeout_s: float, headers: Mapping[str, str], watch: Callable[[socket.socket], None]
    ) -> Iterator[HTTPResponse]:
        sent = {"User-Agent": "parquet_loader", **headers}
        token = self._own_token() if origin_of(url) == self._origin else None
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        try:
            with self.connections().get(url, sent, timeout_s, watch) as response:
                yield response
        except HubError:
            raise
        except ssl.SSLCertVerificationError as error:
            raise HubError(
                f"{_host(url)}: its certificate is not trusted here ({error.verify_message}); name the certificates "
                "of your network in SSL_CERT_FILE or REQUESTS_CA_BUNDLE"
            ) from None
        except TimeoutError:
            raise HubError(f"{_host(url)}: no byte arrived for {timeout_s:.3g} s", is_transient=True) from None
        except (OSError, HTTPException) as error:
            words = f"{_host(url)}: {_words(str(error)) or type(error).__name__}"
            raise HubError(words, is_transient=True) from None

    def _json(self, url: str, address: HubAddress, timeout_s: float) -> tuple[Any, HTTPMessage]:
        if is_set("HF_HUB_OFFLINE"):
            raise HubError("HF_HUB_OFFLINE is set, so no request is sent to the Hub; unset it, or read local files")
        with self.opened(url, address, timeout_s) as (response, _):
            body = response.read(_MOST_JSON_BYTES)
            try:
                return json.loads(body), response.headers
            except ValueError:
                raise self._nonsense(url) from None

    def _own_token(self) -> str | None:
        now_s = time.monotonic()
        if self._token is None or now_s - self._token[0] > _TOKEN_S:
            self._token = now_s, hub_token()
        return self._token[1]

    def _api(self, address: HubAddress) -> str:
        return f"{self.endpoint}/api/datasets/{address.repository}"

    def _on_this_hub(self, url: str) -> str:
        """Return a URL with this Hub's endpoint; a mirror may answer with URLs of the original."""
        if origin_of(url) == self._origin:
            return url
        parts = urlsplit(url)
        return f"{self.endpoint}{parts.path}" + (f"?{parts.query}" if parts.query else "")

    def _nonsense(self, url: str) -> HubError:
        return HubError(
            f"{shown(url)}: the answer is not one of the Hugging Face Hub; check HF_ENDPOINT, and whether a proxy or "
            "login page answers in its place"
        )

    def _refusal(self, response: HTTPResponse, url: str, address: HubAddress) -> HubError:
        """Return the error for an unsuccessful response, with what to do."""
        status, code = response.status, response.getheader("X-Error-Code") or ""
        words = _words(response.getheader("X-Error-Message") or "")
        is_hub = origin_of(url) == self._origin
        if not is_hub:
            said = f"{status} {response.reason} from {_host(url)}, to which the Hub redirects"
            is_transient = status in _TRANSIENT
            wait_s = _wait_s(response) if is_transient else None
            return HubError(said, is_transient=is_transient, wait_s=wait_s, status=status)
        page = f"{self.endpoint}/datasets/{address.repository}"
        has_token = self._own_token() is not None
        if status == 429 or status in _TRANSIENT:
            wait_s = _wait_s(response)
            what = f"{status} {response.reason}" + (f": {words}" if words else "")
            if status == 429:
                what += " (the Hub's rate limit" + ("" if has_token else f"; it is higher with a token: {_LOGIN}") + ")"
            return HubError(what, is_transient=True, wait_s=wait_s, status=status)
        if code == "GatedRepo":
            do = f"{_LOGIN}, and accept its conditions at {page}"
            if has_token:
                do = f"accept its conditions at {page} as the user whose token this is, or wait to be let in"
            what = f"the repository {address.repository!r} is gated; {do}"
        elif "Invalid credentials" in words or "Invalid username or password" in words:
            what = f"the Hub does not accept the token in HF_TOKEN or {token_path()}; {_LOGIN} with a valid one"
        elif words == "Access to this resource is disabled.":
            what = f"the repository {address.repository!r} has been disabled by Hugging Face; see {page}"
        elif code == "RevisionNotFound":
            what = f"the repository {address.repository!r} has no revision {address.revision!r}; see {page}/tree/main"
        elif code == "EntryNotFound":
            what = f"no such file or directory in {address.repository!r} at revision {address.revision!r}"
        elif code == "RepoNotFound" or status in (401, 404):
            do = "the token that was found may not read it" if has_token else f"{_LOGIN} if it is private"
            what = f"no repository {address.repository!r} of a data set that this user may read; check the name; {do}"
        elif status == 403:
            what = (
                f"403 Forbidden{': ' if words else ''}{words}; check the permissions of the token, and access at {page}"
            )
        else:
            what = f"{status} {response.reason}" + (f": {words}" if words else "")
        return HubError(what, code=code, status=status)


def _entry(item: Mapping[str, Any]) -> HubEntry:
    path, kind = item["path"], item["type"]
    if not isinstance(path, str) or any(part in ("", ".", "..") for part in path.split("/")):
        raise ValueError(path)
    if kind != "file":
        return HubEntry(path, False, 0, None)
    lfs = item.get("lfs") or {}
    size = lfs.get("size", item["size"])
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise ValueError(size)
    content = lfs.get("oid") or lfs.get("sha256") or item.get("oid")
    return HubEntry(path, True, size, None if content is None else str(content))


def _wait_s(response: HTTPResponse) -> float | None:
    """Return how long the Hub says to wait: Retry-After in seconds, or until its rate limit resets."""
    after = (response.getheader("Retry-After") or "").strip()
    if after.isascii() and after.isdecimal():
        return float(after)
    counted = _RATE.search(response.getheader("RateLimit") or "")
    return None if counted is None else float(counted[1])


def _words(text: str) -> str:
    text = without_secrets(" ".join("".join(c if c.isprintable() else " " for c in text).split()))
    return text[:_MOST_WORDS]


def _host(url: str) -> str:
    return urlsplit(url).netloc.rpartition("@")[2]
