"""Options that few need: small frozen values, checked once."""

from __future__ import annotations

from dataclasses import dataclass

from parquet_loader.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How files are read.

    Attributes:
        verify_checksums: Check each page against its CRC where the writer stored one. Costs up to three quarters of
            the speed on tensors, little on compressed columns.
        memory_map: Map local files instead of reading them into buffers; faster for uncompressed tensors, but a file
            that is truncated while it is mapped ends the process (SIGBUS): only for files that nobody rewrites.
    """

    verify_checksums: bool = False
    memory_map: bool = False

    def __post_init__(self) -> None:
        for name in ("verify_checksums", "memory_map"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigurationError(f"ReadOptions({name}={getattr(self, name)!r}): expected True or False")
