"""Resolves local paths and URLs to a pyarrow filesystem and a path in it."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
from typing import Any, TypeAlias
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.fs as pafs

from parquet_loader.common.storage import hdfs
from parquet_loader.common.storage.endpoints import endpoint_of_url, probe, remedy
from parquet_loader.common.storage.hub.address import PREFIX, HubAddress
from parquet_loader.common.storage.hub.api import HubApi, hub_endpoint
from parquet_loader.common.storage.hub.filesystem import HubFileSystem
from parquet_loader.common.storage.redaction import shown, without_secrets
from parquet_loader.errors import ConfigurationError, RemoteError, SourceError

PathLike: TypeAlias = str | os.PathLike[str]

# The arguments of fsspec's and pyarrow's filesystems that identify a store; none is a credential.
_NOT_SECRET = ("region", "endpoint_override", "scheme", "host", "port", "account_name", "blob_storage_authority")

# Hadoop's names for S3.
_HADOOP_S3 = ("s3a", "s3n")
_SCHEME_OF = {"s3": "s3", "gcs": "gs", "abfs": "abfs"}
_SCHEMES_OF = {"s3": ("s3", *_HADOOP_S3), "gcs": ("gs", "gcs"), "abfs": ("abfs", "abfss")}

# Schemes that pyarrow serves itself; the others go through fsspec.
_NATIVE_SCHEMES = ("s3", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs", "mock")
_GLOB = re.compile(r"[*?[]")


def resolve(path: PathLike, filesystem: Any = None) -> tuple[pafs.FileSystem, str]:
    """Return the filesystem a path or URL belongs to, and the path within it.

    Args:
        path: A local path, or a URL: ``file://``, ``s3://`` (also ``s3a://`` and ``s3n://``), ``gs://``, ``abfs://``,
            ``hdfs://``, ``hf://datasets/``, or one that fsspec supports: ``http(s)://`` and others. Glob characters are
            kept as they are. ``%20`` in a URL is a space, and so is a space.
        filesystem: A `pyarrow.fs.FileSystem`; `path` is then a path within it.

    Raises:
        ConfigurationError: `filesystem` is not a pyarrow filesystem, or `path` not a path.
        SourceError: no filesystem serves the URL; or it is HDFS and this is a forked process (see `hdfs`); or a local
            path is not UTF-8.
    """
    text = _text_of(path)
    if filesystem is not None:
        return _in_given(filesystem, text)
    scheme, rest = _split_url(text)
    if scheme is None:
        _check_slashes(text)
        return _local(local_path(text))
    if scheme == "file":
        rest = rest.removeprefix("localhost") if rest.startswith("localhost/") else rest
        if not os.path.lexists(rest):  # %20 is a space in a URL, but may be part of a name, as in Hive's directories
            rest = unquote(rest)
        return _local(os.path.abspath(rest))
    if f"{text}/".startswith(PREFIX):  # other kinds of repositories go through fsspec and huggingface_hub
        HubAddress.parse(rest)
        return pafs.PyFileSystem(HubFileSystem(HubApi(hub_endpoint()))), rest.strip("/")
    if scheme in _NATIVE_SCHEMES:
        return _through_pyarrow(text, scheme, rest)
    return _through_fsspec(text, scheme)


def _local(path: str) -> tuple[pafs.FileSystem, str]:
    try:
        path.encode()
    except UnicodeEncodeError:
        raise SourceError(
            f"{shown(path)}: the path is not UTF-8, and Arrow cannot read or write there; rename it, or set "
            "PYTHONUTF8=1 if only the locale of this process is not UTF-8"
        ) from None
    return pafs.LocalFileSystem(), path


def _text_of(path: Any) -> str:
    if not isinstance(path, str | os.PathLike):
        raise ConfigurationError(f"a path is a str or os.PathLike, not {type(path).__name__}")
    text = os.fspath(path)
    if not isinstance(text, str) or not text:
        raise ConfigurationError(f"a path is a non-empty str, not {text!r}")
    if "\0" in text:
        raise ConfigurationError(f"a path has no NUL characters, which {text!r} has")
    return text


def _split_url(text: str) -> tuple[str | None, str]:
    """Return the scheme of a URL, spelled as pyarrow does, and the rest; for a local path None, and all of it."""
    if text[:6].lower() == "file:/" and text[6:7] != "/":  # the form that Hadoop writes
        return "file", text[5:]
    scheme, separator, rest = text.partition("://")
    if not separator or "/" in scheme:
        return None, text
    known = scheme.lower()
    if known in _HADOOP_S3:
        return "s3", rest
    return known if known in (*_NATIVE_SCHEMES, "file") else scheme, rest


def _in_given(filesystem: Any, text: str) -> tuple[pafs.FileSystem, str]:
    """Return the filesystem that the caller passed, and a path within it."""
    if not isinstance(filesystem, pafs.FileSystem):
        raise ConfigurationError(
            f"filesystem is a pyarrow.fs.FileSystem, not {type(filesystem).__name__}; "
            "an fsspec filesystem can be wrapped: pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(fs))"
        )
    if is_local(filesystem):
        return filesystem, local_path(text)
    text = _within(filesystem, text)
    filesystem = hdfs.unwrapped(filesystem)
    if hdfs.is_hdfs(filesystem):
        hdfs.check_process()
        hdfs.note(filesystem)
    return filesystem, text if text == "/" else text.rstrip("/")


def _within(filesystem: pafs.FileSystem, text: str) -> str:
    """Return the path within a filesystem that the caller passed.

    Raises:
        ConfigurationError: `text` is a URL of another filesystem.
    """
    scheme, separator, rest = text.partition("://")
    schemes = _SCHEMES_OF.get(filesystem.type_name)
    if schemes is None or not separator or "/" in scheme:
        return text
    if scheme.lower() not in schemes:
        raise ConfigurationError(
            f"{shown(text)}: filesystem= is one of {schemes[0]}://, and this is not a path within it; leave "
            "filesystem= out, or give the path without a scheme"
        )
    return rest


def schemes_of(filesystem: pafs.FileSystem) -> tuple[str, ...]:
    """Return the URL schemes for which the rest of the URL is a path within this filesystem; may be empty."""
    return ("file",) if is_local(filesystem) else _SCHEMES_OF.get(filesystem.type_name, ())


def _check_slashes(text: str) -> None:
    """Refuse a URL with one slash after its scheme, unless a local path of that name exists.

    Raises:
        SourceError: it is such a URL.
    """
    scheme, colon, rest = text.partition(":/")
    known = (*_NATIVE_SCHEMES, *_HADOOP_S3, "http", "https", "hf")
    if colon and scheme.lower() in known and not os.path.lexists(f"{scheme}:"):
        raise SourceError(
            f"{shown(f'{scheme}://{rest}')}: this URL came with one slash, {scheme}:/; pass it as text, because "
            "pathlib.Path takes a slash away"
        )


def local_path(path: PathLike) -> str:
    """Return a local path as an absolute one; ``~`` and ``~user`` stand for home directories.

    Raises:
        ConfigurationError: it is a URL; or it is relative, and the working directory was removed.
    """
    text = os.path.expanduser(os.fspath(path))
    if _split_url(text)[0] is not None:
        raise ConfigurationError(f"{shown(text)}: this is a URL; expected a local path")
    try:
        return os.path.abspath(text)
    except FileNotFoundError:
        raise ConfigurationError(
            f"{text}: the path is relative, and the working directory of this process was removed; pass an absolute "
            "path, or change to another directory"
        ) from None


def _check_name_server(url: str, rest: str) -> None:
    """Refuse a URL at once if the bucket's region is not known and S3 cannot be reached to ask for it.

    Raises:
        RemoteError: Amazon's name cannot be resolved.
    """
    options = rest.partition("?")[2]
    if "region=" in options or "endpoint_override=" in options:
        return
    if any(os.environ.get(name) for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")):
        return
    try:  # a malformed URL is found without the network
        pafs.FileSystem.from_uri(f"s3://{rest}{'&' if options else '?'}region=us-east-1")
    except (pa.ArrowException, ValueError) as error:
        raise _unserved(url, error) from None
    endpoint = endpoint_of_url("https://s3.amazonaws.com")
    why = None if endpoint is None else probe(*endpoint)
    if why is not None:
        raise RemoteError(f"{shown(url)}: {why}")


def url_prefix(filesystem: pafs.FileSystem, typed: str) -> str:
    """Return the prefix of a path in messages: the scheme that the caller typed, or the store's own."""
    scheme, separator, _ = typed.partition("://")
    if is_local(filesystem):
        return ""
    if hdfs.is_hdfs(filesystem):
        return hdfs.url_of(filesystem, "/").removesuffix("/")
    if separator and "/" not in scheme:
        return f"{scheme}://"
    scheme = _SCHEME_OF.get(filesystem.type_name, "")
    return scheme and f"{scheme}://"


def _through_pyarrow(typed: str, scheme: str, rest: str) -> tuple[pafs.FileSystem, str]:
    url = f"{scheme}://{rest}"
    # A `?` begins the options of a URL, or is a glob character.
    base, question, options = url.partition("?")
    path, options = (base, question + options) if "=" in options else (url, "")
    glob = _GLOB.search(path, len(scheme) + 3)
    cut = len(path) if glob is None else path.rfind("/", 0, glob.start())
    head, tail = _escaped(path[:cut]), path[cut:]
    if scheme in hdfs.SCHEMES:
        hdfs.check_process()
    if scheme == "s3" and not tail:
        _check_name_server(typed, (head + options).removeprefix("s3://"))
    try:
        found, inner = pafs.FileSystem.from_uri(hdfs.connectable(head + options))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError, OSError) as error:
        if scheme in hdfs.SCHEMES and isinstance(error, OSError):
            raise hdfs.refusal(shown(url), error) from None
        if isinstance(error, OSError):  # pyarrow requests the bucket's region from S3
            reason = without_secrets(str(error))
            raise SourceError(f"{shown(typed)}: cannot be opened: {reason}{remedy(reason)}") from None
        raise _unserved(typed, error) from None
    hdfs.note(found)
    return found, inner + tail


def _escaped(url: str) -> str:
    """Escape characters of names that a URL cannot have, such as spaces, and ``#``, which would end the path."""
    return quote(re.sub("%(?![0-9A-Fa-f]{2})", "%25", url), safe="%:/?[]@!$&'()*+,;=")


def _through_fsspec(url: str, scheme: str) -> tuple[pafs.FileSystem, str]:
    try:
        fsspec: Any = importlib.import_module("fsspec")
        found, inner = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        needs = "pip install 'torch-parquet-loader[remote]' for http(s):// and other URLs of fsspec"
        raise _unserved(url, f"{error}; {needs}") from None
    except Exception as error:  # from whatever package fsspec uses for the scheme, such as an unknown host
        reason = f"{type(error).__name__}: {error}"
        raise SourceError(f"{shown(url)}: cannot be opened: {without_secrets(reason)}") from None
    if scheme not in ("http", "https"):  # directories of HTTP end with a slash
        inner = inner.rstrip("/") or "/"
    return pafs.PyFileSystem(pafs.FSSpecHandler(found)), inner


def _unserved(url: str, reason: object) -> SourceError:
    return SourceError(
        f"{shown(url)}: no filesystem for this URL ({without_secrets(str(reason))}); expected a local path, "
        "file://, s3://, gs://, abfs://, hdfs://, hf://, http(s):// or a URL that fsspec knows, or pass filesystem="
    )


def is_local(filesystem: pafs.FileSystem) -> bool:
    """Whether the filesystem's files are local, so that they can be mapped and their reads are cheap."""
    return isinstance(filesystem, pafs.LocalFileSystem)


def look_up(filesystem: pafs.FileSystem, path: str) -> pafs.FileInfo:
    """Return the type, size and time of a path.

    Raises:
        OSError: the filesystem failed or did not answer.
    """
    return hdfs.look_up(filesystem, path) if hdfs.is_hdfs(filesystem) else filesystem.get_file_info(path)


def list_below(filesystem: pafs.FileSystem, path: str, *, recursive: bool) -> list[pafs.FileInfo]:
    """Return the entries of a directory, of all levels or of one; none if it does not exist.

    Raises:
        OSError: the filesystem failed or did not answer.
    """
    if not hdfs.is_hdfs(filesystem):
        return filesystem.get_file_info(pafs.FileSelector(path, allow_not_found=True, recursive=recursive))  # type: ignore[no-any-return]
    found: list[pafs.FileInfo] = []
    folders = [path]
    while folders:
        inside = hdfs.list_directory(filesystem, folders.pop())
        found += inside
        folders += [info.path for info in inside if recursive and info.type == pafs.FileType.Directory]
    return found


def identity_of(filesystem: pafs.FileSystem) -> str:
    """Return the identity of a store, without its credentials, which may change."""
    if isinstance(filesystem, pafs.SubTreeFileSystem):
        return json.dumps([identity_of(filesystem.base_fs), filesystem.base_path])
    told: dict[str, Any] = {}
    if isinstance(filesystem, pafs.PyFileSystem):
        if isinstance(filesystem.handler, HubFileSystem):
            return json.dumps(["hub", filesystem.handler.api.endpoint])
        remote = getattr(filesystem.handler, "fs", None)
        if remote is not None:
            options = getattr(remote, "storage_options", {})
            protocol = remote.protocol
            told = {"protocol": protocol if isinstance(protocol, str) else list(protocol)}
            told |= {name: str(options[name]) for name in _NOT_SECRET if name in options}
            for given in (options, options.get("client_kwargs")):
                if isinstance(given, dict) and "endpoint_url" in given:
                    told["endpoint_url"] = str(given["endpoint_url"])
    else:
        with contextlib.suppress(Exception):
            (options, *_) = filesystem.__reduce__()[1]
            if isinstance(options, dict):
                told = {name: str(options[name]) for name in _NOT_SECRET if options.get(name)}
    return json.dumps([filesystem.type_name, told], sort_keys=True)
