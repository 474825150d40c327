"""Turns the `storage_options` of the package `deltalake` into a file system."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow.fs as pafs

from parquet_loader.errors import ConfigurationError

_S3 = {
    "access_key_id": "access_key",
    "secret_access_key": "secret_key",
    "session_token": "session_token",
    "token": "session_token",
    "region": "region",
    "default_region": "region",
    "endpoint": "endpoint",
    "endpoint_url": "endpoint",
    "endpoint_url_s3": "endpoint",
    "allow_http": "allow_http",
    "virtual_hosted_style_request": "virtual_hosted",
    "skip_signature": "anonymous",
}
_AZURE = {
    "account_name": "account_name",
    "account_key": "account_key",
    "access_key": "account_key",
    "sas_token": "sas_token",
    "sas_key": "sas_token",
}
# Options of writers, ignored here.
_OF_WRITERS = frozenset({"s3_allow_unsafe_rename", "allow_unsafe_rename", "s3_locking_provider", "conditional_put"})


def filesystem_of(url: str, options: Mapping[str, str]) -> pafs.FileSystem | None:
    """Return the file system of a URL with these options; None for a local path.

    Raises:
        ConfigurationError: an option is unknown, or the store takes none.
    """
    scheme, separator, rest = url.partition("://")
    scheme = scheme.lower()
    if not separator or scheme == "file":
        return None
    if scheme in ("s3", "s3a", "s3n"):
        return _s3(_renamed(options, "aws_", _S3))
    if scheme in ("abfs", "abfss", "az", "azure", "adl"):
        found = _renamed(options, "azure_storage_", _AZURE)
        if "account_name" not in found and "@" in rest:
            found["account_name"] = rest.partition("@")[2].partition(".")[0]
        return pafs.AzureFileSystem(**found)
    raise ConfigurationError(
        f"storage_options are not known for {scheme}://; pass filesystem=<pyarrow.fs.FileSystem> with the credentials"
    )


def _renamed(options: Mapping[str, str], prefix: str, known: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in options.items():
        plain = name.lower().removeprefix(prefix).removeprefix("azure_")
        if plain in _OF_WRITERS:
            continue
        if plain not in known:
            raise ConfigurationError(
                f"storage_options: {name!r} is not known here; pass filesystem=<pyarrow.fs.FileSystem> instead"
            )
        found[known[plain]] = str(value)
    return found


def _s3(found: dict[str, str]) -> pafs.FileSystem:
    options: dict[str, Any] = {
        name: found[name] for name in ("access_key", "secret_key", "session_token", "region") if name in found
    }
    if "endpoint" in found:
        scheme, separator, host = found["endpoint"].rpartition("://")
        options["endpoint_override"] = host.rstrip("/")
        options["scheme"] = scheme if separator else "https"
        options.setdefault("region", "us-east-1")
        options["force_virtual_addressing"] = _is_true(found.get("virtual_hosted"))
    if _is_true(found.get("anonymous")):
        options["anonymous"] = True
    return pafs.S3FileSystem(**options)


def _is_true(text: str | None) -> bool:
    return text is not None and text.lower() in ("true", "1", "yes", "on", "y")
