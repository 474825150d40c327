"""Finds a store's host and port, checks whether they can be reached, and explains HTTP refusals."""

from __future__ import annotations

import errno
import re
import socket
import ssl
import time
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import pyarrow.fs as pafs

from parquet_loader.common.storage.redaction import without_secrets
from parquet_loader.errors import RemoteError, SourceError

_PROBE_S = 1.0
_RESOLVED_AGAIN_S = 0.2

# How obstore says that the answer with a page of a listing broke off.
BROKEN_OFF = "list response body"
# Messages of clients that got no answer, or only a part of one.
UNANSWERED = rf"error sending request|operation timed out|NETWORK_CONNECTION|{BROKEN_OFF}"
# What to do, by messages of servers and clients; the first match counts.
_REMEDIES = {
    "there is no such bucket; check its name, the region and the endpoint": (
        r"NoSuchBucket|NO_SUCH_BUCKET|BucketNotFound|ContainerNotFound|specified bucket does not exist"
    ),
    "the credentials have expired; get new ones": r"Expired\w*Token|TokenExpired|REQUEST_EXPIRED",
    "the bucket may be in another region; give it in the URL (?region=...), in AWS_REGION, or to filesystem=": (
        r"PermanentRedirect|301 Moved|AuthorizationHeaderMalformed|AUTHORIZATION_HEADER_MALFORMED"
        r"|IllegalLocationConstraint|redirect without LOCATION|HTTP status 301"
    ),
    "the store does not accept the credentials; check AWS_ACCESS_KEY_ID and its like, or those of filesystem=": (
        r"InvalidAccessKey|INVALID_ACCESS_KEY|SignatureDoesNotMatch|SIGNATURE_DOES_NOT_MATCH|InvalidClientTokenId"
        r"|UNRECOGNIZED_CLIENT|INVALID_CLIENT_TOKEN|AuthenticationFailed|Unauthenticated|401 Unauthorized"
        r"|InvalidToken|INVALID_SIGNATURE"
    ),
    "these credentials, or none, may not read it; check them, the name, and the permissions to list and read": (
        r"ACCESS_DENIED|AccessDenied|PermissionDenied|403 Forbidden|HTTP Status(?: Code)?:? 403|Forbidden"
    ),
    # For single files, S3 gives only the number.
    "the region may be wrong, or the credentials may have expired, or there are none; check them": r"HTTP status 400",
    "no object store answers there; check the endpoint, and that its port is not that of a console": (
        r"Content-Length Header missing|<!doctype html|<html|Got invalid \w+ response"
    ),
    "obstore cannot read control characters in names; rename the object, or use RemoteOptions(connections='native')": (
        r"illegal character sequence"
    ),
    "the store does not answer; check the endpoint, its scheme (http or https) and the network": UNANSWERED,
    "check the endpoint, its scheme (http or https) and the network": (
        r"Could not (?:connect|resolve)|SSL|certificate"
    ),
}


class UnreachableError(OSError):
    """Nothing answers at a store's endpoint, or its host name cannot be resolved; the message says what to do."""


def remedy(words: str) -> str:
    """Return the meaning of a store's refusal and what to do, to append to a message; empty if it is not known."""
    found = (told for told, pattern in _REMEDIES.items() if re.search(pattern, words, re.IGNORECASE))
    return next((f"; {told}" for told in found), "")


def endpoint_of(filesystem: pafs.FileSystem) -> tuple[str, int] | None:
    """Return the host and port that a filesystem connects to; None if not known, or if it connects through a proxy."""
    url = _url_of(filesystem)
    return None if url is None else endpoint_of_url(url)


def endpoint_of_url(url: str) -> tuple[str, int] | None:
    """Return the host and port of an HTTP URL; see `endpoint_of`."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or (80 if parts.scheme == "http" else 443)
    except ValueError:
        return None
    if not host or (parts.scheme in getproxies() and not proxy_bypass(host)):
        return None
    return host, port


def _url_of(filesystem: pafs.FileSystem) -> str | None:
    if filesystem.type_name not in ("s3", "gcs", "abfs"):
        handler = getattr(filesystem, "handler", None)
        if filesystem.type_name == "py::hub":
            return str(handler.api.endpoint)  # type: ignore[union-attr]
        return _fsspec_url(getattr(handler, "fs", None))
    given: Any = filesystem.__reduce__()[1]
    given = given[0] if isinstance(given, tuple) and given and isinstance(given[0], dict) else {}
    if filesystem.type_name == "abfs":
        account, authority = given.get("account_name", ""), given.get("blob_storage_authority") or ""
        host = f"{account}{authority}" if authority.startswith(".") else authority
        return f"{given.get('blob_storage_scheme') or 'https'}://{host}" if host else None
    override = given.get("endpoint_override")
    if override:
        return str(override) if "://" in override else f"{given.get('scheme') or 'https'}://{override}"
    if filesystem.type_name == "gcs":
        return "https://storage.googleapis.com"
    if (given.get("proxy_options") or {}).get("host"):
        return None
    return f"https://s3.{given.get('region') or 'us-east-1'}.amazonaws.com"


def _fsspec_url(fs: Any) -> str | None:
    """Return the endpoint in the options of an fsspec filesystem, or None."""
    options = getattr(fs, "storage_options", None) or {}
    for given in (options, options.get("client_kwargs")):
        if isinstance(given, dict) and isinstance(url := given.get("endpoint_url"), str):
            return url
    return None


def is_unanswered(words: str) -> bool:
    """Whether a message means that no answer came or that the server failed, so the source may be intact."""
    return re.search(rf"{UNANSWERED}|(?:HTTP status|status code:?) 5\d\d\b", words, re.IGNORECASE) is not None


def refused(what: str, error: OSError) -> SourceError:
    """Return an error that says what was refused, why, and what to do; a `RemoteError` if no answer came."""
    reason = without_secrets(str(error))
    kind = RemoteError if is_unanswered(reason) else SourceError
    told = remedy(reason)
    if not told and error.errno in (errno.EACCES, errno.EPERM):
        told = "; let this user read it and search its directories"
    return kind(f"{what}: {reason}{told}")


def is_encrypted(filesystem: pafs.FileSystem) -> bool:
    """Whether a filesystem is known to use https."""
    return (_url_of(filesystem) or "").startswith("https://")


def probe(host: str, port: int, *, encrypted: bool = False) -> UnreachableError | None:
    """Return the error if nothing answers at a host and port; None if something does, or takes more than a second.

    Args:
        host, port: The endpoint.
        encrypted: Whether requests will use https; then a server of plain http is an error, too.
    """
    try:
        with socket.create_connection((host, port), _PROBE_S) as connection:
            if encrypted and _speaks_plain_http(connection):
                return UnreachableError(
                    f"{host}:{port} speaks http and was asked in https; add scheme=http to the options of the URL or "
                    "of filesystem="
                )
    except OSError as error:
        if isinstance(error, socket.gaierror) and error.errno == socket.EAI_AGAIN:
            time.sleep(_RESOLVED_AGAIN_S)  # EAI_AGAIN asks for a retry
            try:
                socket.getaddrinfo(host, port)
            except OSError as again:
                return unreachable(again, host, port)
            return None
        return unreachable(error, host, port)
    return None


def _speaks_plain_http(connection: socket.socket) -> bool:
    """Whether a server answers a TLS handshake in plain text."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        context.wrap_socket(connection).close()
    except ssl.SSLError as error:
        return error.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE")
    except OSError:  # it closes the connection, or does not answer
        return False
    return False


def unreachable(error: BaseException, host: str, port: int) -> UnreachableError | None:
    """Return an `UnreachableError` for a refused connection or an unknown host; None for any other error."""
    if isinstance(error, socket.gaierror):
        return UnreachableError(
            f"cannot resolve the host name {host!r}; check the endpoint, the region and the network"
        )
    if isinstance(error, OSError) and error.errno == errno.ECONNREFUSED:
        address = f"{host}:{port}"
        return UnreachableError(
            f"cannot connect to {address}: connection refused; check the host and the port, and that the server runs"
        )
    return None
